"""How operands of products are rounded: float32 as it is, to TF32, or as three products of TF32."""

from collections.abc import Iterator

import numpy as np

from workbench.readings.contract.field import Field, chosen, unread
from workbench.readings.contract.probs import cast
from workbench.readings.contract.scores import LN2, LOG2E, MOST, Run, made_of
from workbench.readings.contract.subject import Subject, single

SEEDS = (41, 42)
#: relative error of a float32 that is no more than products and a division make of it
EXACT = 2.0**-21


def operands(subject: Subject) -> Iterator[Field]:
    """input_precision and input_rounding."""
    names = ("input_precision", "input_rounding")
    if subject.dtype != "float32":
        yield from (unread(name, f"{subject.dtype} inputs are exact in TF32") for name in names)
        return
    if subject.keys < 4:
        yield from (unread(name, f"{subject.keys} keys are too few") for name in names)
        return
    of_v = {_of_values(subject, seed) for seed in SEEDS}
    of_q = [chosen(_of_queries(subject, seed), MOST) for seed in SEEDS]
    how = of_v.pop() if len(of_v) == 1 else None
    said = of_q[0].split(",")[0] if of_q[0] is not None and of_q[0] == of_q[1] else None
    if how in ("nearest", "toward-zero") and said == how:
        yield Field(
            "input_precision", "tf32", f"V and q are rounded to TF32 {how.replace('-', ' ')}: bits below 2^-10 are lost"
        )
        yield Field("input_rounding", how, "every measured element of V and q is rounded that way")
        return
    if how == "exact" and said == "exact":
        products = [chosen(_of_tails(subject, seed), MOST) for seed in SEEDS]
        found = products[0].split(",")[0] if products[0] is not None and products[0] == products[1] else None
        if found is not None:
            words = "keep" if found == "ieee" else "lack"
            yield Field(
                "input_precision",
                found,
                f"products of 24-bit numbers {words} the part that comes from their last bits",
            )
        else:
            yield unread(
                "input_precision",
                "V and q are not rounded; products may be float32, or three TF32 products each",
            )
        yield unread("input_rounding", "operands are not rounded to TF32")
        return
    yield from (unread(name, "V and q are rounded differently") for name in names)


def _of_values(subject: Subject, seed: int) -> str | None:
    """How V is read: exact, or rounded to TF32, one of ROUNDINGS."""
    rng = np.random.default_rng(seed)
    k = np.full((subject.keys, subject.depth), 0.0)
    k[1:, 0] = -200.0
    q = np.zeros(subject.depth)
    q[0] = 1.0
    v = np.zeros((subject.keys, subject.width))
    v[0] = single(1 + rng.random(subject.width))
    rows = subject.some[subject.seen[subject.some][:, 0]]
    read = subject.ask(q, k, v).out[rows]
    for name in ("exact", "nearest", "toward-zero"):
        made = v[0] if name == "exact" else cast(v[0], "tf32", name)
        if len(rows) and (abs(read - made) <= EXACT * made).all():
            return name
    return None


def _spread(subject: Subject, q: np.ndarray, k: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Keys that each have one dim: which, [key]; q [dim] and k [key, dim] with these numbers."""
    dims = np.random.default_rng(seed).integers(0, subject.depth, subject.keys)
    whole = np.zeros((subject.keys, subject.depth))
    whole[np.arange(subject.keys), dims] = k[dims]
    return dims, q, whole


def _read(subject: Subject, q: np.ndarray, k: np.ndarray, scale: float) -> np.ndarray:
    read, _ = subject.weights(q, k, scale)
    return read[subject.some]


def _of_queries(subject: Subject, seed: int) -> list[Run]:
    """Weights of scores that are 512 times numbers of 24 bits."""
    rng = np.random.default_rng(seed)
    one = single(1 + rng.random(subject.depth) / 256)
    dims, q, k = _spread(subject, one, np.ones(subject.depth), seed)
    made = {"exact": one, "nearest": cast(one, "tf32", "nearest"), "toward-zero": cast(one, "tf32", "toward-zero")}
    return [(_read(subject, q, k, 512.0), {name: made_of(subject, x[dims] * 512.0) for name, x in made.items()})]


def _of_tails(subject: Subject, seed: int) -> list[Run]:
    """Weights of scores near 2^21 that are products of two numbers of 24 bits, all nearly alike."""
    rng = np.random.default_rng(seed)
    x = single(1 + rng.random(subject.depth) / 4)
    y = single(1.3 / x)
    tails = (x - cast(x, "tf32", "nearest")) * (y - cast(y, "tf32", "nearest"))
    dims, q, k = _spread(subject, x, y, seed)
    scale = 2.0**21
    choices = {}
    for name, product in (("ieee", single(x * y)), ("tf32x3", single(x * y - tails))):
        choices[name] = product[dims] * scale
        choices[f"{name}, base 2"] = single(product[dims] * float(single(np.array(scale * LOG2E)))) * LN2
    return [(_read(subject, q, k, scale), {name: made_of(subject, s) for name, s in choices.items()})]
