"""Softmax and its recurrence over tiles: maxima, corrections, probs, row_sum, acc."""

import math
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from workbench.judge.explain.hypothesis import Change, Hypothesis, altered, of_family, read_as
from workbench.judge.explain.library import indices, maximum
from workbench.judge.explain.library.arithmetic import LN2, LOG2E, tile_width
from workbench.judge.explain.library.indices import taken

_SUMS = ("row_sum", "acc")
#: sizes from which on a correction is taken for 1
_NEAR_1 = (2.0**-8, 0.1, 0.5, 0.9, 0.99)

_of = of_family("softmax")


def hypotheses() -> Iterator[Hypothesis]:
    """All of the family, the plainest first."""
    yield from _started()
    yield from _corrections()
    yield from maximum.hypotheses()
    yield from _probs()
    yield from _sums()
    yield from _padding()
    yield from _rows()


def _corrections() -> Iterator[Hypothesis]:
    forms: dict[str, tuple[str, Change]] = {
        "missing": ("is not applied", lambda at, c: np.ones_like(c)),
        "inverted": ("is inverted: exp(new max - old max)", lambda at, c: _inverse(c)),
        "twice": ("is applied twice", lambda at, c: c * c),
        "root": ("is replaced by its square root", lambda at, c: np.sqrt(c)),
        "zero": ("is 0: earlier tiles are lost", lambda at, c: np.zeros_like(c)),
        "no-log2e": ("uses exp2 without log2(e)", lambda at, c: c**LN2),
        "log2e": ("uses exp although log2(e) is already applied", lambda at, c: c**LOG2E),
        "difference": ("is the difference of the maxima, without exp", lambda at, c: np.log(c)),
        "linear": ("is the ratio of the maxima, without exp", lambda at, c: _quotient(at)),
    }
    for value in (-1e4, -5e4, -65504.0, -1e5, -1e6, -1e9, -1e30):
        floor = lambda at, m, v=value: np.maximum(m, v)  # noqa: E731
        first = lambda at, c, v=value: _exp(np.maximum(at("-row_max"), v) - np.maximum(at("row_max"), v))  # noqa: E731
        edits = altered("row_max", floor), altered("correction", first, "-row_max", "row_max")
        text = f"the running max starts at {value:g} instead of -inf"
        yield _of(f"max-begins-{value:g}", text, *edits)
        yield _of(f"max-begins-{value:g}-stored", text, *edits, altered("partial_max", floor))
    for name, (text, change) in forms.items():
        also = ("-row_max", "row_max") if name == "linear" else ()
        yield _of(f"correction-{name}", f"the correction {text}", altered("correction", change, *also))
        for stage in _SUMS:
            words = f"in {stage} the correction {text}"
            yield _of(f"correction-{name}-in-{stage}", words, read_as(stage, "correction", change, *also))
    for limit in _NEAR_1:
        for stage in _SUMS:
            skipped = read_as(stage, "correction", lambda at, c, n=limit: np.where(c < n, c, 1.0))
            text = f"{stage} is rescaled only where the correction is below {limit:g}"
            yield _of(f"correction-below-{limit:g}-in-{stage}", text, skipped)
    unguarded = lambda at, c: np.where(at("row_max") == -np.inf, np.nan, c)  # noqa: E731
    in_probs = lambda at, p: np.where((at("subtracted") == -np.inf)[..., None], np.nan, p)  # noqa: E731
    edits = altered("correction", unguarded, "row_max"), altered("probs", in_probs, "subtracted")
    yield _of("unguarded", "rows that have seen no key yet become NaN: -inf - (-inf) or 0 / 0 is unguarded", *edits)
    yield _of("unguarded-correction", "the correction is NaN until a row has seen a key", edits[0])
    yield _of("unguarded-probs", "probs are NaN until a row has seen a key", edits[1])
    masked = lambda at, p: np.where((at("scores").max(-1) == -np.inf)[..., None], np.nan, p)  # noqa: E731
    text = "rows with a fully masked tile become NaN: -inf - (-inf) or 0 / 0 is unguarded"
    yield _of("unguarded-tile", text, altered("probs", masked, "scores"))
    for guarded in (True, False):
        own = lambda at, c, g=guarded: _exp(at("-row_max") - _guarded(at("scores").max(-1), g))  # noqa: E731
        id_ = f"correction-of-tile{'' if guarded else '-unguarded'}"
        unless = ", or 0 if none of its keys is visible" if guarded else ""
        text = f"the correction is exp(old max - this tile's max{unless})"
        yield _of(id_, text, altered("correction", own, "-row_max", "scores"))
    for name, words, kept in _parts():
        partly = altered("acc", partial(_rescaled_in_part, kept), "correction", "-acc")
        yield _of(f"correction-in-{name}-of-acc", f"acc is rescaled only in {words}", partly)
    for stage in _SUMS:
        after = altered(stage, partial(_rescaled_after, stage), "correction", f"-{stage}")
        yield _of(f"rescaled-after-{stage}", f"{stage} is rescaled after the tile is added, not before", after)


