"""Judgements in words: what is wrong, where, and what that did to out and lse; in full also all that was looked at."""

import math
from dataclasses import fields

from workbench.case.stages import RESULTS, STAGES, before_attention, quantised_inputs
from workbench.expectation.elements import BINS, Comparison, State
from workbench.judge.diff import Diff
from workbench.judge.explain.cause import Cause
from workbench.judge.explain.explanation import Explanation
from workbench.judge.explain.suspects import lies_in
from workbench.judge.fails import classed
from workbench.judge.stage import ORIGIN_VERDICTS, StageDiff
from workbench.report import ranks
from workbench.report.causes import in_a_line
from workbench.report.command import telling_command
from workbench.report.measured import of_diff
from workbench.report.numbers import number, ratio, value
from workbench.trace.plain import is_plain
from workbench.trace.trace import Trace

_MEANING = {
    "exact": ": every judged element is the correct rounding",
    "rounding": ": every judged element is within its budget",
    "suspicious": ": no bug is proved, but something is not as in a usual kernel; the lines below say what",
    "evidence": ": no bug is proved, but no known kernel explains it, and it fails; the lines below say what",
    "biased": ": within the budgets, but to one side, on two seeds",
}
#: what a stage that may be the cause does besides being computed
_DOES = {
    "acc": "acc (the rows and heads of v, the rescaling by correction)",
    "merge_weight": "merge_weight (as it weighs partial_O)",
    "out": "out (the division, the layout)",
}
#: terms of a budget that are named: those of at least this share
NAMED_SHARE = 0.05


def beginning(trace: Trace) -> str:
    """What propagated errors start at."""
    coded = trace.case.coded
    known = before_attention(trace.algorithm) and set(quantised_inputs(coded)) <= set(trace.stages)
    return ("codes and scales" if coded == "qkv" else "q, codes and scales") if known else "q, k and v"


def findings(diff: Diff, *, full: bool = False, details: bool = True, causes: bool = True) -> list[str]:
    """The judgement in words: what hangs on a preset; lines for each origin, its causes first, what it did to out and
    lse, what was not judged; `full`: what the budgets are made of and what was assumed of the kernel, too. Without
    `details` no more of an origin than its `causes`, without these no more than that it is one.
    """
    lines = [*_of_preset(diff), *_right_all_the_same(diff)]
    first = diff.causes_of(diff.origin) if causes and diff.origin and _ends_alone(diff) else []
    lines += [in_a_line(diff, cause) for cause in first]
    for i, stage in enumerate(stage for stage in diff.stages if stage.role == "origin"):
        known = diff.explanation(stage.name)
        lines.append(_heading(diff, known, i == 0))
        more = [cause for cause in diff.causes_of(stage.name) if cause not in first] if causes else []
        lines += [f"  {in_a_line(diff, cause)}" for cause in more]
        lines += [f"  {line}" for line in _details(diff, known, full)] if details else []
    lines += of_diff(diff) + _victims(diff)
    if diff.origins:
        lines += _effects(diff)
    else:
        lines.append(f"verdict: {diff.verdict}{_MEANING.get(classed(diff), '')}")
        lines += [f"  {line}" for line in [*(_nearest(diff) if full else []), *_lost_unseen(diff)]]
    lines += [
        f"  {stage.name} is {stage.verdict}{' by itself' * (stage.role == 'victim')}: {stage.reason}"
        for stage in diff.stages
        if stage.reason and stage.verdict not in ORIGIN_VERDICTS
    ]
    lines += [f"  {line}" for line in [*_vacuous(diff), *_not_judged(diff, full)]]
    return lines + _assumed(diff, full)


def of_stage(diff: Diff, name: str) -> list[str]:
    """What is known of one stage, a line each: why it has its verdict, where it is wrong, what its budget is made of,
    from what it was judged, the line of source that computes it.
    """
    known = diff.explanation(name)
    stage = known.stage
    if stage.role == "origin":
        causes = [in_a_line(diff, cause) for cause in diff.causes_of(name)]
        return [*causes, *_details(diff, known, full=True)]
    lines = [stage.reason] if stage.reason else []
    if stage.decisive is not None:
        where = known.where if stage.decisive.summary.outside else ""
        lines += [counts(stage.decisive, where), bins(stage.decisive), *budget_terms(known)]
    if stage.decisive is not None and stage.isolated is None:
        lines.append(f"judged from {beginning(diff.trace)} alone")
    elif stage.judged_from:
        lines.append(f"judged from {', '.join(stage.judged_from)}, the nearest before it that were given")
    return lines + _made_at(diff, name)


