"""Whether every fault shows where the catalogue says, by bits, and whether every benign change is judged right.

A fault's run is held against the clean kernel's on the same case, stage by stage. The stages that differ in a bit and
read none that does are the roots: what the fault changes itself.
"""

from collections import Counter
from functools import partial
from typing import Any

import numpy as np

import campaigns.faults  # noqa: F401  (the whole catalogue)
from campaigns.showing import hiding, showing
from campaigns.spread import spread
from workbench.bench.harness import gathered
from workbench.case.case import Case
from workbench.case.stages import STAGES
from workbench.cuda.faults.benign import BENIGN
from workbench.cuda.faults.catalogue import CATALOGUE
from workbench.cuda.faults.fault import Fault
from workbench.foreign.run import run
from workbench.judge.diff import diff
from workbench.judge.stage import RIGHT_VERDICTS
from workbench.reference.attention import table_of
from workbench.reference.dataflow import upstream
from workbench.trace.dont_care import of_case
from workbench.trace.trace import Trace

SCHEMA = "workbench.bench-faults/1"
#: the faults that change numbers; what is behind the inputs of the others, and when, is left to chance
FAULTS = tuple(fault.id for fault in CATALOGUE.values() if fault.stages or fault.biased)
# seconds of a build and of two runs, measured on 2 cores, for an estimate only
BUILD_S, RUNS_S = 4.0, 0.1


def measure(per_fault: int = 5, seed: int = 0, jobs: int = 1) -> dict[str, Any]:
    """The JSON document of one campaign on the emulator, the same for any number of `jobs` (processes).

    `faults`: a row for each fault that changes numbers with the `runs` in which it can show, those in which it did
    (`shown`), how often each stage was a root, and `hidden`, runs in which it cannot show; `wrong` is what contradicts
    the catalogue: a root that is none of the fault's stages, a fault that never shows, one that shows where it cannot.
    `benign`: likewise for each benign change, with the runs in which it `changed` a bit; `wrong` are its runs that were
    not judged right.
    """
    estimate_s = (BUILD_S + RUNS_S * per_fault) / jobs
    faults = spread(partial(fault_row, runs=per_fault, seed=seed), FAULTS, jobs)
    benign = spread(partial(benign_row, runs=per_fault, seed=seed), list(BENIGN), jobs)
    return {
        "schema": SCHEMA,
        "seed": seed,
        "faults": gathered(f"compare {len(FAULTS)} faults with clean kernels", estimate_s * len(FAULTS), faults),
        "benign": gathered(f"judge {len(BENIGN)} benign changes", estimate_s * len(BENIGN), benign),
    }


def wrong(results: dict[str, Any]) -> bool:
    """Whether a row contradicts the catalogue."""
    return any(row["wrong"] for row in (*results["faults"], *results["benign"]))


def tables(results: dict[str, Any]) -> list[list[dict[str, Any]]]:
    """The document as tables for a screen: rows of equal columns."""
    return [
        [row | {key: "; ".join(map(str, row[key])) for key in ("stages", "wrong")} | _words(row) for row in rows]
        for rows in (results["faults"], [row | {"stages": []} for row in results["benign"]])
    ]


def _words(row: dict[str, Any]) -> dict[str, str]:
    return {"roots": ", ".join(f"{name} {count}" for name, count in row["roots"].items())}


def fault_row(fault_id: str, *, runs: int, seed: int) -> dict[str, Any]:
    """A row of `faults`."""
    fault, random = CATALOGUE[fault_id], np.random.default_rng(seed)
    found: Counter[str] = Counter()
    wrong, shown, hidden = [], 0, 0
    for _ in range(runs):
        case = showing(fault, random)
        some = roots(*_runs(fault, case))
        shown += bool(some)
        found.update(some)
        if strange := {*some} - {*fault.stages, *fault.biased}:
            wrong.append(f"{', '.join(sorted(strange))} on {case}")
        if apart := hiding(fault, random):
            hidden += 1
            if some := roots(*_runs(fault, apart)):
                wrong.append(f"shows at {', '.join(some)} on {apart}")
    if not shown:
        wrong.append("never shows")
    stages = [*fault.stages, *fault.biased]
    counts = {"runs": runs, "shown": shown, "hidden": hidden, "roots": dict(found), "wrong": wrong}
    return {"fault": fault.id, "kernel": fault.kernel, "stages": stages, **counts}


def benign_row(change_id: str, *, runs: int, seed: int) -> dict[str, Any]:
    """A row of `benign`."""
    change, random = BENIGN[change_id], np.random.default_rng(seed)
    found: Counter[str] = Counter()
    wrong, changed = [], 0
    for _ in range(runs):
        case = showing(change, random)
        altered, clean = _runs(change, case)
        some = roots(altered, clean)
        changed += bool(some)
        found.update(some)
        judged = diff(altered)
        if judged.verdict not in RIGHT_VERDICTS:
            wrong.append(f"{judged.verdict} at {', '.join(judged.origins)} on {case}")
    return {
        **{"change": change.id, "kernel": change.kernel, "runs": runs, "changed": changed},
        **{"roots": dict(found), "wrong": wrong},
    }


def _runs(fault: Fault, case: Case) -> tuple[Trace, Trace]:
    """The case run with the fault put in and without."""
    faulty, clean = (run(fault.kernel, case, faults=some, backend="emulator") for some in ([fault.id], []))
    return faulty, clean


def roots(one: Trace, other: Trace) -> list[str]:
    """The stages in which two runs of one case differ in a bit of what exists of each sequence, but for those that read
    one that does.
    """
    case = one.case
    table = table_of(
        one.algorithm,
        decode_table=case.decode == "table",
        numbers=frozenset(case.numbers),
        codes=case.codes,
        scale_of=case.scale_of,
    )
    differ = [name for name, stage in one.stages.items() if _differ(name, stage, other.stages[name], one)]
    return [name for name in differ if not upstream(table, name) & {*differ}]


def _differ(name: str, stage: np.ndarray, other: np.ndarray, trace: Trace) -> bool:
    """Whether two runs differ in a stage, of which slots of no query or key do not count."""
    open_ = of_case(trace.case, trace.contract, trace.case.mask()).mask(STAGES[name])
    kept = np.broadcast_to(True if open_ is None else ~open_, stage.shape)
    return stage[kept].tobytes() != other[kept].tobytes()
