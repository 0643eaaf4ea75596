"""What is read of a row's sum: what weights are divided by, rows that are mixed, and weights that are flushed to 0."""

from collections.abc import Iterator, Sequence

import ml_dtypes
import numpy as np

from workbench.floats import DTYPES
from workbench.readings.denominator import OF_ROW, Denominator, of_row
from workbench.readings.finding import Finding, apart_in_words, spans
from workbench.readings.known import by_tile, known, tiles_of
from workbench.readings.model import Model
from workbench.readings.sets import ROW_AXES, of_axes
from workbench.readings.steps import sizes, slope_in_words
from workbench.readings.target import Target

#: how often a tile or a key may be counted
MOST_TIMES = 8
#: denominators whose numbers are those of each head or row
_FITTED = ("factor", "plus", "phantom")


def denominator(target: Target, model: Model, read: np.ndarray, allowed: np.ndarray) -> tuple[Model, list[Finding]]:
    """What out was divided by, where it is not what its weights add to."""
    if model.kept is not None:
        return model, []
    scores, top, plain = model.exponentials(target.natural)
    sinks = target.natural.sinks
    made = model.of_run(target.natural)
    # one number a row: how much of the expected weights was read
    sure = (made > 8 * allowed) & np.isfinite(read)
    share = np.where(sure, made, 0.0).sum(-1)
    factor = np.where(share > 0, np.where(sure, read, 0.0).sum(-1) / np.where(share > 0, share, 1.0), np.nan)
    noise = np.where(sure, allowed, 0.0).sum(-1) / np.where(share > 0, share, 1.0)
    rows = np.isfinite(factor) & (factor != 0)
    wrong = rows & (abs(factor - 1) > 2 * noise)
    if not wrong.any():
        return model, []
    with np.errstate(all="ignore"):
        used = model.total(scores, plain, sinks) / factor
    rows &= np.isfinite(used)
    far = float(np.median(abs(factor - 1)[wrong]))
    found: list[tuple[float, Denominator, str]] = []
    of_rows = wrong.mean((0, 1)) > 0.5
    for among in [None] if of_rows.all() or not of_rows.any() else [None, of_rows]:
        told = rows if among is None else rows & among
        for one, text in denominators(target, scores, plain, used, told, sinks):
            tried = one if among is None else Denominator(one.kind, one.edges, one.terms, one.numbers, among, one.sinks)
            with np.errstate(all="ignore"):
                off = abs(tried(scores, plain, sinks) / used - 1)[rows]
            off = np.where(np.isfinite(off), off, np.inf)
            # a number for each head or row fits a little better than it is right
            numbers = np.size(one.numbers) if one.kind in _FITTED else 0
            left = float(np.quantile(off, 0.98)) if off.size else np.inf
            left *= np.sqrt(off.size / max(off.size - numbers, 1))
            found.append((left, tried, text + ("" if among is None else f", in rows {spans(np.flatnonzero(among))}")))
    least = min((one[0] for one in found), default=np.inf)
    if least > max(far / 10, 3 * float(np.median(noise[rows]))):
        return model, []
    # the first that is as near: those with fewer numbers of their own come first
    best = next(one for one in found if one[0] <= 1.5 * least + 1e-6)
    one = best[1]
    data = {"kind": one.kind, "edges": one.edges, "terms": one.terms, "numbers": one.numbers, "left": best[0]}
    return model.but(denominator=one), [Finding("denominator", "row_sum", best[2], int(wrong.sum()), wrong.size, data)]


