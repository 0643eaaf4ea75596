"""What a kernel returns: the division, where out is stored, and lse."""

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from workbench.judge.explain.hypothesis import Edit, Hypothesis, Unfit, across, altered, read_as
from workbench.judge.explain.library import indices
from workbench.judge.explain.library.arithmetic import LN2, LOG2E, over
from workbench.judge.explain.library.indices import taken
from workbench.reference.stage import Step
from workbench.reference.steps.altered import Altered
from workbench.reference.steps.output import LogSum, Quotient


def hypotheses() -> Iterator[Hypothesis]:
    """All of the family, the plainest first."""
    yield from _division()
    yield from _stored()
    yield from across(_elsewhere())
    yield from _lse()


def _of(name: str, text: str, *edits: Edit) -> Hypothesis:
    return Hypothesis(f"output.{name}", text, edits)


def _out(change: Callable[[Any, np.ndarray, np.ndarray, np.ndarray], np.ndarray]) -> Edit:
    """out made of itself, its numerator [..., d] and its denominator [..., 1]."""

    def changed(step: Step) -> Step:
        if not isinstance(step, Quotient):
            raise Unfit
        return Altered(step, lambda at, x: change(at, x, at(step.of), at(step.over)[..., None]), (step.of, step.over))

    return Edit("out", changed)


def _of_lse(change: Callable[[Any, np.ndarray, np.ndarray, np.ndarray], np.ndarray]) -> Edit:
    """lse made of itself, the maximum and the sum."""

    def changed(step: Step) -> Step:
        if not isinstance(step, LogSum):
            raise Unfit
        return Altered(step, lambda at, x: change(at, x, at(step.top), at(step.total)), (step.top, step.total))

    return Edit("lse", changed)


def _read(which: type, field: str, change: Callable[[Any, np.ndarray], np.ndarray]) -> Callable[[str], Edit]:
    """An edit of out or lse by what is read in a field of its step."""

    def edit(stage: str) -> Edit:
        def changed(step: Step) -> Step:
            if not isinstance(step, which):
                raise Unfit
            return read_as(stage, getattr(step, field), change).change(step)

        return Edit(stage, changed)

    return edit


def _division() -> Iterator[Hypothesis]:
    yield _of(
        "uninitialised",
        "the sum that out is made of does not start at 0",
        _out(lambda at, x, n, l: np.full_like(x, np.nan)),
    )
    yield _of(
        "uninitialised-but-empty",
        "the sum that out is made of does not start at 0, and rows without keys do not read it",
        _out(lambda at, x, n, l: np.where(l == 0, x, np.nan)),
    )
    yield _of("undivided", "out is not divided by the row's sum", _out(lambda at, x, n, l: n))
    yield _of("divided-twice", "out is divided twice", _out(lambda at, x, n, l: over(x, l)))
    yield _of("multiplied", "out is multiplied by the row's sum", _out(lambda at, x, n, l: n * l))
    yield _of(
        "divided-by-root", "out is divided by the root of the row's sum", _out(lambda at, x, n, l: over(n, np.sqrt(l)))
    )
    yield _of("unguarded", "out of a row without keys is 0 / 0", _out(lambda at, x, n, l: np.where(l == 0, np.nan, x)))
    mean = _out(lambda at, x, n, l: np.where(l == 0, at("v_rows").mean(-2, keepdims=True), x))
    yield _of("empty-mean", "out of a row without keys is the mean of v", mean)
    yield _of("divided-by-1-more", "out is divided by 1 + the row's sum", _out(lambda at, x, n, l: over(n, l + 1)))
    for n in (1, 2):
        before = _read(Quotient, "over", lambda at, l, n=n: _earlier(at, l, n))("out")
        yield _of(f"sum-before-{n}", f"out is divided by row_sum {n} tiles before the last", before)
    for value, name in ((1e-6, "1e-6"), (1e-5, "1e-5"), (1e-3, "1e-3"), (1e-8, "1e-8")):
        added = _out(lambda at, x, n, l, v=value: n / (l + v))
        yield _of(f"epsilon-{name}", f"out is divided by the row's sum + {name}", added)


def _earlier(at: Any, l: np.ndarray, n: int) -> np.ndarray:
    state = at.whole("row_sum")
    tiles = [t for t, _ in at.tiling.order]
    return l if len(tiles) <= n or "partial_sum" in at.table else state[..., tiles[-1 - n]]


def _stored() -> Iterator[Hypothesis]:
    maps = {one.id: one for one in indices.permutations()}
    for one in maps.values():
        stored = altered("out", lambda at, x, one=one: taken(x, one, -2))
        yield _of(f"rows-{one.id}", f"rows of out are stored wrong: {one.text}", stored)
        yield _of(
            f"dims-{one.id}",
            f"dims of out are stored wrong: {one.text}",
            altered("out", lambda at, x, one=one: taken(x, one, -1)),
        )
        divided = _read(Quotient, "over", lambda at, l, one=one: taken(l, one, -1))("out")
        yield _of(f"sum-of-row-{one.id}", f"out is divided by another row's sum: {one.text}", divided)
        yield _of(
            f"lse-rows-{one.id}",
            f"rows of lse are stored wrong: {one.text}",
            altered("lse", lambda at, x, one=one: taken(x, one, -1)),
        )
    for b in (2, 4, 8, 16, 32, 64):
        for value, verb in ((np.nan, "never written"), (0.0, "0")):
            tail = altered("out", lambda at, x, b=b, v=value: _whole(x, -2, b, v))
            yield _of(f"tail-{b}-{value:g}", f"rows of out behind the last whole block of {b} are {verb}", tail)
            dims = altered("out", lambda at, x, b=b, v=value: _whole(x, -1, b, v))
            yield _of(f"dims-tail-{b}-{value:g}", f"dims of out behind the last whole block of {b} are {verb}", dims)


