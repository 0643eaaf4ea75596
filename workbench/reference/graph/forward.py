"""The forward pass: every value again in float64, with bounds of its error, and with dumps in the place of stages.

A stage whose dump is given is still computed and bounded, from what it reads; what follows reads the dump, without an
error. With all stages dumped the bounds are those of each alone (isolated), with none they run from the inputs on.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from workbench.floats import array_namespace, to_float64, unit_roundoff
from workbench.reference.bound import NEGLIGIBLE, Budget, deviations
from workbench.reference.graph.contract import CASTS, Contract
from workbench.reference.graph.error import EXACT, Error, Own
from workbench.reference.graph.node import Graph, Line, Node
from workbench.reference.graph.patterns import ADDS, Patterns, patterns_of
from workbench.reference.graph.rules import CONSTANT, INPUT, RULES
from workbench.reference.graph.rules.elementwise import added
from workbench.reference.graph.shapes import spread
from workbench.reference.graph.site import FLOAT32_BITS, Operand, Site, finite, likely

#: primitives that may leave an element without a bound
MAY_OPEN = frozenset("divide reciprocal log log2 log10 power where argmax argmin argsort".split())


@dataclass(frozen=True, eq=False)
class Kept:
    """What a reverse pass reads of a node: the site, and what comes in there."""

    site: Site
    own: Own
    beyond: Any  #: what the operands' errors move it by beyond first order, in the worst case
    likely: Any  #: the same, all but surely


@dataclass(frozen=True, eq=False)
class Forward:
    """What a forward pass found."""

    values: Mapping[int, Any]  #: of the nodes that were asked, as computed
    budgets: Mapping[int, Budget]
    open: Mapping[int, int]  #: node -> nodes that leave some element of it without a bound, a bit each
    kept: Mapping[int, Kept] = field(default_factory=dict)


@np.errstate(all="ignore")
def forward(
    graph: Graph,
    contract: Contract,
    asked: Collection[int],
    dumps: Mapping[int, Any],
    elements: Mapping[int, int | None],
    keep: bool = False,
) -> Forward:
    """Values and budgets of the nodes `asked`, with `dumps` in place of nodes; `elements`: of `Budget`s, how many
    elements the whole array has. `keep`: what a reverse pass needs.
    """
    run = _Run(graph, contract, patterns_of(graph), dumps, keep)
    stored = _stored(graph, contract)
    needed = upstream(graph, asked, dumps)
    left = run.readers(needed, asked)
    for i in sorted(needed):
        run.visit(i, stored.get(i))
        if i in asked:
            run.answer(i, elements.get(i))
        if i in dumps:
            run.put_in(i)
        run.free(i, left)
    return Forward(run.values, run.budgets, run.open, run.kept)


def upstream(graph: Graph, asked: Iterable[int], dumps: Collection[int] = ()) -> set[int]:
    """The nodes that `asked` are made of, nothing beyond a dump."""
    found, queue = set(asked), list(asked)
    while queue:
        for j in graph.nodes[queue.pop()].reads:
            if j not in found:
                found.add(j)
                if j not in dumps:
                    queue.append(j)
    return found


def _stored(graph: Graph, contract: Contract) -> dict[int, str]:
    """Node -> the stage of the contract as which it is stored."""
    found = {}
    for name in contract.stored:
        for i in graph.stages.get(name, ()):
            found[i] = name
        if name in graph.results:
            found[graph.results[name]] = name
    return found


class _Run:
    """One pass, while it lasts."""

    def __init__(self, graph: Graph, contract: Contract, patterns: Patterns, dumps: Mapping[int, Any], keep: bool):
        self.graph, self.contract, self.patterns, self.dumps, self.keep = graph, contract, patterns, dumps, keep
        self.operands: dict[int, Operand] = {}
        self.values: dict[int, Any] = {}
        self.budgets: dict[int, Budget] = {}
        self.open: dict[int, int] = {}
        self.kept: dict[int, Kept] = {}

    def readers(self, needed: set[int], asked: Collection[int]) -> dict[int, int]:
        """How many nodes still read each."""
        left = dict.fromkeys(needed, 0)
        for i in needed:
            if i in self.dumps and i not in asked:
                continue
            for j in (*self.graph.nodes[i].reads, *self._looks(i)):
                if j in left:
                    left[j] += 1
        return left

    def _looks(self, i: int) -> tuple[int, ...]:
        rival, ordered = self.patterns.rivals.get(i), self.patterns.ordered.get(i)
        return (*(() if rival is None else (rival,)), *(() if ordered is None or i not in self.dumps else ordered[:1]))

    def visit(self, i: int, stored: str | None) -> None:
        """Computes and bounds a node."""
        node = self.graph.nodes[i]
        if node.op in (INPUT, CONSTANT):
            self.operands[i] = self._given(i)
        elif all(j in self.operands for j in node.reads):
            self.operands[i] = self._made(i, stored)

    def _given(self, i: int) -> Operand:
        """An input is exact; a constant that float32 does not hold is rounded, all its elements by one error each."""
        node = self.graph.nodes[i]
        error, x = EXACT, node.value
        if node.op == CONSTANT and node.bits > FLOAT32_BITS and _is_float(x):
            lost = self.contract.unit * abs(x)
            error = Error(lost, 0.0, lost, 0, (False,) * x.ndim)
            if self.keep:
                self.kept[i] = Kept(Site(node, (), x, self.contract), Own(lost, 0.0, lost), 0.0, 0.0)
        return Operand(x, error, node.bits)

    def _made(self, i: int, stored: str | None) -> Operand:
        node, rule = self.graph.nodes[i], RULES[self.graph.nodes[i].op]
        reads = tuple(self._operand(i, k, j) for k, j in enumerate(node.reads))
        y = rule.value(*(one.value for one in reads), **node.attributes)
        y = np.asarray(y) if isinstance(y, np.generic) else y
        rival = self.patterns.rivals.get(i)
        looks = (self.operands[rival],) if rival in self.operands else ()
        feeds = i in self.patterns.sizes and i not in self.dumps
        s = Site(node, reads, y, self.contract, looks, feeds)
        own, beyond, expected = self._losses(rule, s)
        error = combined(rule, s, own, beyond, expected, 1 << i)
        if self.keep:
            self.kept[i] = Kept(s, own, beyond, expected)
        operand = Operand(y, error, rule.bits(s))
        if feeds:
            operand = replace(operand, **self._terms(rule, s))
        site = self.contract.site(CASTS) if node.op == "cast" and CASTS in self.contract.stored else None
        site = self.contract.site(stored) if stored is not None else site
        return operand if site is None else self._as_stored(i, operand, site)

    def _operand(self, i: int, k: int, j: int) -> Operand:
        """What a node reads, and whether it is a product whose operands the contract rounds."""
        one = self.operands[j]
        factors = self.patterns.products.get((i, k))
        if factors is None:
            return one
        probe = Site(self.graph.nodes[i], (), one.value, self.contract)
        bits = [self.operands[f].bits if f in self.operands else 53 for f in factors]
        return replace(one, rounded=sum(probe.rounds(b) for b in bits))

    def _losses(self, rule: Any, s: Site) -> tuple[Own, Any, Any]:
        """What the node rounds, and what is beyond first order, in the worst case and all but surely: whole numbers
        round nothing.
        """
        own = rule.own(s) if _is_float(s.y) else Own()
        beyond = 0.0 if s.exact or (hasattr(rule, "error") and not self.keep) else rule.beyond(s)
        return own, beyond, beyond if _none(beyond) else rule.beyond(_likely(s))

    def _terms(self, rule: Any, s: Site) -> dict[str, Any]:
        """What is known of the terms of a sum that nobody saw, all of whose roundings are in its error."""
        found = {}
        if s.node.op in ("add", "subtract"):
            found = added(*s.reads)
        elif s.node.op in ADDS or s.reads[0].terms > 1:
            found = rule.terms(s)
        if s.node.op in ADDS and found["terms"] > 1:
            whole = Operand(s.y, **found)
            found["attributed"] = s.xp.maximum(whole.prefixes(finite(s.y)), 0.0 * finite(s.y) + whole.attributed)
        return found

    def _as_stored(self, i: int, one: Operand, site: Any) -> Operand:
        """The value as it is rounded, off where an error takes it over a rounding boundary."""
        value, error = one.value, one.error
        rounded = site.rounded(value)
        if error is not EXACT:
            worst = site.flips(value, error.worst)
            chance = deviations(value.size)
            flips = site.flips(value, error.common + chance * error.variance**0.5)
            xp = array_namespace(value)
            error = Error(*(xp.where(xp.isfinite(part), part, 0.0) for part in (worst, 0.0 * flips, flips)))
            error = error._replace(shared=(False,) * value.ndim)
        bits = min(one.bits, _bits(site.dtype))
        if self.keep and i in self.kept:
            off = error.worst
            self.kept[i] = replace(self.kept[i], own=Own(off, 0.0, error.common), beyond=0.0, likely=0.0)
        return Operand(rounded, error, bits)

    def answer(self, i: int, elements: int | None) -> None:
        """The budget of a node, from what it is made of."""
        one = self.operands.get(i)
        if one is None:
            return
        self.values[i] = one.value
        self.open[i] = one.error.open
        self.budgets[i] = budget_of(one, elements if elements is not None else one.value.size)
        ordered = self.patterns.ordered.get(i)
        if ordered is not None and i in self.dumps and ordered[0] in self.operands:
            bounds = within_a_tie(self.operands[ordered[0]], ordered[1], one.value, self.dumps[i])
            if bounds is not None:
                self.budgets[i], self.open[i] = Budget(*bounds, np.inf), 0

    def put_in(self, i: int) -> None:
        """The dump in the place of the value."""
        dump = self.dumps[i]
        value = to_float64(dump) if _is_float(dump) else dump
        self.operands[i] = Operand(value, EXACT, _bits(dump.dtype))
        self.kept.pop(i, None)

    def free(self, i: int, left: dict[int, int]) -> None:
        """What nobody reads any more."""
        for j in (*self.graph.nodes[i].reads, *self._looks(i)):
            if j in left:
                left[j] -= 1
                if not left[j]:
                    self.operands.pop(j, None)
        if not left[i]:
            self.operands.pop(i, None)


def within_a_tie(x: Operand, axis: int, mine: Any, theirs: Any) -> tuple[Any, Any] | None:
    """How far places may be off that a kernel chose along an axis of x, in the worst case and all but surely: to where
    they are, if the elements there are the same within their budgets, and no place is taken twice; else 0. None where
    the places are not along that axis any more.
    """
    xp = array_namespace(x.value)
    lacking = x.value.ndim - mine.ndim
    if lacking not in (0, 1):
        return None
    mine, theirs = (xp.expand_dims(one, axis=axis) if lacking else one for one in (mine, theirs))
    if any(n != m for a, (n, m) in enumerate(zip(x.value.shape, theirs.shape, strict=True)) if a != axis):
        return None
    n = x.value.shape[axis]
    kept = xp.clip(theirs, 0, n - 1)
    there = xp.sort(kept, axis=axis)
    lead = (slice(None),) * axis
    twice = xp.any(there[(*lead, slice(1, None))] == there[(*lead, slice(None, -1))], axis=axis, keepdims=True)
    s = Site(Node("", (), {}, (), None, Line("", 0)), (x,), x.value, Contract())
    found = []
    for off in (x.error.worst, likely(s, x)):
        a, b = (xp.take_along_axis(x.value, one, axis=axis) for one in (mine, kept))
        e, f = (xp.take_along_axis(spread(off, x.value), one, axis=axis) for one in (mine, kept))
        right = (abs(a - b) <= e + f) & (kept == theirs) & ~twice
        apart = xp.where(right, xp.astype(abs(theirs - mine), xp.float64), 0.0)
        found.append(xp.squeeze(apart, axis=axis) if lacking else apart)
    return found[0], found[1]


def budget_of(one: Operand, elements: int) -> Budget:
    """As of today's walk; NaN where the reference is NaN."""
    xp, value, error = array_namespace(one.value), one.value, one.error
    like = spread(0.0, value)
    worst = like + error.worst
    likely = xp.minimum(worst, error.common + deviations(elements) * (like + error.variance) ** 0.5)
    if _is_float(value):
        nan = xp.isnan(value)
        if bool(xp.any(nan)):
            worst, likely = xp.where(nan, xp.nan, worst), xp.where(nan, xp.nan, likely)
    size = xp.maximum(like + one.size, like + NEGLIGIBLE) if one.terms > 1 else np.inf
    return Budget(worst, likely, size)


