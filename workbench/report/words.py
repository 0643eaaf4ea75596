"""Judgements in words: origins and what explains them, what was assumed, how near a clean run came to its budgets."""

from dataclasses import fields

from workbench.comparison import BINS, Comparison, State
from workbench.judge import Diff
from workbench.ledger import FACTORS, Entry, ledger
from workbench.pattern import pattern
from workbench.stage_diff import ORIGIN_VERDICTS, StageDiff
from workbench.stages import ALGORITHMS, AXIS_NAMES, QUANTISED_INPUTS, unseen_upstream
from workbench.terms import terms
from workbench.trace import Trace

_MEANING = {
    "exact": ": every judged element is the correct rounding",
    "rounding": ": every judged element is within its budget",
    "suspicious": ": within the budgets, but farther off than independent roundings take it in one run of a million",
    "biased": ": within the budgets, but to one side, on two seeds",
}
#: terms of a budget that are named: those of at least this share
NAMED_SHARE = 0.05


def number(value: float | None) -> str:
    """Three significant digits; a dash for None."""
    return "-" if value is None else f"{value:.3g}"


def value(x: float) -> str:
    """A value with the digits that tell float32 numbers apart by eye."""
    return f"{x:.6g}"


def beginning(trace: Trace) -> str:
    """What propagated errors start at."""
    known = trace.algorithm == "fp8" and set(QUANTISED_INPUTS) <= set(trace.stages)
    return "codes and scales" if known else "q, k and v"


def findings(diff: Diff) -> list[str]:
    """The judgement in words: a line for each origin, indented lines of detail below it."""
    lines = []
    for i, stage in enumerate(stage for stage in diff.stages if stage.role == "origin"):
        definition = ALGORITHMS[diff.trace.algorithm][stage.name].definition
        lines.append(
            f"{'first wrong stage' if i == 0 else 'also wrong on its own inputs'}: {stage.name} = {definition}"
        )
        lines += [f"  {line}" for line in _details(diff, stage)]
    behind = [stage.name for stage in diff.stages if stage.behind]
    if diff.origins and (right := [name for name in diff.victims if name not in behind]):
        lines.append(f"victims, right on their own inputs: {', '.join(right)}")
    if behind:
        lines.append(f"wrong as well, from {beginning(diff.trace)}, as victims at least: {', '.join(behind)}")
    if diff.origins:
        lines += _effects(diff)
    else:
        lines.append(f"verdict: {diff.verdict}{_MEANING.get(diff.verdict, '')}")
        lines += [f"  {line}" for line in _nearest(diff)]
    lines += [
        f"  {stage.name} is {stage.verdict}: {stage.reason}"
        for stage in diff.stages
        if stage.reason and stage.verdict not in ORIGIN_VERDICTS
    ]
    for stage in diff.stages:
        if (
            stage.decisive is not None
            and stage.verdict != "untestable"
            and (vacuous := stage.decisive.summary.count(State.VACUOUS))
        ):
            of = f"{vacuous} of {stage.decisive.summary.size}"
            lines.append(f"  {stage.name}: {of} elements have a budget that says nothing; not judged")
    if not diff.stages:
        lines.append("  nothing was judged")
    others = [f"{stage.name} ({stage.reason})" for stage in diff.not_judged if stage.reason != "not given"]
    absent = [stage.name for stage in diff.not_judged if stage.reason == "not given"]
    if others or absent:
        lines.append(f"  not judged: {', '.join([*others, *absent])}")
    if diff.trace.contract.assumed:
        lines.append(f"  assumed of the kernel, the weakest choice: {', '.join(assumptions(diff))}")
    return lines


def assumptions(diff: Diff) -> list[str]:
    """Contract fields that nobody declared, with the value assumed."""
    promise = diff.trace.contract
    return [
        f"{field.name}={getattr(promise, field.name)}" for field in fields(promise) if field.name in promise.assumed
    ]


