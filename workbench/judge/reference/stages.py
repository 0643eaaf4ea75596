"""The judgement of every array of a kernel under one contract."""

import string
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from workbench.arrays import on_cpu
from workbench.expectation.elements import Comparison, State
from workbench.judge.reference.given import Given
from workbench.judge.reference.held import Held, dumps_of, held
from workbench.judge.reference.lines import short
from workbench.judge.reference.samples import BySamples
from workbench.judge.stage import ASSUMPTION, EVIDENCE, StageDiff, verdict_of
from workbench.reference.graph import Contract, Graph, undecided
from workbench.reference.graph.combine import TAKES_ONE
from workbench.reference.graph.node import Line

#: share of the elements of a stage that is judged at least; of fewer nothing is said
JUDGED = 0.99
#: axes of an array that has no names for them
AXES = string.digits + string.ascii_letters


def under(
    graph: Graph, contract: Contract, given: Sequence[Given], *, sharp: bool = True, trial: bool = False
) -> tuple[StageDiff, ...]:
    """The stages, in the order in which the reference makes them; without `sharp` nothing is asked in reverse mode. A
    `trial` says whether all are right, and how wrong they are by fewer samples.

    A stage that is wrong given the stages before it, and right from the inputs, is right where one of these was given
    in 16 bits and the contract does not say so: the kernel may have read more bits than it gave.
    """
    found = [_judged(graph, contract, one, given) for one in held(graph, contract, given, sharp=sharp, trial=trial)]
    orphan = next((i for i, stage in enumerate(found) if stage.role == "victim"), None)
    if orphan is not None and not any(stage.role == "origin" for stage in found):
        stage = found[orphan]
        why = f"right given {', '.join(stage.judged_from)}, wrong from the inputs: the bug is at or before {stage.name}"
        found[orphan] = replace(stage, verdict="bug", reason=why, isolated=None)
    return tuple(found)


def with_decisions(
    graph: Graph, contract: Contract, given: Sequence[Given], stages: tuple[StageDiff, ...]
) -> tuple[StageDiff, ...]:
    """The stages; a wrong one behind a decision of the reference that rounding may turn, such as `if total > 1`, is
    untestable: its budget knows of no other answer. What is NaN, or was never written, is wrong by any.
    """
    if not graph.decisions or not any(stage.role == "origin" for stage in stages):
        return stages
    open_ = undecided(graph, contract, dumps_of(graph, given))
    nodes = {one.name: one.nodes[-1] for one in given}

    def told(stage: StageDiff) -> StageDiff:
        before = [one.decision for one in open_ if one.decision.node < nodes[stage.name]]
        if not before or stage.role != "origin" or is_broken(stage):
            return stage
        why = f"the reference goes on by {before[0].words} at {short(before[0].line)}, which rounding may turn"
        return replace(stage, verdict="untestable", reason=f"{why}; use np.where, or give the kernel's choice")

    return tuple(told(stage) for stage in stages)


def is_broken(stage: StageDiff) -> bool:
    """Whether it has NaN, or an infinity, where the reference has none, or slots that nobody wrote."""
    found = stage.decisive
    return found is None or bool(found.summary.count(State.NAN, State.UNWRITTEN))


def _judged(graph: Graph, contract: Contract, one: Held, given: Sequence[Given]) -> StageDiff:
    name, x = one.given.name, one.given.x
    before = one.judged_from
    isolated, reason, by = one.isolated, "", one.drawn
    narrow = [other.name for other in given if other.name in before and _may_be_wider(other, contract)]
    if narrow and isolated.summary.outside and not one.propagated.summary.outside:
        isolated, reason = one.propagated, f"judged from the inputs, since {', '.join(narrow)} was given in 16 bits"
        before, by = (), None
    verdict, why = verdict_of(isolated.summary)
    total, judged = isolated.summary.size, isolated.summary.judged
    if judged < total and verdict not in ("bug", "missing"):
        reason = f"{total - judged} of {total} elements not judged: {_why(graph, isolated, one.open, by)}"
        if judged < JUDGED * total:
            verdict, why = "untestable", ""
    if isolated.summary.count(State.NAN) and np.isnan(isolated.expected[isolated.state == State.NAN]).any():
        why = "the reference is NaN where the kernel is not"
    by_samples = "" if by is None or verdict in ("missing", "untestable") else drawn(isolated, by)
    return StageDiff(
        name,
        AXES[: x.ndim],
        verdict,
        isolated,
        one.propagated,
        judged_from=before,
        doubt=(EVIDENCE if one.given.result else ASSUMPTION) if verdict == "suspicious" else "",
        reason="; ".join(filter(None, (why or reason, by_samples))),
        dumped=x,
    )


def drawn(found: Comparison, by: BySamples) -> str:
    """What samples decided, and what the worst case did."""

    def said(some: np.ndarray) -> str:
        deviations = on_cpu(by.deviations)
        place = np.unravel_index(int(np.argmax(np.where(some, deviations, -1.0))), some.shape)
        return f"{deviations[place]:.3g} deviations off, drawn by {int(by.samples[place])} samples"

    n = int(by.decides.sum())
    if found.summary.outside:
        numbers = found.outside & np.isfinite(on_cpu(found.error))
        outside = numbers & on_cpu(by.decides)
        if outside.any():
            return f"{int(outside.sum())} elements that samples alone judge are wrong, the worst {said(outside)}"
        return "the wrong elements are beyond their worst case" if n and numbers.any() else ""
    if found.summary.count(State.SUSPICIOUS):
        beyond = on_cpu(by.where) & (found.state == State.SUSPICIOUS)
        if beyond.any():
            return f"the worst {said(beyond)}"
    size = found.summary.size
    return f"samples alone judge {n} of {size} elements: at most {said(on_cpu(by.decides))}" if n else ""


def _why(graph: Graph, found: Comparison, lines: Sequence[Line], by: BySamples | None) -> str:
    """Why elements were not judged."""
    if found.summary.count(State.POISONED):
        return "what they are made of is NaN"
    if by is not None and bool(by.blind.any()) and not lines:
        return "roundings alone may change them entirely"
    if np.isfinite(found.budget[found.state == State.VACUOUS]).all():
        return "their budgets are as large as the terms that they add up"
    told = f"their budgets are infinite from {', '.join(map(short, lines[:2])) or 'the contract'} on"
    if any(node.op in TAKES_ONE and node.line in lines for node in graph.nodes):
        told += ", which may take any of nearly equal values: return the kernel's indices as a stage"
    return told


def _may_be_wider(one: Given, contract: Contract) -> bool:
    return one.narrow and one.name not in contract.stored
