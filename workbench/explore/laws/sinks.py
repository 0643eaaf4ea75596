"""The law of sinks, and sinks that other laws take away or move."""

from collections.abc import Mapping

import numpy as np

from workbench.case.case import Case
from workbench.explore.laws.beside import of_heads
from workbench.explore.laws.bits import score_range
from workbench.explore.laws.compare import first, within
from workbench.explore.laws.law import Verdict
from workbench.explore.laws.run import Bounded, Rows, smaller, together
from workbench.explore.laws.subject import Subject

#: how far a sink is below all scores that has no weight: exp(-150) is below float32's least number, 2^-149
_LOST = 150.0
#: the least sink that is asked for, which float16 holds
_LEAST = -60000.0


def sinks_merged(s: Subject) -> Verdict:
    """A sink is a part of the keys whose out is 0 and whose lse is its logit: merged with the rest it gives the run.

    The rest is run with sinks so low that they have no weight. Merged in float64. Preconditions: sinks; out and lse are
    given.
    """
    if s.case.sinks is None or not {"out", "lse"} <= {*s.first.stages}:
        return "there are no sinks" if s.case.sinks is None else "out or lse was not given"
    case = without(s)
    if isinstance(case, str):
        return case
    run = s.run(case)
    rows = smaller(Rows.all(case), s.first, run)
    wanted = merged(s, {name: run.bounded(name, rows) for name in ("out", "lse")}, rows)
    return first(*(within(name, wanted[name], s.first.bounded(name, rows), rows) for name in wanted))


def without(s: Subject) -> Case | str:
    """The case with sinks that have no weight, itself where it has none; why there are no such sinks."""
    if s.case.sinks is None:
        return s.case
    logit = score_range(s)[0] - _LOST
    if not logit >= _LEAST:
        return "scores may be so low that no sink is sure to be lost beside them"
    return s.case.but(sinks=(logit,) * s.case.heads)


def merged(s: Subject, rest: Mapping[str, Bounded], rows: Rows) -> dict[str, Bounded]:
    """Out and lse of keys without sinks, together with the sinks of the case."""
    if s.case.sinks is None:
        return dict(rest)
    lse = rest["lse"]
    sink = Bounded(of_heads(s.case.sink_logits, rows) + 0.0 * lse.value, np.zeros(lse.value.shape))
    nothing = Bounded(np.zeros(rest["out"].value.shape), np.zeros(rest["out"].value.shape))
    found = together(rest, {"out": nothing, "lse": sink})
    return found if s.first.trace.contract.lse_includes_sink else {**found, "lse": lse}


def moved(s: Subject, by: np.ndarray | float) -> tuple[Case, np.ndarray]:
    """The case whose sinks are moved by numbers, one for each head or one for all; and how far float32 puts them off,
    float64 [heads].
    """
    if (logits := s.case.sink_logits) is None:
        return s.case, np.zeros(s.case.heads)
    exact = logits.astype(np.float64) + by
    stored = exact.astype(np.float32)
    return s.case.but(sinks=tuple(stored.tolist())), abs(stored - exact)


def off_by(name: str, x: Bounded, off: np.ndarray, rows: Rows) -> Bounded:
    """Out or lse of rows whose sinks are off: lse by no more than these, and out as its weights are."""
    of_rows = off[np.array(rows.h, np.int64)][None, :, None]
    if name == "lse":
        return Bounded(x.value, x.off + of_rows)
    return Bounded(x.value, x.off + np.expm1(of_rows)[..., None] * abs(x.value))
