"""What a right stage says of a wrong one that was computed from the same stages: which are right, which are left.

out and lse share the scores, the maxima and the sums. A stage that both are made of is ruled out as the cause of what
is wrong in one where it would have made the other wrong, too: where its error, as large as what was seen implies, is
beyond the budget of the right one.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from workbench.case.box import Box
from workbench.case.stages import LSE, OUT
from workbench.expectation.elements import Comparison, State
from workbench.expectation.expectation import Expectation
from workbench.expectation.observed import Observed
from workbench.floats import to_float64
from workbench.judge.stage import StageDiff
from workbench.reference.dataflow import unseen_upstream, upstream
from workbench.reference.stage import Table

#: what a right stage cannot show of the stages that it was made of, since it sums over all keys of a row or divides
_BLIND = {
    LSE: "the key order: whether each prob multiplies its own row of v",
    OUT: "anything that shifts all scores of a row equally: a constant or a per-row bias",
}
#: rows that are looked at, of all batches and heads, at most
ROWS = 64
#: share of the largest error that a row must have to be looked at: of smaller ones another stage may be the cause
LARGE = 0.5


@dataclass(frozen=True)
class Suspects:
    """Where the cause of a wrong stage can be, given that another is right."""

    right: str  #: the stage that is right
    cleared: tuple[str, ...]  #: stages that nobody saw and that it was made of, in data-flow order
    left: tuple[str, ...]  #: the other stages that nobody saw, and the wrong one
    blind: str  #: what of the cleared stages the right one cannot show, in words


def suspects(run: Observed, stages: Sequence[StageDiff], stage: StageDiff) -> Suspects | None:
    """What a right lse says of a wrong out, or a right out of a wrong lse, in the data flow before which nobody saw
    everything. None where nothing is ruled out: the other was not judged whole, is not right by itself, or is too
    coarse to show an error as large as the one seen; or a stage that both are made of is wrong.
    """
    other = {OUT: LSE, LSE: OUT}.get(stage.name)
    right = next((one for one in stages if one.name == other), None)
    if right is None or not stage.upstream or right.name not in run.dumped or stage.propagated is None:
        return None
    if not right.is_right or right.propagated is None:
        return None
    summary = right.propagated.summary
    whole = summary.judged == summary.size > 0 and not summary.count(State.ABSENT)
    seen = unseen_upstream(run.table, right.name, ())
    shared = [name for name in stage.upstream if name in seen]
    wrong = {one.name for one in stages if one.role in ("origin", "victim")}
    if not whole or not shared or wrong & {*shared}:
        return None
    shown = _shown(run, stage.name, stage.propagated, right.propagated)
    cleared = tuple(name for name in shared if _is_shown(run, name, stage.name, shown))
    if not cleared:
        return None
    left = tuple(name for name in stage.upstream if name not in cleared)
    return Suspects(right.name, cleared, (*left, stage.name), _BLIND[right.name])


def lies_in(table: Table, places: Collection[str], cleared: Collection[str]) -> bool:
    """Whether one of the `places` of a cause, stages and parameters, is one of the stages `cleared`, or read by one."""
    stages = {name for name, stage in table.items() if stage.dumped}
    return any({*places} & {name, *upstream(table, name, stages)} for name in cleared)


class _Shown(NamedTuple):
    """Whether the right one of out and lse would be wrong if what is wrong in the other came of ..."""

    of_sums: bool = False  #: a sum of the row
    of_weights: bool = False  #: weights of keys


def _is_shown(run: Observed, name: str, wrong: str, shown: _Shown) -> bool:
    """Whether the right one would be wrong if what is wrong came of the stage `name`."""
    if run.known[name].maximum:
        return wrong == OUT and shown.of_sums  # out is the same whatever is subtracted
    return shown.of_sums if run.known[name].offset == "sum" else shown.of_weights


@np.errstate(all="ignore")
def _shown(run: Observed, wrong: str, of_wrong: Comparison, of_right: Comparison) -> _Shown:
    """Told in each of the rows in which the wrong one is most wrong.

    A sum that is e^x times what it should be adds x to lse and divides out by e^x. Weights that are off by a share x of
    their sum add as much to lse, and move out by x of how far values are from their mean; by 1 / sqrt(n) of both where
    the errors of n keys have nothing to do with each other.
    """
    off = _beyond(of_wrong)
    size = off if wrong == LSE else off.max(-1)
    if not size.max() > 0:
        return _Shown()  # not beyond its budget
    most = max(1, ROWS // (size.shape[0] * size.shape[1]))
    worst = np.argsort(-size, axis=None, kind="stable")[:ROWS]
    b, h, q = np.unravel_index(worst[size.flat[worst] >= LARGE * size.max()], size.shape)
    queries = np.unique(q[:most])
    at = tuple(x[np.isin(q, queries)] for x in (b, h, q))
    spread, reach, alone = _values(run, queries, at)
    room = of_right.budget[at] + abs(of_right.error[at])
    if wrong == LSE:
        share, out = -np.expm1(-off[at])[:, None], abs(of_right.expected[at])
        return _Shown(*(bool(np.all(np.any(share * x > room, axis=-1))) for x in (out, spread * alone)))
    off, out = off[at], abs(of_wrong.expected[at])
    shares = (np.nan_to_num(off / out, posinf=np.inf), alone * np.nan_to_num(off / reach, posinf=np.inf))
    return _Shown(*(bool(np.all(np.log1p(x.max(-1)) > room)) for x in shares))


def _beyond(found: Comparison) -> np.ndarray:
    """How far elements are beyond their budgets, at least; 0 of those within, inf where that is no number."""
    off = abs(to_float64(found.actual) - found.expected) - found.budget
    return np.where(found.outside, np.where(np.isfinite(off), np.maximum(off, 0.0), np.inf), 0.0)


def _values(
    run: Observed, queries: np.ndarray, at: tuple[np.ndarray, ...]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of rows, indices [n] of batch, head and query: how far values are from their mean, as a root of a mean square
    [n, d] and at most [n, d]; and 1 / sqrt(n), [n, 1], of the n keys that weigh.
    """
    b, h, q = at
    e = Expectation(run.dequantised, {}, Box(q=queries), statistics=False)
    row = np.searchsorted(queries, q)
    scores = next(name for name, stage in run.known.items() if stage.masked == -np.inf and "k" in stage.axes)
    p = np.nan_to_num(np.exp(e.computed[scores][b, h, row] - e.computed[LSE][b, h, row, None]))
    v = e.inputs["v"][b, h // (run.case.heads // run.case.kv_heads)]
    mean = (p[:, None] @ v)[:, 0]
    spread = np.sqrt((p[:, None] @ (v - mean[:, None]) ** 2)[:, 0])
    return spread, abs(v - mean[:, None]).max(1), np.sqrt((p * p).sum(-1, keepdims=True))