def _rescaled_in_part(kept: indices.Map, at: Any, x: np.ndarray) -> np.ndarray:
    lost = ~kept(np.arange(x.shape[-1]), x.shape[-1])
    return x + lost * ((1 - at("correction"))[..., None] * at("-acc"))


def _rescaled_after(stage: str, at: Any, x: np.ndarray) -> np.ndarray:
    c = at("correction") if stage == "row_sum" else at("correction")[..., None]
    return x + (c - 1) * (x - c * at(f"-{stage}"))


def _probs() -> Iterator[Hypothesis]:
    powers = {
        "no-log2e": ("exp2 without log2(e)", LN2),
        "log2e": ("exp although log2(e) is already applied", LOG2E),
        "half": ("exp of half the difference", 0.5),
        "double": ("exp of twice the difference", 2.0),
    }
    for name, (text, power) in powers.items():
        edit = altered("probs", lambda at, p, n=power: p**n)
        yield _of(f"probs-{name}", f"probs use {text}", edit)
        both = altered("correction", lambda at, c, n=power: c**n)
        yield _of(f"exp-{name}", f"probs and correction use {text}", edit, both)
    again = lambda at, x: x ** at("scale")  # noqa: E731
    edits = altered("probs", again), altered("correction", again)
    yield _of("exp-scaled", "probs and correction apply the scale again inside exp", *edits)
    for value in (-10.0, -20.0, -50.0, -80.0, -87.0, -88.0, -104.0):
        clamped = altered("probs", lambda at, p, v=value: np.maximum(p, math.exp(v)))
        text = f"the argument of exp is clamped at {value:g}: masked keys get a weight of exp({value:g})"
        yield _of(f"exp-above{value:g}", text, clamped)
        top = altered("correction", lambda at, c, v=value: np.maximum(c, math.exp(v)))
        yield _of(f"exp-above{value:g}-in-both", f"{text}, in the correction too", clamped, top)
    forms: dict[str, tuple[str, Change, tuple[str, ...]]] = {
        "unexponentiated": ("the differences, without exp", lambda at, p: _difference(at), ("scores", "subtracted")),
        "normalised": ("divided by the running row_sum", lambda at, p: p / p.sum(-1, keepdims=True), ()),
        "at-most-1": ("clamped at 1", lambda at, p: np.minimum(p, 1.0), ()),
        "shifted": ("taken from the next column", lambda at, p: np.concatenate([p[..., 1:], p[..., -1:]], -1), ()),
        "next-row": ("taken from the next row", lambda at, p: np.concatenate([p[..., 1:, :], p[..., -1:, :]], -2), ()),
        "linear": ("1 + the difference, without exp", lambda at, p: _difference(at, 1.0), ("scores", "subtracted")),
    }
    for name, (text, change, also) in forms.items():
        yield _of(f"probs-{name}", f"probs are {text}", altered("probs", change, *also))
    for name, words, kept in _columns():
        zeroed = altered("probs", lambda at, p, kept=kept: p * kept(np.arange(p.shape[-1]), tile_width(at)))
        yield _of(f"probs-{name}", f"probs are 0 except in {words} of each tile", zeroed)


def _sums() -> Iterator[Hypothesis]:
    for name, words, kept in _columns():
        for stage, ref in (("row_sum", "summed"), ("acc", "probs_cast")):
            edit = read_as(stage, ref, lambda at, p, kept=kept: p * kept(np.arange(p.shape[-1]), tile_width(at)))
            yield _of(f"{stage}-{name}", f"{stage} adds only {words} of each tile", edit)
    terms: dict[str, tuple[str, Change]] = {
        "twice": ("adds probs twice", lambda at, p: 2 * p),
        "squared": ("adds squared probs", lambda at, p: p * p),
        "nothing": ("does not add probs", lambda at, p: 0 * p),
        "half": ("adds half of each prob", lambda at, p: p / 2),
    }
    for stage, ref in (("row_sum", "summed"), ("acc", "probs_cast")):
        for name, (text, change) in terms.items():
            yield _of(f"{stage}-{name}", f"{stage} {text}", read_as(stage, ref, change))
        for name, text, before in (
            ("first-twice", "the sum so far is doubled at each tile", lambda at, x: 2 * x),
            ("before-half", "the sum so far is halved at each tile", lambda at, x: x / 2),
        ):
            yield _of(f"{stage}-{name}", f"in {stage} {text}", read_as(stage, f"-{stage}", before))
    for ref, words in (("probs", "before their cast"), ("probs_cast", "after their cast")):
        edit = altered("summed", lambda at, p, ref=ref: at(ref), ref)
        yield _of(f"row_sum-of-{ref}", f"row_sum adds probs {words}", edit)
    for name, text, first in (
        ("one", "1", lambda at: 1.0),
        ("sink", "exp(-max), as if there were a sink of 0", lambda at: np.exp(-at("row_max"))),
    ):
        started = lambda at, x, first=first: x + first(at) if at.tile[1] is None else x  # noqa: E731
        yield _of(f"row_sum-starts-{name}", f"row_sum starts at {text}", altered("row_sum", started, "row_max"))
    before = lambda at, v: np.concatenate([v[..., 1:, :], v[..., -1:, :]], -2)  # noqa: E731
    text = "probs are multiplied by the next row of v in each tile"
    yield _of("acc-rows-of-v", text, read_as("acc", "v_rows", before))


