"""Answers of a function, judged and counted."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from inspect import Parameter, Signature, signature
from typing import Any

import numpy as np

from workbench.case import formats
from workbench.case.case import Case
from workbench.case.fields import GIVEN
from workbench.case.inputs import anew, by_name
from workbench.case.options import Options
from workbench.case.stages import INPUTS
from workbench.explore.acceptance.arena import Lying
from workbench.explore.acceptance.caller import LSE, OUT, Answer, Caller, Fault
from workbench.explore.acceptance.failure import DOUBTED, FAILS, OTHERS, TWICE, Failure
from workbench.explore.acceptance.families import Problem
from workbench.explore.acceptance.spec import Spec
from workbench.foreign import adapters
from workbench.foreign.call import run_foreign
from workbench.judge.diff import Diff, diff
from workbench.judge.exactness import is_exact
from workbench.judge.fails import classed
from workbench.judge.table import run_row
from workbench.refusal import Refusal
from workbench.trace.provenance import Provenance
from workbench.trace.trace import Trace

#: of code that ran in another process
_ELSEWHERE = Provenance((), "", "", {})


def _bits(answer: Answer) -> dict[str, bytes]:
    return {name: x.tobytes() for name, x in answer.stages.items()}


def _giving(stages: Mapping[str, np.ndarray], case: Case) -> Callable[..., Any]:
    """A function that gives `stages` to a call of a case: lengths are keywords, so that q, k and v come in boxes, and
    so are scales of codes, which stand in their place then.
    """

    def gave(q: Any, k: Any, v: Any, *, seqlens_q: Any = None, seqlens_k: Any = None, **_: Any) -> Any:
        return stages

    *own, others = signature(gave).parameters.values()
    beside = [] if case.codes is None else formats.beside(case.codes, case.coded)
    more = [Parameter(name, Parameter.KEYWORD_ONLY) for name in beside]
    gave.__signature__ = Signature([*own, *more, others])  # type: ignore[attr-defined]
    return gave


@dataclass(eq=False)
class Judge:
    """Judges calls, and counts."""

    caller: Caller
    spec: Spec
    judged_cases: Counter[str] = field(default_factory=Counter)
    untestable: Counter[str] = field(default_factory=Counter)
    suspicious: int = 0
    calls: int = 0
    worst: float | None = None
    deterministic: bool | None = None
    first: Answer | None = None  #: to the call before the last one that is judged, where there was one
    stale: np.ndarray | None = None  #: a right answer of another case

    def failure_at(self, one: Problem, index: int) -> Failure | None:
        """What fails on a problem; None where nothing does."""
        failure = partial(Failure, one, index)
        try:
            answer = self.called(one)
            if self.spec.lse and LSE not in answer.stages:
                return failure("raised", "it returned no lse, but the spec asks for one")
            judged = self.judged(one, answer)
            # of a bug within its budgets nothing is proved: a silent spec allows to subtract more than the maximum,
            # which rounds where others need not, and one that says some of what is unusual leaves the rest open
            outside = any(held.summary.outside for stage in judged if (held := stage.decisive) is not None)
            proved = self.spec.contract is not None and (judged.verdict != "bug" or is_exact(judged.run))
            if classed(judged) in FAILS and (outside or proved):
                return failure("wrong", self._how(one, answer), judged)
            if classed(judged) in {*FAILS, *DOUBTED} and self._doubted_again(one):
                return failure("wrong", "results are within budget, but no known kernel gives them", judged)
            if index % TWICE == 0 and (second := self._other_bits(one, answer)) is not None:
                judged = self.judged(one, second)
                if classed(judged) in FAILS:
                    return failure("wrong", "the second of two identical calls is wrong", judged)
            if one.alone is not None and (said := self._parts_alone(one, answer)):
                return failure("bits", said)
        except Fault as fault:
            return failure(fault.kind, str(fault))
        if judged.verdict == "untestable":
            self.untestable[one.family] += 1
            return None
        self.judged_cases[one.family] += 1
        self.suspicious += judged.verdict in ("suspicious", "biased")
        over = run_row(judged).over_budget
        self.worst = over if self.worst is None or (over is not None and over > self.worst) else self.worst
        self.stale = answer.stages[OUT]
        return None

    def called(self, one: Problem) -> Answer:
        """The answer to a problem."""
        for arrays in one.before:
            self.first = self._call(one.case, arrays, one.lying)
        return self._call(one.case, one.arrays, one.lying)

    def judged(self, one: Problem, answer: Answer) -> Diff:
        """The judgement of an answer, made after it is here."""
        return diff(self._trace(one.case, one.inputs, answer))

    def _doubted_again(self, one: Problem) -> bool:
        """Whether on other inputs of a case, of N(0, 1), a function leaves what is usual, too."""
        for seed in np.random.default_rng(one.case.seed).integers(2**32, size=OTHERS):
            other = Problem("random", one.case.but(distribution="normal", input_std=1.0, seed=int(seed)))
            if classed(self.judged(other, self.called(other))) not in {*FAILS, *DOUBTED}:
                return False
        return True

    def _call(self, case: Case, arrays: Mapping[str, np.ndarray], lying: Lying) -> Answer:
        self.calls += 1
        return self.caller.call(case, arrays, lying, self.stale if self.calls % 2 else None)

    def _how(self, one: Problem, answer: Answer) -> str:
        """How numbers are wrong, where that is seen without a search."""
        if one.before and self.first is not None and _bits(self.first) == _bits(answer):
            return "it returned the result of the previous call, which had other inputs at the same addresses"
        return "results are over budget"

    def _other_bits(self, one: Problem, answer: Answer) -> Answer | None:
        """A second answer to the same call, where its bits are others."""
        second = self._call(one.case, one.arrays, one.lying)
        same = _bits(second) == _bits(answer)
        self.deterministic = same and self.deterministic is not False
        return None if same else second

    def _parts_alone(self, one: Problem, answer: Answer) -> str:
        """Where a sequence without the others of its batch has other bits; empty where it has none."""
        b, case = one.alone, one.case
        if b is None or case.ragged or case.batch == 1 or case.codes is not None:  # scales span a batch
            return ""
        arrays = {name: x[b : b + 1] for name, x in one.arrays.items()}
        alone = self._call(case.but(batch=1), arrays, one.lying)
        for name, x in alone.stages.items():
            if name in answer.stages and x.tobytes() != np.ascontiguousarray(answer.stages[name][b : b + 1]).tobytes():
                return f"{name} of sequence {b} has different bits in a batch of {case.batch} than alone"
        return ""

    def _trace(self, case: Case, inputs: Mapping[str, np.ndarray] | None, answer: Answer) -> Trace:
        """The run as a trace, which can be run again in the function's process."""
        target, stages = self.caller.target, dict(answer.stages)
        boxes = case.but(page_size=None) if case.page_size is not None else case
        if inputs is not None:
            boxes = boxes.but(distribution=GIVEN)

        options = Options(inputs=None if inputs is None else by_name(case, inputs), contract=self._contract(case))
        trace = run_foreign(_giving(stages, boxes), boxes, options, name=target, code=_ELSEWHERE)

        def again(other: Case, given: Mapping[str, np.ndarray] | None = None) -> Trace:
            if given is None:
                other, given = anew(other, options.inputs)
            arrays = {name: x for name, x in by_name(other, given).items() if name in INPUTS}
            run = other if case.page_size is None else other.but(page_size=case.page_size)
            try:
                return self._trace(run, given, self._call(run, arrays, Lying()))
            except Fault as fault:
                raise Refusal(f"{target}: {fault}") from None

        called = Options(
            arrays=self.spec.arrays, device=self.spec.device, layout=self.spec.layout, contract=self.spec.contract
        )
        return replace(
            trace, rerun=again, resident=None, provenance=None, find_lines=dict, called_with=called.printable()
        )

    def _contract(self, case: Case) -> Any:
        """What the function promises: what the spec says, else what is known of a function of a package."""
        if self.spec.contract is not None:
            return self.spec.contract
        adapter = adapters.known(self.caller.target)
        return None if adapter is None else adapter.promised(case, self.spec.device or adapter.device) or None
