"""A watched run of a program: every access of the kernels that it launches, and what it reads of their results."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from workbench.cuda import emulator
from workbench.cuda.emulator import Finding
from workbench.cuda.emulator.watch_words import HOST
from workbench.cuda.host.memory import Allocation, Memory
from workbench.cuda.schedules import Schedule
from workbench.refusal import Refusal


class GivenUp(Refusal):
    """A launch that could not be watched to its end: its findings say why."""


@dataclass(eq=False)
class Used:
    """An array that kernels were given."""

    owned: Any  #: its stamps, as of `emulator.Memory`
    before: str  #: what it held when it was first given to one, as a digest
    name: str = ""  #: of the parameter by which the last kernel that stores into it knows it
    store: str = ""  #: ``file:line`` of the store
    shape: tuple[int, ...] = ()  #: its own there


@dataclass(eq=False)
class Watch:
    """The findings of a run."""

    schedule: Schedule
    memory: emulator.Memory = field(default_factory=emulator.Memory)
    used: dict[int, Used] = field(default_factory=dict)  #: by address, in the order of their first launches
    launched: list[str] = field(default_factory=list)  #: kernels, in order
    blocks: int = 0  #: of all of them

    def launch(
        self, kernel: emulator.Emulated, grid: Any, block: Any, values: Sequence[Any], dynamic: int, device: Memory
    ) -> None:
        """Run a kernel; GivenUp where it does not come to its end."""
        program = kernel.program
        for name, x in zip(program.parameters, values, strict=False):
            if isinstance(x, np.ndarray) and x.size:
                one = self._known(x, device, f"{program.location}: {name}")
                if name in program.stores or not one.name:
                    one.name, one.store, one.shape = name, program.store(name), x.shape
        self.launched.append(program.name)
        self.blocks += int(np.prod(grid))
        kernel(grid, block, values, dynamic_shared_bytes=dynamic, memory=self.memory, **vars(self.schedule))
        if self.memory.abandoned:
            raise GivenUp(f"{program.name} was aborted")

    def _known(self, x: np.ndarray, device: Memory, what: str) -> Used:
        """The record of an array, of the whole allocation in which it lies."""
        address = _low(x)
        owned = self.memory.find(address)
        if owned is None:
            allocation = device.holding(address)
            whole = x if allocation is None else _elements(allocation, x.dtype)
            self.memory.add(whole, written=allocation is None)
            owned = self.memory.owned[-1]
            if allocation is not None:
                written = allocation.written[: whole.nbytes].reshape(whole.size, -1).all(1)
                owned.stamps[written, 0] = HOST
        if owned.array.itemsize != x.itemsize:
            raise Refusal(
                f"{what} is a {x.dtype} array in memory that an earlier kernel used as {owned.array.dtype}: accesses "
                "with two element sizes are not watched"
            )
        digest = hashlib.sha256(np.ascontiguousarray(owned.array).tobytes()).hexdigest()
        return self.used.setdefault(_low(owned.array), Used(owned, digest))

    def wrote(self, x: np.ndarray) -> None:
        """The host has written an array."""
        if (found := self._stamps(x)) is not None:
            found[1][...] = HOST

    def reads(self, x: np.ndarray) -> None:
        """The host reads an array: a finding where a kernel was to fill it, and left elements as they were."""
        if (found := self._stamps(x)) is None or not (blank := found[1] == 0).any():
            return
        one = found[0]
        file, line = emulator.located(one.store)
        index, count = tuple(int(i) for i in np.argwhere(blank)[0]), int(blank.sum())
        text = f"{count} of {x.size} elements of {one.name} were never written but are read by the host"
        self.memory.findings.append(
            Finding("unwritten-output", one.name, file, line, None, None, (), (), index, count, text)
        )

    def _stamps(self, x: np.ndarray) -> tuple[Used, np.ndarray] | None:
        """The record of an array that kernels were given, and the stamps of the last writes of its elements; None of
        another.
        """
        owned = self.memory.find(_low(x)) if x.size else None
        if owned is None or owned.array.itemsize != x.itemsize:
            return None
        first = (x.ctypes.data - _low(owned.array)) // x.itemsize
        strides = [step // x.itemsize * owned.stamps.strides[0] for step in x.strides]
        stamps = np.lib.stride_tricks.as_strided(owned.stamps[first:, 0], x.shape, strides)
        return self.used[_low(owned.array)], stamps

    def differences(self, other: "Watch", name: str) -> Iterator[Finding]:
        """Findings for the arrays that hold other bits after another run of the program `name`. Refusal where that run
        began with others.
        """
        for mine, theirs in zip(self.used.values(), other.used.values(), strict=False):
            a, b = mine.owned.array, theirs.owned.array
            if (a.shape, a.dtype, mine.before) != (b.shape, b.dtype, theirs.before):
                raise Refusal(
                    f"{name} gives a different {mine.name} on every run, so block and thread orders cannot be "
                    "compared: seed its random inputs, or leave out --schedules"
                )
            differs = np.argwhere((_bytes(a) != _bytes(b)).any(1)).ravel()
            if differs.size:
                file, line = emulator.located(mine.store)
                text = f"{mine.name} has different bits under another order of blocks and threads"
                index = _index(differs[0], mine.shape, a.size)
                yield Finding("order-dependent", mine.name, file, line, None, None, (), (), index, differs.size, text)
                return  # what was made of it differs, too


def _bytes(x: np.ndarray) -> np.ndarray:
    """The bytes of each element."""
    return np.ascontiguousarray(x).reshape(-1).view(np.uint8).reshape(x.size, -1)


def _index(flat: int, shape: tuple[int, ...], size: int) -> tuple[int, ...]:
    """The index of an element of an array, which may be a part of its memory only."""
    whole = np.prod(shape) == size
    return tuple(int(i) for i in np.unravel_index(flat, shape)) if whole else (int(flat),)


def _low(x: np.ndarray) -> int:
    """The first address of an array."""
    return int(np.lib.array_utils.byte_bounds(x)[0])


def _elements(allocation: Allocation, dtype: np.dtype) -> np.ndarray:
    """An allocation as elements, as many as are whole."""
    return allocation.memory[: allocation.memory.size // dtype.itemsize * dtype.itemsize].view(dtype)
