"""A trace: every dumped stage of one run, with the case, the contract and where it came from."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple, Protocol

import ml_dtypes
import numpy as np

from workbench.case import masks
from workbench.case.case import Case
from workbench.case.contract import Contract
from workbench.case.distributions import shapes
from workbench.case.formats import kinds_of
from workbench.case.options import Options
from workbench.case.ranks import Rank
from workbench.case.stages import ALGORITHMS, INPUT_AXES, INPUTS, MASKS, merges, shape, stages_of
from workbench.floats import DTYPES, to_float64
from workbench.line import Line
from workbench.refusal import Refusal

if TYPE_CHECKING:
    from workbench.case.box import Box
    from workbench.trace.provenance import Provenance

# A slot that nobody wrote holds a signalling NaN of our own. Arithmetic turns any signalling NaN into a quiet one, so
# that no computed value can be taken for it; copies keep it bit for bit.
_UNWRITTEN_BITS: Mapping[np.dtype, np.uint32 | np.uint16] = {
    np.dtype(np.float32): np.uint32(0x7FA0BEEF),
    np.dtype(np.float16): np.uint16(0x7D5A),
    np.dtype(ml_dtypes.bfloat16): np.uint16(0x7FA5),
}


def blank(dims: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """A buffer of unwritten slots; dtype float32, float16 or bfloat16."""
    bits = _UNWRITTEN_BITS[np.dtype(dtype)]
    return np.full(dims, bits).view(dtype)


def unwritten(stage: np.ndarray) -> np.ndarray:
    """Which slots of a dumped stage were never written, bool; all False for a dtype that `blank` does not make."""
    bits = _UNWRITTEN_BITS.get(stage.dtype)
    if bits is None:
        return np.zeros(stage.shape, bool)
    return np.ascontiguousarray(stage).view(bits.dtype).reshape(stage.shape) == bits


class Rerun(Protocol):
    """Runs one kernel, as it was run before, on other cases: the one way in which what judges runs what it judges."""

    def __call__(self, case: Case, inputs: Mapping[str, np.ndarray] | None = None, /) -> "Trace":
        """The trace of the kernel on `case`; on `inputs` by name (q, k, v, mask, bias) in place of the case's own."""


class Part(NamedTuple):
    """Numbers of a part of an input."""

    at: "Box"  #: which; of k and v whole heads
    values: np.ndarray  #: of its shape, or what broadcasts to it


class Resident(Protocol):
    """Runs one kernel on arrays that stay on its device."""

    def __call__(self, changed: Mapping[str, Part], part: "Box", /) -> dict[str, np.ndarray]:
        """A part of out, and of lse where it is returned, of the run's own inputs but for those that were `changed`."""