def combined(rule: Any, s: Site, own: Own, beyond: Any, expected: Any, bit: int) -> Error:
    """The error of a node: its own roundings and what it is moved by. Random parts of common sources add up linearly
    (Minkowski), of others as squares.
    """
    rounds = not (isinstance(own.random, float) and own.random == 0.0)
    shared = (False,) * s.y.ndim
    if s.exact:
        if _none(own.worst):
            return EXACT
        return Error(own.worst, own.random * own.random, own.common + own.alike, bit if rounds else 0, shared)
    if hasattr(rule, "error"):
        open_ = 0
        for one in s.reads:
            open_ |= one.error.open
        return _tidy(s, rule.error(s)._replace(shared=shared, open=open_))
    worst: Any = beyond
    variance: Any = 0.0
    common: Any = expected
    sources, open_ = 0, bit if _opens(s, beyond) else 0
    for i, one in enumerate(s.reads):
        if one.error is EXACT:
            continue
        e = one.error
        worst = worst + rule.linear(s, i, e.worst)
        common = common + (0.0 if _none(e.common) else rule.linear(s, i, e.common))
        open_ |= e.open
        if not _none(e.variance):
            moved = rule.linear(s, i, e.variance**0.5) ** 2 if rule.alike(s, i) else rule.squared(s, i, e.variance)
            if sources & e.sources:
                variance = (variance**0.5 + moved**0.5) ** 2
            else:
                variance = variance + moved
            sources |= e.sources
            shared = tuple(a or b for a, b in zip(shared, rule.shared(s, i), strict=True))
    grown = 1 + rule.grows(s)
    worst, common = worst * grown + own.worst, common + own.common + own.alike
    if rounds:
        variance, sources = variance + own.random * own.random, sources | bit
    found = Error(worst, variance, common, sources, shared, open_)
    if s.node.op == "subtract" and s.looks:
        found = _where_certain(s, found)
    return _tidy(s, found)


