"""Two faults at once: how often both are named."""

from typing import Any

import numpy as np

import campaigns.faults  # noqa: F401  (the whole catalogue)
from campaigns.score import FAULTS, FRESH, RUN_S, SCHEMA, is_right
from campaigns.score import KNOWN as VIEWS
from campaigns.showing import can_show, showing
from campaigns.spread import spread
from workbench.bench.harness import gathered
from workbench.case.case import Case
from workbench.cuda.faults.catalogue import CATALOGUE
from workbench.floats import to_float64
from workbench.foreign.run import run
from workbench.judge.diff import diff
from workbench.judge.stage import ORIGIN_VERDICTS
from workbench.refusal import Refusal
from workbench.trace.trace import Trace

#: what is known of a run
KNOWN = ("full", "out and lse")
#: change of a number, of the root mean square of its stage, that no float32 rounding makes
MOVED = 1e-4


def measure(pairs: int = 50, seed: int = 0, jobs: int = 1) -> dict[str, Any]:
    """The JSON document of one campaign: of so many random pairs, each on a case of its own, by what is known (KNOWN),
    whether both show there: each by itself, and beside the other, whose NaN may hide it (`shows`); whether all that is
    wrong is named `right`, the `causes`, and the `seconds` of the search.
    """
    random = np.random.default_rng(seed)
    some = [(*pair, seed + i) for i in range(pairs) if (pair := _drawn_pair(random))]
    rows = spread(pair_row, some, jobs)
    found = gathered(f"explain {pairs} pairs of faults", RUN_S * pairs / jobs, rows)
    return {"schema": SCHEMA, "seed": seed, "pairs": found}


def tables(results: dict[str, Any]) -> list[list[dict[str, Any]]]:
    """The document as tables for a screen: rows of equal columns."""
    found = [row for row in results["pairs"] if KNOWN[0] in row]
    total = [
        {
            "known": known,
            "pairs": len(found),
            "both show": sum(row[known]["shows"] for row in found),
            "both named": sum(row[known]["right"] for row in found if row[known]["shows"]),
        }
        for known in KNOWN
    ]
    missed = [
        {"known": known, "pair": " + ".join(row["pair"]), "causes": "; ".join(row[known]["causes"])}
        for row in found
        for known in KNOWN
        if row[known]["shows"] and not row[known]["right"]
    ]
    return [table for table in (total, missed) if table]


def _drawn_pair(random: np.random.Generator) -> tuple[str, str] | None:
    """Two faults of one kernel and of different stages; None where a thousand draws give none."""
    for _ in range(1000):
        one, other = (CATALOGUE[FAULTS[i]] for i in random.integers(len(FAULTS), size=2))
        if one.kernel == other.kernel and not {*one.stages} & {*other.stages} and one.needs == other.needs:
            return one.id, other.id
    return None


def pair_row(drawn: tuple[str, str, int]) -> dict[str, Any]:
    """A row of `measure`, of two faults and a seed: whether the causes, together, reproduce each wrong stage on fresh
    cases.
    """
    *pair, seed = drawn
    one, other = (CATALOGUE[name] for name in pair)
    random = np.random.default_rng(seed)
    row: dict[str, Any] = {"pair": pair, "seed": seed}
    cases: list[Case] = []
    while len(cases) < 1 + FRESH:
        case = showing(one, random)
        cases += [case] if can_show(other, case) else []
    try:
        traces = [run(one.kernel, case, faults=pair, backend="emulator") for case in cases]
    except Refusal:  # both change the same lines
        return row
    singly = [run(one.kernel, cases[0], faults=[name], backend="emulator") for name in pair]
    for known in KNOWN:
        view = VIEWS[known]
        first, *fresh = (view(trace) for trace in traces)
        judged = diff(first)
        found = judged.explain()
        row[known] = {
            "shows": all(diff(view(x)).verdict in ORIGIN_VERDICTS and _moved(view(x), first) for x in singly),
            "right": bool(found.causes)
            and not found.unexplained
            and all(is_right(cause, fresh) for cause in found.causes),
            "causes": [cause.id for cause in found.causes],
            "seconds": found.seconds,
        }
    return row


def _moved(one: Trace, both: Trace) -> bool:
    """Whether a run with two faults has other numbers than one with one of them, by more than float32 rounds."""
    for name, stage in both.stages.items():
        x, y = to_float64(one.stages[name]), to_float64(stage)
        finite = np.isfinite(x) & np.isfinite(y)
        size = np.sqrt(np.mean(x[finite] ** 2)) if finite.any() else 0.0
        if np.any(np.isfinite(x) != np.isfinite(y)) or np.any(abs(x[finite] - y[finite]) > MOVED * size):
            return True
    return False
