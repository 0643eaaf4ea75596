"""Where weights end: what divides them, how out is rounded, what tiny ones become, and rows without keys."""

from collections.abc import Iterator

import numpy as np

from workbench.floats import to_float64, unit_roundoff
from workbench.readings.contract.field import Field, unread
from workbench.readings.contract.scores import ODD
from workbench.readings.contract.subject import Subject, single, to

SEEDS = (31, 32)
GIVEN, OTHER = 0.97, 0.8
#: ln of how far weights are off in the median, at least, where an lse of few bits makes them; and at most
OFF, FAR = 0.1, 6.0
#: V of keys whose probs are below 2^-126
HUGE = 2.0**120


def ends(subject: Subject, probs_dtype: str | None, normalised: bool | None, merged: bool) -> Iterator[Field]:
    """normalisation, out_dtype, out_rounding, exp_floor, exp_flushes, empty_out and empty_lse. `probs_dtype`: to which
    probs are cast, and `normalised` whether after a division; None where that is not known. `merged`: whether there
    are several tiles.
    """
    kind = subject.trace.stages["out"].dtype
    yield Field("out_dtype", kind.name, f"out is {kind.name}")
    yield _normalisation(subject, probs_dtype, merged)
    yield _rounding(subject, probs_dtype == "float32" or normalised is False, normalised is True)
    if probs_dtype is None or (probs_dtype != "float32" and normalised is not False):
        for name in ("exp_floor", "exp_flushes"):
            yield unread(
                name, "it is unknown whether probs are cast before the division; the cast may lose small probs"
            )
    else:
        yield from _tiny(subject)
    yield from _empty(subject)


def _normalisation(subject: Subject, probs_dtype: str | None, merged: bool) -> Field:
    """Whether one division makes weights what they are, or an lse does, which has few bits for large scores. Keys are
    left out more and more from one end, and from the other, so that no two parts of them have the same sum.
    """
    name = "normalisation"
    rng = np.random.default_rng(SEEDS[0])
    rows = subject.some[subject.seen[subject.some].sum(-1) > 1]
    if not len(rows) or subject.keys < 4:
        return unread(name, "no row sees two keys, or there are fewer than 4 keys")
    part = np.arange(subject.keys) * subject.width // subject.keys
    v = (part[:, None] == np.arange(subject.width)).astype(float)
    q = np.zeros((subject.rows, subject.depth))
    off: list[np.ndarray] = []
    for thinned in (1.0, 0.1, -0.1):
        share = np.linspace(1, 0.1, subject.keys)[:: -1 if thinned < 0 else 1]
        alive = rng.random(subject.keys) < (share if thinned < 1 else 1.0)
        alive[[0, -1]] = True
        k = np.zeros((subject.keys, subject.depth))
        k[alive, 0] = 1.0
        q[:, 0] = rng.integers(16, 32, subject.rows) / 16.0
        seen = subject.seen[rows] & alive
        made = (seen @ v) / np.maximum(seen.sum(-1, keepdims=True), 1)
        read = subject.ask(q, k, v, 2.0**24 * ODD).out[rows]
        told = made > 0
        with np.errstate(all="ignore"):
            off.append(abs(np.log(read[told] / made[told])))
    every = np.concatenate(off)
    if not np.isfinite(every).all() or every.max() > FAR:
        return unread(name, "weights of scores near 2^24 are 0 or non-finite")
    u = 2.0**-4 if probs_dtype is None else unit_roundoff(probs_dtype)
    if every.max() <= min(4 * (u + subject.roundoff) + 2.0**-20, OFF):
        if not merged:
            return unread(
                name, "weights fit one division, but only one tile was seen; several tiles might be merged by lse"
            )
        return Field(
            name,
            "division",
            "equal scores near 2^24 get equal weights that sum to 1; a float32 lse could not give that",
        )
    worst = [float(np.median(x)) for x in off]
    if max(worst) >= OFF:
        said = f"equal scores near 2^24, where lse has an ulp of 2, get weights that are off by e^{max(worst):.2g}"
        return Field(name, "lse", said)
    return unread(
        name,
        (
            f"weights of equal scores near 2^24 are off by e^{every.max():.2g}, which fits neither one "
            "division nor an lse"
        ),
    )


