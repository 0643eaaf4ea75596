"""Trace against reference: every stage judged on its own inputs, the origins named, the victims told apart.

The reference is run twice in float64: with the kernel's own dumped stages in place of its own (isolated: what should
each stage have been, given what it read?) and without them (propagated: given q, k, v?). Of a kernel on codes
these stand in the place of q, k, v (`decoding.py`).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from workbench.case.assumptions import usual
from workbench.case.case import Case
from workbench.case.stages import INPUTS, MEASURED, OUT, RESULTS, Stage, stage_of
from workbench.expectation.elements import Comparison, Element, Summary
from workbench.expectation.expectation import Expectation
from workbench.expectation.observed import Observed
from workbench.floats import to_float64
from workbench.judge import blocks as parts
from workbench.judge.bias import biases, second_case, verdicts
from workbench.judge.blame import with_blame
from workbench.judge.cancellation import room
from workbench.judge.codes import decoding
from workbench.judge.codes.loss import Loss, loss
from workbench.judge.diagnostics import Diagnostics, diagnostics
from workbench.judge.evidence import excesses
from workbench.judge.exactness import with_exactness
from workbench.judge.expected import truth
from workbench.judge.explain.cause import Cause
from workbench.judge.explain.explain import Explained, explain
from workbench.judge.explain.explanation import Explanation
from workbench.judge.measured import MeasuredStages, measurement, with_measured
from workbench.judge.presumed import Presumed, presumed
from workbench.judge.selection import Selection
from workbench.judge.sensitivity import with_sensitivity
from workbench.judge.stage import ASSUMPTION, EVIDENCE, RIGHT_VERDICTS, SEVERITY, StageDiff, in_role, verdict_of
from workbench.judge.understood import understood
from workbench.judge.unseen import unseen
from workbench.judge.usual_rules import Rule
from workbench.judge.widened import Widened, widened
from workbench.readings.reader import Measured
from workbench.reference.dataflow import nearest_dumped, unseen_upstream
from workbench.refusal import Refusal
from workbench.shown import shown_by
from workbench.trace.headline import headline
from workbench.trace.narrow import first_of
from workbench.trace.trace import Trace, check
from workbench.work import Work

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: trials that a report spends on causes of the library, at most: 1.6 s
QUICK = 4000.0
#: trials that it spends on measuring a function that can be called and is wrong in out or lse alone, at most: 1 s
MEASURING = 2500.0


@dataclass(frozen=True, repr=False)
class Diff:
    """The judgement of a trace, stage by stage in data-flow order.

    >>> from workbench import Case, run
    >>> found = diff(run("examples/numpy_attention.py:scale_twice", Case(seqlen=16, head_dim=8)))
    >>> found["out"].verdict, found["out"].role  # right given the scores that it had
    ('rounding', 'victim')
    >>> found["scores"].worst(1)[0].index
    {'b': 0, 'h': 0, 'q': 6, 'k': 9}
    """

    run: Observed
    stages: tuple[StageDiff, ...]  #: judged and missing ones
    not_judged: tuple[StageDiff, ...]  #: given but not judged, and not given
    gathered: Diagnostics | None = None  #: with the verdicts, where a report was wanted
    of_measure: MeasuredStages | None = None  #: what was measured beside what was dumped, where that was wanted
    of_search: Explained | None = None  #: what a longer search explained, in place of the short one of a report
    effort: float = 1.0  #: how many times as much as usual that short one tries

    @property
    def trace(self) -> Trace:
        """What was judged."""
        return self.run.trace

    @property
    def gates(self) -> tuple[str, ...]:
        """What stands above the verdict."""
        return self.trace.gates

    @property
    def verdict(self) -> str:
        """The worst verdict of a stage; untestable where nothing was judged."""
        return max((stage.verdict for stage in self.rows), key=SEVERITY.index, default="untestable")

    @property
    def rows(self) -> tuple[StageDiff, ...]:
        """The stages, and before the results the weights, where these were measured."""
        if self.of_measure is None:
            return self.stages
        before = [stage for stage in self.stages if stage.name not in RESULTS]
        return (*before, self.of_measure.weights, *self._ends)

    @property
    def _ends(self) -> list[StageDiff]:
        return [stage for stage in self.stages if stage.name in RESULTS]

    @property
    def measured(self) -> Measured | None:
        """What was measured of the function; None where that was not asked for."""
        return None if self.of_measure is None else self.of_measure.found

    @cached_property
    def unmeasured(self) -> "Diff":
        """The same without what was measured."""
        if self.of_measure is None:
            return self
        return replace(self, stages=self.of_measure.stages, not_judged=self.of_measure.others, of_measure=None)

    @property
    def doubt(self) -> str:
        """Of a suspicious or biased run: evidence where that of one stage is, else assumption; empty of others."""
        if self.verdict not in ("suspicious", "biased"):
            return ""
        return EVIDENCE if any(stage.doubt == EVIDENCE for stage in self.rows) else ASSUMPTION

    @property
    def origins(self) -> tuple[str, ...]:
        """Stages that are wrong on their own inputs, in data-flow order."""
        return in_role(self.stages, "origin")

    @property
    def origin(self) -> str | None:
        """The first wrong stage; None where there is none."""
        return next(iter(self.origins), None)

    @property
    def victims(self) -> tuple[str, ...]:
        """Stages that are right on their own inputs and wrong against q, k, v; and wrong ones behind a wrong one that
        could be judged end to end only.
        """
        return in_role(self.stages, "victim")

    @property
    def results_despite_origin(self) -> tuple[str, ...]:
        """Out and lse if both are right although a stage is wrong: suspect the probe. Of one that gave only out or lse,
        that one; () for kernels of the workbench, whose probes are right.
        """
        right = self.origin and all(stage.right_from_inputs for stage in self._ends)
        return tuple(stage.name for stage in self._ends) if right and self.trace.backend == "foreign" else ()

    def __getitem__(self, name: str) -> StageDiff:
        if name in MEASURED and self.of_measure is not None:
            return self.of_measure.weights
        stage_of(self.trace.algorithm, name, self.trace.target, self.trace.case.numbers)
        found = {stage.name: stage for stage in (*self.stages, *self.not_judged)}
        if name not in found:
            decode = self.trace.case.decode
            raise Refusal(f"{self.trace.target} with decode={decode} has no stage {name}; it has {', '.join(found)}")
        return found[name]

    def __iter__(self) -> Iterator[StageDiff]:
        return iter(self.stages)

    def explanation(self, name: str) -> Explanation:
        """What is known of why a stage is as it is, worked out once."""
        if name not in self._explained:
            self._explained[name] = Explanation(self.run, self.stages, self[name])
        return self._explained[name]

    @cached_property
    def _explained(self) -> dict[str, Explanation]:
        return {}

    def explain(self, effort: float = 1.0, *, seconds: float | None = None) -> Explained:
        """What explains what is wrong: named faults, one and two at a time. What is found is tried on fresh cases
        where the kernel can be run. Where no element is outside its budget and something is suspicious, or wrong by
        what no known library does: what would be wrong of a usual kernel.

        `effort`: how many times as much as usual is tried; 1 takes up to 10 s on two cores for 128 queries and keys.
        `seconds`: a cap; what is found under one may depend on the machine.
        """
        own = self.unmeasured
        wrong = self._of_usual if own.verdict in ("suspicious", "bug") and self._within else own
        work = Work.of_search(self.trace.case.score_count, effort, seconds)
        known = None if wrong is not own else self.measured
        found = explain(wrong.run, wrong.stages, work=work, measurement=known)
        return replace(found, judged=own, usual=wrong.origins if wrong is not own else ())

    @cached_property
    def explained(self) -> Explained:
        """What reports say: of a longer search (`explained_by`), else what was measured, in MEASURING trials at most,
        and single faults alone, without a fresh case, in QUICK.
        """
        if self.of_search is not None:
            return self.of_search
        wrong = self.to_explain
        quick, measuring = (Work(self.effort * allowed) for allowed in (QUICK, MEASURING))
        known = self.measured if wrong is self.unmeasured else None
        return explain(wrong.run, wrong.stages, work=quick, alone=True, measurement=known, measuring=measuring)

    @property
    def to_explain(self) -> "Diff":
        """The judgement whose wrong stages reports explain: that of a usual kernel where this one's budgets allow all
        that is wrong.
        """
        return self._of_usual if self.origins and self._within else self.unmeasured

    @property
    def _within(self) -> bool:
        """Whether no element of a wrong stage is outside its budget: what is wrong is so of a usual kernel alone."""
        own = self.unmeasured  # a stage that was measured has no elements
        found = (own[name].decisive for name in own.origins)
        return not any(one.summary.outside for one in found if one is not None)

    @cached_property
    def _of_usual(self) -> "Diff":
        return _of_usual(self.run)

    def causes_of(self, name: str) -> list[Cause]:
        """Of those, the ones that reproduce a stage; none of one that is no origin. Of a stage that was measured those
        that reproduce the results, off which it was read.
        """
        if name not in self.origins:
            return []
        names = {name, *(RESULTS if self[name].measured else ())}
        return [cause for cause in self.explained.causes if names & {*cause.fit.stages}]

    def explained_by(self, found: Explained) -> "Diff":
        """The same, of which reports say what a longer search found, or one of another run that fails alike."""
        causes = tuple(cause for cause in found.causes if {*cause.fit.stages} & {*self.origins})
        named = {name for cause in causes for name in cause.fit.stages}
        left = tuple(name for name in self.origins if name not in named)
        return replace(self, of_search=replace(found, causes=causes, unexplained=left))

    @cached_property
    def diagnostics(self) -> Diagnostics:
        """What a report says beside the verdicts."""
        return diagnostics(self.run) if self.gathered is None else self.gathered

    @property
    def bits_lost(self) -> dict[str, np.ndarray]:
        """Bits that each element of each dumped sum loses to cancellation, as `cancellation.room` says."""
        return self.diagnostics.bits_lost

    @property
    def rules(self) -> tuple[Rule, ...]:
        """The usual rules on out against float64 from q, k, v; none where out was not given, or not whole."""
        return self.diagnostics.rules

    @cached_property
    def widened(self) -> list[Widened]:
        """Stages whose budget an assumption makes far wider than a usual kernel's."""
        judged = [stage.name for stage in self.stages if stage.decisive is not None]
        return widened(self.run, [name for name in judged if name in self.run.dumped])

    @cached_property
    def presumed(self) -> list[Presumed]:
        """Stages whose verdict hangs on a field that a preset alone says."""
        return presumed(self.run, self.stages)

    @cached_property
    def unseen(self) -> float | None:
        """As `unseen.unseen`: what a key may weigh that is lost and not missed; None where measured weights tell."""
        if self.of_measure is not None and self.of_measure.shows_all_keys:
            return None
        return unseen(self.run, self.stages)

    @cached_property
    def loss(self) -> Loss | None:
        """What quantisation and what the kernel did to out; None of other kernels, without out, and without q, k, v."""
        known = OUT in self.run.dumped and set(INPUTS) <= set(self.trace.inputs)
        return loss(self.run) if self.run.before_attention and known else None

    def truth(self, name: str, **index: Any) -> Selection:
        """Some elements of a stage, by axis letter as of `StageDiff.select`, as float64 makes them of q, k and v alone,
        whether the kernel gave the stage or not.
        """
        return truth(self.run, name, index)

    def as_dict(self) -> dict[str, Any]:
        """The document of `workbench diff --json`, of plain Python values."""
        return shown_by("document.diff_document", self)

    def save_html(self, path: str | Path) -> None:
        """Write the page of `workbench diff --html`, one file. Refusal where nothing can be written there."""
        shown_by("page.diff.save", path, self)

    def plot(self) -> "Figure":
        """The overview of all stages, a matplotlib Figure."""
        return shown_by("pictures.overview.overview", self.stages, headline(self.trace))

    def heatmap(self, name: str, axes: tuple[str, str] | None = None) -> "Figure":
        """Where the errors of a stage are, over two of its axes (letters), a matplotlib Figure."""
        return shown_by("pictures.heatmap.heatmap", self[name], case=self.trace.case, axes=axes)

    def plot_cancellation(self) -> "Figure":
        """How many bits the sums of the run lose, a matplotlib Figure."""
        return shown_by("pictures.cancellation.cancellation", self.bits_lost, headline(self.trace))

    def __bool__(self) -> bool:
        raise TypeError('the truth value of a Diff is ambiguous; use its verdict, such as diff.verdict == "bug"')

    def __repr__(self) -> str:
        return (
            f"<Diff of {self.trace.target}: {self.verdict}, origins {list(self.origins)}, victims {list(self.victims)}>"
        )

    def __str__(self) -> str:
        return shown_by("text.in_short", self)

    def _repr_html_(self) -> str:
        return shown_by("page.diff.html", self)


