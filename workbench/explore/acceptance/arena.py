"""Memory that the judge and the function's process share: inputs amid poison, and room for what comes back.

The judge says where everything lies. It writes inputs there, reads raw bytes back, and keeps what it judges elsewhere.
"""

import fcntl
import math
import mmap
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from workbench.refusal import Refusal

#: of an arena, which takes memory where it is written; of inputs and results of one call
SIZE = 1 << 30
#: starts of arrays that lie as usual, which no allocator aligns to more
ALIGNED = 256
#: each byte around inputs: all bits set are NaN in every float dtype
POISON = 0xFF
#: bytes of an element of out at most, float64's
WIDEST = 8


class Place(NamedTuple):
    """Where an array lies; strides and offset in bytes."""

    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int

    @property
    def end(self) -> int:
        """The first byte behind it."""
        steps = sum((n - 1) * step for n, step in zip(self.shape, self.strides, strict=True))
        return self.offset + steps + np.dtype(self.dtype).itemsize

    def view(self, memory: Any) -> np.ndarray:
        """The array there."""
        return np.ndarray(self.shape, np.dtype(self.dtype), memory, self.offset, self.strides)


class Lying(NamedTuple):
    """How inputs lie: what is left free, filled with poison."""

    order: tuple[int, ...] = (0, 1, 2, 3)  #: axes of [b, h, s, d], the outermost in memory first
    shift: int = 0  #: elements before the start of an array
    behind: int = 0  #: elements behind a row
    rows: int = 0  #: rows behind those of an array, or of a head

    @property
    def words(self) -> str:
        """How the memory layout differs from that of a contiguous array; empty if it does not."""
        said = [f"each input starts {of(self.shift, 'element')} past an aligned address"] * bool(self.shift)
        said += [f"{of(self.behind, 'element')} of poison after each row"] * bool(self.behind)
        return "; ".join([*said, *[f"{of(self.rows, 'row')} of poison between heads"] * bool(self.rows)])


def of(n: int, what: str) -> str:
    return f"{n} {what}{'s' * (n != 1)}"


def contiguous(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    """Strides in bytes."""
    return tuple(itemsize * math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


def placed(arrays: Mapping[str, np.ndarray], lying: Lying) -> dict[str, Place]:
    """Where the arrays [b, h, s, d] lie, one behind the other; the same places for the same shapes and `lying`."""
    found: dict[str, Place] = {}
    end = 0
    for name, x in arrays.items():
        room = list(x.shape)
        room[3] += lying.behind
        room[2] += lying.rows
        of_room = contiguous(tuple(room[axis] for axis in lying.order), x.itemsize)
        strides = tuple(of_room[lying.order.index(axis)] for axis in range(4))
        start = (-(-end // ALIGNED) + 1) * ALIGNED + lying.shift * x.itemsize  # poison before it, too
        found[name] = Place(x.dtype.name, x.shape, strides, start)
        end = start + math.prod(room) * x.itemsize
    return found


@dataclass(eq=False)
class Arena:
    """The judge's side of the memory."""

    fd: int = field(init=False)
    memory: mmap.mmap = field(init=False)
    used: int = 0  #: bytes of inputs and what is between them
    before: bytes = b""  #: these bytes as they were written

    def __post_init__(self) -> None:
        self.fd = os.memfd_create("workbench", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self.fd, SIZE)
        # a process that cuts it short would end whoever reads there
        fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
        self.memory = mmap.mmap(self.fd, SIZE)

    def write(self, arrays: Mapping[str, np.ndarray], places: Mapping[str, Place]) -> None:
        """Put inputs where they lie, and poison around them; Refusal where there is no room."""
        end = max(place.end for place in places.values())
        if end > SIZE // 2:
            raise Refusal(f"inputs of a call take {end / 1e9:.3g} GB, which is too much: use smaller lengths")
        self.used = (-(-end // ALIGNED) + 1) * ALIGNED
        np.frombuffer(self.memory, np.uint8, self.used)[:] = POISON
        for name, x in arrays.items():
            places[name].view(self.memory)[...] = x
        self.before = self.memory[: self.used]

    def changed(self, places: Mapping[str, Place]) -> str:
        """The first input whose bytes are others than were written, "poison" of those between; empty of none."""
        after = self.memory[: self.used]
        if after == self.before:
            return ""
        for name, place in places.items():
            now, then = (np.ascontiguousarray(place.view(bytearray(x))).tobytes() for x in (after, self.before))
            if now != then:
                return name
        return "poison"

    def results(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """Where results of so many elements go, behind the inputs."""
        found, start = {}, self.used + ALIGNED
        for name, size in sizes.items():
            found[name] = start
            start += (-(-size * WIDEST // ALIGNED) + 1) * ALIGNED
        if start > SIZE:
            raise Refusal(f"results of a call take {start / 1e9:.3g} GB, which is too much: use smaller lengths")
        return found

    def read(self, offset: int, dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
        """A copy of a result, which nobody else can reach."""
        return np.frombuffer(self.memory[offset : offset + math.prod(shape) * dtype.itemsize], dtype).reshape(shape)

    def close(self) -> None:
        """Give the memory back."""
        self.memory.close()
        os.close(self.fd)
