"""Steps of ln(P / expected) along the keys: the edges of tiles or splits, and the known number that each step is."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from workbench.readings.finding import Finding
from workbench.readings.known import Step, known, tiles_of
from workbench.readings.model import Model
from workbench.readings.of_scores import logs
from workbench.readings.target import Target

#: tiles of keys that kernels have
SIZES = (16, 32, 64, 128, 8, 24, 48, 40, 80, 96, 12, 20, 56)
#: splits of them
SPLITS = (2, 3, 4, 5, 6, 7, 8, 16)
#: share of the sum of squares that a formula may leave
LEFT = 0.01
#: elements of which a formula is found, at most
MOST = 12_000
#: slopes that mean something, in words
SLOPES = {
    1.0: "", -1.0: "minus ", 2.0: "twice ", -2.0: "minus twice ", 0.5: "half ", -0.5: "minus half ",
    np.log(2) - 1: "(ln 2 - 1) times ", 1 / np.log(2) - 1: "(log2 e - 1) times ",
}  # fmt: skip


def steps(target: Target, model: Model, read: np.ndarray, allowed: np.ndarray) -> tuple[Model, list[Finding]]:
    """What ln(P / expected) of the user's own q and k does along the keys beyond what was read before."""
    scores = model.scores(model.memory(target.natural))
    made = model.of_run(target.natural)
    ratio = logs(read, allowed) - np.where(made > 0, np.log(np.where(made > 0, made, 1.0)), np.nan)
    seen = np.isfinite(ratio)
    centred = ratio - np.nanmedian(ratio, -1, keepdims=True)
    noise = np.where(made > 0, allowed / np.where(made > 0, made, 1.0), np.inf)
    wrong = seen & (abs(centred) > 4 * noise)
    if seen.sum() < 32 or wrong.sum() < 4:
        return model, []
    target.computes("steps")
    found: list[tuple[float, Step]] = []
    for edges in cuts(target, ratio, seen):
        for terms, left in _fits(scores, edges, ratio, seen):
            found.append((left, Step(tuple(edges), tuple((name, rounded(slope)) for name, slope in terms))))
        if found and min(found, key=lambda one: one[0])[0] < LEFT / 30:
            break
    best = min((left for left, _ in found), default=np.inf)
    if best > LEFT:
        return model, []
    known_rows = np.isfinite(read).all(-1)

    def off(one: Step) -> float:
        """Of what rows add to, too, which is no step along the keys."""
        return float(np.median(abs(read - model.but(step=one).of_run(target.natural)).sum(-1)[known_rows]))

    # those that fit as well: a number below its row's maximum is that number, but for what rows add to
    near = [one for left, one in found if left <= 3 * best + 1e-7]
    ways = [way for one in near[:8] for way in (one, replace(one, in_sum=False))]
    least = min(map(off, ways))
    step = next(one for one in ways if off(one) <= 1.5 * least + 1e-9)
    said = " and ".join(f"{slope_in_words(slope)}{name}" for name, slope in step.terms)
    first = ", ".join(map(str, step.edges[:6])) + (", ..." if len(step.edges) > 6 else "")
    of_sum = "" if step.in_sum else ", but the denominator is not"
    text = f"weights of each tile are multiplied by e^({said}){of_sum} (tiles begin at keys {first})"
    data = {"edges": step.edges, "terms": step.terms, "in_sum": step.in_sum, "left": best}
    return model.but(step=step), [Finding("steps", "correction", text, int(wrong.sum()), wrong.size, data)]


def rounded(slope: float) -> float:
    """The slope that means something, where one is near."""
    near = min(SLOPES, key=lambda x: abs(x - slope))
    return near if abs(near - slope) < 0.02 else slope


def slope_in_words(slope: float) -> str:
    """What stands before the name of what it is a slope of."""
    return SLOPES.get(slope, f"{slope:.4g} times ")


