"""The forward pass: every value again in float64, with bounds of its error, and with dumps in the place of stages.

A stage whose dump is given is still computed and bounded, from what it reads; what follows reads the dump, without an
error. With all stages dumped the bounds are those of each alone (isolated), with none they run from the inputs on.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np

from workbench.floats import array_namespace, to_float64
from workbench.reference.bound import Budget, deviations
from workbench.reference.graph.blocks import in_blocks
from workbench.reference.graph.combine import MAY_OPEN, TAKES_ONE, combined, is_float
from workbench.reference.graph.contract import OPERANDS, Contract
from workbench.reference.graph.error import EXACT, Error, Own, none
from workbench.reference.graph.judged import budget_of, within_a_tie
from workbench.reference.graph.node import Graph
from workbench.reference.graph.plan import Plan, bits_of, with_terms
from workbench.reference.graph.rules import CONSTANT, INPUT, RULES
from workbench.reference.graph.rules.elementwise import Elementwise
from workbench.reference.graph.rules.moves import put
from workbench.reference.graph.site import FLOAT32_BITS, Operand, Site, likely

#: nodes whose sites are kept at once for a reverse pass; of longer graphs parts are computed twice
SEGMENT = 1024


@dataclass(frozen=True, eq=False)
class Kept:
    """What a reverse pass reads of a node: the site, and what comes in there."""

    site: Site
    own: Own
    beyond: Any  #: what the operands' errors move it by beyond first order, in the worst case
    likely: Any  #: the same, all but surely
    cut: bool = False  #: whether errors of operands are in `own` already, as of a predicted cast


@dataclass(frozen=True, eq=False)
class Forward:
    """What a forward pass found."""

    values: Mapping[int, Any]  #: of the nodes that were asked, as computed
    budgets: Mapping[int, Budget]
    errors: Mapping[int, Error]  #: of the same nodes, with what is independent apart from what is not
    open: Mapping[int, int]  #: node -> nodes that leave some element of it without a bound, a bit each
    #: what reverse passes need, of parts of the graph from the last one back
    segments: Callable[[], Iterator[Mapping[int, Kept]]]


@np.errstate(all="ignore")
def forward(
    graph: Graph,
    contract: Contract,
    asked: Collection[int],
    dumps: Mapping[int, Any],
    elements: Mapping[int, int | None],
    reverse: bool = False,
) -> Forward:
    """Values and budgets of the nodes `asked`, with `dumps` in place of nodes; `elements`: of `Budget`s, how many
    elements the whole array has. `reverse`: whether segments are asked.
    """
    run, alive = _Run(graph, contract, dumps, asked, elements), []
    parts = [run.order[i : i + SEGMENT] for i in range(0, len(run.order), SEGMENT)]
    for part in parts:
        if reverse:
            alive.append((dict(run.operands), dict(run.left), part))
        run.over(part)

    def segments() -> Iterator[Mapping[int, Kept]]:
        for operands, left, part in reversed(alive):
            yield run.again(operands, left, part)

    return Forward(run.values, run.budgets, run.errors, run.open, segments)


def _likely(s: Site) -> Site:
    """The site as if its operands were off by no more than all but surely."""
    reads = tuple(
        one if one.error is EXACT else replace(one, error=one.error._replace(worst=likely(one))) for one in s.reads
    )
    return replace(s, reads=reads)


class _Run:
    """One pass, while it lasts."""

    def __init__(
        self, graph: Graph, contract: Contract, dumps: Mapping[int, Any], asked: Collection[int],
        elements: Mapping[int, int | None],
    ) -> None:  # fmt: skip
        self.graph, self.contract, self.dumps, self.asked, self.elements = graph, contract, dumps, asked, elements
        self.plan = Plan(graph, contract, dumps, asked)
        self.patterns, self.order = self.plan.patterns, self.plan.order
        self.left = dict(self.plan.readers)
        self.keep = False
        self.operands: dict[int, Operand] = {}
        self.values: dict[int, Any] = {}
        self.budgets: dict[int, Budget] = {}
        self.errors: dict[int, Error] = {}
        self.open: dict[int, int] = {}
        self.kept: dict[int, Kept] = {}

    def over(self, nodes: Iterable[int]) -> None:
        """Visits nodes in order."""
        for i in nodes:
            if i in self.asked or i not in self.dumps:
                self._visit(i)
            if i in self.asked:
                self._answer(i)
            if i in self.dumps:
                self._put_in(i)
            self._free(i)

    def again(self, operands: dict[int, Operand], left: dict[int, int], nodes: Iterable[int]) -> dict[int, Kept]:
        """What a reverse pass needs of some nodes, from what was alive before them."""
        self.operands, self.left, self.keep, self.kept = dict(operands), dict(left), True, {}
        self.over(nodes)
        return self.kept

    def _visit(self, i: int) -> None:
        """Computes and bounds a node."""
        node = self.graph.nodes[i]
        if node.op in (INPUT, CONSTANT):
            self.operands[i] = self._given(i)
        elif all(j in self.operands for j in node.reads):
            self.operands[i] = self._made(i)

    def _given(self, i: int) -> Operand:
        """An input is exact; a constant that float32 does not hold is rounded, all its elements by one error each."""
        node = self.graph.nodes[i]
        error, x = EXACT, node.value
        if node.op == CONSTANT and node.bits > FLOAT32_BITS and is_float(x):
            lost = self.contract.unit * abs(x)
            error = Error(lost, 0.0, lost, 0, (False,) * x.ndim)
            if self.keep:
                self.kept[i] = Kept(Site(node, (), x, self.contract), Own(lost, 0.0, lost), 0.0, 0.0)
        return Operand(x, error, node.bits)

    def _made(self, i: int) -> Operand:
        node, rule = self.graph.nodes[i], RULES[self.graph.nodes[i].op]
        reads = tuple(self._operand(i, k, j) for k, j in enumerate(node.reads))
        in_place = self.plan.alone(i)
        if in_place:
            y = put(reads[0].value, reads[1].value, **node.attributes)
        else:
            y = rule.value(*(one.value for one in reads), **node.attributes)
        y = np.asarray(y) if isinstance(y, np.generic) else y
        looks = tuple(self.operands[j] for j in self.plan.sees(i) if j in self.operands)
        feeds = self.plan.feeds(i)
        s = Site(node, reads, y, self.contract, looks, in_place, feeds)
        if self.keep:
            own, beyond, expected = self._losses(rule, i, s)
            error = combined(rule, s, own, beyond, expected, 1 << i)
            self.kept[i] = Kept(s, own, beyond, expected)
        else:
            error = in_blocks(rule, s, lambda part: combined(rule, part, *self._losses(rule, i, part), 1 << i))
        operand = Operand(y, error, rule.bits(s))
        operand = with_terms(rule, s, operand) if feeds else operand
        site = self.plan.site(i)
        return operand if site is None else self._as_stored(i, operand, site)

    def _operand(self, i: int, k: int, j: int) -> Operand:
        """What a node reads, and whether it is a product whose operands the contract rounds."""
        one = self.operands[j]
        factors = self.patterns.products.get((i, k))
        if factors is None:
            return one
        probe = Site(self.graph.nodes[i], (), one.value, self.contract)
        known = [self.operands.get(f) for f in factors]
        rounds = [x is None or probe.rounds(x.bits) for x in known]
        if not OPERANDS[self.contract.operands][0]:
            return replace(one, contracted=True)
        return replace(one, contracted=True, rounded=sum(rounds), lost=_small(probe, known, rounds))

    def _losses(self, rule: Any, i: int, s: Site) -> tuple[Own, Any, Any]:
        """What the node rounds, and what is beyond first order, in the worst case and all but surely. The second is
        small beside the first order, so that forward bounds take the worst of it.
        """
        own = self.plan.own(rule, i, s)
        exact = s.exact and s.node.op not in TAKES_ONE
        beyond = 0.0 if exact or (hasattr(rule, "error") and not self.keep) else rule.beyond(s)
        if none(beyond) or (isinstance(rule, Elementwise) and s.node.op not in MAY_OPEN and not self.keep):
            return own, beyond, beyond
        return own, beyond, rule.beyond(_likely(s))

    def _as_stored(self, i: int, one: Operand, site: Any) -> Operand:
        """The value as it is rounded, off where an error takes it over a rounding boundary."""
        value, error = one.value, one.error
        rounded = site.rounded(value)
        if error is not EXACT:
            worst = site.flips(value, error.worst)
            chance = deviations(prod(value.shape))
            flips = site.flips(value, error.common + chance * error.variance**0.5)
            xp = array_namespace(value)
            # no bound is none after the cast either; an infinity has no next number
            unbounded = xp.isfinite(value) & ~xp.isfinite(xp.asarray(error.worst))
            nowhere = xp.where(unbounded, xp.inf, 0.0)
            worst, flips = (xp.where(xp.isfinite(part) & ~unbounded, part, nowhere) for part in (worst, flips))
            error = Error(worst, xp.zeros_like(worst), flips, 0, (False,) * value.ndim, error.open)
        bits = min(one.bits, bits_of(site.dtype))
        if self.keep and i in self.kept:
            off = error.worst
            self.kept[i] = replace(self.kept[i], own=Own(off, 0.0, error.common), beyond=0.0, likely=0.0, cut=True)
        return Operand(rounded, error, bits)

    def _answer(self, i: int) -> None:
        """The budget of a node, from what it is made of."""
        one = self.operands.get(i)
        if one is None:
            return
        self.values[i] = one.value
        self.open[i], self.errors[i] = one.error.open, one.error
        self.budgets[i] = budget_of(one, self.elements.get(i) or prod(one.value.shape))
        ordered = self.patterns.ordered.get(i)
        if ordered is not None and i in self.dumps and ordered[0] in self.operands:
            bounds = within_a_tie(self.operands[ordered[0]], ordered[1], one.value, self.dumps[i])
            if bounds is not None:
                self.budgets[i], self.open[i] = Budget(*bounds, np.inf), 0

    def _put_in(self, i: int) -> None:
        """The dump in the place of the value."""
        dump = self.dumps[i]
        value = to_float64(dump) if is_float(dump) else dump
        self.operands[i] = Operand(value, EXACT, bits_of(dump.dtype))
        self.kept.pop(i, None)

    def _free(self, i: int) -> None:
        """What nobody reads any more."""
        for j in self.plan.reads(i):
            if j in self.left:
                self.left[j] -= 1
                if not self.left[j]:
                    self.operands.pop(j, None)
        if not self.left[i]:
            self.operands.pop(i, None)


def _small(s: Site, factors: Sequence[Operand | None], rounds: Sequence[bool]) -> Any:
    """What the factors of a product, s.y, lose where they are too small for their digits: times the other."""
    lost: Any = 0.0
    a, b = factors
    if a is None or b is None:  # a product that was dumped is its own number
        return lost
    for one, other, rounded in ((a, b, rounds[0]), (b, a, rounds[1])):
        small = s.small(one.held, rounded)
        if small is not None:
            lost = lost + small * abs(other.held)
    return lost if none(lost) else s.xp.reshape(lost, s.y.shape)
