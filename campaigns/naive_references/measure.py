"""What the workbench says of kernels of any operation, judged by naive references, beside the truth about them."""

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from campaigns.naive_references import causes as of_causes
from campaigns.spread import spread
from workbench.bench.harness import gathered
from workbench.operations.diff import diff

SCHEMA = "workbench.naive-references/1"
FOLDER = Path(__file__).parent
#: seconds of a run, for the estimate
RUN_S = 1.0
#: and of searches for the causes of a wrong one
CAUSES_S = 6.0


def truths() -> list[dict[str, Any]]:
    """A row for each run of a kernel: file, function, dtype, contract, and what is true."""
    told = json.loads((FOLDER / "truths.json").read_text())
    return [{**{k: x for k, x in one.items() if k != "runs"}, **run} for one in told for run in one["runs"]]


def measure(jobs: int = 1, seeds: int = 1, causes: bool = False) -> dict[str, Any]:
    """The JSON document: a row for each run and each of `seeds`, with the verdict, the first wrong stage, the share of
    elements that were judged and whether all of it is as the truth says; `causes`: and which are named of wrong ones.
    """
    asked = [(one, seed, causes) for one in truths() for seed in range(seeds)]
    seconds = (RUN_S + CAUSES_S * causes) * len(asked) / jobs
    rows = gathered("judge kernels by naive references", seconds, spread(row, asked, jobs))
    return {"schema": SCHEMA, "kernels": rows}


def row(asked: tuple[dict[str, Any], int, bool]) -> dict[str, Any]:
    """One run."""
    one, seed, causes = asked
    file = FOLDER / one["file"]
    began = time.perf_counter()
    found = diff(
        f"{file}:{one['function']}", reference=f"{file}:naive", inputs=f"{file}:inputs", dtype=one["dtype"], seed=seed,
        contract=one["contract"] or None,
    )  # fmt: skip
    sizes = [stage.judged.summary for stage in found.stages if stage.decisive is not None]
    judged, size = sum(x.judged for x in sizes), sum(x.size for x in sizes)
    first = one.get("first_wrong")
    return {
        "file": one["file"],
        "function": one["function"],
        "dtype": one["dtype"],
        "contract": one["contract"],
        "seed": seed,
        "truth": one["truth"],
        "verdict": found.verdict,
        "doubt": found.doubt,
        "fails": found.fails,
        "origin": found.origin,
        "first_wrong": first,
        "judged": judged / size if size else 0.0,
        "over_budget": max((x.worst.over_budget for x in sizes if x.worst is not None), default=0.0),
        "right": _right(one["truth"], found.fails, found.verdict),
        "stage_right": None if first is None or found.origin is None else found.origin.split("[")[0] == first,
        "seconds": round(time.perf_counter() - began, 2),
        "causes": of_causes.row(found, one["file"], one["function"]) if causes and one["truth"] == "wrong" else None,
    }


def _right(truth: str, fails: bool, verdict: str) -> bool:
    """A right kernel passes and is no bug, a wrong one fails by what was judged."""
    return not fails if truth == "right" else fails and verdict != "untestable"


def tables(found: dict[str, Any]) -> list[list[dict[str, Any]]]:
    """Runs whose verdict or stage is not as the truth says, then counts."""
    rows = found["kernels"]
    shown = ("file", "function", "dtype", "contract", "truth", "verdict", "doubt", "origin", "first_wrong", "judged",
             "over_budget")  # fmt: skip
    odd = [{name: one[name] for name in shown} for one in rows if not one["right"] or one["stage_right"] is False]
    counts = []
    for truth in ("right", "wrong"):
        for folder in ("five", "threads"):
            some = [one for one in rows if one["truth"] == truth and one["file"].startswith(folder)]
            staged = [one for one in some if one["stage_right"] is not None]
            counts.append({
                "kernels": folder, "truth": truth, "runs": len(some), "as the truth": sum(x["right"] for x in some),
                "stage right": f"{sum(x['stage_right'] for x in staged)} of {len(staged)}",
                "99 % judged": sum(x["judged"] >= 0.99 for x in some),
                "untestable": sum(x["verdict"] == "untestable" for x in some),
            })  # fmt: skip
    return [one for one in (odd, counts, *_of_causes(rows)) if one]


def _of_causes(rows: Sequence[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """What is named of each wrong run, then counts: by a report, by a longer search, and without the true family."""
    some = [one for one in rows if one["causes"] is not None]
    each = [{name: one[name] for name in ("file", "function", "dtype")} | one["causes"] for one in some]
    said = ("named", "perhaps", "among", "false", "unknown", "no origin")
    counts = [
        {"causes": how, **{word: sum(one[how] == word for one in each) for word in said}}
        for how in ("report", "explain", "without")
    ]
    return [each, counts] if some else []


def wrong(found: dict[str, Any]) -> Sequence[dict[str, Any]]:
    """The runs whose verdict is not as the truth says."""
    return [one for one in found["kernels"] if not one["right"]]
