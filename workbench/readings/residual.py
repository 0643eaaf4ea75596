"""The stage that ln(P / expected) points at, where no reading tells what it is."""

from collections.abc import Sequence

import numpy as np

from workbench.readings.finding import spans
from workbench.readings.of_scores import logs
from workbench.readings.sets import ROW_AXES, of_axes
from workbench.readings.steps import cuts
from workbench.readings.target import Target

#: share of the wrong weights that a pattern has to hold of
ENOUGH = 0.98
#: elements, at least, of which it can be said that they are off alike
ALIKE = 4
#: share of the keys, at most, that are a few
FEW = 0.25

#: a stage, the pattern in words, and where tiles of keys begin
Told = tuple[str, str, tuple[int, ...]]


@np.errstate(all="ignore")
def residual(target: Target, read: np.ndarray, expected: np.ndarray, allowed: np.ndarray) -> Told:
    """Of weights `read` [b, h, q, k], some of which are farther off than is `allowed`."""
    beyond = ~(abs(read - expected) <= allowed)
    lost = ~np.isfinite(read).all(-1) | ~(read != 0).any(-1)
    odd = beyond & ~lost[..., None]
    if not odd.any():
        return "out", f"all weights are 0 or non-finite in {of_axes(lost & beyond.any(-1), ROW_AXES)}", ()
    ratio = logs(read, allowed) - logs(expected, allowed)
    seen = np.isfinite(ratio)

    def are(times: np.ndarray) -> np.ndarray:
        """Which weights are so many times those that are expected, [b, h, q, k]."""
        near: np.ndarray = abs(read - expected * times) <= 2 * allowed * (1 + times)
        return near

    def so(times: np.ndarray) -> bool:
        return bool((odd & are(times)).sum() >= ENOUGH * odd.sum())

    of_row = _middle(ratio, -1)
    if so(np.exp(of_row)):
        return (
            "row_sum",
            "P is off by one factor per row: suspect the row sum or a factor of out",
            (),
        )
    for edges in cuts(target, ratio, seen):
        if so(_of_tiles(read, expected, allowed, edges)):
            first = ", ".join(map(str, edges[:6])) + (", ..." if len(edges) > 6 else "")
            return (
                "correction",
                f"P is off by one factor per row and tile: suspect the rescaling (tiles begin at keys {first})",
                edges,
            )
    keys = np.flatnonzero((odd & ~are(np.exp(of_row))).any((0, 1, 2)))
    if len(keys) <= FEW * read.shape[-1]:
        return (
            "scores",
            f"only keys {spans(keys)} get a wrong weight: suspect their rows of K, the mask or a bias",
            (),
        )
    if so(np.exp(of_row + _middle(ratio - of_row, 2))):
        return "scores", "P is off by one factor per key and one per row: suspect a bias", ()
    return "scores", "P is off by a different factor for each query and key", ()


def _middle(ratio: np.ndarray, axis: int) -> np.ndarray:
    """The median along an axis; NaN where fewer are seen than tell it."""
    enough = np.isfinite(ratio).sum(axis, keepdims=True) >= min(ALIKE, ratio.shape[axis])
    return np.where(enough, np.nanmedian(ratio, axis, keepdims=True), np.nan)


def _of_tiles(read: np.ndarray, expected: np.ndarray, allowed: np.ndarray, edges: Sequence[int]) -> np.ndarray:
    """How many times each row's tile is what is expected, at each key, by least squares: of some that are 0 too."""
    found = []
    for a, b in zip(edges, [*edges[1:], read.shape[-1]], strict=True):
        mine, right = read[..., a:b], expected[..., a:b]
        enough = (right > 8 * allowed[..., a:b]).sum(-1, keepdims=True) >= ALIKE
        times = (mine * right).sum(-1, keepdims=True) / (right * right).sum(-1, keepdims=True)
        found.append(np.repeat(np.where(enough, times, np.nan), b - a, -1))
    return np.concatenate(found, -1)
