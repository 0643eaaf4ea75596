"""The terms of a sum, and those beside them that a wrong kernel may have added: of another row, tile or head, without
their factor.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from workbench.judge.explain.unknown.tensors import SLICES, Tensors
from workbench.reference.steps.output import LogSum, Quotient
from workbench.reference.steps.sums import RunningSum, WeightedSum


class Term(NamedTuple):
    """Something that a stage adds or may add."""

    value: np.ndarray  #: of the stage's shape; NaN where there is none
    factor: float = 0.0  #: with which it is in the stage; 0 of those that do not belong there


@np.errstate(all="ignore")
def terms(around: Tensors) -> Mapping[str, Term]:
    """The terms of a stage and others beside them by their names; none of a stage that is no sum."""
    stage = around.problem.table[around.stage.name]
    made = _KINDS.get(type(stage.step))
    return {} if made is None else dict(made(around, stage.step))


def _running(around: Tensors, step: RunningSum) -> Iterator[tuple[str, Term]]:
    """rescale * previous + what the tile adds; rows, tiles and heads beside it."""
    tiling, name = around.problem.tiling, around.stage.name
    state, rescale, weights = around.value(name), around.value(step.rescale), around.value(step.weights)
    values = around.value(step.values) if step.values else None
    state, rescale = (np.moveaxis(x, around.axes(n).index("t"), 0) for x, n in ((state, name), (rescale, step.rescale)))

    def added(t: int, of: int | None) -> np.ndarray:
        """What a tile's weights make of the values of a tile; NaN where these are none, or are fewer."""
        w = weights[..., tiling.keys[t]]
        if values is None:
            return w.sum(axis=-1)
        keys = slice(0, 0) if of is None else tiling.keys[of]
        v = values[..., keys, :]
        return w @ v if v.shape[-2] == w.shape[-1] else np.full((*w.shape[:-1], v.shape[-1]), np.nan)

    before = dict(tiling.order)
    tile = np.stack([added(t, t) for t in range(len(tiling.keys))])
    previous = np.stack([np.zeros_like(state[0]) if before[t] is None else state[before[t]] for t in range(len(state))])
    kept = (rescale[..., None] if values is not None else rescale) * previous
    weighted = around.words(step.weights)
    own = f"{weighted} @ {around.words(step.values)}" if step.values else f"sum of {weighted}"
    at = around.axes(name).index("t")

    def term(x: np.ndarray, factor: float = 0.0) -> Term:
        return Term(np.moveaxis(x, 0, at), factor)

    yield f"{step.rescale} * previous {name}", term(kept, 1.0)
    yield own, term(tile, 1.0)
    yield f"previous {name}", term(previous)
    rows = around.stage.axes.replace("t", "").index("q") + 1
    heads = around.stage.axes.replace("t", "").index("h") + 1
    for words, x in ((own, tile), (f"previous {name}", previous)):
        for by in (-1, 1):
            yield f"{words} at query q {_signed(by)}", term(_beside(x, rows, by))
    for by in (-1, 1):
        yield f"{own} at tile t {_signed(by)}", term(_beside(tile, 0, by))
        yield f"{own} at head h {_signed(by)}", term(_beside(tile, heads, by))
    if values is not None:
        stale = np.stack([added(t, before[t]) for t in range(len(state))])
        yield f"{own} of the previous tile", term(stale)


def _merged(around: Tensors, step: WeightedSum) -> Iterator[tuple[str, Term]]:
    """All splits, and each alone, with and without their weights."""
    weight, x = around.value(step.weight), around.value(step.of)
    if step.top:
        weight = np.exp(weight - around.value(step.top)[:, :, None])
    yield from _of_splits(step.of, weight, x, np.ones(()))


def _quotient(around: Tensors, step: Quotient) -> Iterator[tuple[str, Term]]:
    """A merged numerator's splits over the denominator; of one that is no sum nothing."""
    made = around.problem.table[step.of].step
    if isinstance(made, WeightedSum):
        over = around.value(step.over)[..., None]
        yield from _of_splits(made.of, around.value(made.weight), around.value(made.of), over, f" / {step.over}")


def _of_splits(
    name: str, weight: np.ndarray, x: np.ndarray, over: np.ndarray, words: str = ""
) -> Iterator[tuple[str, Term]]:
    weight = weight[..., None] if x.ndim > weight.ndim else weight
    product = np.where(x == 0, 0.0, weight * x)
    yield f"sum_s weight * {name}{words}", Term(product.sum(axis=2) / over, 1.0)
    yield f"sum_s {name}{words}", Term(x.sum(axis=2) / over)
    for split in range(min(SLICES, x.shape[2])):
        yield f"weight * {name}{words} of split {split}", Term(product[:, :, split] / over)
        yield f"{name}{words} of split {split}", Term(x[:, :, split] / over)


def _logarithm(around: Tensors, step: LogSum) -> Iterator[tuple[str, Term]]:
    """The maximum, and the logarithm, or what it is taken of."""
    top, total = (around.last(name) for name in (step.top, step.total))
    yield step.top, Term(top, 1.0)
    yield f"log({step.total})", Term(np.log(total), 1.0)
    yield step.total, Term(total)


_KINDS: Mapping[type, Callable[[Tensors, Any], Iterator[tuple[str, Term]]]] = {
    RunningSum: _running,
    WeightedSum: _merged,
    Quotient: _quotient,
    LogSum: _logarithm,
}


def _beside(x: np.ndarray, axis: int, by: int) -> np.ndarray:
    """What lies `by` further along an axis; NaN beyond its ends."""
    moved = np.full_like(x, np.nan)
    here, there = (slice(max(0, -by), x.shape[axis] - max(0, by)), slice(max(0, by), x.shape[axis] - max(0, -by)))
    index = (slice(None),) * axis
    moved[(*index, here)] = x[(*index, there)]
    return moved


def _signed(by: int) -> str:
    return f"{'+' if by > 0 else '-'} {abs(by)}"