def diff(
    trace: Trace, *, device: str = "auto", report: bool = False, measure: bool = False, effort: float = 1.0
) -> Diff:
    """Judge every stage of `trace`.

    `device`: where the float64 arithmetic runs; cpu, cuda (in torch), or auto: cuda for a trace of more than LARGE
    scores and dumped elements where torch finds a GPU with room. Verdicts do not depend on it. `report`: a report is
    wanted, whose other rules and bits lost are cheaper with the verdicts than later. `measure`: the function is called
    again, up to 200 times, on inputs of our choice, and the weights and what else is read off its outputs are judged
    beside what it returned. `effort`: how many times as much as usual the searches of a report and `measure` try.

    Raises Refusal for a trace whose inputs are not finite, whose stages are unknown or misshaped, or whose bias is as
    low as the contract's sentinel, and of what cannot be measured; Unavailable for a missing GPU.
    """
    if not isinstance(trace, Trace):
        raise Refusal(f"diff takes a Trace, from run(...) or load(...); got {trace!r:.60}")
    check(trace, trace.target)
    run = understood(Observed(trace))
    _check_sentinel(run)
    found = measurement(run, effort) if measure else None
    return parts.judged_at(run, device, partial(_diff_at, run, found, report, effort))


def _diff_at(run: Observed, found: Measured | None, report: bool, effort: float, where: str) -> Diff:
    """`diff` of a run, with what was measured of its function, on the device `where`."""
    trace = run.trace
    known = {name: stage for name, stage in run.known.items() if name in run.table}
    names = [name for name in known if name in run.dumped and name not in run.unjudgeable]
    # of a kernel on codes they are of other traces, and arithmetic on a GPU is torch's
    gathered = Diagnostics(room(run)) if report and where == "cpu" and not run.before_attention and names else None
    strict = usual(run.contract)
    if_usual: list[dict[str, Summary]] = []

    def also(isolated: Expectation, propagated: Expectation) -> None:
        if gathered is not None:
            gathered.gather(isolated, propagated)
        if strict != run.contract:
            if_usual.append(parts.failing_under(isolated, strict, names))

    compared = comparisons(run, names, where, also)

    judged: list[StageDiff] = []
    others: list[StageDiff] = []
    for name, stage in known.items():
        nothing = partial(StageDiff, name, stage.axes, isolated=None, propagated=None, first=first_of(trace, stage))
        ruled_out = run.unjudgeable.get(name, "")
        if name not in run.dumped:
            missing = name in trace.requested
            why = "requested, but the run did not dump it" if missing else "not given"
            (judged if missing else others).append(nothing(verdict="missing" if missing else "not judged", reason=why))
        elif ruled_out:
            others.append(nothing(verdict="not judged", reason=ruled_out, dumped=run.dumped.get(name)))
        else:
            judged.append(_judge(run, stage, *compared[name]))

    def failing(run: Observed, names: Sequence[str]) -> dict[str, Element]:
        if run.contract == strict and if_usual:
            found = {name: x for name, x in parts.together(if_usual).items() if name in names}
        elif run.before_attention:
            pairs = comparisons(run, names, where).items()
            found = {name: one.summary for name, pair in pairs if (one := pair[0] or pair[1]) is not None}
        else:
            found = parts.failing_of(run, names, where)
        return {name: x.worst for name, x in found.items() if x.outside and x.worst is not None}

    @cache
    def second() -> Observed | None:
        """The kernel run again on other inputs, once for all that ask; None where it cannot be."""
        return None if trace.rerun is None else Observed(trace.rerun(second_case(run.case)))

    judged = _with_evidence(run, _with_bias(run, judged, second), second, where)
    judged = with_sensitivity(run, judged, failing, where)
    blamed = with_blame(run, with_exactness(run, judged), others)
    if found is None:
        return Diff(run, *blamed, gathered, effort=effort)
    stages, rest, of_measure = with_measured(run, found, *blamed)
    return Diff(run, stages, rest, gathered, of_measure, effort=effort)


