"""How scores are made: where the scale enters, and what is rounded on the way to exp.

Scores that should be alike, or a few apart, are made large, so that the last bit of whatever is rounded moves a weight
by a fifth or more. What is read is then one of a few patterns of weights, or none of them.
"""

from collections.abc import Callable, Iterator, Mapping

import numpy as np

from workbench.floats import unit_roundoff
from workbench.readings.contract.field import Field, chosen, unread
from workbench.readings.contract.subject import Subject, single, to

#: factors of 1155 in at most 8 bits: a * b is the same for all, and a times a number of 24 bits is rounded otherwise
FACTORS = (5, 231, 7, 165, 11, 105, 15, 77, 21, 55, 33, 35)
PRODUCT = 1155.0
#: a scale of 24 bits
ODD = float(np.float32(1.3717421))
LOG2E = float(np.float32(1.4426950408889634))
LN2 = float(np.log(2.0))
#: what casts of weights and of out may leave of ln(read / made): 8-bit probs are within a sixteenth
MOST = 0.075
SEEDS = (11, 12)
NARROW = ("bfloat16", "float16")
#: what was read, and name of a choice -> what would have been
Run = tuple[np.ndarray, Mapping[str, np.ndarray]]


def scores(subject: Subject, how: str | None, sums: str | None) -> Iterator[Field]:
    """scores_dtype, scaled_q_dtype, scale_in and exp_argument. `how`: as of `rounded`; `sums`: the dtype in which
    values are accumulated, None where it is not known.
    """
    if subject.keys < 4 or subject.depth < 2:
        for name in ("scores_dtype", "scaled_q_dtype", "scale_in", "exp_argument"):
            yield unread(name, f"{subject.keys} keys and {subject.depth} dims are too few")
        return
    yield _rounded(how, sums)
    scaled = _scaled_q(subject)
    yield scaled
    if how != "none" or not scaled.is_read:
        reason = "scores, q.k or q may be rounded to 16 bits, which would hide float32 rounding"
    elif scaled.value != "float32":
        reason = f"q * scale is rounded to {scaled.value}; this hides float32 rounding"
    else:
        yield _scale_in(subject)
        yield _argument(subject)
        return
    yield unread("scale_in", reason)
    yield unread("exp_argument", reason)


def _told(subject: Subject, q: np.ndarray, k: np.ndarray, scale: float) -> np.ndarray | None:
    """Weights of the first keys, [row, key]; None where they are not finite."""
    read, _ = subject.weights(q, k, scale)
    read = read[subject.some]
    return read if np.isfinite(read).all() and (read >= 0).all() and (read > 0).any() else None


def made_of(subject: Subject, scores: np.ndarray) -> np.ndarray:
    """Weights of the first keys, [row, key], of scores [key] in natural units."""
    found = subject.softmax(np.broadcast_to(scores, (subject.rows, subject.keys)))
    return found[subject.some, : min(subject.width, subject.keys)]


def _agreed(subject: Subject, asked: Callable[[int], list[Run] | None]) -> str | None:
    """The choice that the runs of every seed agree on; None where they do not, or are not finite."""
    said = []
    for seed in SEEDS:
        runs = asked(seed)
        said.append(None if runs is None else chosen(runs, MOST))
    return said[0] if len({*said}) == 1 else None


