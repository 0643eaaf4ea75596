"""Random numbers of one seed, in the library and on the device of the values."""

import sys
from collections.abc import Hashable
from typing import Any

import numpy as np


class Draws:
    """Uniform numbers, float64, one after another."""

    def __init__(self, like: Any, seed: int) -> None:
        self._shared: dict[Hashable, np.ndarray] = {}
        self._few = np.random.Generator(np.random.SFC64(seed))
        self._torch: Any = None
        if like is not None and not isinstance(like, np.ndarray):
            self._torch = sys.modules["torch"]
            self._device = like.device
            self._many = self._torch.Generator(like.device)
            self._many.manual_seed(seed)

    def uniform(self, shape: tuple[int, ...], low: float = -1.0, high: float = 1.0) -> Any:
        """So many new ones from `low` to `high`."""
        if self._torch is not None:
            made = self._torch.empty(shape, dtype=self._torch.float64, device=self._device)
            return made.uniform_(low, high, generator=self._many)
        drawn = self._few.random(shape)
        drawn *= high - low
        drawn += low
        return drawn

    def shared(self, key: Hashable, rows: int) -> np.ndarray:
        """Those of a key, from -1 to 1, one a row: the same again, until `forget`. They are NumPy's on any device, so
        that nobody waits for one.
        """
        if key not in self._shared:
            self._shared[key] = self._few.uniform(-1.0, 1.0, rows)
        return self._shared[key]

    def forget(self) -> None:
        """New ones for every key from here on: another run."""
        self._shared.clear()
