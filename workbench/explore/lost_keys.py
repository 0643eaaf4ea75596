"""A kernel that is right by out and lse alone, judged on inputs in which a lost key shows."""

from collections.abc import Iterator
from dataclasses import replace

from workbench.case.exposing_lost_keys import exposing_lost_keys
from workbench.judge.diff import Diff, diff
from workbench.judge.unseen import from_ends


def on_telling_cases(judged: Diff) -> Iterator[Diff]:
    """The judgement of the same kernel on each of the cases `telling`; none where something was found wrong, where
    stages before out and lse were judged, and of a run that cannot be repeated on other inputs, or holds a part.
    """
    trace = judged.trace
    if trace.rerun is None or trace.box is not None or not from_ends(judged.stages):
        return
    for case in exposing_lost_keys(trace.case):
        yield diff(replace(trace.rerun(case), called_with=trace.called_with))
