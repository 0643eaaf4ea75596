"""Drawn budgets: the standard deviation of every element over runs of the graph with its roundings drawn at random.

Each run rounds what the rules say that a node rounds (`rule.own`), uniformly within those bounds, and follows the
errors through the graph as they are, so that nothing is linearised: errors that cancel do, and a recurrence does not
explode. What bounds call common gets one draw for a line of the reference and a run, which no sum averages away. The
operands of contractions are rounded before they are multiplied, casts of the contract are made, and what chooses
(comparisons, places of maxima) chooses by values that are off.

A deviation is taken around the exact value, since operands that are cut off all err to one side, and from no other
element.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np
from array_api_compat import device

from workbench.floats import array_namespace, smallest_normal, to_float64
from workbench.reference.graph.blocks import in_blocks
from workbench.reference.graph.combine import TAKES_ONE, is_float
from workbench.reference.graph.contract import OPERANDS, Contract
from workbench.reference.graph.draws import Draws
from workbench.reference.graph.error import EXACT, Error, Own, none
from workbench.reference.graph.fused import add_scaled, product_sum
from workbench.reference.graph.node import Graph, Node
from workbench.reference.graph.passes import Known
from workbench.reference.graph.plan import Plan, bits_of, with_terms
from workbench.reference.graph.rows import Rows, made
from workbench.reference.graph.rules import CONSTANT, INPUT, RULES
from workbench.reference.graph.site import FLOAT32_BITS, Operand, Site

#: values of all runs together that are alive at once, 256 MB: of larger graphs fewer runs go together, or one
ALIVE = 2**25
#: primitives that jump. A rounding turns a choice that is four deviations off once in 30,000 times, which no few runs
#: show, and thousands of rows do: errors are this many times as large where a choice is made, so that one within eight
#: deviations falls the other way in one run of six at least
JUMPS = frozenset(
    "equal not_equal less less_equal greater greater_equal argmax argmin argsort floor ceil trunc rint sign"
    " executed".split()
)
AT_JUMPS = 8.0
#: how far apart equal elements are put, relative: far below an ulp of float32, 2^-23, and above one of float64
TIED = 2.0**-40


@dataclass(frozen=True, eq=False)
class Drawn:
    """One stage or result."""

    value: Any  #: in float64, without a rounding
    deviation: Any  #: root of the mean square of what the runs are off; NaN where one of them is no number
    #: the same of what the errors of one run have in common: what they are as a share of the values, and their mean
    common: tuple[float, float] = (0.0, 0.0)


@np.errstate(all="ignore")
def drawn(
    graph: Graph, contract: Contract, asked: Collection[int], dumps: Mapping[int, Any], samples: int, seed: int = 0
) -> dict[int, Drawn]:
    """The nodes `asked`, over so many runs, with `dumps` in place of nodes in what follows; the same for one seed."""
    plan = Plan(graph, contract, dumps, asked)
    alive = _alive(plan)
    rows = max(1, min(samples + 1, ALIVE // max(alive, 1)))
    draws = Draws(next((graph.nodes[i].value for i in graph.inputs.values()), None), seed)
    known = Known(2 * alive) if rows <= samples else None
    values: dict[int, Any] = {}
    squares: dict[int, Any] = dict.fromkeys(asked, 0.0)
    shared: dict[int, list[tuple[float, float]]] = {i: [] for i in asked}
    left, exact = samples, True
    while left > 0 or exact:
        several = min(rows, left + exact)
        run = _Runs(plan, several, exact, draws, known)
        for i, one in run.over():
            if i not in values:
                values[i] = array_namespace(one.first).asarray(one.first, copy=True)
            if one.several and is_float(values[i]):
                off = array_namespace(one.value).where(one.value == values[i], 0.0, one.value - values[i])
                squares[i] = squares[i] + array_namespace(off).sum(off * off, axis=0)
                shared[i] += [in_common(off[k], values[i]) for k in range(several)]
        left, exact = left - several + exact, False
    return {i: Drawn(values[i], _deviation(squares[i], values[i], samples), _root(shared[i], samples)) for i in values}


def in_common(error: Any, value: Any) -> tuple[float, float]:
    """The factor that fits errors best, error = factor value, and their mean; of those that are numbers."""
    xp = array_namespace(error)
    known = xp.isfinite(error) & xp.isfinite(value)
    error, value = xp.where(known, error, 0.0), xp.where(known, value, 0.0)
    size = float(xp.sum(value * value))
    return float(xp.sum(error * value)) / size if size else 0.0, float(xp.sum(error)) / max(int(xp.sum(known)), 1)


def _in_one(own: Own, s: Site) -> Own:
    """Of what is common half is drawn for each element, together with what is random, and half for all."""
    own = own._replace(worst=0.0)
    if none(own.common):
        return own
    return own._replace(random=s.xp.sqrt(own.random * own.random + own.common * own.common / 4))


def _root(pairs: list[tuple[float, float]], samples: int) -> tuple[float, float]:
    factor, offset = (sum(x * x for x in column) for column in zip(*pairs, strict=True)) if pairs else (0.0, 0.0)
    return (factor / samples) ** 0.5, (offset / samples) ** 0.5


def _deviation(squares: Any, value: Any, samples: int) -> Any:
    xp = array_namespace(value)
    zero = xp.zeros_like(value, dtype=xp.float64)
    return zero if none(squares) else xp.asarray(xp.sqrt(zero + squares / samples))


def _alive(plan: Plan) -> int:
    """The most values that a pass holds at once."""
    left, now, most = dict(plan.readers), 0, 0
    sizes = [prod(node.shape) for node in plan.graph.nodes]
    for i in plan.order:
        now += sizes[i]
        most = max(most, now)
        for j in {*plan.reads(i), i}:
            if j in left:
                left[j] -= plan.reads(i).count(j)
                if left[j] <= 0:
                    now -= sizes[j]
                    del left[j]
    return most


@dataclass(frozen=True, eq=False)
class _Value:
    """A node's values in some runs, and what is known of it."""

    rows: Rows
    operand: Operand  #: of the first run


