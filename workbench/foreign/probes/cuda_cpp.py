"""Probes of CUDA C++ kernels: the buffers that `include/workbench_probe.cuh` stores into, and what they held.

A module compiled with -DWB_PROBES has a pointer to a table of all stages, which is filled in before the launch: a
kernel's signature stays as it is, and one that nobody handed a table stores nothing.
"""

import ctypes
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from workbench.arrays import module
from workbench.case.stages import ALGORITHMS, Stage, axis_sizes, merges, probe_set, shape, stages_of
from workbench.foreign.probes.memory import GpuArray, current_device, write
from workbench.refusal import Refusal
from workbench.trace.trace import blank

#: names in the header
TABLE, HAND_OVER = "wb_probe_table", "wb_probe_hand_over"
MAX_AXES = 5
#: wb::Slots and what comes before them in a wb::Table
SLOTS = np.dtype(
    [
        ("key", "u4"), ("axes", "u4"), ("sizes", "i8", MAX_AXES), ("words", "u8"), ("type", "u4"), ("indices", "u4"),
        ("first", "i8", MAX_AXES), ("refused", "u8"), ("mixed", "u8"),
    ]
)  # fmt: skip
HEAD = np.dtype([("places", "u8", 2), ("unknown", "u8"), ("stages", "u8")])

_DTYPES = (np.float32, np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, np.uint8)
#: how the header tells a type: the bits of its 1, and its size
TYPES: Mapping[int, np.dtype] = {
    int.from_bytes(np.ones((), dtype).tobytes(), "little") + np.dtype(dtype).itemsize: np.dtype(dtype)
    for dtype in _DTYPES
}
UNWRITTEN = int(blank((), np.dtype(np.float32)).view(np.uint32))


def include_dir() -> Path:
    """The folder of `workbench_probe.cuh`, for the compiler's -I."""
    return Path(__file__).parent / "include"


def key(stage: str) -> int:
    """By which a table knows a stage: FNV-1a of its name, 32 bits."""
    value = 2166136261
    for byte in stage.encode():
        value = (value ^ byte) * 16777619 % 2**32
    return value


@dataclass(frozen=True, eq=False)
class HostArray:
    """GpuArray's counterpart for code compiled for the CPU."""

    array: np.ndarray

    @classmethod
    def of(cls, x: np.ndarray) -> "HostArray":
        """`x`, copied."""
        return cls(np.array(x))

    @property
    def address(self) -> int:
        """Where it is."""
        return self.array.ctypes.data

    def read(self) -> np.ndarray:
        """The array."""
        return self.array


@dataclass(frozen=True)
class Pointer:
    """A compiled code's pointer to its table."""

    where: Any  #: what tells it from those of other code
    memory: Any  #: GpuArray or HostArray, as the code runs there
    point: Callable[[int], None]  #: has it point to an address


@dataclass(frozen=True, eq=False)
class Probes:
    """The buffers of a run, until they are read."""

    algorithm: str
    known: Mapping[str, Stage]  #: its stages
    words: Mapping[str, Any]  #: by the name of the stage that somebody asked for, arrays of pointer.memory
    held: tuple[Any, ...]  #: the table, then what else it points to
    pointer: Pointer

    def stages(self) -> dict[str, np.ndarray]:
        """What the probes stored, by the name of the stage, once the GPU has finished; stages without probes are left
        out. The compiled code stores nothing any more.

        float32, float16 and bfloat16 slots that nobody wrote hold what `trace.blank` does. Refusal where a probe named
        no stage, had an index outside, or stored another type than the stage's other probes or than these, float8 and
        uint8; for unwritten slots in a stage of 8 bits, in which nothing is free to tell them by; and for buffers that
        were read before, or that another `hand_over` to the same code replaced.
        """
        if _IN_USE.get(self.pointer.where) is not self:
            raise Refusal("these buffers were already read, or replaced by others handed to the same code")
        table = self.held[0].read()
        self.pointer.point(0)
        del _IN_USE[self.pointer.where]
        if unknown := int(table[: HEAD.itemsize].view(HEAD)["unknown"][0]):
            raise Refusal(
                f"WB_PROBE stored {unknown} times to stages that {self.algorithm} does not have; its stages: "
                f"{', '.join(self.known)}"
            )
        found = {}
        slots = table[HEAD.itemsize :].view(SLOTS)
        for (name, stage), told in zip(self.known.items(), slots, strict=True):
            _check(stage, told)
            if told["type"]:
                found[name] = _values(name, self.words[name].read(), TYPES[int(told["type"])])
        return found


