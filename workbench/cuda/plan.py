"""What a kernel of ours is launched with on a case: its tiles, its buffers, its launches and their arguments."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from workbench import catalogue, contract
from workbench.arrays import as_numpy
from workbench.case import DTYPES, Case
from workbench.cuda.build import HEAD_DIMS, Constants
from workbench.cuda.kernels import KERNELS, Kernel
from workbench.faults import Fault
from workbench.refusal import Refusal
from workbench.stages import ALGORITHMS, probe_set, shape
from workbench.trace import Trace, blank, check

BLOCKS = (16, 32, 64, 128)
SHARED_LIMIT = 48 * 1024  # static shared memory of a block on every GPU from sm_50 on
GRID_LIMIT = 65535  # blocks along y and z

#: default tiles by padded head_dim: the largest square ones within SHARED_LIMIT
DEFAULT_BLOCKS = {32: 64, 64: 64, 128: 32}

#: elements behind each input of a kernel whose fault reads past its end: a tile of keys of the largest head_dim
GUARD = BLOCKS[-1] * HEAD_DIMS[-1]

# buffers that the kernels need whether they are dumped or not
_OWN_BUFFERS = ("partial_O", "partial_max", "partial_sum", "out", "lse")


@dataclass(frozen=True)
class Plan:
    """A kernel on a settled case, with fresh buffers."""

    kernel: Kernel
    faults: tuple[Fault, ...]
    trace: Trace  #: its stages are buffers, blank until the kernel has run
    arrays: dict[str, np.ndarray]  #: inputs and every buffer, as kernels take them
    guard: int  #: elements that must lie behind each input, so that no fault reads what is not ours

    @property
    def constants(self) -> Constants:
        """What the kernel is built with."""
        return constants(self.trace.case)

    def arguments(self, names: Sequence[str], dumped: Sequence[str], arrays: dict[str, Any]) -> tuple[Any, ...]:
        """Values of a launch's arguments by name, then the buffers of the stages it dumps, from `arrays`."""
        values = {**scalars(self.trace.case), **arrays}
        return tuple(values[name] for name in (*names, *dumped))


def plan(
    name: str, case: Case, *, faults_in: Sequence[str], probes: str, inputs: tuple[Any, Any, Any] | None = None
) -> Plan:
    """Kernel `name` on `case`, with the named faults put in. The trace knows no backend yet.

    `inputs` are q, k, v in the case's dtype, NumPy arrays or torch tensors; the case's own where None. Refusal for a
    case, fault or input that the kernel cannot take.
    """
    kernel = KERNELS[name]
    case = settle(kernel, case)
    chosen = catalogue.chosen(faults_in, name)
    q, k, v = case.inputs() if inputs is None else (as_numpy(x, f"{name}: inputs") for x in inputs)
    stages = ALGORITHMS[kernel.algorithm]
    wanted = probe_set(kernel.algorithm, probes)
    buffers = {
        stage: blank(shape(stages[stage], case.sizes), DTYPES[case.dtype] if stage == "out" else np.dtype(np.float32))
        for stage in stages
        if stage in wanted or stage in _OWN_BUFFERS
    }
    trace = Trace(
        target=name,
        algorithm=kernel.algorithm,
        case=case,
        contract=contract.of_kernel(case),
        inputs={"q": q, "k": k, "v": v},
        stages={stage: buffers[stage] for stage in wanted},
        requested=wanted,
        faults=tuple(fault.id for fault in chosen),
    )
    check(trace, name)
    guard = GUARD if any(fault.leaves_arrays for fault in chosen) else 0
    given = {name: _guarded(array, guard) for name, array in trace.inputs.items()}
    arrays = {name: _bits(array) for name, array in {**given, **buffers}.items()}
    return Plan(kernel, chosen, trace, arrays, guard)


def _guarded(array: np.ndarray, guard: int) -> np.ndarray:
    """The array with `guard` elements behind it in memory."""
    if not guard:
        return array
    room = np.zeros(array.size + guard, array.dtype)
    room[: array.size] = array.ravel()
    return room[: array.size].reshape(array.shape)


def settle(kernel: Kernel, case: Case) -> Case:
    """`case` with tiles and splits as `kernel` will run it; Refusal where it cannot."""
    if not kernel.splits and case.splits is not None:
        raise Refusal(f"kernel {kernel.name} does not split the keys and takes no splits; got splits={case.splits}")
    if case.head_dim > HEAD_DIMS[-1]:
        raise Refusal(f"kernel {kernel.name} takes head_dim 1 to {HEAD_DIMS[-1]}; got {case.head_dim}")
    if case.probs_dtype not in (None, "float32", case.dtype):
        raise Refusal(
            f"kernel {kernel.name} casts probs to float32 or to the dtype of its inputs, {case.dtype}; "
            f"got probs_dtype={case.probs_dtype}"
        )
    default = DEFAULT_BLOCKS[_padded(case.head_dim)]
    case = case.but(
        splits=(case.splits or 2) if kernel.splits else None,
        block_q=case.block_q or default,
        block_k=case.block_k or default,
    )
    for name in ("block_q", "block_k"):
        if getattr(case, name) not in BLOCKS:
            raise Refusal(f"{name} is one of {', '.join(map(str, BLOCKS))}; got {getattr(case, name)}")
    needed = constants(case).shared_bytes
    if needed > SHARED_LIMIT:
        raise Refusal(
            f"tiles must fit in {SHARED_LIMIT} bytes of shared memory; block_q={case.block_q}, block_k={case.block_k} "
            f"at head_dim={case.head_dim} (padded to {_padded(case.head_dim)}) need {needed}: choose smaller blocks"
        )
    columns = case.heads * (case.splits or 1)
    if columns > GRID_LIMIT or case.batch > GRID_LIMIT:
        raise Refusal(
            f"a grid has at most {GRID_LIMIT} blocks along heads * splits and along batch; "
            f"got {columns} and {case.batch}"
        )
    return case


def _padded(head_dim: int) -> int:
    return next(size for size in HEAD_DIMS if size >= head_dim)


def constants(case: Case) -> Constants:
    """The constants that a settled case is built with."""
    assert case.block_q is not None and case.block_k is not None
    return Constants(case.block_q, case.block_k, _padded(case.head_dim), case.dtype, case.probs_dtype or "float32")


def launches(case: Case, kernel: Kernel) -> list[tuple[str, tuple[int, int, int], tuple[str, ...]]]:
    """Function, grid and argument names of every launch, in order."""
    assert case.block_q is not None
    query_tiles = -(-case.seqlen_q // case.block_q)
    mask = ("scale", "causal", "diagonal")
    if kernel.name == "flash":
        return [("flash_forward", (query_tiles, case.heads, case.batch), ("q", "k", "v", "out", "lse", *mask))]
    partials = ("partial_O", "partial_max", "partial_sum")
    return [
        (
            "split_k_partial",
            (query_tiles, case.heads * (case.splits or 1), case.batch),
            ("q", "k", "v", *partials, *mask),
        ),
        ("split_k_reduce", (query_tiles, case.heads, case.batch), (*partials, "out", "lse")),
    ]


def scalars(case: Case) -> dict[str, Any]:
    """Scalar arguments of the kernels, by name."""
    return {"scale": np.float32(case.scale), "causal": case.causal, "diagonal": np.int32(case.diagonal)}


def _bits(array: np.ndarray) -> np.ndarray:
    """The array as kernels take it: bfloat16 as uint16 bits, which share the array's memory."""
    return array.view(np.uint16) if array.dtype == DTYPES["bfloat16"] else array