def assumptions(diff: Diff) -> list[str]:
    """Contract fields that nobody declared, with the value assumed; of tensor_core the GPU told it."""
    promise = diff.trace.contract
    return [
        f"{field.name}={getattr(promise, field.name)}{', which the GPU tells' * (field.name == 'tensor_core')}"
        for field in fields(promise)
        if field.name in promise.assumed
    ]


def _ends_alone(diff: Diff) -> tuple[str, ...]:
    """The results that were given of a kernel where nothing else was; () otherwise."""
    given = (*diff.trace.stages,)
    return given if {*given} <= {*RESULTS} else ()


def _heading(diff: Diff, known: Explanation, first: bool) -> str:
    name, ends = known.stage.name, _ends_alone(diff)
    if known.stage.measured:
        return f"{_which(known.stage, first)}: {name} (measured) = {known.definition}"
    if first and ends:  # that it is the first says nothing
        return f"{name} is wrong; only {' and '.join(ends)} {'was' if len(ends) == 1 else 'were'} given"
    return f"{_which(known.stage, first)}: {name} = {known.definition}"


def _which(stage: StageDiff, first: bool) -> str:
    """What an origin is called: of the later ones it counts whether they are wrong by themselves, or may owe it to what
    was dumped before them.
    """
    if first or stage.isolated is None:
        return "first wrong stage" if first else "also wrong"
    return (
        "wrong given what was dumped before it, right without" if stage.right_from_inputs else "also wrong, by itself"
    )


def _details(diff: Diff, known: Explanation, full: bool) -> list[str]:
    stage = known.stage
    made_at = _made_at(diff, stage.name)
    if stage.decisive is None:
        return [stage.reason, *made_at, *_unseen(diff, known)]
    lines = [_where_declared(stage.reason, diff.trace)] if stage.reason else []
    lines += [counts(stage.decisive, known.where), *ranks.whose(diff.trace, stage)]
    if (empty := known.wrong_without_keys) and diff.trace.backend == "foreign":
        lines.append(_empty(empty, empty == stage.decisive.summary.outside, diff.trace))
    worst = stage.worst(1)[0]
    axes = ", ".join(ranks.index(diff.trace, axis, i) for axis, i in worst.index.items())
    lines.append(
        f"worst at {axes}: actual {value(worst.actual)}, expected {value(worst.expected)}, "
        f"allowed error {number(worst.budget)}, {ratio(worst.over_budget)} x of budget"
    )
    if full:
        lines += [bins(stage.decisive), *budget_terms(known)]
    if stage.name in (one.stage for one in diff.presumed):  # which says what would make it right
        return lines + made_at + _judged_from(diff, known)
    declared = [_where_declared(one, diff.trace) for one in _if_declared(stage, diff.causes_of(stage.name))]
    return lines + made_at + _judged_from(diff, known) + declared


def _brings_contract(trace: Trace) -> bool:
    """Whether it was read from a file that has its contract, beside which none is told."""
    path = trace.called_with.trace
    return path is not None and not is_plain(path)


def _where_declared(text: str, trace: Trace) -> str:
    """A sentence; one that ends with what to declare says where, for a trace that brings its contract."""
    asks = "declare" in text.rpartition(": ")[2] or text.endswith("=any")
    return f"{text}, where the trace is made (`contract=` of a capture)" if asks and _brings_contract(trace) else text


def _empty(wrong: int, alone: bool, trace: Trace) -> str:
    """What of a stage is wrong in rows without keys."""
    if not alone:
        return f"{wrong} of these are in rows without keys, in which no cause is looked for"
    what = "declare empty_out=any" if _brings_contract(trace) else "--contract empty_out=any says so"
    return _where_declared(f"only rows without keys are wrong: if these may hold anything, {what}", trace)


