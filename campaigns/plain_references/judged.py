"""What the workbench says of right and wrong kernels of five operations, judged by plain torch references."""

import json
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from campaigns.plain_references.runs import runs
from campaigns.spread import spread
from workbench.bench.harness import gathered
from workbench.operations.diff import diff

SCHEMA = "workbench.plain-references/1"
FOLDER = Path(__file__).parent
#: seconds of a run, for the estimate
RUN_S = 0.6
#: a fault should be seen where its largest error is so many times its right twin's
VISIBLE = 2.0


def asked(right: int) -> list[dict[str, Any]]:
    """The first `right` runs of right kernels, every operation's in turn, and every fault in every dtype."""
    by_operation: dict[str, list[dict[str, Any]]] = {}
    for run in runs():
        by_operation.setdefault(run["operation"], []).append({**run, "truth": "right"})
    in_turn = [run for several in zip(*by_operation.values(), strict=True) for run in several]
    wrong = [
        {**told, "truth": "wrong", "dtype": dtype, "contract": "", "visible": told["ratio"][dtype]["max"] > VISIBLE}
        for told in json.loads((FOLDER / "truths.json").read_text())
        for dtype in told["dtypes"]
    ]
    return in_turn[:right] + wrong


def measure(jobs: int = 1, right: int = 1000) -> dict[str, Any]:
    """The JSON document: a row for each run of a right kernel and of a fault."""
    several = asked(right)
    rows = gathered("judge kernels by plain references", RUN_S * len(several) / jobs, spread(row, several, jobs))
    return {"schema": SCHEMA, "runs": rows}


def row(run: dict[str, Any]) -> dict[str, Any]:
    """One run."""
    began = time.perf_counter()
    found = diff(
        f"{FOLDER / run['file']}:{run['function']}",
        reference=[f"{FOLDER / one}" for one in (run["reference"], *run["also"])],
        inputs=str(FOLDER / run["inputs"]),
        dtype=run["dtype"],
        axes=run["axes"],
        seed=run["seed"],
        contract=run["contract"] or None,
    )
    sizes = [stage.judged.summary for stage in found.stages if stage.decisive is not None]
    size = sum(one.size for one in sizes)
    origin = found.origin or next((one.name for one in found.stages if one.verdict == "suspicious"), None)
    kept = (
        "operation",
        "function",
        "dtype",
        "axes",
        "seed",
        "contract",
        "truth",
        "visible",
        "size",
        "kind",
        "first_wrong",
    )
    return {
        **{name: run.get(name) for name in kept},
        "verdict": found.verdict,
        "doubt": found.doubt,
        "fails": found.fails,
        "origin": origin,
        "reason": next((one.reason for one in found.stages if one.verdict == found.verdict), ""),
        "judged": sum(one.judged for one in sizes) / size if size else 0.0,
        "over_budget": max((one.worst.over_budget for one in sizes if one.worst is not None), default=0.0),
        "seconds": round(time.perf_counter() - began, 2),
    }


def tables(found: dict[str, Any]) -> list[list[dict[str, Any]]]:
    """Runs that are not as the truth says, right ones by dtype, then faults by size."""
    rows = found["runs"]
    right, wrong = ([one for one in rows if one["truth"] == truth] for truth in ("right", "wrong"))
    shown = ("truth", "operation", "function", "dtype", "axes", "seed", "verdict", "doubt", "origin", "over_budget")
    odd = [{name: one[name] for name in shown} for one in rows if not as_true(one)]
    told = [
        _verdicts(dtype, (one for one in right if one["dtype"] == dtype))
        for dtype in sorted({x["dtype"] for x in right})
    ]
    by_size = [
        _verdicts(f"{size}, {'visible' if visible else 'within twice the right one'}", some)
        for size in ("gross", "fine")
        for visible in (True, False)
        if (some := [one for one in wrong if (one["size"], one["visible"]) == (size, visible)])
    ]
    return [one for one in (odd, told, by_size) if one]


def _verdicts(of: str, rows: Iterable[dict[str, Any]]) -> dict[str, Any]:
    some = [*rows]
    count = Counter(one["verdict"] for one in some)
    staged = [one for one in some if one["first_wrong"] and one["origin"]]
    return {
        "runs": of,
        "n": len(some),
        "bug": count["bug"],
        "suspicious, fails": sum(one["verdict"] == "suspicious" and one["fails"] for one in some),
        "suspicious, passes": sum(one["verdict"] == "suspicious" and not one["fails"] for one in some),
        "untestable": count["untestable"],
        "right": count["rounding"] + count["exact"],
        "99 % judged": sum(one["judged"] >= 0.99 for one in some),
        "stage right": f"{sum(_at(one) for one in staged)} of {len(staged)}" if staged else "",
    }


def _at(one: dict[str, Any]) -> bool:
    """Whether the first wrong stage is the true one, whichever iteration of it."""
    return bool(one["origin"].split("[")[0] == one["first_wrong"].split("[")[0])


def as_true(one: dict[str, Any]) -> bool:
    """A right kernel passes; a wrong one whose error stands out fails by what was judged."""
    if one["truth"] == "right":
        return not one["fails"]
    return not one["visible"] or (one["fails"] and one["verdict"] != "untestable")
