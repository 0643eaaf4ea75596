"""What the stages of a trace should be: float64, from the dumped stages where there are any, else from q, k, v.

A trace is judged in parts (a few heads, a range of queries), which do not depend on each other.
"""

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, wraps
from typing import Any, NamedTuple, TypeVar
from weakref import WeakMethod

import numpy as np

from workbench.arrays import handed_over, in_float64, on_cpu
from workbench.case import masks
from workbench.case.box import WHOLE, Box
from workbench.case.case import Case, in_window
from workbench.case.contract import Contract
from workbench.case.masks import Added
from workbench.case.promises import LIBRARIES
from workbench.case.stages import INPUTS, RESULTS
from workbench.case.tiling import Tiling
from workbench.expectation.observed import Observed
from workbench.floats import array_namespace
from workbench.reference.bound import Budget
from workbench.reference.losses import losses_of
from workbench.reference.problem import Cut, Problem
from workbench.reference.walk import budgets, least, values
from workbench.trace.dont_care import DontCare
from workbench.trace.trace import unwritten

#: fields of a contract that budgets read and the reference does not, at all (but for whether it casts probs:
#: `Problem.cast_aware`) or unless they were declared
_OF_BUDGETS = frozenset((
    "scores_dtype", "accumulation", "acc_accumulation", "mma_block", "mma_extra_bits", "exp_ulps", "exp_ulps_per_x",
    "fast_math", "exp_polynomial", "tanh", "exp_flushes", "exp_argument", "probs_normalised", "normalisation",
    "accumulator_dtype", "out_dtype", "out_rounding", "scale_in",
))  # fmt: skip
#: whose value is what counts, whether it was declared or not
_BY_VALUE = frozenset(("partials", "partial_stats"))
_READ_WHERE_DECLARED = frozenset(("probs_dtype", "probs_rounding", "partials_dtype", "partials_rounding"))

Made = TypeVar("Made")


def _unless_known(make: Callable[[Any], Made]) -> "cached_property[Made]":
    """A property that is made once, by `make` unless `known` has it."""
    name = make.__name__

    @wraps(make)
    def made(self: "Expectation") -> Made:
        found: Made = self.known[name] if name in self.known else make(self)
        return found

    return cached_property(made)


class Conventions(NamedTuple):
    """What results may hold in rows without keys."""

    rows: np.ndarray  #: which these are, bool [b, h, q]
    by_numbers: np.ndarray  #: those of them of which the numbers are known that hide their keys
    #: out and lse -> value and budget, as arithmetic makes them of the numbers that hide, and of equal weights
    made: Mapping[str, tuple[np.ndarray, Budget]]
    reach: tuple[np.ndarray, np.ndarray]  #: the smallest and the largest v of the keys of a head, [b, h, q, d]


