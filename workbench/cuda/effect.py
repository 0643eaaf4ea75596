"""Whether a fault is in what is built: where a switch leaves out the lines that it changes the kernel is right, and may
not be called faulty.
"""

import ast
import functools
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import NamedTuple

from workbench.case.case import Case
from workbench.case.fields import typed
from workbench.cuda.build import Switches, text_of
from workbench.cuda.faults.fault import Fault
from workbench.cuda.kernel import Constants, Kernel
from workbench.cuda.kernels import KERNELS
from workbench.refusal import Refusal

Bound = tuple[tuple[str, bool], ...]


def effective(fault: Fault, case: Case) -> bool:
    """Whether a fault is in what its kernel is built of for a resolved case with inputs of its own."""
    kernel = KERNELS[fault.kernel]
    functions = _functions(kernel, fault)
    bound = _switches(kernel.constants(case))
    return not functions or any(_stands(kernel.functions[one], one, fault, bound) for one in functions)


def stands(file: Path, function: str, fault: Fault, constants: Constants) -> bool:
    """Whether a function of a source is built of something else with a fault."""
    return _stands(file, function, fault, _switches(constants))


def check(kernel: Kernel, case: Case, constants: Constants, faults: Sequence[Fault], launched: Collection[str]) -> None:
    """Refusal for a fault that changes nothing of what the kernel is built of with `constants`, of a resolved case, or
    that reads what it has not. `launched`: the functions that run; a fault in another is no matter.
    """
    bound = _switches(constants)
    for fault in faults:
        # none: of the quantiser, or its results come from outside, and what is right then has none of its blame
        run = [one for one in _functions(kernel, fault) if one in launched]
        if run and not any(_stands(kernel.functions[one], one, fault, bound) for one in run):
            needs = ", ".join(f"{name}={typed(value)}" for name, value in fault.needs.items())
            got = {name: getattr(case, name) for name in fault.needs} or case.unusual
            raise Refusal(
                f"fault {fault.id} changes nothing in {kernel.name} as built for this case. It shows with "
                f"{needs or 'a simpler case'}; got {', '.join(f'{name}={typed(value)}' for name, value in got.items())}"
            )


def _functions(kernel: Kernel, fault: Fault) -> list[str]:
    """The kernel functions whose source a fault changes."""
    return [name for name, file in kernel.functions.items() if kernel.faults_of(file, [fault])]


def _switches(constants: Constants) -> Bound:
    return tuple((name, value) for name, value in constants.names().items() if isinstance(value, bool))


@functools.lru_cache(maxsize=4096)
def _stands(file: Path, function: str, fault: Fault, bound: Bound) -> bool:
    """Whether a kernel function is built of something else with a fault, and of nothing that only other builds have."""
    faulty, clean = (_built(file, function, some, bound) for some in ((fault,), ()))
    if not (new := faulty[function].loaded - clean[function].loaded - faulty[function].stored):
        return faulty != clean
    return not new & _built(file, function, (), ())[function].stored


class _Syntax(NamedTuple):
    """That of a function or a constant."""

    dump: str
    loaded: frozenset[str]  #: names that are read
    stored: frozenset[str]  #: names that are assigned to and are no arguments


@functools.lru_cache(maxsize=16)
def _built(file: Path, function: str, faults: tuple[Fault, ...], bound: Bound) -> dict[str, _Syntax]:
    """What a kernel function is built of: its syntax, and that of whatever of its file it reaches, by name."""
    tree = ast.parse(text_of(file, faults))
    defined = {name: node for node in tree.body for name in _defines(node)}
    switches, found, names = Switches(dict(bound)), dict[str, _Syntax](), [function]
    while names:
        name = names.pop()
        if name in defined and name not in found:
            node = switches.visit(defined[name])
            every = [*ast.walk(node)]
            loaded = frozenset(x.id for x in every if isinstance(x, ast.Name) and isinstance(x.ctx, ast.Load))
            stored = frozenset(x.id for x in every if isinstance(x, ast.Name) and isinstance(x.ctx, ast.Store))
            stored -= {x.arg for x in every if isinstance(x, ast.arg)}
            found[name] = _Syntax(ast.dump(node), loaded, stored)
            names += loaded
    return found


def _defines(node: ast.stmt) -> list[str]:
    """The names that a statement of a file gives to functions and constants."""
    if isinstance(node, ast.FunctionDef):
        return [node.name]
    return (
        [target.id for target in node.targets if isinstance(target, ast.Name)] if isinstance(node, ast.Assign) else []
    )
