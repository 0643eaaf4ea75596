"""Two faults at once: how often both are named."""

from functools import partial
from typing import Any

import numpy as np

from workbench.bench.harness import gathered, spread
from workbench.bench.score import FAULTS, FRESH, RUN_S, SCHEMA, SECONDS, is_right
from workbench.bench.score import KNOWN as VIEWS
from workbench.bench.showing import showing
from workbench.case.case import Case
from workbench.cuda.faults.catalogue import CATALOGUE
from workbench.foreign.run import run
from workbench.judge.diff import diff
from workbench.judge.explain.explain import explain
from workbench.refusal import Refusal

#: what is known of a run
KNOWN = ("full", "out and lse")


def measure(pairs: int = 50, seed: int = 0, jobs: int = 1) -> dict[str, Any]:
    """The JSON document of one campaign: of so many random pairs, by what is known (KNOWN), whether all that is wrong
    is named `right`, the `causes`, and the `seconds` of the search.
    """
    random = np.random.default_rng(seed)
    some = [pair for _ in range(pairs) if (pair := _drawn_pair(random))]
    rows = spread(partial(_pair_row, seed=seed), some, jobs)
    found = gathered(f"explain {pairs} pairs of faults", RUN_S * pairs / jobs, rows)
    return {"schema": SCHEMA, "seed": seed, "pairs": found}


def tables(results: dict[str, Any]) -> list[list[dict[str, Any]]]:
    """The document as tables for a screen: rows of equal columns."""
    found = [row for row in results["pairs"] if KNOWN[0] in row]
    total = [
        {"known": known, "pairs": len(found), "both named": sum(row[known]["right"] for row in found)}
        for known in KNOWN
    ]
    missed = [
        {"known": known, "pair": " + ".join(row["pair"]), "causes": "; ".join(row[known]["causes"])}
        for row in found
        for known in KNOWN
        if not row[known]["right"]
    ]
    return [table for table in (total, missed) if table]


def _drawn_pair(random: np.random.Generator) -> tuple[str, str] | None:
    """Two faults of one kernel and of different stages; None where a thousand draws give none."""
    for _ in range(1000):
        one, other = (CATALOGUE[FAULTS[i]] for i in random.integers(len(FAULTS), size=2))
        if one.kernel == other.kernel and not {*one.stages} & {*other.stages} and one.needs == other.needs:
            return one.id, other.id
    return None


def _pair_row(pair: tuple[str, str], *, seed: int) -> dict[str, Any]:
    """A row of `measure`: whether the causes, together, reproduce each wrong stage on fresh cases."""
    one, other = (CATALOGUE[name] for name in pair)
    random = np.random.default_rng(seed)
    row: dict[str, Any] = {"pair": list(pair)}
    cases: list[Case] = []
    while len(cases) < 1 + FRESH:
        case = showing(one, random)
        cases += [case] if other.shows(case) else []
    try:
        traces = [run(one.kernel, case, faults=list(pair), backend="emulator") for case in cases]
    except Refusal:  # both change the same lines
        return row
    for known in KNOWN:
        first, *fresh = (VIEWS[known](trace) for trace in traces)
        judged = diff(first)
        found = explain(first, judged.stages, seconds=SECONDS[known])
        right = bool(found.causes) and not found.unexplained and all(is_right(cause, fresh) for cause in found.causes)
        row[known] = {"right": right, "causes": [cause.id for cause in found.causes], "seconds": found.seconds}
    return row