def denominators(
    target: Target,
    scores: np.ndarray,
    plain: np.ndarray,
    used: np.ndarray,
    rows: np.ndarray,
    sinks: np.ndarray | None,
) -> Iterator[tuple[Denominator, str]]:
    """What the denominator may be, the simplest first."""
    total, top = plain.sum(-1), scores.max(-1)
    told = np.where(rows, used, np.nan)

    def middle(x: np.ndarray) -> np.ndarray:
        return np.nan_to_num(np.nanmedian(x, 2, keepdims=True))

    with np.errstate(all="ignore"):
        more = told - total
        of_zero = more * np.exp(top)
    yield (
        Denominator("factor", numbers=1.0),
        "weights are divided by the sum of e^(s - max) alone" + ("" if sinks is None else ", without the sink"),
    )
    constant = float(np.nan_to_num(np.nanmedian(told), nan=1.0, posinf=1.0, neginf=1.0)) if rows.any() else 1.0
    near = round(constant) if abs(constant - round(constant)) < 0.01 * abs(constant) else constant
    yield (
        Denominator("constant", numbers=float(near)),
        "weights are not divided by their sum" + ("" if near == 1 else f", but by {near:.6g}"),
    )
    factor = middle(told / total)
    # which of both it is no run tells: V is read by what is divided
    said_of_out = "out is multiplied by " + _numbers(1 / factor) + ", by the denominator or by a scale of V"
    yield Denominator("factor", numbers=factor), said_of_out
    yield from _powers(scores, total, told, (0,), OF_ROW[:2], "")
    if sinks is not None:
        for text, x, kind in (
            ("e^sink", of_zero, "sink"),
            ("e^sink, and does not subtract the maximum", more, "sink below no maximum"),
        ):
            c = middle(x)
            if (c > 0).all():
                for slope in _of_sinks(c, sinks, target.case.scale):
                    times = float(np.exp(np.median(np.log(c) - slope * sinks)))
                    times = float(round(times)) if abs(times - round(times)) < 0.02 * times and round(times) else times
                    said = f"{times:.4g} times e^({slope:.4g} sink)" if slope != 1 else f"{times:.4g} times e^sink"
                    text_ = f"the denominator adds {said}, not {text}"
                    yield Denominator(kind, numbers=np.array([times, slope])), text_
        yield (
            Denominator("sink unshifted"),
            "the denominator adds e^sink, not e^(sink - maximum); its maximum includes the sink",
        )
        yield from _sinks_of_heads(middle(of_zero), sinks)
        ratio = float(np.nanmedian(more / sinks))
        yield (
            Denominator("sink itself", numbers=ratio),
            f"the denominator adds {ratio:.4g} times the sink, not e^sink",
        )
    for x, kind, sum_, why in (
        (more, "plus", "the sum of e^(s - max)", ""),
        (of_zero, "phantom", "the sum of e^s", ", as if there were extra keys with score 0"),
    ):
        c = middle(x)
        # a whole number of keys, but no epsilon
        near_c = np.where((abs(c) > 0.5) & (abs(c - np.round(c)) < 0.02 * abs(c)), np.round(c), c)
        yield Denominator(kind, numbers=near_c), f"the denominator is {sum_} plus {_numbers(near_c)}{why}"
        if sinks is not None:
            with np.errstate(all="ignore"):
                beyond = middle(x - np.exp(sinks - top) * (np.exp(top) if kind == "phantom" else 1.0))
            yield (
                Denominator(kind, numbers=beyond, sinks=True),
                f"the denominator is {sum_} plus the sink plus {_numbers(beyond)}{why}",
            )
    with np.errstate(all="ignore"):
        of_row = np.nanmedian(of_zero, (0, 1))
        slots = np.where(np.isfinite(of_row), np.round(of_row), 0.0)
    if slots.any() and np.ptp(slots) and (slots >= 0).all():
        said = f"{slots.min():.0f} to {slots.max():.0f} extra keys of score 0, a different number in each row"
        yield Denominator("phantom", numbers=slots, sinks=sinks is not None), f"the denominator counts {said}"
    yield from _of_constant(target, told, top)
    for shift in (1, -1, 8, -8, 16, -16, 32):
        where = apart_in_words(-shift, "row")
        yield Denominator("row", numbers=float(shift)), f"the denominator is that of {where}"
        yield Denominator("row and own", numbers=float(shift)), f"the denominator includes that of {where}"
    rows_ = scores.shape[2]
    for bit in (1, 2, 4, 8, 16, 32):
        if rows_ % (2 * bit) == 0:
            yield Denominator("row and", numbers=float(bit)), f"the denominator is that of row i ^ {bit}"
            yield Denominator("both rows", numbers=float(bit)), f"the denominator includes that of row i ^ {bit}"
    for shift in range(1, scores.shape[1]):
        yield Denominator("head", numbers=float(shift)), f"the denominator is that of {apart_in_words(-shift, 'head')}"
    yield from _of_tiles(target, scores, plain, used, rows, more, top)


