from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from workbench.reference import dense
from workbench.reference.forward import PLAIN, forward


def tiled(algorithm: str, block_k: int, splits: int | None = None) -> Callable[..., dict[str, np.ndarray]]:
    """The stages of an algorithm in tiles of so many keys."""
    return partial(forward, algorithm, contract=replace(PLAIN, block_k=block_k, splits=splits))


IMPLEMENTATIONS: dict[str, Callable[..., dict[str, np.ndarray]]] = {
    "dense": dense.attention,
    **{f"flash, tiles of {n}": tiled("flash", n) for n in (1, 2, 3, 16, 128)},
    **{
        f"split_k, tiles of {n}, {splits} splits": tiled("split_k", n, splits)
        for n, splits in ((1, 1), (1, 2), (2, 3), (3, 7), (16, 2), (128, 4))
    },
}


@pytest.fixture(scope="session", params=IMPLEMENTATIONS.values(), ids=IMPLEMENTATIONS.keys())
def attention(request: pytest.FixtureRequest) -> Callable[..., dict[str, np.ndarray]]:
    """attention(q, k, v, *, scale, mask) -> {"out", "lse", ...}: every implementation in turn."""
    return request.param
