"""What `capture` says of the wrong functions of `bugs`, and `compare_runs` of the runs of `pairs`, beside the truths
that were written first; and `accept` of `right_functions`. A sentence is held against its truth by a reader; verdicts,
layers and steps are counted.
"""

import re
import shutil
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from campaigns.clients import package
from campaigns.spread import spread
from workbench.bench.harness import gathered
from workbench.explore.acceptance.run import accept
from workbench.explore.capturing.capture import capture
from workbench.judge.against.calls import compare_runs

if TYPE_CHECKING:
    from campaigns.in_models.bugs import Bug

SCHEMA = "workbench.in-models/1"
# measured on 2 cores, for an estimate only
RUN_S = 6.0
#: seconds of cases for each right function
ACCEPT_S = 6.0
DTYPES = ("float32", "bfloat16", "float16")


def measure(jobs: int = 1, names: tuple[str, ...] = ()) -> dict[str, Any]:
    """A row for each bug, style and dtype in which it is visible, for each pair, and for each right function and dtype
    (all, or those of `names`). Unavailable without transformers.
    """
    package("transformers")
    from campaigns.in_models.bugs import BUGS
    from campaigns.in_models.pairs import PAIRS
    from campaigns.in_models.right_functions import SPECS

    bugs = [
        (bug.name, style, dtype) for bug in BUGS for style in bug.styles for dtype in bug.visible_in
        if not names or bug.name in names
    ]  # fmt: skip
    pairs = [pair.name for pair in PAIRS if not names or pair.name in names]
    right = [(name, dtype) for name in SPECS for dtype in DTYPES if not names or name in names]
    return {
        "schema": SCHEMA,
        "bugs": gathered("captures of bugs", RUN_S * len(bugs) / jobs, spread(_bug, bugs, jobs)),
        "pairs": gathered("pairs of runs", RUN_S * len(pairs) / jobs, spread(_pair, pairs, jobs)),
        "accepted": gathered("accept", 2 * ACCEPT_S * len(right) / jobs, spread(_accepted, right, jobs)),
    }


def tables(results: dict[str, Any]) -> list[list[dict[str, Any]]]:
    """What was said of each, beside its truth, then the counts."""
    bugs, pairs = results["bugs"], results["pairs"]
    counted = [
        {
            "dtype": dtype, "runs": len(of), "bug": sum(row["verdict"] == "bug" for row in of),
            "suspicious": sum(row["verdict"] == "suspicious" for row in of),
            "where it is": sum(row["at_its_place"] for row in of),
            "with a cause": sum(bool(row["causes"]) for row in of),
        }
        for dtype in ("float32", "bfloat16") if (of := [row for row in bugs if row["dtype"] == dtype])
    ]  # fmt: skip
    right = [{"pairs": len(pairs), "verdict as its truth": sum(row["as_told"] for row in pairs)}] if pairs else []
    return [_shown(bugs), counted, _shown(pairs), right, results["accepted"]]


def holds(results: dict[str, Any]) -> bool:
    """Whether each bug is called one, at its place, each pair is what its truth says, and no right function fails."""
    return (
        all(row["verdict"] == "bug" and row["at_its_place"] for row in results["bugs"])
        and all(row["as_told"] for row in results["pairs"])
        and all(row["verdict"] == "pass" for row in results["accepted"])
    )


def _shown(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: "; ".join(x) if isinstance(x, list) else x for name, x in row.items()} for row in rows]


def _bug(task: tuple[str, str, str]) -> dict[str, Any]:
    import torch

    from campaigns.in_models import models
    from campaigns.in_models.bugs import BUGS

    name, style, dtype = task
    bug = next(one for one in BUGS if one.name == name)
    folder = Path(tempfile.mkdtemp())
    try:
        with models.registered("mine", bug.attention(style), style):
            model, inputs = models.make(bug.model, getattr(torch, dtype), "mine", bug.run, bug.padding)
            start = time.perf_counter()
            with capture(model, folder / "seen") as c:
                models.go(model, inputs)
            report = c.report
            seconds = time.perf_counter() - start
    finally:
        shutil.rmtree(folder)
    kept = report.kept
    return {
        "bug": name, "style": style, "dtype": dtype, "verdict": report.verdict, "wrong": report.wrong,
        "judged": report.judged, "unread": sum(report.unread.values()),
        "where": kept.where if kept else "", "stage": (kept.stage or "") if kept else "",
        "at_its_place": kept is not None and _at_its_place(bug, kept.where, dtype),
        "causes": [*report.causes], "truth": bug.truth, "of_stage": bug.stage, "seconds": round(seconds, 2),
    }  # fmt: skip


def _at_its_place(bug: "Bug", where: str, dtype: str) -> bool:
    """Whether a place is one of the bug's: in 16 bits it may show in a later step first."""
    layer, step = (int(re.search(r"\d+", x)[0]) for x in where.split(", ")[-2:])  # type: ignore[index]
    steps = step == bug.first_step or (dtype != "float32" and step > bug.first_step)
    return steps and (bug.layer is None or layer == bug.layer)


def _pair(name: str) -> dict[str, Any]:
    from campaigns.in_models.pairs import PAIRS

    pair = next(one for one in PAIRS if one.name == name)
    folder = Path(tempfile.mkdtemp())
    try:
        pair.runs(folder / "A", folder / "B", capture)
        found = compare_runs(folder / "A", folder / "B")
        said = str(found).replace(f"{folder}/", "").split("\n")
    except Exception as error:
        return {
            "pair": name, "verdict": type(error).__name__, "as_told": False, "said": str(error).split("\n"),
            "truth": pair.truth,
        }  # fmt: skip
    finally:
        shutil.rmtree(folder)
    table = next((i for i, line in enumerate(said) if line.startswith("call ")), 0)
    return {
        "pair": name, "verdict": found.verdict,
        "as_told": (found.verdict in ("rounding", "identical")) == pair.only_rounds,
        "said": [line for line in said[table + 1 :] if not line[:1].isdigit()], "truth": pair.truth,
    }  # fmt: skip


def _accepted(task: tuple[str, str]) -> dict[str, Any]:
    from campaigns.in_models import right_functions

    name, dtype = task
    case, _ = right_functions.SPECS[name]
    spec = {"arrays": "torch", "contract": right_functions.contract_of(name, dtype), "case": {**case, "dtype": dtype}}
    found = accept(f"{right_functions.__file__}:{name}", spec, seconds=ACCEPT_S, seed=0, unsafe=True)
    why = "" if found.failure is None else str(found).partition("\n")[2]
    return {"function": name, "dtype": dtype, "verdict": found.verdict, "cases": found.cases, "why": why}
