"""Biases that are linear in a distance (ALiBi): what is read at q = 0 as slopes and distances."""

from collections.abc import Iterator, Sequence

import numpy as np

from workbench.readings.finding import Finding
from workbench.readings.model import Model
from workbench.readings.of_scores import REACH
from workbench.readings.steps import sizes
from workbench.readings.target import Target

#: share of the sum of squares of a bias that a formula may leave
LEFT = 1e-3
#: how near a ratio of slopes must be to what it is said to be
NEAR = 0.01


def linear(target: Target, plain: Model, read: Model, found: Finding) -> tuple[Model, list[Finding]]:
    """The bias that was read as a slope of each head times a distance; nothing where the right one is no such bias."""
    mask = found.data["mask"]
    rows, keys = mask.shape[2:]
    i, j = np.arange(rows)[:, None], np.arange(keys)
    right = abs(i + keys - rows - j)
    expected, left = _slopes(plain.start, right, np.isfinite(plain.start))
    if left > LEFT or not expected.all():
        return plain, []
    # of the least weights nothing is read
    seen = np.isfinite(read.start) & np.isfinite(plain.start)
    seen &= read.start > read.start.max(-1, keepdims=True) - REACH[target.case.dtype]
    ways = _distances(i, j, sizes(target))
    fits = [(*_slopes(read.start, distance, seen), said, distance) for said, distance in ways]
    least = min(left for _, left, *_ in fits)
    if least > LEFT:
        return plain, []
    slopes, _, said, distance = next(one for one in fits if one[1] <= 2 * least + 1e-6)
    ratio = slopes / expected
    parts = [said] if said else []
    same = float(np.median(ratio))
    if np.all(abs(ratio - same) < NEAR * abs(same)):
        if abs(same - 1) > NEAR:
            scaled = ", which is the scale" if abs(same / target.case.scale - 1) < NEAR else ""
            parts.append(f"slopes are multiplied by {same:.4g}{scaled}")
    else:
        parts.append("slopes are " + ", ".join(f"{x:.4g}" for x in slopes[0][:6]))
    if not parts:
        return plain, []
    # keys that weigh nothing may be far off alone
    visible = np.isfinite(mask) | np.isfinite(plain.start)
    table = np.where(visible, slopes[..., None, None] * distance, -np.inf)
    text = "the ALiBi bias is wrong: " + " and ".join(parts)
    data = {"table": table, "masks": False, "mask": mask, "said of mask": found.data["said of mask"], "slopes": slopes}
    return plain.but(start=table, fixed=None), [Finding("start", "scores", text, found.wrong, found.of, data)]


def _distances(i: np.ndarray, j: np.ndarray, tiles: Sequence[int]) -> Iterator[tuple[str, np.ndarray]]:
    """Distances that biases take, in words; the first is the right one."""
    offset = j.size - i.size
    yield "", abs(i + offset - j)
    if offset:
        yield "the distance is |i - j|, without the offset seqlen_k - seqlen_q", abs(i - j)
    yield "the distance is j - i, with its sign", j - i - offset
    for size in tiles:
        where = f"within its tile of {size}"
        yield f"the distance uses the key's index {where}", abs(i + offset - j % size)
        yield f"the distance uses the query's index {where}", abs(i % size + offset - j)


def _slopes(table: np.ndarray, distance: np.ndarray, seen: np.ndarray) -> tuple[np.ndarray, float]:
    """Slopes of each head [b, h], by least squares but for a constant of each row, and the share that they leave."""
    count = np.maximum(seen.sum(-1, keepdims=True), 1)

    def centred(x: np.ndarray) -> np.ndarray:
        kept = np.where(seen, x, 0.0)
        return np.where(seen, kept - kept.sum(-1, keepdims=True) / count, 0.0)

    y, x = centred(table), centred(np.broadcast_to(distance.astype(float), table.shape))
    slopes = (x * y).sum((2, 3)) / np.maximum((x * x).sum((2, 3)), 1e-30)
    rest = y - slopes[..., None, None] * x
    whole = float((y * y).sum())
    return slopes, float((rest * rest).sum()) / whole if whole else np.inf
