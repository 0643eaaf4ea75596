"""Attention sinks: which logit, in which units, and in which sums it is."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from workbench.judge.explain.hypothesis import Edit, Hypothesis, Unfit, of_family, read_as
from workbench.judge.explain.library import indices
from workbench.judge.explain.library.arithmetic import LN2, LOG2E, over
from workbench.judge.explain.library.indices import taken
from workbench.judge.explain.library.scored import asked
from workbench.reference.steps.altered import Altered

#: the logits [1, h, 1] that a kernel takes in place of those that it was given
Logits = Callable[[Any, np.ndarray], np.ndarray]
#: what a kernel adds to a row's sum in place of exp(sink - top), of `Context`, top [b, h, q] and the logits
Term = Callable[[Any, np.ndarray, np.ndarray], np.ndarray]
#: sums -> the maxima that they are relative to
_TOPS = {"row_sum": "row_max", "merge_sum": "merge_max"}

_of = of_family("sinks")


def hypotheses() -> Iterator[Hypothesis]:
    """All of the family, the plainest first."""
    for name, text, logits, mixes in _logits():
        for one in (*_everywhere(name, text, logits), *_of_one(name, text, _weight(logits))):
            yield replace(one, across=mixes)
    for name, text, term in _terms():
        yield _of(name, text, _sum(term), _lse(term))
        yield from _of_one(name, text, term)
    yield from _begun()
    own = _lse(_weight(lambda at, s: s), included=False)
    yield _of("in-lse", "lse includes the sink but should not", own)


def _logits() -> Iterator[tuple[str, str, Logits, bool]]:
    """Name, words, the logits, and whether heads are mixed."""
    yield "none", "the sink is not applied", lambda at, s: np.full_like(s, -np.inf), False
    yield "scaled", "the sink is multiplied by the scale", lambda at, s: s * at.p.scale, False
    yield "unscaled", "the sink is divided by the scale", lambda at, s: s / at.p.scale, False
    yield "base-2", "the sink is exponentiated in base 2: 2^sink", lambda at, s: s * LN2, False
    yield "log2e", "the sink has an extra factor of log2(e)", lambda at, s: s * LOG2E, False
    yield "in-every-split", "the sink is added in every split", lambda at, s: s + np.log(at.splits), False
    yield "twice", "the sink counts twice", lambda at, s: s - np.log(0.5), False
    yield "double", "the logit of the sink is doubled", lambda at, s: 2 * s, False
    yield "negative", "the logit of the sink has the wrong sign", lambda at, s: -s, False
    yield "zero", "a sink of 0 is used instead of the given one", lambda at, s: 0 * s, False
    yield "kv-head", "sinks are indexed by kv head (h // group)", lambda at, s: s[:, _kv_heads(at)], True
    modulo = lambda at, s: s[:, np.arange(at.heads) % at.p.inputs["k"].shape[1]]  # noqa: E731
    yield "modulo", "sinks are indexed by h % kv_heads", modulo, True
    for one in indices.others():
        words = f"the sink of the wrong head is used: {one.text}"
        yield f"head-{one.id}", words, lambda at, s, one=one: taken(s, one, 1), True


def _kv_heads(at: Any) -> np.ndarray:
    """The kv head of each query head."""
    found: np.ndarray = np.arange(at.heads) // (at.heads // at.p.inputs["k"].shape[1])
    return found


def _terms() -> Iterator[tuple[str, str, Term]]:
    yield "raw", "the sink is added to the sum without exp", lambda at, top, s: s + 0 * top
    yield "raw-rescaled", "sink * exp(-max) is added to the sum instead of exp(sink - max)", _raw_rescaled
    yield "unit", "1 is added to the sum instead of exp(sink - max)", lambda at, top, s: 1 + 0 * top
    yield "no-max", "exp(sink) is added to the sum without subtracting the max", lambda at, top, s: np.exp(s) + 0 * top


def _raw_rescaled(at: Any, top: np.ndarray, s: np.ndarray) -> np.ndarray:
    return np.asarray(s * _exp(0.0, top))


def _weight(logits: Logits) -> Term:
    return lambda at, top, s: _exp(logits(at, s), top)


def _exp(s: Any, top: np.ndarray) -> np.ndarray:
    """exp(s - top), 0 subtracted where a row has seen no key, and no more than float64 holds."""
    return np.exp(np.minimum(s - np.where(top == -np.inf, 0.0, top), 700.0))


def _everywhere(name: str, text: str, logits: Logits) -> Iterator[Hypothesis]:
    """With other logits in all that the kernel makes: where sinks enter last, and where they enter first."""
    late = [read_as(stage, "sinks", logits) for stage in ("with_sink", "lse")]
    yield _of(name, text, *late)

    def begins(at: Any, top: np.ndarray) -> np.ndarray:
        return logits(at, asked(at, "sinks")) + np.zeros_like(top) if _is_first(at) else top

    def unit(at: Any, total: np.ndarray) -> np.ndarray:
        if not _is_first(at):
            return total
        return np.where(logits(at, asked(at, "sinks")) == -np.inf, 0.0, 1.0) + np.zeros_like(total)

    yield _of(f"{name}-first", text, *_states(begins, unit))


def _states(top: Any, total: Any) -> list[Edit]:
    """Other states before the first tile, of a kernel whose rows begin with sinks."""
    before_max = [read_as(stage, "-row_max", top) for stage in ("row_max", "correction")]
    return [*before_max, read_as("row_sum", "-row_sum", total)]


def _is_first(at: Any) -> bool:
    """Whether the tile is that with which a row begins; Unfit where sinks enter last."""
    if at.contract.sinks != "first" or "sinks" not in at.p.inputs:
        raise Unfit
    return bool(at.tile[0] == at.tiling.order[0][0])


def _begun() -> Iterator[Hypothesis]:
    """What rows that begin with sinks may begin with besides."""

    def kept(at: Any, x: np.ndarray) -> np.ndarray:
        _is_first(at)
        return x

    def nothing(at: Any, total: np.ndarray) -> np.ndarray:
        return 0 * total if _is_first(at) else total

    yield _of("in-max-alone", "the sink is in the maximum but not in the sum", *_states(kept, nothing))

    def top(at: Any, x: np.ndarray) -> np.ndarray:
        _is_first(at)
        return asked(at, "sinks") + np.zeros_like(x) if at.tile[1] is None else x

    def unit(at: Any, total: np.ndarray) -> np.ndarray:
        _is_first(at)
        return 1 + np.zeros_like(total) if at.tile[1] is None else total

    yield _of("begins-every-split", "every split starts with the sink", *_states(top, unit))


def _of_one(name: str, text: str, term: Term) -> Iterator[Hypothesis]:
    """With another term in out alone, and in lse alone."""
    yield _of(f"{name}-in-out", f"in out {text}", _sum(term))
    yield _of(f"{name}-in-lse", f"in lse {text}", _lse(term))
    yield _of(f"{name}-in-out-first", f"in out {text}", _first_out(term))


def _sum(term: Term) -> Edit:
    """The denominator of out where sinks enter last."""

    def changed(at: Any, top: np.ndarray, total: np.ndarray, x: np.ndarray) -> np.ndarray:
        return np.where(top == -np.inf, 1.0, total + term(at, top, asked(at, "sinks")))

    return _of_sums("with_sink", changed)


def _first_out(term: Term) -> Edit:
    """out where sinks enter first."""

    def changed(at: Any, top: np.ndarray, total: np.ndarray, x: np.ndarray) -> np.ndarray:
        if at.contract.sinks != "first":
            raise Unfit
        s = asked(at, "sinks")
        return x * over(total, total - _exp(s, top) + term(at, top, s))[..., None]

    return _of_sums("out", changed)


def _lse(term: Term, included: bool = True) -> Edit:
    """lse with another term, of a kernel whose lse has the sink in it (`included`) or has not."""

    def changed(at: Any, top: np.ndarray, total: np.ndarray, x: np.ndarray) -> np.ndarray:
        if at.contract.lse_includes_sink != included:
            raise Unfit
        s = asked(at, "sinks")
        keys = total - _exp(s, top) if at.contract.sinks == "first" else total
        # where a sink is all of a sum, what is left beside it is rounding
        left = np.maximum(keys + term(at, top, s), 0.0)
        return np.where(top == -np.inf, 0.0, top) + np.log(left)

    return _of_sums("lse", changed)


def _of_sums(stage: str, changed: Callable[[Any, np.ndarray, np.ndarray, np.ndarray], np.ndarray]) -> Edit:
    """An edit of a stage by the largest score and the sum of a row, and the stage itself."""

    def change(step: Any) -> Altered:
        own = step
        while hasattr(own, "step"):
            own = own.step
        total = own.total if hasattr(own, "total") else own.over
        top = own.top if hasattr(own, "top") else _TOPS.get(total)
        if top is None:
            raise Unfit
        return Altered(step, lambda at, x: changed(at, at(top), at(total), x), (top, total))

    return Edit(stage, change)
