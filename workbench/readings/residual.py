"""The stage that ln(P / expected) points at, where no reading tells what it is."""

from collections.abc import Sequence

import numpy as np

from workbench.readings.finding import spans
from workbench.readings.of_scores import logs
from workbench.readings.steps import cuts
from workbench.readings.target import Target

#: share of the wrong weights that a pattern has to hold of
ENOUGH = 0.98
#: seen keys of a row's tile, of which it can be said that they are off alike
ALIKE = 4
#: share of the keys, at most, that are a few
FEW = 0.25


@np.errstate(all="ignore")
def residual(target: Target, read: np.ndarray, expected: np.ndarray, allowed: np.ndarray) -> tuple[str, str]:
    """A stage and the pattern, in words: of wrong weights `read` [b, h, q, k], some of which are beyond `allowed`."""
    beyond = ~(abs(read - expected) <= allowed)
    lost = ~np.isfinite(read).all(-1) | ~(read != 0).any(-1)
    odd = beyond & ~lost[..., None]
    if not odd.any():
        return "out", f"weights are all 0 or not finite in rows {spans(np.nonzero(lost & beyond.any(-1))[2])}"
    made = np.where(expected > 8 * allowed, expected, np.nan)
    ratio = logs(read, allowed) - np.log(made)
    noise = 2 * allowed / np.minimum(made, read)
    seen = np.isfinite(ratio)

    def so(off: np.ndarray, among: np.ndarray) -> bool:
        """Whether nearly all wrong weights are among those that are seen and no farther off than their budgets."""
        return bool((odd & seen & among & (off <= noise)).sum() >= ENOUGH * odd.sum())

    centred = ratio - np.nanmedian(ratio, -1, keepdims=True)
    of_row = abs(centred)
    whole = seen.sum(-1, keepdims=True) >= ALIKE
    if so(of_row, whole):
        return "row_sum", "ln(P / expected) is constant in each row: what weights are divided by, or a factor of out"
    for edges in cuts(target, ratio, seen):
        off, enough = _within(ratio, seen, edges)
        if so(off, enough):
            first = ", ".join(map(str, edges[:6])) + (", ..." if len(edges) > 6 else "")
            return "correction", f"ln(P / expected) is constant in each row and tile; tiles begin at keys {first}"
    apart = odd & ~(seen & (of_row <= noise))
    keys = np.flatnonzero(apart.any((0, 1, 2)))
    if len(keys) <= FEW * read.shape[-1]:
        return "scores", f"keys {spans(keys)} alone weigh too much or too little: their rows of K, a mask, or a bias"
    of_key = abs(centred - np.nanmedian(centred, 2, keepdims=True))
    if so(of_key, seen.sum(2, keepdims=True) >= ALIKE):
        return "scores", "ln(P / expected) is one number a key, but for one a row: a bias"
    return "scores", "ln(P / expected) is another number for each query and key"


def _within(ratio: np.ndarray, seen: np.ndarray, edges: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """How far each is from the middle of its row's tile, and whether enough are seen there to tell."""
    off, enough = np.full(ratio.shape, np.inf), np.zeros(ratio.shape, bool)
    for first, last in zip(edges, [*edges[1:], ratio.shape[-1]], strict=True):
        part = ratio[..., first:last]
        off[..., first:last] = abs(part - np.nanmedian(part, -1, keepdims=True))
        enough[..., first:last] = seen[..., first:last].sum(-1, keepdims=True) >= ALIKE
    return off, enough
