"""What row_sum adds, and how far off exp is, by lse; or by what weights add up to."""

from collections.abc import Mapping

import numpy as np

from workbench.case.formats import FLOAT8
from workbench.floats import ulp
from workbench.readings.contract.field import Field, unread
from workbench.readings.contract.probs import APART, GIVEN, cast
from workbench.readings.contract.subject import Subject

SEEDS = (21, 22, 23)
#: how far a slope may be from 0 or 1, and what its standard error may be
SLOPE, SURE = 0.2, 0.07
#: share of samples that what row_sum does not add may give, where they differ
OTHER = 0.5
#: samples of scores at which probs are added, at least
SAMPLES = 64
#: a score at which a prob is 0
DEAD = -200.0
UNIT = 2.0**-24

Sums = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def row_sum(subject: Subject, dtype: str | None, rounding: str) -> Field:
    """row_sum_of_cast. `dtype`: to which probs are cast; None where that is not known."""
    name = "row_sum_of_cast"
    if dtype is None:
        return unread(name, "the dtype to which probs are cast is unknown")
    if dtype == "float32":
        return unread(name, "probs are not cast")
    if subject.trace.stages.get("lse") is None:
        return _of_out(subject, dtype, rounding)
    slopes = []
    for seed in SEEDS[:2]:
        run = _summed(subject, 0.02, 1.3, seed)
        if run is None:
            return unread(name, "lse is non-finite, or too few rows see keys")
        slopes.append(_slope(run, dtype, rounding))
    moved = f"lse shows {slopes[0][0]:.0%} of the effect that casting probs to {dtype} has on their sum"
    for value, whole in ((False, 0.0), (True, 1.0)):
        if all(abs(slope - whole) < SLOPE and error < SURE for slope, error in slopes):
            return Field(name, value, moved)
    return unread(name, f"{moved}; this is not clearly all of it, nor clearly none")


def exp(subject: Subject) -> Field:
    """exp_ulps: the largest error of exp, where it is more than lse may be off by."""
    name = "exp_ulps"
    if subject.trace.stages.get("lse") is None:
        return unread(name, "the kernel returns no lse, and out has too few bits to show errors of exp")
    near = [_summed(subject, 0.02, 1.3, seed, alive=2) for seed in SEEDS]
    far = _summed(subject, 1.5, 7.0, 24, alive=2)
    if far is None or any(run is None for run in near):
        return unread(name, "lse is non-finite, or too few rows see keys")
    runs = [run for run in near if run is not None]
    errors, noise = zip(*(_errors(run) for run in runs), strict=True)
    most, hidden = float(max(abs(x).max() for x in errors[:2])), float(max(x.max() for x in noise))
    if most <= 1.5 * hidden:
        return unread(
            name, f"exp is off by at most {most:.0f} ulps, but lse cannot show errors below {hidden:.0f} ulps"
        )
    for dtype in ("float16", "bfloat16", *FLOAT8.values()):
        if any(_of_cast(run, dtype) for run in runs):
            return unread(
                name,
                f"exp seems off by {most:.0f} ulps, but a row_sum that adds probs in {dtype} would look the same",
            )
    value = float(np.ceil(1.25 * most))
    of_far, hidden_far = _errors(far)
    if abs(errors[2]).max() > value or (abs(of_far) > value + hidden_far + 4 * far[0]).any():
        return unread(name, f"exp is off by {most:.0f} ulps near 0 and by more elsewhere")
    return Field(
        name,
        value,
        f"exp is off by at most {most:.0f} ulps in {2 * len(errors[0])} samples; the field adds a 25% margin",
    )