def _sinks_of_heads(of_zero: np.ndarray, sinks: np.ndarray) -> Iterator[tuple[Denominator, str]]:
    """Sinks of other heads, as powers of e or of another base."""
    with np.errstate(all="ignore"):
        c = np.log(of_zero).mean(0).reshape(-1)
    if len(c) != sinks.size or not np.isfinite(c).all():
        return
    for slope, base in ((1.0, ""), (float(np.log(2)), " in base 2"), (float(1 / np.log(2)), " times log2(e)")):
        nearest = abs(c[:, None] - slope * sinks.reshape(-1)[None]).argmin(1)
        said = ", ".join(f"head {i} uses that of head {j}" for i, j in enumerate(nearest) if i != j)
        numbers = np.stack([nearest, np.full(len(c), slope)])
        yield Denominator("sink of heads", numbers=numbers), f"heads use the wrong sinks{base}: {said}"


def _powers(
    scores: np.ndarray, total: np.ndarray, told: np.ndarray, edges: tuple[int, ...], names: Sequence[str], said: str
) -> Iterator[tuple[Denominator, str]]:
    """Factors of the sum that are powers of a number of the row."""
    with np.errstate(all="ignore"):
        y = np.log(told / total)
    for name in names:
        with np.errstate(all="ignore"):
            x = of_row(name, scores, total, edges)
        known = np.isfinite(x) & np.isfinite(y)
        if known.sum() < 8 or np.ptp(x[known]) < 1e-6:
            continue
        slope, shift = np.polyfit(x[known], y[known], 1)
        near = round(float(slope) * 16) / 16
        slope = near if abs(near - slope) < 1e-3 else float(slope)
        shift = float(np.median(y[known] - slope * x[known]))
        shift = 0.0 if abs(shift) < 1e-3 else shift
        times = "" if shift == 0 else f"{np.exp(shift):.5g} times "
        yield (
            Denominator("power", edges, ((name, slope),), numbers=shift),
            f"the denominator is multiplied by {times}e^({slope:.5g} times {name}){said}",
        )


def _of_constant(target: Target, told: np.ndarray, top: np.ndarray) -> Iterator[tuple[Denominator, str]]:
    """Rows that are divided by the same number, as of an lse that another row's stands over."""
    with np.errstate(all="ignore"):
        lse = np.log(told) + top
        flat = np.sort(lse[np.isfinite(lse)])
        if flat.size < 16:
            return
    # weights of 16 bits tell a sum to their last bit
    eps = float(ml_dtypes.finfo(DTYPES[target.case.dtype]).eps) + 1e-6
    near = np.searchsorted(flat, flat + eps) - np.searchsorted(flat, flat - eps)
    number = float(np.median(flat[abs(flat - flat[near.argmax()]) <= eps]))
    same = np.isfinite(lse) & (abs(lse - number) <= eps)
    by_chance = flat.size * 2 * eps / max(float(np.quantile(flat, 0.95) - np.quantile(flat, 0.05)), 1e-9)
    if not 0.02 < same.mean() < 0.98 or same.sum() < 8 + 4 * by_chance:
        return
    count = np.exp(number)
    said = f" (the log of {count:.0f})" if abs(count - round(count)) < 0.01 * count else ""
    number = float(np.log(round(count))) if said else number
    text = f"{of_axes(same, ROW_AXES)} are divided as if their lse were {number:.5g}{said}"
    yield Denominator("lse", numbers=np.where(same, number, np.nan)), text


def _of_sinks(c: np.ndarray, sinks: np.ndarray, scale: float) -> list[float]:
    """Factors of the logit of a sink that mean something, and the nearest one."""
    found = [1.0, np.log(2), 1 / np.log(2), scale]
    if c.size > 1 and np.ptp(sinks) > 1e-6:
        slope, _ = np.polyfit(np.broadcast_to(sinks, c.shape).reshape(-1), np.log(c).reshape(-1), 1)
        found.append(float(slope))
    return found


