"""The API reference: what autodoc is asked to show of each public name."""

import ast
import importlib
import inspect
import typing
from collections import Counter
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path
from typing import Any

import workbench
from docs.generators import contracts
from workbench import lazy

PACKAGES = ("workbench", "workbench.testing")
#: members of classes that are for users; of other classes every member with a docstring is
MEMBERS = {
    "Case": "but, as_dict, inputs, mask",
    "Diff": "verdict, origin, origins, victims, stages, gates, doubt, rules, bits_lost, explain, explained, truth, "
    "as_dict, save_html, plot, heatmap, plot_cancellation",
    "Trace": "case_run, lines",
}
#: public ways to judge that a public function hands its arguments to
_BEHIND = ("workbench.operations.reference.call.diff_reference", "workbench.judge.diff.diff")


def package(name: str) -> str:
    """A section for each public name of a package, in the order of its stub."""
    return "\n".join(_section(f"{name}.{one}", of(f"{name}.{one}")) for one in importlib.import_module(name).__all__)


def results() -> str:
    """A section for each class that a public function returns and no package exports."""
    paths = sorted(returned(), key=lambda path: path.rpartition(".")[2])
    times = Counter(path.rpartition(".")[2] for path in paths)
    titles = {path: path.removeprefix("workbench.") for path in paths if times[path.rpartition(".")[2]] > 1}
    return "\n".join(_section(path, of(path), titles.get(path, "")) for path in paths)


def modules() -> str:
    """A section for each function that is imported from its module: those that were public names, and `_BEHIND`."""
    moved = {path for path in of("workbench._MOVED").values() if path.count(".") > 1 and inspect.isfunction(of(path))}
    return "\n".join(_section(path, of(path), path.removeprefix("workbench.")) for path in sorted({*moved, *_BEHIND}))


def exported() -> list[str]:
    """The public names of all packages, with the package."""
    return [f"{name}.{one}" for name in PACKAGES for one in importlib.import_module(name).__all__]


def of(path: str) -> Any:
    """What a dotted path names."""
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


def returned() -> set[str]:
    """Paths of the classes of the workbench that public functions return, but for exported ones."""
    public = [of(path) for path in exported()]
    classes = {one for function in public if inspect.isfunction(function) for one in _returned(function)}
    return {f"{one.__module__}.{one.__qualname__}" for one in classes if one not in public}


def _returned(function: Any) -> Iterator[type]:
    for one in typing.get_overloads(function) or [function]:
        told = inspect.signature(one).return_annotation
        if isinstance(told, str):
            told = of(_imports(Path(inspect.getfile(one)))[told])
        if inspect.isclass(told) and told.__module__.startswith("workbench."):
            yield told


def _imports(file: Path) -> dict[str, str]:
    """Name -> its path, of what a file imports, for type checkers alone included."""
    nodes = [node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.ImportFrom)]
    return {alias.asname or alias.name: f"{node.module}.{alias.name}" for node in nodes for alias in node.names}


def _section(path: str, what: Any, title: str = "") -> str:
    """Heading, and what autodoc shows. ValueError where there is no docstring."""
    module, _, name = path.rpartition(".")
    if not documented(what, path):
        raise ValueError(f"{path} is public and has no docstring")
    lines = [f".. autofunction:: {path}"]
    if inspect.isclass(what):
        lines = [
            f".. autoclass:: {path}",
            f"   :members: {MEMBERS.get(name, '')}".rstrip(),
            "   :member-order: bysource",
        ]
        if issubclass(what, Exception | Warning):
            lines[0] = f".. autoexception:: {path}"
    elif not callable(what):
        lines = [f".. py:data:: {path}", "", f"   {_comment(path)}"]
    more = ["", contracts.case()] if what is workbench.Case else []
    return "\n".join([f"## {title or name}", "", "```{eval-rst}", *lines, "```", *more, ""])


def documented(what: Any, path: str) -> bool:
    """Whether a class or function has a docstring that somebody wrote; a value a comment `#:` above its assignment."""
    if inspect.isclass(what) or callable(what):
        said = inspect.cleandoc(what.__doc__ or "")
        return bool(said) and not said.startswith(f"{path.rpartition('.')[2]}(")  # as dataclasses write one
    return bool(_comment(path))


def _comment(path: str) -> str:
    """The comment `#:` above the assignment of a value that a package exports."""
    package, _, name = path.rpartition(".")
    home, own = lazy.names(str(importlib.import_module(package).__file__))[name]
    lines = inspect.getsource(importlib.import_module(home)).splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith((f"{own} ", f"{own}:")))
    above = takewhile(lambda line: line.startswith("#:"), reversed(lines[:at]))
    return " ".join(line.removeprefix("#:").strip() for line in reversed([*above]))
