"""One stage in sentences: where it is wrong, which line computes it, what its budget consists of."""

from workbench.case.stages import RESULTS, before_attention, quantised_inputs
from workbench.expectation.elements import BINS, Comparison, State
from workbench.judge.diff import Diff
from workbench.judge.explain.cause import Cause
from workbench.judge.explain.explanation import Explanation
from workbench.judge.explain.suspects import lies_in
from workbench.judge.stage import StageDiff
from workbench.report import ranks
from workbench.report.causes import in_lines
from workbench.report.numbers import mismatches, number, times, value
from workbench.trace.plain import is_plain
from workbench.trace.trace import Trace

#: what a stage does besides its arithmetic, where that may be wrong, too
_DOES = {
    "acc": "acc (rows and heads of v, rescaling by correction)",
    "merge_weight": "merge_weight (how it weights partial_O)",
    "out": "out (division, layout)",
}
#: terms of a budget that are named: those of at least this share
NAMED_SHARE = 0.05


def beginning(trace: Trace) -> str:
    """The inputs from which propagated errors are measured."""
    coded = trace.case.coded
    known = before_attention(trace.algorithm) and set(quantised_inputs(coded)) <= set(trace.stages)
    return ("codes and scales" if coded == "qkv" else "q, codes and scales") if known else "q, k and v"


def ends_alone(diff: Diff) -> tuple[str, ...]:
    """The results that were given of a kernel that gave nothing else; () otherwise."""
    given = (*diff.trace.stages,)
    return given if {*given} <= {*RESULTS} else ()


def of_stage(diff: Diff, name: str) -> list[str]:
    """All that is known of one stage, a line each: why it has its verdict, where it is wrong, what its budget consists
    of, what it was judged from, the line of source that computes it.
    """
    known = diff.explanation(name)
    stage = known.stage
    if stage.role == "origin":
        return [*in_lines(diff, diff.causes_of(name)), *in_full(diff, known)]
    lines = [stage.reason] if stage.reason else []
    if stage.decisive is not None:
        where = known.where if stage.decisive.summary.outside else ""
        lines += [counts(stage.decisive, where), bins(stage.decisive), *budget_terms(known)]
    if stage.decisive is not None and stage.isolated is None:
        lines.append(f"judged from {beginning(diff.trace)} alone")
    elif stage.judged_from:
        lines.append(f"judged from {', '.join(stage.judged_from)}, the nearest inputs that were dumped")
    return lines + _made_at(diff, name)


def in_short(diff: Diff, known: Explanation) -> list[str]:
    """What a reader of a wrong stage needs beside its row in the table: why it is wrong where no number says it, the
    pattern of wrong elements, the line to look at, and without a proved cause where else the bug may be.
    """
    stage, causes = known.stage, diff.causes_of(known.stage.name)
    lines = [_where_declared(stage.reason, diff.trace)] if stage.reason else []
    lines += ranks.whose(diff.trace, stage)
    if stage.decisive is not None and (pattern := _pattern(stage.decisive, known.where)):
        lines.append(pattern)
    lines += _of_empty_rows(diff, known) + _made_at(diff, stage.name)
    if not any(cause.proved for cause in causes) and (known.suspects is not None or not ends_alone(diff)):
        lines += _unseen(diff, known)
    return lines + _if_declared(diff, stage)


def in_full(diff: Diff, known: Explanation) -> list[str]:
    """All that is known of a wrong stage but its causes."""
    stage = known.stage
    made_at = _made_at(diff, stage.name)
    if stage.decisive is None:
        return [stage.reason, *made_at, *_unseen(diff, known)]
    lines = [_where_declared(stage.reason, diff.trace)] if stage.reason else []
    lines += [counts(stage.decisive, known.where), *ranks.whose(diff.trace, stage), *_of_empty_rows(diff, known)]
    worst = stage.worst(1)[0]
    axes = ", ".join(ranks.index(diff.trace, axis, i) for axis, i in worst.index.items())
    lines += [
        f"worst at {axes}: actual {value(worst.actual)}, expected {value(worst.expected)}, "
        f"budget {number(worst.budget)}, error {times(worst.over_budget)}",
        bins(stage.decisive),
        *budget_terms(known),
        *made_at,
    ]
    if stage.isolated is None:
        lines.append(f"judged from {beginning(known.run.trace)} alone: the bug may be anywhere up to {stage.name}")
    elif stage.judged_from:
        lines.append(f"judged from {', '.join(stage.judged_from)}, the nearest inputs that were dumped")
    if known.right_before:
        lines.append(f"earlier stages that are right (of those dumped): {', '.join(known.right_before)}")
    return [*lines, *_unseen(diff, known), *_if_declared(diff, stage)]


