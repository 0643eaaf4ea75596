"""Probes for kernels in numba.cuda: `probe.scores[b, h, q, k] = score` dumps an element of a stage.

    @cuda.jit
    @probed(block_k=KEYS)
    def flash(q, k, v, out, ...):
        ...
        probe.scores[b, h, row, key] = score

What `cuda.jit` is given is the kernel without its probes, and that is what runs, but where the workbench runs the
program: the kernel with its probes is then launched in its place, with a buffer for each stage behind its own
arguments. An index outside of the stage, such as that of a tile's padding, stores nothing.
"""

import ast
import copy
import inspect
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from types import CodeType, FunctionType
from typing import Any

from workbench.case.stages import STAGES
from workbench.cuda.host import TREE
from workbench.refusal import Refusal

#: attribute of the function that `cuda.jit` is given: its `Probed`
PROBED = "__probed__"


class Probe:
    """What probes are written as; nothing is stored where the workbench does not run the kernel."""

    def __getattr__(self, stage: str) -> Any:
        if stage.startswith("_"):
            raise AttributeError(stage)
        raise Refusal(f"probe.{stage} is outside of a @probed kernel, in which you write `probe.{stage}[...] = value`")


probe: Any = Probe()


@dataclass(frozen=True, eq=False)
class Probed:
    """A kernel with its probes."""

    function: FunctionType  #: takes a buffer for each of the stages behind its own arguments
    stages: tuple[str, ...]
    where: str  #: its file and line
    block_k: int | None  #: keys of a tile, and splits, of stages that have them
    splits: int | None


def probed(
    kernel: FunctionType | None = None, *, block_k: int | None = None, splits: int | None = None
) -> Callable[..., Any]:
    """The kernel without its probes, for `cuda.jit`, below which it stands: `@probed`, or `@probed(block_k=64)` where
    stages have tiles of so many keys, and `splits` where they have splits.

    Refusal, with the line, for what is no function, a kernel without probes, an unknown stage, an index that has not an
    entry for each axis, and anything else that is done with `probe`.
    """
    if kernel is None:
        return lambda kernel: probed(kernel, block_k=block_k, splits=splits)
    if not isinstance(kernel, FunctionType):
        raise Refusal(f"put @probed below @cuda.jit, on the function itself; got {kernel!r}")
    tree = _tree(kernel)
    where = f"{kernel.__code__.co_filename}:{tree.lineno}"
    plain, dumping = _Stores(kernel, dump=False), _Stores(kernel, dump=True)
    without, with_probes = plain.visit(copy.deepcopy(tree)), dumping.visit(tree)
    stages = tuple(dict.fromkeys(dumping.found))
    if not stages:
        raise Refusal(f"{where}: {kernel.__name__} is @probed but has no probe, such as probe.scores[b, h, q, k] = x")
    for axis, name, told in (("t", "block_k", block_k), ("s", "splits", splits)):
        for stage in stages:
            if told is None and axis in STAGES[stage].axes:
                raise Refusal(
                    f"{where}: probe.{stage} needs @probed({name}=...), since its axes are "
                    f"[{' '.join(STAGES[stage].axes)}]"
                )
    with_probes.args.args += [ast.arg(f"probe_{stage}") for stage in stages]
    made = Probed(_function(with_probes, kernel), stages, where, block_k, splits)
    function = _function(without, kernel)
    setattr(function, PROBED, made)
    return function


def refuse_others(function: Any, callers: tuple[Any, ...] = ()) -> None:
    """Refusal for a probe in a kernel without `probed`, and in the device functions that it calls, and they."""
    found = inspect.getclosurevars(function)
    names = {**found.globals, **found.nonlocals}
    if names.get("probe") is probe:
        where = [node for node in ast.walk(_tree(function)) if isinstance(node, ast.Name) and node.id == "probe"]
        place = f"{function.__code__.co_filename}:{where[0].lineno}"
        raise Refusal(
            f"{place}: {function.__name__} has a probe but is not @probed: put @probed below @cuda.jit of the kernel, "
            "and return a device function's values to the kernel to dump them"
        )
    for called in names.values():
        inner = getattr(called, "py_func", None)
        if isinstance(inner, FunctionType) and inner not in (function, *callers):
            refuse_others(inner, (function, *callers))