def _of_usual(run: Observed) -> Diff:
    """The judgement of a run as that of a usual kernel, in all that nobody declared; so are its runs on other cases."""
    again = run.trace.rerun

    def rerun(case: Case, inputs: Mapping[str, np.ndarray] | None = None) -> Trace:
        assert again is not None
        made = Observed(again(case, inputs))
        return made.under(usual(made.contract)).trace

    return diff(replace(run.under(usual(run.contract)).trace, rerun=None if again is None else rerun))


def _check_sentinel(run: Observed) -> None:
    """Refusal where a bias is as low as what the kernel holds in place of -inf, so that its scores look masked."""
    sentinel, inputs = run.contract.mask_sentinel, run.trace.inputs
    if "bias" not in inputs or not np.isfinite(sentinel):
        return
    values = to_float64(inputs["bias"])
    lowest = values.min(initial=0.0, where=np.isfinite(values))
    if lowest <= sentinel / 2:  # a score is a bias and more
        raise Refusal(
            f"{run.trace.target}: a score of mask_sentinel={sentinel:g} or less counts as masked, but the "
            f"bias reaches {lowest:g}: pass -inf or a mask instead"
        )


def comparisons(
    run: Observed, names: Sequence[str], device: str, also: parts.Also | None = None
) -> dict[str, tuple[Comparison | None, Comparison | None]]:
    """The isolated and the propagated comparison of each dumped stage of `names`, as `parts` or `decoding` says."""
    if run.before_attention:
        return decoding.comparisons(run, names, device)
    return parts.comparisons(run, names, device, also)


