"""Scale and softcap: factors of the scores."""

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from workbench.floats import round_to
from workbench.judge.explain.hypothesis import Hypothesis, altered, of_family
from workbench.judge.explain.library.arithmetic import LN2, LOG2E
from workbench.judge.explain.library.scored import cap, scaled

_of = of_family("scale")


def hypotheses() -> Iterator[Hypothesis]:
    """All of the family, the plainest first."""
    for name, text, change in _scales():
        edit = altered("scale", lambda at, s, change=change: change(at, float(s)))
        yield _of(name, text, edit)
    yield from _caps()


def _dim(at: Any) -> int:
    return int(at.p.inputs["q"].shape[-1])


def _scales() -> Iterator[tuple[str, str, Callable[[Any, float], float]]]:
    yield "one", "the scale is not applied to the dot products", lambda at, s: 1.0
    yield "twice", "the scale is applied twice", lambda at, s: s * s
    yield "usual", "the scale is 1/sqrt(head_dim), not the requested one", lambda at, s: _dim(at) ** -0.5
    yield "root", "the square root of the scale is applied", lambda at, s: math.copysign(math.sqrt(abs(s)), s)
    yield "inverse", "the scores are divided by the scale", lambda at, s: 1 / s if s else s
    yield "times-usual", "the scale and 1/sqrt(head_dim) are both applied", lambda at, s: s * _dim(at) ** -0.5
    yield "of-dim", "the scale is 1/head_dim", lambda at, s: 1 / _dim(at)
    yield "root-of-dim", "the scores are multiplied by sqrt(head_dim)", lambda at, s: math.sqrt(_dim(at))
    yield "no-log2e", "exp2 is used without log2(e): scores are too small by a factor of ln 2", lambda at, s: s * LN2
    yield "log2e", "log2(e) is applied once too often: scores are too large by that factor", lambda at, s: s * LOG2E
    yield "negative", "the scale has the wrong sign", lambda at, s: -s
    yield "double", "the scale is doubled", lambda at, s: 2 * s
    yield "half", "the scale is halved", lambda at, s: s / 2
    yield "of-heads", "the scale is 1/sqrt(head_dim * heads)", lambda at, s: (_dim(at) * at.heads) ** -0.5
    for dtype in ("float16", "bfloat16"):
        for cut in (False, True):
            words = f"the scale is {'truncated' if cut else 'rounded'} to {dtype}"
            yield (
                f"{dtype}{'-cut' if cut else ''}",
                words,
                lambda at, s, d=dtype, z=cut: float(round_to(np.float64(s), d, toward_zero=z)),
            )
    for b in (16, 32, 64, 128, 256):
        words = f"the scale is 1/sqrt(head_dim rounded up to {b})"
        yield f"padded-{b}", words, lambda at, s, b=b: (-(-_dim(at) // b) * b) ** -0.5
    for n in (32, 64, 128, 256):
        yield f"of-{n}", f"the scale is 1/sqrt({n}), whatever head_dim is", lambda at, s, n=n: n**-0.5
    for value in (0.5, 0.125):
        yield f"constant-{value:g}", f"the scale is {value:g}, not the requested one", lambda at, s, v=value: v


def _caps() -> Iterator[Hypothesis]:
    """What may be wrong in cap * tanh(s / cap)."""
    forms: dict[str, tuple[str, Callable[[Any, Any], np.ndarray]]] = {
        "none": ("scores are not capped", lambda at, x: scaled(at)),
        "argument": (
            "capped scores are (s / cap) * tanh(s / cap)",
            lambda at, x: scaled(at) / at("cap") * np.tanh(scaled(at) / at("cap")),
        ),
        "no-product": ("capped scores are tanh(s / cap), not multiplied by cap", lambda at, x: x / at("cap")),
        "no-quotient": (
            "capped scores are cap * tanh(s), without dividing s by cap",
            lambda at, x: at("cap") * np.tanh(scaled(at)),
        ),
        "twice": ("scores are capped twice", cap),
        "before-scale": (
            "the softcap is applied before the scale",
            lambda at, x: at("scale") * at("cap") * np.tanh(at("qk") / at("cap")),
        ),
        "scale-after": ("capped scores are scaled again", lambda at, x: x * at("scale")),
        "base-2": (
            "the softcap is applied to base-2 scores: cap * tanh(s * log2(e) / cap)",
            lambda at, x: LN2 * at("cap") * np.tanh(scaled(at) * LOG2E / at("cap")),
        ),
        "clamped": (
            "scores are clamped at the cap instead of using tanh",
            lambda at, x: np.clip(scaled(at), -at("cap"), at("cap")),
        ),
    }
    for name, (text, change) in forms.items():
        edit = altered("capped", change, "qk", "scale", "cap")
        yield _of(f"cap-{name}", text, edit)
