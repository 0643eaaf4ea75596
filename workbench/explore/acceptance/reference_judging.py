"""Answers of a function, judged by a plain reference and counted."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from workbench.explore.acceptance.caller import Caller, Fault
from workbench.explore.acceptance.failure import DOUBTED, FAILS, OTHERS, TWICE, Failure
from workbench.explore.acceptance.plain_caller import call
from workbench.explore.acceptance.reference_families import ReferenceProblem, made, nudge
from workbench.explore.acceptance.reference_spec import ReferenceSpec
from workbench.floats import DTYPES, largest
from workbench.foreign.plain import ACCEPTED, PlainRun, Returned
from workbench.judge.fails import classed
from workbench.judge.reference.diff import ReferenceDiff
from workbench.judge.reference.lines import short
from workbench.judge.reference.stages import is_broken
from workbench.operations.reference.call import judged_run
from workbench.operations.reference.case import ReferenceCase
from workbench.operations.reference.inputs import dtype_of
from workbench.operations.reference.repeat import repeat_command
from workbench.operations.reference.traced import each, traced
from workbench.reference.graph import Contract, Graph, budgets, parse
from workbench.reference.graph.node import Line
from workbench.reference.graph.patterns import patterns_of
from workbench.refusal import Refusal

_NAMES = {one.name for one in ACCEPTED}


@dataclass(frozen=True, eq=False)
class Asked:
    """A case with its inputs, and what its references make of them."""

    case: ReferenceCase
    inputs: dict[str, Any]
    graphs: tuple[tuple[Graph, str], ...]  #: with the name of each reference

    @property
    def dtype(self) -> str:
        """The dtype of a kernel on these inputs."""
        return dtype_of(self.inputs)

    @property
    def results(self) -> dict[str, tuple[tuple[int, ...], str]]:
        """Shape and dtype of each result."""
        graph, _ = self.graphs[0]
        found = {}
        for name, i in graph.results.items():
            dtype = str(graph.nodes[i].dtype).removeprefix("torch.")
            found[name] = graph.nodes[i].shape, dtype if dtype in _NAMES else "float32"
        return found


def asked(spec: ReferenceSpec, case: ReferenceCase) -> Asked:
    """The case with its inputs and graphs; Refusal where the function of the inputs or a reference refuses it."""
    inputs = made(spec, case)
    graphs = tuple(traced(one, inputs) for one in each(spec.reference))
    if spec.contract is not None:
        budgets(graphs[0][0], parse(spec.contract, dtype_of(inputs)), names=[])  # which stages it may name
    return Asked(case, inputs, graphs)


@dataclass(eq=False)
class ReferenceJudge:
    """Judges calls, and counts."""

    caller: Caller
    spec: ReferenceSpec
    judged_cases: Counter[str] = field(default_factory=Counter)
    untestable: Counter[str] = field(default_factory=Counter)
    suspicious: int = 0
    calls: int = 0
    worst: float | None = None
    deterministic: bool | None = None
    stale: Returned | None = None  #: a right answer of another case
    why: str = ""  #: why a case was not judged, the first
    #: by reference its lines with products whose operands a contract rounds, at usual sizes
    contracted: list[set[Line]] = field(default_factory=list)

    def failure_at(self, one: ReferenceProblem, index: int) -> Failure | None:
        """What fails on a problem; None where nothing does."""
        try:
            what = asked(self.spec, one.case)
            others = self._before(one, what)
        except Refusal as refused:  # of the inputs or a reference: no function has to stand it
            self._not_judged(one, str(refused))
            return None
        try:
            before = [self._call(one, what, inputs) for inputs in others]
            answer = self._call(one, what)
            found = self.judged(what, answer)
            if classed(found) in FAILS:
                if said := (_overflow(what) if one.case.distribution else "") or self._scaling(what, found):
                    self._not_judged(one, said)
                    return None
                return Failure(one, index, "wrong", _how(found, answer, before), found)
            if classed(found) in DOUBTED and (said := self._scaling(what, found)):
                self._not_judged(one, said)
                return None
            if classed(found) in DOUBTED and self._doubted_again(one):
                return Failure(one, index, "wrong", "no default arithmetic explains its errors, on any seed", found)
            if index % TWICE == 0 and (second := self._other_bits(one, what, answer)) is not None:
                other = self.judged(what, second)
                if classed(other) in FAILS:
                    return Failure(one, index, "wrong", "the second of two identical calls is wrong", other)
        except Fault as fault:
            return Failure(one, index, fault.kind, str(fault))
        if found.verdict == "untestable":
            self._not_judged(one, next((stage.reason for stage in found.stages if stage.reason), ""))
            return None
        self.judged_cases[one.family] += 1
        self.suspicious += found.verdict == "suspicious"
        worst = [stage.decisive.summary.worst for stage in found.stages if stage.decisive is not None]
        self.worst = max([self.worst or 0.0, *(element.over_budget for element in worst if element is not None)])
        self.stale = answer
        return None

    def judged_case(self, case: ReferenceCase) -> ReferenceDiff:
        """The judgement of a call on a case whose inputs lie contiguously; Refusal where there is none."""
        what = asked(self.spec, case)
        try:
            return self.judged(what, self._call(ReferenceProblem("", case), what))
        except Fault as fault:
            raise Refusal(str(fault)) from None

    def judged(self, what: Asked, answer: Returned) -> ReferenceDiff:
        """The judgement of an answer; Fault for one that does not fit the reference."""
        spec, case = self.spec, what.case
        target = self.caller.target
        promise: Contract | None = None if spec.contract is None else parse(spec.contract, what.dtype)
        told = {"dtype": case.dtype, "seed": case.seed or None, "distribution": case.distribution or None,
                "arrays": spec.arrays or None, "device": spec.device, "contract": spec.contract}  # fmt: skip
        own = bool(spec.fixed and case.distribution)  # of which no command knows
        repeat = "" if own else repeat_command(target, spec.reference, spec.inputs, case.axes, told)
        try:
            run = PlainRun(target, (answer,))
            return judged_run(lambda _: run, what.graphs, promise, what.dtype, case=case.words, repeat=repeat)
        except Refusal as refusal:
            raise Fault("raised", str(refusal)) from None

    def _not_judged(self, one: ReferenceProblem, why: str) -> None:
        self.untestable[one.family] += 1
        self.why = self.why or (why.strip().splitlines() or [""])[-1]

    def _before(self, one: ReferenceProblem, what: Asked) -> list[dict[str, Any]]:
        """Inputs of the calls before a problem's own."""
        if one.nudged:
            return [nudge(what.inputs, one.case.seed)]
        return [made(self.spec, replace(one.case, seed=one.case.seed + i)) for i in range(one.again, 0, -1)]

    def _call(self, one: ReferenceProblem, what: Asked, inputs: dict[str, Any] | None = None) -> Returned:
        """What the function makes of the inputs of a case, or of others of the same shapes."""
        self.calls += 1
        return call(
            self.caller,
            what.inputs if inputs is None else inputs,
            one.lying,
            what.results,
            self.stale if self.calls % 2 else None,
        )

    def _doubted_again(self, one: ReferenceProblem) -> bool:
        """Whether on other seeds of a case, of usual values, the function leaves what chance allows, too."""
        for seed in np.random.default_rng(one.case.seed).integers(2**31, size=OTHERS):
            case = replace(one.case, distribution="", seed=int(seed))
            other = asked(self.spec, case)
            plain = ReferenceProblem("random", case)
            if classed(self.judged(other, self._call(plain, other))) not in {*FAILS, *DOUBTED}:
                return False
        return True

    def _scaling(self, what: Asked, found: ReferenceDiff) -> str:
        """Where a wrong result may come from rounded operands of a product that at these sizes reads as a scaling of
        elements, as an outer product with a vector of one element does; empty of none.
        """
        operands = found.contract.operands != "float32" or DTYPES[what.dtype].itemsize == 2
        if not operands or any(is_broken(stage) for stage in found.stages):
            return ""
        if not self.contracted:
            usual = asked(self.spec, replace(self.spec.usual, dtype=what.case.dtype))
            self.contracted.extend(_contracted(graph) for graph, _ in usual.graphs)
        for (graph, _), lines in zip(what.graphs, self.contracted, strict=True):
            lost = {node.line for node in graph.nodes if node.op == "multiply"} & lines - _contracted(graph)
            if lost:
                return f"{short(min(lost))} is no product of matrices on {what.case.words}"
        return ""

    def _other_bits(self, one: ReferenceProblem, what: Asked, answer: Returned) -> Returned | None:
        """A second answer to the same call, where its bits are others."""
        second = self._call(one, what)
        same = second.same(answer)
        self.deterministic = same and self.deterministic is not False
        return None if same else second


def _contracted(graph: Graph) -> set[Line]:
    """The lines with products whose operands a contract rounds."""
    return {graph.nodes[i].line for i in patterns_of(graph).contractions}


def _how(found: ReferenceDiff, answer: Returned, before: Sequence[Returned]) -> str:
    """How results are wrong, where that is seen without a search."""
    if any(answer.same(other) for other in before):
        return "it returned the result of a previous call, which had other inputs at the same addresses"
    return "part of its results was never written" if found.verdict == "missing" else "results are over budget"


def _overflow(what: Asked) -> str:
    """The stage in which a kernel on inputs of this dtype may overflow; empty of none."""
    most = float(largest(DTYPES[what.dtype]))
    graph, name = what.graphs[0]
    for stage, expected in budgets(graph, Contract()).items():
        value = np.asarray(abs(expected.value))
        if value.dtype.kind == "f" and bool((value[np.isfinite(value)] > most).any()):
            return f"{stage} of {name} is beyond the largest {what.dtype} on {what.case.words}"
    return ""
