"""Edits of several steps, or of what one reads: an operand of another length, operands that are rounded together, a
function that is applied twice, two steps left out, results that are not written to the end, and heads in groups of
another order.
"""

from collections.abc import Collection, Iterator
from functools import partial
from itertools import islice

import numpy as np

from workbench.judge.reference.causes.change import CASTS, rounded
from workbench.judge.reference.causes.edit import Draft, Edit
from workbench.judge.reference.causes.names import Names
from workbench.judge.reference.causes.operands import MOST
from workbench.judge.reference.causes.places import along, kept
from workbench.judge.reference.causes.steps import SINGLE
from workbench.judge.reference.causes.sums import Step
from workbench.judge.reference.given import is_whole
from workbench.reference.graph import Graph
from workbench.reference.graph.patterns import PASSES
from workbench.reference.graph.rules import CONSTANT

#: numbers that multiply something, of which factors elsewhere are tried
FACTORS = 4
#: functions of elements that may be applied twice
TWICE = ("exp", "exp2", "log", "log2", "sqrt", "square", "tanh", "erf")


def of_reads(graph: Graph, i: int, names: Names, alone: bool) -> Iterator[tuple[str, Step]]:
    """What one step may read, or be, with the name of what changes; `alone`: no other turn of a loop has the step."""
    yield from _of_rounded(graph, i, names)
    yield from _twice(graph, i, names)
    if alone:
        yield from _of_another_length(graph, i, names)
        yield from _two_steps_left_out(graph, i, names)


def of_several(graph: Graph, nodes: Collection[int], names: Names) -> Iterator[Edit]:
    """Factors of elsewhere, results that are not written to the end, and heads in other groups."""
    yield from _of_factors(graph, nodes, names)
    yield from _unwritten(graph, nodes, names)
    yield from (edit for edit in _of_groups(graph, names) if any(i in nodes for i in edit.nodes))


# ---- operands


def _of_another_length(graph: Graph, i: int, names: Names) -> Iterator[tuple[str, Step]]:
    """A step that reads another array, which is cut or padded with 0 to the length of one axis."""
    node = graph.nodes[i]
    for k, j in enumerate(node.reads if node.op in ("matmul", "transpose") else ()):
        alike = (other for other in names.before(i) if _axis(graph, j, other) is not None)
        for other in islice(alike, MOST):
            said = f"is {names.of(other)}, as far as it goes" + f", in {names.of(i)} only" * (
                names.of(i) != names.of(j)
            )
            yield names.of(j), (said, "operand", 3, partial(_fitted, k, other))


def _axis(graph: Graph, j: int, other: int) -> int | None:
    """The one of the last two axes in which two arrays differ; None of others."""
    a, b = graph.nodes[j], graph.nodes[other]
    if b.op == CONSTANT or is_whole(a.dtype) or is_whole(b.dtype) or len(a.shape) != len(b.shape):
        return None
    axes = [axis for axis, (n, m) in enumerate(zip(a.shape, b.shape, strict=True)) if n != m]
    return axes[0] if len(axes) == 1 and axes[0] >= len(a.shape) - 2 and 1 not in (a.shape + b.shape)[-2:] else None


def _fitted(k: int, other: int, d: Draft) -> None:
    j = d.old.reads[k]
    axis = _axis(d.graph, j, other)
    assert axis is not None
    n, m = d.of(j).shape[axis], d.of(other).shape[axis]
    read = d.take(other, axis, np.minimum(np.arange(n), m - 1))
    read = kept(d, read, axis, slice(m, n), 0) if m < n else read
    d.again(*(read if at == k else x for at, x in enumerate(d.old.reads)))


def _of_rounded(graph: Graph, i: int, names: Names) -> Iterator[tuple[str, Step]]:
    """A product of elements in a dtype of fewer bits."""
    node = graph.nodes[i]
    if node.op == "multiply" and all(graph.nodes[j].op != CONSTANT for j in node.reads):
        for dtype in ("bfloat16", "float16"):
            said = f"is computed in {CASTS[dtype][0]}, of rounded operands"
            yield names.of(i), (said, "cast", 2, partial(_rounded, dtype))


def _rounded(dtype: str, d: Draft) -> None:
    rounded(d, d.again(*(rounded(d, j, dtype) for j in d.old.reads)), dtype)


# ---- steps


def _twice(graph: Graph, i: int, names: Names) -> Iterator[tuple[str, Step]]:
    """A step that reads f(f(x)) in the place of f(x)."""
    node = graph.nodes[i]
    for k, j in enumerate(node.reads):
        of = j
        while graph.nodes[of].op in PASSES and graph.nodes[of].shape == graph.nodes[graph.nodes[of].reads[0]].shape:
            of = graph.nodes[of].reads[0]
        if graph.nodes[of].op in TWICE:
            said = f"has its {graph.nodes[of].op} taken twice, in {names.of(i)} only"
            yield names.of(j), (said, "step", 3, partial(_again, k, graph.nodes[of].op))


def _again(k: int, op: str, d: Draft) -> None:
    made = d.add(op, d.old.reads[k])
    d.again(*(made if at == k else x for at, x in enumerate(d.old.reads)))


def _two_steps_left_out(graph: Graph, i: int, names: Names) -> Iterator[tuple[str, Step]]:
    """A value with a name that is another, of which it is made in two steps of elements."""
    node = graph.nodes[i]
    if i not in names.own or node.op not in SINGLE:
        return
    for j in node.reads:
        inner = graph.nodes[j]
        for other in inner.reads if inner.op in SINGLE and j not in names.own else ():
            one = graph.nodes[other]
            if other in names.own and one.shape == node.shape and not is_whole(one.dtype):
                yield names.of(i), (f"is {names.of(other)}", "left out", 2, partial(_is, other))


