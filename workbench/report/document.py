"""Judgements as JSON documents; non-finite numbers are the strings "inf", "-inf" and "nan"."""

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from workbench.case.stages import MEASURED
from workbench.expectation.elements import BINS, Comparison, State
from workbench.judge.cancellation import GOOD_BITS, ill_conditioned
from workbench.judge.codes.loss import Loss
from workbench.judge.diff import Diff
from workbench.judge.explain.explain import Explained
from workbench.judge.measured import MeasuredStages
from workbench.judge.stage import StageDiff
from workbench.line import Line, near
from workbench.records import number
from workbench.report import broken_laws
from workbench.report.command import telling_command
from workbench.report.findings import check_document
from workbench.report.measured import document as measured

#: bins of x of budget, as Summary counts them
BIN_NAMES = ("0", *(f"<={edge:g}" for edge in BINS[:-1]), f">{BINS[-2]:g}", "inf")


def diff_document(diff: Diff) -> dict[str, Any]:
    """The document `workbench.diff/1` of one judged run."""
    trace = diff.trace
    return {
        "schema": "workbench.diff/1",
        "target": trace.target,
        "faults": list(trace.faults),
        "backend": trace.backend,
        "case": number(trace.case_run.as_dict()),
        "where": None if trace.box is None else {axis: [*ends] for axis, ends in trace.box.edges().items()},
        "put_in": list(trace.put_in),
        "contract": number(trace.contract.as_dict()),
        "verdict": diff.verdict,
        "doubt": diff.doubt or None,
        "origin": diff.origin,
        "origins": list(diff.origins),
        "victims": list(diff.victims),
        "gates": list(trace.gates),
        "provenance": None if trace.provenance is None else trace.provenance.as_dict(),
        "notes": list(trace.notes),
        "not_judged": [{"name": stage.name, "reason": stage.reason} for stage in diff.not_judged],
        "stages": [_stage(diff, stage) for stage in diff.rows],
        "rules": [number({**asdict(rule), "passes": rule.passes}) for rule in diff.rules],
        "bits_lost": {name: _bits_lost(bits) for name, bits in diff.bits_lost.items()},
        "quantisation": None if diff.loss is None else _loss(diff.loss),
        "explanations": number(diff.explained.as_dicts()),
        "unseen": None if diff.unseen is None else {"weight": diff.unseen, "command": telling_command(trace)},
        **({} if diff.of_measure is None else {"measured": _measured(diff.of_measure)}),
    }


def _measured(of_measure: MeasuredStages) -> dict[str, Any]:
    """As of `workbench measure`, and where a dump and what was measured do not agree."""
    found = of_measure.found
    return {
        **{name: x for name, x in measured(found).items() if name not in ("schema", "target", "case")},
        "disagrees": list(of_measure.said),
    }


def diffs_document(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The document `workbench.diffs/1` of the documents of several runs."""
    return {"schema": "workbench.diffs/1", "runs": list(runs)}


def explained_document(found: Explained) -> dict[str, Any]:
    """The document `workbench.explain/1` of what explains a judged run; `laws` as of `broken_laws.document`."""
    diff, trace = found.judged, found.judged.trace
    return {
        "schema": "workbench.explain/1",
        "target": trace.target,
        "faults": list(trace.faults),
        "case": number(trace.case_run.as_dict()),
        "verdict": diff.verdict,
        "origins": list(diff.origins),
        "wrong_if_usual": list(found.usual),
        "unstable": found.unstable,
        "explanations": number(found.as_dicts()),
        "withdrawn": number([cause.as_dict() for cause in found.withdrawn]),
        "unknown": number(found.unknown()),
        "laws": None if found.laws is None else broken_laws.document(found.laws),
        "watched": None if found.watched is None else check_document(found.watched)["findings"],
        "tried": found.tried,
        "complete": found.complete,
        "ended_by": found.ended_by,
        "seconds": found.seconds,
    }


def explaineds_document(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The document `workbench.explains/1` of the documents of several runs."""
    return {"schema": "workbench.explains/1", "runs": list(runs)}


def _stage(diff: Diff, stage: StageDiff) -> dict[str, Any]:
    known = diff.explanation(stage.name)
    of_walk = stage.name not in MEASURED
    reasons = [stage.reason, "" if stage.if_declared is None else stage.if_declared.words]
    return {
        "name": stage.name,
        "verdict": stage.verdict,
        "doubt": stage.doubt or None,
        "role": stage.role,
        "reason": "; ".join(filter(None, reasons)),
        "judged_from": list(stage.judged_from),
        "upstream": list(stage.upstream),
        "line": _line(known.to_look_at(diff.causes_of(stage.name))) if of_walk else None,
        "isolated": _comparison(stage, stage.isolated),
        "propagated": _comparison(stage, stage.propagated),
        "budget_terms": dict(known.budget_shares) if of_walk else {},
        **({} if diff.of_measure is None else {"measured": stage.measured}),
    }


def _line(line: Line | None) -> dict[str, Any] | None:
    return None if line is None else {"path": near(line.path), "line": line.line, "text": line.text}


def _loss(loss: Loss) -> dict[str, Any]:
    """Largest and root mean square of what quantisation, the kernel and both together did to out."""
    parts = {"quantisation": loss.of_out, "kernel": loss.of_kernel, "together": loss.together}
    return {
        name: number({"max_abs": np.abs(error).max(), "rms": np.sqrt((error * error).mean())})
        for name, error in parts.items()
    }


def _bits_lost(bits: np.ndarray) -> dict[str, Any]:
    """Over the elements whose terms are numbers; None where there are none."""
    known = bits[~np.isnan(bits)]
    return {
        "max": number(float(known.max())) if known.size else None,
        "median": number(float(np.median(known))) if known.size else None,
        f"below_{GOOD_BITS}_good_bits": int(ill_conditioned(bits).sum()),
        "size": bits.size,
    }


def _comparison(stage: StageDiff, comparison: Comparison | None) -> dict[str, Any] | None:
    if comparison is None:
        return None
    worst, found = stage.worst_of(comparison, 1), comparison.summary
    fields = {
        "over_budget": worst[0].over_budget if worst else None,
        "max_abs": largest(found.max_abs),
        "max_ulp": largest(found.max_ulp),
        "mean_signed": found.mean_signed,
        "outside": found.outside,
        "poisoned": found.count(State.POISONED),
        "vacuous": found.count(State.VACUOUS),
        "exact": found.count(State.EXACT),
        "suspicious": found.count(State.SUSPICIOUS),
        "bins": dict(zip(BIN_NAMES, found.bins.tolist(), strict=True)),
        "size": found.size,
        "worst": dict(worst[0].index) if worst else None,
        "actual": worst[0].actual if worst else None,
        "expected": worst[0].expected if worst else None,
        "budget": worst[0].budget if worst else None,
    }
    return {key: number(value) for key, value in fields.items()}


def largest(value: float) -> float | None:
    """The value, None for NaN: where no element has an error that is a number."""
    return None if math.isnan(value) else value
