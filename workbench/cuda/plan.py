"""What a kernel of ours is launched with on a case: its tiles, its buffers, its launches and their arguments."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np

from workbench.case.box import Box, parse, sizes_of
from workbench.case.case import Case
from workbench.case.contract import Contract
from workbench.case.formats import FORMATS
from workbench.case.inputs import by_name, put_in
from workbench.case.options import Options
from workbench.case.stages import (
    ALGORITHMS,
    INPUTS,
    MASKS,
    OF_QUANTISER,
    PROBE_SETS,
    STAGES,
    absent,
    probe_set,
    scaled,
    shape,
)
from workbench.cuda import arrays as in_memory
from workbench.cuda import effect, quantised
from workbench.cuda.arrays import View
from workbench.cuda.build import Build
from workbench.cuda.faults import catalogue
from workbench.cuda.faults.fault import Fault
from workbench.cuda.kernel import DYNAMIC_SHARED, HEAD_DIMS, LARGEST_BLOCK, STATIC_SHARED, Constants, Kernel, Launch
from workbench.cuda.kernels import KERNELS
from workbench.floats import DTYPES
from workbench.refusal import Refusal
from workbench.trace import dont_care
from workbench.trace.trace import Trace, blank, check

GRID_LIMIT = 65535  # blocks along y and z

#: elements behind each input of a kernel whose fault reads past its end: a tile of keys of the largest head_dim
GUARD = LARGEST_BLOCK * HEAD_DIMS[-1]

_PARTIALS = ("partial_O", "partial_max", "partial_sum")
#: buffers that the kernels need whether they are dumped or not
OWN_BUFFERS = (*_PARTIALS, "out", "lse")


@dataclass(frozen=True)
class Plan:
    """A kernel on a resolved case, with fresh buffers."""

    kernel: Kernel
    faults: tuple[Fault, ...]
    trace: Trace  #: its stages are buffers, blank until the kernel has run
    inputs: tuple[str, ...]  #: names of the arrays that are full before the first launch
    arrays: dict[str, np.ndarray]  #: inputs and every buffer, as kernels take them
    views: dict[str, View]  #: arguments of kernels that are views of arrays
    guard: int  #: elements that must lie behind each input, so that no fault reads what is not ours
    box: Box | None = None  #: to which the dumps are limited

    @property
    def constants(self) -> Constants:
        """What the kernel is built with."""
        return self.kernel.constants(self.trace.case, tuple(self.trace.inputs))

    def arguments(self, built: Build, arrays: dict[str, Any]) -> tuple[Any, ...]:
        """Values of a build's arguments: its parameters by name, then the box and the stages it dumps, from
        `arrays`, which are those of the plan with its views, where the backend can reach them. Refusal where a fault
        reads what the case has not.
        """
        values = {**scalars(self.trace.case), **arrays}
        if lacking := [name for name in built.parameters if name not in values]:
            needs = {name: value for fault in self.faults for name, value in fault.needs.items()}
            raise Refusal(
                f"{', '.join(self.trace.faults)} reads {', '.join(lacking)}, which {self.kernel.name} lacks for this "
                f"case; it shows with {', '.join(f'{name}={value}' for name, value in needs.items())}"
            )
        box = ("box",) if self.box is not None and built.probes else ()
        return tuple(values[name] for name in (*built.parameters, *box, *built.probes))

    def unpack(self) -> None:
        """Put out and lse into the trace's boxes, where kernels wrote them otherwise."""
        if "out" in self.views:
            in_memory.unpack(self.trace.case, self.arrays, self.trace.stages)

    def exempt(self, name: str) -> np.ndarray | None:
        """Which elements of a stage's buffer are of no query or key of their sequence, bool that broadcasts to it; None
        for none.
        """
        case = self.trace.case
        if name not in STAGES or name in self.views:
            return None
        return dont_care.of_case(case, self.trace.contract, case.mask()).mask(STAGES[name])

    @property
    def boxed(self) -> tuple[str, ...]:
        """Stages whose buffers hold no more than the box, where there is one."""
        return tuple(stage for stage in self.trace.stages if stage not in (*OWN_BUFFERS, *OF_QUANTISER))


