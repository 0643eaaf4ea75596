"""What the workbench says of each of the kernels from bug reports, beside what is wrong with them."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from campaigns.known import unknown
from campaigns.reports.names import READ
from campaigns.reports.records import CORRECT, REPORTS
from campaigns.spread import spread
from workbench import Case, diff, run
from workbench.bench.harness import gathered

SCHEMA = "workbench.reports/1"
#: what a kernel gives: nothing else is known of it
KNOWN = {"out": ("out",), "out and lse": ("out", "lse")}
#: seconds that a cause is searched for, and that a kernel takes, for the estimate
RUN_S = 14.0
_ALL = {one.name: one for one in (*REPORTS, *CORRECT)}


def measure(jobs: int = 1, names: Sequence[str] = ()) -> dict[str, Any]:
    """The JSON document: a row for each kernel and each of KNOWN, with the verdict, what was named and the truth."""
    asked = [(name, known) for name in names or _ALL for known in KNOWN]
    rows = gathered("judge kernels from bug reports", RUN_S * len(asked) / jobs, spread(row, asked, jobs))
    return {"schema": SCHEMA, "kernels": rows}


def row(asked: tuple[str, str]) -> dict[str, Any]:
    """One kernel with so much known."""
    name, known = asked
    report = _ALL[name]
    trace = run(report.function, Case(**report.options))
    kept = {stage: x for stage, x in trace.stages.items() if stage in KNOWN[known]}
    rerun = trace.rerun
    again = None if rerun is None else lambda case, inputs=None: unknown(rerun(case, inputs), KNOWN[known])
    found = diff(replace(trace, stages=kept, rerun=again))
    explained = found.explain()
    causes = [
        {
            "id": one.id,
            "text": one.text,
            "names": list(one.names),
            "proved": one.proved,
            "rivals": list(one.rivals),
            "stages": list(one.fit.stages),
        }
        for one in explained.causes
    ]
    return {
        "kernel": name,
        "known": known,
        "faults": report.faults,
        "verdict": found.verdict,
        "causes": causes,
        "withdrawn": [one.text for one in explained.withdrawn],
        "formulas": [str(one) for some in explained.formulas.values() for one in some],
        "unexplained": list(explained.unexplained),
        "seconds": round(explained.seconds, 1),
        "said": _said(name, report.faults, causes),
        "truth": report.truth,
    }


def _said(name: str, faults: int, causes: Sequence[dict[str, Any]]) -> str:
    """How well causes name what is wrong: `named`, all of it; `half`, one fault of two; `several`, of which one may be
    so; `false`; `unread`, where nobody has compared a cause with the truth; `unknown`, where there is none; `measured`,
    where all causes were read off the function and predict runs on unseen inputs, so that each of them is so.
    """
    if not causes:
        return "unknown"
    if all(one["id"].startswith("measured.") for one in causes):
        return "measured"
    read = READ.get(name, {})
    certain = [one["id"].startswith("measured.") or read.get(one["text"]) for one in causes if not one["rivals"]]
    if False in certain:
        return "false"
    if None in certain:
        return "unread"
    if len(certain) < len(causes):
        return "several"
    return "named" if len(causes) >= faults else "half"


def tables(results: dict[str, Any]) -> list[list[dict[str, Any]]]:
    """The document as tables for a screen: rows of equal columns."""
    kinds = ("named", "measured", "half", "several", "false", "unread", "unknown")
    totals = []
    for known in KNOWN:
        rows = [one for one in results["kernels"] if one["known"] == known]
        wrong, right = [one for one in rows if one["faults"]], [one for one in rows if not one["faults"]]
        totals.append(
            {
                "known": known,
                "wrong kernels": len(wrong),
                "bug": sum(one["verdict"] == "bug" for one in wrong),
                "suspicious": sum(one["verdict"] == "suspicious" for one in wrong),
                **{kind: sum(one["said"] == kind and one["verdict"] == "bug" for one in wrong) for kind in kinds},
                "right kernels": len(right),
                "called bug": sum(one["verdict"] == "bug" for one in right),
            }
        )
    said = [
        {"kernel": one["kernel"], "known": one["known"], "verdict": one["verdict"], "said": one["said"],
         "cause": "; ".join(x["text"] for x in one["causes"])}
        for one in results["kernels"]
        if one["said"] in ("false", "half", "unread")
    ]  # fmt: skip
    return [table for table in (totals, said) if table]
