"""What becomes of probs: the dtype to which they are cast before they meet V, and what row_sum adds.

Two keys of nearly the same score with opposite values leave the difference of their weights, of which out keeps every
bit; casts to few bits make it a multiple of their ulp. What the keys should leave under each cast is computed, and one
alone has to give what was read.
"""

from collections.abc import Iterator

import numpy as np

from workbench.case.formats import FLOAT8
from workbench.floats import smallest_subnormal, unit_roundoff
from workbench.readings.contract.field import Field, unread
from workbench.readings.contract.subject import Reply, Subject, single, to

SEEDS = (21, 22)
#: share of samples that a cast has to give, within the rounding of out; and that any other may give where they differ
GIVEN, OTHER = 0.97, 0.5
#: samples in which two casts differ, at least
APART = 8
#: what V is at two keys
VALUE = 2.0**10
#: what exp, sums and divisions of float32 may be off by, absolutely, where weights are 1 at most
SLACK = 2.0**-21
ROUNDINGS = ("nearest", "toward-zero")

Cast = tuple[str, str, bool]  # dtype, rounding, whether of normalised probs


def probs(subject: Subject) -> Iterator[Field]:
    """probs_dtype, probs_rounding, probs_normalised."""
    names = ("probs_dtype", "probs_rounding", "probs_normalised")
    if subject.keys < 4 or subject.width < 2:
        yield from (unread(name, f"{subject.keys} keys are too few") for name in names)
        return
    fitting = [_fitting(subject, seed) for seed in SEEDS]
    if any(one is None for one in fitting) or fitting[0] != fitting[1]:
        reason = "no single cast of probs, normalised or not, fits the weights of close scores"
        yield from (unread(name, reason) for name in names)
        return
    dtype, rounding, normalised = fitting[0] or ("", "", False)
    of = "normalised probs" if normalised else "probs"
    if dtype in ("float32", "tf32"):
        operand = " except TF32, as for all operands" if dtype == "tf32" else ""
        yield Field("probs_dtype", "float32", f"weights of scores 2^-12 apart show no rounding{operand}")
        yield unread("probs_rounding", "nothing is cast")
        yield unread("probs_normalised", "probs are not cast, so the order of cast and division does not matter")
        return
    yield Field("probs_dtype", dtype, f"weights of close scores differ by whole ulps of {dtype}, as {of} do")
    yield Field("probs_rounding", rounding, f"no other rounding of {of} would give these weights")
    yield Field("probs_normalised", normalised, f"where sums are not powers of 2, the cast has the ulps of {of}")


def _fitting(subject: Subject, seed: int) -> Cast | None:
    """The one cast that gives what is read."""
    rng = np.random.default_rng(seed)
    keys = subject.keys
    count = min(subject.width, keys - 2)
    tops = rng.random(keys) < 0.5
    tops[[0, keys - 1]] = True
    others = np.flatnonzero(~tops)[:count]
    if not len(others):
        return None
    k = np.zeros((keys, subject.depth))
    k[~tops, 0] = -rng.integers(8, 16, int((~tops).sum())) / 8.0 * 2.0 ** -rng.integers(1, 13, int((~tops).sum()))
    q = np.zeros((subject.rows, subject.depth))
    q[:, 0] = rng.integers(64, 128, subject.rows) / 128.0
    v = np.zeros((keys, subject.width))
    v[0, : len(others)] = VALUE
    v[others, np.arange(len(others))] = -VALUE
    reply = subject.ask(q, k, v)
    rows = [row for row in subject.some if subject.seen[row, 0] and subject.seen[row, others].all()]
    if not rows or not np.isfinite(reply.out[rows]).all():
        return None
    return _only(subject, reply, np.array(rows), others)


def _only(subject: Subject, reply: Reply, rows: np.ndarray, others: np.ndarray) -> Cast | None:
    scores = np.where(subject.seen[rows], reply.q[rows] @ reply.k.T, -np.inf)
    p = np.exp(scores)
    total = p.sum(-1, keepdims=True)
    read = reply.out[rows][:, : len(others)]
    made: dict[Cast, tuple[np.ndarray, np.ndarray]] = {}
    for dtype, rounding, normalised in _casts(subject):
        weight = cast(p / total, dtype, rounding) if normalised else cast(p, dtype, rounding) / total
        left = VALUE * (weight[:, :1] - weight[:, others])
        lost = 2 * subject.roundoff + (0.0 if normalised else 2 * roundoff(dtype))
        floor = VALUE * SLACK / total + smallest_subnormal(subject.trace.stages["out"].dtype)
        made[dtype, rounding, normalised] = left, lost * abs(left) + floor
    fits = {one: abs(read - left) <= near for one, (left, near) in made.items()}
    best = max(fits, key=lambda one: float(fits[one].mean()))
    if fits[best].mean() < GIVEN:
        return None
    for other in fits:
        if other == best:
            continue
        apart = abs(made[other][0] - made[best][0]) > made[other][1] + made[best][1]
        if apart.sum() < APART:
            if {other[0], best[0]} != {"tf32", "float16"}:
                return None
            # numbers near 1 have as many bits in both
            best = next(one for one in (best, other) if (one[0] == "tf32") == _small(subject))
        elif fits[other][apart].mean() > OTHER:
            return None
    return best


def _casts(subject: Subject) -> Iterator[Cast]:
    """All that are known."""
    yield "float32", "nearest", False
    for rounding in ROUNDINGS:
        if subject.dtype == "float32":
            yield "tf32", rounding, False
        for dtype in ("float16", "bfloat16", *FLOAT8.values()):
            yield dtype, rounding, False
            yield dtype, rounding, True


def _small(subject: Subject) -> bool:
    """Whether weights of 2^-16 to 2^-20, subnormal in float16, have 10 bits."""
    k = np.zeros((subject.keys, subject.depth))
    count = min(subject.width, subject.keys)
    k[1:, 0] = -np.random.default_rng(SEEDS[0]).integers(88, 112, subject.keys - 1) / 8.0
    q = np.zeros(subject.depth)
    q[0] = 1.0
    read, reply = subject.weights(q, k)
    made = subject.softmax(reply.q @ reply.k.T)[:, :count]
    off = abs(read - made)[subject.some] / np.maximum(made[subject.some], 2.0**-60)
    return bool(off.max() < 2.0**-9)


def cast(x: np.ndarray, dtype: str, rounding: str) -> np.ndarray:
    """x as a cast leaves it; tf32: 10 explicit bits of float32, ties away or cut off."""
    if dtype == "float32":
        return single(x)
    if dtype != "tf32":
        return to(x, dtype, rounding)
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    kept = (bits + np.uint32(0x1000)) if rounding == "nearest" else bits
    found: np.ndarray = (kept & np.uint32(0xFFFFE000)).view(np.float32).astype(np.float64)
    return found


def roundoff(dtype: str) -> float:
    """Of a cast."""
    return 2.0**-11 if dtype == "tf32" else unit_roundoff(dtype)