def _summed(
    subject: Subject,
    low: float,
    high: float,
    seed: int,
    alive: int | None = None,
    samples: int = SAMPLES,
    share: float = 0.3,
) -> Sums | None:
    """Scores of keys below the others, lse, how many keys are at 0, how many below, and what weights add up to, a
    sample each; `alive`: of so many keys alone; `share`: of keys at 0. None where something is not finite.
    """
    rng = np.random.default_rng(seed)
    found: list[Sums] = []
    rows = subject.some
    for _ in range(-(-samples // max(len(rows), 1))):
        tops = rng.random(subject.keys) < share
        tops[[0, -1]] = True
        dead = np.zeros(subject.keys, bool)
        if alive is not None:
            dead[alive:] = True
            tops[1:alive] = False
        k = np.zeros((subject.keys, subject.depth))
        k[~tops & ~dead, 0] = -1.0
        k[dead, 1] = DEAD
        q = np.zeros((subject.rows, subject.depth))
        # seven bits, so that bfloat16 holds them
        step = 2.0 ** np.ceil(np.log2(high / 128))
        q[:, 0] = rng.integers(max(int(low / step), 1), int(high / step) + 1, subject.rows) * step
        q[:, 1] = 1.0
        reply = subject.ask(q, k, np.ones((subject.keys, subject.width)))
        seen = subject.seen[rows] & ~dead
        of_tops, others = (seen & tops).sum(-1), (seen & ~tops).sum(-1)
        fit = (of_tops > 0) & (others > 0)
        lse = np.zeros(len(rows)) if reply.lse is None else reply.lse[rows]
        found.append((reply.q[rows, 0][fit], lse[fit], of_tops[fit], others[fit], reply.out[rows, 0][fit]))
    every = (
        np.concatenate([one[0] for one in found]),
        np.concatenate([one[1] for one in found]),
        np.concatenate([one[2] for one in found]),
        np.concatenate([one[3] for one in found]),
        np.concatenate([one[4] for one in found]),
    )
    return every if len(every[0]) >= SAMPLES // 2 and all(np.isfinite(x).all() for x in every) else None


def _slope(run: Sums, dtype: str, rounding: str) -> tuple[float, float]:
    """How much of what a cast does to the sum lse follows, and the standard error of that."""
    score, lse, tops, others, _ = run
    p = np.exp(-score)
    plain = np.log(tops + others * p)
    x, y = np.log(tops + others * cast(p, dtype, rounding)) - plain, lse - plain
    square = float((x**2).sum())
    if square == 0:
        return 0.0, np.inf
    slope = float((x * y).sum()) / square
    return slope, float(np.sqrt(((y - slope * x) ** 2).sum() / max(len(x) - 1, 1) / square))


def _of_cast(run: Sums, dtype: str) -> bool:
    """Whether a sum of cast probs leaves at most half of what lse is off by."""
    score, lse, tops, others, _ = run
    p = np.exp(-score)
    plain, made = (np.log(tops + others * x) for x in (p, cast(p, dtype, "nearest")))
    return float(((lse - made) ** 2).sum()) <= 0.25 * float(((lse - plain) ** 2).sum())


def _errors(run: Sums) -> tuple[np.ndarray, np.ndarray]:
    """Errors of exp in units of 2^-24 of its result, and what lse may be off by in these: half an ulp, what log and
    the addition lose.
    """
    score, lse, tops, others, _ = run
    p = np.exp(-score)
    total = tops + others * p
    read = (np.exp(lse) - tops) / others
    noise = (ulp(lse, "float32") / UNIT * 1.5 + 4) * total / (others * p)
    return (read - p) / (UNIT * p), noise


def _of_out(subject: Subject, dtype: str, rounding: str) -> Field:
    """Whether row_sum adds cast probs, by what weights add up to."""
    name = "row_sum_of_cast"
    said: list[bool | None] = []
    kind = subject.trace.stages["out"].dtype
    for seed in SEEDS[:2]:
        run = _summed(subject, 0.3, 0.69, seed, samples=4 * SAMPLES, share=0.03)
        if run is None:
            return unread(name, "weights are non-finite, or too few rows see keys")
        score, _, tops, others, out = run
        p = np.exp(-score)
        made = ((tops + others * cast(p, dtype, rounding)) / (tops + others * p)).astype(kind).astype(float)
        off = made != 1
        of_plain, of_cast = (
            float(np.mean(out[off] == x[off])) if off.any() else 0.0 for x in (made, np.ones_like(made))
        )
        both: Mapping[bool, tuple[float, float]] = {False: (of_plain, of_cast), True: (of_cast, of_plain)}
        fits = [value for value, (own, other) in both.items() if own >= GIVEN and other <= OTHER]
        said.append(fits[0] if len(fits) == 1 and off.sum() >= APART else None)
    if said[0] is None or said[0] != said[1]:
        return unread(
            name,
            "the kernel returns no lse, and the sum of weights fits both a sum of cast probs and one of uncast probs",
        )
    words = "exactly 1" if said[0] else "the sum of cast probs over the sum of uncast ones"
    return Field(name, said[0], f"weights add up to {words}")
