"""A ragged batch, and what functions return of sequences that they take one by one."""

from collections.abc import Callable
from typing import Any

import numpy as np

from workbench import Case, diff, run

RIGHT = ("rounding", "exact")
RAGGED = Case(seqlens_q=(9, 0, 4), seqlens_k=(6, 3, 12), heads=2, kv_heads=1, head_dim=16, causal=True)


def verdict(function: Callable[..., Any], case: Case, **options: Any) -> str:
    judged = diff(run(function, case, **options))
    assert len(list(judged)) > 0
    return judged.verdict


def joined(found: list[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    """Of sequences packed: out [n, h, d] and lse [h, n]."""
    return np.concatenate([out for out, _ in found]), np.concatenate([lse for _, lse in found], axis=1)


def stacked(found: list[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    """Of sequences of one length: out [b, h, s, d] and lse [b, h, s]."""
    return np.stack([np.moveaxis(out, 0, 1) for out, _ in found]), np.stack([lse for _, lse in found])


def rows(x: np.ndarray) -> np.ndarray:
    """[s, h, d] of [h, s, d]."""
    return np.moveaxis(x, 0, 1)
