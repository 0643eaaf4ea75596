"""Out-of-bounds reads past the last key: rows of the next head or batch."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from workbench.readings.parts import Parts, plain

#: keys of a step of a loop, or of a vector of lanes
STEPS = (16, 32, 64, 128, 8, 4, 48, 256)


@dataclass(frozen=True)
class Beyond:
    """Attention as it should be, but over `count` more keys."""

    count: int
    packed: bool = False  #: batches lie one after the other for each head, with nothing behind the last

    def __call__(self, of: Parts) -> tuple[np.ndarray, np.ndarray]:
        """out and lse."""
        b, h, keys, _ = of.k.shape
        group = h // of.kv_heads
        more_keys = np.zeros((*of.start.shape[:3], self.count))
        if self.packed:
            at = np.arange(b)[:, None] * keys + np.arange(keys + self.count)
            k, v = (np.moveaxis(np.moveaxis(x, 1, 0).reshape(h, -1, x.shape[-1])[:, at % (b * keys)], 0, 1)
                    for x in (of.k, of.values))  # fmt: skip
            more_keys[-1] = -np.inf
        else:
            head = np.arange(b)[:, None] * of.kv_heads + np.arange(h) // group
            at = head[..., None] * keys + np.arange(keys + self.count)
            k, v = (x[:, ::group].reshape(-1, x.shape[-1])[at % (b * of.kv_heads * keys)] for x in (of.k, of.values))
        start = np.concatenate([of.start, more_keys], -1)
        more = of.but(k=k, values=v, start=start, fixed=None)
        return plain(more)

    @property
    def words(self) -> str:
        """What is wrong in it."""
        whose = "batch (except the last batch)" if self.packed else "head"
        return f"{self.count} keys past the last one are attended: the first keys of the next {whose}"


def beyond(start: np.ndarray, fixed: np.ndarray | None) -> Iterator[Beyond]:
    """Keys that fill the last step of a loop, where no mask hides what is behind the last one."""
    keys = start.shape[-1]
    if np.isfinite(start[..., -1]).all() and fixed is None:
        for n in dict.fromkeys(-keys % step for step in STEPS):
            if n:
                yield Beyond(n)
                if len(start) > 1 and n <= keys:
                    yield Beyond(n, packed=True)