def plan(name: str, case: Case, options: Options, *, again: bool = False) -> Plan:
    """Kernel `name` on `case`, with the faults of the options put in. The trace knows no backend yet.

    Of the options, `inputs` are those of `inputs.normalised`, the case's own where None; `feed` are arrays, in place of
    what the quantiser or an earlier launch makes, with the axes of the stages; `where` limits the dumps, and the trace
    is of the whole case still. `again`: who asks for the case did not choose the faults, and may have one that is
    in no line of it. Refusal for a case, fault, input or feed that the kernel cannot take, and for dumps of more than
    `limit_gb`.
    """
    kernel, feed = KERNELS[name], options.feed
    case = resolve(kernel, case)
    chosen = catalogue.chosen(options.faults, name)
    given = by_name(case, options.inputs)
    read = {x: given[x] for x in INPUTS if x in given}
    left = tuple(stage for launch in kernel.launches(case) for stage in launch.leaves)
    between = OF_QUANTISER if kernel.quantised else left
    if unknown := [stage for stage in feed if stage not in between]:
        raise Refusal(f"kernel {name} can be fed {', '.join(between) or 'no stages'}; got {', '.join(unknown)}")
    codes = put_in({**given, **feed}, case, f"kernel {name}")
    beside = {x: given[x] for x in MASKS if x in given}
    if not again:
        launched = [one.function for one in launches(case, kernel, tuple(feed))]
        effect.check(kernel, case, kernel.constants(case, (*read, *beside)), chosen, launched)
    if beside and not kernel.masks:
        raise Refusal(f"kernel {name} takes no mask and no bias; got {', '.join(beside)}")
    wanted = requested(kernel, case, options.probes)
    box = None if options.where is None else parse(options.where, case)
    check_fits(kernel, case, wanted, box, options.limit_gb)
    buffers = {stage: blank(dims, dtype) for stage, (dims, dtype) in buffers_of(kernel, case, wanted, box).items()}
    if kernel.quantised:
        read = {x: array.astype(DTYPES[case.dtype]) for x, array in read.items()}
    elif codes:
        raise Refusal(f"kernel {name} takes no quantised codes; got {', '.join(codes)}")
    trace = Trace(
        target=name,
        algorithm=scaled(kernel.algorithm, case.scale_of),
        case=case,
        contract=replace(kernel.contract(case), **{k: x for fault in chosen for k, x in fault.promises(case).items()}),
        inputs={**read, **beside},
        stages={**codes, **feed},
        requested=wanted,
        put_in=tuple(dict.fromkeys((*codes, *feed))),
        faults=tuple(fault.id for fault in chosen),
    )
    check(trace, name)
    if kernel.quantised:
        coded = quantised.encoded(case, read, codes, chosen)
        buffers |= coded
        read = {x: read[x] for x in INPUTS if x not in case.coded} | quantised.in_memory(case, coded)
        views: dict[str, View] = {}
    else:
        read, views = in_memory.laid(case, {**read, **beside})
    buffers |= {stage: np.array(feed[stage], np.float32) for stage in left if stage in feed}
    trace = replace(trace, stages={stage: buffers[stage] for stage in wanted})
    if "q" in views:
        packed, of_results = in_memory.results(case, buffers["out"], buffers["lse"])
        buffers, views = {**buffers, **packed}, {**views, **of_results}
    guard = GUARD if any(fault.leaves_arrays for fault in chosen) else 0
    guarded = {name: _guarded(array, guard) for name, array in read.items()}
    arrays = {name: in_memory.bits(array) for name, array in {**buffers, **guarded}.items()}
    if box is not None:
        edges = [*box.edges().values(), box.of_kv(case).edges()["h"]]
        arrays["box"] = np.array(edges, np.int32).ravel()
    return Plan(kernel, chosen, trace, tuple(guarded), arrays, views, guard, box)


def buffers_of(
    kernel: Kernel, case: Case, wanted: Sequence[str], box: Box | None
) -> dict[str, tuple[tuple[int, ...], np.dtype]]:
    """Shape and dtype of every stage that a kernel writes; one that is only dumped is no larger than the box."""
    dtypes = _dtypes(kernel.contract(case))
    limited = sizes_of(case, box)
    return {
        name: (shape(stage, case.sizes if name in OWN_BUFFERS else limited), dtypes.get(name, np.dtype(np.float32)))
        for name, stage in ALGORITHMS[scaled(kernel.algorithm, case.scale_of)].items()
        if (name in wanted or name in OWN_BUFFERS) and name not in OF_QUANTISER
    }


def _dtypes(promise: Contract) -> dict[str, np.dtype]:
    """Dtypes of the stages that are not float32; the codes, uint8, are no buffer of a kernel's own."""
    decoded = dict.fromkeys(("dequant_q", "dequant_k", "dequant_v"), DTYPES[promise.operands_dtype])
    return {**decoded, "out": DTYPES[promise.out_dtype]}


def dump_bytes(kernel: Kernel, case: Case, wanted: Sequence[str], box: Box | None) -> int:
    """Bytes of all stages that a run on a resolved case dumps."""
    return sum(prod(dims) * dtype.itemsize for dims, dtype in buffers_of(kernel, case, wanted, box).values())