#: by Pointer.where. Memory that code still points to is not freed, even where a launch failed and nobody reads it.
_IN_USE: dict[Any, Probes] = {}


def hand_over(
    code: Any,
    algorithm: str,
    q: Any,
    k: Any,
    *,
    block_k: int,
    splits: int | None = None,
    softcap: float | None = None,
    head_dim_v: int | None = None,
    stages: str = "all",
) -> Probes:
    """Buffers of unwritten slots, which the probes of `code` store into from now on.

    `code`, compiled with -DWB_PROBES: a cuda.core ObjectCode, a cupy.RawModule, or a shared object of nvcc's (its path,
    or a module made by torch's extension loader); also one for the CPU, in a test. `algorithm`: flash, split_k, fp8 or
    fp8_split_k, whose stages they are. q [batch, heads, seqlen_q, dim], k [batch, kv_heads, seqlen_k, dim], whose
    shapes alone are read; `block_k`: keys in a tile; `softcap`: that of the run, without which no scores are capped;
    `head_dim_v`: that of v, where it is not k's.
    `stages`: a probe set (all, lean, output) or stages separated by commas; probes of others store nothing. A slot
    takes 4 bytes, whatever the dtype.

    Refusal for code without probes, an algorithm or stage that does not exist, and splits where there are none;
    Unavailable without a GPU.
    """
    if algorithm not in ALGORITHMS:
        raise Refusal(f"algorithm must be one of {', '.join(ALGORITHMS)}; got {algorithm!r}")
    splitting = [name for name in ALGORITHMS if merges(name)]
    if (splits is None) == (algorithm in splitting):
        names = ", ".join(splitting)
        raise Refusal(f"splits is for {names}, which need it; got algorithm {algorithm!r} and splits={splits}")
    sizes = axis_sizes(q.shape, k.shape, (*k.shape[:3], head_dim_v or q.shape[3]), block_k, splits or 1)
    numbers = () if softcap is None else ("softcap",)
    known, wanted = stages_of(algorithm, numbers), probe_set(algorithm, stages, numbers)
    pointer = _pointer(code)
    words, slots = {}, np.zeros(len(known), SLOTS)
    for slot, (name, stage) in zip(slots, known.items(), strict=True):
        dims = shape(stage, sizes)
        slot["key"], slot["axes"] = key(name), len(dims)
        slot["sizes"][: len(dims)] = dims
        if name in wanted:
            words[name] = pointer.memory.of(np.full(dims, UNWRITTEN, np.uint32))
            slot["words"] = words[name].address
    places = tuple(pointer.memory.of(np.arange(256).astype(dtype)) for dtype in (np.uint32, np.uint16))
    head = np.array([([place.address for place in places], 0, len(slots))], HEAD)
    table = pointer.memory.of(np.concatenate([head.view(np.uint8), slots.view(np.uint8)]))
    pointer.point(table.address)
    _IN_USE[pointer.where] = made = Probes(algorithm, known, words, (table, *places), pointer)
    return made


