"""How far verdicts can be trusted: random correct cases, in which nothing is wrong, and every fault on random cases.

Beside the verdicts stand what the usual rules (`rules`) say of the same outputs.
"""

import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

import campaigns.faults  # noqa: F401  (the whole catalogue)
from campaigns import tally
from campaigns.known import reduced
from campaigns.showing import showing
from campaigns.spread import spread
from campaigns.tally import LIMITS, RULES, Called, Tally, counted
from workbench.bench.harness import gathered
from workbench.case.case import Case
from workbench.case.stages import PROBE_SETS
from workbench.cuda.faults.catalogue import CATALOGUE
from workbench.cuda.faults.fault import Fault
from workbench.cuda.kernels import KERNELS
from workbench.explore import ranges
from workbench.explore.sample import sample
from workbench.foreign.run import run
from workbench.judge.diff import SEVERITY, diff
from workbench.judge.stage import ORIGIN_VERDICTS, RIGHT_VERDICTS
from workbench.reference.attention import table_of
from workbench.reference.dataflow import direct
from workbench.trace.trace import Trace

SCHEMA = "workbench.bench-verdicts/1"
#: the kernels on floats: those on codes take no dtype, and have variants of their own
MEASURED = tuple(kernel.name for kernel in KERNELS.values() if not kernel.quantised)
#: the faults that numbers show
FAULTS = tuple(fault.id for fault in CATALOGUE.values() if fault.stages and fault.kernel in MEASURED)
#: the faults that truncate sums, of which most errors stay inside their budgets
TRUNCATING = tuple(fault.id for fault in CATALOGUE.values() if fault.biased)
# seconds of a case and of a cold build, measured on 2 cores, for estimates only
CASE_S, FAULT_CASE_S, BUILD_S = 0.06, 0.05, 5.0


def measure(correct: int = 2000, per_fault: int = 20, seed: int = 0, jobs: int = 1) -> dict[str, Any]:
    """The JSON document of one campaign on the emulator, the same for any number of `jobs` (processes).

    `correct`: counts over that many random cases of correct kernels, both in turn, and of each verdict the stages that
    it came from; `limits` are the largest shares of them that may be called so. `faults`: a row for each fault with
    `stages`: of `per_fault` runs, `effective` (out or lse differ in a bit from the correct kernel's) and of these, with
    a full and a lean dump, `bug` and `origin` (the first origin is the faulty stage, or with a lean dump the first
    dumped stage at or after it), and how many each usual rule fails. `truncating`: a row for each fault that truncates
    the sums of a `stage`: of as many runs, with 65 to 128 queries, those in which it changes a bit of the stage
    (`effective`), and how many of these each verdict on the stage gets; `biased` takes a second run on other inputs.
    """
    random = np.random.default_rng(seed)
    runs = [(name, sample(random, name)) for _, name in zip(range(correct), itertools.cycle(MEASURED), strict=False)]
    correct_s = CASE_S * correct / jobs + BUILD_S * 1.5 * len(ranges.BUILDS)
    counts = Tally.of(gathered(f"judge {correct} correct runs", correct_s, spread(_called, runs, jobs), _not_right))
    rows = fault_rows(_fault_row, FAULTS, "faults", per_fault, seed, jobs)
    truncating = fault_rows(_truncating_row, TRUNCATING, "truncated sums", per_fault, seed, jobs)
    sums: dict[str, Any] = {key: sum(row[key] for row in rows) for key in ("runs", "effective")}
    for dump in ("full", "lean"):
        sums[dump] = {key: sum(row[dump][key] for row in rows) for key in ("bug", "origin")}
    sums["rules"] = {name: sum(row["rules"][name] for row in rows) for name in RULES}
    return {
        "schema": SCHEMA,
        "seed": seed,
        "limits": LIMITS,
        "correct": counts.document(),
        "faults": rows,
        "all_faults": sums,
        "truncating": truncating,
    }


def fault_rows(
    row: Callable[..., dict[str, Any]], faults: Sequence[str], named: str, runs: int, seed: int, jobs: int
) -> list[dict[str, Any]]:
    """The `row` of each of `faults`, which are `named` so, from so many runs of it, each compiled first."""
    estimate_s = (FAULT_CASE_S * runs + BUILD_S) * len(faults) / jobs
    name = f"judge {runs} runs of each of {len(faults)} {named}"
    return gathered(name, estimate_s, spread(partial(row, runs=runs, seed=seed), faults, jobs))


