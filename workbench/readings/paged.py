"""Keys of other pages: a block table whose rows are read with another pitch than they were written with."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from workbench.readings.parts import Parts, plain

#: tokens of a page
PAGES = (16, 32, 64, 8, 128)


@dataclass(frozen=True)
class Pitch:
    """Attention of pages that a table points to; entries that no sequence has point to page 0 of batch 0."""

    page: int  #: tokens of a page
    written: int  #: entries of a row of the table
    read: int  #: and those that rows are taken to be apart

    def __call__(self, of: Parts) -> tuple[np.ndarray, np.ndarray]:
        """out and lse."""
        batches, _, keys, _ = of.k.shape
        pages = -(-keys // self.page)
        at = np.arange(batches)[:, None] * self.read + np.arange(keys) // self.page
        batch, page = at // self.written, at % self.written
        none = (page >= pages) | (batch >= batches)
        batch, page = np.where(none, 0, batch), np.where(none, 0, page)
        key = page * self.page + np.arange(keys) % self.page
        # behind the last key of a sequence its last page holds zeros
        holds, key = key < keys, np.minimum(key, keys - 1)

        def moved(x: np.ndarray) -> np.ndarray:
            return np.where(holds[:, None, :, None], np.moveaxis(x[batch, :, key], 2, 1), 0.0)

        return plain(of.but(k=moved(of.k), values=moved(of.values)))

    @property
    def words(self) -> str:
        """What is wrong in it."""
        return (
            f"the row stride of the block table is {self.written} entries, but the kernel uses {self.read} "
            f"(pages of {self.page} keys)"
        )


def pitches(batches: int, keys: int) -> Iterator[Pitch]:
    """Those that leave out the last page, or what rows have beside their pages."""
    for page in PAGES if batches > 1 else ():
        pages = -(-keys // page)
        for written, read in ((pages, keys // page), *((pages + n, pages) for n in (1, 2, 4)), (pages, pages + 1)):
            if written != read and read > 0:
                yield Pitch(page, written, read)
