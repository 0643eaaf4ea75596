"""A score_mod: of which scores, and how often (FlexAttention, Dong et al. 2024, arXiv 2412.05496)."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from workbench.judge.explain.hypothesis import Change, Hypothesis, altered, of_family
from workbench.judge.explain.library.scored import added, cap, masked, scaled, unmodified

_of = of_family("mods")


def hypotheses() -> Iterator[Hypothesis]:
    """All of the family, the plainest first."""
    forms: dict[str, tuple[str, Change]] = {
        "none": ("the score_mod is not applied", lambda at, x: unmodified(at)),
        "twice": ("the score_mod is applied twice", lambda at, x: at.p.score_mod(x)),
        "before-scale": ("the score_mod is applied before the scale", lambda at, x: _unscaled(at) * at("scale")),
        "unscaled": ("the score_mod is applied to unscaled dot products", lambda at, x: _unscaled(at)),
        "scaled-again": ("the output of the score_mod is scaled again", lambda at, x: x * at("scale")),
        "added": ("the output of the score_mod is added to the scores", lambda at, x: unmodified(at) + x),
        "before-cap": ("the softcap is applied after the score_mod, not before it", _before_cap),
    }
    for name, (text, change) in forms.items():
        yield _of(name, text, altered("modified", change, "qk", "scale"))
    masked: Change = lambda at, x: np.where(at("visible"), x, _of_masked(at))  # noqa: E731
    text = "the score_mod is applied after the mask, also to -inf"
    yield _of("after-mask", text, altered("scores", masked, "visible"))
    text = "the score_mod is applied after the bias is added"
    yield _of("after-bias", text, altered("scores", _after_bias, "visible"))


def _unscaled(at: Any) -> np.ndarray:
    found: np.ndarray = at.p.score_mod(at("qk"))
    return found


def _before_cap(at: Any, x: np.ndarray) -> np.ndarray:
    return cap(at, at.p.score_mod(scaled(at)))


def _of_masked(at: Any) -> np.ndarray:
    """What the score_mod makes of a masked score."""
    found: np.ndarray = at.p.score_mod(np.full(at("modified").shape, -np.inf)) + added(at)
    return found


def _after_bias(at: Any, x: np.ndarray) -> np.ndarray:
    return masked(at, at.p.score_mod(unmodified(at) + added(at)))
