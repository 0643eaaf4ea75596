"""Kernels in the styles of the wild, written from the outside: correct ones, of which none may be called wrong, and
faults of kernels that declare nothing, of which none may be plainly green that makes errors far larger.
"""

from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from campaigns.spread import spread
from campaigns.styles import CORRECT, FAULTY, Faulty, Style, cases, declared, faulty_cases
from campaigns.tally import counted
from workbench.bench.harness import gathered
from workbench.case.case import Case
from workbench.floats import to_float64
from workbench.foreign.run import run
from workbench.judge.diff import Diff, diff
from workbench.judge.fails import classed, failing
from workbench.judge.stage import ORIGIN_VERDICTS, RIGHT_VERDICTS
from workbench.reference import dense
from workbench.trace.trace import Trace

SCHEMA = "workbench.bench-styles/1"
#: how much of its contract a kernel tells: everything, what its dumps mean, or nothing, with out and lse alone
LEVELS = ("full", "units", "silent")
#: those at which a style does not say what its arithmetic is
UNDECLARED = ("units", "silent")
#: shares of runs, of which tables show how far these are beyond a usual kernel's budget: the median, and the largest
SHARES = (0.5, 0.95, 0.999, 1.0)
#: times the unfaulted kernel's root-mean-square error that are never plainly green; those from the first on are listed
LISTED, FAR = 2.0, 8.0
# seconds of a judgement, measured on 2 cores, for an estimate only
JUDGED_S = 0.15


def measure(per_style: int = 20, seed: int = 0, jobs: int = 1) -> dict[str, Any]:
    """The JSON document of one campaign, the same for any number of `jobs` (processes).

    `correct`: a row for each style with its `group`, and at each of LEVELS the verdicts of `per_style` random cases;
    `wrong` lists the cases that were called a bug, untestable or missing, and why, and `unnamed` those that were not
    called right and whose report names none of the contract fields that explain the style; `fails` those that exit with
    1 unless it is said otherwise; `over_usual`, of those that only choices excuse which the style did not declare, the
    errors / a usual kernel's budget. `faulty`: a
    row for each fault with the verdicts of as many cases, and for each case that was plainly green its root-mean-square
    error of out and of lse by the unfaulted kernel's, from LISTED on (`green`).
    """

    def wrong(rows: list[dict[str, Any]]) -> str:
        return f", {sum(len(row['wrong']) for row in rows)} judged wrong"

    estimate_s = JUDGED_S * per_style / jobs
    styles = spread(partial(_style_row, runs=per_style, seed=seed), range(len(CORRECT)), jobs)
    correct = gathered(f"judge {len(CORRECT)} styles", 3 * estimate_s * len(CORRECT), styles, wrong)
    faults = spread(partial(_fault_row, runs=per_style, seed=seed), range(len(FAULTY)), jobs)
    faulty = gathered(f"judge {len(FAULTY)} faults", estimate_s * len(FAULTY), faults)
    return {"schema": SCHEMA, "seed": seed, "correct": correct, "faulty": faulty}


def tables(results: dict[str, Any]) -> list[list[dict[str, Any]]]:
    """The document as tables for a screen: rows of equal columns."""
    rows = []
    for level in LEVELS:
        for group in dict.fromkeys(row["group"] for row in results["correct"]):
            of_group = [row for row in results["correct"] if row["group"] == group]
            counts = sum((Counter(row["verdicts"][level]) for row in of_group), Counter())
            unnamed = sum(one["level"] == level for row in of_group for one in row["unnamed"])
            told = {"told": level, "group": group, "styles": len(of_group), "runs": counts.total()}
            rows.append(told | counted(counts) | {"unnamed": unnamed})
    wrong = [{"style": row["style"], **one} for row in results["correct"] for one in row["wrong"]]
    excused = [_excused(told, row) for row in results["correct"] for told in UNDECLARED if row["over_usual"][told]]
    excused += [_outside(results["correct"], told) for told in UNDECLARED]
    faults = [
        {"fault": row["fault"], "runs": row["runs"], **counted(row["verdicts"]), "green beyond": len(row["green"]),
         "out": _largest(row["green"], "out"), "lse": _largest(row["green"], "lse")}
        for row in results["faulty"]
    ]  # fmt: skip
    return [table for table in (rows, wrong, excused, faults) if table]


