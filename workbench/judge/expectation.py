"""What the stages of a trace should be: float64, from the dumped stages where there are any, else from q, k, v.

A trace is judged in parts (a few heads, a range of queries), which do not depend on each other.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np
from array_api_compat import array_namespace

from workbench import reference
from workbench.arrays import in_float64
from workbench.case import masks as mask
from workbench.case.contract import Contract
from workbench.case.stages import ALGORITHMS, INPUT_AXES, INPUTS, shape
from workbench.case.tiling import Tiling
from workbench.floats import round_to
from workbench.reference.budget import Problem, losses_of
from workbench.trace.slots import Slots
from workbench.trace.trace import Trace

_PARTIALS = ("partial_max", "partial_sum", "partial_O")
#: stages whose size depends on the maximum that was subtracted
_OF_MAXIMUM = ("correction", "probs", "probs_cast", "row_sum", "acc", "partial_sum", "partial_O")
#: stages that depend on where key tiles begin
BY_TILE = ("row_max", "correction", "probs", "probs_cast", "row_sum", "acc")
#: fields of a contract that budgets read and the reference does not, at all (but for whether it casts probs:
#: `Problem.cast_aware`) or unless they were declared
_OF_BUDGETS = frozenset(
    ("scores_dtype", "accumulation", "acc_accumulation", "mma_block", "mma_extra_bits", "exp_ulps", "exp_ulps_per_x")
) | {
    "fast_math",
    "exp_flushes",
    "exp_argument",
    "probs_normalised",
    "normalisation",
    "accumulator_dtype",
    "out_dtype",
    "out_rounding",
}
_READ_WHERE_DECLARED = frozenset(("probs_dtype", "probs_rounding", "partials_dtype", "partials_rounding"))
#: stages in the units of scores, where -inf may be a sentinel
SCORE_UNITS = ("scores", "row_max", "partial_max", "merge_max")


def readable(trace: Trace) -> dict[str, np.ndarray]:
    """The dumped stages that are whole and whose keys are known, so that other stages can be computed from them; as
    dumped. Stages of splits of unknown keys are read together: none could be made that fits the others.
    """
    known = {*trace.put_in, "scale_q", "scale_k", "scale_v"}
    if _reads_partials(trace):
        known |= {*_PARTIALS}
    whole = {name: stage for name, stage in trace.stages.items() if name not in trace.sparse}
    return {name: stage for name, stage in whole.items() if name in known or not unjudgeable(trace, name)}


def unjudgeable(trace: Trace, name: str) -> str:
    """Why a stage cannot be judged however it looks; empty where it can."""
    if name in trace.put_in:
        return "it was put in"
    if trace.window is not None and name.startswith("scale_"):
        return "it is made of more than the window holds"
    before_attention = trace.algorithm == "fp8" and name not in ALGORITHMS["flash"]
    if before_attention and trace.case.codes is None and not name.startswith("dequant"):
        return "nobody told the format of the codes (--codes)"
    if name in BY_TILE and trace.contract.block_k is None:
        return "the contract does not tell block_k, so its key tiles are unknown"
    if name in _OF_MAXIMUM and trace.contract.row_max != "running" and "row_max" not in trace.stages:
        if name not in _PARTIALS or "partial_max" not in trace.stages:
            return "the contract does not bind row_max to the running maximum, and row_max was not given"
    if name in _PARTIALS and not split_keys_known(trace):
        return "the contract does not tell block_k and splits, so the keys of a split are unknown"
    if name == "merge_weight" and not _reads_partials(trace):
        return f"the contract does not tell block_k and splits, and not all of {', '.join(_PARTIALS)} were given"
    return ""


def free_maxima(trace: Trace) -> list[str]:
    """Dumped maxima that the contract does not bind to the stages before them, so that later ones are computed from
    them: row_max, and partial_max where that is not what was dumped of row_max.
    """
    if trace.contract.row_max == "running":
        return []
    found = [name for name in ("row_max", "partial_max") if name in trace.stages and name not in trace.sparse]
    return [name for name in found if not unjudgeable(trace, name)][:1]


def hides_maxima(trace: Trace) -> bool:
    """Whether the only maxima that are known of a kernel that was free to choose them are those of its splits. What it
    subtracted before a split's last tile cancels but for roundings: it may as well have been the last one throughout.
    """
    return free_maxima(trace) == ["partial_max"]


def by_tile(partial_max: np.ndarray, tiles: Tiling) -> np.ndarray:
    """The maximum of each split [b, h, s, q] at all of its tiles, [b, h, q, t]."""
    split_of = {t: s for s, own in enumerate(tiles.splits) for t in own}
    order = [split_of[t] for t in range(len(tiles.keys))]
    return array_namespace(partial_max).moveaxis(partial_max[:, :, order], 2, -1)


def split_keys_known(trace: Trace) -> bool:
    """Whether the contract tells which keys each split has."""
    promise = trace.contract
    return promise.split_bounds is not None or (promise.block_k is not None and promise.splits is not None)


def _reads_partials(trace: Trace) -> bool:
    """Whether stages can be computed from partial results: of known keys, or from all that a merge reads."""
    return split_keys_known(trace) or set(_PARTIALS) <= set(trace.stages) - set(trace.sparse)


def splits(trace: Trace) -> int:
    """Splits of the kernel: declared, else as many as its partial results have."""
    if trace.contract.splits is not None:
        return trace.contract.splits
    known = ALGORITHMS[trace.algorithm]
    sizes = {
        stage.shape[known[name].axes.index("s")] for name, stage in trace.stages.items() if "s" in known[name].axes
    }
    return next(iter(sizes), 1)


def tiling_of(trace: Trace) -> Tiling:
    """The key tiles of a row and of its splits, as far as they are known: all keys in one where they are not."""
    return trace.contract.tiling(trace.case.seqlen_k, splits(trace))


def sizes_of(trace: Trace) -> dict[str, int]:
    """Size of every stage axis, of tiles and splits as far as they are known."""
    tiles = tiling_of(trace)
    return trace.case.sizes | {"t": len(tiles.keys), "s": len(tiles.splits)}


class Part(NamedTuple):
    """Some batches, heads and queries of a trace; a slice each, of heads those of whole groups or of one head."""

    b: slice = slice(None)
    h: slice = slice(None)
    q: slice | np.ndarray = slice(None)

    def of(self, array: np.ndarray, axes: str) -> np.ndarray:
        """The part of an array with the axes `axes`."""
        cuts: list[Any] = [getattr(self, axis) if axis in "bhq" else slice(None) for axis in axes]
        return array[tuple(cuts)]

    def narrowed(self, rows: slice) -> "Part":
        """Some queries of the part, counted from its first; its queries are a slice with a start."""
        assert isinstance(self.q, slice)
        return self._replace(q=slice(self.q.start + rows.start, self.q.start + rows.stop))

    def of_input(self, trace: Trace, name: str, array: np.ndarray) -> np.ndarray:
        """What the part reads of an array of the shape of the input `name`; of k and v whole heads."""
        heads, group = range(trace.case.heads)[self.h], trace.case.heads // trace.case.kv_heads
        keys = Part(self.b, slice(heads.start // group, (heads.stop - 1) // group + 1))
        return (self if name == "q" else keys).of(array, INPUT_AXES[name])

    def visible(self, trace: Trace) -> np.ndarray:
        """Which keys its queries see, bool [q, k], or [b, h, q, k] where a mask was put in."""
        found = mask.visible(trace.case, trace.inputs, self.q)
        return found if found.ndim == 2 else self._replace(q=slice(None)).of(found, "bhqk")

    def bias(self, trace: Trace) -> np.ndarray | None:
        """What is added to its scores, a view of [b, h, q, k]; None without one."""
        added = mask.bias(trace.case, trace.inputs)
        return None if added is None else self.of(added, "bhqk")


WHOLE = Part()


@dataclass(frozen=True)
class Expectation:
    """A part of a trace in float64, and what its stages should be."""

    trace: Trace
    dumped: Mapping[str, np.ndarray]  #: stages that others are computed from, whole and as dumped
    part: Part = WHOLE
    device: str = "cpu"  #: where it is computed: cpu in NumPy, cuda in torch
    statistics: bool = True  #: whether its budgets are to have statistical bounds
    typical: bool = False  #: whether these are to be those of a typical error instead of the largest

    @cached_property
    def inputs(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """q, k and v; of k and v the heads that the queries read."""
        return tuple(self._input(self.trace.inputs[name], name) for name in INPUTS)  # type: ignore[return-value]

    def _input(self, x: np.ndarray, name: str) -> np.ndarray:
        """What the part reads of an array of the shape of the input `name`, in float64."""
        return in_float64(self.part.of_input(self.trace, name, x), self.device)

    def value(self, name: str) -> np.ndarray:
        """The part of a dumped stage, in natural units, -inf where its kernel has a sentinel."""
        stage = self.part.of(self.trace.stages[name] if name not in self.dumped else self.dumped[name], self.axes(name))
        return natural(self.trace, name, stage, self.device)

    def axes(self, name: str) -> str:
        """Axis letters of a stage."""
        return ALGORITHMS[self.trace.algorithm][name].axes

    @cached_property
    def given(self) -> dict[str, np.ndarray]:
        """The dumped stages that others are computed from, and maxima that the kernel was free to choose."""
        chosen = [name for name in free_maxima(self.trace) if name not in self.dumped]
        found = {name: self._filled(name, self.value(name)) for name in (*self.dumped, *chosen)}
        if hides_maxima(self.trace):
            found["row_max"] = by_tile(found["partial_max"], tiling_of(self.trace))
        return found

    def _filled(self, name: str, value: np.ndarray) -> np.ndarray:
        open_ = self.open_slots(name)
        return value if open_ is None else self._slots.filled(name, self.axes(name), value, open_)

    def open_slots(self, name: str) -> np.ndarray | None:
        """Which slots of a stage hold nothing to judge, bool that broadcasts to it; None for none."""
        found = self._slots.open(name, self.axes(name))
        return None if found is None else in_bool(found, self.device)

    @cached_property
    def _slots(self) -> Slots:
        visible = self.visible if self.visible.ndim == 4 else self.visible[None, None]
        if "bias" in self.trace.inputs:
            bias = self.part.of(mask.spread(self.trace.case, self.trace.inputs["bias"]), "bhqk")
            visible = visible & (bias != -np.inf)
        return Slots(self.trace.contract, tiling_of(self.trace), visible)

    @property
    def visible(self) -> np.ndarray:
        """Which keys a query of the part sees, bool [q, k] or [b, h, q, k]."""
        return self.part.visible(self.trace)

    @cached_property
    def problem(self) -> Problem:
        """What the budgets are computed from."""
        q, k, v = self.inputs
        trace, known = self.trace, ALGORITHMS[self.trace.algorithm]
        added = self.part.bias(trace)
        sizes = sizes_of(trace)
        return Problem(
            algorithm=trace.algorithm,
            contract=trace.contract,
            losses=losses_of(trace.contract),
            q=q,
            k=k,
            v=v,
            scale=trace.case.scale,
            bias=None if added is None else in_float64(added, self.device),
            exact_products=trace.case.dtype != "float32",
            tiling=tiling_of(trace),
            hidden_maxima=hides_maxima(trace),
            computed={},
            given=self.given,
            statistics=self.statistics,
            input_errors={name: self._input(x, name) for name, x in trace.input_errors.items()},
            elements={name: None if self.typical else int(np.prod(shape(x, sizes))) for name, x in known.items()},
        )

    @cached_property
    def computed(self) -> dict[str, np.ndarray]:
        """Every stage, computed from the dumped ones where there are any."""
        return self.recomputed({})

    def recomputed(self, instead: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """As `computed`, with other values for some stages."""
        trace, problem = self.trace, self.problem
        contract = trace.contract
        tiles = contract.block_k or trace.case.seqlen_k
        options: dict[str, Any] = {"row_sum_of_cast": contract.row_sum_of_cast is True, "block_k": tiles}
        if trace.algorithm != "fp8":
            options |= {"splits": splits(trace), "split_bounds": contract.split_bounds}
        options["free_maxima"] = contract.row_max != "running"
        options["tile_order"] = "ascending" if contract.block_k is None else contract.tile_order
        options["cast"] = _cast(trace.contract, "probs") if problem.cast_aware else None
        if trace.algorithm == "split_k":
            predicted = problem.predicted("partials") and trace.contract.partials_dtype != "float32"
            options["partial_cast"] = _cast(trace.contract, "partials") if predicted else None
        q, k, v = self.inputs
        visible = in_bool(self.visible, self.device)
        given = {**self.given, **instead}
        return reference.forward(
            trace.algorithm, q, k, v, mask=visible, bias=problem.bias, given=given, scale=trace.case.scale, **options,
        )  # fmt: skip

    @cached_property
    def solved(self) -> Problem:
        """The problem with what the reference computed."""
        return replace(self.problem, computed=self.computed)

    def under(self, contract: Contract) -> "Expectation":
        """The same part of a kernel with another contract, without statistical bounds; where budgets alone tell the two
        apart, what was computed here is not computed again.
        """
        before = self.trace.contract
        other = replace(self, trace=replace(self.trace, contract=contract), statistics=False)
        undeclared = {*before.assumed} & {*contract.assumed} & _READ_WHERE_DECLARED
        differing = {field.name for field in fields(Contract) if field.name != "assumed"} - _OF_BUDGETS - undeclared
        differing = {name for name in differing if getattr(before, name) != getattr(contract, name)}
        # unknown is computed as if it were not
        if bool(before.row_sum_of_cast) == bool(contract.row_sum_of_cast):
            differing -= {"row_sum_of_cast"}
        if not differing and {*before.assumed} ^ {*contract.assumed} <= _OF_BUDGETS:
            vars(other).update(inputs=self.inputs, given=self.given)
            if other.problem.cast_aware == self.problem.cast_aware:
                vars(other).update(computed=self.computed)
        return other


def in_bool(mask: np.ndarray, device: str) -> np.ndarray:
    """The mask where the other arrays are."""
    if device == "cpu":
        return mask
    import torch

    return torch.from_numpy(np.ascontiguousarray(mask)).to(device)  # type: ignore[return-value]


def unit(trace: Trace, name: str) -> float:
    """What the kernel's scores and maxima are of natural ones: log2(e) times in base 2, without the scale where they
    are raw; 1 for any other stage.
    """
    if name not in SCORE_UNITS:
        return 1.0
    if not trace.contract.scores_scaled:
        return 1 / trace.case.scale
    return float(np.log2(np.e)) if trace.contract.base2 else 1.0


def natural(trace: Trace, name: str, stage: np.ndarray, device: str = "cpu") -> np.ndarray:
    """A dumped stage in float64, its scores and maxima in natural units and -inf where the kernel has a sentinel."""
    value, factor = in_stored_units(trace.contract, name, stage, device), unit(trace, name)
    return value if factor == 1 else value / factor


def in_stored_units(contract: Contract, name: str, stage: np.ndarray, device: str) -> np.ndarray:
    """A dumped stage in float64, in the kernel's own units, but -inf where it has a sentinel."""
    value = in_float64(stage, device)
    if name in SCORE_UNITS and np.isfinite(contract.mask_sentinel):
        # a mask that adds the sentinel leaves a score of it
        value[value <= contract.mask_sentinel / 2] = -np.inf
    return value


def _cast(contract: Contract, field: str) -> Any:
    """The declared rounding of probs or partials."""
    return partial(
        round_to,
        dtype=getattr(contract, f"{field}_dtype"),
        toward_zero=getattr(contract, f"{field}_rounding") == "toward-zero",
        saturates=contract.saturates,
    )