def _likely(s: Site) -> Site:
    """The site as if its operands were off by no more than all but surely."""
    reads = tuple(
        one if one.error is EXACT else replace(one, error=one.error._replace(worst=likely(s, one))) for one in s.reads
    )
    return replace(s, reads=reads)


def _where_certain(s: Site, error: Error) -> Error:
    """0 where a of a - max(a, x) is the maximum for sure."""
    a, other = s.reads[0], s.looks[0]
    sure = other.value + other.error.worst < a.value - a.error.worst
    if sure.shape != s.y.shape:
        return error
    parts = (s.xp.where(sure, 0.0, part) for part in error[:3])
    return Error(*parts, *error[3:])


def _opens(s: Site, beyond: Any) -> bool:
    """Whether a node leaves an element without a bound."""
    return s.node.op in MAY_OPEN and not _none(beyond) and bool(s.xp.any(s.xp.isinf(beyond)))


def _tidy(s: Site, error: Error) -> Error:
    """What is no bound becomes infinite; where the value is not finite there is no error, unless there is no bound."""
    xp = s.xp
    parts = [error.worst, error.variance, error.common]
    if error.open:
        parts = [part if isinstance(part, float) else xp.where(xp.isnan(part), xp.inf, part) for part in parts]
    if _is_float(s.y):
        held = xp.isfinite(s.y)
        if not bool(xp.all(held)):
            unbound = xp.asarray(parts[0] == xp.inf) if s.node.op in ("divide", "reciprocal") else False
            parts = [xp.where(held | unbound, part, 0.0) for part in parts]
    return Error(*parts, error.sources, error.shared, error.open)


def _none(x: Any) -> bool:
    return isinstance(x, float) and x == 0.0


def _is_float(x: Any) -> bool:
    dtype = x.dtype
    return dtype.kind not in "biu" if isinstance(dtype, np.dtype) else bool(dtype.is_floating_point)


def _bits(dtype: Any) -> int:
    """Significant bits of a dtype, 53 of what is no float."""
    try:
        return round(-float(np.log2(unit_roundoff(str(dtype).rpartition(".")[2]))))
    except (ValueError, TypeError):
        return 53
