"""What the workbench says of each wrong backward pass of the trackers, and of its right twin."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from campaigns.backward_reports.every import BY_NAME
from campaigns.backward_reports.record import Report
from campaigns.backward_reports.search import origin, search, shrunk
from campaigns.spread import spread
from workbench.bench.harness import gathered
from workbench.judge.stage import RIGHT_VERDICTS
from workbench.operations.attention_backward import ATTENTION_BACKWARD
from workbench.operations.call import diff_operation
from workbench.operations.case import OperationCase

SCHEMA = "workbench.backward-reports/1"
#: random cases that a search gives up after
CASES = 1000
#: seconds of a judged run, of a search and its shrinking, for an estimate only
RUN_S, SEARCH_S = 0.15, 40.0


def measure(seeds: int = 2, jobs: int = 1, names: Sequence[str] = (), cases: int = CASES) -> dict[str, Any]:
    """The JSON document. `reports`: of each, runs of all distributions and so many seeds: those in which a bit of a
    gradient or stage is not the right twin's (`shown`), those of these whose first wrong stage is the reported one with
    all stages dumped (`at_stage`), those called wrong from dq, dk and dv alone (`alone`), and runs of the right twin,
    of both kinds, that are not called right (`twin`). `searches`: of those that shapes do not show, as
    `search.search` and `shrunk` have them, with the stage that the small case names in a full dump.
    """
    asked = [BY_NAME[name] for name in names or BY_NAME]
    searched = [one.name for one in asked if one.by_values]
    runs = len(ATTENTION_BACKWARD.distributions) * seeds
    estimate_s = (4 * RUN_S * runs * len(asked)) / jobs
    rows = spread(partial(row, seeds=seeds), [one.name for one in asked], jobs)
    made = gathered(f"judge {len(asked)} backward passes", estimate_s, rows)
    found = spread(partial(search_row, cases=cases), searched, jobs)
    searches = gathered(f"search {len(searched)}", SEARCH_S * len(searched) / jobs, found) if searched else []
    return {"schema": SCHEMA, "reports": made, "searches": searches}


def row(name: str, *, seeds: int) -> dict[str, Any]:
    """A row of `reports`."""
    report = BY_NAME[name]
    shown = at_stage = alone = twin = runs = 0
    elsewhere = []
    for distribution in ATTENTION_BACKWARD.distributions:
        for seed in range(seeds):
            case = {**report.case, "distribution": distribution, "seed": seed}
            wrong, right = (_judged(report, case, bug) for bug in (True, False))
            bits = [{stage: x.tobytes() for stage, x in one.run.stages.items()} for one in (wrong[0], right[0])]
            differs = bits[0] != bits[1]
            runs, shown = runs + 1, shown + differs
            twin += sum(one.verdict not in RIGHT_VERDICTS for one in right)
            at_stage += differs and wrong[0].origin == report.stage
            alone += wrong[1].origin is not None
            if wrong[0].origin not in (report.stage if differs else None, None):
                elsewhere.append(f"{wrong[0].origin}: {wrong[0].headline}")
    return {
        **{"report": name, "source": report.source, "truth": report.truth, "shows": report.shows},
        **{"stage": report.stage, "runs": runs, "shown": shown, "at_stage": at_stage, "alone": alone, "twin": twin},
        "elsewhere": elsewhere,
    }


def _judged(report: Report, case: Mapping[str, Any], bug: bool) -> list[Any]:
    """With all stages, and from gradients alone."""
    kernels = (report.kernel(bug=bug, dumps=dumps) for dumps in (True, False))
    return [diff_operation(kernel, ATTENTION_BACKWARD, **case) for kernel in kernels]


def search_row(name: str, *, cases: int) -> dict[str, Any]:
    """A row of `searches`."""
    report = BY_NAME[name]
    found = search(report, cases)
    row = {"report": name, "tried": found.tried, "normal": found.normal, "found": "", "small": "", "stage": None}
    if found.case is None:
        return row
    small = shrunk(report, found.case)
    words = [str(_case(one)) for one in (found.case, small)]
    return row | {"found": words[0], "small": words[1], "stage": origin(report.kernel(), small)}


def _case(of: Mapping[str, Any]) -> OperationCase:
    return OperationCase(
        ATTENTION_BACKWARD, of["axes"], of["dtype"], of["distribution"], of["seed"], of["numbers"], {}, of["optional"]
    )


def wrong(results: Mapping[str, Any]) -> bool:
    """Whether a right twin was called wrong, a bug was named elsewhere or shown nowhere, or a search found nothing."""
    rows = results["reports"]
    missed = any(not row["shown"] or row["at_stage"] != row["shown"] or row["elsewhere"] or row["twin"] for row in rows)
    stages = {row["report"]: row["stage"] for row in rows}
    return missed or any(one["stage"] != stages[one["report"]] for one in results["searches"])


def tables(results: Mapping[str, Any]) -> list[list[dict[str, Any]]]:
    """A row for each report and their sums; a row for each search."""
    columns = ("report", "source", "stage", "runs", "shown", "at_stage", "alone", "twin")
    rows = [{name: row[name] for name in columns} for row in results["reports"]]
    sums = {name: sum(row[name] for row in rows) for name in columns[3:]}
    total = dict.fromkeys(columns, "") | {"report": f"{len(rows)} reports"} | sums
    return [[*rows, total], *([results["searches"]] if results["searches"] else [])]