def _of_tiles(
    target: Target,
    scores: np.ndarray,
    plain: np.ndarray,
    used: np.ndarray,
    rows: np.ndarray,
    more: np.ndarray,
    top: np.ndarray,
) -> Iterator[tuple[Denominator, str]]:
    keys = scores.shape[-1]
    flat = np.flatnonzero(rows)
    if not flat.size:
        return
    of_used = used.reshape(-1)[flat]
    for size in sizes(target):
        edges = tiles_of(size, keys)
        said = f" (tiles of {size} keys)"
        yield (
            Denominator("own maxima", edges),
            "the denominator adds tile sums without rescaling them to one maximum" + said,
        )
        most, sums = by_tile(scores, edges)
        with np.errstate(all="ignore"):
            largest = float(np.nanmedian((used / np.exp((most + np.log(sums)).max(-1) - top))[rows]))
        largest = largest if np.isfinite(largest) else 1.0
        near = round(largest) if abs(largest - round(largest)) < 0.01 * abs(largest) else largest
        yield (
            Denominator("largest lse", edges, numbers=float(near)),
            f"the denominator is {near:.4g} times e^(the largest lse of a tile)" + said,
        )
        yield from _powers(scores, plain.sum(-1), np.where(rows, used, np.nan), edges, OF_ROW[2:], said)
        for t in range(min(len(edges), 4)):
            with np.errstate(all="ignore"):
                c = float(np.nanmedian((more * np.exp(top - most[..., t]))[rows]))
            if not np.isfinite(c):
                continue
            c = float(round(c)) if abs(c - round(c)) < 0.02 * max(abs(c), 1) else c
            yield (
                Denominator("phantom of a tile", edges, numbers=np.array([c, t])),
                f"the denominator has an extra {c:.4g} times e^(the maximum of tile {t})" + said,
            )
        for name, slope in _stepped(scores, edges, used, rows):
            yield (
                Denominator("steps", edges, ((name, slope),)),
                f"tile sums are multiplied by e^({slope_in_words(slope)}{name})" + said,
            )
        by = np.add.reduceat(plain, edges, axis=-1).reshape(-1, len(edges))[flat]
        counts, *_ = np.linalg.lstsq(by / of_used[:, None], np.ones(len(flat)), rcond=None)
        close = np.where(abs(counts - np.round(counts)) < 0.02, np.round(counts) + 0.0, counts)
        if _counts(close):
            yield Denominator("tiles", edges, numbers=close), f"the denominator counts {_counted(close)}{said}"
        with np.errstate(all="ignore"):
            both = np.column_stack([by, np.exp(-top).reshape(-1)[flat]]) / of_used[:, None]
        if np.isfinite(both).all():
            counts, *_ = np.linalg.lstsq(both, np.ones(len(flat)), rcond=None)
            whole = np.asarray(np.round(counts)) + 0.0
            are_whole = np.all(abs(counts - whole) < 0.02 * np.maximum(abs(whole), 1))
            if are_whole and whole[-1] > 0 and _counts(whole[:-1]):
                yield (
                    Denominator("tiles and score 0", edges, numbers=whole),
                    f"the denominator counts {_counted(whole[:-1])} and {whole[-1]:.0f} extra keys of score 0{said}",
                )
    if len(flat) > 1.5 * keys:
        weights, *_ = np.linalg.lstsq(plain.reshape(-1, keys)[flat] / of_used[:, None], np.ones(len(flat)), rcond=None)
        close = np.where(abs(weights - np.round(weights)) < 0.05, np.round(weights), weights)
        values = [f"keys {spans(np.flatnonzero(close == x))} {x:g} times" for x in np.unique(close)[:4] if x != 1]
        if _counts(close):
            yield Denominator("keys", numbers=close), "the denominator counts " + ", ".join(values)