def _details(diff: Diff, stage: StageDiff) -> list[str]:
    trace = diff.trace
    if stage.decisive is None:
        return [stage.reason]
    lines = [stage.reason] if stage.reason else []
    worst = stage.worst(1)[0]
    axes = ", ".join(f"{AXIS_NAMES[axis]} {i}" for axis, i in worst.index.items())
    lines.append(
        f"worst at {axes}: actual {value(worst.actual)}, expected {value(worst.expected)}, "
        f"allowed error {number(worst.budget)}, {number(worst.over_budget)} x of budget"
    )
    lines.append(counts(stage.decisive))
    if where := pattern(stage):
        lines.append(f"all of them lie at {where}")
    lines.append(bins(stage.decisive))
    lines += budget_terms(trace, stage)
    entries = ledger(trace, stage)
    lines += [_equation(stage, entry) for entry in entries]
    lines += [_factor(trace, name) for name in dict.fromkeys(entry.factor for entry in entries)]
    if stage.isolated is None:
        lines.append(f"judged end to end, from {beginning(trace)}: the cause is at or before {stage.name}")
    elif stage.judged_from:
        lines.append(f"judged from {', '.join(stage.judged_from)}")
    before = {*unseen_upstream(trace.algorithm, stage.name, ())} & {*trace.sparse}
    if right := [other.name for other in diff.stages if other.name in before and other.role == "clean"]:
        lines.append(f"right where they were given, upstream: {', '.join(right)}")
    if stage.upstream:
        lines.append(f"upstream that nobody saw: {', '.join(stage.upstream)}")
    return lines


def _equation(stage: StageDiff, entry: Entry) -> str:
    """What a factor explains: of the whole stage, or of the term that the stage sums."""
    product = f"{'*' if entry.power == 1 else '/'} {entry.factor}"
    if entry.term == stage.name:
        how = product
    elif entry.term == entry.factor and entry.power == -1:
        how = f"without {entry.factor}"
    else:
        how = f"with {entry.term} {product}"
    return f"actual = expected {how} at {entry.matched} of {entry.of} elements outside the budget"


def _factor(trace: Trace, name: str) -> str:
    """What a factor is and where it is due."""
    factor, known = FACTORS[name], ALGORITHMS[trace.algorithm]
    due = " and ".join(f"{stage} ({to})" for stage, to in factor.applied.items() if stage in known)
    return f"{name}, {factor.held}, is applied by {due}"


def counts(comparison: Comparison) -> str:
    """How many elements are outside, and of which kind."""
    found = comparison.summary
    size, outside = found.size, found.outside
    kinds = {
        "NaN or of the wrong class": State.NAN,
        "unwritten": State.UNWRITTEN,
        "poisoned": State.POISONED,
        "untestable": State.VACUOUS,
    }
    named = [f"{count} {words}" for words, kind in kinds.items() if (count := found.count(kind))]
    return f"outside the budget: {outside} of {size} ({outside / size:.1%})" + (
        f"; {', '.join(named)}" if named else ""
    )


def bins(comparison: Comparison) -> str:
    """How many elements lie in each bin of x of budget; empty ones are left out."""
    edges = [f"{edge:g}" for edge in BINS[:-1]]
    names = ["0", *(f"up to {edge}" for edge in edges), f"over {edges[-1]}", "inf"]
    found = [f"{count} {name}" for name, count in zip(names, comparison.summary.bins, strict=True) if count]
    return f"x of budget: {', '.join(found)}"


def budget_terms(trace: Trace, stage: StageDiff) -> list[str]:
    """What the budget at the worst element is made of, in a line; none where nothing was judged."""
    named = [f"{share:.0%} {source}" for source, share in terms(trace, stage).items() if share >= NAMED_SHARE]
    return [f"the budget there: {', '.join(named)}"] if named else []


def _nearest(diff: Diff) -> list[str]:
    """Of a run without origins, the inexact stage that comes nearest to its budget, and what its budget is made of."""
    inexact = [stage for stage in diff.stages if stage.decisive and stage.verdict != "exact" and stage.worst(1)]
    if not inexact:
        return []
    stage = max(inexact, key=lambda stage: stage.worst(1)[0].over_budget)
    line = f"nearest to its budget: {stage.name}, {number(stage.worst(1)[0].over_budget)} x"
    return [line, *budget_terms(diff.trace, stage)]


def _effects(diff: Diff) -> list[str]:
    """What the origins did to out and lse, against what the kernel read."""
    lines = []
    for stage in diff.stages:
        if stage.name in ("out", "lse") and stage.propagated is not None:
            found = stage.propagated.summary
            share = f"{found.outside} of {found.size} elements outside the budget from {beginning(diff.trace)}"
            lines.append(f"effect on {stage.name}: {share}, largest error {number(found.max_abs)}")
    return lines
