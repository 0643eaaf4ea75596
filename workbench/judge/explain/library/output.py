"""What a kernel returns: the division, where out is stored, and lse."""

import math
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from workbench.judge.explain.hypothesis import Edit, Hypothesis, Unfit, across, altered, of_family, read_as
from workbench.judge.explain.library import indices
from workbench.judge.explain.library.arithmetic import LN2, LOG2E, MERGED_BY_EXP_LSE, attended, over
from workbench.judge.explain.library.indices import by_heads, by_rows, taken
from workbench.reference.context import in_float32_range
from workbench.reference.stage import Step
from workbench.reference.steps.altered import Altered
from workbench.reference.steps.output import LogSum, Quotient

#: of `Context`, the result, and the two things that it is made of
Made = Callable[[Any, np.ndarray, np.ndarray, np.ndarray], np.ndarray]
#: result -> its step, and the fields of what it is made of
_READ: dict[str, tuple[type, str, str]] = {"out": (Quotient, "of", "over"), "lse": (LogSum, "top", "total")}
_of = of_family("output")


def hypotheses() -> Iterator[Hypothesis]:
    """All of the family, the plainest first."""
    yield from _division()
    yield from _stored()
    yield from across(_elsewhere())
    yield from _lse()
    yield from _merged()


def _made(stage: str, change: Made) -> Edit:
    """An edit `change(at, result, a, b)` of out, where a is its numerator [..., d] and b its denominator [..., 1], or
    of lse, where a is the maximum and b the sum. Unfit where another step computes it.
    """
    which, *fields = _READ[stage]

    def changed(step: Step) -> Step:
        if not isinstance(step, which):
            raise Unfit
        first, second = refs = tuple(getattr(step, field) for field in fields)
        wide = np.s_[..., None] if stage == "out" else ()
        return Altered(step, lambda at, x: change(at, x, at(first), np.asarray(at(second))[wide]), refs)

    return Edit(stage, changed)


def _read(stage: str, field: str, change: Callable[[Any, np.ndarray], np.ndarray]) -> Edit:
    """An edit of out or lse in which `change` replaces what its step reads in `field`, such as the denominator."""

    def changed(step: Step) -> Step:
        if not isinstance(step, _READ[stage][0]):
            raise Unfit
        return read_as(stage, getattr(step, field), change).change(step)

    return Edit(stage, changed)


def _division() -> Iterator[Hypothesis]:
    forms: dict[str, tuple[str, Made]] = {
        "uninitialised": (
            "the accumulator of out is not initialised to 0",
            lambda at, x, n, l: np.full_like(x, np.nan),
        ),
        "uninitialised-but-empty": (
            "the accumulator of out is not initialised to 0; empty rows (no visible key) do not read it",
            lambda at, x, n, l: np.where(l == 0, x, np.nan),
        ),
        "undivided": ("out is not divided by the row sum", lambda at, x, n, l: n),
        "divided-twice": ("out is divided by the row sum twice", lambda at, x, n, l: over(x, l)),
        "multiplied": ("out is multiplied by the row sum", lambda at, x, n, l: n * l),
        "divided-by-root": (
            "out is divided by the square root of the row sum",
            lambda at, x, n, l: over(n, np.sqrt(l)),
        ),
        "unguarded": ("out of empty rows (no visible key) is 0 / 0", lambda at, x, n, l: np.where(l == 0, np.nan, x)),
        "empty-mean": (
            "out of empty rows (no visible key) is the mean of v",
            lambda at, x, n, l: np.where(l == 0, at("v_rows").mean(-2, keepdims=True), x),
        ),
        "divided-by-1-more": ("out is divided by 1 + the row sum", lambda at, x, n, l: over(n, l + 1)),
    }
    for name, (text, change) in forms.items():
        yield _of(name, text, _made("out", change))
    for n in (1, 2):
        before = _read("out", "over", lambda at, l, n=n: _earlier(at, l, "row_sum", n))
        yield _of(
            f"sum-before-{n}", f"out is divided by a stale row_sum, {n} tile{'s' * (n > 1)} before the last", before
        )
    for name, value in (("1e-6", 1e-6), ("1e-5", 1e-5), ("1e-3", 1e-3), ("1e-8", 1e-8)):
        added = _made("out", lambda at, x, n, l, v=value: n / (l + v))
        yield _of(f"epsilon-{name}", f"out is divided by the row sum + {name}", added)


def _earlier(at: Any, x: np.ndarray, state: str, n: int) -> np.ndarray:
    """A running state n tiles before the last; x where there are fewer tiles, or splits."""
    tiles = [t for t, _ in at.tiling.order]
    return x if len(tiles) <= n or "partial_sum" in at.table else at.whole(state)[..., tiles[-1 - n]]