def _of_preset(diff: Diff) -> list[str]:
    """Which fields of a preset decide a verdict: stages with the same ones in a line."""
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


def _if_declared(stage: StageDiff, causes: list[Cause]) -> list[str]:
    """What would make a wrong stage right; where that could be off by anything, a cause says more."""
    said = stage.if_declared
    return [] if said is None or (causes and not said.tells) else [said.words]


def _made_at(diff: Diff, name: str) -> list[str]:
    """The line of source to look at, where that is clear."""
    line = diff.explanation(name).to_look_at(diff.causes_of(name))
    return [] if line is None else [f"look at: {line}"]


def _judged_from(diff: Diff, known: Explanation) -> list[str]:
    """From what a wrong stage was judged, where that is not what it read, and in which stages the cause can be."""
    lines, stage = [], known.stage
    if stage.isolated is None:
        lines.append(f"judged from {beginning(known.run.trace)} alone: the cause is at or before {stage.name}")
    elif stage.judged_from:
        lines.append(f"judged from {', '.join(stage.judged_from)}, the nearest before it that were given")
    if known.right_before:
        lines.append(f"right where they were given, before it: {', '.join(known.right_before)}")
    return lines + _unseen(diff, known)


def _unseen(diff: Diff, known: Explanation) -> list[str]:
    """In which stages before a wrong one, that nobody judged, the cause can be: not in those that a right one rules
    out; a cause in one of these contradicts that, and none is ruled out.
    """
    found = known.suspects
    causes = diff.explained.causes
    if found is None or any(lies_in(known.run.table, cause.places, found.cleared) for cause in causes):
        names = ", ".join(known.stage.upstream)
        return [f"not given, so that the cause may be there too: {names}"] if names else []
    return [
        f"{found.right} is right, which rules out {', '.join(found.cleared)}",
        f"left: {', '.join(_DOES.get(name, name) for name in found.left)}; and {found.blind}",
    ]


def counts(comparison: Comparison, where: str) -> str:
    """How many elements are outside, where all of them lie, and how many are of which kind."""
    found = comparison.summary
    size, outside = found.size, found.outside
    kinds = {
        "NaN, or infinite where a finite number belongs, or the reverse": State.NAN,
        "never written": State.UNWRITTEN,
        "not judged, since what they read is NaN": State.POISONED,
        "not judged, since their budget allows anything": State.VACUOUS,
    }
    named = [f"{count} {words}" for words, kind in kinds.items() if (count := found.count(kind))]
    share = f"outside the budget: {outside} of {size} ({outside / size:.1%})" + (f", all at {where}" if where else "")
    return share + (f"; {'; '.join(named)}" if named else "")


def bins(comparison: Comparison) -> str:
    """How many elements lie in each range of x of budget; empty ones are left out."""
    edges = [f"{edge:g}" for edge in BINS[:-1]]
    lower = ["0", *edges]
    ranges = [f"{low} to {high}" for low, high in zip(lower, edges, strict=False)]
    names = ["at 0", *(f"at {one}" for one in ranges), f"beyond {edges[-1]}", "at inf"]
    found = [f"{count} {name}" for name, count in zip(names, comparison.summary.bins, strict=True) if count]
    return f"elements by x of budget: {', '.join(found)}"


def budget_terms(known: Explanation) -> list[str]:
    """What the budget at the worst element is made of, in a line; none where nothing was judged."""
    named = [f"{share:.0%} {source}" for source, share in known.budget_shares.items() if share >= NAMED_SHARE]
    return [f"the budget there: {', '.join(named)}"] if named else []


def _nearest(diff: Diff) -> list[str]:
    """Of a run without origins, the inexact stage that comes nearest to its budget, and what its budget is made of."""
    inexact = [stage for stage in diff.stages if stage.decisive and stage.verdict != "exact" and stage.worst(1)]
    if not inexact:
        return []
    stage = max(inexact, key=lambda stage: stage.worst(1)[0].over_budget)
    line = f"nearest to its budget: {stage.name}, {ratio(stage.worst(1)[0].over_budget)} x"
    return [line, *budget_terms(diff.explanation(stage.name))]


