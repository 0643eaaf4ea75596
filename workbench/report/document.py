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
    """The document `workbench.diff/1` of one judged run.

    - `target`, `backend`, `faults`: the kernel; `emulator`, `cuda` or `foreign`; ids of injected faults
    - `case`, `where`: fields by the names of the options (-1 in `window`: no limit); the judged part, `b`, `h`, `q` as
      `[first, last + 1]`
    - `put_in`: stages given to the kernel, which are not judged
    - `contract`: the kernel's arithmetic; `assumed` lists undeclared fields, `of_preset` those from a preset
    - `verdict`: the worst of all stages: `exact`, `rounding`, `suspicious`, `biased`, `untestable`, `missing` or `bug`
    - `doubt`: if `suspicious` or `biased`: `evidence` (no known kernel's arithmetic explains it) or `assumption` (an
      undeclared field explains it)
    - `origin`, `origins`, `victims`: the first origin; all origins; stages wrong only through their inputs
    - `gates`: defects of the run itself; any sets exit code 1
    - `provenance`: of your function: `files` (`path`, `sha256`, `modified`, `loaded`), `device`, `driver`, `versions`,
      `runs`, `identical`, `plain_agrees`
    - `notes`, `not_judged`: remarks on the dump; stages left out, with `name` and `reason`
    - `stages`: the judged stages in data-flow order
    - `rules`: other tolerance rules on `out`: `name`, `value`, `limit`, `passes`
    - `bits_lost`: stage -> bits lost to cancellation: `max`, `median`, `below_4_good_bits`, `size`
    - `quantisation`: error of `out` (`max_abs`, `rms`) from the `quantisation`, from the `kernel`, `together`
    - `unseen`: if only `out` was judged: a key of less `weight` may be lost unseen; `command` tests for it
    - `measured`: with `--measure`, as `workbench.measure/1`; `disagrees`: conflicts with the dump
    - `explanations`: causes, as in `workbench.explain/1`, without a fresh case
    """
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
    """The document `workbench.explain/1` of what explains a judged run.

    - `verdict`, `origins`: as of `workbench.diff/1`
    - `wrong_if_usual`: of a `suspicious` run: the stages that default arithmetic would make wrong
    - `unstable`: where two runs on the same inputs differ; empty if they agree
    - `explanations`, `withdrawn`: causes in data-flow order; causes that failed on a fresh case
    - `laws`, `watched`: for an unknown stage: laws `broken` and `held`; findings of `workbench check`
    - `unknown`: `stages` without a cause, their `patterns` (`stage`, `text`, `precision`, `recall`, `exceptions`,
      `saved`) and `formulas` (`stage`, `text`, `residual`, `of`, `wrong`, `unexplained`)
    - `tried`, `complete`, `ended_by`: hypotheses tried; whether all were; the limit reached: `effort`, `seconds`,
      `size` or empty
    """
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
    """Each of `stages` of `workbench.diff/1`.

    - `name`, `verdict`, `reason`, `doubt`, `measured`: `measured`: whether it was measured rather than dumped
    - `role`: `origin`, `victim` or `clean`
    - `judged_from`, `upstream`: dumped stages it was recomputed from (none: q, k and v); undumped stages between, also
      suspects
    - `line`: the source line to look at: `path`, `line` (from 1), `text`
    - `isolated`: judged on its own dumped inputs; `null` if none was dumped
    - `propagated`: judged from q, k and v, with the budget of the whole path
    - `budget_terms`: shares of the worst element's budget
    """
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
    """`isolated` and `propagated` of a stage of `workbench.diff/1`.

    - `over_budget`: the largest error / budget
    - `max_abs`, `max_ulp`, `mean_signed`: over finite errors: largest; largest in ulps of the stage's dtype; signed
      mean
    - `outside`, `size`: elements over budget; all elements
    - `poisoned`, `vacuous`, `exact`, `suspicious`: elements NaN from their inputs; with a budget too large to fail;
      correctly rounded; over the statistical bound
    - `bins`: elements by error / budget: `"0"`, `"<=0.01"`, ..., `">10"`, `"inf"`
    - `worst`, `actual`, `expected`, `budget`: the worst element: its indices and values
    """
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
