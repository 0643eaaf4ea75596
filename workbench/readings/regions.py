"""Faults of some rows and dims alone: of one code path, of some warps, of one tile."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from workbench.readings.finding import spans
from workbench.readings.parts import Parts, plain
from workbench.readings.sets import ROW_AXES, of_axes

#: after how many rows a pattern may come again
PERIODS = (2, 4, 8, 16, 32, 64, 128)


class Named(Protocol):
    """A kernel that says what is wrong in it."""

    @property
    def words(self) -> str: ...  # noqa: D102

    def __call__(self, of: Parts, /) -> tuple[np.ndarray, np.ndarray]: ...  # noqa: D102


@dataclass(frozen=True, eq=False)
class Piece:
    """What makes a part of out."""

    kernel: Named
    rows: np.ndarray  #: bool [b, h, q]
    dims: np.ndarray  #: bool [d]

    @property
    def where(self) -> str:
        """In words; empty of all."""
        said = "" if self.rows.all() else f", in {of_axes(self.rows, ROW_AXES)}"
        return said + ("" if self.dims.all() else f", in dims {spans(np.flatnonzero(self.dims))}")


@dataclass(frozen=True, eq=False)
class Pieces:
    """Attention as it should be, but for some pieces."""

    pieces: tuple[Piece, ...]

    def __call__(self, of: Parts) -> tuple[np.ndarray, np.ndarray]:
        """out and lse."""
        out, lse = plain(of)
        for one in self.pieces:
            made, of_sum = one.kernel(of)
            out = np.where(one.rows[..., None] & one.dims, made, out)
            lse = np.where(one.rows, of_sum, lse)
        return out, lse


@dataclass(frozen=True)
class WithoutSinks:
    """Attention as it should be, but for sinks, which are not in the row sum."""

    words = "sinks are left out of the row sum"

    def __call__(self, of: Parts) -> tuple[np.ndarray, np.ndarray]:
        """out and lse."""
        return plain(of.but(sinks=None))


def completed(rows: np.ndarray, may: np.ndarray) -> np.ndarray:
    """The simplest pattern that has all of `rows` [b, h, q] and beside them only rows of `may`, where the fault makes
    no difference: all rows, those from the first or up to the last, every n-th; `rows` itself where there is none.
    """
    heads = np.asarray(rows.any(2))
    of_rows = rows.any((0, 1))
    index = np.arange(rows.shape[2])
    first, last = index[of_rows].min(), index[of_rows].max()
    rules = [np.ones_like(of_rows), index >= first, index <= last, (index >= first) & (index <= last)]
    for n in PERIODS:
        residues = np.isin(index % n, index[of_rows] % n)
        rules += [residues, residues & (index >= first // n * n), residues & (index <= last)]
    for of_heads in (np.ones_like(heads), np.broadcast_to(np.any(heads, axis=0), heads.shape), heads):
        for rule in rules:
            whole = of_heads[..., None] & rule
            if not np.any(whole & ~rows & ~may):
                return whole
    return rows
