"""Launching: arguments to words, blocks to workers, errors to messages."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from workbench.cuda.emulator import cache
from workbench.cuda.emulator.area import area_of
from workbench.cuda.emulator.arguments import Parameter, encoded
from workbench.cuda.emulator.async_state import Block
from workbench.cuda.emulator.context import Launch, Record
from workbench.cuda.emulator.emulator_error import EmulatorError, Stuck
from workbench.cuda.emulator.kinds import FIRST_ALIGNED_KIND
from workbench.cuda.emulator.memory import Memory, block_of, session
from workbench.cuda.emulator.module import Entry, entry_of
from workbench.cuda.emulator.program import Program, program_of
from workbench.cuda.emulator.source import Source
from workbench.cuda.emulator.waiting import stuck, waiting
from workbench.cuda.emulator.watch_words import Watch
from workbench.machine import processors

WARP = 32
MAX_THREADS = 1024
MAX_SHARED = 227 * 1024  # bytes of a block, static and dynamic: compute capability 9.0, CUDA Programming Guide
ORDERS = ("ascending", "descending", "shuffle")


@dataclass(frozen=True)
class Emulated:
    """A kernel that can be launched on the CPU; see `compile`."""

    program: Program
    _entries: dict[tuple[Parameter, ...], Entry] = field(default_factory=dict, repr=False, compare=False)

    def __call__(
        self,
        grid,
        block,
        args,
        *,
        dynamic_shared_bytes=0,
        order="ascending",
        seed=0,
        skew=False,
        workers=None,
        memory: Memory | None = None,
    ) -> None:
        """Run the kernel; it returns when every block has finished.

        Parameters
        ----------
        grid, block : blocks of the grid and threads of a block: an int, or up to three along x, y, z.
        args : the kernel's arguments: NumPy arrays, which the kernel reads and writes in place, and scalars. A Python
            int is an int64, a float a float64, a NumPy scalar has its own type.
        dynamic_shared_bytes : the size of the arrays that the kernel declares as ``cuda.shared.array(0, dtype)``.
        order : in which order the blocks, and the threads between two barriers, run: ``"ascending"``,
            ``"descending"`` or ``"shuffle"``, a permutation drawn with ``seed``.
        skew : run each warp to the block's next barrier before the next warp starts.
        workers : how many threads of this process run blocks, all CPUs when None. A kernel that uses atomics has one,
            and so has one that is watched.
        memory : where a kernel that was compiled to be watched leaves its findings. Threads that wait for ever are then
            a finding, not an error.

        Raises
        ------
        EmulatorError
            For arguments without a CUDA type, code that numba cannot compile, and threads that wait for ever. The
            arrays then hold what was written until then.
        """
        grid, block = _dim3("grid", grid), _dim3("block", block)
        if order not in ORDERS:
            raise EmulatorError(f"order must be one of {', '.join(ORDERS)}, not {order!r}")
        threads = int(np.prod(block))
        if threads > MAX_THREADS:
            raise EmulatorError(f"a block has at most {MAX_THREADS} threads, not {block} = {threads}")
        poison = _shared_poison(self.program, dynamic_shared_bytes)
        if len(args) != len(self.program.parameters):
            wanted = ", ".join(self.program.parameters)
            raise EmulatorError(
                f"{self.program.name} takes {len(self.program.parameters)} arguments ({wanted}), not {len(args)}"
            )
        pairs = [encoded(name, value) for name, value in zip(self.program.parameters, args, strict=True)]
        parameters = tuple(parameter for parameter, _ in pairs)
        if parameters not in self._entries:
            self._entries[parameters] = entry_of(self.program, parameters)
        if self.program.watched != (memory is not None):
            raise EmulatorError("kernels compiled with watched=True need memory, others take none")
        words = np.array([word for _, words in pairs for word in words] or [0], np.int64)

        random = np.random.default_rng(seed)
        blocks = _permuted(np.arange(int(np.prod(grid))), order, random)
        schedule = _thread_order(threads, order, skew, random)
        scheduler = _scheduler()
        workers = 1 if self.program.uses_atomics or memory else min(workers or processors(), len(blocks))
        arrays = {
            name: value
            for name, value in zip(self.program.parameters, args, strict=True)
            if isinstance(value, np.ndarray)
        }

        def work(worker):
            share = np.ascontiguousarray(blocks[worker::workers])
            entry = self._entries[parameters]
            return _run(scheduler, self.program, entry, words, grid, block, share, schedule, poison, memory, arrays)

        if workers == 1:
            errors = [work(0)]
        else:
            with ThreadPoolExecutor(workers) as pool:
                errors = list(pool.map(work, range(workers)))
        failures = {failed: message for failed, message in errors if message}
        for failed in blocks:  # the first in the chosen order, however many workers there were
            if failed in failures:
                raise Stuck(failures[failed])


def compile(source: Source, *, watched: bool = False) -> Emulated:
    """Return the kernel rewritten for the CPU; numba compiles it at the first launch of each signature.

    Parameters
    ----------
    watched : whether each access is checked, at about 100 times the cost; see `memory`.

    Raises `EmulatorError`, with ``file:line``, for a construct that the emulator does not support.
    """
    return Emulated(program_of(source, watched=watched))


def _dim3(what, given):
    extents = (given,) if isinstance(given, int | np.integer) else tuple(given)
    if not (1 <= len(extents) <= 3 and all(isinstance(n, int | np.integer) and n > 0 for n in extents)):
        raise EmulatorError(f"{what} must be one to three positive integers, not {given!r}")
    return (*(int(n) for n in extents), 1, 1)[:3]


def _permuted(items, order, random):
    if order == "shuffle":
        return random.permutation(items)
    return items[::-1].copy() if order == "descending" else items


def _thread_order(threads, order, skew, random):
    """Return the threads in the order in which they run, and where in it groups start that run on their own."""
    warps = [np.arange(first, min(first + WARP, threads)) for first in range(0, threads, WARP)]
    if not skew:
        return _permuted(np.arange(threads), order, random), np.array([0, threads])
    warps = [_permuted(warps[i], order, random) for i in _permuted(np.arange(len(warps)), order, random)]
    return np.concatenate(warps), np.cumsum([0, *(len(warp) for warp in warps)])


def _scheduler():
    return _compiled("schedule")


def _compiled(name):
    """Return a module of the emulator that numba compiles once for all kernels."""
    return cache.load(name, Path(__file__).with_name(f"{name}.py").read_text())


def _aligned(size, alignment=64):
    """Return ``size`` bytes whose address is a multiple of the alignment."""
    buffer = np.empty(size + alignment, np.uint8)
    start = -buffer.ctypes.data % alignment
    return buffer[start : start + size]


def _shared_poison(program, dynamic_size):
    """Return the bytes that fill shared memory before a block starts, and how many of them are dynamic."""
    if not isinstance(dynamic_size, int | np.integer) or dynamic_size < 0:
        raise EmulatorError(f"dynamic_shared_bytes must be a number of bytes, not {dynamic_size!r}")
    if program.dynamic and not dynamic_size:
        raise EmulatorError(f"{program.name} uses dynamic shared memory; pass its size as dynamic_shared_bytes")
    if len(program.shared) + dynamic_size > MAX_SHARED:
        raise EmulatorError(
            f"a block has at most {MAX_SHARED} bytes of shared memory, not {len(program.shared)} static"
            f" and {dynamic_size} dynamic ones"
        )
    element = program.dynamic or b"\0"
    dynamic = (element * -(-dynamic_size // len(element)))[:dynamic_size]
    return np.frombuffer(program.shared + dynamic or b"\0", np.uint8), dynamic_size


def _run(scheduler, program, entry, words, grid, block, blocks, schedule, poison, memory, arrays):
    """Run some blocks on this thread; return the block that failed and why, or (0, None)."""
    threads = int(np.prod(block))
    order, groups = schedule
    shared_poison, dynamic_size = poison
    kinds = np.array(program.kinds, np.int64)
    state = np.zeros(threads, np.int64)
    records = np.zeros((threads, Record.WORDS), np.int64)
    local_poison = np.frombuffer(program.local or b"\0", np.uint8)
    shared, local = _aligned(len(shared_poison), 1024), _aligned(threads * len(local_poison))
    launch = np.zeros(Launch.WORDS, np.int64)
    launch[[Launch.ARGUMENTS, Launch.RECORDS]] = words.ctypes.data, records.ctypes.data
    launch[Launch.SHARED : Launch.LOCAL] = shared.ctypes.data, len(shared), shared_poison.ctypes.data
    launch[Launch.LOCAL : Launch.BLOCK_IDX] = local.ctypes.data, len(local_poison), local_poison.ctypes.data
    launch[Launch.BLOCK_DIM : Launch.GRID_DIM] = block
    launch[Launch.GRID_DIM : Launch.DYNAMIC_SIZE] = grid
    launch[Launch.DYNAMIC_SIZE] = dynamic_size
    watch = memory and session(memory, program, arrays, grid, threads, shared, local)
    if watch:
        watcher = _compiled("clocked")
        events = watcher.begin_block, watcher.pass_barrier, watcher.meet_lanes, watcher.miss_lane
        watch.watches[:, Watch.NOTE] = watcher.note.address
        launch[Launch.WATCH] = watch.address
        launch[Launch.BEGIN_BLOCK : Launch.ASYNC] = [event.address for event in events]
    if max(program.kinds) >= FIRST_ALIGNED_KIND:
        launch[Launch.ALIGNED] = _compiled("aligned").entry.address
    area = area_of(state, kinds, records, shared) if program.asynchronous else None
    if area:
        compiled = _compiled("asynchronous")
        area.block[Block.OPERATE] = compiled.operate.address
        launch[[Launch.ASYNC, Launch.ADVANCE]] = area.block.ctypes.data, compiled.advance.address
        if watch:
            area.watch(watch.watches, watcher.tell.address)
    address = launch.ctypes.data
    slot_size = -(-scheduler.size_of(entry.address, address) // 64) * 64
    slots = _aligned(threads * slot_size)

    end, failed = scheduler.run_blocks(
        entry.address, address, blocks, order, groups, kinds, state, records, slots.ctypes.data, slot_size
    )
    found = watch.end() if watch else 0
    if end == scheduler.FINISHED_BLOCK:
        return 0, None
    place = block_of(failed, grid)
    if watch:
        memory.abandoned = True
        if end == scheduler.STUCK:
            memory.findings.append(waiting(program, place, block, state, records[:, Record.MASK], area))
        if end == scheduler.STUCK or found:  # a thread ends with an exception after some findings
            return 0, None
    if area and (why := area.refusal(program)):
        return failed, f"{why} in block {place}"
    if end == scheduler.EXCEPTION:
        return failed, f"{program.location}: {program.name} raised an exception in block {place}"
    return failed, stuck(program, place, block, state, records[:, Record.MASK], area)
