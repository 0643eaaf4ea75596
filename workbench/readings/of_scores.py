"""What is read of scores: what keys weigh before any, and what becomes of a score."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np

from workbench.case.mask_parts import in_place_of
from workbench.readings.finding import Finding
from workbench.readings.model import Model
from workbench.readings.of_values import heads_in_words, solved
from workbench.readings.sets import of_keys
from workbench.readings.target import Target, Weights

#: largest scaled score of an experiment, so that the least weight keeps its bits in V's unit: e^-8 of float16 probs is
#: 5 of its smallest numbers' bits above 2^-24
REACH = {"float16": 3.5, "bfloat16": 6.0, "float32": 8.0}
#: knots of a response that no formula fits
KNOTS = 33
#: how far rows with the same scores may differ, as a share of the differences of these, for a curve to be told
ALIKE = 0.05
#: how far a factor must be from 1: edges of tiles, of which a few of the keys are, move it by a tenth of this
NOTABLE = 3e-4
#: how far a curve must be from what it should be, of the range of scores: less is what casts make of weights
CURVED = 1e-3
#: how far the numbers that a mask adds to scores may be apart and be one, of the number and of 1
ONE_LEVEL = 0.01
#: factor of scores below which they count for nothing
STILL = 0.01
#: what an experiment with equal scores adds to its finding
_AT_Q_0 = " (measured with all of q set to 0)"
#: differences of which a curve is made, at most
MOST = 6000


def room(weights: Weights, made: np.ndarray) -> np.ndarray:
    """How far a weight that should be `made` may be read off: what budgets allow for those that were expected, as a
    share, and the least that they allow.
    """
    of_row, least = weights.share
    found: np.ndarray = of_row * abs(made) + least
    return found


def logs(weights: np.ndarray, room_: np.ndarray) -> np.ndarray:
    """ln of weights; NaN where a weight is too small to be read."""
    with np.errstate(all="ignore"):
        return np.where(weights > 8 * room_, np.log(weights), np.nan)


def start(target: Target, model: Model) -> tuple[Model, list[Finding]]:
    """What keys weigh where q is 0: the mask, exactly, biases, keys that are lost or seen twice."""
    weights = target.weights(model.v_dims, q=np.zeros(1))
    read = solved(model, weights)
    nominal = model.weights(model.start, target.natural.sinks)
    allowed = room(weights, nominal)
    rows = np.isfinite(read).all(-1)
    with np.errstate(all="ignore"):
        total = read.sum(-1, keepdims=True)
        share = read / np.where(total == 0, 1.0, total)
        scaled = nominal / np.where(nominal.sum(-1, keepdims=True) == 0, 1.0, nominal.sum(-1, keepdims=True))
        ratio = np.log(share) - np.log(scaled)
    both = (read > 8 * allowed) & (nominal > 0)
    # a row's constant: what most of its keys agree on
    middle = np.nanmedian(np.where(both, ratio, np.nan), -1, keepdims=True)
    middle = np.where(np.isfinite(middle), middle, 0.0)
    moved = np.where(both, ratio - middle, 0.0)
    noise = np.where(nominal > 0, allowed / np.where(nominal > 0, nominal, 1.0), 0.0)
    odd = both & (abs(moved) > 4 * noise + 1e-6)
    rows &= total[..., 0] >= 0
    gone = rows[..., None] & (nominal > 8 * allowed) & (read < 8 * allowed) & ~(share > scaled / 16)
    more = rows[..., None] & (nominal == 0) & (read > 8 * allowed)
    if not (odd | gone | more).any():
        return model, []
    with np.errstate(all="ignore"):
        ours = np.log(share) - middle
        # of hidden keys, against what a key of the row without a bias weighs
        base = np.nanmedian(np.where(both, ours - model.start, np.nan), -1, keepdims=True)
        base = np.where(np.isfinite(base), base, np.nanmax(np.where(more, ours, np.nan), -1, keepdims=True))
    masked = np.where(gone, -np.inf, np.where(more & ~np.isfinite(model.start), 0.0, model.start))
    table = model.start + np.where(odd, moved, 0.0)
    table = np.where(gone, -np.inf, np.where(more, ours - base, table))
    none = 4 * np.nanmedian(noise[noise > 0] if (noise > 0).any() else [0.0]) + 1e-6
    table = np.where(more & (abs(table) < none), 0.0, table)
    of_lse = weights.answers[0].lse
    if of_lse is not None:
        # out alone does not tell what all keys of a row have; lse does
        with np.errstate(all="ignore"):
            shift = np.nanmedian(np.where(np.isfinite(table), np.log(read) + of_lse[..., None] - table, np.nan), -1)
        table = table + np.where(np.isfinite(shift) & (odd | more).any(-1), shift, 0.0)[..., None]
    said = []
    # out alone tells what a hidden key adds where it stands beside one that is seen
    told_of = more & ((of_lse is not None) | both.any(-1, keepdims=True))
    named, level = "", np.nan if more.any() else 0.0
    if told_of.any() and not (gone | odd).any():
        level = float(np.median(table[told_of]))
        if not np.all(abs(table[told_of] - level) <= ONE_LEVEL * max(1.0, abs(level))):
            level = np.nan
        elif abs(level) < none:
            level = 0.0
    if not odd.any() and level == 0:
        told = np.broadcast_to(nominal > 8 * allowed, gone.shape) & rows[..., None]
        named = in_place_of(told, (told & ~gone) | more)
    elif level and np.isfinite(level):
        named = f"the mask adds {level:.3g}, not -inf, to the scores of {of_keys(more)}"
    if gone.any():
        said.append(f"{of_keys(gone, rows[..., None] & (nominal > 8 * allowed))} get no weight")
    if more.any():
        said.append(f"masked keys get weight: {of_keys(more)}")
    of_mask = f"{'; '.join(said)}{_AT_Q_0}" if said else ""
    if odd.any():
        low, high = np.exp(np.nanmin(moved[odd])), np.exp(np.nanmax(moved[odd]))
        said.append(
            f"{of_keys(odd, both)} get {low:.4g}"
            + ("" if np.isclose(low, high, rtol=0.02) else f" to {high:.4g}")
            + " times their weight"
        )
    wrong = odd | gone | more
    found = Finding(
        "start",
        "scores",
        named or f"{'; '.join(said)}{_AT_Q_0}",
        int(wrong.sum()),
        wrong.size,
        {
            "table": table,
            "masks": not odd.any(),
            "mask": masked,
            "said of mask": of_mask,
            "level": level,
            "dims": target.case.head_dim_v,
        },
    )
    return model.but(start=table), [found]


def response(target: Target, model: Model) -> tuple[Model, list[Finding]]:
    """What becomes of a score: its factor, a softcap or another curve; and which head of K each head of Q reads.

    A query is one dim, and all dims of a key are alike, so that no order of dims counts, and dims that are lost show as
    rows that nothing moves; differences of neighbouring keys are looked at, so that a factor of a tile counts at its
    edges alone.
    """
    shape_q, shape_k = target.trace.inputs["q"].shape, target.trace.inputs["k"].shape
    dims, keys, heads = shape_q[3], shape_k[2], shape_k[0] * shape_k[1]
    rng = np.random.default_rng(7)
    x = np.stack([rng.permutation(np.linspace(-1, 1, keys)) for _ in range(heads)]).reshape(*shape_k[:3])
    size = np.sqrt(REACH[target.case.dtype] / abs(model.scale or 1.0))
    q = np.zeros(shape_q[2:])
    q[np.arange(shape_q[2]), np.arange(shape_q[2]) % dims] = size * np.sign(model.scale or 1.0)
    k = x[..., None] * np.full(dims, size)
    weights = target.weights(model.v_dims, q=model.placed("q", np.broadcast_to(q, shape_q)), k=model.placed("k", k))
    stored, given = target.inputs_of(k, "k"), target.inputs_of(q, "q")
    read = solved(model, weights)
    sinks = target.natural.sinks
    of_heads = stored[..., 0].reshape(heads, keys) * given[0, 0].sum(-1)[0] * model.scale  # [head of k, key]
    raw = np.broadcast_to(of_heads[model.heads["k"]][:, :, None], read.shape)
    y = logs(read, room(target.identity, model.weights(model.of_raw(raw), sinks)))
    dy = np.diff(y - np.where(np.isfinite(model.start), model.start, np.nan), axis=-1)
    if model.fixed is not None:
        dy = np.where(model.fixed[..., 1:] | model.fixed[..., :-1], np.nan, dy)
    got = model.heads["k"].copy()
    for b, h in np.ndindex(got.shape):
        fit = [_agreement(dy[b, h], np.diff(of_heads[g])) for g in range(heads)]
        best = int(np.argmax(fit))
        if best != got[b, h] and 1 - fit[best] ** 2 < 0.2 * (1 - fit[got[b, h]] ** 2):
            got[b, h] = best
    found: list[Finding] = []
    if not np.array_equal(got, model.heads["k"]):
        wrong = got != model.heads["k"]
        text = "the wrong heads of K are read: " + heads_in_words(got, model.heads["k"], target.case.kv_heads)
        found.append(Finding("heads", "scores", text, int(wrong.sum()), wrong.size, {"k": got}))
        model = model.but(heads={**model.heads, "k": got})
    s = of_heads[model.heads["k"]]  # [b, h, key]
    # rows whose dim is lost tell nothing of the curve
    ds = np.diff(s)[:, :, None]
    seen = np.isfinite(dy)
    slope = np.where(seen, dy * ds, 0.0).sum(-1) / np.maximum(np.where(seen, ds * ds, 0.0).sum(-1), 1e-30)
    still = (abs(slope) < 0.02 * np.nanmax(abs(slope))) & (seen.sum(-1) > 4) if np.isfinite(slope).any() else slope > 9
    if 0 < still.mean() < 0.9:
        dy = np.where(still[..., None], np.nan, dy)
    return _of_scores(target, model, dy, s, found, int(target.identity.wrong.sum()), read.size)


def _agreement(dy: np.ndarray, ds: np.ndarray) -> float:
    """Correlation of measured differences [q, k] with those of a head of K, either sign."""
    known = np.isfinite(dy) & (abs(dy) < 50)
    if known.sum() < 8:
        return 0.0
    x, y = np.broadcast_to(ds, dy.shape)[known], dy[known]
    size = np.sqrt(float(x @ x) * float(y @ y))
    return abs(float(x @ y)) / size if size else 0.0


def _of_scores(
    target: Target, model: Model, dy: np.ndarray, s: np.ndarray, found: list[Finding], wrong: int, of: int
) -> tuple[Model, list[Finding]]:
    """The function g of which the differences of ln P between neighbouring keys are those of g(score)."""
    known = np.isfinite(dy)
    if known.sum() < 16:
        return model, found
    spread = s[:, :, None] + np.zeros((dy.shape[2], 1))
    if known.sum() > MOST:  # a sample of rows tells as much
        rows = np.sort(np.random.default_rng(1).permutation(dy.shape[2])[: max(1, MOST * dy.shape[2] // known.sum())])
        dy, spread, known = dy[:, :, rows], spread[:, :, rows], known[:, :, rows]

    def left(g: Callable[[np.ndarray], np.ndarray], at: tuple[int, int] | None = None) -> float:
        """The median error of a difference: edges of tiles, a few of the keys, do not count."""
        some = (slice(None), slice(None)) if at is None else (slice(at[0], at[0] + 1), slice(at[1], at[1] + 1))
        error = abs(dy[some] - np.diff(g(spread[some]), axis=-1))[known[some]]
        return float(np.median(error)) if error.size else 0.0

    def of_factor(g: Callable[[np.ndarray], np.ndarray], at: tuple[int, int] | None = None) -> tuple[float, float]:
        """The factor of scores with which g leaves least, and what it leaves."""
        factors = np.concatenate([-np.geomspace(4, 0.05, 12), [0.0], np.geomspace(0.02, 60, 80)])
        best = nearest(lambda a: left(lambda x: g(a * x), at), factors)
        return best, left(lambda x: g(best * x), at)

    plain = left(model.respond)
    noise = _noise(dy, known, spread)
    if plain <= 1.5 * noise + 1e-7 or noise > ALIKE * np.median(abs(np.diff(spread, axis=-1))[known]):
        return model, found  # right, or rows with the same scores differ: what is multiplied is not what it should be
    factor, after = of_factor(model.respond)
    if abs(factor) < STILL and np.quantile(abs(dy[known]), 0.99) > 10 * noise + 1e-6:
        # a curve that is even, or most keys weigh as their neighbours do, and not all: their order is another
        g, text = _table(dy, spread, known)
        x = np.linspace(0, abs(s).max(), KNOTS)
        even = np.max(abs(g(x) - g(-x))) < ALIKE * np.ptp(g(x))
        if not even or left(g) > max(2 * noise, plain / 8):
            return model, found
        found.append(Finding("response", "scores", text, wrong, of, {"response": g}))
        return model.but(respond=g), found
    each = np.ones(s.shape[:2])
    if after > 2 * noise + 1e-6 and each.size > 1:
        told = {at: of_factor(model.respond, at) for at in np.ndindex(*each.shape)}
        worst = max(x for _, x in told.values())
        if worst < after / 3:
            for at, (one, _) in told.items():
                each[at] = one
            text = (
                "the scale of each head is "
                + ", ".join(f"{model.scale * x:.6g}" for x in each.reshape(-1)[:8])
                + f", not {model.scale:.6g}"
            )
            found.append(Finding("response", "scores", text, wrong, of, {"factor": each}))
            return model.but(factor=each[..., None, None]), found
    now = f"the scale is {model.scale * factor:.6g}, not {model.scale:.6g}"
    text = f"{now}: scores are multiplied by {factor:.6g}"
    by_factor = Finding("response", "scores", text, wrong, of, {"factor": factor})
    if after <= 2 * noise + 1e-6 or after < plain / 50:
        return (model.but(factor=factor), [*found, by_factor]) if abs(factor - 1) > NOTABLE else (model, found)
    cap = target.case.softcap
    tried: list[tuple[float, str, Callable[[np.ndarray], np.ndarray]]] = []
    if cap:
        linear = of_factor(lambda x: x)
        tried.append((linear[1], f"scores are not capped (factor {linear[0]:.6g})", lambda x: linear[0] * x))
    for begin in (*((cap,) if cap else ()), 2.0, 8.0, 30.0):
        size, one = _capped(dy, spread, known, begin)
        bend = partial(_tanh, one, size)
        tried.append((left(bend), f"scores are capped as {size:.4g} * tanh({one:.4g} x / {size:.4g})", bend))
    tried.sort(key=lambda one: one[0])
    if tried[0][0] <= 2 * noise + 1e-6:
        leaves, text, g = tried[0]
    else:
        g, text = _table(dy, spread, known)
        x = np.linspace(s.min(), s.max(), KNOTS)
        bent = np.max(abs(g(x) - model.respond(x))) > CURVED * np.ptp(x)
        if left(g) > max(2 * noise, plain / 8) or not bent:
            return model, found
        if abs(factor - 1) > NOTABLE and 2 * left(g) > after:  # a line leaves no more to speak of
            return model.but(factor=factor), [*found, by_factor]
    found.append(Finding("response", "scores", text, wrong, of, {"response": g}))
    return model.but(respond=g), found


def nearest(left: Callable[[float], float], factors: np.ndarray) -> float:
    """The factor that leaves least: the best of some, then ever nearer to it, to 1e-6 of it."""
    best = float(min(factors, key=left))
    width = 0.12
    while width > 1e-6:
        best = float(min(best + max(abs(best), 1e-3) * np.linspace(-width, width, 13), key=left))
        width /= 4
    return best


def _tanh(factor: float, size: float, x: np.ndarray) -> np.ndarray:
    return size * np.tanh(factor * x / size)


def _capped(dy: np.ndarray, spread: np.ndarray, known: np.ndarray, begin: float) -> tuple[float, float]:
    """Size and factor of the nearest softcap, by Gauss-Newton steps from a size; edges of tiles do not count."""
    first, second, y = spread[..., :-1][known], spread[..., 1:][known], dy[known]
    size, factor = begin, 1.0
    for _ in range(40):
        made = _tanh(factor, size, second) - _tanh(factor, size, first)
        rest = y - made
        step = 1e-5
        of_size = (_tanh(factor, size * (1 + step), second) - _tanh(factor, size * (1 + step), first) - made) / step
        of_factor = (_tanh(factor * (1 + step), size, second) - _tanh(factor * (1 + step), size, first) - made) / step
        near = abs(rest) <= 5 * np.median(abs(rest)) + 1e-12
        change, *_ = np.linalg.lstsq(np.stack([of_size, of_factor], 1)[near], rest[near], rcond=None)
        size *= float(np.exp(np.clip(change[0], -0.5, 0.5)))
        factor *= float(np.exp(np.clip(change[1], -0.5, 0.5)))
        if not 1e-3 < size < 1e4 or not 1e-3 < factor < 1e3:
            return begin, 1.0
    return size, factor


def _noise(dy: np.ndarray, known: np.ndarray, spread: np.ndarray) -> float:
    """How far rows with the same scores differ: the median distance of a difference from that of most rows."""
    middle = np.nanmedian(np.where(known, dy, np.nan), 2, keepdims=True)
    return float(np.median(abs(dy - middle)[known]))


def _table(dy: np.ndarray, spread: np.ndarray, known: np.ndarray) -> tuple[Callable[[np.ndarray], np.ndarray], str]:
    """A response of straight pieces, by least squares of differences between neighbours."""
    middle = np.nanmedian(np.where(known, dy, np.nan), 2)
    s = spread[:, :, 0]
    knots = np.linspace(s.min(), s.max(), KNOTS)
    rows, values = [], []
    for b, h, j in np.argwhere(np.isfinite(middle)):
        rows.append(_hat(knots, s[b, h, j + 1]) - _hat(knots, s[b, h, j]))
        values.append(middle[b, h, j])
    smooth = 1e-3 * np.diff(np.eye(KNOTS), 2, axis=0)
    a = np.concatenate([np.array(rows), smooth, np.ones((1, KNOTS)) * 1e-3])
    heights = np.linalg.lstsq(a, np.concatenate([values, np.zeros(len(smooth) + 1)]), rcond=None)[0]
    heights -= np.interp(0.0, knots, heights)

    def g(x: np.ndarray) -> np.ndarray:
        inside = np.interp(x, knots, heights)
        low, high = (
            (heights[1] - heights[0]) / (knots[1] - knots[0]),
            (heights[-1] - heights[-2]) / (knots[-1] - knots[-2]),
        )
        return inside + low * np.minimum(x - knots[0], 0) + high * np.maximum(x - knots[-1], 0)

    some = ", ".join(f"{x:.3g} -> {np.interp(x, knots, heights):.3g}" for x in np.linspace(knots[0], knots[-1], 5))
    return g, f"a score x is replaced by g(x): {some}"


def _hat(knots: np.ndarray, x: float) -> np.ndarray:
    found = np.zeros(len(knots))
    i = int(np.clip(np.searchsorted(knots, x) - 1, 0, len(knots) - 2))
    part = (x - knots[i]) / (knots[i + 1] - knots[i])
    found[i], found[i + 1] = 1 - part, part
    return found


def fixed(target: Target, model: Model, of_start: Finding) -> tuple[Model, list[Finding]]:
    """Whether keys that should be hidden and are seen weigh the same whatever their scores are, as of a mask that is a
    number: the natural run tells (`measure` keeps what brings it nearer). With what `start` found, of which the number
    is then the score.
    """
    hidden = ~np.asarray(target.natural.problem.inputs["mask"]) & np.isfinite(model.start)
    if not hidden.any():
        return model, []
    level = of_start.data["level"]
    text = "masked keys have a finite score that does not depend on q and k"
    if np.isfinite(level):
        text = f"masked scores are {level:.3g}, not -inf"
        of_start = replace(of_start, text=of_start.data["said of mask"])
    made = Finding("fixed", "scores", text, int(hidden.sum()), hidden.size, {"fixed": hidden})
    return model.but(fixed=hidden), [of_start, made]
