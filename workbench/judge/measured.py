"""What was measured of a function, as stages beside those that it returned: the weights, and who is to blame.

A function that returns out alone shows no stage. `weights`, which out is with columns of the identity in place of V,
and what readings prove of scores, corrections, sums and V name one all the same. Of a stage that was dumped both must
say the same, or its probe shows another value than the kernel computes with.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from workbench.case.stages import MEASURED, OF_QUANTISER, OUT, RESULTS, Stage, merges
from workbench.expectation.observed import Observed
from workbench.judge.blame import with_blame
from workbench.judge.stage import ASSUMPTION, ORIGIN_VERDICTS, StageDiff, verdict_of
from workbench.readings.reader import Measured
from workbench.readings.reader import measured as read
from workbench.readings.verdict import Blame
from workbench.reference.dataflow import unseen_upstream
from workbench.refusal import Refusal
from workbench.trace.headline import headline


@dataclass(frozen=True, eq=False)
class MeasuredStages:
    """What measuring adds to a judgement."""

    found: Measured
    weights: StageDiff
    said: tuple[str, ...]  #: where a dump and what was measured do not agree
    stages: tuple[StageDiff, ...]  #: as they were judged without it
    others: tuple[StageDiff, ...]  #: and those that were not

    @property
    def proved(self) -> bool:
        """Whether what is to blame for out predicts runs on unseen inputs."""
        return any(one.proved for one in self.found.verdict.blames)

    @property
    def shows_all_keys(self) -> bool:
        """Whether each key that weighs anything weighs more than its budget in some row, so that none can be lost."""
        weights = self.weights.judged
        some, shown = (np.any(weights.expected > least, axis=2) for least in (0.0, weights.budget))
        return bool(np.all(shown | ~some))


def measurement(run: Observed, effort: float = 1.0) -> Measured:
    """What the function of a run computes; `effort` as of `readings.reader.measured`. Refusal for a part of a run, and
    where it cannot be called again as it was: a trace at rest, a merge of ranks, stages that were put in.
    """
    why, trace = "", run.trace
    if trace.box is not None:
        why = f"only {trace.box} is judged, but measuring needs the whole run; leave out --where"
    elif trace.ranks:
        why = "it merges results from ranks and takes no q, k or v"
    elif put_in := [name for name in trace.put_in if name not in OF_QUANTISER]:
        why = f"{', '.join(put_in)} were fed in; leave out --feed"
    elif OUT in trace.sparse:
        why = "it returned only part of out"
    if why:
        raise Refusal(f"{trace.target} cannot be measured: {why}")
    return read(trace, effort=effort)


def with_measured(
    run: Observed, found: Measured, judged: Sequence[StageDiff], others: Sequence[StageDiff]
) -> tuple[tuple[StageDiff, ...], tuple[StageDiff, ...], MeasuredStages]:
    """The stages that were judged and those that were not, after what was measured: a stage that it proves to be wrong
    and that nobody dumped is a `bug`, `measured`, and what follows it a victim.
    """
    before = (tuple(judged), tuple(others))
    told = {stage.name: stage for stage in judged}
    accused: dict[str, list[Blame]] = {}
    said: list[str] = []
    for blame in found.verdict.blames:
        name, as_dumped = _made_in(run, blame, judged)
        if not as_dumped:
            said.append(_not_as_dumped(run, blame, judged, name))
        if name not in told and _explained(run, blame, name, judged):
            continue
        accused.setdefault(name, []).append(blame)
    weights = _weights(run, found, [*accused] or [one.name for one in judged if one.role == "origin"])
    said += _not_as_measured(run, found, weights, judged)
    blamed = [_blamed(run, stage, accused, weights) for stage in judged]
    more = [stage for stage in others if stage.name in accused]
    blamed += [_accused(stage, accused[stage.name]) for stage in more]
    rest = [stage for stage in others if stage.name not in accused]
    stages, left = with_blame(run, blamed, rest)
    followed = tuple(_behind(stage, [*accused]) for stage in stages)
    return followed, left, MeasuredStages(found, weights, tuple(said), *before)


def _behind(stage: StageDiff, accused: Sequence[str]) -> StageDiff:
    """A stage that was judged from dumped ones, with those between that are wrong as they were measured."""
    if stage.verdict != "bug" or stage.measured:
        return stage
    between = [name for name in stage.upstream if name in accused and name not in stage.behind]
    return replace(stage, behind=(*stage.behind, *between))


def _weights(run: Observed, found: Measured, wrong: Sequence[str]) -> StageDiff:
    comparison = found.verdict.weights
    verdict, reason = verdict_of(comparison.summary)
    return StageDiff(
        "weights", MEASURED["weights"].axes, verdict, isolated=None, propagated=comparison,
        behind=tuple(wrong) if verdict in ORIGIN_VERDICTS else (), doubt=ASSUMPTION if verdict == "suspicious" else "",
        reason=reason, dumped=comparison.actual, run=headline(run.trace), measured=True,
    )  # fmt: skip


def _made_in(run: Observed, blame: Blame, judged: Sequence[StageDiff]) -> tuple[str, bool]:
    """The stage in which what was measured is made: the first that may be it and is not right as it was dumped; and
    whether that agrees with what was dumped.
    """
    known = run.known
    may = [name for name in blame.made_in if name in known]
    if blame.rescales and merges(run.trace.algorithm) and {*blame.edges} <= _splits(run):
        may = [name for name in may if known[name].group in ("merge", "results")]
    cleared = {name for stage in _right(judged, blame) for name in _seen_by(run, stage.name)}
    left = [name for name in may if name not in cleared]
    late = bool(left) and all(known[name].result for name in left)
    hardly = blame.stage in cleared if blame.of_scores else blame.rescales and late
    return (left or may[-1:])[0], not hardly


def _right(judged: Sequence[StageDiff], blame: Blame) -> list[StageDiff]:
    """The stages that were dumped and are right from q, k and v, as far as they tell of what is to blame."""
    but = RESULTS if blame.of_scores else (OUT,)
    return [stage for stage in judged if stage.role == "clean" and stage.right_from_inputs and stage.name not in but]


def _seen_by(run: Observed, name: str) -> tuple[str, ...]:
    """A stage and all before it."""
    return (*unseen_upstream(run.table, name, ()), name)


def _of_weights(stage: Stage) -> bool:
    """Whether weights are made of a stage."""
    return stage.group in ("tiles", "splits", "merge") and "d" not in stage.axes


def _before_sums(stage: Stage) -> bool:
    """Whether a wrong one makes weights wrong, and no correction or sum that is wrong by itself."""
    return stage.group == "tiles" and "k" in stage.axes


def _splits(run: Observed) -> set[int]:
    """The first key of each split."""
    tiles = run.tiling
    return {tiles.keys[own[0]].start for own in tiles.splits if own}


def _not_as_measured(run: Observed, found: Measured, weights: StageDiff, judged: Sequence[StageDiff]) -> list[str]:
    """Where a stage is wrong as it was dumped, and nothing of it in the weights that were measured."""
    wrong = [stage.name for stage in judged if stage.role == "origin" and _of_weights(run.known[stage.name])]
    blames = found.verdict.blames
    if weights.verdict not in ORIGIN_VERDICTS:
        how = "the measured weights are right"
    elif all(one.proved and not one.of_scores for one in blames):
        wrong = [name for name in wrong if _before_sums(run.known[name])]
        how = "the measured weights are wrong for another reason"
    else:
        return []
    return [
        f"{name} is wrong as dumped, but {how}. First suspect its probe: it may store a value that the weights do not "
        "use. Then suspect errors that cancel"
        for name in wrong
    ]


def _explained(run: Observed, blame: Blame, name: str, judged: Sequence[StageDiff]) -> bool:
    """Whether a stage that nobody dumped has a wrong one before it that makes what was measured."""
    wrong = {stage.name for stage in judged if stage.role == "origin"}
    if not blame.of_scores and blame.proved:
        wrong -= {name for name in wrong if _before_sums(run.known[name])}
    return bool(wrong & {*unseen_upstream(run.table, name, ())})


def _blamed(run: Observed, stage: StageDiff, accused: dict[str, list[Blame]], weights: StageDiff) -> StageDiff:
    """A judged stage with what was measured of it."""
    if stage.name not in accused:
        return stage
    if weights.verdict not in ORIGIN_VERDICTS:
        stage = replace(stage, upstream=tuple(name for name in stage.upstream if not _of_weights(run.known[name])))
    return _accused(stage, accused[stage.name])


def _accused(stage: StageDiff, blames: Sequence[Blame]) -> StageDiff:
    texts = [one.text if one.proved else f"{one.text} (not proved on other inputs)" for one in blames]
    reason = "; ".join(filter(None, (stage.reason if stage.decisive is not None else "", *texts)))
    return replace(stage, verdict="bug", reason=reason, measured=True, doubt="")


def _not_as_dumped(run: Observed, blame: Blame, judged: Sequence[StageDiff], name: str) -> str:
    """That a stage is right as it was dumped and wrong as it was measured."""
    right = [stage.name for stage in _right(judged, blame) if blame.stage in _seen_by(run, stage.name)][-1]
    return (
        f"{right} is right as dumped, but the measured weights look as if {blame.stage} were wrong. First suspect the "
        f"probe of {right}: it may store a value that {name} does not read. Then suspect {name}"
    )
