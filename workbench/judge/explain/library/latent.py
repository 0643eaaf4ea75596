"""Values of another width than keys, and values that are a part of the keys (absorbed MLA: DeepSeek-AI, DeepSeek-V2,
2024, section 2.1.2).
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from workbench.judge.explain.hypothesis import Hypothesis, altered, of_family
from workbench.reference.steps.parameters import by_query_head

#: rows [..., n, d] of a cache and the width of v -> rows [..., n, width]
Values = Callable[[np.ndarray, int], np.ndarray]
_of = of_family("latent")


def hypotheses() -> Iterator[Hypothesis]:
    """All of the family, the plainest first."""
    for name, text, kept in (
        ("dot-of-v-width", "the dot products use only the first head_dim_v dims", lambda d, v: d < v),
        ("dot-without-v-width", "the dot products use only the dims past head_dim_v", lambda d, v: d >= v),
    ):
        cut = lambda at, x, kept=kept: np.where(kept(np.arange(x.shape[-1]), _width(at)), x, 0.0)  # noqa: E731
        yield _of(name, text, altered("k_rows", cut))
    for name, text, dim in (
        ("of-v", "head_dim_v", _width),
        ("of-rest", "head_dim - head_dim_v", lambda at: abs(at.p.inputs["k"].shape[-1] - _width(at))),
        ("of-sum", "head_dim + head_dim_v", lambda at: at.p.inputs["k"].shape[-1] + _width(at)),
        ("of-192", "192", lambda at: 192),
    ):
        edit = altered("scale", lambda at, s, dim=dim: dim(at) ** -0.5)
        yield _of(f"scale-{name}", f"the scale is 1/sqrt({text})", edit)
    for name, text, values in _values():
        yield _of(name, text, altered("v_rows", lambda at, rows, values=values: _read(at, rows, values)))


def _width(at: Any) -> int:
    return int(at.p.inputs["v"].shape[-1])


def _read(at: Any, rows: np.ndarray, values: Values) -> np.ndarray:
    keys, width = at.p.inputs["k"], _width(at)
    return rows if keys.shape[-1] < width else by_query_head(values(keys, width), at.heads)


def _values() -> Iterator[tuple[str, str, Values]]:
    yield "v-last", "v is the last head_dim_v dims of k", lambda k, n: k[..., k.shape[-1] - n :]
    yield "v-first", "v is the first head_dim_v dims of k", lambda k, n: k[..., :n]
    for start in (8, 16, 32, 64):
        words = f"v is read from dim {start} of k on, past its end into the next key"
        yield f"v-from-{start}", words, lambda k, n, s=start: _strided(k, k.shape[-1], s, n)
    yield "v-pitch", "rows of v are read from k with a pitch of head_dim_v", lambda k, n: _strided(k, n, 0, n)


def _strided(k: np.ndarray, pitch: int, start: int, width: int) -> np.ndarray:
    """Rows read from each head's memory at i * pitch + start; zeros beyond its end."""
    n = k.shape[-2]
    flat = np.concatenate([k.reshape(*k.shape[:-2], -1), np.zeros((*k.shape[:-2], start + width))], -1)
    found: np.ndarray = flat[..., np.arange(n)[:, None] * pitch + start + np.arange(width)]
    return found