def _near(subject: Subject, bits: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """q [dim], k [key, dim] and their products, 1.25 * 2^(bits - 1) less up to 3, exact in float32; a number of `bits`
    bits has an ulp of 1 there.
    """
    rng = np.random.default_rng(seed)
    y = -rng.integers(0, 25, subject.keys) / 8.0
    y[rng.permutation(subject.keys)[: subject.keys // 4 + 1]] = 0.0
    half = (bits - 1) // 2
    q, k = np.zeros(subject.depth), np.zeros((subject.keys, subject.depth))
    q[:2] = 2.0**half, 1.0
    k[:, 0], k[:, 1] = 1.25 * 2.0 ** (bits - 1 - half), y
    return q, k, q @ k.T


def rounded(subject: Subject) -> str | None:
    """How products and scores are rounded to 16 bits: none, or in words that end with the dtype; None where they are
    in no one way that is known here.
    """
    if subject.keys < 4 or subject.depth < 2:
        return None

    def asked(seed: int) -> list[Run] | None:
        runs: list[Run] = []
        for near in NARROW:
            q, k, qk = _near(subject, int(-np.log2(unit_roundoff(near))), seed)
            read = _told(subject, q, k, ODD)
            if read is None:
                return None
            choices: dict[str, np.ndarray] = {"none": qk * ODD}
            for dtype in NARROW:
                choices[f"q.k and scores rounded to {dtype}"] = to(to(qk, dtype) * ODD, dtype)
                choices[f"q.k rounded to {dtype}"] = to(qk, dtype) * ODD
                choices[f"scores rounded to {dtype}"] = to(qk * ODD, dtype)
                choices[f"scores in base 2 rounded to {dtype}"] = to(qk * (ODD * LOG2E), dtype) * LN2
            runs.append((read, {how: made_of(subject, x) for how, x in choices.items()}))
        return runs

    return _agreed(subject, asked)


def products_of(how: str | None) -> str | None:
    """The dtype to which products alone are rounded; None where they are not."""
    return how.split()[-1] if how is not None and how.startswith("q.k rounded") else None


def _rounded(how: str | None, sums: str | None) -> Field:
    """In which dtype qk and scores are rounded."""
    name = "scores_dtype"
    if how is None:
        return unread(
            name, "no single rounding to 16 bits fits the weights of scores near 219 and 1755 that are 1/8 apart"
        )
    if how == "none":
        return Field(name, "float32", "scores 1/8 apart, near 219 and 1755, are not rounded")
    dtype = how.split()[-1]
    products = products_of(how)
    if products is not None and sums is None:
        return unread(name, f"q.k is rounded to {dtype}, by a cast or by its accumulator")
    if products is not None and products == sums:
        return Field(name, "float32", f"q.k is rounded to {dtype} by its accumulator; scores are not rounded further")
    return Field(name, dtype, f"weights of scores near 219 and 1755 fit {how}")


def _factored(subject: Subject, of: float, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, float]:
    """q [dim] and k [key, dim] whose products are all alike, each a product of two factors; these, [key]; and the scale
    for which a score is `of`.
    """
    rng = np.random.default_rng(seed)
    count = min(subject.depth, len(FACTORS))
    dims = rng.integers(0, count, subject.keys)
    a = np.array(FACTORS[:count], float) / 32
    q, k = np.zeros(subject.depth), np.zeros((subject.keys, subject.depth))
    q[:count] = a
    b = PRODUCT / 1024 / a[dims]
    k[np.arange(subject.keys), dims] = b
    return q, k, a[dims], b, float(np.float32(of * ODD / (PRODUCT / 1024)))


def _scaled_q(subject: Subject) -> Field:
    """To which dtype q * scale is rounded."""
    name = "scaled_q_dtype"

    def asked(seed: int) -> list[Run] | None:
        runs: list[Run] = []
        for of in (512.0, 2048.0):
            q, k, a, b, scale = _factored(subject, of, seed)
            read = _told(subject, q, k, scale)
            if read is None:
                return None
            base2 = scale * LOG2E
            choices = {"none": np.zeros(subject.keys)}
            for dtype in NARROW:
                choices[f"q * scale rounded to {dtype}"] = to(a * scale, dtype) * b
                choices[f"q * scale * log2(e) rounded to {dtype}"] = to(a * base2, dtype) * b * LN2
                choices[f"k * scale rounded to {dtype}"] = a * to(b * scale, dtype)
            runs.append((read, {how: made_of(subject, x) for how, x in choices.items()}))
        return runs

    how = _agreed(subject, asked)
    if how is None or how.startswith("k"):
        return unread(
            name,
            "equal q.k from different factors get weights that fit neither equal scores nor q * scale in 16 bits",
        )
    if how == "none":
        return Field(name, "float32", "equal q.k from 12 pairs of factors give equal weights")
    return Field(name, how.split()[-1], f"weights of equal q.k from different factors fit {how}")


def _scale_in(subject: Subject) -> Field:
    """What is multiplied by the scale."""

    def asked(seed: int) -> list[Run] | None:
        q, k, a, b, scale = _factored(subject, 2.0**21, seed)
        read = _told(subject, q, k, scale)
        if read is None:
            return None
        base2, root = float(single(np.array(scale * LOG2E))), float(single(np.sqrt(single(np.array(scale)))))
        root2 = float(single(np.sqrt(np.array(base2))))
        choices = {
            "scores": np.zeros(subject.keys),
            "q": single(single(a * scale) * b),
            "q, base 2": single(single(a * base2) * b) * LN2,
            "k": single(a * single(b * scale)),
            "k, base 2": single(a * single(b * base2)) * LN2,
            "both": single(single(a * root) * single(b * root)),
            "both, base 2": single(single(a * root2) * single(b * root2)) * LN2,
        }
        return [(read, {how: made_of(subject, x) for how, x in choices.items()})]

    how = _agreed(subject, asked)
    if how is None:
        return unread(
            "scale_in", "no single place of the scale explains the last bits of scores from equal q.k near 2^21"
        )
    value = how.split(",")[0]
    if value == "scores":
        return Field(
            "scale_in", value, "equal q.k from different factors give scores near 2^21 that agree to the last bit"
        )
    return Field("scale_in", value, f"the last bits of equal q.k near 2^21 fit a scale applied to {how}")


def _argument(subject: Subject) -> Field:
    """What exp is given: differences of rounded scores, or what was not rounded."""
    name, scale = "exp_argument", ODD * 2.0**16

    def asked(seed: int) -> list[Run] | None:
        rng = np.random.default_rng(seed)
        y = -rng.integers(0, 13, subject.keys) * 2.0**-18
        y[rng.permutation(subject.keys)[: subject.keys // 4 + 1]] = 0.0
        q, k = np.zeros(subject.depth), np.zeros((subject.keys, subject.depth))
        q[:2] = 8.0, 1.0
        k[:, 0], k[:, 1] = 4.0, y
        read = _told(subject, q, k, scale)
        if read is None:
            return None
        choices = {
            "exact": (q @ k.T) * scale,
            "base e": single((q @ k.T) * scale),
            "base 2": single((q @ k.T) * float(single(np.array(scale * LOG2E)))) * LN2,
        }
        return [(read, {how: made_of(subject, x) for how, x in choices.items()})]

    how = _agreed(subject, asked)
    if how in (None, "exact"):
        shown = "are not rounded" if how else "fit no known rounding"
        return unread(name, f"scores near 2^21 {shown}: suspect an fma, or more bits than float32")
    return Field(name, "difference", f"exp takes score differences rounded to float32 ({how}; scores near 2^21)")
