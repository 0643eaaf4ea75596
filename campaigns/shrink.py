"""How small a failing case becomes: every fault from a large case, with its origin and its cause at the end, too."""

import itertools
import statistics
import time
from collections.abc import Sequence
from typing import Any

import campaigns.faults  # noqa: F401  (the whole catalogue)
from campaigns.showing import FAULTS, can_show
from campaigns.spread import spread
from workbench.bench.harness import gathered
from workbench.case.case import Case
from workbench.cuda.faults.catalogue import CATALOGUE
from workbench.cuda.faults.fault import Fault
from workbench.cuda.kernels import KERNELS
from workbench.cuda.plan import resolve
from workbench.explore.shrink.shrink import shrink
from workbench.explore.shrink.space import elements
from workbench.foreign.run import run
from workbench.judge.diff import diff
from workbench.refusal import Refusal

SCHEMA = "workbench.bench-shrink/1"
#: what is changed of the large case until a fault shows in it, every combination
VARIANTS: dict[str, Sequence[Any]] = {
    "causal": (False, True),
    "kv_heads": (2, 1),
    "batch": (1, 2),
    "heads": (2, 4),
    "scale": (None, 0.3),
    "seqlen_q": (200, 150, 250),
    "splits": (3, 4),
}
#: large cases in which a fault can show that are run until it does
TRIED = 4
# seconds of a fault, measured on 2 cores, for an estimate only
FAULT_S = 30.0


def measure(jobs: int = 1, faults: Sequence[str] = FAULTS) -> dict[str, Any]:
    """The JSON document of one campaign on the emulator, by so many `jobs` (processes).

    `faults`: a row for each, from a case with two heads, seqlen 200, head_dim 64 and three splits, or near it, which
    shows the fault: the `elements` of q, k and v before and after, and their `share`; whether the `origin` is that of
    the start; the `cause` that reproduces both, and whether a search of the smallest case alone names it, too
    (`again`); how many `runs` it took, and the `seconds` of a second time, when all is compiled. `worst`, `median`:
    shares. A fault that no such case shows has no share.
    """
    rows = gathered(f"shrink {len(faults)} faults", FAULT_S * len(faults) / jobs, spread(fault_row, list(faults), jobs))
    shares = [row["share"] for row in rows if row["share"] is not None]
    return {
        "schema": SCHEMA,
        "faults": rows,
        "median": statistics.median(shares) if shares else None,
        "worst": max(shares, default=None),
        "seconds": max((row["seconds"] for row in rows), default=0.0),
    }


def tables(results: dict[str, Any]) -> list[list[dict[str, Any]]]:
    """The document as tables for a screen: rows of equal columns."""
    total = {key: results[key] for key in ("median", "worst", "seconds")}
    rows = results["faults"]
    alike = {key: sum(bool(row[key]) for row in rows) for key in ("origin", "cause", "again")}
    return [rows, [{"faults": len(rows), **alike, **total}]]


def fault_row(fault_id: str) -> dict[str, Any]:
    """A row of `faults`."""
    fault = CATALOGUE[fault_id]
    row: dict[str, Any] = {"fault": fault_id, "elements": None, "smallest": None, "share": None}
    row |= {"origin": False, "cause": "", "again": False, "runs": 0, "seconds": 0.0, "complete": False, "case": ""}
    judged = None
    for case in _large(fault):
        judged = diff(run(fault.kernel, case, faults=[fault.id], backend="emulator"))
        if judged.origin in fault.stages:
            break
    if judged is None or judged.origin not in fault.stages:
        return row
    small = shrink(judged)  # what it compiles is there the second time
    begun = time.monotonic()
    small = shrink(judged)
    seconds = time.monotonic() - begun
    before, after = elements(judged.trace.case), elements(small.smallest)
    again = small.judged.explain()
    named = {cause.id for cause in again.causes} | {one.id for cause in again.causes for one in cause.members}
    return row | {
        "elements": before,
        "smallest": after,
        "share": after / before,
        "origin": small.judged.origin == judged.origin == small.origin,
        "cause": "" if small.cause is None else small.cause.id,
        "again": small.cause is not None and small.cause.id in named,
        "runs": small.evaluations,
        "seconds": seconds,
        "complete": small.complete,
        "case": repr(small.smallest),
    }


def _large(fault: Fault) -> list[Case]:
    """Settled cases that show the fault, the plainest first."""
    kernel, found = KERNELS[fault.kernel], []
    for values in itertools.product(*VARIANTS.values()):
        options = dict(zip(VARIANTS, values, strict=True)) | {"seqlen_k": fault.seqlen or 200, "head_dim": 64}
        if not kernel.splits:
            options["splits"] = None
        try:
            case = resolve(kernel, Case(**options | dict(fault.needs)))
        except Refusal:
            continue
        if can_show(fault, case) and case not in found:
            found.append(case)
    return found[:TRIED]
