"""Which laws of attention which faults break, and whether kernels in which nothing is wrong keep them all."""

from collections import Counter
from functools import partial
from typing import Any

import numpy as np

import campaigns.faults  # noqa: F401  (the whole catalogue)
from campaigns.showing import FAULTS, showing
from campaigns.spread import spread
from campaigns.verdicts import differs
from workbench.bench.harness import gathered
from workbench.case.case import Case
from workbench.cuda.faults.catalogue import CATALOGUE
from workbench.explore.laws.every import LAWS, laws
from workbench.explore.laws.law import Laws

SCHEMA = "workbench.bench-laws/1"
#: random cases among which those are sought in which a fault changes a bit of out or lse
TRIES = 5
# seconds of a build and of a case, measured on 2 cores, for an estimate only
BUILD_S, CASE_S = 4.0, 2.0


def measure(per_fault: int = 2, seed: int = 0, jobs: int = 1) -> dict[str, Any]:
    """The JSON document of one campaign on the emulator, the same for any number of `jobs` (processes).

    `faults`: a row for each fault that numbers show, on up to `per_fault` random cases (`cases`) in which it changes a
    bit of out or lse: how often each law was `broken`, on how many of the cases any was (`caught`), and how often the
    kernel without the fault broke one on the same cases (`clean`). `laws`: law -> how many faults break it. `effective`
    are faults with such a case, and `caught` those of them that break a law on one.
    """
    estimate_s = (BUILD_S + CASE_S * per_fault) * len(FAULTS) / jobs
    row = partial(fault_row, cases=per_fault, seed=seed)
    rows = gathered(f"check {len(FAULTS)} faults against the laws", estimate_s, spread(row, FAULTS, jobs), _missed)
    return {
        "schema": SCHEMA,
        "seed": seed,
        "faults": rows,
        "laws": {name: sum(bool(row["broken"].get(name)) for row in rows) for name in LAWS},
        "effective": sum(row["cases"] > 0 for row in rows),
        "caught": sum(row["caught"] > 0 for row in rows),
        "clean": sum(sum(row["clean"].values()) for row in rows),
    }


def tables(results: dict[str, Any]) -> list[list[dict[str, Any]]]:
    """The document as tables for a screen: rows of equal columns."""
    faults = [
        {key: row[key] for key in ("fault", "kernel", "cases", "caught")}
        | {key: ", ".join(row[key]) for key in ("broken", "clean")}
        for row in results["faults"]
    ]
    by_law = [{"law": name, "class": LAWS[name].kind, "faults that break it": n} for name, n in results["laws"].items()]
    share = results["caught"] / results["effective"] if results["effective"] else float("nan")
    total = {
        "faults that change out or lse": results["effective"],
        "break a law": results["caught"],
        "share": f"{share:.1%}",
        "laws broken by clean kernels": results["clean"],
    }
    return [faults, by_law, [total]]


def fault_row(fault_id: str, *, cases: int, seed: int) -> dict[str, Any]:
    """A row of `faults`."""
    fault, random = CATALOGUE[fault_id], np.random.default_rng(seed)
    broken: Counter[str] = Counter()
    clean: Counter[str] = Counter()
    found, caught = 0, 0
    for _ in range(TRIES * cases):
        if found == cases:
            break
        case = showing(fault, random)
        faulty, sound = _asked(fault.kernel, case, [fault.id]), _asked(fault.kernel, case, [])
        if not differs(faulty.subject.first.trace, sound.subject.first.trace):
            continue
        found += 1
        caught += bool(faulty.broken)
        broken.update(one.law.name for one in faulty.broken)
        clean.update(one.law.name for one in sound.broken)
    row = {"fault": fault.id, "kernel": fault.kernel, "cases": found, "caught": caught}
    return {**row, "broken": dict(broken), "clean": dict(clean)}


def _asked(kernel: str, case: Case, faults: list[str]) -> Laws:
    return laws(kernel, case, faults=faults, backend="emulator")


def _missed(rows: list[dict[str, Any]]) -> str:
    return f", {sum(row['cases'] > 0 and not row['caught'] for row in rows)} break no law"