def cuts(target: Target, ratio: np.ndarray, seen: np.ndarray) -> Iterator[tuple[int, ...]]:
    """Where tiles may begin: where ln(P / expected) jumps in many rows, then sizes that kernels have."""
    keys = ratio.shape[-1]
    jump = abs(np.diff(ratio, axis=-1))
    both = seen[..., 1:] & seen[..., :-1]
    if both.any():
        floor = 6 * np.median(jump[both]) + 1e-7
        share = (both & (jump > floor)).sum((0, 1, 2)) / np.maximum(both.sum((0, 1, 2)), 1)
        at = np.flatnonzero(share > max(0.05, 4 * np.median(share))) + 1
        if 0 < len(at) <= max(1, keys // 8):
            yield (0, *map(int, at))
    for size in sizes(target):
        yield tiles_of(size, keys)


def sizes(target: Target) -> list[int]:
    """Keys of a tile or a split, those that are known first."""
    keys = target.case.seqlen_k
    told = [x for x in (target.case.block_k,) if x]
    return [size for size in dict.fromkeys((*told, *SIZES, *(-(-keys // n) for n in SPLITS))) if 1 < size < keys]


def _centred(x: np.ndarray, seen: np.ndarray) -> np.ndarray:
    """x without its mean over the keys of each row that are seen, 0 elsewhere."""
    count = np.maximum(seen.sum(-1, keepdims=True), 1)
    kept = np.where(seen, x, 0.0)
    return np.where(seen, kept - kept.sum(-1, keepdims=True) / count, 0.0)


def _fits(
    scores: np.ndarray, edges: Sequence[int], ratio: np.ndarray, seen: np.ndarray
) -> Iterator[tuple[tuple[tuple[str, float], ...], float]]:
    """Numbers of tiles, one and two at a time, of which ln(P / expected) may be made; with what they leave."""
    sizes = np.diff([*edges, scores.shape[-1]])
    numbers = known(scores, edges, elsewhere=True)
    rows = max(1, min(scores.shape[2], MOST // (scores.size // scores.shape[2])))
    some = np.sort(np.random.default_rng(2).permutation(scores.shape[2])[:rows])
    usable = seen[:, :, some]
    names, columns = [], []
    for name, x in numbers.items():
        wide = np.repeat(x[:, :, some], sizes, -1)
        column = _centred(np.nan_to_num(wide), usable)[usable]
        if column.size and np.ptp(column) > 1e-9:
            names.append(name)
            columns.append(column)
    y = _centred(np.nan_to_num(ratio[:, :, some]), usable)[usable]
    whole = float(y @ y)
    if not names or whole == 0:
        return
    matrix = np.stack(columns, 1)
    gram, with_y = matrix.T @ matrix, matrix.T @ y
    single = whole - with_y**2 / np.diag(gram)
    for i in np.argsort(single)[:3]:
        yield ((names[i], float(with_y[i] / gram[i, i])),), max(float(single[i]), 0.0) / whole
    # two at a time: 2 x 2 systems, all at once
    plain = [i for i, name in enumerate(names) if not name.startswith("tile ")]
    a, b = np.array([(i, j) for n, i in enumerate(plain) for j in plain[n + 1 :]] or [(0, 0)]).T
    det = gram[a, a] * gram[b, b] - gram[a, b] ** 2
    good = det > 1e-6 * gram[a, a] * gram[b, b]
    det = np.where(good, det, 1.0)
    first = (gram[b, b] * with_y[a] - gram[a, b] * with_y[b]) / det
    second = (gram[a, a] * with_y[b] - gram[a, b] * with_y[a]) / det
    left = np.where(good, whole - first * with_y[a] - second * with_y[b], np.inf)
    for n in np.argsort(left)[:3]:
        if np.isfinite(left[n]):
            share = max(float(left[n]), 0.0) / whole
            # that two numbers fit better than one is little news
            yield ((names[a[n]], float(first[n])), (names[b[n]], float(second[n]))), 1.5 * share + 1e-9