def _rounding(subject: Subject, plain: bool, normalised: bool) -> Field:
    """How the cast of out rounds, by quotients of whole numbers; `plain`: sums are divided, not probs that are cast;
    `normalised`: those are; neither: it is not known.
    """
    name, kind = "out_rounding", subject.trace.stages["out"].dtype.name
    if kind == "float32":
        return unread(name, "out is float32: there is no cast")
    said = []
    for seed in SEEDS:
        rng = np.random.default_rng(seed)
        v = np.zeros((subject.keys, subject.width))
        for dim in range(subject.width):
            some = rng.permutation(subject.keys)[: min(subject.keys, 16)]
            v[some, dim] = rng.integers(1, round(0.5 / unit_roundoff(kind)), len(some))
        reply = subject.ask(np.zeros(subject.depth), np.zeros((subject.keys, subject.depth)), v)
        seen = subject.seen[subject.some].astype(float)
        number = seen.sum(-1, keepdims=True)
        made = [] if normalised else [single((seen @ v) / number)]
        made += [] if plain else [(seen @ v) * to(single(1 / number), subject.dtype)]
        read = reply.out[subject.some]
        shares = sorted(
            ((float(np.mean(read == to(x, kind, rounding))), rounding) for x in made for rounding in _BOTH),
            reverse=True,
        )
        (best, rounding), others = shares[0], [share for share, other in shares if other != shares[0][1]]
        said.append(rounding if best >= GIVEN and max(others) <= OTHER else None)
    if said[0] is None or said[0] != said[1]:
        return unread(name, f"quotients of integers fit no single rounding to {kind}: something else rounds")
    return Field(name, said[0], f"quotients of integers are rounded {said[0].replace('-', ' ')} to {kind}")


_BOTH = ("nearest", "toward-zero")


def _tiny(subject: Subject) -> Iterator[Field]:
    """Whether exp has a least argument, and flushes subnormal results."""
    if subject.dtype == "float16":
        for name in ("exp_floor", "exp_flushes"):
            yield unread(name, "a weight of 2^-126 cannot be seen with V in float16")
        return
    rows = subject.some[subject.seen[subject.some][:, 0] & (subject.seen[subject.some].sum(-1) > 1)]
    if not len(rows):
        for name in ("exp_floor", "exp_flushes"):
            yield unread(name, "no row sees two keys")
        return
    tops = np.zeros(subject.keys, bool)
    tops[::2] = True
    low = np.flatnonzero(~tops)[: subject.width]
    rows = rows[subject.seen[rows][:, low].all(-1)]
    if not len(rows):
        for name in ("exp_floor", "exp_flushes"):
            yield unread(name, f"no row sees all {len(low)} keys that the measurement needs")
        return
    k = np.zeros((subject.keys, subject.depth))
    k[~tops, 0] = -1.0
    v = np.zeros((subject.keys, subject.width))
    v[low, np.arange(len(low))] = HUGE
    number = (subject.seen[rows] & tops).sum(-1, keepdims=True)
    shares = {}
    for score in (69.0, 90.0, 139.0, 160.0):
        q = np.zeros(subject.depth)
        q[0] = score
        shares[score] = subject.ask(q, k, v).out[rows][:, : len(low)] / HUGE * number
    if not all(np.isfinite(x).all() for x in shares.values()) or not _near(shares[69.0], np.exp(-69.0), 0.1):
        for name in ("exp_floor", "exp_flushes"):
            yield unread(name, "weights near 2^-100 are already wrong")
        return
    lowest = np.concatenate([shares[139.0].ravel(), shares[160.0].ravel()])
    kept = lowest[lowest != 0]
    if not len(kept):
        yield Field("exp_floor", None, "weights of e^-139 and e^-160 are 0")
    elif _near(kept, kept[0], 0.01):
        floor = float(np.round(np.log2(kept[0]), 1))
        yield Field(
            "exp_floor",
            floor,
            f"weights of e^-139 and e^-160 come out as 2^{floor:g} in {len(kept)} of {len(lowest)} elements",
        )
        yield unread("exp_flushes", f"smaller weights are raised to 2^{floor:g}")
        return
    else:
        yield unread("exp_floor", "weights of e^-139 and e^-160 are neither 0 nor equal")
    middle = shares[90.0]
    if _near(middle, np.exp(-90.0), 0.25):
        yield Field("exp_flushes", False, "a weight of e^-90, which is subnormal, is kept")
    elif (middle == 0).all():
        yield Field("exp_flushes", True, "a weight of e^-90, which is subnormal, is 0")
    else:
        yield unread("exp_flushes", "weights of e^-90 are neither right nor 0")


def _near(x: np.ndarray, y: np.ndarray | float, share: float) -> bool:
    return bool((abs(x - y) <= share * abs(np.asarray(y))).all())


def _empty(subject: Subject) -> Iterator[Field]:
    """What rows without keys hold, in the user's own run."""
    case = subject.trace.case
    hidden = np.broadcast_to(~case.mask().any(-1), (case.batch, case.heads, case.seqlen_q))
    for name, stage in (("empty_out", "out"), ("empty_lse", "lse")):
        held = subject.trace.stages.get(stage)
        if held is None or not hidden.any():
            yield unread(name, "this case has no empty rows" if held is not None else f"the kernel returns no {stage}")
            continue
        values = np.unique(to_float64(held)[hidden])
        if len(values) == 1:
            yield Field(name, float(values[0]), f"{stage} of the {int(hidden.sum())} empty rows is {values[0]:g}")
        else:
            yield unread(name, f"{stage} of empty rows has {len(values)} different values")