def _excused(told: str, row: dict[str, Any]) -> dict[str, Any]:
    """How far a style that does not declare its arithmetic is beyond a usual kernel's budget where it is excused."""
    over, runs = row["over_usual"][told], sum(row["verdicts"][told].values())
    shares = {f"{share:.1%}": round(float(np.quantile(over, share, method="higher")), 2) if over else 0.0
              for share in SHARES}  # fmt: skip
    head = {"told": told, "group": row["group"], "style": row["style"], "runs": runs}
    return head | {"excused": len(over), **shares, "fails": sum(one["level"] == told for one in row["fails"])}


def _outside(rows: Sequence[dict[str, Any]], told: str) -> dict[str, Any]:
    """The same of all styles whose arithmetic is a usual kernel's, or a known library's that sums in float32."""
    others = [row for row in rows if row["group"] != "arithmetic"]
    over = [x for row in others for x in row["over_usual"][told]]
    verdicts = sum((Counter(row["verdicts"][told]) for row in others), Counter[str]())
    fails = [one for row in others for one in row["fails"]]
    every = {"group": "all but arithmetic", "style": "", "verdicts": {told: verdicts}, "over_usual": {told: over}}
    return _excused(told, every | {"fails": fails})


def _largest(green: list[dict[str, Any]], name: str) -> float:
    return round(max((one.get(name, 0.0) for one in green), default=0.0), 2)


def _style_row(index: int, *, runs: int, seed: int) -> dict[str, Any]:
    style = CORRECT[index]
    row: dict[str, Any] = {"style": style.name, "group": style.group, "wrong": [], "unnamed": [], "fails": []}
    row |= {"verdicts": {}, "over_usual": {}}
    drawn = cases(style, runs, seed)
    for level in LEVELS:
        counts: Counter[str] = Counter()
        over: list[float] = []
        for options in drawn:
            judged = diff(run(declared(style, level), Case(**options)))
            counts[judged.verdict] += 1
            over += [max(found)] if (found := [x.over_usual for x in judged if x.over_usual is not None]) else []
            told = {"level": level, "case": str(judged.trace.case), "verdict": judged.verdict, "why": _why(judged)}
            named = _names(judged, style)
            if judged.verdict in (*ORIGIN_VERDICTS, "untestable"):
                row["wrong"].append(told | {"named": named})
            if judged.verdict not in RIGHT_VERDICTS and not named:
                row["unnamed"].append(told | {"named": named})
            if classed(judged) in failing():
                row["fails"].append(told | {"named": named})
        row["verdicts"][level], row["over_usual"][level] = dict(counts), over
    return row


def _names(judged: Diff, style: Style) -> bool:
    """Whether the report names a field that explains the style; of styles that need none it need not."""
    said = " ".join(f"{stage.reason} {stage.if_declared.words if stage.if_declared else ''}" for stage in judged.stages)
    return not style.explained_by or any(f"{field}=" in said for field in style.explained_by)


def _why(judged: Diff) -> str:
    return "; ".join(
        f"{stage.name} {stage.verdict}: {stage.reason}" for stage in judged if stage.verdict not in RIGHT_VERDICTS
    )


def _fault_row(index: int, *, runs: int, seed: int) -> dict[str, Any]:
    fault = FAULTY[index]
    row: dict[str, Any] = {"fault": fault.name, "runs": 0, "verdicts": {}, "green": []}
    counts: Counter[str] = Counter()
    for options in faulty_cases(fault, runs, seed):
        trace = run(fault.function, Case(**options))
        judged = diff(trace)
        counts[judged.verdict] += 1
        row["runs"] += 1
        if judged.verdict in RIGHT_VERDICTS:
            times = _times(fault, trace)
            if max(times.values()) >= LISTED:
                row["green"].append({"case": str(trace.case), **times})
    return row | {"verdicts": dict(counts)}


def _times(fault: Faulty, trace: Trace) -> dict[str, float]:
    """Root-mean-square error of out and lse by the unfaulted kernel's on the same inputs."""
    case = trace.case
    sound = run(fault.correct, case)
    q, k, v = (to_float64(trace.inputs[name]) for name in ("q", "k", "v"))
    right = dense.attention(q, k, v, scale=case.scale, mask=case.mask())
    found = {}
    for name in {"out", "lse"} & set(trace.stages) & set(sound.stages):
        own, other = (_rms(to_float64(x.stages[name]), right[name]) for x in (trace, sound))
        found[name] = own / other if other else float(own > 0) and float("inf")
    return found


def _rms(actual: np.ndarray, expected: np.ndarray) -> float:
    finite = np.isfinite(expected)
    return float(np.sqrt(np.mean((actual[finite] - expected[finite]) ** 2))) if finite.any() else 0.0