class _Stores(ast.NodeTransformer):
    """Makes stores into buffers of a kernel's probes, or leaves them out."""

    def __init__(self, kernel: FunctionType, *, dump: bool) -> None:
        self.kernel, self.dump = kernel, dump
        self.found: list[str] = []

    def visit_Assign(self, node: ast.Assign) -> Any:
        """A store, or nothing; other assignments as they are."""
        target = node.targets[0]
        if not (isinstance(target, ast.Subscript) and isinstance(target.value, ast.Attribute)):
            return self.generic_visit(node)
        if not (isinstance(target.value.value, ast.Name) and target.value.value.id == "probe"):
            return self.generic_visit(node)
        stage, where = target.value.attr, self._at(node)
        if stage not in STAGES:
            raise Refusal(f"{where}: probe.{stage}: there is no stage {stage!r}; stages are: {', '.join(STAGES)}")
        axes = STAGES[stage].axes
        index = target.slice.elts if isinstance(target.slice, ast.Tuple) else [target.slice]
        if len(index) != len(axes) or any(isinstance(one, ast.Slice | ast.Starred) for one in index):
            raise Refusal(
                f"{where}: probe.{stage} takes an index for each of its axes [{' '.join(axes)}]; got "
                f"[{ast.unparse(target.slice)}]"
            )
        if len(node.targets) > 1:
            raise Refusal(f"{where}: assign probe.{stage} in a statement without other targets: {ast.unparse(node)}")
        self.visit(node.value)
        if not self.dump:
            return None
        self.found.append(stage)
        return _guarded(node, f"probe_{stage}", index, len(self.found))

    def visit_Name(self, node: ast.Name) -> ast.Name:
        """Any other use of `probe` is refused."""
        if node.id == "probe":
            raise Refusal(f"{self._at(node)}: a probe stores one element: probe.scores[b, h, q, k] = x")
        return node

    def _block(self, node: Any) -> Any:
        """A block of which nothing is left does nothing; its header may, and stays."""
        self.generic_visit(node)
        node.body = node.body or [ast.copy_location(ast.Pass(), node)]
        return node

    visit_If = visit_For = visit_While = visit_FunctionDef = _block

    def _at(self, node: Any) -> str:
        return f"{self.kernel.__code__.co_filename}:{node.lineno}"


def _guarded(node: ast.Assign, buffer: str, index: list[ast.expr], number: int) -> list[ast.stmt]:
    """The store of a probe where its index is inside of the buffer."""
    names = [f"probe_{number}_{i}" for i in range(len(index))]
    made: list[ast.stmt] = [ast.Assign([ast.Name(x, ast.Store())], one) for x, one in zip(names, index, strict=True)]
    inside = " and ".join(f"0 <= {x} and {x} < {buffer}.shape[{i}]" for i, x in enumerate(names))
    (store,) = ast.parse(f"if {inside}:\n    {buffer}[{', '.join(names)}] = 0").body
    assert isinstance(store, ast.If) and isinstance(store.body[0], ast.Assign)
    store.body[0].value = node.value
    for statement in (*made, store):
        for one in ast.walk(statement):
            if isinstance(one, ast.expr | ast.stmt) and one is not node.value:
                ast.copy_location(one, node)
    return [*made, store]


def _tree(function: Any) -> ast.FunctionDef:
    """The syntax tree of a function, with the lines of its file; Refusal where nobody knows its source."""
    try:
        lines, first = inspect.getsourcelines(function)
    except (OSError, TypeError):
        raise Refusal(f"{function.__code__.co_filename}: the source of {function.__name__} was not found") from None
    (tree,) = ast.increment_lineno(ast.parse(textwrap.dedent("".join(lines))), first - 1).body
    if not isinstance(tree, ast.FunctionDef):
        raise Refusal(f"{function.__code__.co_filename}:{first}: {function.__name__} is not a function with a `def`")
    return tree


def _function(tree: ast.FunctionDef, like: FunctionType) -> FunctionType:
    """The function of a syntax tree, with the globals and the cells of another one."""
    tree.decorator_list, tree.returns = [], None
    for argument in (*tree.args.posonlyargs, *tree.args.args, *tree.args.kwonlyargs):
        argument.annotation = None
    cells = dict(zip(like.__code__.co_freevars, like.__closure__ or (), strict=True))
    outer = ast.parse(f"def outer({', '.join(cells)}):\n    pass")
    assert isinstance(outer.body[0], ast.FunctionDef)
    outer.body[0].body = [tree]
    code: CodeType = compile(ast.fix_missing_locations(outer), like.__code__.co_filename, "exec")
    for name in ("outer", tree.name):
        code = next(one for one in code.co_consts if isinstance(one, CodeType) and one.co_name == name)
    made = FunctionType(
        code.replace(co_qualname=like.__code__.co_qualname), like.__globals__, like.__name__, like.__defaults__,
        tuple(cells[x] for x in code.co_freevars),
    )  # fmt: skip
    made.__module__, made.__qualname__, made.__doc__ = like.__module__, like.__qualname__, like.__doc__
    setattr(made, TREE, tree)
    return made