def _elsewhere() -> Iterator[Hypothesis]:
    """Heads and batches of what is stored."""
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

        def one_way(at: Any, x: np.ndarray) -> np.ndarray:
            return x.swapaxes(1, 2).reshape(x.shape)

        def other_way(at: Any, x: np.ndarray) -> np.ndarray:
            b, h, q, *d = x.shape
            return x.reshape(b, q, h, *d).swapaxes(1, 2)

        yield _of(f"{stage}-strides", f"{stage}: {words}", altered(stage, one_way))
        yield _of(f"{stage}-strides-back", f"{stage}: {words}, the other way round", altered(stage, other_way))


def _lse() -> Iterator[Hypothesis]:
    forms: dict[str, tuple[str, Callable[[Any, np.ndarray, np.ndarray, np.ndarray], np.ndarray]]] = {
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
        "negative": ("of the wrong sign", lambda at, x, m, l: -x),
        "log10": ("max + log10(sum)", lambda at, x, m, l: m + _log(l) / math.log(10)),
        "log1p": ("max + log(1 + sum)", lambda at, x, m, l: m + np.log1p(l)),
        "scaled-max": ("max * scale + log(sum)", lambda at, x, m, l: m * at("scale") + _log(l)),
        "unscaled-max": ("max / scale + log(sum)", lambda at, x, m, l: m / at("scale") + _log(l)),
        "scaled": ("multiplied by the scale", lambda at, x, m, l: x * at("scale")),
        "zero": ("0", lambda at, x, m, l: np.zeros_like(x)),
        "unwritten": ("never written", lambda at, x, m, l: np.full_like(x, np.nan)),
        "exp": ("the row's sum, not its logarithm", lambda at, x, m, l: l),
        "first-row": ("that of row 0 for all rows", lambda at, x, m, l: 0 * x + x[..., :1]),
        "mean": ("less log(number of keys)", lambda at, x, m, l: x - math.log(at.p.keys)),
        "per-split": ("more by log(splits)", lambda at, x, m, l: x + math.log(at.splits)),
        "empty-zero": ("0 in rows without keys", lambda at, x, m, l: np.where(l == 0, 0.0, x)),
        "empty-inf": ("+inf in rows without keys", lambda at, x, m, l: np.where(l == 0, np.inf, x)),
        "empty-nan": ("NaN in rows without keys", lambda at, x, m, l: np.where(l == 0, np.nan, x)),
    }
    for value in (2.0, 127.0, 240.0, 256.0, 448.0, 57344.0, 65536.0):
        for sign, verb in ((1, "more"), (-1, "less")):
            offset = lambda at, x, m, l, v=value, sign=sign: x + sign * math.log(v)  # noqa: E731
            forms[f"{verb}-by-log-{value:g}"] = (f"{verb} by log({value:g})", offset)
    forms["keys"] = ("more by log(number of keys)", lambda at, x, m, l: x + math.log(at.p.keys))
    for name, (text, change) in forms.items():
        kept = change if name.startswith(("empty", "unwritten")) else _where_keys(change)
        yield _of(f"lse-{name}", f"lse is {text}", _of_lse(kept))
    for n in (1, 2):
        for field, words in (("total", "sum"), ("top", "max")):
            state = "row_sum" if field == "total" else "row_max"

            def earlier(at: Any, x: np.ndarray, n: int = n, state: str = state) -> np.ndarray:
                tiles = [t for t, _ in at.tiling.order]
                return x if len(tiles) <= n or "partial_sum" in at.table else at.whole(state)[..., tiles[-1 - n]]

            yield _of(
                f"lse-{words}-before-{n}",
                f"lse takes the {words} {n} tiles before the last",
                _read(LogSum, field, earlier)("lse"),
            )
    for one in indices.permutations():
        for field, words in (("total", "sum"), ("top", "max")):
            read = _read(LogSum, field, lambda at, x, one=one: taken(x, one, -1))("lse")
            yield _of(f"lse-{words}-of-row-{one.id}", f"lse takes another row's {words}: {one.text}", read)
    for tiles in ("last", "first"):
        place = -1 if tiles == "last" else 0

        def of_split(at: Any, x: np.ndarray, m: np.ndarray, l: np.ndarray, place: int = place) -> np.ndarray:
            if "partial_sum" not in at.table:
                return x
            return at("partial_max")[:, :, place] + _log(at("partial_sum")[:, :, place])

        yield _of(f"lse-of-{tiles}-split", f"lse is that of the {tiles} split", _of_lse(of_split))


def _where_keys(
    change: Callable[[Any, np.ndarray, np.ndarray, np.ndarray], np.ndarray],
) -> Callable[[Any, np.ndarray, np.ndarray, np.ndarray], np.ndarray]:
    """The change in rows that see a key: what is guarded for others stays so."""
    return lambda at, x, m, l: np.where(l == 0, x, change(at, x, m, l))


def _whole(x: np.ndarray, axis: int, b: int, value: float) -> np.ndarray:
    """x with another value behind its last whole block along an axis; as it is where it has none."""
    n = x.shape[axis]
    kept = (np.arange(n) < n // b * b) | (n < b)
    return np.where(kept[:, None] if axis == -2 else kept, x, value)


def _log(x: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):
        return np.log(x)
