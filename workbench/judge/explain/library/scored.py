"""Scores before anything is added to them and masked, and what is added."""

from typing import Any

import numpy as np

from workbench.judge.explain.hypothesis import Unfit


def asked(at: Any, name: str) -> np.ndarray:
    """What a run has beside q, k and v (`surroundings`); Unfit where it has no such thing."""
    if name not in at.p.inputs:
        raise Unfit
    found: np.ndarray = at.p.inputs[name]
    return found


def unbiased(at: Any) -> np.ndarray:
    """Scaled scores as capped and modified, before anything is added and masked; at the tile where there is one."""
    for name in ("modified", "capped"):
        if name in at.table:
            made: np.ndarray = at(name)
            return made
    scaled: np.ndarray = at("qk") * at("scale")
    return scaled


def added(at: Any) -> np.ndarray:
    """What is added to them, [b, h, q, k], at the tile where there is one; 0 where nothing is."""
    bias = at.p.attn_bias
    if bias is None:
        return np.zeros(())
    some: np.ndarray = bias if at.tile is None else bias[..., at.tiling.keys[at.tile[0]]]
    return some