def _lost_unseen(diff: Diff) -> list[str]:
    """What out alone cannot show, and what would."""
    if diff.unseen is None:
        return []
    power = f"2^{round(math.log2(diff.unseen))}"
    command = telling_command(diff.trace)
    shows = "it would show on these" if command.split()[1] == "inputs" else "it would show in"
    return [f"from out alone a key that weighs less than {power} in every row may be lost unseen; {shows}: {command}"]


def _right_all_the_same(diff: Diff) -> list[str]:
    """What to suspect first where stages are wrong and what the kernel is for is right."""
    ends = diff.right_ends
    if not ends or diff.origin in ends:
        return []
    return [
        f"{' and '.join(ends)} {'is' if len(ends) == 1 else 'are'} right, each element within its budget from "
        f"{beginning(diff.trace)}: suspect the probe of {diff.origin} first (another value than the stage's, or at "
        "another index), then errors that cancel or are too small to be seen there"
    ]


def _victims(diff: Diff) -> list[str]:
    """Stages that are wrong because of what they read, and those of which that is not known."""
    start, behind = beginning(diff.trace), [stage.name for stage in diff.stages if stage.maybe_victim]
    lines = [f"victim?: {', '.join(behind)} (wrong from {start}, as a stage before is; by itself it may be right)"]
    right = [name for name in diff.victims if name not in behind]
    shown = f"victim: {', '.join(right)} (right from what it read; a victim's row shows the error from {start})"
    return ([shown] if right else []) + (lines if behind else [])


def _effects(diff: Diff) -> list[str]:
    """What the origins did to out and lse, against what the kernel read; of an origin that was judged against that, its
    own lines say it.
    """
    lines = []
    for stage in diff.stages:
        if stage.name not in RESULTS or stage.propagated is None:
            continue
        if stage.role == "origin" and stage.isolated is None:
            continue
        found = stage.propagated.summary
        share = f"{found.outside} of {found.size} elements" if found.outside else "none of its elements is"
        outside = f"{share} outside the budget from {beginning(diff.trace)}"
        lines.append(f"effect on {stage.name}: {outside}, largest error {number(found.max_abs)}")
    return lines


def _vacuous(diff: Diff) -> list[str]:
    """Stages of which some elements could not be judged, as numbers."""
    lines = []
    for stage in diff.stages:
        if stage.decisive is None or stage.verdict == "untestable" or stage.role == "origin":
            continue
        if vacuous := stage.decisive.summary.count(State.VACUOUS):
            size, empty = stage.decisive.summary.size, diff.explanation(stage.name).open_without_keys
            rescales = STAGES[stage.name].rescales  # its only elements that may be anything
            kinds = {
                "are in rows without keys (empty_out=any)": empty,
                "multiply nothing, since row_sum and acc are 0 before them": vacuous * rescales,
                "have a budget that allows anything": (vacuous - empty) * (not rescales),
            }
            lines += [f"{stage.name}: {n} of {size} elements {what}; not judged" for what, n in kinds.items() if n]
    return lines


def _not_judged(diff: Diff, full: bool) -> list[str]:
    """What was not judged. Of a run with an origin, what was not given is said there."""
    others = [f"{stage.name} ({stage.reason})" for stage in diff.not_judged if stage.reason != "not given"]
    absent = [stage.name for stage in diff.not_judged if stage.reason == "not given"]
    lines = [] if diff.stages else ["nothing was judged"]
    lines += [f"not judged: {', '.join(others)}"] if others else []
    return lines + ([f"not given: {', '.join(absent)}"] if absent and (full or not diff.origins) else [])


def _assumed(diff: Diff, full: bool) -> list[str]:
    """What nobody declared of the kernel's arithmetic."""
    found = assumptions(diff)
    if not found:
        return []
    listed = f": {', '.join(found)}" if full else " (-v lists them)"
    wide = [
        f"the budget of {x.stage} is {ratio(x.times)} times a usual kernel's for {x.choice}, which nobody declared"
        for x in diff.widened
    ]
    return [f"contract: {len(found)} fields assumed of the kernel, the weakest choice{listed}", *wide]
