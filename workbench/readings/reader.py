"""From a function to what it computes: readings, each corrected by those before it, and the proof on inputs that nobody
has seen.
"""

import time
import warnings
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from threadpoolctl import threadpool_limits

from workbench.readings import shared
from workbench.readings.finding import Finding
from workbench.readings.model import Model, right
from workbench.readings.needed import needed
from workbench.readings.of_lse import Lse, lse
from workbench.readings.order import Reader
from workbench.readings.parts import partials
from workbench.readings.proof import UNSEEN, Proof, proved, unseen
from workbench.readings.target import Target, Weights
from workbench.readings.verdict import Verdict, verdict
from workbench.shown import shown_by
from workbench.trace.trace import Trace
from workbench.work import Work

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: share of the error of a run on unseen inputs that what is told may leave, at most
HALF = 0.5


@dataclass(frozen=True, eq=False)
class Measured:
    """What a function computes, as far as it was read off its outputs."""

    findings: tuple[Finding, ...]  #: in the order in which they were read; none for a right function
    model: Model
    right: Model
    weights: np.ndarray  #: P of the user's own q and k, [b, h, q, k]
    expected_weights: np.ndarray
    proofs: tuple[Proof, ...]
    calls: int
    seconds: float
    target: Target = field(repr=False)
    lse: Lse | None  #: what lse is, where it is neither right nor that of what out was divided by
    read: Weights = field(repr=False)  #: of what `weights` were made
    #: what the function rounds, where that is within the budgets of some contract that it may keep: no fault by itself
    arithmetic: tuple[Finding, ...] = ()
    part: str = ""  #: of what rows and heads of the run, in words; empty: of all

    @cached_property
    def verdict(self) -> Verdict:
        """The weights as a stage, and who is to blame."""
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # of rows in which nothing can be read
            held, lse_held = (all(getattr(one, name) for one in self.proofs) for name in ("held", "lse_held"))
            given = (self.target, self.model, self.read, self.weights, self.findings)
            return verdict(*given, held=held, lse_held=lse_held)

    @property
    def stage(self) -> str | None:
        """The first wrong stage; None of a right function."""
        return self.verdict.stage

    @property
    def wrong(self) -> bool:
        """Whether something was found, or a stage is beyond the budgets of every kernel that keeps the contract."""
        return bool(self.findings) or self.stage is not None

    @property
    def ratio(self) -> float:
        """The largest error of a weight in units of its budget."""
        return self.verdict.ratio

    @property
    def proved(self) -> bool:
        """Whether what was found predicts all runs on unseen inputs."""
        return bool(self.findings) and bool(self.proofs) and all(one.held and one.lse_held for one in self.proofs)

    def plot(self) -> "Figure":
        """The map of ln(P / expected) of the head that is farthest off, a matplotlib Figure."""
        return shown_by("pictures.measured.measured", self)

    def __str__(self) -> str:
        return "\n".join(shown_by("measured.lines", self))


@np.errstate(all="ignore")
def measured(trace: Trace, *, effort: float = 1.0, work: Work | None = None) -> Measured:
    """What the function of a trace computes. `effort`: how many times as many calls as usual it may take; `work`: what
    they may cost, None: whatever they cost. Refusal where it cannot be called again, or not as often as `work` allows.
    """
    begun = time.monotonic()
    if trace.case.shared_kv and trace.rerun is not None and "out" in trace.stages:
        return _of_shared(trace, effort, work)
    with threadpool_limits(1, "blas"), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of rows in which nothing can be read, whose medians are NaN
        target = Target(trace, effort, work)
        weights = target.identity
        reader = Reader(target, weights)
        if weights.wrong.any() or target.natural.wrong.any():
            reader.read_all()
        plain, runs = right(target), dict.fromkeys(UNSEEN)
        if reader.found:
            runs = {seed: unseen(target, seed) for seed in UNSEEN}
            reader.model, reader.found = needed(reader, plain, [one for one in runs.values() if one is not None])
        of_lse, more = lse(target, reader.model, plain)
        if more and not reader.found:
            runs = {seed: unseen(target, seed) for seed in UNSEEN}
        reader.found += more
        proofs = tuple(proved(target, reader.model, of_lse, *one) for one in runs.items()) if reader.found else ()
        of_out = [one for one in reader.found if one not in more]
        casts = all(one.reading == "cast" for one in of_out)
        # what changes nothing on unseen inputs is held, too
        told = proofs and all(one.held and one.left < one.error for one in proofs)
        arithmetic: tuple[Finding, ...] = ()
        if (casts or not told) and target.may_be_right:
            # of a kernel in another arithmetic what was read is what that rounds, which a contract may allow
            arithmetic = tuple(of_out) if told else ()
            reader.found, proofs = more, proofs if more else ()
        elif of_out and any(not one.held and one.left > HALF * one.error for one in proofs):
            # what leaves most of an error says nothing of it; of a run that is right, or NaN as predicted, all is left
            reader.model, reader.found, proofs = plain, more, proofs if more else ()
        partials.cache_clear()
    return Measured(
        tuple(reader.found), reader.model, plain, reader.read, weights.expected, proofs, target.calls,
        time.monotonic() - begun, target, of_lse, reader.weights, arithmetic,
    )  # fmt: skip


def _of_shared(trace: Trace, effort: float, work: Work | None) -> Measured:
    """Of a V that is a part of K: the other dims of q and k first, then the shared ones; proved on whole runs."""
    begun, case = time.monotonic(), trace.case
    own = measured(shared.of_own_dims(trace), effort=effort, work=work)
    said = f"the last {case.head_dim - case.head_dim_v} of {case.head_dim} dims of q and k, the others of q set to 0"
    own.target.whole = whole = Target(trace, effort, work, shared=True)
    with threadpool_limits(1, "blas"), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        model, found, calls = shared.of_shared(whole, own.target, own.model, own.findings)
        proofs = tuple(proved(whole, model, None, seed, unseen(whole, seed)) for seed in UNSEEN) if found else ()
    if not all(one.held for one in proofs) and whole.may_be_right:
        found, proofs = (), ()
    return replace(
        own, findings=found, proofs=proofs, calls=own.calls + calls + whole.calls + 1, part=said,
        seconds=time.monotonic() - begun,
    )  # fmt: skip
