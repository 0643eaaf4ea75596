"""Random numbers of one seed, in the library and on the device of the values."""

import sys
from collections.abc import Hashable
from typing import Any

import numpy as np


class Draws:
    """Uniform in [-1, 1), float64, one after another."""

    def __init__(self, like: Any, seed: int) -> None:
        self._shared: dict[Hashable, Any] = {}
        self._torch: Any = None
        if like is not None and not isinstance(like, np.ndarray):
            self._torch = sys.modules["torch"]
            self._device = like.device
            self._generator: Any = self._torch.Generator(like.device)
            self._generator.manual_seed(seed)
        else:
            self._generator = np.random.Generator(np.random.SFC64(seed))

    def uniform(self, shape: tuple[int, ...]) -> Any:
        """So many new ones."""
        if self._torch is not None:
            made = self._torch.empty(shape, dtype=self._torch.float64, device=self._device)
            return made.uniform_(-1.0, 1.0, generator=self._generator)
        drawn = self._generator.random(shape)
        drawn *= 2.0
        drawn -= 1.0
        return drawn

    def shared(self, key: Hashable, shape: tuple[int, ...]) -> Any:
        """Those of a key: the same again, until `forget`."""
        if key not in self._shared:
            self._shared[key] = self.uniform((shape[0],))
        return self._shared[key].reshape(shape)

    def forget(self) -> None:
        """New ones for every key from here on: another run."""
        self._shared.clear()
