"""Two captured runs of one model, in lines: a line a call, and what follows from all."""

from typing import Any

import numpy as np

from workbench.case.stages import OUT
from workbench.judge.against.runs import CallPair, Runs
from workbench.judge.against.shares import Share
from workbench.report.numbers import number, ratio, times
from workbench.report.text import listing, plain
from workbench.suggested import command

#: share of a difference below which a rounding is not worth a line
WORTH = 0.01


def rows(found: Runs) -> list[dict[str, Any]]:
    """A row for each call, as a table for a screen."""
    departed = None if found.departed is None else found.departed.call
    return [_row(pair, departed) for pair in found.pairs]


def _row(pair: CallPair, departed: int | None) -> dict[str, Any]:
    largest = next(iter(pair.shares), None)
    of = "" if largest is None or largest.share < WORTH else f"{percent(largest.share)} {largest.words}"
    marks = [f"{name} <- bug" for name in pair.wrong]
    marks += [f"another {what}" for what in pair.asked]
    marks += ["<- differs"] if pair.call == departed else []
    return {
        "call": pair.call,
        "A": pair.a.verdict,
        "error / budget A": ratio(pair.a.over_budget),
        "B": pair.b.verdict,
        "error / budget B": ratio(pair.b.over_budget),
        "max |A - B|": number(pair.largest),
        "carried": number(pair.carried),
        "own": number(pair.own),
        "cause of own": ", ".join(marks) or of,
    }


def lines(found: Runs) -> list[str]:
    """What follows from all calls."""
    of_calls = rows(found)
    table = plain(listing(of_calls, [*of_calls[0]], unicode=False)).splitlines()
    return [line.rstrip() for line in (f"A: {found.a}", f"B: {found.b}", *table, *verdict(found), *found.alone)]


def verdict(found: Runs) -> list[str]:
    """Whose calls leave their budgets, and where first; or what the difference comes from."""
    count = len(found.pairs)
    made = _departed(found)
    wrong = {name: [pair for pair in found.pairs if name in pair.wrong] for name in "AB"}
    for name, pairs in wrong.items():
        if not pairs:
            if any(wrong.values()):
                made.append(f"{name} is within its budget in all {count} calls")
            continue
        first = pairs[0]
        of = first.a if name == "A" else first.b
        made.append(
            f"{name} is over budget first at {first.named}: {of.stage}, error {times(of.over_budget)}"
            + (f"; so are {len(pairs) - 1} more calls" if len(pairs) > 1 else "")
        )
        if (cause := found.causes.get(name)) is not None:
            several = f"{cause.rivals} other formulas fit" if cause.rivals > 1 else "another formula fits"
            others = f" ({several} as well)" if cause.rivals else ""
            made.append(f"  cause, in {cause.stage}: {cause.text}{others}")
        else:
            more = f"`{command('explain', of.file)}`" if of.file else "`workbench.explain` of the call"
            made.append(f"  no known cause explains it; next: {more} searches longer")
    if (first_asked := next((pair for pair in found.pairs if pair.asked), None)) is not None:
        for what, (a, b) in first_asked.asked.items():
            made.append(
                f"the calls differ in what they compute, first at {first_asked.named}: {what} is {a} in A, {b} in B"
            )
    if found.verdict in ("rounding", "suspicious", "identical"):
        made += _rounding(found)
    if found.verdict == "untestable":
        made.append("untestable: some calls could not be judged on both sides")
    return made


def _departed(runs: Runs) -> list[str]:
    """Which inputs of which call differ first, in which rows, and where to look."""
    found, named = runs.departed, {pair.call: pair.named for pair in runs.pairs}
    if found is None:
        return []
    if OUT in found.inputs:
        where = f": {found.where}" if found.where else ""
        return [f"out of {named[found.call]} is non-finite on one side only, though right given its inputs{where}"]
    several = len(found.inputs) > 1
    names = " and ".join(", ".join(found.inputs).rsplit(", ", 1))
    by = (
        f"differ{'s' * (not several)} by {number(max(found.inputs.values()))} relative to "
        f"{'their' if several else 'its'} size"
    )
    if np.isinf(max(found.inputs.values())):
        by = f"{'are' if several else 'is'} non-finite on one side only"
    if found.factor is not None:
        by = f"{'are' if several else 'is'} {found.factor:.6g} times as large in A on average"
    rows = {*found.rows.values()}
    if len(rows) == 1:
        only = rows.pop()
        place = f" in row{'s' * (not only.isdigit())} {only} only" if only else ""
    else:
        place = " in rows " + ", ".join(f"{rows or 'all'} of {name}" for name, rows in found.rows.items())
    if found.batches:
        place += f" of sequence{'s' * (len(found.batches) > 1)} {', '.join(map(str, found.batches))} of the batch"
    when = " before any attention ran" if found.call == 0 else ""
    look = "look before it" if found.behind is None else f"look between {named[found.behind]} and this call"
    where = f": {found.where}" if found.where else ""
    limit = f"  rounding explains a relative difference of at most {number(found.allowed)} there"
    if found.factor is not None:
        limit = "  rounding goes up as often as down, so it cannot produce a constant factor"
    made = [f"{names} of {named[found.call]} {by}{when}{place}: {look}{where}", limit]
    if found.behind is not None and several and place == "":
        made.append("  the factor may arise earlier: a norm would hide it in earlier calls")
    return made


def _rounding(found: Runs) -> list[str]:
    count = len(found.pairs)
    if found.verdict == "identical":
        return [f"A and B are bit-identical in all {count} calls"]
    largest = max(found.pairs, key=lambda pair: pair.largest)
    doubt = "" if found.verdict == "rounding" else ", though some are suspicious"
    made = [
        f"both are within budget in all {count} calls{doubt}: the difference of {number(largest.largest)} "
        f"({largest.named}) is rounding"
    ]
    apart = max(found.pairs, key=lambda pair: pair.apart.largest)
    made.append(
        f"q, k and v differ by at most {number(apart.apart.largest)} relative to their size ({apart.named}): rounding "
        "in earlier layers"
    )
    told = [one for one in found.shares if abs(one.share) >= WORTH]
    if found.shares:
        left = 1 - sum(one.share for one in found.shares)
        made.append("where the difference of the calls comes from (share of squares, inputs excluded):")
        made += [f"  {percent(one.share):>5}  {one.words}{_interaction(one)}" for one in told]
        made.append(f"  {percent(left):>5}  unexplained: order of sums, exp, other casts")
        made.append(
            f"  {percent(found.interaction):>5}  interaction: depends on the order in which the sources are removed"
        )
    return made


def _interaction(one: Share) -> str:
    """By how much it matters which rounding is taken away first."""
    return f", {percent(one.interaction)} shared with others" if one.interaction >= WORTH else ""


def percent(x: float) -> str:
    """A share, as all lines and pages write it; -0 is 0."""
    return "0 %" if abs(x) < 0.005 else f"{100 * x:.0f} %"
