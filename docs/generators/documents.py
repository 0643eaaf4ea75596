"""The fields of JSON documents, from the docstrings of what writes them.

A docstring of a writer names the schema in its first paragraph, and lists fields below it, as in
"- `origin`, `origins`: the first origin; all origins". "The document `workbench.diff/1` ..." begins a schema; another
docstring that lists fields and names it is of a part of it.
"""

import ast
import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import workbench
from docs.generators.markdown import escaped, table

#: fields that the page explains once
COMMON = {"schema", "target", "backend", "faults", "case", "seconds"}
#: schemas of files, which are no output of `--json`
FILES = {
    "workbench.calibration/1", "workbench.operation-run/1", "workbench.rank/1", "workbench.sweep-file/1",
    "workbench.symptoms/1",
}  # fmt: skip
SCHEMA = re.compile(r"workbench\.[a-z-]+/1")
_FIELDS = re.compile(r"^- ((?:`[^`]+`(?:, )?)+): (.*(?:\n  .*)*)", re.MULTILINE)


@dataclass(frozen=True)
class Writer:
    """A function that writes a document, or a part of one."""

    where: str
    schemas: tuple[str, ...]  #: that its docstring names first
    said: str  #: the first paragraph
    fields: tuple[tuple[str, str], ...]  #: names in backticks, and what is said of them
    keys: frozenset[str]  #: of the dicts in it

    @property
    def whole(self) -> bool:
        """Whether it writes a document, not a part."""
        return self.said.startswith("The document `")


def documents() -> str:
    """A section for each document; ValueError where a schema has no writer that says its fields, or leaves one out."""
    found = writers()
    wholes = {schema: one for one in found if one.whole for schema in one.schemas}
    several = {schema for one in found for schema in one.schemas} - {*wholes}
    if left := schemas() - {*wholes} - FILES - set(_plurals()):
        raise ValueError(f"no docstring lists the fields of {', '.join(sorted(left))}")
    if left := several - {*wholes}:
        raise ValueError(f"a part of {', '.join(sorted(left))} is documented, and the document is not")
    for one in found:
        if lacking := one.keys - COMMON - {name for names, said in one.fields for name in _names(f"{names} {said}")}:
            raise ValueError(f"the docstring of {one.where} lacks the fields {', '.join(sorted(lacking))}")
    return "\n".join(_section(schema, [wholes[schema], *(one for one in found if _is_part(one, schema))])
                     for schema in sorted(wholes, key=lambda name: (name != "workbench.diff/1", name)))  # fmt: skip


def plurals() -> str:
    """The documents of several cases."""
    return table(["schema", "holds, in"], ([f"`{name}`", f"`{field}`"] for name, field in sorted(_plurals().items())))


def writers() -> list[Writer]:
    """All functions of the package whose docstring names a schema and lists fields."""
    return [one for path, tree in _sources() for one in _writers(path, tree)]


def schemas() -> set[str]:
    """All schemas that the package writes or reads."""
    constants = (node.value for _, tree in _sources() for node in ast.walk(tree) if isinstance(node, ast.Constant))
    return {value for value in constants if isinstance(value, str) and SCHEMA.fullmatch(value)}


def _sources() -> Iterator[tuple[Path, ast.Module]]:
    root = Path(inspect.getfile(workbench)).parent
    for path in sorted(root.rglob("*.py")):
        source = path.read_text()
        if SCHEMA.search(source):
            yield path.relative_to(root), ast.parse(source)


def _writers(path: Path, tree: ast.Module) -> Iterator[Writer]:
    for node in ast.walk(tree):
        text = ast.get_docstring(node) if isinstance(node, ast.FunctionDef) else None
        if text and (fields := _FIELDS.findall(text)):
            said = " ".join(text.partition("\n\n")[0].split())
            if named := tuple(SCHEMA.findall(said)):
                lines = tuple((names, " ".join(what.split())) for names, what in fields)
                yield Writer(f"{path}:{node.name}", named, said, lines, frozenset(_keys(node)))  # type: ignore[attr-defined]


def _keys(function: ast.AST) -> set[str]:
    """The keys of the document that a function writes; of a part of one those of every dict."""
    dicts = [one for one in ast.walk(function) if isinstance(one, ast.Dict)]
    documents = [one for one in dicts if "schema" in map(_constant, one.keys)] or dicts
    inside = (one for document in documents for one in ast.walk(document) if isinstance(one, ast.Dict))
    return {name for one in inside for name in map(_constant, one.keys) if name}


def _plurals() -> dict[str, str]:
    """Schema -> the field that holds several documents, of dicts that hold no more."""
    dicts = [node for _, tree in _sources() for node in ast.walk(tree) if isinstance(node, ast.Dict)]
    pairs = [dict(zip(map(_constant, one.keys), map(_constant, one.values), strict=True)) for one in dicts]
    return {one["schema"]: field for one in pairs for field in ("runs", "pairs") if {*one} == {"schema", field}}


def _constant(node: ast.expr | None) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def _is_part(one: Writer, schema: str) -> bool:
    return not one.whole and schema in one.schemas


def _names(names: str) -> list[str]:
    return re.findall(r"`([^`]+)`", names)


def _section(schema: str, parts: list[Writer]) -> str:
    lines = [f"## {schema}", ""]
    for one in parts:
        rows = [[names, escaped(said)] for names, said in one.fields]
        lines += [*([] if one.whole else [one.said, ""]), table(["field", "meaning"], rows)]
    return "\n".join(lines)
