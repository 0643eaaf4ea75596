from collections.abc import Callable
from functools import partial

import numpy as np
import pytest

from workbench.reference import dense, online, split_k

IMPLEMENTATIONS: dict[str, Callable[..., dict[str, np.ndarray]]] = {
    "dense": dense.attention,
    **{f"online, tiles of {n}": partial(online.forward, block_k=n) for n in (1, 2, 3, 16, 128)},
    **{
        f"split_k, tiles of {n}, {splits} splits": partial(split_k.forward, block_k=n, splits=splits)
        for n, splits in ((1, 1), (1, 2), (2, 3), (3, 7), (16, 2), (128, 4))
    },
}


@pytest.fixture(scope="session", params=IMPLEMENTATIONS.values(), ids=IMPLEMENTATIONS.keys())
def attention(request: pytest.FixtureRequest) -> Callable[..., dict[str, np.ndarray]]:
    """attention(q, k, v, *, scale, mask) -> {"out", "lse", ...}: every implementation in turn."""
    return request.param
