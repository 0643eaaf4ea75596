"""From a kernel's one source to the function that runs: faults in the text, probes and constants in the syntax tree,
then a target.

Nobody keeps an instrumented copy of a kernel. A build without probes compiles to the same PTX as the source without its
probe lines, and one whose switch is off, a capital that is bound to False, to that of a source without the `if` of it.
"""

import ast
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workbench.case.stages import STAGES, Stage
from workbench.cuda import emulator
from workbench.cuda.faults.fault import Fault, applied
from workbench.cuda.kernel import Constants
from workbench.cuda.loops import apart
from workbench.cuda.tensor_maps import TensorMap, tensor_maps

#: axis -> where its first index in a box is among the int32 that a boxed build takes; its last + 1 is behind it
BOX = {"b": 0, "h": 2, "q": 4, "kv_h": 6}
#: the argument with what is stored, of a call that stores several elements of a stage, behind the place where
REGISTERS = 4


@dataclass(frozen=True)
class Build:
    """A kernel function with its constants bound and the wanted probes in place."""

    source: emulator.Source
    text: str  #: of its file, with the faults put in
    parameters: tuple[str, ...]  #: arguments of the function by name
    probes: tuple[str, ...]  #: stages dumped; each is an argument behind those, in this order
    maps: tuple[TensorMap, ...] = ()  #: of copies of whole tiles, which numba.cuda itself cannot launch

    def for_emulator(self, *, watched: bool = False) -> emulator.Emulated:
        """The function for the CPU; compiled at its first launch, from a cache on disk where it was compiled before."""
        return emulator.compile(self.source, watched=watched)

    @functools.cached_property
    def for_numba(self) -> Callable[..., None]:
        """The function that numba.cuda compiles: its loops over `unrolled` and `peeled` are taken apart."""
        tree, namespace = apart(self.source.tree, self.source.namespace), dict(self.source.namespace)
        if tree is not self.source.tree:
            exec(compile(tree, self.source.filename, "exec"), namespace)
        function: Callable[..., None] = namespace[self.source.name]
        return function

    @property
    def cuda_options(self) -> dict[str, Any]:
        """What numba.cuda compiles with. The bound on threads keeps a block within its 65536 registers: unbounded, the
        compiler takes up to 246 for each thread, and a launch of 512 threads fails.
        """
        return {"lineinfo": True, "launch_bounds": self.source.namespace["THREADS"]}


class Switches(ast.NodeTransformer):
    """Puts the branch that is taken in the place of an `if` of a capital that is bound to True or False, or of `not`
    it, and leaves out what is behind a function's end.
    """

    def __init__(self, bound: Mapping[str, Any]) -> None:
        self.bound = bound

    def visit_If(self, node: ast.If) -> ast.AST | list[ast.stmt]:
        """The `if`, or one of its branches."""
        return self._taken(node)

    def visit_IfExp(self, node: ast.IfExp) -> ast.expr:
        """The same of a conditional expression."""
        return self._taken(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        """The function up to its first `return` that no `if` is left of."""
        self.generic_visit(node)
        end = next((i for i, one in enumerate(node.body, 1) if isinstance(one, ast.Return)), None)
        node.body = node.body[:end]
        return node

    def _taken(self, node: Any) -> Any:
        self.generic_visit(node)
        negated = isinstance(node.test, ast.UnaryOp) and isinstance(node.test.op, ast.Not)
        test = node.test.operand if negated else node.test
        switch = self.bound.get(test.id) if isinstance(test, ast.Name) else None
        return (node.body if switch is not negated else node.orelse) if isinstance(switch, bool) else node


def _switched(kernel: ast.FunctionDef, bound: Mapping[str, Any]) -> None:
    """Leave only the branches that are taken, and of the parameters none that only the others need."""
    before = _names(kernel)
    Switches(bound).visit(kernel)
    gone = before - _names(kernel)
    kernel.args.args = [parameter for parameter in kernel.args.args if parameter.arg not in gone]


def _names(tree: ast.AST) -> set[str]:
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}


class _Probes(ast.NodeTransformer):
    """Turns `probe.<stage>[index] = value` into a store to an argument for wanted stages and drops it for others;
    `boxed`: only where the index is in a box, into a buffer that begins there. `probe.<stage>[..., i:end] = f(x, y)`
    is stored by f itself, given the array, the index without its last axis, and of that where it begins and ends:
    f(array, (...), i, end, x, y). What only probes need, such as a sum that takes all lanes, is `x, y = probe(value,
    value)`: it goes where no stage of the kernel is wanted.
    """

    def __init__(self, wanted: Sequence[str], boxed: bool, probed: bool) -> None:
        self.wanted, self.boxed, self.probed = wanted, boxed, probed
        self.found: list[str] = []

    def visit_Assign(self, node: ast.Assign) -> ast.stmt | None:
        """Keep, redirect or drop one assignment."""
        if isinstance(node.value, ast.Call) and ast.unparse(node.value.func) == "probe":
            node.value = ast.copy_location(ast.Tuple(node.value.args, ast.Load()), node.value)
            return node if self.probed else None
        target = node.targets[0]
        if not (isinstance(target, ast.Subscript) and isinstance(target.value, ast.Attribute)):
            return node
        owner = target.value.value
        if not (isinstance(owner, ast.Name) and owner.id == "probe"):
            return node
        stage = target.value.attr
        if stage not in self.wanted:
            return None
        self.found.append(stage)
        target.value = ast.copy_location(ast.Name(f"probe_{stage}", ast.Load()), target.value)
        if not self.boxed:
            return _stored(node, target)
        test = _into_box(target, STAGES[stage])
        made = ast.If(test, [_stored(node, target)], [])
        for inner in ast.walk(made):
            ast.copy_location(inner, node)
        return made

    def _block(self, node: ast.If | ast.For) -> ast.AST | None:
        """A block left empty goes with its header; a header holds no effects, only a condition or a range."""
        self.generic_visit(node)
        if not node.body and node.orelse:  # what the else branch does must still depend on the header
            node.body = [ast.copy_location(ast.Pass(), node)]
        return node if node.body else None

    visit_If = visit_For = _block


