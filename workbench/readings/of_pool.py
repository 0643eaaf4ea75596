"""K and V in one buffer, whose strides or order are another's: keys are read where values lie, and the reverse."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import permutations

import numpy as np

from workbench.readings.parts import Parts, plain

#: tokens of a page
PAGES = (16, 32, 8, 64, 4, 128)
#: axes of a token's place in a buffer: batch, token, head, K or V; of a page instead page, slot, head, K or V
TOKENS = ("bthx", "btxh", "bhtx", "bxth", "bxht", "bhxt", "xbth", "xbht")
IN_PAGES = ("pxsh", "pxhs", "psxh", "pshx", "phsx", "phxs")
#: the same of pages that a head has for itself
OF_HEADS = ("bhixs", "hbixs")
_WORDS = {"b": "batch", "t": "token", "h": "head", "x": "K or V", "p": "page", "s": "slot", "i": "page"}


@dataclass(frozen=True)
class Pool:
    """Attention of K and V that are written in one order and read in another."""

    written: str
    read: str  #: its own where `halved`
    page: int = 0  #: tokens of a page; 0: without pages
    reversed: bool = False  #: pages stand in the other order
    halved: bool = False  #: whether the stride of a page leaves out that it holds K and V

    def __call__(self, of: Parts) -> tuple[np.ndarray, np.ndarray]:
        """out and lse."""
        b, h, keys, dims = of.k.shape
        group = h // of.kv_heads
        memory = np.stack([of.k[:, ::group], of.values[:, ::group]])  # [K or V, b, kv head, key, d]
        where, there = self._places(memory.shape, self.written), self._places(memory.shape, self.read, self.halved)
        buffer = np.zeros((max(int(where.max()), int(there.max())) + 1, dims))
        buffer[where.reshape(-1)] = memory.reshape(-1, dims)
        k, v = (np.repeat(x, group, 1) for x in buffer[there])
        return plain(of.but(k=k, values=v))

    def _places(self, shape: tuple[int, ...], order: str, halved: bool = False) -> np.ndarray:
        """Which row of the buffer each row of K and V is, [K or V, b, kv head, key]; `halved`: by half of the stride
        of a page.
        """
        kinds, b, heads, keys = shape[:4]
        x, batch, head, t = np.ogrid[:kinds, :b, :heads, :keys]
        pages = -(-keys // self.page) if self.page else 1
        own = t // (self.page or keys)
        page = batch * pages + own
        if self.reversed:
            own, page = pages - 1 - own, b * pages - 1 - page
        at = {"x": x, "b": batch, "h": head, "t": t, "s": t % (self.page or keys), "p": page, "i": own}
        sizes = {"x": kinds, "b": b, "h": heads, "t": keys, "s": self.page or keys, "p": b * pages, "i": pages}
        found: np.ndarray = np.zeros(shape[:4], int)
        stride = 1
        for axis in reversed(order):
            found = found + at[axis] * (stride // 2 if halved and axis in "pi" else stride)
            stride *= sizes[axis]
        return found

    @property
    def words(self) -> str:
        """What is wrong in it."""
        order = " in reverse order" if self.reversed else ""
        pages = f" (pages of {self.page} tokens{order})" if self.page else ""
        if self.halved:
            return (
                f"the page stride is half of what it should be, so K reads values and V reads keys: they share the "
                f"buffer {_named(self.written)}{pages}"
            )
        return f"the buffer of K and V is laid out as {_named(self.written)} but read as {_named(self.read)}{pages}"


def _named(order: str) -> str:
    return f"[{', '.join(_WORDS[axis] for axis in order)}, dim]"


def pools(keys: int) -> Iterator[Pool]:
    """Strides of pages first, then orders."""
    for page in PAGES:
        for order in (*IN_PAGES, *OF_HEADS):
            yield from (Pool(order, order, page, turned, halved=True) for turned in (False, True))
    for page in (0, *PAGES):
        for written, read in permutations(IN_PAGES if page else TOKENS, 2):
            if not page or keys % page == 0:
                yield Pool(written, read, page)