def check_fits(kernel: Kernel, case: Case, wanted: Sequence[str], box: Box | None, limit_gb: float) -> None:
    """Refusal where the dumps are more than `limit_gb`, with a box whose are not."""
    needed = dump_bytes(kernel, case, wanted, box)
    if needed <= limit_gb * 1e9:
        return
    b, h, first = (0, 0, 0) if box is None else box.offset("bhq")
    end = case.seqlen_q if box is None else box.edges()["q"][1]
    for rows in (end, *(1 << n for n in range(20, -1, -1))):
        smaller = parse(f"b={b},h={h},q={first}:{min(first + rows, end)}", case)
        size = dump_bytes(kernel, case, wanted, smaller)
        if size <= limit_gb * 1e9:
            advice = f"--where {smaller} ({size / 1e9:.2g} GB) fits"
            break
    else:
        advice = "no part fits"
    raise Refusal(
        f"the dumps of this run take {needed / 1e9:.3g} GB; the limit is {limit_gb:g} GB (--probes limit_gb). "
        f"{advice}; --by-head dumps one head at a time; fewer --probes take less"
    )


def requested(kernel: Kernel, case: Case, probes: str) -> tuple[str, ...]:
    """Stages that a run of `kernel` on a resolved case has to dump for the probe set `probes`."""
    kinds = () if case.codes is None else FORMATS[case.codes].kinds
    lacks = {*absent(decode=case.decode, numbers=case.numbers, kinds=kinds, coded=case.coded), *kernel.without}
    wanted = probe_set(scaled(kernel.algorithm, case.scale_of), probes, case.numbers)
    asked = [name.strip() for name in probes.split(",")]
    if probes not in PROBE_SETS and (named := [stage for stage in asked if stage in lacks]):
        how = f"decode={case.decode}" if case.coded == "qkv" else f"decode={case.decode}, codes_of={case.codes_of}"
        raise Refusal(f"{kernel.name} with {how} has no stage {', '.join(named)}; got probes={probes}")
    return tuple(stage for stage in wanted if stage not in lacks)


def _guarded(array: np.ndarray, guard: int) -> np.ndarray:
    """The array with `guard` elements behind it in memory."""
    if not guard:
        return array
    room = np.zeros(array.size + guard, array.dtype)
    room[: array.size] = array.ravel()
    return room[: array.size].reshape(array.shape)


def resolve(kernel: Kernel, case: Case) -> Case:
    """`case` with tiles and splits as `kernel` will run it; Refusal where it cannot."""
    if not kernel.splits and case.splits is not None:
        raise Refusal(f"kernel {kernel.name} takes no splits; got splits={case.splits}")
    case = kernel.resolves(kernel, case)
    constants = kernel.constants(case)
    needed = constants.shared_bytes
    limit = DYNAMIC_SHARED if kernel.dynamic else STATIC_SHARED
    if needed > limit:
        raise Refusal(
            f"tiles must fit in {limit} bytes of shared memory; block_q={case.block_q}, block_k={case.block_k} "
            f"at head_dim={case.head_dim} (padded to {constants.head_dim}) need {needed}: choose smaller blocks"
        )
    columns = case.heads * (case.splits or 1)
    if columns > GRID_LIMIT or case.batch > GRID_LIMIT:
        raise Refusal(
            f"heads * splits and batch may each be at most {GRID_LIMIT}, the limit of a grid; got {columns} and "
            f"{case.batch}"
        )
    return case


def launches(case: Case, kernel: Kernel, fed: Sequence[str] = ()) -> list[Launch]:
    """Every launch on a resolved case, in order; without one all of whose results are `fed`."""
    return [one for one in kernel.launches(case) if not one.leaves or not {*one.leaves} <= {*fed}]


def scalars(case: Case) -> dict[str, Any]:
    """Scalar arguments of the kernels, by name."""
    left, right = case.window or (-1, -1)
    unlimited = case.seqlen_q + case.seqlen_k  # further than any key is from the diagonal
    return {
        "scale": np.float32(case.scale),
        "softcap": np.float32(case.softcap or 0),
        "causal": case.causal,
        "diagonal": np.int32(case.diagonal),
        "left": np.int32(unlimited if left == -1 else left),
        "right": np.int32(unlimited if right == -1 else right),
        "bottom_right": case.causal_alignment == "bottom-right",
        "max_seqlen_k": np.int32(case.seqlen_k),
        "keep_scale": np.float32(1 / (1 - (case.dropout_p or 0))),
    }
