"""A run as hypotheses see it: what a kernel dumped, what it should have dumped, and what it would have with a fault."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from workbench.case.box import Box, Present
from workbench.case.case import Case
from workbench.case.stages import OF_QUANTISER, STAGES
from workbench.expectation.compare import compared
from workbench.expectation.elements import Compared, State
from workbench.expectation.expectation import Expectation
from workbench.expectation.observed import Observed
from workbench.floats import ulp
from workbench.judge.explain.hypothesis import Hypothesis, Unfit, edited, unfused
from workbench.judge.explain.library import FAMILIES
from workbench.judge.explain.surroundings import drawn, surroundings
from workbench.reference.dataflow import upstream
from workbench.reference.mode import FLOAT32_RANGE
from workbench.reference.problem import Codes, Problem
from workbench.reference.walk import values
from workbench.trace.dont_care import DontCare
from workbench.trace.narrow import narrowed
from workbench.trace.trace import Trace
from workbench.work import trials

Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Supposed:
    """How a kernel that does not declare it may cut the keys."""

    block_k: int
    splits: int = 1

    def of(self, run: Observed) -> Observed:
        """The run of a kernel that tells so."""
        trace = run.trace
        declared: dict[str, Any] = {"block_k": self.block_k} | ({"splits": self.splits} if self.splits > 1 else {})
        assumed = tuple(name for name in trace.contract.assumed if name not in declared)
        made = replace(
            trace,
            algorithm="split_k" if self.splits > 1 else trace.algorithm,
            contract=replace(trace.contract, assumed=assumed, **declared),
            case=trace.case.but(**declared),
        )
        return Observed(made)

    def __str__(self) -> str:
        return (f"{self.splits} splits, " if self.splits > 1 else "") + f"tiles of {self.block_k} keys"


@dataclass(frozen=True, eq=False)
class Scene:
    """A run of attention with its expectation, whole."""

    run: Observed
    decoded: Arrays = field(default_factory=dict)  #: scales and codes of its inputs, where it reads these
    codes: Codes | None = None
    supposed: Supposed | None = None
    quantised: Observed | None = None  #: the run of a kernel on codes, of which `run` is the attention

    @property
    def trace(self) -> Trace:
        """What the run left."""
        return self.run.trace

    @property
    def trials(self) -> float:
        """What one hypothesis costs here, as of `work`."""
        return trials(self.trace.case.score_count)

    def like(self, run: Observed) -> "Scene":
        """The scene of another run of the same kernel, cut as this one is supposed to be."""
        found = Scene.of(run)
        return found if self.supposed is None else Scene(self.supposed.of(found.run), supposed=self.supposed)

    @staticmethod
    def of(run: Observed) -> "Scene":
        """Of any run; of a kernel on codes from what it decoded on."""
        attention = run.dequantised
        if attention is run or run.case.codes is None:
            return Scene(attention)
        # what a fault in the decoding that nobody saw would make of them
        p = run.decoding()
        made = values(p, [name for name in OF_QUANTISER if name in p.table])
        return Scene(attention, {**made, **p.given}, p.codes, quantised=run)

    @cached_property
    def expectation(self) -> Expectation:
        """What the stages should be, from the dumped ones."""
        found = Expectation(self.run, self.run.readable, statistics=False)
        if also := {**self.decoded, **surroundings(self.trace)}:
            problem = replace(found.problem, inputs={**also, **found.problem.inputs}, codes=self.codes)
            return replace(found, known={"problem": problem})
        return found

    @property
    def problem(self) -> Problem:
        """The run in float64 and natural units."""
        return self.expectation.problem

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The dumped stages that can be judged; of those that were given in part, what was."""
        return tuple(x for x in self.problem.table if x in self.trace.stages and x not in self.run.unjudgeable)

    @cached_property
    def actual(self) -> Arrays:
        """What the kernel dumped, in float64 and natural units."""
        return {name: self.expectation.value(name) for name in self.names}

    @property
    def expected(self) -> Arrays:
        """What it should have dumped, given what it dumped before."""
        return self.expectation.computed

    @cached_property
    def stored(self) -> Arrays:
        """Half an ulp of what stores each stage, in natural units."""
        with np.errstate(all="ignore"):
            return {
                name: np.nan_to_num(ulp(self.expected[name] * self.run.unit(name), self.trace.stages[name].dtype))
                / (2 * abs(self.run.unit(name)))
                for name in self.names
            }

    def group(self, wrong: Mapping[str, np.ndarray]) -> "Scene | None":
        """A batch and a group of heads that share a kv head, the one in which most is wrong; None where there is no
        other, or it cannot be declared apart.
        """
        trace, case = self.trace, self.trace.case
        if case.batch * case.kv_heads == 1 or self.decoded or trace.box or trace.input_errors:
            return None
        size = case.heads // case.kv_heads
        count = np.zeros((case.batch, case.kv_heads))
        for mask in wrong.values():
            of_heads = mask.reshape(case.batch, case.kv_heads, -1) if mask.shape[1] == case.heads else None
            count += 0 if of_heads is None else of_heads.mean(-1)
        b, h = np.unravel_index(int(count.argmax()), count.shape)
        heads = slice(int(h) * size, (int(h) + 1) * size)
        found = Scene(Observed(narrowed(trace, Box(slice(int(b), int(b) + 1), heads, slice(0, case.seqlen_q)))))
        return found if {*found.wrong} >= {*wrong} else None

    @property
    def families(self) -> tuple[str, ...]:
        """Families of the library that may have something to say."""
        p, case = self.problem, self.trace.case
        lacks = {
            "sinks": "sinks" not in p.inputs,
            "alibi": "slopes" not in p.inputs,
            "bias": not {"bias_put_in", "mask_put_in"} & {*p.inputs},
            "sequences": not case.ragged,
            "pages": case.page_size is None,
            "dropout": "dropped" not in p.table,
            "mods": "modified" not in p.table,
            "latent": case.head_dim_v == case.head_dim,
            "packing": not case.pack_gqa,
            "merge": not p.merges,
            "codes": self.codes is None,
        }
        return tuple(name for name in FAMILIES if not lacks.get(name))

    def touched(self, hypothesis: Hypothesis) -> tuple[str, ...]:
        """The dumped stages that a fault may show in: those that it changes, and those made of what it changes and
        nobody saw.
        """
        return touched(self.problem, self.names, hypothesis)

    def predicted(self, hypothesis: Hypothesis, names: Collection[str]) -> Arrays | None:
        """The stages `names` of a kernel with this fault; None where it cannot have it."""
        return predicted(self.problem, self.expected, hypothesis, names)

    @cached_property
    def wrong(self) -> Mapping[str, np.ndarray]:
        """Stages that are not what they should be -> which of their elements."""
        masks = {name: mismatched(one, self.of_empty) for name, one in self._found.items()}
        return {name: mask for name, mask in masks.items() if mask.any()}

    @cached_property
    def _found(self) -> Mapping[str, Compared]:
        return dict(compared(self.expectation, self.names))

    @cached_property
    def of_empty(self) -> bool:
        """Whether rows without keys alone are wrong: elsewhere they would hide the cause."""
        return not any(mismatched(one).any() for one in self._found.values())

    def compared(self, hypothesis: Hypothesis, names: Sequence[str]) -> dict[str, Compared] | None:
        """The stages `names` held against what a kernel with this fault should have, within the budget that it has;
        None where it cannot have it.
        """
        table = edited(self.problem.table, hypothesis)
        if table is None:
            return None
        problem = replace(self.problem, table=unfused(table, hypothesis))
        try:
            computed = values(problem, mode=FLOAT32_RANGE)
            known = {"problem": problem, "computed": computed, "given": self.expectation.given}
            return dict(compared(replace(self.expectation, known=known), names))
        except Unfit:
            return None

    def allowed(self, name: str) -> np.ndarray:
        """How far a right kernel may be from what a stage should be, in natural units."""
        found: np.ndarray = self.expectation.budgets([name])[name].bound + self.stored[name]
        return found

    def elsewhere(self, case: Case) -> Problem:
        """The same kernel on another case, of which nothing was dumped."""
        whole = self.trace if self.quantised is None else self.quantised.trace
        declared, keys = whole.contract, whole.case.seqlen_k
        if declared.split_bounds is not None:
            declared = replace(
                declared, split_bounds=tuple(one * case.seqlen_k // keys for one in declared.split_bounds)
            )
        elif case.splits != self.trace.case.splits:
            declared = replace(declared, splits=case.splits)
        if case.seqlen_k != keys and not isinstance(declared.tile_order, str):
            declared = replace(declared, tile_order="ascending")  # theirs is of as many tiles as there were
        trace = replace(
            whole,
            case=carried(self.trace.case, case, whole.case),
            contract=declared,
            inputs=drawn(whole, case),
            stages={}, sparse={}, input_errors={}, requested=(), put_in=(), rerun=None, box=None, whole=None,
        )  # fmt: skip
        return Scene.of(Observed(trace)).problem


def carried(one: Case, other: Case, to: Case) -> Case:
    """The case `to` with what is another in `other` than in `one`: attention on decoded rows has a case of its own."""
    return to.but(**{x.name: y for x in fields(Case) if (y := getattr(other, x.name)) != getattr(one, x.name)})


def predicted(p: Problem, expected: Arrays, hypothesis: Hypothesis, names: Collection[str]) -> Arrays | None:
    """The stages `names` of a kernel with this fault; None where it cannot have it. `expected`: all stages without it,
    of which those before the fault are not made again.
    """
    table = edited(p.table, hypothesis)
    if table is None:
        return None
    after = _after(p, hypothesis)
    kept = {x: value for x, value in expected.items() if table[x].dumped and x not in after}
    try:
        found = values(replace(p, table=table, given=kept | {**p.given}), names, FLOAT32_RANGE)
    except Unfit:
        return None
    if (dont_care := _dont_care(p)) is None:
        return {name: found[name] for name in names}
    open_ = {name: dont_care.mask(STAGES[name]) for name in names}
    kept = {name: found[name] for name, x in open_.items() if x is None}
    return kept | {name: np.where(x, expected[name], found[name]) for name, x in open_.items() if x is not None}


def _dont_care(p: Problem) -> DontCare | None:
    """What of a ragged batch nobody judges, and where no prediction is another; None of other runs."""
    if "lengths_k" not in p.inputs:
        return None
    rows, keys = (
        p.inputs["queries"] < p.inputs["lengths_q"][:, None],
        np.arange(p.keys) < p.inputs["lengths_k"][:, None],
    )
    if rows.all() and keys.all():
        return None
    return DontCare(p.contract, p.tiling, lambda: p.inputs["mask"], Present(rows[:, None], keys[:, None]))


def touched(p: Problem, names: Iterable[str], hypothesis: Hypothesis) -> tuple[str, ...]:
    """Those of the stages `names` that a fault may show in, in their order."""
    after = _after(p, hypothesis)
    return tuple(name for name in names if name in after)


def _after(p: Problem, hypothesis: Hypothesis) -> set[str]:
    """Stages and parameters that are made of what a hypothesis changes, that among them; what was dumped ends it."""
    known = _BEHIND.setdefault(p, {})
    for changed in hypothesis.stages:
        if changed not in known:
            known[changed] = frozenset(x for x in p.table if changed == x or changed in upstream(p.table, x, p.given))
    return {x for changed in hypothesis.stages for x in known[changed]}


#: problem -> stage -> what is made of it: asked thousands of times of one problem
_BEHIND: "WeakKeyDictionary[Problem, dict[str, frozenset[str]]]" = WeakKeyDictionary()


def mismatched(found: Compared, of_empty: bool = False) -> np.ndarray:
    """Which elements are not as predicted: outside their budget, and NaN on one side alone; `of_empty`: those of rows
    without keys too.
    """
    poisoned = found.state == State.POISONED
    outside = (found.state == State.OUTSIDE) | (found.state == State.NAN)
    outside |= of_empty & (found.state == State.EMPTY)
    unwritten = found.state == State.UNWRITTEN
    return outside | (poisoned & ~np.isnan(found.actual)) | (unwritten & ~np.isnan(found.expected))
