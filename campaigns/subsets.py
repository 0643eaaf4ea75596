"""Whether anything that a kernel does not say, or does not dump, turns a wrong `out` or `lse` green.

Every fault is run once where it shows in out or lse from q, k and v alone, and is then judged as of a foreign kernel
that declares nothing, from every small set of its stages beside out and lse, and from random larger ones.
"""

import itertools
from collections import Counter
from functools import partial
from typing import Any

import numpy as np

import campaigns.faults  # noqa: F401  (the whole catalogue)
from campaigns.known import unknown
from campaigns.showing import FAULTS
from campaigns.spread import spread
from campaigns.verdicts import effective_runs
from workbench.bench.harness import gathered
from workbench.cuda.faults.catalogue import CATALOGUE
from workbench.judge.diff import diff
from workbench.judge.stage import ORIGIN_VERDICTS
from workbench.trace.trace import Trace

SCHEMA = "workbench.bench-subsets/1"
#: what every subset holds beside others
ENDS = ("out", "lse")
#: stages of the subsets that are all tried, at most; and how many random ones are
ALL_UP_TO, RANDOM = 3, 200
#: random runs of a fault among which one that shows is sought
TRIES = 10
#: parts of a fault's subsets, which processes share
SHARES = 8
# seconds of a judgement, measured on 2 cores, for an estimate only
JUDGED_S = 0.15


def measure(*, all_up_to: int = ALL_UP_TO, random: int = RANDOM, seed: int = 0, jobs: int = 1) -> dict[str, Any]:
    """The JSON document of one campaign on the emulator, the same for any number of `jobs` (processes).

    `faults`: a row for each fault of the catalogue that numbers show, with how many subsets were `judged` (0 where out
    and lse alone are right in all of TRIES runs: what the fault does is within rounding), how many of these were a
    `bug`, which first stages they named, and the subsets that were `green`.
    """
    shares = [(fault, share) for fault in FAULTS for share in range(SHARES)]
    rows: dict[str, dict[str, Any]] = {
        fault: {"fault": fault, "judged": 0, "bug": 0, "origins": Counter(), "green": []} for fault in FAULTS
    }
    done = spread(partial(_share, all_up_to=all_up_to, random=random, seed=seed), shares, jobs)
    name, estimate_s = f"judge every subset of {len(FAULTS)} faults", JUDGED_S * 400 * len(FAULTS) / jobs
    found = gathered(name, estimate_s, done, lambda found: f", {sum(len(share['green']) for share in found)} green")
    for (fault, _), share in zip(shares, found, strict=True):
        for key, value in share.items():
            rows[fault][key] += value
    plain = [row | {"origins": dict(row["origins"].most_common())} for row in rows.values()]
    sums: dict[str, Any] = {key: sum(row[key] for row in plain) for key in ("judged", "bug")}
    sums["green"] = [subset for row in plain for subset in row["green"]]
    return {"schema": SCHEMA, "seed": seed, "faults": plain, "all_faults": sums}


def tables(results: dict[str, Any]) -> list[list[dict[str, Any]]]:
    """The document as tables for a screen: rows of equal columns."""
    rows = [*results["faults"], {"fault": "all", "origins": {}, **results["all_faults"]}]
    named = [", ".join(f"{name} {count}" for name, count in row["origins"].items()) for row in rows]
    return [
        [
            {**{key: row[key] for key in ("fault", "judged", "bug")}, "green": len(row["green"]), "named first": names}
            for row, names in zip(rows, named, strict=True)
        ]
    ]


def _share(of: tuple[str, int], *, all_up_to: int, random: int, seed: int) -> dict[str, Any]:
    """What the subsets of one share of a fault add to its row."""
    fault_id, share = of
    row: dict[str, Any] = {"judged": 0, "bug": 0, "origins": Counter(), "green": []}
    faulty = next((run for run in effective_runs(CATALOGUE[fault_id], TRIES, seed) if _shows(run)), None)
    for subset in [] if faulty is None else subsets(faulty, all_up_to, random, seed)[share::SHARES]:
        assert faulty is not None
        judged = diff(unknown(faulty, (*subset, *ENDS)))
        row["judged"] += 1
        if judged.verdict in ORIGIN_VERDICTS:
            row["bug"] += 1
            row["origins"][str(judged.origin)] += 1
        else:
            row["green"].append([fault_id, *subset])
    return row


def _shows(faulty: Trace) -> bool:
    return diff(unknown(faulty, ENDS)).verdict in ORIGIN_VERDICTS


def subsets(trace: Trace, all_up_to: int, random: int, seed: int) -> list[tuple[str, ...]]:
    """Every set of at most `all_up_to` stages of the trace beside ENDS, and `random` ones of any size."""
    names = [name for name in trace.stages if name not in ENDS]
    small = [some for size in range(1, all_up_to + 1) for some in itertools.combinations(names, size)]
    draw = np.random.default_rng(seed)
    shares = draw.random((random, 1))
    larger = [tuple(itertools.compress(names, kept)) for kept in draw.random((random, len(names))) < shares]
    return list(dict.fromkeys([*small, *larger]))
