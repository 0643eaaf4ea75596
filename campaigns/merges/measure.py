"""How far verdicts on merges of ranks can be trusted: correct ones in the manners of the wild, and faults found.

Random cases: 1 to 8 ranks of equal and of unequal parts, some of them empty, in any order, causal and full, lses in
both bases, both infinities in the place of the lse of a rank without keys, three dtypes.
"""

from collections import Counter
from functools import partial
from typing import Any

import numpy as np

from campaigns.merges.correct import BASES, MERGES, Merge
from campaigns.merges.faulty import FAULTS, Fault
from campaigns.spread import spread
from workbench.bench.harness import gathered
from workbench.case.case import Case
from workbench.foreign.run import run
from workbench.judge.diff import Diff, diff
from workbench.judge.stage import RIGHT_VERDICTS

SCHEMA = "workbench.bench-merges/1"
# seconds of a judgement and of a search, measured on 2 cores, for an estimate only
JUDGED_S, EXPLAINED_S = 0.06, 0.5


def drawn(seed: int) -> tuple[Case, dict[str, Any], Merge]:
    """A random case of ranks, what the contract says of it, and a correct merge in the base of its lses."""
    rng = np.random.default_rng(seed)
    ranks, seqlen_k = int(rng.integers(1, 9)), int(rng.choice([1, 7, 32, 65, 128, 200]))
    case = Case(
        batch=int(rng.integers(1, 3)),
        heads=2,
        kv_heads=int(rng.integers(1, 3)),
        seqlen_q=int(rng.choice([1, 5, 16, 33, 64])),
        seqlen_k=seqlen_k,
        head_dim=int(rng.choice([8, 32, 64])),
        dtype=str(rng.choice(["float32", "float16", "bfloat16"])),
        causal=bool(rng.integers(2)),
        splits=ranks,
        seed=int(rng.integers(1000)),
        input_std=float(rng.choice([0.1, 1.0, 4.0])),
    )
    told: dict[str, Any] = {
        "base2": bool(rng.integers(2)),
        "empty_lse": float(rng.choice([-np.inf, np.inf])),
        "tile_order": [int(rank) for rank in rng.permutation(ranks)],
    }
    if rng.integers(2):
        told["split_bounds"] = [0, *sorted(int(x) for x in rng.integers(0, seqlen_k + 1, ranks - 1)), seqlen_k]
    merge = MERGES[int(rng.integers(len(MERGES)))]
    return case, told, partial(merge, base=BASES[told["base2"]])


def judged(seed: int) -> Diff:
    """The judgement of a random correct merge."""
    case, told, merge = drawn(seed)
    with np.errstate(all="ignore"):
        return diff(run(merge, case, contract=told))


def of_fault(fault: Fault, seed: int) -> Diff:
    """The judgement of a fault on a random case on which it shows: causal, of three ranks or more, each with keys."""
    rng = np.random.default_rng(seed)
    keys = int(rng.choice([64, 96, 128]))
    queries = keys + 32 if fault.no_keys else keys
    dtype, ranks = str(rng.choice(["float32", "float16", "bfloat16"])), int(rng.integers(3, 6))
    case = Case(
        heads=2, seqlen_q=queries, seqlen_k=keys, head_dim=32, dtype=dtype, causal=True, splits=ranks, seed=seed
    )
    with np.errstate(all="ignore"):
        return diff(run(fault.merge, case, contract=fault.contract))


def measure(correct: int = 200, per_fault: int = 5, seed: int = 0, jobs: int = 1) -> dict[str, Any]:
    """The JSON document of one campaign, the same for any number of `jobs` (processes).

    `correct`: how often which verdict was given, and the runs that were not called right; `faults`: a row for each, of
    how many `runs` a `bug` was called, `origin` was the stage where it begins, and `cause` its cause.
    """
    seeds = [1000 * seed + i for i in range(correct)]
    pairs = [(fault, 1000 * seed + i) for fault in range(len(FAULTS)) for i in range(per_fault)]
    estimate_s = (JUDGED_S * correct + EXPLAINED_S * len(pairs)) / jobs
    words = f"judge {correct} correct merges and {len(pairs)} faulty ones"
    done = spread(_one, [*((-1, one) for one in seeds), *pairs], jobs)
    found = gathered(words, estimate_s, done, lambda one: "")
    right, wrong = found[:correct], found[correct:]
    rows = []
    for number, fault in enumerate(FAULTS):
        own = [one for (which, _), one in zip(pairs, wrong, strict=True) if which == number]
        sums = {key: sum(one[key] for one in own) for key in ("bug", "origin", "cause")}
        rows.append({"fault": fault.name, "runs": len(own), **sums})
    verdicts = Counter(one["verdict"] for one in right)
    not_right = [one["run"] for one in right if one["verdict"] not in RIGHT_VERDICTS]
    return {"schema": SCHEMA, "seed": seed, "correct": dict(verdicts), "not_right": not_right, "faults": rows}


def _one(job: tuple[int, int]) -> dict[str, Any]:
    """What came of a seed, of a correct merge or of the fault that is named by its number."""
    number, seed = job
    if number < 0:
        found = judged(seed)
        return {"verdict": found.verdict, "run": f"seed {seed}: {found.trace.case!r}"}
    fault = FAULTS[number]
    found = of_fault(fault, seed)
    causes = found.explain().causes if found.origins else ()
    return {
        "bug": found.verdict == "bug",
        "origin": found.origin == fault.origin,
        "cause": any(fault.cause in cause.text for cause in causes),
    }


def tables(results: dict[str, Any]) -> list[list[dict[str, Any]]]:
    """The document as tables for a screen: rows of equal columns."""
    runs = [{"correct merges": verdict, "runs": count} for verdict, count in results["correct"].items()]
    return [
        runs,
        *([[{"not right": one} for one in results["not_right"]]] if results["not_right"] else []),
        results["faults"],
    ]