def _is(other: int, d: Draft) -> None:
    d.add("named", other)


def _of_factors(graph: Graph, nodes: Collection[int], names: Names) -> Iterator[Edit]:
    """A value outside of loops times a number that multiplies another, as a scale, or over it."""
    factors = dict[float, int]()
    for i, node in enumerate(graph.nodes):
        for j in node.reads if node.op == "multiply" else ():
            if graph.nodes[j].op == CONSTANT and not graph.nodes[j].value.ndim:
                factors.setdefault(abs(graph.nodes[j].value.item()), i)
    several = {i for turns in graph.stages.values() if len(turns) > 1 for i in turns}
    for i in nodes:
        if i not in names.own or i in several or is_whole(graph.nodes[i].dtype) or graph.nodes[i].op == CONSTANT:
            continue
        for c, of in [*factors.items()][:FACTORS]:
            for by, words in ((c, "multiplied"), (1 / c, "divided")) if c not in (0.0, 0.5, 1.0, 2.0) else ():
                said = f"is {words} by {c:g}, as {names.of(of)} is multiplied"
                yield Edit((i,), partial(_times, by), names.of(i), said, "factor", 2)


def _times(by: float, d: Draft) -> None:
    d.add("multiply", d.node, d.hold(by))


# ---- results


def _unwritten(graph: Graph, nodes: Collection[int], names: Names) -> Iterator[Edit]:
    """Results that are written as far as the last axis of another array is long."""
    lengths = {graph.nodes[i].shape[-1] for i in graph.inputs.values() if graph.nodes[i].shape}
    for i in dict.fromkeys(graph.results.values()):
        while graph.nodes[i].op in ("cast", "named"):
            i = graph.nodes[i].reads[0]
        shape = graph.nodes[i].shape
        for m in sorted(lengths) if i in nodes and shape else ():
            for words, value in (("is not written", np.nan), ("is 0", 0.0)) if 1 < m < shape[-1] else ():
                said = f"{words} from {m} on along axis {len(shape) - 1}"
                yield Edit((i,), partial(_until, m, value), names.of(i), said, "unwritten", 3)


def _until(m: int, value: float, d: Draft) -> None:
    there = along(d.old.shape, len(d.old.shape) - 1)
    there[..., m:] = False
    d.add("where", d.hold(there, bool), d.node, d.hold(value), shape=d.old.shape)


# ---- groups of heads


def _of_groups(graph: Graph, names: Names) -> Iterator[Edit]:
    """Grouped heads: query head i uses KV head i % n instead of i // group, in reads, in sums, or in both."""
    reads = [i for i, node in enumerate(graph.nodes) if node.op == "repeat" and _repeated(graph, i) is not None]
    sums = [i for i in range(len(graph.nodes)) if _grouped(graph, i) is not None]
    for some, said in (
        (reads, "read at head i % {n}, in place of i // {group}"),
        (sums, "added up over the heads that share i % {n}, in place of i // {group}"),
        ([*reads, *sums] if reads and sums else [], "read, and added up, by i % {n}, in place of i // {group}"),
    ):
        if some:
            sizes = {_heads(graph, i) for i in some}
            n, group = sizes.pop() if len(sizes) == 1 else ("heads", "group")
            words = f"{'is' if len(some) == 1 else 'are'} {said.format(n=n, group=group)}"
            yield Edit(tuple(sorted(some)), _modulo, " and ".join(map(names.of, some)), words, "places", 3)


def _heads(graph: Graph, i: int) -> tuple[int, int]:
    """The number of KV heads, and of query heads for each."""
    whole = graph.nodes[graph.nodes[i].reads[0]].shape
    found = _repeated(graph, i) if graph.nodes[i].op == "repeat" else None
    if found is not None:
        return whole[found[0]], found[1]
    over = _grouped(graph, i)
    assert over is not None
    return whole[over - 1], whole[over]


def _repeated(graph: Graph, i: int) -> tuple[int, int] | None:
    """The axis along which a node repeats each of several elements, and how often."""
    how, shape = graph.nodes[i].attributes, graph.nodes[graph.nodes[i].reads[0]].shape
    times, axis = how["repeats"], how["axis"]
    return (axis, times) if isinstance(times, int) and axis is not None and times > 1 < shape[axis] else None


def _grouped(graph: Graph, i: int) -> int | None:
    """The axis over which a node sums what was one axis with that before it, which has a length above 1."""
    node = graph.nodes[i]
    if node.op != "sum" or graph.nodes[node.reads[0]].op != "reshape":
        return None
    whole, axis = graph.nodes[node.reads[0]], node.attributes["axis"]
    axis = axis[0] if isinstance(axis, tuple) and len(axis) == 1 else axis
    if not isinstance(axis, int) or node.attributes.get("keepdims"):
        return None
    axis %= len(whole.shape)
    before = graph.nodes[whole.reads[0]].shape
    one = (*whole.shape[: axis - 1], whole.shape[axis - 1] * whole.shape[axis], *whole.shape[axis + 1 :])
    return axis if axis and one == before and min(whole.shape[axis - 1 : axis + 1]) > 1 else None


def _modulo(d: Draft) -> None:
    if d.old.op == "repeat":
        found = _repeated(d.graph, d.node)
        assert found is not None
        axis, times = found
        n = d.of(d.old.reads[0]).shape[axis]
        d.take(d.old.reads[0], axis, np.arange(n * times) % n)
        return
    over = _grouped(d.graph, d.node)
    assert over is not None
    whole = d.of(d.old.reads[0])
    n, group = whole.shape[over - 1 : over + 1]
    shape = (*whole.shape[: over - 1], group, n, *whole.shape[over + 1 :])
    d.again(d.reshape(whole.reads[0], shape), axis=(over - 1,))
