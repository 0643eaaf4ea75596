"""Lines of a reference, as its author reads them."""

import linecache
from pathlib import Path

import workbench
from workbench.reference.graph.node import Line

#: where references of ours are
_OURS = Path(workbench.__file__).parent


def short(line: Line) -> str:
    """file:line, the file relative to the working folder where it lies in it, `cell` of a notebook's; "backward of" it,
    by autograd.
    """
    path = Path(line.file)
    if path.is_relative_to(_OURS):
        return f"{'backward of ' * line.backward}{path.relative_to(_OURS.parent)}:{line.number}"
    path = Path("cell") if path.parent.name.startswith("ipykernel_") else path  # whose file lasts as long as its kernel
    path = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
    return f"{'backward of ' * line.backward}{path}:{line.number}"


def code(line: Line) -> str:
    """What stands there; empty of what is in no file."""
    return linecache.getline(line.file, line.number).strip()


def definition(name: str, line: Line) -> str:
    """What a stage is: the right side of its assignment, or the line as it is, and where it stands; of a gradient the
    line whose backward pass it is.
    """
    said = code(line)
    if line.backward:
        return f"the gradient through {said} ({short(line)})"
    for start in (f"{name} = ", "return "):
        said = said.removeprefix(start)
    return f"{said} ({short(line)})".lstrip()
