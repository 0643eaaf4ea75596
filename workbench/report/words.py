"""The judgement of a run in sentences: verdict, first wrong stage, cause, what to do next; in full everything else that
was checked.
"""

import math
from dataclasses import fields

from workbench.case.stages import RESULTS, STAGES
from workbench.expectation.elements import State
from workbench.judge.diff import Diff
from workbench.judge.explain.explanation import Explanation
from workbench.judge.fails import classed
from workbench.judge.stage import ORIGIN_VERDICTS, StageDiff
from workbench.report.causes import in_lines
from workbench.report.command import telling_command
from workbench.report.measured import of_diff
from workbench.report.numbers import number, ratio
from workbench.report.origin import beginning, budget_terms, ends_alone, in_full, in_short

_MEANING = {
    "exact": ": every judged element is correctly rounded",
    "rounding": ": every judged element is within its budget",
    "suspicious": ": no bug is proved, but default arithmetic does not explain the lines below",
    "evidence": ": no bug is proved, but no known kernel explains the lines below; treated as a failure",
    "biased": ": within budget, but the errors lean to one side on two seeds",
}
#: later wrong stages, and reasons of suspicious ones, that a short report shows
SHOWN = 2


def findings(diff: Diff, *, full: bool = False, details: bool = True, causes: bool = True) -> list[str]:
    """The judgement in words. In short: the verdict, the first wrong stage with its causes, and its victims. `full`:
    everything that was checked. Without `details` an origin is its heading and `causes` alone; without these its
    heading.
    """
    lines = _of_preset(diff)
    lines += _of_origins(diff, full, details, causes) if diff.origins else _of_verdict(diff, full)
    lines += _reasons(diff, full) + _right_all_the_same(diff) + of_diff(diff) + _victims(diff)
    if full:
        lines += _effects(diff)
    if full or not diff.origins:
        lines += [f"  {line}" for line in [*_vacuous(diff), *_not_judged(diff)]]
    return lines + _assumed(diff, full)


def assumptions(diff: Diff) -> list[str]:
    """The undeclared fields of the contract with the values that are assumed; tensor_core is read off the GPU."""
    promise = diff.trace.contract
    return [
        f"{field.name}={getattr(promise, field.name)}{' (read off the GPU)' * (field.name == 'tensor_core')}"
        for field in fields(promise)
        if field.name in promise.assumed
    ]


def _of_verdict(diff: Diff, full: bool) -> list[str]:
    """The verdict of a run without a wrong stage."""
    verdict = f"verdict: {diff.verdict}{_MEANING.get(classed(diff), '')}"
    return [verdict, *(f"  {line}" for line in [*(_nearest(diff) if full else []), *_lost_unseen(diff)])]


def _of_origins(diff: Diff, full: bool, details: bool, causes: bool) -> list[str]:
    """The wrong stages. A short report shows the first one, then SHOWN later ones in a line each."""
    lines: list[str] = []
    for i, name in enumerate(diff.origins):
        known = diff.explanation(name)
        later = [] if full or i <= SHOWN else diff.origins[i:]
        if later:
            lines.append(f"{len(later)} more wrong stages (-v): {', '.join(later)}")
            break
        lines.append(_heading(diff, known, i == 0))
        told = diff.causes_of(diff.origins[0]) if i and ends_alone(diff) else []
        found = [cause for cause in diff.causes_of(name) if cause not in told] if causes else []
        lines += [f"  {line}" for line in in_lines(diff, found)]
        if details and (full or i == 0):
            lines += [f"  {line}" for line in (in_full if full else in_short)(diff, known)]
    return lines


def _heading(diff: Diff, known: Explanation, first: bool) -> str:
    stage, ends = known.stage, ends_alone(diff)
    verdict = f"verdict: {diff.verdict}; " if first else ""
    if first and ends and not stage.measured:  # its definition would point at it alone
        given = f"only {' and '.join(ends)} {'was' if len(ends) == 1 else 'were'} given"
        return f"{verdict}first wrong stage: {stage.name} or one before it ({given})"
    measured = " (measured)" * stage.measured
    return f"{verdict}{_which(stage, first)}: {stage.name}{measured}, should be {known.definition}"


def _which(stage: StageDiff, first: bool) -> str:
    """What an origin is called: whether a later one is wrong given right inputs, or may inherit a wrong dump."""
    if first or stage.isolated is None:
        return "first wrong stage" if first else "also wrong"
    return "wrong given its dumped inputs, right from q, k and v" if stage.right_from_inputs else "also wrong"


def _reasons(diff: Diff, full: bool) -> list[str]:
    """Why stages that are not proved wrong are not right either."""
    found = [
        f"  {stage.name} is {stage.verdict}{_beyond_inherited(stage)}: {stage.reason}"
        for stage in diff.stages
        if stage.reason and stage.verdict not in ORIGIN_VERDICTS
    ]
    if full or not diff.origins or len(found) <= SHOWN:
        return found
    return [*found[:SHOWN], f"  {len(found) - SHOWN} more doubtful stages (-v)"]


def _beyond_inherited(stage: StageDiff) -> str:
    return ", beyond what it inherits" * (stage.role == "victim" and stage.verdict != "untestable")


