"""Edits of a step itself: left out, another one, with another constant, or before the step that it follows."""

from collections.abc import Iterator, Sequence
from functools import partial
from math import e, log, log2
from typing import Any

import numpy as np

from workbench.floats import round_to
from workbench.judge.reference.causes.change import TILES
from workbench.judge.reference.causes.edit import Draft, Make
from workbench.judge.reference.causes.places import along, tiled
from workbench.judge.reference.causes.sums import Step
from workbench.judge.reference.given import is_whole
from workbench.reference.graph import Graph
from workbench.reference.graph.node import Node
from workbench.reference.graph.rules import CONSTANT
from workbench.reference.graph.rules.elementwise import ELEMENTWISE

#: primitives that a kernel may have in the place of another
OTHERS = {
    "exp": ("exp2",), "exp2": ("exp",), "log": ("log2", "log1p", "log10"), "log2": ("log",), "log1p": ("log",),
    "add": ("subtract",), "subtract": ("add",), "multiply": ("divide",), "divide": ("multiply",),
    "maximum": ("minimum",), "minimum": ("maximum",), "max": ("min",), "min": ("max",),
    "sin": ("cos",), "cos": ("sin",), "floor": ("ceil", "rint", "trunc"), "ceil": ("floor",),
    "rint": ("floor", "trunc"),
    "less": ("less_equal",), "less_equal": ("less",), "greater": ("greater_equal",), "greater_equal": ("greater",),
    "argmax": ("argmin",), "argmin": ("argmax",),
}  # fmt: skip
#: primitives of elements that are done before or behind another
SINGLE = frozenset({*ELEMENTWISE, "maximum", "minimum", "where"})
VERBS = {
    "divide": "is divided by {}", "multiply": "is multiplied by {}", "add": "has {} added",
    "subtract": "has {} subtracted",
}  # fmt: skip
#: steps whose order changes nothing
COMMUTE = ({"multiply", "divide"}, {"add", "subtract"})


def steps_of(graph: Graph, i: int, lengths: Sequence[int]) -> Iterator[Step]:
    """Words, family, size and what takes the place of a step."""
    node = graph.nodes[i]
    yield from _left_out(graph, i)
    for op in OTHERS.get(node.op, ()):
        yield f"has {op} in place of {node.op}", "step", 2, _another(op)
    yield from _constants(graph, i, lengths)
    yield from _of_bases(node)
    if node.op in ("tril", "triu"):
        for k in (-1, 1):
            yield f"has its diagonal moved by {k}", "mask", 1, _diagonal(k)
    if node.op == "cumsum":
        yield "leaves out the element itself", "part", 1, _exclusive
    yield from _swapped(graph, i)


def _left_out(graph: Graph, i: int) -> Iterator[Step]:
    """One operand alone, of the same shape."""
    node = graph.nodes[i]
    if node.op not in SINGLE and node.op not in ("cumsum", "tril", "triu", "flip", "roll", "executed", "write"):
        return
    for k, j in enumerate(node.reads):
        if graph.nodes[j].shape == node.shape and is_whole(graph.nodes[j].dtype) == is_whole(node.dtype):
            others = [graph.nodes[x] for x in node.reads if x != j]
            if graph.nodes[j].op == CONSTANT and node.op != "write" and len(node.reads) > 1:
                continue
            said = _of_others(node.op, others)
            yield said, "left out", 1 if k == 0 or node.op != "subtract" else 3, _alone(k)
            for where, axis, first, last in _ends(node.shape):
                yield f"{said} {where}", "left out", 3, _alone_at(k, axis, first, last)


def _of_others(op: str, others: list[Any]) -> str:
    constant = len(others) == 1 and others[0].op == CONSTANT and others[0].value.ndim == 0
    what = f" of {others[0].value:g}" if constant else ""
    return f"lacks the {op}{what}"


def _alone(k: int) -> Make:
    return lambda d: d.add("named", d.old.reads[k])


def _ends(shape: Sequence[int]) -> Iterator[tuple[str, int, int, int]]:
    """Words for the last place or tile of an axis, or the first place, and where that is."""
    for axis, n in enumerate(shape):
        if n > 2:
            of = f"axis {axis}" if len(shape) > 1 else "it"
            yield f"at the last place of {of}", axis, n - 1, n
            yield f"at the first place of {of}", axis, 0, 1
            for t, start in tiled(n):
                yield f"in the last, partial tile of {t} of {of}", axis, start, n


def _alone_at(k: int, axis: int, first: int, last: int) -> Make:
    def make(d: Draft) -> None:
        here = ~along(d.old.shape, axis)
        here[(slice(None),) * axis + (slice(first, last),)] = True
        d.add("where", d.hold(here, bool), d.old.reads[k], d.node, shape=d.old.shape)

    return make


