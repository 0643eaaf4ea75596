"""How products are summed, by masked sums: a large number, a small one, and minus the large one.

What is left of the small one tells how many bits there were when both had been added (FPRev, arXiv 2411.00442). Each
dim of V carries a triple of keys of its own, so that one call reads as many as V has dims. For q @ k^T the triple is
three dims of a key, and what is left of it the score.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from workbench.floats import unit_roundoff
from workbench.readings.contract.field import Field, unread
from workbench.readings.contract.subject import Subject

#: significant bits -> the dtype whose sums keep so many; from 14 on no other of a contract's does
BITS: Mapping[int, str] = {11: "float16", 8: "bfloat16"}
ENOUGH = 15
#: exponents of what the large number is by the small one
RATIOS = tuple(range(3, 19))
LARGE = 2.0**13
#: keys of which all may be added in one operation, at most
AT_ONCE = 128
#: how far what is left of the small number may be from it, as a share
NEAR = 0.1
#: the same where its roundings are told apart
EXACT = 0.02
#: what is added to 2^24 to see how it is rounded: 1.5 becomes 2 to nearest, 0 cut off, and stays 1.5 in more bits
HALF = 1.5


@dataclass(frozen=True)
class Triple:
    """Keys of the large number, the small one, and minus the large one."""

    first: int
    small: int
    last: int


@dataclass(frozen=True)
class Kept:
    """How many significant bits sums keep; None where small numbers are not read at all."""

    near: int | None  #: of values, of a small number next to either large one, at worst
    apart: int | None  #: of a small number far from both
    products: int | None  #: of q @ k^T, at worst
    few: bool = False  #: whether there are so few keys that they may be added at once, and rounded then
    stored: bool = True  #: whether numbers side by side lose as many bits at either end: as where they are stored

    @property
    def values(self) -> str | None:
        """The dtype in which values are accumulated; None where it is not known."""
        if self.near is None or self.near >= ENOUGH:
            return None if self.near is None or self.few else "float32"
        return BITS.get(self.near) if self.near == self.apart else None


def kept(subject: Subject) -> Kept:
    """What sums over all keys, and over all dims, keep."""
    if subject.keys < 5 or not len(subject.whole) or subject.depth < 3:
        return Kept(None, None, None)
    ends = sorted({subject.keys - 1, 2 * subject.keys // 3, subject.keys // 2} - {0, 1, 2, 3})
    asked = [Triple(0, spot, last) for last in ends for spot in (1, last // 3, last // 2, 2 * last // 3, last - 1)]
    shares = _left(subject, [(triple, 2.0**-ratio) for triple in asked for ratio in RATIOS])
    if shares is None:
        return Kept(None, None, _bits_of_scores(subject))
    products, few = _bits_of_scores(subject), subject.keys <= AT_ONCE
    lost = abs(shares.reshape(len(asked), len(RATIOS)) - 1) > NEAR
    # the first ratio at which a triple loses the small number
    first = [int(RATIOS[int(np.argmax(one))]) if one.any() else RATIOS[-1] + 1 for one in lost]
    bits = np.array(first).reshape(len(ends), 5)
    # what is added to the second large number before both are to the first may be exact: then spots near it are kept
    both = bits[np.maximum(bits[:, 0], bits[:, -1]) < ENOUGH]
    if not len(both):
        return Kept(int(bits.min()), int(bits[-1, 1:-1].max()), products, few, stored=False)
    # where sums that meet at last are unequal, large numbers do not cancel: the triples that keep most tell
    best = both[int(np.argmax(both[:, 1:-1].max(-1)))]
    return Kept(int(best.min()), int(best[1:-1].max()), products, few)


def sums(subject: Subject, found: Kept, products: str | None, splits: bool) -> Iterator[Field]:
    """accumulator_dtype, partials_dtype and accumulation; `products`: the dtype to which q @ k^T is rounded, None where
    it is not, or not known; `splits`: whether there are known to be several.
    """
    names = ("accumulator_dtype", "partials_dtype", "accumulation")
    if found.near is None or found.apart is None:
        reason = "small values cannot be measured here, even without large ones"
        yield from (unread(name, reason) for name in names)
        return
    accumulator = _accumulator(found.near, found.apart, found.products, products)
    yield accumulator
    yield _partials(found, splits, subject)
    yield _accumulation(subject, accumulator.value or "float32")


def _left(subject: Subject, asked: Sequence[tuple[Triple, float]], sign: float = 1.0) -> np.ndarray | None:
    """What is left of the small number of each triple, by what there is of it without the large ones."""
    found: list[float] = []
    row = int(subject.whole[-1])
    zero_q, zero_k = np.zeros(subject.depth), np.zeros((subject.keys, subject.depth))
    half = subject.width // 2
    for start in range(0, len(asked), half):
        part = asked[start : start + half]
        v = np.zeros((subject.keys, subject.width))
        for at, (triple, share) in enumerate(part):
            v[triple.first, at], v[triple.last, at] = sign * LARGE, -sign * LARGE
            v[triple.small, [at, half + at]] = sign * LARGE * share
        out = subject.ask(zero_q, zero_k, v).out[row]
        plain = out[half : half + len(part)]
        if not np.isfinite(out).all() or not (plain * sign > 0).all():
            return None
        found.extend(out[: len(part)] / plain)
    return np.array(found)


def _bits_of_scores(subject: Subject) -> int | None:
    """The same of q @ k^T."""
    kept = [abs(share - 1) <= NEAR for share in _left_of_scores(subject, [(ratio, 1.0) for ratio in RATIOS])]
    if not kept[0]:
        return None
    return RATIOS[-1] + 1 if all(kept) else int(RATIOS[kept.index(False)])


def _left_of_scores(subject: Subject, asked: Sequence[tuple[int, float]]) -> list[float]:
    """What is left of a small product between a large one and minus that, which it is 2^-ratio times `small` of; as
    shares of the small one alone, -1 where that cannot be read. Scores are 1 where nothing is lost.
    """
    found: list[float] = []
    each = min(subject.width, subject.keys) // 2 - 1
    for start in range(0, len(asked), max(each, 1)):
        part = asked[start : start + max(each, 1)]
        dims = (0, subject.depth // 2, subject.depth - 1)
        q, k = np.zeros(subject.depth), np.zeros((subject.keys, subject.depth))
        q[list(dims)] = 2.0**6, 2.0**-6, 2.0**6
        for at, (ratio, small) in enumerate(part):
            key, plain = 1 + 2 * at, 2 + 2 * at
            if plain >= subject.keys:
                return [-1.0] * len(asked)
            # products: 2^(ratio - 10), 2^-10 small, and minus the first
            k[key, list(dims)] = 2.0 ** (ratio - 16), small * 2.0**-4, -(2.0 ** (ratio - 16))
            k[plain, dims[1]] = small * 2.0**-4
        weights, _ = subject.weights(q, k, 2.0**9)
        row = weights[int(subject.whole[-1])]
        with np.errstate(all="ignore"):
            for at in range(len(part)):
                key, plain = np.log(row[1 + 2 * at] / row[0]), np.log(row[2 + 2 * at] / row[0])
                found.append(float(key / plain) if np.isfinite(key) and plain > 0.25 else -1.0)
    return found


def _accumulator(near: int, apart: int, of_scores: int | None, products: str | None) -> Field:
    name = "accumulator_dtype"
    if of_scores is None:
        return unread(name, "small products cannot be measured here, even without large ones")
    if apart >= ENOUGH and of_scores >= ENOUGH and products is None:
        where = "" if near >= ENOUGH else " (between partial results)"
        return Field(name, "float32", f"a value 2^-{ENOUGH - 1} times a large one survives in sums{where}")
    if near == apart and near in BITS and BITS[near] in (BITS.get(of_scores), products):
        said = f"P @ V loses values below 2^-{near - 1} times a large one, however many keys lie between them"
        return Field(name, BITS[near], f"{said}; q.k keeps as many bits")
    return unread(name, f"P @ V keeps {_said(near)} to {_said(apart)} bits, q.k keeps {_said(of_scores)}")


def _said(bits: int) -> str:
    return f"{bits}" if bits < ENOUGH else f"{ENOUGH} or more"


def _partials(found: Kept, splits: bool, subject: Subject) -> Field:
    name, near, apart = "partials_dtype", found.near or 0, found.apart or 0
    if near >= ENOUGH:
        if not splits:
            return unread(name, "no splits are known: large numbers may cancel before partial results are stored")
        return Field(
            name, "float32", f"a value 2^-{ENOUGH - 1} times a large one survives a sum over {subject.keys} keys"
        )
    if apart < ENOUGH or not found.stored:
        return unread(
            name,
            (
                f"sums keep only {near} to {apart} bits, whatever the distance; this hides how partial "
                "results are rounded"
            ),
        )
    bits = min(BITS, key=lambda one: abs(one - near))
    # numbers are divided by sums that are no powers of 2, which may take one bit or give one
    if abs(bits - near) > 1:
        return unread(name, f"sums keep {near} bits next to a large number, which fits no dtype")
    said = f"sums keep about {bits} bits next to a large number and {_said(apart)} far from it"
    return Field(name, BITS[bits], f"{said}: partial results are rounded before they are merged")


def _accumulation(subject: Subject, dtype: str) -> Field:
    """Whether sums round to nearest in a dtype: 1.5 ulp of what is half the ulp of 2^bits becomes 2, or stays where it
    meets what is smaller first; cut off it would be 0 or 1.
    """
    name, last = "accumulation", subject.keys - 1
    bits = int(-np.log2(unit_roundoff(dtype)))
    spots = sorted({1, last // 3, last // 2, last - 1})
    shares: list[float] = []
    for sign in (1.0, -1.0):
        left = _left(subject, [(Triple(0, spot, last), HALF * 2.0**-bits) for spot in spots], sign)
        if left is None:
            return unread(name, "what remains after two large numbers cancel cannot be measured")
        shares += [*left]
    of_scores = _left_of_scores(subject, [(bits, HALF)] * 2)
    up, stays = ([abs(x - one) <= EXACT for x in (*shares, *of_scores)] for one in (2 / HALF, 1.0))
    half = len(spots)
    if all(a or b for a, b in zip(up, stays, strict=True)) and any(up[:half]) and any(up[half : 2 * half]):
        if dtype != "float32" or all(up[2 * half :]):
            return Field(name, "nearest", f"2^{bits} + 1.5 is rounded to 2^{bits} + 2, and likewise for -1.5")
    told = ", ".join(sorted({f"{x * HALF:.2g}" for x in shares}))
    products = ", ".join(sorted({f"{x * HALF:.2g}" if x >= 0 else "nothing measurable" for x in of_scores}))
    return unread(
        name,
        (
            f"when 1.5 is added to 2^{bits}, P @ V keeps {told} and q.k keeps {products}; rounding to "
            "nearest would keep 2"
        ),
    )