@dataclass(frozen=True, repr=False)
class Trace:
    """What one run of a kernel left behind.

    >>> from workbench import Case, run
    >>> trace = run("examples/numpy_attention.py:attention", Case(seqlen=16, head_dim=8))
    >>> trace
    <Trace of examples/numpy_attention.py:attention: scores, out>
    >>> trace.stages["scores"].shape, trace.inputs["q"].shape
    ((1, 1, 16, 16), (1, 1, 16, 8))
    """

    target: str  #: name of a kernel, or path.py:function
    algorithm: str  #: whose stages these are, by the name of `stages.ALGORITHMS`
    case: Case  #: resolved: splits and tiles have their values where the kernel has them
    contract: Contract
    inputs: Mapping[str, np.ndarray]  #: q, k, v, mask, bias as the kernel read them; not what was put in as codes alone
    stages: Mapping[str, np.ndarray]  #: dumped stages by name
    requested: tuple[str, ...]  #: stages that the run had to dump; an absent one is missing. Empty for foreign kernels
    put_in: tuple[str, ...] = ()  #: stages that the run was given, such as codes from outside: they are not judged
    backend: str = "foreign"  #: emulator, cuda or foreign
    faults: tuple[str, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)  #: of what ran it
    #: name of an input -> float64 bounds of how far it may be from what the kernel read, where nobody saw that
    input_errors: Mapping[str, np.ndarray] = field(default_factory=dict, repr=False)
    #: of stages of which only some elements were given: how far each may be from what the kernel held (half a unit of
    #: the last digit that it printed), float64 of the stage's shape; NaN where none was given
    sparse: Mapping[str, np.ndarray] = field(default_factory=dict, repr=False)
    #: what went wrong with the run itself, such as an extension that was not rebuilt: it stands above any verdict
    gates: tuple[str, ...] = ()
    provenance: "Provenance | None" = None  #: what code ran, of a foreign run
    notes: tuple[str, ...] = ()  #: what a reader of the judgement should know of where the stages came from
    box: "Box | None" = None  #: what of the run this is, where it is not all; the case is then the box's own
    #: the same with the bias as it was given, where its numbers hide keys and this one has a mask in their place
    as_given: "Trace | None" = field(default=None, compare=False)
    whole: Case | None = None  #: the case that was run, where this is a box on it
    ranks: tuple[Rank, ...] = ()  #: the ranks whose keys the splits are, where these are of several
    #: options of the run beside the case, as a command line can say them (`Options.printable`); not kept in files
    called_with: Options = field(default=Options(), compare=False)
    #: runs the same kernel again, on a case or on inputs; None for a trace at rest, and of stages that were fed
    rerun: "Rerun | None" = field(default=None, repr=False, compare=False)
    #: whether that takes this case alone, with other numbers in q, k and v: a call in the middle of a model
    one_case: bool = field(default=False, compare=False)
    resident: "Resident | None" = field(default=None, repr=False, compare=False)  #: the same kernel without transfers
    #: kernels of numba.cuda that a foreign function launched, which can be watched; not kept in files
    launched: tuple[str, ...] = field(default=(), compare=False)
    #: tells `lines`, which cost milliseconds that a right run does without
    find_lines: Callable[[], Mapping[str, Line]] = field(default=dict, repr=False, compare=False)

    @cached_property
    def lines(self) -> Mapping[str, Line]:
        """Stage -> the line of source that computes it, of those of which that is clear."""
        return self.find_lines()

    def __repr__(self) -> str:
        return f"<Trace of {self.target}: {', '.join(self.stages)}>"

    @property
    def case_run(self) -> Case:
        """The case that was run, of which the trace may hold a part."""
        return self.case if self.whole is None else self.whole

    def added(self, part: "Box") -> masks.Added | None:
        """What is added to the scaled scores of a part of it; None without anything."""
        given = masks.spread(self.case, self.inputs["bias"]) if "bias" in self.inputs else None
        of_alibi = masks.alibi(self.case_run, *part.within(self.box))
        return masks.added(None if given is None else part.of(given, "bhqk"), of_alibi)

    def modified(self, part: "Box") -> Callable[[np.ndarray], np.ndarray] | None:
        """What the case's score_mod makes of the scores of a part of it, [b, h, q, k]; None without one."""
        if self.case.score_mod is None:
            return None
        return lambda scores: masks.modified(self.case_run, scores, *part.within(self.box))

    def kept(self, part: "Box") -> np.ndarray | None:
        """Which probs of a part of it dropout keeps, bool [b, h, q, k]; None without dropout."""
        if self.case.dropout_p is None:
            return None
        return part.of(masks.spread(self.case, self.inputs["dropout_mask"]), "bhqk")


def _sizes(case: Case, contract: Contract) -> dict[str, int]:
    """Size of every stage axis, of t and s where the contract tells tiles and splits."""
    tiles = contract.tiling(case.seqlen_k)
    told = {"t": contract.block_k is not None, "s": contract.splits is not None}
    found = {name: size for name, size in case.sizes.items() if name not in told}
    return found | {name: len(x) for name, x in (("t", tiles.keys), ("s", tiles.splits)) if told[name]}