@dataclass(frozen=True)
class Expectation:
    """A part of a trace in float64, and what its stages should be: values (`computed`) and forward error bounds
    (`budgets`), both of the same `problem`.
    """

    run: Observed
    dumped: Mapping[str, np.ndarray]  #: stages that others are computed from, whole and as dumped
    part: Box = WHOLE
    device: str = "cpu"  #: where it is computed: cpu in NumPy, cuda in torch
    statistics: bool = True  #: whether its budgets are to have statistical bounds
    typical: bool = False  #: whether these are to be those of a typical error instead of the largest
    cut: Cut | None = None  #: the keys alone that its queries see (`cut.cuts`); None: all
    #: of `visible`, `inputs`, `given`, `problem` and `computed` those that are put in, by name; others are made
    known: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)

    @_unless_known
    def inputs(self) -> dict[str, np.ndarray]:
        """q, k and v; of k and v the heads that the queries read, and the keys that are not cut off."""
        return {name: self._input(self.run.trace.inputs[name], name) for name in INPUTS}

    def _input(self, x: np.ndarray, name: str) -> np.ndarray:
        """What the part reads of an array of the shape of the input `name`, in float64."""
        found = self.part.of_input(self.run.case, name, x)
        found = found if self.cut is None or name == "q" else found[:, :, self.cut.left]
        return in_float64(found, self.device)

    def value(self, name: str) -> np.ndarray:
        """The part of a dumped stage, in natural units, -inf where its kernel has a sentinel."""
        stage = self.part.of((self.dumped if name in self.dumped else self.run.dumped)[name], self.run.axes(name))
        return self.run.natural(name, stage, self.device)

    @_unless_known
    def given(self) -> dict[str, np.ndarray]:
        """The dumped stages that others are computed from, and maxima that the kernel was free to choose."""
        run = self.run
        found = {name: self._filled(name, self.value(name)) for name in dict.fromkeys((*self.dumped, *run.free_maxima))}
        if run.hides_maxima:
            (name,) = run.free_maxima
            last: Any = run.table[name].step
            found[last.of] = by_tile(found[name], run.tiling)
        return found

    def _filled(self, name: str, value: np.ndarray) -> np.ndarray:
        open_ = self.open_slots(name)
        if open_ is None:
            return value
        return self._dont_care.filled(self.run.known[name], value, open_, self.run.table[name].initial)

    def open_slots(self, name: str) -> np.ndarray | None:
        """The don't-care mask of a stage, bool that broadcasts to it; None for none."""
        found, left = self._dont_care.mask(self.run.known[name]), self._left_out(name)
        found = left if found is None else found if left is None else found | left
        found = None if found is None else in_bool(found, self.device)
        stage = self.run.known[name]
        if not (stage.of_exp and stage.axes.endswith("k")) or (known := self.conventions) is None:
            return found
        weights = known.rows[..., None]  # which lead to a result that may be of several kinds
        return weights if found is None else found | weights

    def _left_out(self, name: str) -> np.ndarray | None:
        """Mask of what a third-party kernel did not write, and need not, as it is masked; None for none."""
        if name not in self.run.dumped or self.run.trace.requested:
            return None
        left = unwritten(self.part.of(self.run.dumped[name], self.run.axes(name)))
        skippable = self._dont_care.skippable(self.run.known[name]) if left.any() else None
        return None if skippable is None else left & skippable

    @cached_property
    def _dont_care(self) -> DontCare:
        run = self.run
        sinks = self._sinks() if run.contract.sinks == "first" else None
        # a circle would keep 14 GB of a part on a GPU until the collector finds it
        see: Any = WeakMethod(self._seen)
        return DontCare(run.contract, run.tiling, lambda: see()(), self.part.present(run.case), sinks)

    def _seen(self) -> np.ndarray:
        """The keys that a query sees and whose score is not made -inf, bool [b, h, q, k], of which b and h may be 1."""
        visible = self.visible if self.visible.ndim == 4 else self.visible[None, None]
        return visible if self._added is None else visible & (self._added.bias != -np.inf)

    @cached_property
    def _added(self) -> Added | None:
        """What is added to the scaled scores of the part; None without anything."""
        return self.run.trace.added(self.part)

    @_unless_known
    def visible(self) -> np.ndarray:
        """Which keys a query of the part sees, bool [q, k] or [b, h, q, k]."""
        found = self.part.visible(self.run.case, self.run.trace.inputs)
        return found if self.cut is None else found[..., self.cut.left]

    def _mask(self) -> np.ndarray:
        """`visible` where the other arrays are."""
        case = self.run.case
        if self.device == "cpu" or case.ragged or "mask" in self.run.trace.inputs:
            return in_bool(self.visible, self.device)
        # a part on a GPU has 2^26 of them: made there in no time, made on the host and sent in 25 ms
        keys, rows = (handed_over(x, "torch", self.device) for x in case.places(self.part.q))
        return in_window(keys if self.cut is None else keys[self.cut.left], rows, *case.sides)

    @_unless_known
    def problem(self) -> Problem:
        """The part as arrays and numbers alone, which is all that the reference takes: inputs and dumped stages in
        float64 and natural units, the table of steps, and of the contract what each operation may lose.
        """
        run, trace, sizes = self.run, self.run.trace, self.run.sizes
        beside, added = self._beside(), self._added
        return Problem(
            table=run.table,
            contract=trace.contract,
            losses=losses_of(trace.contract, trace.case.numbers),
            inputs={**self.inputs, "mask": self._mask(), **beside},
            numbers=trace.case.numbers,
            attn_bias=self._bias(None if added is None else added.bias),
            bias_computed=self._bias(None if added is None else added.computed),
            score_mod=self._score_mod(),
            exact_products=trace.case.dtype != "float32",
            tiling=run.tiling,
            given=self.given,
            passes_over_nan=self.holds_nan,
            hidden_maxima=run.hides_maxima,
            statistics=self.statistics,
            cut=self.cut,
            input_errors={name: self._input(x, name) for name, x in trace.input_errors.items()},
            elements={
                name: None if self.typical else math.prod(sizes[axis] for axis in stage.axes)
                for name, stage in run.table.items()
            },
        )

    def _bias(self, x: np.ndarray | None) -> np.ndarray | None:
        return None if x is None else in_float64(x, self.device)

    def _score_mod(self) -> Callable[[np.ndarray], np.ndarray] | None:
        """The case's score_mod, which takes scores as an array of NumPy wherever they are; None without one."""
        mod = self.run.trace.modified(self.part)
        if mod is None or self.device == "cpu":
            return mod
        return lambda scores: in_float64(mod(on_cpu(scores)), self.device)

    def _sinks(self) -> np.ndarray | None:
        """The logits of sinks, float64 [1, h, 1]; None without any."""
        sinks = self.run.case.sink_logits
        return None if sinks is None else in_float64(sinks[self.part.h][None, :, None], self.device)

    def _beside(self) -> dict[str, np.ndarray]:
        """The logits of sinks, float64 [1, h, 1], and which probs are kept, bool [b, h, q, k], where there are any."""
        found = {}
        if (sinks := self._sinks()) is not None:
            found["sinks"] = sinks
        if (kept := self.run.trace.kept(self.part)) is not None:
            found["dropout_mask"] = in_bool(kept, self.device)
        return found

    @_unless_known
    def computed(self) -> dict[str, np.ndarray]:
        """Every stage in float64: what exact arithmetic makes of the dumped stages that it reads where there are any,
        so that an error counts in the stage that made it alone; else of q, k and v.
        """
        return values(self.problem)

    @cached_property
    def empty(self) -> np.ndarray:
        """Which rows have no keys, [b, h, q]."""
        return self.computed["lse"] == -np.inf

    @cached_property
    def without_keys(self) -> np.ndarray | None:
        """Rows that their masks leave no key, [b, h, q], whatever was computed of them; None where there are none."""
        if self.run.case.sinks is not None or bool((seen := self._seen().any(axis=-1)).all()):
            return None
        return in_bool(np.broadcast_to(~seen, self.inputs["q"].shape[:3]), self.device)

    @property
    def follows_libraries(self) -> bool:
        """Whether rows without keys may hold what libraries make: as their contract says, or as numbers hide keys, and
        no contract says that they may hold anything.
        """
        told = self.run.contract.empty_out
        return told == LIBRARIES or (self.run.trace.as_given is not None and told != "any")

    @cached_property
    def _given(self) -> tuple[Case, dict[str, np.ndarray]]:
        """The case and the inputs with masks and bias as they were given; q, k and v may be others by now."""
        trace = self.run.trace
        given = trace if trace.as_given is None else trace.as_given
        told = {name: getattr(given.case, name) for name in ("causal", "causal_alignment", "window")}
        return trace.case.but(**told), {**given.inputs, **{name: trace.inputs[name] for name in INPUTS}}

    @cached_property
    def _finite(self) -> np.ndarray:
        """Which keys of a row of the whole run, whose bias hides some, are hidden by no -inf and no mask, bool."""
        case, inputs = self._given
        finite = np.asarray(masks.spread(case, inputs["bias"]) > -np.inf)
        return finite & masks.spread(case, masks.visible(case, inputs))

    @cached_property
    def mean(self) -> dict[str, tuple[np.ndarray, Budget]]:
        """Out and lse of equal weights of all keys, or of those that finite numbers hide, each with its budget."""
        case, inputs = self._given
        even = {name: inputs[name] for name in INPUTS} | {"q": np.zeros_like(inputs["q"])}
        if self.run.trace.as_given is not None:
            even["mask"] = self._finite | ~self._finite.any(axis=-1, keepdims=True)
        return self._results_of(case.but(causal=False, window=None, alibi_slopes=None), even)

    @cached_property
    def conventions(self) -> Conventions | None:
        """What rows without keys may hold of which finite numbers hide the keys, or whose contract leaves it to
        libraries; None where there are none.
        """
        if (nothing := self.without_keys) is None or not self.follows_libraries:
            return None
        told, made = nothing & False, self.mean
        if self.run.trace.as_given is not None:
            told = nothing & in_bool(self.part.of(np.asarray(self._finite.any(axis=-1)), "bhq"), self.device)
            made = self._results_of(*self._given)
        rows = nothing if self.run.contract.empty_out == LIBRARIES else told
        if not bool(rows.any()):
            return None
        whole = self.part.of_input(self.run.case, "v", self.run.trace.inputs["v"])  # of which some may be cut off
        xp, v, shape = array_namespace(rows), in_float64(whole, self.device), (*rows.shape, whole.shape[-1])
        low, high = (
            xp.broadcast_to(xp.repeat(of(v, axis=-2, keepdims=True), shape[1] // v.shape[1], axis=1), shape)
            for of in (xp.min, xp.max)
        )
        return Conventions(rows, told, made, (low, high))

    def _results_of(self, case: Case, inputs: Mapping[str, np.ndarray]) -> dict[str, tuple[np.ndarray, Budget]]:
        """Out and lse of this part of another case from its q, k and v alone, each with its budget."""
        run = Observed(replace(self.run.trace, case=case, inputs=inputs, as_given=None))
        other = Expectation(run, {}, self.part, self.device, statistics=False)
        bounds = other.budgets((*RESULTS,))
        return {name: (other.computed[name], bounds[name]) for name in RESULTS}

    def budgets(self, names: Collection[str]) -> dict[str, Budget]:
        """The forward error bounds of each stage of `names`, about `computed`."""
        if not self.holds_nan:
            return budgets(self.problem, self.computed, names)
        without = self._without_nan
        return budgets(without, values(without), names)

    def least(self, names: Collection[str]) -> dict[str, np.ndarray]:
        """Lower bounds of the worst cases of those of `names` of which a cheap one is known."""
        return {} if self.holds_nan else least(self.problem, self.computed, names)

    @cached_property
    def holds_nan(self) -> bool:
        """Whether q, k or v hold a NaN."""
        return any(bool(array_namespace(x).isnan(x).any()) for x in self.inputs.values())

    @cached_property
    def _without_nan(self) -> Problem:
        """The same with 0 for each NaN of the inputs, and keys of which it makes a score masked: what it does not reach
        is the same, and has the same bounds.
        """
        p, xp = self.problem, array_namespace(self.problem.inputs["q"])
        cleaned = {name: xp.where(xp.isnan(p.inputs[name]), 0.0, p.inputs[name]) for name in INPUTS}
        scores = {**self.computed, **p.given}["scores"]
        given = {name: xp.where(xp.isnan(x), -np.inf, x) if name == "scores" else x for name, x in p.given.items()}
        seen = p.inputs["mask"] & ~xp.isnan(scores)
        return replace(p, inputs={**p.inputs, **cleaned, "mask": seen}, given=given)

    @cached_property
    def reached(self) -> tuple[Mapping[str, np.ndarray], Mapping[str, np.ndarray]]:
        """The stages by q, k and v alone, where these hold a NaN: as it spreads at most, and at least, where maxima and
        weights of 0 pass over it.
        """
        alone = replace(self.problem, given={})
        return values(replace(alone, passes_over_nan=False)), values(alone)

    def under(self, contract: Contract) -> "Expectation":
        """The same part of a kernel with another contract, without statistical bounds; where budgets alone tell the two
        apart, what was computed here is not computed again.
        """
        before = self.run.contract
        known: dict[str, Any] = {"visible": self.visible} if self.device == "cpu" else {}
        undeclared = before.open & contract.open & _READ_WHERE_DECLARED
        differing = {one.name for one in fields(Contract) if one.metadata} - _OF_BUDGETS - undeclared
        differing = {name for name in differing if getattr(before, name) != getattr(contract, name)}
        # unknown is computed as if it were not
        if bool(before.row_sum_of_cast) == bool(contract.row_sum_of_cast):
            differing -= {"row_sum_of_cast"}
        same = not differing and before.open ^ contract.open <= _OF_BUDGETS | _BY_VALUE
        if same:
            known.update(inputs=self.inputs, given=self.given)
        other = replace(self, run=self.run.under(contract), statistics=False, known=known)
        if same and other.problem.cast_aware == self.problem.cast_aware:
            return replace(other, known={**known, "problem": other.problem, "computed": self.computed})
        return other


def by_tile(partial_max: np.ndarray, tiles: Tiling) -> np.ndarray:
    """The maximum of each split [b, h, s, q] at all of its tiles, [b, h, q, t]."""
    split_of = {t: s for s, own in enumerate(tiles.splits) for t in own}
    order = [split_of[t] for t in range(len(tiles.keys))]
    return array_namespace(partial_max).moveaxis(partial_max[:, :, order], 2, -1)


def in_bool(mask: np.ndarray, device: str) -> np.ndarray:
    """The mask where the other arrays are."""
    if device == "cpu":
        return mask
    found: np.ndarray = handed_over(np.require(mask, requirements=("C", "W")), "torch", device)
    return found
