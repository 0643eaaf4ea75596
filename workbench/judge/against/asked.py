"""Two calls in one form: what they ask otherwise, and how far their inputs are apart."""

from dataclasses import replace

import numpy as np

from workbench.case.stages import INPUTS
from workbench.judge.against.question import Question
from workbench.readings.finding import spans
from workbench.refusal import Refusal

#: weight of a key, times the number of keys, below which it is lost in a float32
LOST = 2.0**-24
#: by how much of their size two scales differ that are roundings of one to float32
SCALE = 2.0**-22


def in_one_form(a: Question, b: Question, call: str) -> tuple[Question, Question]:
    """Both, of the same units, rows and keys. Refusal where they are not of the same tokens."""
    units = max(len(a.q), len(b.q))
    sizes = [(x.q.size, x.q.shape[2], x.k.shape[2], x.v.shape[2]) for x in (a, b)]
    whole = all(units % len(x.q) == 0 and x.q.shape[1] % (units // len(x.q)) == 0 for x in (a, b))
    if sizes[0] != sizes[1] or not whole:
        said = " and ".join(_shapes(x) for x in (a, b))
        raise Refusal(
            f"{call} has different shapes in A and B, {said}: the runs use different models or different tokens"
        )
    several = a.group > 1 and a.group == b.group
    a, b = a.split(units), b.split(units)
    if not several:
        a, b = (_in_order(b, a), b) if a.queries > b.queries else (a, _in_order(a, b))
    a, b = (replace(x, queries=min(a.queries, b.queries)) for x in (a, b))
    if a.k.shape == b.k.shape and np.array_equal(a.seen, b.seen):
        return a, b
    keys = int(max(a.read.sum(1).max(initial=1), b.read.sum(1).max(initial=1)))
    packed = a.packed(keys), b.packed(keys)
    if a.k.shape != b.k.shape or apart(*packed, "k").max() < apart(a, b, "k").max():
        return packed
    return a, b


def _in_order(a: Question, b: Question) -> Question:
    """B with its rows in the order of those of A, where one side has them head by head and the other query by query."""

    def far(b: Question) -> float:
        return float(np.nan_to_num(abs(a.q - b.q), nan=1e300).sum())

    rows = b.q.shape[1]
    orders = (np.arange(rows).reshape(n, -1).T.ravel() for n in range(2, rows) if rows % n == 0)
    nearest = min((b.ordered(order) for order in orders), key=far, default=b)
    return nearest if far(nearest) < far(b) / 10 else b


def _shapes(question: Question) -> str:
    return str({x: list(getattr(question, x).shape) for x in INPUTS})


@np.errstate(all="ignore")
def apart(a: Question, b: Question, name: str) -> np.ndarray:
    """How far q, k or v are apart, of each row or key [unit, row]: the root mean square of the difference over that of
    the larger side, or of all rows where these are larger. 0 where no row that sees a key reads it, inf for a NaN or an
    infinity on one side.
    """
    factors = (a.scale, b.scale) if name == "q" and scaled_alike(a, b) else (1.0, 1.0)
    x, y = (getattr(side, name) * factor for side, factor in zip((a, b), factors, strict=True))
    used = a.asked & b.asked if name == "q" else a.read & b.read
    return apart_in_rows(x, y, used)


@np.errstate(all="ignore")
def apart_in_rows(x: np.ndarray, y: np.ndarray, used: np.ndarray) -> np.ndarray:
    """As `apart`, of arrays [unit, row, dim], in the rows that are `used`."""
    same = (x == y) | (np.isnan(x) & np.isnan(y))
    difference = np.sqrt(np.mean(np.where(same, 0.0, x - y) ** 2, -1))
    sizes = np.maximum(*(np.sqrt(np.mean(np.where(np.isfinite(z), z, 0.0) ** 2, -1)) for z in (x, y)))
    size = np.sqrt(np.mean(sizes[used] ** 2)) if used.any() else 0.0
    found = np.where(difference == 0, 0.0, difference / np.maximum(sizes, size))
    return np.where(used, np.where(np.isnan(found), np.inf, found), 0.0)


def scaled_alike(a: Question, b: Question) -> bool:
    """Whether one side multiplied its scale into q."""
    if a.scale == b.scale:
        return False
    folded = abs(a.q * a.scale - b.q * b.scale).sum() / max(abs(a.q * a.scale).sum(), 1e-300)
    return bool(folded < abs(a.q - b.q).sum() / max(abs(a.q).sum(), 1e-300))


@np.errstate(all="ignore")
def asked_otherwise(a: Question, b: Question, allowed: float) -> dict[str, tuple[str, str]]:
    """What the two ask otherwise, in one form: scale, softcap, sinks, mask, bias -> of A and of B, in words. A bias may
    differ by `allowed` of its size: it was computed, as q was.
    """
    found: dict[str, tuple[str, str]] = {}
    if abs(a.scale - b.scale) > SCALE * abs(a.scale) and not scaled_alike(a, b):
        found["scale"] = (f"{a.scale:.6g}", f"{b.scale:.6g}")
    if a.softcap != b.softcap:
        found["softcap"] = tuple("none" if x is None else f"{x:.6g}" for x in (a.softcap, b.softcap))  # type: ignore
    at = np.argwhere(~np.isclose(a.sinks, b.sinks, rtol=allowed, atol=0))
    if len(at):
        found["sinks"] = tuple(f"{x.sinks[tuple(at[0])]:.6g}" for x in (a, b))  # type: ignore[assignment]
    other = a.seen != b.seen
    if other.any():
        weights = np.maximum(np.where(a.seen, a.weights(), 0.0), np.where(b.seen, b.weights(), 0.0))
        other &= weights * a.seen.shape[2] > LOST
    if other.any():
        unit, row = np.argwhere(other.any(-1))[0]
        what = "mask" if a.keys == b.keys else "keys"
        found[what] = tuple(_seen_in_words(x, unit, row, what) for x in (a, b))  # type: ignore[assignment]
    elif a.bias is not None or b.bias is not None:
        found |= _bias(a, b, allowed)
    return found


def _bias(a: Question, b: Question, allowed: float) -> dict[str, tuple[str, str]]:
    """What is added otherwise, from the first key of a row on: what all keys of a row have changes nothing."""
    both = a.seen & b.seen
    first = both.argmax(-1)[..., None]
    given = [np.zeros(both.shape) if x.bias is None else x.bias for x in (a, b)]
    added = [np.where(both, x - np.take_along_axis(x, first, -1), 0.0) for x in given]
    size = np.maximum(*(np.where(both, abs(x), 0.0).max(-1, initial=0.0, keepdims=True) for x in given))
    apart = abs(added[0] - added[1])
    if not (apart > allowed * size).any():
        return {}
    worst = np.unravel_index(int(apart.argmax()), apart.shape)
    said = [f"{x[worst]:.6g} (row {worst[1] % a.queries})" for x in added]
    return {"bias": (said[0], said[1])}


def _seen_in_words(question: Question, unit: int, row: int, what: str) -> str:
    seen = question.seen
    keys = spans(question.places[unit][seen[unit, row]]) or "none"
    how_many = f"{int(seen.size - seen.sum()):,} of {seen.size:,} keys hidden" if what == "mask" else str(question.keys)
    return f"{how_many} (row {row % question.queries} sees {keys})"
