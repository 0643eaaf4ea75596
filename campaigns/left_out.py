"""What is said of a fault that is in no family: the library searched without the family of its cause."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

import campaigns.faults  # noqa: F401  (the whole catalogue)
from campaigns.score import FAULTS, FRESH, RUN_S, SCHEMA, is_right
from campaigns.showing import showing
from campaigns.spread import spread
from workbench.bench.harness import gathered
from workbench.cuda.faults.catalogue import CATALOGUE
from workbench.foreign.run import run
from workbench.judge.diff import diff
from workbench.judge.explain.explain import explain
from workbench.work import Work


def measure(per_fault: int = 1, seed: int = 0, jobs: int = 1, faults: Sequence[str] = FAULTS) -> dict[str, Any]:
    """The JSON document of one campaign: of the runs of each fault that have one cause, explained again without the
    family of that cause, those that are `unknown` then, and those whose name is `right` on fresh cases or `wrong`.
    """
    rows = spread(partial(_left_out_row, runs=per_fault, seed=seed), list(faults), jobs)
    found = gathered(f"explain {len(faults)} faults without their family of causes", RUN_S * len(faults) / jobs, rows)
    counts = {key: sum(row[key] for row in found) for key in ("runs", "unknown", "right", "wrong")}
    return {"schema": SCHEMA, "seed": seed, "left_out": found, "all": counts}


def tables(results: dict[str, Any]) -> list[list[dict[str, Any]]]:
    """The document as tables for a screen: rows of equal columns."""
    wrong = [{"fault": row["fault"], "named": "; ".join(row["names"])} for row in results["left_out"] if row["names"]]
    return [table for table in ([results["all"]], wrong) if table]


def _left_out_row(fault_id: str, *, runs: int, seed: int) -> dict[str, Any]:
    fault, random = CATALOGUE[fault_id], np.random.default_rng(seed)
    cases = [showing(fault, random) for _ in range(runs + FRESH)]
    traces = [run(fault.kernel, case, faults=[fault.id], backend="emulator") for case in cases]
    row: dict[str, Any] = {"fault": fault_id, "runs": 0, "unknown": 0, "right": 0, "wrong": 0, "names": []}
    for trace in traces[:runs]:
        judged = diff(trace)
        named = judged.explain().causes
        if len(named) != 1:
            continue
        row["runs"] += 1
        work, family = Work.of_search(trace.case.score_count), named[0].members[0].family
        rest = explain(judged.run, judged.stages, work=work, without=family).causes
        if not rest:
            row["unknown"] += 1
            continue
        right = all(is_right(cause, traces[runs:]) for cause in rest)
        row["right" if right else "wrong"] += 1
        row["names"] += [] if right else [cause.id for cause in rest]
    return row