def _pattern(comparison: Comparison, where: str) -> str:
    """The part of counts that the table does not show: where all wrong elements lie, and those that are no numbers."""
    said = [f"all {comparison.summary.outside} wrong elements are at {where}"] if where else []
    return "; ".join([*said, *_kinds(comparison)])


def counts(comparison: Comparison, where: str) -> str:
    """How many elements are over budget, where all of them lie, and how many are of which kind."""
    size, outside = comparison.summary.size, comparison.summary.outside
    share = f"over budget: {outside} of {size} ({outside / size:.1%})" + (f", all at {where}" if where else "")
    return "; ".join([share, *_kinds(comparison)])


def _kinds(comparison: Comparison) -> list[str]:
    kinds = {
        "never written": State.UNWRITTEN,
        "not judged: they read NaN": State.POISONED,
        "not judged: their budget is infinite": State.VACUOUS,
    }
    nan = comparison.summary.count(State.NAN)
    said = [mismatches(nan)] if nan else []
    return said + [f"{count} {words}" for words, kind in kinds.items() if (count := comparison.summary.count(kind))]


def bins(comparison: Comparison) -> str:
    """How many elements lie in each range of error / budget; empty ranges are left out."""
    edges = [f"{edge:g}" for edge in BINS[:-1]]
    ranges = [f"{low} to {high}" for low, high in zip(["0", *edges], edges, strict=False)]
    names = ["at 0", *(f"at {one}" for one in ranges), f"above {edges[-1]}", "at inf"]
    found = [f"{count} {name}" for name, count in zip(names, comparison.summary.bins, strict=True) if count]
    return f"elements by error / budget: {', '.join(found)}"


def budget_terms(known: Explanation) -> list[str]:
    """What the budget at the worst element consists of, in a line; none where nothing was judged."""
    named = [f"{share:.0%} {source}" for source, share in known.budget_shares.items() if share >= NAMED_SHARE]
    return [f"its budget: {', '.join(named)}"] if named else []


def _of_empty_rows(diff: Diff, known: Explanation) -> list[str]:
    """How much of a wrong stage lies in empty rows, of which kernels make different things."""
    empty = known.wrong_without_keys
    if not empty or known.stage.decisive is None or diff.trace.backend != "foreign":
        return []
    if empty < known.stage.decisive.summary.outside:
        return [f"{empty} of these are in empty rows, where causes are not searched for"]
    what = "empty_out=any" if _brings_contract(diff.trace) else "--contract empty_out=any"
    return [
        _where_declared(
            f"only empty rows are wrong: if your kernel may leave anything there, declare {what}", diff.trace
        )
    ]


def _brings_contract(trace: Trace) -> bool:
    """Whether the trace was read from a file that has its contract; no option adds to that."""
    path = trace.called_with.trace
    return path is not None and not is_plain(path)


def _where_declared(text: str, trace: Trace) -> str:
    """A sentence that asks for a declaration, with the place for it where a trace brings its contract."""
    asks = "declare" in text.rpartition(": ")[2] or text.endswith("=any")
    return f"{text}, where the trace is made (`contract=` of a capture)" if asks and _brings_contract(trace) else text


def _if_declared(diff: Diff, stage: StageDiff) -> list[str]:
    """What would make a wrong stage right, unless a preset or a cause says more."""
    said, causes = stage.if_declared, diff.causes_of(stage.name)
    if said is None or (causes and not said.tells) or stage.name in (one.stage for one in diff.presumed):
        return []
    return [_where_declared(said.words, diff.trace)]


def _made_at(diff: Diff, name: str) -> list[str]:
    """The line of source to look at, where that is clear."""
    line = diff.explanation(name).to_look_at(diff.causes_of(name))
    return [] if line is None else [f"look at: {line}"]


def _unseen(diff: Diff, known: Explanation) -> list[str]:
    """In which undumped stages the bug may be. A right result rules some out, unless a cause contradicts that."""
    found = known.suspects
    causes: list[Cause] = list(diff.explained.causes)
    if found is None or any(lies_in(known.run.table, cause.places, found.cleared) for cause in causes):
        names = ", ".join(known.stage.upstream)
        return [f"not dumped, so the bug may be there too: {names}"] if names else []
    left = ", ".join(_DOES.get(name, name) for name in found.left)
    return [
        f"{found.right} is right, which rules out {', '.join(found.cleared)}",
        f"still suspect: {left}; or {found.blind}",
    ]
