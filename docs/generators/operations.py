"""What `--operation` takes: each operation's inputs, numbers, conventions and distributions, from its record."""

import inspect
from collections.abc import Callable, Mapping

from docs.generators.markdown import code, escaped, table
from workbench.operations.case import OperationCase
from workbench.operations.every import OPERATIONS
from workbench.operations.operation import Operation


def operations() -> str:
    """A section for each, a row for what it takes; rows that would be empty are left out."""
    return "\n".join(f"### {name}\n\n{_told(one)}" for name, one in OPERATIONS.items())


def _told(one: Operation) -> str:
    rows = [
        ["inputs, in order", _arrays(one, one.inputs)],
        ["optional inputs", _arrays(one, one.optional)],
        ["numbers and flags", ", ".join(f"{code(name)}{_usual(said)}" for name, said in one.numbers.items())],
        ["functions", ", ".join(map(code, one.functions))],
        ["stages", ", ".join(map(code, one.stages(OperationCase(one).setting)))],
        ["results", ", ".join(map(code, one.results))],
        *(
            [f"convention {code(name)}, default first", escaped(", ".join(map(str, values)))]
            for name, values in one.conventions.items()
        ),
        ["distributions", ", ".join(map(code, one.distributions))],
        *([f"distribution {code(name)}", escaped(_says(draw))] for name, draw in one.distributions.items()),
    ]
    return table(["what", "values"], [row for row in rows if row[1]])


def _arrays(one: Operation, arrays: Mapping[str, str]) -> str:
    return ", ".join(f"{code(name)} {escaped(_axes(one, letters))}" for name, letters in arrays.items())


def _axes(one: Operation, letters: str) -> str:
    return f"[{', '.join(one.axes[letter] for letter in letters)}]"


def _usual(said: object) -> str:
    """The usual value, where it is one."""
    return escaped(f" [{said:g}]") if isinstance(said, int | float) and not isinstance(said, bool) else ""


def _says(draw: Callable[..., object]) -> str:
    """The first sentence of what it draws."""
    return (inspect.getdoc(draw) or "").split("\n\n")[0].replace("\n", " ")
