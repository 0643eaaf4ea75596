"""The memory of a watched run: stamps of its global arrays, which outlive a launch, and what was found in it."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from workbench.cuda.emulator import clocks, hazards, watch_words
from workbench.cuda.emulator.async_state import MAX_BARRIERS
from workbench.cuda.emulator.emulator_error import EmulatorError
from workbench.cuda.emulator.program import Program
from workbench.cuda.emulator.watch_words import Common, Found, Region, Watch

#: number of a finding -> its kind, and its words
KINDS = {
    watch_words.UNINITIALISED: ("uninitialised-read", "{element} is read before it is written"),
    watch_words.RACE: (
        "race",
        "{element} is accessed by two threads, at least one writing, with no barrier in between",
    ),
    watch_words.OUT_OF_BOUNDS: ("out-of-bounds", "{element} is out of bounds"),
    watch_words.MISALIGNED: (
        "misaligned",
        "{element} is misaligned for a wide access: its address must be a multiple of the access size",
    ),
    watch_words.RUNAWAY: ("runaway", "the loop exceeds the limit of iterations"),
    watch_words.MISSING_LANES: ("missing-lanes", "{operation} reads a lane that does not participate"),
    watch_words.SECOND_WRITE: ("second-write", "{element} is written twice"),
    **hazards.HAZARDS,
}
_LIMIT = 256  # findings of one launch that are told apart
STEPS = 10**8


@dataclass(frozen=True)
class Finding:
    """Something that a kernel must not do, and where it first did it."""

    #: uninitialised-read, race, out-of-bounds, misaligned, second-write, unwritten-output, divergent-barrier,
    #: missing-lanes, runaway, order-dependent, deadlock, and those of `hazards`
    kind: str
    array: str  #: its name in the source; "" where no array is concerned
    file: str  #: of the access
    line: int
    other_file: str | None  #: of the access that it conflicts with
    other_line: int | None
    block: tuple[int, ...]
    threads: tuple[int, ...]  #: the thread, and that of the other access; of a barrier, those that wait at it
    index: tuple[int, ...]  #: the array's element
    count: int  #: how often
    text: str  #: in words


@dataclass(frozen=True)
class Owned:
    """A global array and its stamps."""

    array: np.ndarray
    stamps: np.ndarray
    once: bool  #: whether an element may be written once only


@dataclass
class Memory:
    """What is known of the global arrays of a run, from one launch to the next.

    Arrays that nobody added count as written by the host before they were first launched with.
    """

    steps: int = STEPS  #: turns of loops that a thread may take in one launch
    owned: list[Owned] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    #: whether a launch was given up, so that what it has left unwritten says nothing
    abandoned: bool = False
    epoch: int = 1

    def add(self, array: np.ndarray, *, written: bool, once: bool = False) -> None:
        """Watch an array: whether the host has written it, and whether an element may be written once only."""
        low, high = np.lib.array_utils.byte_bounds(array)
        stamps = np.zeros(((high - low) // array.itemsize, 3), np.int64)
        if written:
            stamps[:, 0] = watch_words.HOST
        self.owned.append(Owned(array, stamps, once))

    def find(self, address: int) -> Owned | None:
        """Return the array that holds an address."""
        for owned in self.owned:
            low, high = np.lib.array_utils.byte_bounds(owned.array)
            if low <= address < high:
                return owned
        return None

    def unwritten(
        self, program: Program, name: str, array: np.ndarray, exempt: np.ndarray | None = None
    ) -> Finding | None:
        """Return the finding for an output of `program` that has elements nobody wrote; None where all are written
        but for those that are exempt, a bool that broadcasts to it.
        """
        owned = self.find(array.ctypes.data)
        assert owned is not None
        blank = (owned.stamps[:, 0] == 0).reshape(array.shape)
        missing = np.argwhere(blank if exempt is None else blank & ~exempt)
        if not len(missing):
            return None
        file, line = located(program.store(name))
        text = f"{len(missing)} of {array.size} elements of {name} were never written"
        index = tuple(int(i) for i in missing[0])
        return Finding("unwritten-output", name, file, line, None, None, (), (), index, len(missing), text)


@dataclass(frozen=True)
class Session:
    """One launch under watch: the words of its threads, and the arrays behind them."""

    memory: Memory
    program: Program
    parameters: dict[str, np.ndarray]
    grid: tuple[int, int, int]
    watches: np.ndarray
    common: np.ndarray
    regions: np.ndarray
    found: np.ndarray
    keep: tuple[np.ndarray, ...]  #: shared memory, local memory, and what their words point to

    @property
    def address(self) -> int:
        """Return the address of the first thread's words."""
        return self.watches.ctypes.data

    def end(self) -> int:
        """Add what was found to the memory's findings; return how many."""
        self.memory.epoch = int(self.common[Common.EPOCH])
        if self.memory.epoch >= watch_words.MAX_EPOCHS:
            raise EmulatorError(f"a watched run has at most {watch_words.MAX_EPOCHS} blocks; use a smaller case")
        findings = merged(self._findings())
        self.memory.findings.extend(findings)
        return len(findings)

    def _findings(self) -> Iterator[Finding]:
        for words in self.found[: self.common[Common.FINDING_COUNT]]:
            kind, text = KINDS[int(words[Found.KIND])]
            if kind == "missing-lanes":
                site = self.program.sites[words[Found.PLACE] - 1]
                array, index, other = "", (), None
                file, line = located(site.location)
                element, operation = "", site.construct
            else:
                place = self.program.places[words[Found.PLACE] - 1]
                file, line, operation = place.file, place.line, place.text
                array, index = self._element(words) if place.text else ("", ())
                other = self.program.places[words[Found.OTHER] - 1] if words[Found.OTHER] else None
                element = f"{array}[{', '.join(map(str, index))}]" if array else "this place"
            threads = [words[Found.THREAD], words[Found.OTHER_THREAD]]
            yield Finding(
                kind=kind,
                array=array,
                file=file,
                line=line,
                other_file=other.file if other else None,
                other_line=other.line if other else None,
                block=block_of(int(words[Found.BLOCK]), self.grid),
                threads=tuple(int(thread) for thread in threads if thread >= 0),
                index=index,
                count=int(words[Found.COUNT]),
                text=text.format(element=element, operation=operation, **hazards.details(words[Found.INDEX :])),
            )

    def _element(self, words: np.ndarray) -> tuple[str, tuple[int, ...]]:
        """Return the name of a finding's array in the source and the element's index."""
        address, thread = int(words[Found.ADDRESS]), int(words[Found.THREAD])
        given = tuple(int(i) for i in words[Found.INDEX : Found.INDEX + words[Found.NDIM]])
        for name, array in self.parameters.items():
            low, high = np.lib.array_utils.byte_bounds(array)
            if low <= address < high:
                flat = (address - array.ctypes.data) // array.itemsize
                contiguous = array.flags.c_contiguous
                return name, given or (_unravelled(flat, array.shape) if contiguous else (flat,))
        shared, local = self.keep[:2]
        starts = {"shared": shared.ctypes.data, "local": local.ctypes.data + thread * len(self.program.local)}
        for array, offset in self.program.arrays.values():
            is_dynamic = array.shape == (0,)
            start = starts[array.memory] + (len(self.program.shared) if is_dynamic else offset)
            flat, rest = divmod(address - start, itemsize(array.dtype))
            shape = (len(shared) // itemsize(array.dtype),) if is_dynamic else array.shape
            if 0 <= flat < np.prod(shape) and rest == 0:
                return array.name or f"cuda.{array.memory}.array", given or _unravelled(flat, shape)
        return "", given


def session(
    memory: Memory,
    program: Program,
    parameters: dict[str, np.ndarray],
    grid: tuple[int, int, int],
    threads: int,
    shared: np.ndarray,
    local: np.ndarray,
) -> Session:
    """Prepare the words of a launch's threads; `shared` and `local` are the bytes of those memories."""
    for array in parameters.values():
        if memory.find(array.ctypes.data) is None and array.size:
            memory.add(array, written=True)
    arrays = [_region(owned) for owned in memory.owned] + _inner_regions(program, shared)
    regions = np.array(arrays or [[0] * Region.WORDS], np.int64)
    found = np.zeros((_LIMIT, Found.WORDS), np.int64)
    shifts = {name: _shift(program, name) for name in ("shared", "local")}
    slots = 1 + 2 * -(-threads // 32) + (-(-threads // 128) if program.asynchronous else 0)
    shared_stamps = np.zeros((len(shared) >> shifts["shared"], slots), np.int64)
    local_bytes = len(local) // threads
    local_flags = np.zeros((threads, -(-local_bytes // (1 << shifts["local"])) + 1), np.uint8)

    common = np.zeros(Common.WORDS, np.int64)
    common[Common.EPOCH] = memory.epoch
    common[[Common.REGIONS, Common.REGION_COUNT]] = regions.ctypes.data, len(memory.owned)
    common[Common.ARRAY_COUNT] = len(arrays)
    common[[Common.FINDINGS, Common.FINDING_LIMIT]] = found.ctypes.data, _LIMIT
    common[Common.STEPS] = memory.steps
    watches = np.zeros((threads, Watch.WORDS), np.int64)
    watches[:, Watch.LAUNCH_START] = (memory.epoch + 1) * watch_words.EPOCH
    watches[:, Watch.COMMON] = common.ctypes.data
    watches[:, [Watch.SHARED, Watch.SHARED_BYTES]] = (
        shared.ctypes.data,
        len(shared) if program.shared or program.dynamic else 0,
    )
    watches[:, [Watch.SHARED_SHADOW, Watch.SHARED_SHIFT]] = shared_stamps.ctypes.data, shifts["shared"]
    watches[:, Watch.LOCAL] = local.ctypes.data + np.arange(threads) * local_bytes
    watches[:, Watch.LOCAL_BYTES] = local_bytes if program.local else 0
    watches[:, Watch.LOCAL_SHADOW] = local_flags.ctypes.data + np.arange(threads) * local_flags.shape[1]
    watches[:, Watch.LOCAL_SHIFT] = shifts["local"]
    if program.asynchronous and threads > clocks.MAX_BLOCK:
        raise EmulatorError(
            f"{program.name}: a watched block with barriers in shared memory has at most {clocks.MAX_BLOCK} threads"
        )
    actors = clocks.actors_of(threads, program.asynchronous)
    rows = np.zeros((clocks.rows_of(threads), 2 * actors), np.int64)
    waits = np.zeros((threads, MAX_BARRIERS), np.int64)
    common[[Common.ROWS, Common.ACTORS, Common.THREADS]] = rows.ctypes.data, actors, threads
    common[[Common.SLOTS, Common.WAITS]] = slots, waits.ctypes.data if program.asynchronous else 0
    keep = (shared, local, shared_stamps, local_flags, rows, waits)
    return Session(memory, program, parameters, grid, watches, common, regions, found, keep)


def itemsize(dtype: str) -> int:
    """Return the bytes of an element."""
    return 2 if dtype == "bfloat16" else np.dtype(dtype).itemsize


def located(location: str) -> tuple[str, int]:
    """Return file and line of ``file:line``."""
    file, _, line = location.rpartition(":")
    return file, int(line)


def block_of(number: int, grid: tuple[int, int, int]) -> tuple[int, int, int]:
    """Return the coordinates of a block."""
    return number % grid[0], number // grid[0] % grid[1], number // (grid[0] * grid[1])


def merged(findings: Iterator[Finding]) -> list[Finding]:
    """Return findings with those of one kind at one line of one array added up; the first one's details are kept.

    Those of a race have two lines, whichever of them a thread came to first.
    """
    first: dict[tuple, Finding] = {}
    for finding in findings:
        lines = (finding.file, finding.line), (finding.other_file, finding.other_line)
        key = (finding.kind, finding.array, frozenset(lines) if finding.kind == "race" else lines)
        known = first.get(key)
        first[key] = replace(known, count=known.count + finding.count) if known else finding
    return list(first.values())


def _region(owned: Owned) -> list[int]:
    low, high = np.lib.array_utils.byte_bounds(owned.array)
    return [low, high, owned.stamps.ctypes.data, owned.array.itemsize.bit_length() - 1, int(owned.once)]


def _inner_regions(program: Program, shared: np.ndarray) -> list[list[int]]:
    """Return the records of shared and local arrays, without stamps of their own."""
    regions = []
    for array, offset in program.arrays.values():
        dynamic = array.shape == (0,)
        start = len(program.shared) if dynamic else offset
        end = len(shared) if dynamic else start + int(np.prod(array.shape)) * itemsize(array.dtype)
        base = shared.ctypes.data if array.memory == "shared" else 0
        regions.append([base + start, base + end, 0, 0, 0])
    return regions


def _shift(program: Program, memory: str) -> int:
    """Return log2 of the smallest element's bytes among the arrays of a memory."""
    sizes = [itemsize(array.dtype) for array, _ in program.arrays.values() if array.memory == memory]
    return min(sizes, default=4).bit_length() - 1


def _unravelled(flat: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(int(i) for i in np.unravel_index(flat, shape))
