"""Scores on their way from the products of q and k: scaled, capped, modified, with what is added, and masked."""

from collections.abc import Callable
from typing import Any

import numpy as np

from workbench.case.case import in_window
from workbench.judge.explain.hypothesis import Change, Edit, Unfit, altered


def asked(at: Any, name: str) -> np.ndarray:
    """What a run has beside q, k and v (`surroundings`); Unfit where it has no such thing."""
    if name not in at.p.inputs:
        raise Unfit
    found: np.ndarray = at.p.inputs[name]
    return found


def scaled(at: Any) -> np.ndarray:
    """Products of q and k in units of scores; at the tile where there is one, as all of these are."""
    found: np.ndarray = at("qk") * at("scale")
    return found


def cap(at: Any, x: np.ndarray) -> np.ndarray:
    """x as scores are capped; as it is where they are not."""
    return np.asarray(at("cap") * np.tanh(x / at("cap"))) if "cap" in at.table else x


def unmodified(at: Any) -> np.ndarray:
    """Scaled scores as capped, which a score_mod takes."""
    return np.asarray(at("capped")) if "capped" in at.table else scaled(at)


def unbiased(at: Any) -> np.ndarray:
    """Scaled scores as capped and modified, before anything is added and masked."""
    return np.asarray(at("modified")) if "modified" in at.table else unmodified(at)


def added(at: Any) -> np.ndarray:
    """What is added to them, [b, h, q, k]; 0 where nothing is."""
    bias = at.p.attn_bias
    if bias is None:
        return np.zeros(())
    some: np.ndarray = bias if at.tile is None else bias[..., at.tiling.keys[at.tile[0]]]
    return some


def unmasked(at: Any) -> np.ndarray:
    """The scores before the mask."""
    return unbiased(at) + added(at)


def masked(at: Any, x: np.ndarray) -> np.ndarray:
    """x where keys are seen, elsewhere -inf."""
    return np.where(at("visible"), x, -np.inf)


def instead(own: Callable[[Any], np.ndarray], change: Change) -> Edit:
    """Scores with `change` of a part of what is added, its `own`, in its place; what that hides by -inf stays hidden
    where the change is.
    """

    def changed(at: Any, x: np.ndarray) -> np.ndarray:
        part = own(at)
        return masked(at, unbiased(at) + _beside(at, part) + change(at, part))

    return altered("scores", changed)


def before_cap(own: Callable[[Any], np.ndarray]) -> Edit:
    """Scores to which a part of what is added, its `own`, is added before they are capped."""

    def changed(at: Any, x: np.ndarray) -> np.ndarray:
        part = own(at)
        return masked(at, cap(at, scaled(at) + part) + _beside(at, part)) if "cap" in at.table else x

    return altered("scores", changed)


def _beside(at: Any, part: np.ndarray) -> np.ndarray:
    """What is added beside a part of it; 0 where that is infinite."""
    finite = np.isfinite(part)
    return np.where(finite, added(at) - np.where(finite, part, 0.0), 0.0)


def own_mask(at: Any, diagonals: np.ndarray | int | None = None, lengths_k: np.ndarray | None = None) -> np.ndarray:
    """Which keys are seen but for what was put in, bool [b, 1, q, k]: causal, in the window, and within the lengths;
    with other diagonals, [b, 1, 1, 1] or one for all, or other numbers of keys [b].
    """
    where = asked(at, "diagonals") if diagonals is None else diagonals
    rows, keys = asked(at, "queries")[:, None], np.arange(at.p.keys)
    ends = asked(at, "lengths_k") if lengths_k is None else lengths_k
    there = (rows < asked(at, "lengths_q")[:, None, None, None]) & (keys < ends[:, None, None, None])
    return in_window(keys, rows + where, *asked(at, "window").tolist()) & there


def with_mask_put_in(at: Any, seen: np.ndarray) -> np.ndarray:
    """Keys that are seen, but for those that a mask that was put in hides."""
    return seen & at.p.inputs["mask_put_in"] if "mask_put_in" in at.p.inputs else seen
