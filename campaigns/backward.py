"""How far verdicts on the backward pass can be trusted: of our right kernels on random cases, and of their faults."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

import campaigns.faults  # noqa: F401  (the whole catalogue)
from campaigns.spread import spread
from campaigns.tally import counted
from workbench.bench.harness import gathered
from workbench.cuda.faults.catalogue import OF_OPERATIONS as FAULTS
from workbench.cuda.faults.fault import Fault
from workbench.cuda.kernels import OF_OPERATIONS
from workbench.floats import DTYPES
from workbench.judge.usual_rules import assert_close, max_abs
from workbench.operations.call import check_operation, diff_operation
from workbench.operations.every import OPERATIONS
from workbench.operations.judge import OperationDiff, judged
from workbench.operations.run import results as results_of

SCHEMA = "workbench.bench-backward/1"
OPERATION = OPERATIONS["attention_backward"]
#: what a watched run of a fault takes, where its needs say nothing else: two tiles of queries and of keys
WATCHED = {"heads": 2, "kv_heads": 2, "queries": 40, "keys": 48, "dim": 16, "dim_v": 16}
# seconds of a run that is judged and of the builds of a fault, measured on 2 cores, for an estimate only
RUN_S, CAUSES_S, BUILDS_S = 0.3, 5.0, 4.0
#: what is counted of the runs of a fault
COUNTS = ("shown", "at_stage", "detected", "visible", "both", "cause", "cause_alone")
#: added to a seed: of a run that no search has seen
ELSEWHERE = 1000


def measure(correct: int = 200, per_fault: int = 5, seed: int = 0, jobs: int = 1) -> dict[str, Any]:
    """The JSON document of one campaign on the emulator, the same for any number of `jobs` (processes).

    `right`: for each kernel and dtype the random runs, what they were called, and those that assert_close rejects (in
    any gradient, with torch's tolerances, against float64). `faults`: for each fault the `runs`, those in which it
    changes a bit of a stage or gradient (`shown`), those whose first wrong stage is its own with all stages dumped
    (`at_stage`), those called wrong from dq, dk and dv alone (`detected`), the `visible` ones, in which an error of
    some gradient is more than twice the right kernel's largest, and those `both` visible and detected; the `cause` is
    named of a run with all stages dumped, and `cause_alone` of a visible one from dq, dk and dv; `false` are causes
    that do not predict a run which the search has not seen; `check` is whether a watched run reports what the fault
    says that one does; `elsewhere` are runs that are called wrong at no stage of it, and visible ones that are called
    right.
    """
    sizes = [(n, seed) for n in range(correct)]
    runs = gathered(f"judge {correct} right runs", RUN_S * correct / jobs, spread(right_run, sizes, jobs))
    estimate_s = (BUILDS_S + (3 * RUN_S + CAUSES_S) * per_fault) * len(FAULTS) / jobs
    rows = spread(partial(fault_row, runs=per_fault, seed=seed), [*FAULTS], jobs)
    return {
        "schema": SCHEMA,
        "seed": seed,
        "right": [_summed(of, runs) for of in sorted({run["of"] for run in runs})],
        "not_right": [run["run"] for run in runs if run["verdict"] not in ("exact", "rounding")],
        "faults": gathered(f"judge {len(FAULTS)} faults", estimate_s, rows),
    }


def wrong(results: Mapping[str, Any]) -> bool:
    """Whether a right run was called wrong, or a fault was not where it says or not seen by who should see it."""
    called = any(row["bug"] or row["biased"] or row["missing"] for row in results["right"])
    return called or any(row["elsewhere"] or row["false"] or row["check"] is False for row in results["faults"])


def tables(results: Mapping[str, Any]) -> list[list[dict[str, Any]]]:
    """The document as tables for a screen: rows of equal columns."""
    check = {None: "", True: "yes", False: "no"}
    faults = [
        row | {"check": check[row["check"]]} | {name: "; ".join(row[name]) for name in ("elsewhere", "false")}
        for row in results["faults"]
    ]
    sums = {name: sum(row[name] for row in faults) for name in ("runs", *COUNTS)}
    total = dict.fromkeys(faults[0], "") | {"fault": f"{len(faults)} faults"} | sums
    return [results["right"], [*faults, total]]


def drawn(rng: np.random.Generator, fixed: Mapping[str, Any]) -> dict[str, Any]:
    """A random case as arguments of `diff_operation`, but for what is fixed; where something is, of several tiles, and
    of keys that differ: of equal ones a fault that takes another key's is none.
    """
    distributions = [name for name in OPERATION.distributions if not fixed or name != "equal-scores"]
    kv_heads = int(fixed.get("kv_heads", rng.integers(1, 3)))
    axes = {
        "batch": int(rng.integers(1, 3)),
        "kv_heads": kv_heads,
        "heads": kv_heads * int(rng.integers(1, 4)),
        "queries": int(rng.integers(1, 97)) if not fixed else int(rng.integers(65, 97)),
        "keys": int(rng.integers(1, 97)) if not fixed else int(rng.integers(65, 97)),
        "dim": int(rng.choice([8, 16, 24, 32])),
        "dim_v": int(rng.choice([8, 16, 24, 32])),
    }
    if "heads" in fixed and fixed["heads"] % kv_heads:
        axes["kv_heads"] = 1
    return {
        "axes": {name: n for name, n in axes.items() if name not in fixed},
        "dtype": fixed.get("dtype", str(rng.choice([*DTYPES]))),
        "distribution": str(rng.choice(distributions)),
        "seed": int(rng.integers(2**31)),
        "numbers": {} if "causal" in fixed else {"causal": bool(rng.integers(2))},
    }


def right_run(of: tuple[int, int]) -> dict[str, Any]:
    """What the right kernel of a random case is called; every other one without probes."""
    n, seed = of
    rng = np.random.default_rng([seed, n])
    name = [*OF_OPERATIONS][n % len(OF_OPERATIONS)]
    case = drawn(rng, {}) | {"dtype": str(rng.choice(OF_OPERATIONS[name].dtypes))}
    found = diff_operation(name, OPERATION, **case, probes=("all", "output")[n % 2], backend="emulator")
    return {
        "of": f"{name}, {case['dtype']}",
        "verdict": found.verdict,
        "close": all(assert_close(x, expected) <= 1 for x, expected in _gradients(found)),
        "run": f"{found.verdict} {', '.join(found.origins)}: {found.headline}",
    }


def _summed(of: str, runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    own = [run for run in runs if run["of"] == of]
    verdicts = Counter(run["verdict"] for run in own)
    return {
        "of": of,
        "runs": len(own),
        **counted(verdicts),
        "assert_close fails": sum(not run["close"] for run in own),
    }


def fault_row(id: str, *, runs: int, seed: int) -> dict[str, Any]:
    """A row of `faults`."""
    fault, rng = FAULTS[id], np.random.default_rng([seed, len(id), *id.encode()])
    dtype = {
        "dtype": fault.needs.get("dtype", str(rng.choice(OF_OPERATIONS[fault.kernel].dtypes)))
    }  # one, since each has builds of its own
    counts: Counter[str] = Counter(dict.fromkeys(COUNTS, 0))
    elsewhere, false = [], []
    for _ in range(runs):
        case = drawn(rng, {**fault.needs, **dtype})
        one = partial(diff_operation, fault.kernel, OPERATION, backend="emulator", **case)
        faulty, clean = one(faults=[id]), diff_operation(fault.kernel, OPERATION, **_needed(fault, case))
        alone = judged(replace(faulty.run, stages={x: faulty.run.stages[x] for x in results_of(faulty.run.case)}))
        visible = _visible(faulty, clean)
        at_stage = faulty.origin in fault.stages
        counts.update(
            shown=_differ(faulty, clean), at_stage=at_stage, visible=visible, detected=alone.origin is not None
        )
        counts.update(both=visible and alone.origin is not None)
        again = one(faults=[id], seed=case["seed"] + ELSEWHERE).run
        for what, judgement in (("cause", faulty), ("cause_alone", alone)):
            explained = judgement.explain()
            run = replace(again, stages={name: again.stages[name] for name in judgement.run.stages})
            wrong = [cause.text for cause in explained.causes if not cause.predicts(run)]
            false += [f"{text}: {judgement.headline}" for text in wrong]
            named = judgement.origin is not None and bool(explained.causes) and not wrong
            counts.update({what: named and (visible or judgement is faulty)})
        if fault.stages and not at_stage and (visible or faulty.origin is not None):
            elsewhere.append(f"{faulty.origin}: {faulty.headline}")
    check = None
    if fault.finding:
        small = {axis: n for axis, n in WATCHED.items() if axis not in fault.needs}
        watched = check_operation(fault.kernel, OPERATION, axes=small, faults=[id])
        check = fault.finding in {finding.kind for finding in watched.findings}
    stages = ", ".join(fault.stages)
    return {
        "fault": id,
        "stages": stages,
        "runs": runs,
        **counts,
        "check": check,
        "elsewhere": elsewhere,
        "false": false,
    }


def _needed(fault: Fault, case: Mapping[str, Any]) -> dict[str, Any]:
    """The same case without the fault."""
    of_axes = {name: n for name, n in fault.needs.items() if name in OPERATION.axes.values()}
    of_numbers = {name: x for name, x in fault.needs.items() if name in OPERATION.numbers}
    return {
        **case,
        "axes": {**case["axes"], **of_axes},
        "numbers": {**case["numbers"], **of_numbers},
        "backend": "emulator",
    }


def _differ(one: OperationDiff, other: OperationDiff) -> bool:
    """Whether two runs of a case differ in a bit."""
    return any(x.tobytes() != other.run.stages[name].tobytes() for name, x in one.run.stages.items())


def _gradients(found: OperationDiff) -> list[tuple[np.ndarray, np.ndarray]]:
    """dq, dk and dv, with what float64 makes of the inputs."""
    pairs = []
    for name in results_of(found.run.case):
        propagated = found[name].propagated
        assert propagated is not None
        pairs.append((found.run.stages[name], propagated.expected))
    return pairs


def _visible(faulty: OperationDiff, clean: OperationDiff) -> bool:
    """Whether a gradient is off by more than twice what it is without the fault; NaN is."""
    pairs = zip(_gradients(faulty), _gradients(clean), strict=True)
    return any(not max_abs(*one) <= 2 * max_abs(*other) for one, other in pairs)