def tables(results: dict[str, Any]) -> list[list[dict[str, Any]]]:
    """The document as tables for a screen: rows of equal columns."""
    correct = results["correct"]
    faults = [
        {
            "fault": row.get("fault", "all"),
            "runs": row["runs"],
            "effective": row["effective"],
            **{f"{dump} {key}": row[dump][key] for dump in ("full", "lean") for key in ("bug", "origin")},
            **{f"{name} fails": row["rules"][name] for name in RULES},
        }
        for row in (*results["faults"], results["all_faults"])
    ]
    verdicts = [tally.row("correct kernels", correct), tally.limits_row(correct)]
    stages = tally.stage_rows(correct)
    judged = [verdict for verdict in SEVERITY if verdict not in ("untestable", "missing")]
    truncating = [
        {
            **{key: row[key] for key in ("fault", "stage", "runs", "effective")},
            **counted(row["verdicts"], judged),
        }
        for row in results["truncating"]
    ]
    return [verdicts, *([stages] if stages else []), faults, truncating]


def _not_right(runs: Sequence[Called]) -> str:
    return f", {sum(run.verdict not in RIGHT_VERDICTS for run in runs)} not judged right"


def _called(drawn: tuple[str, Case]) -> Called:
    """What a correct run was called."""
    name, case = drawn
    return Called.of(diff(run(name, case, backend="emulator")))


def _fault_row(fault_id: str, *, runs: int, seed: int) -> dict[str, Any]:
    fault = CATALOGUE[fault_id]
    row: dict[str, Any] = {"fault": fault.id, "kernel": fault.kernel, "runs": runs, "effective": 0}
    row |= {"full": {"bug": 0, "origin": 0}, "lean": {"bug": 0, "origin": 0}, "rules": dict.fromkeys(RULES, 0)}
    for faulty in effective_runs(fault, runs, seed):
        row["effective"] += 1
        full = diff(faulty)
        for rule in full.rules:
            row["rules"][rule.name] += not rule.passes
        for dump, judged in (("full", full), ("lean", diff(reduced(faulty, "lean")))):
            row[dump]["bug"] += judged.verdict in ORIGIN_VERDICTS
            row[dump]["origin"] += judged.origin in _origins(fault, dump)
    return row


def _truncating_row(fault_id: str, *, runs: int, seed: int) -> dict[str, Any]:
    fault, random = CATALOGUE[fault_id], np.random.default_rng(seed)
    (stage,) = fault.biased
    verdicts: Counter[str] = Counter()
    for _ in range(runs):
        case = showing(fault, random)
        faulty, sound = (run(fault.kernel, case, faults=some, backend="emulator") for some in ([fault.id], []))
        if faulty.stages[stage].tobytes() != sound.stages[stage].tobytes():
            verdicts[diff(faulty)[stage].verdict] += 1
    return {"fault": fault.id, "stage": stage, "runs": runs, "effective": verdicts.total(), "verdicts": dict(verdicts)}


def effective_runs(fault: Fault, runs: int, seed: int) -> Iterator[Trace]:
    """Of so many random runs of a fault, with a full dump, those in which it changes a bit of out or lse."""
    random = np.random.default_rng(seed)
    for _ in range(runs):
        case = showing(fault, random)
        faulty = run(fault.kernel, case, faults=[fault.id], backend="emulator")
        sound = run(fault.kernel, case, probes="output", backend="emulator")
        if differs(faulty, sound):
            yield faulty


def differs(one: Trace, other: Trace) -> bool:
    """Whether out or lse of two runs differ in a bit."""
    return any(one.stages[name].tobytes() != other.stages[name].tobytes() for name in ("out", "lse"))


def _origins(fault: Fault, dump: str) -> Sequence[str]:
    """Where a fault may first show: at its stages, or with a lean dump at the first dumped stages that read them."""
    if dump == "full":
        return fault.stages
    steps = table_of(KERNELS[fault.kernel].algorithm, numbers=frozenset({"softcap"} & {*fault.needs}))
    found: list[str] = []
    reached = [name for name in fault.stages if name not in PROBE_SETS["lean"]]
    found += [name for name in fault.stages if name in PROBE_SETS["lean"]]
    while reached:
        hidden = reached.pop()
        for name in steps:
            if hidden in direct(steps, name) and name != hidden:
                (found if name in PROBE_SETS["lean"] else reached).append(name)
    return found