def _stepped(scores: np.ndarray, edges: tuple[int, ...], used: np.ndarray, rows: np.ndarray) -> list[tuple[str, float]]:
    """Numbers of tiles and slopes with which their sums are nearest to what was used, a few."""
    most, sums = by_tile(scores, edges)
    with np.errstate(all="ignore"):
        own = np.where(sums > 0, sums * np.exp(most - most.max(-1, keepdims=True)), 0.0)[rows]
        found = []
        for name, x in known(scores, edges).items():
            if name.startswith("tile "):
                continue
            number = np.nan_to_num(x)[rows]
            for slope in (1.0, -1.0):
                off = abs((own * np.exp(slope * number)).sum(-1) / used[rows] - 1)
                found.append((float(np.quantile(np.nan_to_num(off, nan=np.inf, posinf=1e9), 0.98)), name, slope))
    least = min((off for off, *_ in found), default=0.0)
    return [(name, slope) for off, name, slope in found if off <= 1.5 * least + 1e-9][:4]


def _counted(times: np.ndarray) -> str:
    """How often sums of tiles are counted, in words."""
    if set(np.unique(times)) <= {0.0, 1.0}:
        return f"only tiles {spans(np.flatnonzero(times))}"
    return "the tiles with factors " + ", ".join(f"{x:.3g}" for x in times[:8])


def _counts(of: np.ndarray) -> bool:
    """Whether all are whole numbers of times that something may be counted: others fit by chance."""
    return bool(np.all(of == np.round(of)) and np.all((of >= 0) & (of <= MOST_TIMES)))


def _numbers(x: np.ndarray) -> str:
    some = np.unique(np.round(x[np.isfinite(x)], 6))
    return f"{some[0]:.6g}" if len(some) == 1 else ", ".join(f"{one:.5g}" for one in x.reshape(-1)[:6])


def flushed(target: Target, model: Model, read: np.ndarray, allowed: np.ndarray) -> tuple[Model, list[Finding]]:
    """Weights of the user's own q and k that are 0 where their score is far below the row's maximum."""
    scores, top, _ = model.exponentials(target.natural)
    made = model.of_run(target.natural)
    with np.errstate(all="ignore"):
        low = scores - top[..., None]
    seen = (made > 8 * allowed) & np.isfinite(read) & np.isfinite(low)
    zero = seen & (read < made / 64)
    kept = seen & ~zero
    if zero.sum() < 4 or not kept.any() or low[zero].max() > low[kept].min() + 0.05:
        return model, []
    edge = float(low[zero].max() + low[kept].min()) / 2
    text = f"weights are 0 where the score is more than {-edge:.4g} below the row maximum"
    return model.but(flush=edge), [Finding("flushed", "probs", text, int(zero.sum()), zero.size, {"edge": edge})]


def mixed(target: Target, model: Model, read: np.ndarray, allowed: np.ndarray) -> tuple[Model, list[Finding]]:
    """Rows that are made of the weighted values of several rows, as where an accumulator is not cleared."""
    scores, top, plain = model.exponentials(target.natural)
    if not np.isfinite(top).all() or not np.isfinite(read).all() or model.kept is not None:
        return model, []
    total = plain.sum(-1, keepdims=True)
    sinks = target.natural.sinks
    if sinks is not None:
        total = total + np.exp(sinks - top)[..., None]
    mine = plain if model.step is None else plain * np.exp(model.step.of(scores))
    whole = lambda x: np.moveaxis(x, 2, 0).reshape(x.shape[2], -1)  # noqa: E731
    a, y = whole(mine), whole(read * total)
    if a.shape[1] < a.shape[0] or np.linalg.cond(a @ a.T) > 1e12:
        return model, []
    matrix = np.linalg.lstsq(a.T, y.T, rcond=None)[0].T
    near = np.where(abs(matrix - np.round(matrix)) < 0.02, np.round(matrix), matrix)
    off = near - np.eye(len(near))
    used = abs(off) > 0.02
    if not used.any() or used.sum() > 0.25 * used.size:
        return model, []
    if np.linalg.norm(near @ a - y) > 0.05 * np.linalg.norm(a - y):
        return model, []  # as many numbers fit anything a little better
    i, j = np.nonzero(used & (near != 0))
    pairs = ", ".join(
        f"row {x} includes {near[x, y_]:.4g} times row {y_}" for x, y_ in list(zip(i, j, strict=True))[:4]
    )
    text = f"rows are mixed before normalisation: {pairs}" + (", ..." if len(i) > 4 else "")
    return model.but(mixed=near), [Finding("mixed", "acc", text, int(used.sum()), used.size, {"matrix": near})]