def _of_preset(diff: Diff) -> list[str]:
    """Which fields of a preset decide a verdict: a line for all stages with the same ones."""
    groups: dict[tuple, list[str]] = {}
    for one in diff.presumed:
        groups.setdefault((one.right, one.said, one.otherwise), []).append(one.stage)
    lines = []
    for (right, said, otherwise), names in groups.items():
        listed = " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))
        does, would = ("pass", "fail") if right else ("fail", "pass")
        does, they = (f"{does}es" if does == "pass" else f"{does}s", "it") if len(names) == 1 else (does, "they")
        lines.append(
            f"{listed} {does} only because the preset says {', '.join(map(str, said))}: with "
            f"{' or '.join(map(str, otherwise))} {they} would {would}"
        )
    return lines


def _nearest(diff: Diff) -> list[str]:
    """The inexact stage of a right run that comes nearest to its budget, and what that budget consists of."""
    inexact = [stage for stage in diff.stages if stage.decisive and stage.verdict != "exact" and stage.worst(1)]
    if not inexact:
        return []
    stage = max(inexact, key=lambda stage: stage.worst(1)[0].over_budget)
    line = f"largest error / budget: {ratio(stage.worst(1)[0].over_budget)}, in {stage.name}"
    return [line, *budget_terms(diff.explanation(stage.name))]


def _lost_unseen(diff: Diff) -> list[str]:
    """What out alone cannot show, and what would."""
    if diff.unseen is None:
        return []
    command = telling_command(diff.trace)
    runs = "write inputs that do" if command.split()[1] == "inputs" else "test for that"
    power = f"2^{round(math.log2(diff.unseen))}"
    hidden = f"a dropped key would not show in out if its correct weight is below {power} in every row"
    return [f"{hidden}; {runs}: {command}"]


def _right_all_the_same(diff: Diff) -> list[str]:
    """What to suspect first where a stage is wrong and the results are right."""
    ends = diff.results_despite_origin
    if not ends or diff.origin in ends:
        return []
    are = "is" if len(ends) == 1 else "are"
    return [
        f"{' and '.join(ends)} {are} right from {beginning(diff.trace)}: suspect the probe of {diff.origin} first "
        "(wrong variable or index), then errors that cancel or are too small to show"
    ]


def _victims(diff: Diff) -> list[str]:
    """Wrong stages that inherit their error, and those that may."""
    maybe = [stage.name for stage in diff.stages if stage.maybe_victim]
    right = [name for name in diff.victims if name not in maybe]
    lines = [f"victim: {', '.join(right)} (right given its inputs; the row shows the inherited error)"] if right else []
    return lines + (
        [f"victim?: {', '.join(maybe)} (cannot be judged apart from an earlier wrong stage)"] if maybe else []
    )


def _effects(diff: Diff) -> list[str]:
    """What the origins did to out and lse, measured from what the kernel read."""
    lines = []
    for stage in diff.stages:
        if stage.name not in RESULTS or stage.propagated is None:
            continue
        if stage.role == "origin" and stage.isolated is None:
            continue
        found = stage.propagated.summary
        lines.append(
            f"effect on {stage.name}: {found.outside} of {found.size} elements over budget from "
            f"{beginning(diff.trace)}, largest error {number(found.max_abs)}"
        )
    return lines if diff.origins else []


def _vacuous(diff: Diff) -> list[str]:
    """Stages of which some elements could not be judged."""
    lines = []
    for stage in diff.stages:
        if stage.decisive is None or stage.verdict == "untestable" or stage.role == "origin":
            continue
        if vacuous := stage.decisive.summary.count(State.VACUOUS):
            size, empty = stage.decisive.summary.size, diff.explanation(stage.name).open_without_keys
            rescales = STAGES[stage.name].rescales  # its only elements that may be anything
            kinds = {
                "they are in empty rows (empty_out=any)": empty,
                "they multiply nothing, since row_sum and acc are 0 before them": vacuous * rescales,
                "their budget is infinite": (vacuous - empty) * (not rescales),
            }
            lines += [f"{stage.name}: {n} of {size} elements not judged: {why}" for why, n in kinds.items() if n]
    return lines


def _not_judged(diff: Diff) -> list[str]:
    """Stages that were not judged, and why."""
    others = [f"{stage.name} ({stage.reason})" for stage in diff.not_judged if stage.reason != "not given"]
    absent = [stage.name for stage in diff.not_judged if stage.reason == "not given"]
    lines = [] if diff.stages else ["nothing was judged"]
    lines += [f"not judged: {', '.join(others)}"] if others else []
    return lines + ([f"not given: {', '.join(absent)}"] if absent else [])


def _assumed(diff: Diff, full: bool) -> list[str]:
    """How much of the kernel's arithmetic is undeclared, and which assumption makes a budget wide."""
    found = assumptions(diff)
    if not found:
        return []
    listed = f": {', '.join(found)}" if full else " (-v lists them)"
    wide = [
        f"{x.choice} is undeclared, so the budget of {x.stage} is {ratio(x.times)}x that of default arithmetic"
        for x in (diff.widened if full or not diff.origins else ())
    ]
    return [
        f"contract: {len(found)} arithmetic settings are undeclared; the loosest value of each is assumed{listed}",
        *wide,
    ]
