"""How often each dim of q.k counts in the scores of the user's own run."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from workbench.readings.finding import Finding, spans
from workbench.readings.model import Model
from workbench.readings.of_scores import logs
from workbench.readings.target import Target

#: how far the factor of a dim may be from that of another that is the same, and how far from 1 it counts
SAME, NOTABLE = 0.01, 0.02
#: share of what factors of 1 leave that others may leave
LEFT = 0.01
#: splits of the keys, whose merge may be wrong, too
SPLITS = (2, 4, 3, 8)
#: different factors, at most
MOST = 4
#: rows of which factors are fitted, at most
ROWS = 256


@dataclass(frozen=True, eq=False)
class OfDims:
    """Factors of the dims of K."""

    factors: np.ndarray

    def __call__(self, memory: Mapping[str, np.ndarray], step: int = 1) -> np.ndarray:
        """As of `scales.Rescaled`."""
        return self.factors[::step]


def of_dims(target: Target, model: Model, read: np.ndarray, allowed: np.ndarray) -> tuple[Model, list[Finding]]:
    """Factors of dims of which ln P is linear in the products, but for a number a row; a few different ones."""
    memory = model.memory(target.natural)
    q, k = (model.read(name, memory[name]) for name in model.operands)
    y = logs(read, allowed) - np.where(np.isfinite(model.start), model.start, np.nan)
    if model.fixed is not None:
        y = np.where(model.fixed, np.nan, y)
    rows = np.argwhere(np.isfinite(y).sum(-1) >= 4)
    if len(rows) > ROWS:
        rows = rows[np.sort(np.random.default_rng(3).permutation(len(rows))[:ROWS])]
    keys = y.shape[-1]
    # a merge may be wrong, too: a number a row and split
    for size in (keys, *(-(-keys // n) for n in SPLITS)):
        factors, left = _fitted(q * model.scale, k, y, rows, size)
        if left <= LEFT:
            break
    rounded = _grouped(factors)
    if left > LEFT or rounded is None or np.ptp(rounded) == 0:
        return model, []
    numbers = [x for x in np.unique(rounded) if abs(x - 1) > NOTABLE]
    said = "; ".join(f"dims {spans(np.flatnonzero(rounded == x))} of q.k are multiplied by {x:.5g}" for x in numbers)
    wrong = target.identity.wrong
    found = Finding("dims", "scores", said, int(wrong.sum()), wrong.size, {"factors": rounded})
    return model.but(rescaled={**model.rescaled, "k": OfDims(rounded)}), [found]


def _fitted(q: np.ndarray, k: np.ndarray, y: np.ndarray, rows: np.ndarray, size: int) -> tuple[np.ndarray, float]:
    """Factors of dims by least squares, but for a number for each of the `rows` [(b, h, q)] and tile of `size` keys;
    and the share that they leave of what factors of 1 do.
    """
    dims = q.shape[-1]
    gram, to, whole, count = np.zeros((dims, dims)), np.zeros(dims), 0.0, 0
    for b, h, i in rows:
        for first in range(0, y.shape[-1], size):
            seen = first + np.flatnonzero(np.isfinite(y[b, h, i, first : first + size]))
            if len(seen) < 2:
                continue
            x, z = k[b, h, seen] * q[b, h, i], y[b, h, i, seen]
            x, z = x - x.mean(0), z - z.mean()
            gram += x.T @ x
            to += x.T @ z
            whole += float(z @ z)
            count += len(seen) - 1
    if count < 4 * dims or whole == 0 or not 0 < np.trace(gram) < np.inf:
        return np.ones(dims), np.inf
    gram[np.diag_indices(dims)] += 1e-9 * np.trace(gram) / dims
    factors = np.linalg.solve(gram, to)
    alike = max(whole - 2 * float(to.sum()) + float(gram.sum()), 1e-300)
    return factors, max(whole - float(factors @ to), 0.0) / alike


def _grouped(factors: np.ndarray) -> np.ndarray | None:
    """Those that are the same as one number, 1 and 0 where they are near; None for more than MOST different ones."""
    found = np.full(len(factors), np.nan)
    for _ in range(MOST):
        left = np.isnan(found)
        if not left.any():
            break
        near = abs(factors[left][:, None] - factors[left]) <= SAME * np.maximum(abs(factors[left]), 1.0)
        middle = float(np.median(factors[left][near[near.sum(1).argmax()]]))
        middle = round(middle) if abs(middle - round(middle)) < SAME else middle
        found[left & (abs(factors - middle) <= 2 * SAME * max(abs(middle), 1.0))] = middle
    return None if np.isnan(found).any() else found