def _with_bias(run: Observed, judged: list[StageDiff], second: Callable[[], Observed | None]) -> list[StageDiff]:
    """The stages with their verdicts after the test of bias: where one is biased, the kernel is run again on other
    inputs, if it can be (`second`).
    """
    candidates = [stage.name for stage in judged if stage.verdict in ("rounding", "suspicious")]
    first = biases(run, candidates)
    leaning = [name for name, bias in first.items() if bias.trips]
    if not leaning:
        return judged
    again = second()
    found = verdicts(first, None if again is None else biases(again, leaning))
    return [_leaning(stage, *found[stage.name]) if stage.name in found else stage for stage in judged]


def _with_evidence(
    run: Observed, judged: list[StageDiff], second: Callable[[], Observed | None], device: str
) -> list[StageDiff]:
    """The stages after the test of how large their errors are together: what is beyond doubt in this run, and in one
    on other inputs again, is a bug; suspicious where the kernel cannot be run again.
    """
    candidates = [stage.name for stage in judged if stage.verdict in ("rounding", "suspicious", "biased")]
    first = excesses(run, candidates, device=device)
    if not first:
        return judged
    again = second()
    confirmed = None if again is None else excesses(again, first, device=device)

    def with_excess(stage: StageDiff) -> StageDiff:
        excess = first.get(stage.name)
        if excess is None:
            return stage
        if confirmed is None:
            why, verdict = "; not called a bug: a trace cannot be rerun on other inputs", "suspicious"
        elif stage.name in confirmed:
            why, verdict = f", again on other inputs (z = {confirmed[stage.name].z:.3g})", "bug"
        else:
            why, verdict = ", but not on other inputs", "suspicious"
        reason = "; ".join(filter(None, (stage.reason, f"{excess.words}{why}")))
        verdict = max(verdict, stage.verdict, key=SEVERITY.index)
        return replace(stage, verdict=verdict, doubt="" if verdict == "bug" else EVIDENCE, reason=reason)

    return [with_excess(stage) for stage in judged]


