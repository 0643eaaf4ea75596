"""The fields of contracts and of cases, from the tables that define them."""

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

from docs.generators.markdown import code, escaped, table
from workbench.case.assumptions import listing
from workbench.case.fields import FIELDS
from workbench.case.presets import PRESETS, words
from workbench.cli.contract import assumed
from workbench.reference.graph import contract as reference

#: the name of a module's table of words at the end of what is said of a field
_WORDS = re.compile(r",?(?: one)? of ([A-Z]+)")


def fields() -> str:
    """The fields of a contract of attention."""
    rows = ([code(one["name"]), escaped(one["meaning"]), escaped(one["values"]), escaped(assumed(one["assumed"]))]
            for one in listing())  # fmt: skip
    return table(["field", "meaning", "values", "assumed if undeclared"], rows)


def presets() -> str:
    """The presets and what they set."""
    return "".join(f"{code(name)}\n: {code(words(said))}\n\n" for name, said in PRESETS.items())


def of_references() -> str:
    """The settings of `--contract` beside `--reference`: fields that are numbers, or words of the table that
    the comment of the field names. ValueError where it names none.
    """
    usual, rows = reference.Contract(), []
    for name, said in commented(reference.Contract):
        default = getattr(usual, name)
        named = _WORDS.search(said)
        if not (named or isinstance(default, float)):
            raise ValueError(f"the comment of contract field {name} must name its words, as in: one of STORED")
        values = ", ".join(map(code, getattr(reference, named[1]))) if named else "a number of at least 0"
        rows.append([code(name), escaped(_WORDS.sub("", said)), values, code(str(default or ""))])
    return table(["setting", "meaning", "values", "default"], rows)


def case() -> str:
    """The fields of a case."""
    return table(["field", "meaning"], ([code(name), escaped(one.help)] for name, one in FIELDS.items()))


def commented(record: type) -> Iterator[tuple[str, str]]:
    """The fields of a class, each with the comment `#:` above or behind it; ValueError where one has none."""
    source = Path(inspect.getfile(record)).read_text()
    lines = source.splitlines()
    (node,) = (one for one in ast.parse(source).body if isinstance(one, ast.ClassDef) and one.name == record.__name__)
    for one in node.body:
        if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name):
            _, mark, behind = lines[one.lineno - 1].partition("#:")
            above: list[str] = []
            for line in reversed(lines[: one.lineno - 1]):
                if not line.strip().startswith("#:"):
                    break
                above.insert(0, line.strip().removeprefix("#:").strip())
            said = behind.strip() if mark else " ".join(above)
            if not said:
                raise ValueError(f"field {one.target.id} of {record.__name__} has no comment")
            yield one.target.id, said