def _stored() -> Iterator[Hypothesis]:
    for one in indices.permutations():
        of_rows, of_dims = (altered("out", lambda at, x, one=one, n=axis: taken(x, one, n)) for axis in (-2, -1))
        last: Any = lambda at, x, one=one: taken(x, one, -1)  # noqa: E731
        yield _of(f"rows-{one.id}", f"rows of out are stored wrong: {one.text}", of_rows)
        yield _of(f"dims-{one.id}", f"dims of out are stored wrong: {one.text}", of_dims)
        divided = _read("out", "over", last)
        yield _of(f"sum-of-row-{one.id}", f"out is divided by the row sum of another row: {one.text}", divided)
        yield _of(f"lse-rows-{one.id}", f"rows of lse are stored wrong: {one.text}", altered("lse", last))
    for b in (2, 4, 8, 16, 32, 64):
        for value, verb in ((np.nan, "never written"), (0.0, "0")):
            tail = altered("out", lambda at, x, b=b, v=value: _whole(x, -2, b, v))
            yield _of(f"tail-{b}-{value:g}", f"rows of out past the last full block of {b} are {verb}", tail)
            dims = altered("out", lambda at, x, b=b, v=value: _whole(x, -1, b, v))
            yield _of(f"dims-tail-{b}-{value:g}", f"dims of out past the last full block of {b} are {verb}", dims)


def _elsewhere() -> Iterator[Hypothesis]:
    """out and lse stored at other heads, batches, or with swapped strides."""
    for one in indices.others():
        for axis, named in ((1, "heads"), (0, "batches")):
            of_out = altered("out", lambda at, x, one=one, axis=axis: taken(x, one, axis))
            of_lse = altered("lse", lambda at, x, one=one, axis=axis: taken(x, one, axis))
            yield _of(f"{named}-{one.id}", f"{named} of out are stored wrong: {one.text}", of_out)
            yield _of(f"lse-{named}-{one.id}", f"{named} of lse are stored wrong: {one.text}", of_lse)
            yield _of(f"both-{named}-{one.id}", f"{named} of out and lse are stored wrong: {one.text}", of_out, of_lse)
    for stage, words in (
        ("out", "[b, h, q, d] is stored with the strides of [b, q, h, d]"),
        ("lse", "[b, h, q] is stored with the strides of [b, q, h]"),
    ):
        one_way, back = (altered(stage, lambda at, x, order=order: order(x)) for order in (by_rows, by_heads))
        yield _of(f"{stage}-strides", f"{stage}: {words}", one_way)
        yield _of(f"{stage}-strides-back", f"{stage}: {words}, the other way round", back)