def _probed(tree: ast.AST) -> set[str]:
    """The stages that a kernel has probes of."""
    found = (node for node in ast.walk(tree) if isinstance(node, ast.Attribute))
    return {node.attr for node in found if isinstance(node.value, ast.Name) and node.value.id == "probe"}


def _into_box(target: ast.Subscript, stage: Stage) -> ast.expr:
    """Count the index of a store from the box's first; the condition that it is in the box."""
    indices = target.slice.elts if isinstance(target.slice, ast.Tuple) else [target.slice]
    conditions: list[str] = []
    counted: list[str] = []
    for axis, index in zip(stage.axes, map(ast.unparse, indices), strict=True):
        place = BOX.get("kv_h" if axis == "h" and stage.of_kv else axis)
        counted.append(index if place is None else f"{index} - box[{place}]")
        if place is not None:
            conditions.append(f"box[{place}] <= {index} and {index} < box[{place + 1}]")
    made = ast.parse(f"x[{', '.join(counted)},]", mode="eval").body
    assert isinstance(made, ast.Subscript)
    target.slice = made.slice
    return ast.parse(" and ".join(conditions), mode="eval").body


def _stored(node: ast.Assign, target: ast.Subscript) -> ast.stmt:
    """A store of one element, or the call of what stores several."""
    index, value = target.slice, node.value
    if not (isinstance(index, ast.Tuple) and isinstance(index.elts[-1], ast.Slice)):
        return node
    several = index.elts[-1]
    assert several.lower is not None and several.upper is not None and isinstance(value, ast.Call)
    row = ast.Tuple(index.elts[:-1], ast.Load())
    call = ast.Call(value.func, [target.value, row, several.lower, several.upper, *value.args], [])
    return ast.copy_location(ast.Expr(call), node)


@functools.cache
def text_of(file: Path, faults: tuple[Fault, ...]) -> str:
    """A source with faults put in; Refusal for one whose text no longer matches."""
    return applied(file.read_text(), faults, file.name)


def build(
    file: Path,
    function: str,
    constants: Constants,
    probes: Sequence[str],
    faults: tuple[Fault, ...],
    *,
    boxed: bool = False,
) -> Build:
    """The kernel `function` of `file`, built with `constants`, dumping the stages of `probes` that it can, with
    `faults` put in; `boxed`: only what is in the box, which is then its last argument but the stages.

    Raises Refusal for a fault whose text no longer matches.
    """
    text = text_of(file, faults)
    tree = ast.parse(text, str(file))
    (kernel,) = (node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == function)
    _switched(kernel, constants.names())
    transformer = _Probes(probes, boxed, _probed(kernel) & {*probes} != set())
    transformer.visit(kernel)
    found = tuple(dict.fromkeys(transformer.found))
    parameters = tuple(argument.arg for argument in kernel.args.args)
    last = (["box"] if boxed and found else []) + [f"probe_{stage}" for stage in found]
    kernel.args.args += map(ast.arg, last)
    reached = _reached(tree, kernel)
    tree.body = [node for node in tree.body if node in reached or _is_constant(node)]
    ast.fix_missing_locations(tree)
    namespace: dict[str, Any] = {"__name__": f"workbench.cuda.{file.stem}", **constants.names()}
    exec(compile(tree, str(file), "exec"), namespace)
    source = emulator.Source(function, tree, namespace, str(file))
    return Build(source, text, parameters, found, tensor_maps(tree, constants.names()))


def _reached(tree: ast.Module, kernel: ast.FunctionDef) -> list[ast.stmt]:
    """The kernel and the device functions of the file that it needs, themselves or those that they call: what the other
    kernel of a shared source alone calls has names that are not bound here.
    """
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef) and node.decorator_list}
    found: list[ast.stmt] = [kernel]
    for one in found:
        called = _names(one) & {*functions}
        found += [functions[name] for name in functions if name in called and functions[name] not in found]
    return found


def _is_constant(node: ast.stmt) -> bool:
    """Whether kernels of the file may need it: imports and constants, but not what the host knows about them."""
    if isinstance(node, ast.Assign):
        return ast.unparse(node.targets[0]) != "KERNEL"
    return not isinstance(node, ast.ClassDef | ast.FunctionDef)