class _Runs:
    """Several runs at once, the first of them exact where it is said. Bounds are those of the first, and of the first
    pass where there are several, unless these would take more memory than the values.
    """

    def __init__(self, plan: Plan, rows: int, exact: bool, draws: Draws, known: Known | None) -> None:
        self.plan, self.rows, self.exact, self.draws, self.known = plan, rows, exact, draws, known
        self.later = known is not None and not exact and known.left >= 0
        self.graph, self.contract = plan.graph, plan.contract
        self.cut = OPERANDS[self.contract.operands]
        #: operands of contractions are rounded as they are read: of what rules round that is no part
        self.within = replace(self.contract, operands="float32")
        self.left = plan.readers_of(bounded=not self.later)
        self.found: dict[int, _Value] = {}

    def over(self) -> Any:
        """Every node in order; yields those that are asked, with their values."""
        self.draws.forget()
        for i in self.plan.order:
            if i in self.plan.asked or i not in self.plan.dumps:
                self._visit(i)
            if i in self.plan.asked and i in self.found:
                yield i, self.found[i].rows
            if i in self.plan.dumps:
                dump = self.plan.dumps[i]
                value = to_float64(dump) if is_float(dump) else dump
                self.found[i] = _Value(Rows(value, False), Operand(value, EXACT, bits_of(dump.dtype)))
            self._free(i)

    def _visit(self, i: int) -> None:
        node = self.graph.nodes[i]
        if node.op in (INPUT, CONSTANT):
            self.found[i] = self._given(node)
        elif all(j in self.found for j in node.reads):
            self.found[i] = self._made(i, node)

    def _given(self, node: Node) -> _Value:
        """An input is exact; a constant that float32 does not hold is rounded, a number alike in all turns of its
        line.
        """
        x, rows = node.value, Rows(node.value, False)
        if node.op == CONSTANT and node.bits > FLOAT32_BITS and is_float(x):
            u = self.contract.unit
            rows = self._off(node, rows, x, Own(random=u * abs(x)) if x.ndim else Own(alike=u))
        return _Value(rows, Operand(x, EXACT, node.bits))

    def _made(self, i: int, node: Node) -> _Value:
        rule, reads = RULES[node.op], [self._read(i, k) for k in range(len(node.reads))]
        in_place = self.plan.alone(i)
        x = [one.rows for one in reads]
        if node.op in JUMPS:
            x = [self._at_a_jump(j, one) for j, one in zip(node.reads, x, strict=True)]
        if node.op in TAKES_ONE:
            x = [self._without_ties(one) for one in x]
        y = made(node.op, node.attributes, x, self.rows, in_place)
        y = Rows(np.asarray(y.value), False) if isinstance(y.value, np.generic) else y
        if self.known is not None and self.later:
            own, bits = self.known.roundings[i]
            y = self._off(node, y, y.first, own)
            return self._as_stored(i, y, Operand(y.first, EXACT, bits))
        looks = tuple(self.found[j].operand for j in self.plan.sees(i) if j in self.found)
        operands = tuple(self._seen(node, one) for one in reads)
        s = Site(node, operands, y.first, self.within, looks, in_place, self.plan.feeds(i), chance=True)
        own, bits = in_blocks(rule, s, lambda part: _in_one(self.plan.own(rule, i, part), part)), rule.bits(s)
        if own.exact is not None:
            own = own._replace(exact=s.xp.nonzero(s.xp.reshape(own.exact, (-1,)))[0])
        if self.known is not None and self.exact:
            self.known.keep(i, own, bits)
        y = self._off(node, y, s.y, own)
        operand = Operand(y.first, EXACT, bits)
        return self._as_stored(i, y, with_terms(rule, s, operand) if s.feeds else operand)

    def _as_stored(self, i: int, y: Rows, operand: Operand) -> _Value:
        """The values as the contract stores them."""
        site = self.plan.site(i)
        if site is None:
            return _Value(y, operand)
        y = Rows(site.rounded(y.value), y.several)
        return _Value(y, Operand(y.first, EXACT, min(operand.bits, bits_of(site.dtype))))

    def _seen(self, node: Node, one: _Value) -> Operand:
        """exp(0) is exact where it is 0 in all runs: how far they are apart is the error that its rule looks at."""
        if node.op not in ("exp", "exp2") or not one.rows.several or self.rows == 1:
            return one.operand
        apart = abs(one.rows.value - one.operand.value)
        return replace(one.operand, error=Error(array_namespace(apart).max(apart, axis=0)))

    # roundings

    def _off(self, node: Node, y: Rows, first: Any, own: Own) -> Rows:
        """Values with roundings within the bounds."""
        if own.is_none or (self.exact and self.rows == 1):
            return y
        shape, r = (self.rows, *first.shape), own.relative
        alike = own.alike * self._shared(node, node.op, first) if own.alike else 0.0
        if r:  # a rounding is a factor, which leaves 0 and infinities as they are
            one = isinstance(alike, float)  # of one run: it moves the ends
            centre = 1.0 + alike if one else 1.0
            off = self.draws.uniform(shape, centre - r, centre + r)
            if own.exact is not None:
                off.reshape(self.rows, -1)[:, own.exact] = centre
            if not one:
                off += alike
            off *= y.value
        else:
            off = product_sum(self.draws.uniform(shape), own.random, y.value, alike)
            if not none(own.common):
                off = add_scaled(off, own.common, self._shared(node, "common", first) / 2)
        if self.exact:
            off[0, ...] = y.first
        return Rows(off, True)

    def _shared(self, node: Node, name: str, like: Any) -> Any:
        """One draw a run for all calls of a primitive at one line."""
        drawn = self.draws.shared((node.line, name), self.rows)
        if self.rows == 1:
            return float(drawn[0])
        xp = array_namespace(like)
        return xp.reshape(xp.asarray(drawn, device=device(like)), (self.rows, *(1,) * like.ndim))

    def _read(self, i: int, k: int) -> _Value:
        """What a node reads: of a contraction operands that are rounded, as often as they are multiplied."""
        one = self.found[self.graph.nodes[i].reads[k]]
        if not self.cut[0]:
            factors = self.plan.patterns.products.get((i, k))
            return one if factors is None else replace(one, operand=replace(one.operand, contracted=True))
        if self.graph.nodes[i].op == "matmul":
            return replace(one, rows=self._as_operand(one))
        factors = self.plan.patterns.products.get((i, k))
        if factors is None:
            return one
        a, b = (self.found.get(j) for j in factors)
        if a is None or b is None:  # a product that was dumped is its own number
            rounded = replace(one, rows=self._as_operand(replace(one, rows=self._as_operand(one))))
            return replace(rounded, operand=replace(one.operand, contracted=True))
        rows = [self._as_operand(one) for one in (a, b)]
        if all(before.rows is after for before, after in zip((a, b), rows, strict=True)):
            return replace(one, operand=replace(one.operand, contracted=True))
        product = made("multiply", {}, rows, self.rows)
        shape = one.operand.value.shape
        product = made("reshape", {"shape": shape}, [product], self.rows) if product.first.shape != shape else product
        return _Value(product, replace(one.operand, value=product.first, contracted=True))

    def _as_operand(self, one: _Value) -> Rows:
        """Rounded as the contract says, to nearest or cut off; what its dtype holds stays as it is."""
        relative, cut = self.cut
        probe = Site(self.graph.nodes[0], (), one.operand.value, self.contract)
        if not is_float(one.operand.value) or not probe.rounds(one.operand.bits):
            return one.rows
        if self.exact and self.rows == 1:
            return one.rows
        shape, value = (self.rows, *one.operand.value.shape), one.rows.value
        off = self.draws.uniform(shape, 1.0 - relative, 1.0 if cut else 1.0 + relative)
        off *= value
        small = probe.small(one.operand.held, True) if self.contract.least[1] else None
        if small is not None:
            off += small * self.draws.uniform(shape)
        if self.exact:
            off[0, ...] = one.rows.first
        return Rows(off, True)

    def _at_a_jump(self, j: int, one: Rows) -> Rows:
        """Values that are off by AT_JUMPS times as much."""
        if self.exact and self.known is not None and is_float(one.first):
            self.known.centres[j] = one.first
        if not one.several or not is_float(one.first):
            return one
        centre = one.first if self.exact or self.known is None else self.known.centres[j]
        xp = array_namespace(one.value)
        off = one.value - centre
        return Rows(xp.where(xp.isfinite(off), centre + AT_JUMPS * off, one.value), True)

    def _without_ties(self, one: Rows) -> Rows:
        """Values of which no two are equal, in an order that is drawn: a library may take either."""
        if not is_float(one.first):
            return one
        off = self.draws.uniform((self.rows, *one.first.shape))
        off *= TIED * (abs(one.value) + smallest_normal("float32"))
        if self.exact:
            off[0, ...] = 0.0
        xp = array_namespace(off)
        return Rows(xp.where(xp.isfinite(off), one.value + off, one.value), True)

    def _free(self, i: int) -> None:
        """What nobody reads any more."""
        for j in self.plan.reads(i, bounded=not self.later):
            if j in self.left:
                self.left[j] -= 1
                if not self.left[j]:
                    self.found.pop(j, None)
        if not self.left[i]:
            self.found.pop(i, None)