def check_inputs(case: Case, inputs: Mapping[str, np.ndarray], where: str) -> None:
    """Refusal where one of `inputs` (of INPUTS and MASKS) does not fit the case or is infinite, or NaN of what is
    quantised, which has no scale then; `where` names them in messages.
    """
    dims = dict(zip(INPUTS, shapes(case), strict=True))
    for name in INPUTS:
        if name not in inputs:
            continue
        found = inputs[name]
        if found.shape != dims[name]:
            raise Refusal(f"{where}: {name} must have shape {list(dims[name])} for this case; got {list(found.shape)}")
        if found.dtype != DTYPES[case.dtype]:
            raise Refusal(f"{where}: {name} must have dtype {case.dtype}, the case's; got {found.dtype}")
        for head in np.ndindex(found.shape[:2]):  # float64 of one at a time
            values = to_float64(found[head])
            odd = np.isinf(values) if case.codes is None else ~np.isfinite(values)
            if odd.any():
                row = tuple(int(i) for i in np.argwhere(odd)[0])
                place = ", ".join(f"{axis}={i}" for axis, i in zip(INPUT_AXES[name], (*head, *row), strict=True))
                rule = "finite, or NaN" if case.codes is None else "finite"
                raise Refusal(f"{where}: inputs must be {rule}; {name} holds {values[row]} at {place}")
    whole = [case.batch, case.heads, case.seqlen_q, case.seqlen_k]
    if case.shared_kv and {"k", "v"} <= {*inputs}:
        part = inputs["k"][..., : case.head_dim_v]
        if not np.array_equal(part, inputs["v"]):
            index = tuple(map(int, np.argwhere(part != inputs["v"])[0]))
            raise Refusal(
                f"{where}: with shared_kv, v is the first {case.head_dim_v} dims of k; at {list(index)} v holds "
                f"{inputs['v'][index]} and k {part[index]}"
            )
    if case.dropout_p is not None and "dropout_mask" not in inputs:
        raise Refusal(f"{where}: dropout_p={case.dropout_p:g} needs dropout_mask: which probs are kept")
    if case.dropout_p is None and "dropout_mask" in inputs:
        raise Refusal(f"{where}: dropout_mask needs dropout_p: kept probs are divided by 1 - dropout_p")
    for name in MASKS:
        shape = list(inputs[name].shape) if name in inputs else []
        fits = zip(reversed(shape), reversed(whole), strict=False)
        if len(shape) > len(whole) or not all(size in (1, full) for size, full in fits):
            raise Refusal(
                f"{where}: {name} must have shape {whole} or {whole[2:]} for this case, or 1 in places; got {shape}"
            )


def check(trace: Trace, where: str) -> Trace:
    """`trace` itself; Refusal where an input is missing, does not fit or is infinite, a stage is unknown or
    misshaped, or the contract is another algorithm's. `where` names it in messages.
    """
    for name in INPUTS:
        if name not in trace.inputs and not {f"codes_{name}", f"scale_{name}"} <= set(trace.put_in) & set(trace.stages):
            raise Refusal(f"{where}: {name} is missing, and so are its quantised codes and scales")
    check_inputs(trace.case, trace.inputs, where)
    return check_stages(trace, where)


def check_stages(trace: Trace, where: str) -> Trace:
    """The part of `check` that is about stages and the contract."""
    known = stages_of(trace.algorithm, trace.case.numbers, trace.case.coded, kinds_of(trace.case.codes))
    if not merges(trace.algorithm) and trace.contract.splits not in (None, 1):
        splitting = next(name for name, stages in ALGORITHMS.items() if merges(name) and {*known} <= {*stages})
        raise Refusal(
            f"{where}: {trace.algorithm} does not split keys, but its contract has splits={trace.contract.splits}; "
            f"kernels that split keys have the algorithm {splitting}"
        )
    if not trace.contract.scores_scaled and not trace.case.scale > 0:
        raise Refusal(
            f"{where}: scores_scaled=false needs a scale above 0; this case has scale={trace.case.scale:g}, for which "
            "the largest raw score is not the largest score"
        )
    sizes = _sizes(trace.case, trace.contract)
    for name, stage in trace.stages.items():
        if name not in known:
            raise Refusal(f"{where}: unknown stage {name!r}; stages of {trace.algorithm}: {', '.join(known)}")
        axes = known[name].axes
        for axis in set(axes) - set(sizes):  # tiles or splits that nobody declared take the size they have
            if stage.ndim == len(axes):
                sizes[axis] = max(stage.shape[axes.index(axis)], 1)
        expected = shape(known[name], sizes) if set(axes) <= set(sizes) else ("?",) * len(axes)
        if stage.shape != expected:
            raise Refusal(
                f"{where}: stage {name} has axes [{' '.join(axes)}] and must have shape {list(expected)} "
                f"for this case; got {list(stage.shape)}"
            )
    for name, errors in trace.sparse.items():
        if name not in trace.stages or errors.shape != trace.stages[name].shape:
            raise Refusal(f"{where}: the tolerances of {name} must have its shape")
        if not np.any(errors >= 0) or np.any(errors < 0):
            raise Refusal(
                f"{where}: the tolerances of {name} must be at least 0, or NaN where no element was given; at least "
                "one must not be NaN"
            )
    return trace