def _another(op: str) -> Make:
    def make(d: Draft) -> None:
        d.add(op, *d.old.reads, shape=d.old.shape, **d.old.attributes)

    return make


def _constants(graph: Graph, i: int, lengths: Sequence[int]) -> Iterator[Step]:
    """Another number in the place of one."""
    node = graph.nodes[i]
    for k, j in enumerate(node.reads):
        one = graph.nodes[j]
        if one.op != CONSTANT or one.value.ndim or len(node.reads) < 2 or not np.isfinite(one.value):
            continue
        c = one.value.item()
        verb = VERBS.get(node.op, "has {}")
        wide = sorted({*lengths, *(-(-n // t) * t for n in lengths for t in (*TILES, 1024))})
        of_lengths = [(2, x) for n in wide for x in (n**-0.5, 1 / n)] if node.op == "multiply" else []
        of_lengths += [(2, x) for n in wide for x in (n**0.5, float(n))] if node.op == "divide" else []
        for size, other in (*_other_numbers(c), *((size, x) for size, x in of_lengths if x != c)):
            said = f"{verb.format(_said(other))} in place of {_said(c)}"
            yield said, "constant", size, _with_constant(k, other)


def _said(c: float) -> str:
    """A number, as 1/n where it is one and takes more than three digits otherwise: 1/64, but 0.001."""
    n = 1 / c if 0 < abs(c) < 1 else 0.5
    return f"1/{n:g}" if abs(n) >= 2 and n == round(n) and float(f"{c:.3g}") != c else f"{c:g}"


def _other_numbers(c: float) -> Iterator[tuple[int, float]]:
    if isinstance(c, bool) or not c:
        return
    if c == int(c):
        yield from ((1, c - 1), (1, c + 1))
    if 0 < abs(c) < 0.1:
        yield from ((2, c * 10.0**k) for k in (1, -1, 2, -2, 3, -3))
    yield from ((2, float(round_to(c, dtype))) for dtype in ("float16", "bfloat16") if round_to(c, dtype) != c)
    yield from ((2, -c), (2, 2 * c), (2, c / 2), (3, 1 / c), (3, 1 - c), (3, c**0.5 if c > 0 else c * 3), (3, c * c))


def _with_constant(k: int, c: float) -> Make:
    def make(d: Draft) -> None:
        old = d.of(d.old.reads[k])
        whole = is_whole(old.dtype) and c == int(c)
        number = d.hold(c, old.dtype if whole else np.float64)
        d.again(*(number if at == k else j for at, j in enumerate(d.old.reads)))

    return make


def _of_bases(node: Node) -> Iterator[Step]:
    """exp and log by another base, whose constant has few digits."""
    for digits in range(2, 7):
        if node.op == "exp":
            short = round(log2(e), digits)
            make = partial(_by_base, short / log2(e))
            yield f"is taken in base 2, with {short:g} for log2(e)", "constant", 2, make
        elif node.op == "log":
            short = round(log(2), digits)
            yield f"is taken in base 2, with {short:g} for ln(2)", "constant", 2, partial(_scaled, short / log(2))


def _by_base(c: float, d: Draft) -> None:
    d.again(d.add("multiply", d.old.reads[0], d.hold(c)))


def _scaled(c: float, d: Draft) -> None:
    d.add("multiply", d.node, d.hold(c))


def _diagonal(by: int) -> Make:
    return lambda d: d.again(k=d.old.attributes["k"] + by)


def _exclusive(d: Draft) -> None:
    d.add("subtract", d.node, d.old.reads[0])


def _swapped(graph: Graph, i: int) -> Iterator[Step]:
    """The step and the one whose value it takes, in the other order."""
    node = graph.nodes[i]
    if node.op not in SINGLE:
        return
    for k, j in enumerate(node.reads):
        inner = graph.nodes[j]
        if inner.op not in SINGLE or inner.op == node.op or is_whole(inner.dtype):
            continue
        if {node.op, inner.op} in COMMUTE:
            continue
        for m, x in enumerate(inner.reads):
            of = graph.nodes[x]
            if of.shape == inner.shape == node.shape and not is_whole(of.dtype) and of.op != CONSTANT:
                yield f"has {node.op} before {inner.op}", "order", 2, _in_other_order(k, m)


def _in_other_order(k: int, m: int) -> Make:
    def make(d: Draft) -> None:
        inner = d.of(d.old.reads[k])
        first = d.again(*(inner.reads[m] if at == k else j for at, j in enumerate(d.old.reads)))
        d.add(inner.op, *(first if at == m else j for at, j in enumerate(inner.reads)), shape=inner.shape,
              **inner.attributes)  # fmt: skip

    return make
