"""Where the inputs of two runs first differ by more than rounding makes of what came before.

Before the first call an input is some roundings of one number: a chain of CHAIN roundings moves a row by CHAIN units of
its size at most, and a sum of n terms in float32 by sqrt(n) of float32's. Later inputs have what earlier calls differed
by, too, times what the layers between make of a difference. That is measured: the growth from what differed before to
the inputs of a call, of which a run has one for each call, and the usual one is their median.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from workbench.case.stages import INPUTS, OUT
from workbench.floats import unit_roundoff
from workbench.judge.against.asked import apart, apart_in_rows
from workbench.judge.against.looks import Kept, factor_of, rows_of, tokens, unread_nan, where_to_look
from workbench.judge.against.question import Question
from workbench.readings.finding import spans

#: roundings one after the other from a token to q, k and v: embedding, norm, its weight, projection; of the rotation
#: its factor, product and sum
CHAIN = 8
#: of the usual growth, what one layer may have: layers of right models are within a factor of 2
LAYERS = 4.0
#: of the farthest input or row, what one has that differs for the same reason
NEAR = 4.0


@dataclass(frozen=True)
class Distance:
    """How far the inputs of a call are apart, of their size."""

    inputs: Mapping[str, float]  #: q, k, v -> of the farthest row
    out: float  #: of the farthest row
    rounding: float  #: what a chain of roundings may make
    factor: float  #: by which an input of A is larger in the mean of all rows; 1 where that may be chance
    tokens: tuple[int, int]  #: queries of a head, and keys that are read

    @property
    def largest(self) -> float:
        """Of q, k and v."""
        return max(self.inputs.values())


@dataclass(frozen=True)
class Departure:
    """The first call whose inputs differ by more than rounding makes of what came before."""

    call: int
    behind: int | None  #: the call before it, where both were captured whole; else None
    #: q, k and v that differ by more -> by how much of their size, of the farthest row; out, where it alone is NaN
    inputs: Mapping[str, float]
    allowed: float  #: what rounding may make, of their size
    factor: float | None  #: by which A is larger in the mean of all rows, where that alone is more than rounding
    rows: Mapping[str, str]  #: in which rows alone, as keys are counted; "" for all
    batches: tuple[int, ...]  #: in which sequences of a batch alone; () for all
    where: str  #: what the difference looks like, and where to look


def distance(a: Question, b: Question, outs: Sequence[np.ndarray]) -> Distance:
    """Of two calls in one form with their outs [unit, row, dim]."""
    found = {name: float(apart(a, b, name).max(initial=0.0)) for name in INPUTS}
    out = float(apart_in_rows(outs[0], outs[1], a.asked & b.asked).max(initial=0.0))
    rounding = CHAIN * max(a.roundoff, b.roundoff) + a.width**0.5 * unit_roundoff(np.float32)
    factors = [factor_of(a, b, name) for name in INPUTS]
    tokens = (a.queries, int(a.read.sum(1).max(initial=0)))
    return Distance(found, out, rounding, max(factors, key=lambda x: abs(x - 1)), tokens)


def first_departure(calls: Sequence[int], found: Sequence[Distance], until: int) -> tuple[int, float] | None:
    """The place of the first call, of those before `until`, whose inputs differ by more than rounding makes, and what
    that is; None for none.
    """
    known = [max(x for x in (one.largest, one.out, 0.0) if np.isfinite(x)) for one in found]
    before = [max(known[:n], default=0.0) for n in range(len(found))]
    growth = [one.largest / max(x, one.rounding / 4) for one, x in zip(found, before, strict=True)]
    for n, one in enumerate(found[:until]):
        others = [*growth[1:n], *growth[n + 1 :]] if n else []
        usual = max(1.0, float(np.median(others)) if others else 1.0)
        missed = calls[n] - (calls[n - 1] if n else -1)  # calls until here, of which this alone is known
        chains = 1 if calls[n] == 0 else 2  # of a layer: to its MLP, and from there
        allowed = max(chains * one.rounding, LAYERS * usual * before[n]) * missed
        if one.largest > allowed or np.isinf(one.out) or (calls[n] == 0 and one.factor != 1):
            return n, allowed
    return None


def departure(
    calls: tuple[int, int | None],
    new: bool | None,
    a: Question,
    b: Question,
    allowed: float,
    kept: Sequence[Kept],
    lost: Mapping[str, Sequence[int]] | None = None,
    out: float = 0.0,
) -> Departure:
    """What is known of a call whose inputs differ by more than `allowed`, or by a factor. `calls`: the call and the one
    before it. `new`: whether its tokens are new to the model; None: not known. `kept`, of both sides. `lost`: rows
    of k and v that a cache holds no longer, where that is what is more. `out`: how far its outs are apart.
    """
    every = {name: apart(a, b, name) for name in INPUTS}
    largest = max(float(found.max(initial=0.0)) for found in every.values())
    # what is all but as far apart as what is too far has the same reason
    limit = min(allowed, largest / NEAR) if largest > allowed else allowed
    over = {name: found > limit for name, found in every.items() if (found > limit).any()}
    if lost is not None:
        over = {name: np.isin(a.places, rows) & a.read for name, rows in lost.items()}
    factor = None
    if not over and not np.isfinite(out):
        return Departure(*calls, {OUT: np.inf}, allowed, None, {OUT: ""}, (), unread_nan(a, b))
    if not over:
        factors = {name: x for name in INPUTS if (x := factor_of(a, b, name)) != 1}
        over = {name: every[name] > 0 for name in factors}
        factor = max(factors.values(), key=lambda x: abs(x - 1))
    inputs = {name: float(every[name][of].max()) for name, of in over.items()}
    where = where_to_look(a, b, over, allowed, new, kept)
    rows = _rows(a, every, over) if lost is None else {name: spans(np.array(at)) for name, at in lost.items()}
    return Departure(*calls, inputs, allowed, factor, rows, _batches(a, over), where)


def _rows(question: Question, every: Mapping[str, np.ndarray], over: Mapping[str, np.ndarray]) -> dict[str, str]:
    """The rows in which inputs differ, where they are far closer in others."""
    found, partial = {}, False
    for name, of in over.items():
        used = question.asked if name == "q" else question.read
        at, all_of = rows_of(question, name, of), rows_of(question, name, used)
        rest = every[name][:, ~of.any(0)].max(initial=0.0)
        some = len(at) < len(all_of) and rest < every[name].max() / 10
        partial |= some
        found[name] = (question.places[0][tokens(question)[at]] if name == "q" else question.places[of], some)
    said = {name: spans(at) if some or (name == "q" and partial) else "" for name, (at, some) in found.items()}
    if "q" in said and "k" in said:  # of the queries that were captured, those of the same tokens
        of_queries = question.places[0][tokens(question)]
        if np.array_equal(np.intersect1d(found["k"][0], of_queries), np.unique(found["q"][0])):
            said["q"] = said["k"]
    return said


def _batches(question: Question, over: Mapping[str, np.ndarray]) -> tuple[int, ...]:
    """The sequences of a batch in which inputs differ; () for all."""
    found = {int(i) for of in over.values() for i in np.nonzero(of)[0] // (len(of) // question.batch)}
    return tuple(sorted(found)) if len(found) < question.batch else ()
