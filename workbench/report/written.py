"""A file of pytest that repeats a failure: it fails with the bug and passes without."""

import re
import textwrap
from collections.abc import Sequence
from typing import Any

import numpy as np

from workbench.case.command_line import case_fields
from workbench.case.options import ANY, FOREIGN, NAMELESS, OURS
from workbench.explore.shrink.shrink import Shrunk
from workbench.explore.shrink.space import elements
from workbench.foreign.target import known
from workbench.refusal import Refusal
from workbench.report.command import takes_tiles
from workbench.report.shrunk import boundary_lines
from workbench.trace.headline import headline
from workbench.trace.trace import Trace

#: characters of a line
WIDTH = 120
INDENT = "    "


def test_file(found: Shrunk) -> str:
    """The source of a file of pytest of the public interface alone, with one test: the smallest case, and what it is in
    words. Refusal for a callable, which no file can name, and for arrays that were put in.
    """
    trace = found.judged.trace
    options = run_options(found.start.trace)
    imports = ["from workbench import Case", "from workbench.testing import assert_attention"]
    arrays = found.inputs or {}
    if arrays:
        imports = [*_libraries(arrays.values()), "", *imports]
    name = re.sub(r"\W+", "_", f"{_short(found)}_{found.origin}").lower()
    body = [_call("case = Case", [], _fields(trace))]
    if arrays:
        body += ["inputs = {", *(f'{INDENT}"{name}": {_literal(x)},' for name, x in arrays.items()), "}"]
    own = ["inputs=inputs"] if arrays else []
    body.append(_call("assert_attention", [_python(trace.target), "case"], options, own))
    function = textwrap.indent("\n".join(body), INDENT)
    return "\n".join([_docstring(found), "", *imports, "", "", f"def test_{name}() -> None:", function, ""])


def _fields(trace: Trace) -> dict[str, Any]:
    """The fields of its case; Refusal as of `test_file`."""
    case = trace.case
    if own := [name for name in ("score_mod", "mask_mod") if callable(getattr(case, name))]:
        raise Refusal(f"a test names {own[0]} as path.py:function; got a callable, which has no such name")
    return case_fields(case, takes_tiles(trace))


def run_options(trace: Trace) -> dict[str, Any]:
    """The options of `workbench.run`, beside the case, with which a trace was run; Refusal as of `test_file`."""
    called = trace.called_with
    ours = trace.backend != "foreign"
    target = known(trace.target)
    if not ours and (target is None or not target.is_foreign):
        raise Refusal(
            f"a test names its kernel, as path.py:function; {trace.target} is a callable, which has no such name"
        )
    if NAMELESS in called.feed.values():
        raise Refusal(f"a test cannot contain the replaced arrays: {', '.join(called.feed)}")
    found: dict[str, Any] = {"faults": list(trace.faults)} if trace.faults else {}
    found |= {"backend": trace.backend} if ours else {}
    given = called.given(OURS if ours else FOREIGN, ANY)
    return found | {name: getattr(called, name) for name in given if name not in ("faults", "inputs")}


def _short(found: Shrunk) -> str:
    """The kernel without the folders of its file."""
    return found.judged.trace.target.split("/")[-1]


def _docstring(found: Shrunk) -> str:
    what = found.kind if found.cause is None else found.cause.text
    paragraphs = [
        [f"{_short(found)}: first wrong stage {found.origin}: {what}."],
        [f"The smallest case of {headline(found.start.trace)}:", f"{elements(found.smallest)} elements in q, k and v."],
        *[[f"- {line}"] for line in boundary_lines(found)],
    ]
    if found.majority:
        paragraphs.append([f"It failed in {found.failed} of {found.runs} runs on the same inputs."])
    if not found.complete:
        paragraphs.append(["The search was cut short: a smaller case may exist."])
    # names of files and faults stay whole
    wrapper = textwrap.TextWrapper(WIDTH - 3, break_long_words=False, break_on_hyphens=False)
    filled = [wrapper.fill(" ".join(words)) for words in paragraphs]
    first, *others = filled
    text = "\n".join([first, "", *others]).replace("\\", "\\\\").replace('"""', "'''")
    return f'"""{text}\n"""'


def _python(value: Any) -> str:
    """A value of plain Python as source, its words in double quotes."""
    source = repr(value)
    return source if '"' in source else source.replace("'", '"')


def _call(function: str, positional: Sequence[str], keywords: dict[str, Any], more: Sequence[str] = ()) -> str:
    """A call in one line, or with an argument a line."""
    words = [*positional, *(f"{name}={_python(value)}" for name, value in keywords.items()), *more]
    line = f"{function}({', '.join(words)})"
    if len(line) + len(INDENT) <= WIDTH:
        return line
    return "\n".join([f"{function}(", *(f"{INDENT}{word}," for word in words), ")"])


def _libraries(arrays: Any) -> list[str]:
    narrow = any(x.dtype.name == "bfloat16" for x in arrays)
    return [*(["import ml_dtypes"] if narrow else []), "import numpy as np"]


def _literal(x: np.ndarray) -> str:
    library = "ml_dtypes" if x.dtype.name == "bfloat16" else "np"
    return f"np.array({x.astype(int).tolist()}, {library}.{x.dtype.name})"
