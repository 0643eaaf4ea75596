"""Whatever can be judged at rest, read by one function: a trace, its parts, what ranks left, arrays in a file or of
Python, a dump, printed values.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from workbench.case.case import Case
from workbench.refusal import Refusal
from workbench.trace.dumped import load_dump
from workbench.trace.inputs import read
from workbench.trace.join import is_trace, load_all
from workbench.trace.plain import BOX, NAME, check_layout_word, is_plain, of_arrays
from workbench.trace.printed import load_log
from workbench.trace.trace import Trace


def load(
    given: str | Path | Mapping[str, Any],
    case: Case | Mapping[str, Any] | None = None,
    mapping: str | Path | Mapping[str, Any] | None = None,
    *,
    contract: str | Mapping[str, Any] | None = None,
    layout: str = BOX,
) -> Trace:
    """The trace of what lies in `given`.

    A trace that `save` wrote, or any program (docs/reference/trace-format.md): a file, several separated by
    commas, a pattern of them or a folder, of which each holds a part of one run, or what one rank left. Arrays by name,
    in an .npz, .pt or .safetensors file or in a dict of any library's (`plain.of_arrays`): q, k, v, out, lse, scores
    and other stages, with the axes `layout`. With a `mapping`, a TOML file or what one holds, arrays of other names, in
    a file, a folder or a dict. With the `case` whose inputs the kernel had, a log of the values that it printed.

    Of arrays and a mapping `case` says what they do not tell, as a case or as fields of one ({"causal": True}), and
    `contract` what the kernel promises, as of `presets.fields_of`; a log takes both, too.

    >>> q, k, v = Case(seqlen=16, head_dim=8).inputs()
    >>> load({"q": q, "k": k, "v": v, "out": v}, case={"causal": True}).case.causal
    True

    Refusal for what is none of these, is damaged, or does not fit the case; for a mapping, a case or a contract where
    the file says itself what it holds; and for a dump of several calls, which `dumped.load_dump` gives by their
    numbers.
    """
    check_layout_word(layout, "load")
    target = NAME if isinstance(given, Mapping) else str(given)
    if mapping is not None:
        if layout != BOX:
            raise Refusal(f"{target}: set the layout in the mapping; got layout={layout!r}")
        calls = load_dump(given, mapping, case, contract)
        if len(calls) > 1:
            raise Refusal(
                f"{target} holds {len(calls)} calls, but a trace is one call: "
                "use workbench.trace.dumped.load_dump, which returns all"
            )
        return next(iter(calls.values()))
    if isinstance(given, Mapping):
        return of_arrays(given, case, contract=contract, layout=layout)
    if is_plain(target):
        made = of_arrays(read(Path(given)), case, name=target, contract=contract, layout=layout)
        return replace(made, called_with=replace(made.called_with, trace=target))
    if layout != BOX:
        raise Refusal(f"{target}: layout= is for arrays; a trace or log has its own; got layout={layout!r}")
    if is_trace(target):
        if case is not None or contract is not None:
            got = f"case={case!r}" if case is not None else f"contract={contract!r}"
            raise Refusal(f"{target}: a trace brings its own case; got {got}")
        return load_all(target)
    if not isinstance(case, Case):
        found = "not a trace; printed values need their case, as in" if Path(target).is_file() else ""
        raise Refusal(f"{target}: {f'{found} load({target!r}, case=Case(...))' if found else 'no such file'}")
    return load_log(target, case, contract)