def _lse() -> Iterator[Hypothesis]:
    forms: dict[str, tuple[str, Made]] = {
        "base-2": ("in base 2, not in base e", lambda at, x, m, l: x * LOG2E),
        "ln2": ("multiplied by ln 2 once too often", lambda at, x, m, l: x * LN2),
        "no-max": ("log(sum) alone, without the max", lambda at, x, m, l: _log(l)),
        "max": ("the max alone, without log(sum)", lambda at, x, m, l: m),
        "sum": ("max + sum, without the log", lambda at, x, m, l: m + l),
        "log2-sum": ("max + log2(sum)", lambda at, x, m, l: m + _log(l) * LOG2E),
        "log2-max": ("max * log2(e) + log(sum)", lambda at, x, m, l: m * LOG2E + _log(l)),
        "ln2-max": ("max * ln 2 + log(sum)", lambda at, x, m, l: m * LN2 + _log(l)),
        "ln2-sum": ("max + ln 2 * log(sum)", lambda at, x, m, l: m + _log(l) * LN2),
        "minus": ("max - log(sum)", lambda at, x, m, l: m - _log(l)),
        "negative": ("negated", lambda at, x, m, l: -x),
        "log10": ("max + log10(sum)", lambda at, x, m, l: m + _log(l) / math.log(10)),
        "log1p": ("max + log(1 + sum)", lambda at, x, m, l: m + np.log1p(l)),
        "scaled-max": ("max * scale + log(sum)", lambda at, x, m, l: m * at("scale") + _log(l)),
        "unscaled-max": ("max / scale + log(sum)", lambda at, x, m, l: m / at("scale") + _log(l)),
        "scaled": ("multiplied by the scale", lambda at, x, m, l: x * at("scale")),
        "zero": ("0", lambda at, x, m, l: np.zeros_like(x)),
        "unwritten": ("never written", lambda at, x, m, l: np.full_like(x, np.nan)),
        "exp": ("the row sum, not its log", lambda at, x, m, l: l),
        "first-row": ("that of row 0 in every row", lambda at, x, m, l: 0 * x + x[..., :1]),
        "mean": ("too small by log(seqlen_k)", lambda at, x, m, l: x - math.log(at.p.keys)),
        "per-split": ("too large by log(splits)", lambda at, x, m, l: x + math.log(at.splits)),
        "empty-zero": ("0 in empty rows (no visible key)", lambda at, x, m, l: np.where(l == 0, 0.0, x)),
        "empty-inf": ("+inf in empty rows (no visible key)", lambda at, x, m, l: np.where(l == 0, np.inf, x)),
        "empty-nan": ("NaN in empty rows (no visible key)", lambda at, x, m, l: np.where(l == 0, np.nan, x)),
    }
    for value in (2.0, 127.0, 240.0, 256.0, 448.0, 57344.0, 65536.0):
        for sign, verb in ((1, "more"), (-1, "less")):
            offset = lambda at, x, m, l, v=value, sign=sign: x + sign * math.log(v)  # noqa: E731
            forms[f"{verb}-by-log-{value:g}"] = (f"too {'large' if sign > 0 else 'small'} by log({value:g})", offset)
    forms["keys"] = ("too large by log(seqlen_k)", lambda at, x, m, l: x + math.log(at.p.keys))
    for name, (text, change) in forms.items():
        kept = change if name.startswith(("empty", "unwritten")) else _where_keys(change)
        yield _of(f"lse-{name}", f"lse is {text}", _made("lse", kept))
    parts = (("total", "sum", "row_sum"), ("top", "max", "row_max"))
    for n, (field, words, state) in product((1, 2), parts):
        read = _read("lse", field, lambda at, x, n=n, state=state: _earlier(at, x, state, n))
        yield _of(f"lse-{words}-before-{n}", f"lse uses a stale {words}, {n} tile{'s' * (n > 1)} before the last", read)
    for one, (field, words, _) in product(indices.permutations(), parts):
        read = _read("lse", field, lambda at, x, one=one: taken(x, one, -1))
        yield _of(f"lse-{words}-of-row-{one.id}", f"lse uses another row's {words}: {one.text}", read)
    for split, place in (("last", -1), ("first", 0)):
        of_split = _made("lse", lambda at, x, m, l, n=place: _of_split(at, x, n))
        yield _of(f"lse-of-{split}-split", f"lse is that of the {split} split alone", of_split)


def _merged() -> Iterator[Hypothesis]:
    """Splits whose weights e^lse overflow float32, of a kernel that subtracts no maximum of them."""
    for n in (2, 4, 8, 16, 3):
        edits = (
            altered("out", partial(_of_splits, n), "scores", "v_rows"),
            altered("lse", partial(_lse_of, n), "scores"),
        )
        yield _of(f"merged-exp-lse-{n}", MERGED_BY_EXP_LSE, *edits)


def _weights(scores: np.ndarray, n: int) -> list[tuple[slice, np.ndarray]]:
    """The keys of each split, and e^lse of it in the range of float32, [..., q, 1]."""
    keys, found = scores.shape[-1], []
    size = -(-keys // n)
    for first in range(0, keys, size):
        of_keys = slice(first, first + size)
        weight = np.exp(np.logaddexp.reduce(scores[..., of_keys], -1, keepdims=True))
        found.append((of_keys, in_float32_range(weight)))
    return found


def _of_splits(n: int, at: Any, x: np.ndarray) -> np.ndarray:
    scores, v = at("scores"), at("v_rows")
    found: Any = 0.0
    total: Any = 0.0
    for keys, weight in _weights(scores, n):
        found = found + in_float32_range(weight * attended(scores[..., keys], v[..., keys, :]))
        total = total + weight
    return np.where(np.isfinite(scores).any(-1, keepdims=True), found / total, x)


def _lse_of(n: int, at: Any, x: np.ndarray) -> np.ndarray:
    total = sum(weight for _, weight in _weights(at("scores"), n))
    return np.where(np.isfinite(at("scores")).any(-1), np.log(total)[..., 0], x)


def _of_split(at: Any, x: np.ndarray, place: int) -> np.ndarray:
    if "partial_sum" not in at.table:
        return x
    return at("partial_max")[:, :, place] + _log(at("partial_sum")[:, :, place])


def _where_keys(change: Made) -> Made:
    """The change restricted to rows that see a key; rows without keys keep what the guard gives them."""
    return lambda at, x, m, l: np.where(l == 0, x, change(at, x, m, l))


def _whole(x: np.ndarray, axis: int, b: int, value: float) -> np.ndarray:
    """x with `value` behind the last whole block of b along an axis; x where it has no whole block."""
    n = x.shape[axis]
    kept = (np.arange(n) < n // b * b) | (n < b)
    return np.where(kept[:, None] if axis == -2 else kept, x, value)


def _log(x: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):
        return np.log(x)