def _leaning(stage: StageDiff, verdict: str, note: str) -> StageDiff:
    """The stage with what the test of bias says of it; one that is biased on some inputs alone keeps its verdict."""
    reason = f"{stage.reason}; {note}" if stage.reason else note
    if verdict == "rounding":
        return replace(stage, reason=reason)
    return replace(stage, verdict=verdict, doubt=EVIDENCE if verdict == "biased" else "", reason=reason)


def _judge(run: Observed, stage: Stage, isolated: Comparison | None, propagated: Comparison | None) -> StageDiff:
    name, trace = stage.name, run.trace
    between = unseen_upstream(run.table, name, run.readable)
    decisive = isolated or propagated
    assert decisive is not None
    verdict, reason = verdict_of(decisive.summary)
    # before the ends a few elements of a right kernel are beyond it, too: scores with a mask of -30000 added in float16
    doubt = (EVIDENCE if stage.result else ASSUMPTION) if verdict == "suspicious" else ""
    if stage.group == "codes" and run.case.codes is None and verdict in RIGHT_VERDICTS:
        verdict, doubt = "suspicious", ASSUMPTION
        reason = "within the loss of the coarsest 8-bit format; declare the format (--codes)"
    return StageDiff(
        name,
        stage.axes,
        verdict,
        isolated=isolated,
        propagated=propagated,
        judged_from=nearest_dumped(run.table, name, run.readable) if between else (),
        upstream=tuple(stage for stage in between if stage not in trace.sparse),
        doubt=doubt,
        reason=reason,
        dumped=run.dumped[name],
        first=first_of(trace, stage),
        of_ranks=bool(trace.ranks),
        run=headline(trace),
    )
