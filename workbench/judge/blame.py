"""Who is to blame for what is wrong: wrong stages behind wrong ones, and victims whose origin nobody judged."""

from collections.abc import Sequence
from dataclasses import replace

from workbench.case.stages import OF_QUANTISER
from workbench.expectation.observed import Observed
from workbench.judge.stage import ORIGIN_VERDICTS, StageDiff
from workbench.reference.dataflow import nearest_dumped, unseen_upstream


def with_blame(
    run: Observed, judged: Sequence[StageDiff], others: Sequence[StageDiff]
) -> tuple[tuple[StageDiff, ...], tuple[StageDiff, ...]]:
    """The stages that were judged and those that were not, after the blame.

    A stage that is wrong end to end has the wrong ones before it in `behind`. A victim needs an origin: where no stage
    before it is wrong, the last stage that it was judged from and that nobody judged moves to the judged ones as a
    `bug`, "at or before"; where all of these were judged, the victim itself is the `bug`. Victims of what was put in,
    and of what is suspicious though beyond its budget or untestable, are exempt.
    """
    judged = _behind(run, judged)
    accused = _accused(run, judged)
    why = {name: _why(name, victim) for name, victim in accused.items()}
    seen = {stage.name for stage in judged if stage.name not in accused}
    upstream = {name: unseen_upstream(run.table, name, seen) for name in accused}
    everything = [
        replace(stage, verdict="bug", reason=why[stage.name], upstream=upstream[stage.name], isolated=None)
        if stage.name in accused
        else stage
        for stage in (*judged, *others)
    ]
    order = list(run.known)
    everything.sort(key=lambda stage: order.index(stage.name))
    names = {stage.name for stage in judged} | set(accused)
    return (
        tuple(stage for stage in everything if stage.name in names),
        tuple(stage for stage in everything if stage.name not in names),
    )


def _behind(run: Observed, judged: Sequence[StageDiff]) -> list[StageDiff]:
    """The stages, those that are wrong end to end with the wrong ones among all stages before them."""
    wrong = {stage.name for stage in judged if stage.verdict in ORIGIN_VERDICTS}

    def behind(stage: StageDiff) -> tuple[str, ...]:
        if stage.verdict != "bug" or stage.isolated is not None or stage.measured:
            return ()
        return tuple(name for name in unseen_upstream(run.table, stage.name, ()) if name in wrong)

    return [replace(stage, behind=behind(stage)) for stage in judged]


def _accused(run: Observed, judged: Sequence[StageDiff]) -> dict[str, str]:
    """Stage to blame -> the first victim that has no other origin."""
    wrong = {stage.name for stage in judged if stage.verdict in ORIGIN_VERDICTS}
    put_in = set(run.trace.put_in) - set(OF_QUANTISER)
    # beyond its budget and yet suspicious: only of a kernel that does something else, which may move what follows
    forgiven = {x.name for x in judged if x.verdict == "suspicious" and x.decisive and x.decisive.summary.outside}
    untold = {stage.name for stage in judged if stage.verdict == "untestable"}
    exempt = wrong | put_in | forgiven | untold
    unjudged = {name for name in run.readable if name not in {stage.name for stage in judged}}
    # what a stage that is right end to end was made of is right as far as that stage depends on it
    right = [stage.name for stage in judged if _right_end_to_end(stage)]
    cleared = {name for stage in right for name in _read(run, stage)}
    order = list(run.known)
    orphans = []
    for stage in judged:
        if stage.role != "victim" or stage.verdict in ORIGIN_VERDICTS or stage.name in forgiven:
            continue
        if not exempt.intersection(unseen_upstream(run.table, stage.name, ())):
            read = [name for name in _read(run, stage.name) if name in unjudged]
            last = [name for name in read if name not in cleared] or read
            orphans.append((order.index(last[-1] if last else stage.name), stage.name))
    found: dict[str, str] = {}
    for blamed, victim in sorted(orphans):
        if not found.keys() & set(unseen_upstream(run.table, victim, ())):
            found[order[blamed]] = victim
    return found


def _right_end_to_end(stage: StageDiff) -> bool:
    return stage.propagated is not None and stage.propagated.summary.judged > 0 and stage.role == "clean"


def _read(run: Observed, name: str) -> tuple[str, ...]:
    return nearest_dumped(run.table, name, run.readable)


def _why(name: str, victim: str) -> str:
    """Why a stage is a bug that nobody saw to be wrong."""
    if name == victim:
        return f"right given its inputs but wrong from q, k, v; all before it is right: the bug is at or before {name}"
    return f"not judged itself; {victim} is right given {name} but wrong from q, k, v: the bug is at or before {name}"