def _started() -> Iterator[Hypothesis]:
    """States that do not begin at 0."""
    for name, text, start in (
        ("acc-uninitialised", "acc is not zeroed before the first tile", np.nan),
        ("acc-starts-1", "acc starts at 1", 1.0),
        ("row_sum-uninitialised", "row_sum is not zeroed before the first tile", np.nan),
    ):
        begun = lambda at, x, start=start: x + start if at.tile[1] is None else x  # noqa: E731
        yield _of(name, text, altered(name.split("-")[0], begun))


def _padding() -> Iterator[Hypothesis]:
    """What lies behind the last key of a tile that is not full, where v is not set to 0: 0 * NaN is NaN."""

    def ragged(at: Any, x: np.ndarray) -> np.ndarray:
        here, first = (at.tiling.keys[t] for t in (at.tile[0], 0))
        return x + np.nan if here.stop - here.start < first.stop - first.start else x

    text = "stale v past the last key of a partial tile makes acc NaN (0 * NaN)"
    yield _of("acc-of-padding", text, altered("acc", ragged))


def _rows() -> Iterator[Hypothesis]:
    """A number of each row that another row's stands in for."""
    for one in indices.permutations():
        for stage, ref, words in (
            ("acc", "correction", "the correction of acc"),
            ("row_sum", "correction", "the correction of row_sum"),
            ("probs", "subtracted", "the max that probs subtract"),
        ):
            edit = read_as(stage, ref, lambda at, x, one=one: taken(x, one, -1))
            yield _of(f"{ref}-row-{one.id}-in-{stage}", f"{words} is taken from another row: {one.text}", edit)


def _parts() -> Iterator[tuple[str, str, indices.Map]]:
    """Dims that some lanes or fragments hold."""
    for n in (2, 4, 8, 16, 32):
        for lane in {0, 1, n - 1}:
            yield f"lane-{lane}-of-{n}", f"dims d % {n} == {lane}", lambda d, D, n=n, r=lane: d % n == r
        for m in (2, 4, 8):
            if 2 * m <= n:
                words = f"the first {m} of every {n} dims"
                yield f"lane-of-{m}-of-{n}", words, lambda d, D, n=n, m=m: d % n < m
        yield f"high-{n}", f"the last {n} of every {2 * n} dims", lambda d, D, n=n: d % (2 * n) >= n
        yield f"first-{n}", f"the first {n} dims", lambda d, D, n=n: d < n
    yield "first-half", "the first half of the dims", lambda d, D: d < D // 2


def _columns() -> Iterator[tuple[str, str, indices.Map]]:
    yield "without-last", "all columns but column tile_width - 1", lambda j, n: j < n - 1
    yield "without-last-key", "all columns but the last", lambda j, n: j < len(j) - 1
    yield "without-first", "all columns but the first", lambda j, n: j > 0
    yield "even", "the even columns", lambda j, n: j % 2 == 0
    yield "first-half", "the first half", lambda j, n: j < n // 2
    yield "second-half", "the second half", lambda j, n: j >= n // 2
    for b in (1, 2, 4, 8, 16, 32):
        yield f"first-{b}", f"the first {b} columns", lambda j, n, b=b: j < b
        yield f"low-{b}", f"the first {b} of every {2 * b} columns", lambda j, n, b=b: j % (2 * b) < b
        yield f"high-{b}", f"the last {b} of every {2 * b} columns", lambda j, n, b=b: j % (2 * b) >= b
        yield f"whole-{b}", f"the columns of full blocks of {b}", lambda j, n, b=b: j < n // b * b


def _difference(at: Any, more: float = 0.0) -> np.ndarray:
    found: np.ndarray = more + at("scores") - at("subtracted")[..., None]
    return found


def _guarded(m: np.ndarray, guarded: bool) -> np.ndarray:
    """A max, 0 in place of that of a row without a key where it is guarded."""
    return np.where(m == -np.inf, 0.0, m) if guarded else m


def _inverse(c: np.ndarray) -> np.ndarray:
    return np.where(c > 0, 1 / c, np.where(np.isnan(c), c, 0.0))


def _quotient(at: Any) -> np.ndarray:
    x: np.ndarray = at("-row_max") / at("row_max")
    return np.where(np.isfinite(x), x, 0.0)


def _exp(x: np.ndarray) -> np.ndarray:
    return np.where(x == -np.inf, 0.0, np.exp(np.minimum(x, math.log(np.finfo(np.float64).max))))