def _check(stage: Stage, told: np.void) -> None:
    """Refusal for what the probes of a stage did that they may not."""
    axes = f"[{' '.join(stage.axes)}]"
    if told["refused"]:
        first = told["first"][: told["indices"]]
        if told["indices"] != told["axes"]:
            raise Refusal(f"a probe of {stage.name} takes {told['axes']} indices {axes}; got {told['indices']}")
        place = ", ".join(f"{axis}={i}" for axis, i in zip(stage.axes, first, strict=True))
        raise Refusal(
            f"probes of {stage.name} must stay in {axes} = {told['sizes'][: told['axes']].tolist()}; "
            f"{told['refused']} stores did not, one of them at {place}"
        )
    if told["mixed"]:
        raise Refusal(f"probes of {stage.name} must store one type; {told['mixed']} stores had another type")
    if told["type"] and int(told["type"]) not in TYPES:
        accepted = ", ".join(str(dtype) for dtype in TYPES.values())
        raise Refusal(f"a probe of {stage.name} must store one of {accepted}; it stores another type (an integer, say)")


def _values(name: str, words: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """The values in 32-bit slots."""
    if dtype == np.float32:
        return words.view(np.float32)
    values = words.astype(f"u{dtype.itemsize}").view(dtype)
    unwritten = words == UNWRITTEN
    if dtype.itemsize == 1 and unwritten.any():
        index = tuple(np.argwhere(unwritten)[0].tolist())
        raise Refusal(f"{unwritten.sum()} of {words.size} slots of {name} were never written, the first at {index}")
    return np.where(unwritten, blank(words.shape, dtype), values) if unwritten.any() else values


def _pointer(code: Any) -> Pointer:
    """The pointer of compiled code; Refusal for code without probes."""
    if hasattr(code, "get_global") or hasattr(code, "get_kernel"):
        current_device()
        address = _cupy(code) if hasattr(code, "get_global") else _cuda_core(code)
        return Pointer(address, GpuArray, lambda table: write(address, np.array(table, np.uint64)))
    path = getattr(code, "__file__", code)
    if not isinstance(path, str | Path):
        raise Refusal(
            "code is a cuda.core ObjectCode, a cupy.RawModule, or the path or module of a shared object; "
            f"got {type(code).__name__}"
        )
    if not Path(path).is_file():
        raise Refusal(f"{path}: no such file")
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise Refusal(f"{path} is no shared object that can be loaded: {error}") from None
    if hasattr(library, HAND_OVER):
        current_device()
        return Pointer(library._handle, GpuArray, lambda table: _nvcc(library, table))
    if not hasattr(library, TABLE):
        raise _without_probes(str(path))
    symbol = ctypes.c_void_p.in_dll(library, TABLE)
    return Pointer(library._handle, HostArray, lambda table: setattr(symbol, "value", table))


def _cuda_core(code: Any) -> int:
    """Address of the pointer in a cuda.core ObjectCode."""
    from cuda.bindings import driver

    status, address, _ = driver.cuLibraryGetGlobal(driver.CUlibrary(int(code.handle)), TABLE.encode())
    if status == driver.CUresult.CUDA_ERROR_NOT_FOUND:
        raise _without_probes("the ObjectCode")
    if status != driver.CUresult.CUDA_SUCCESS:
        raise RuntimeError(f"cuLibraryGetGlobal of the NVIDIA driver failed with {status.name}")
    return int(address)


def _cupy(code: Any) -> int:
    """Address of the pointer in a cupy.RawModule."""
    try:
        return int(code.get_global(TABLE).ptr)
    except module("cupy").cuda.driver.CUDADriverError:
        raise _without_probes("the RawModule") from None


def _nvcc(library: ctypes.CDLL, table: int) -> None:
    if error := getattr(library, HAND_OVER)(ctypes.c_void_p(table)):
        raise RuntimeError(f"cudaMemcpyToSymbol of the CUDA runtime failed with error {error}")


def _without_probes(what: str) -> Refusal:
    return Refusal(f"{what} holds no probes: compile it with -DWB_PROBES and -I{include_dir()}")
