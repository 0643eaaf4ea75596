"""What the workbench says of every case, beside what tolerances say: a process a case, several side by side."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from campaigns.linear.cases import CASES, DTYPES
from campaigns.linear.wrong import WRONG
from workbench.bench.harness import gathered
from workbench.refusal import Refusal

SCHEMA = "workbench.linear/1"
#: seconds of a case, for the estimate
CASE_S = 20.0
#: one thread a process; the project's own autotuner reads no cache, its kernels take no other backend
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "TORCHDYNAMO_DISABLE": "1", "FLA_DISABLE_BACKEND_DISPATCH": "1"}


def measure(
    checkouts: str,
    device: str = "cuda",
    jobs: int = 1,
    wrong: bool = False,
    names: Sequence[str] = (),
    dtypes: Sequence[str] = DTYPES,
    tokens: int | None = None,
    limit: float = 60.0,
    seed: int = 0,
) -> dict[str, Any]:
    """The JSON document: a row for each kernel and dtype, forward and with gradients; `wrong`: also for each bug, before
    and after its fix.

    checkouts: a folder with a folder for each commit, named as here. tokens: T of every case; None: its own. limit: seconds of a process; what it has not said
    by then is missing, which a row says. Refusal for a checkout that is not there.
    """
    asked = [*_asked(names, wrong)]
    common = {"checkouts": str(Path(checkouts).resolve()), "device": device, "seed": seed, "T": tokens}
    each = [{**one, **common, "dtypes": [x for x in one["dtypes"] if x in dtypes]} for one in asked]
    each = [one for one in each if one["dtypes"]]
    if not each:
        raise Refusal(f"no case is named {' or '.join(names)}")
    with ThreadPoolExecutor(jobs) as pool, tempfile.TemporaryDirectory() as folder:
        made = pool.map(lambda pair: _process(*pair, Path(folder), limit), enumerate(each))
        several = gathered("judge kernels of linear attention", CASE_S * len(each) / jobs, made)
    return {"schema": SCHEMA, "rows": [row for rows in several for row in rows]}


def _asked(names: Sequence[str], wrong: bool) -> Iterator[dict[str, Any]]:
    for one in CASES:
        if not names or one.operation in names:
            yield {"operation": one.operation, "wrong": None, "before": False, "dtypes": one.dtypes}
    for i, bug in enumerate(WRONG if wrong else ()):
        if not names or bug.case.operation in names or bug.after in names:
            for before in (True, False) if bug.after else (True,):
                yield {"operation": bug.case.operation, "wrong": i, "before": before, "dtypes": bug.dtypes}


def _process(i: int, asked: Mapping[str, Any], folder: Path, limit: float) -> list[dict[str, Any]]:
    """The rows of one process, and one that says why there are no more."""
    file = folder / f"{i}.jsonl"
    file.touch()
    command = [sys.executable, "-W", "ignore", "-m", "campaigns.linear.row", json.dumps(asked), str(file)]
    why = ""
    try:
        done = subprocess.run(
            command, env={**ENVIRONMENT, **os.environ}, capture_output=True, text=True, timeout=limit, check=False
        )
        if done.returncode:
            why = f"ended with {done.returncode}: {done.stderr.strip().splitlines()[-1:]}"
    except subprocess.TimeoutExpired:
        why = f"not done within {limit:g} s"
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    if why:
        rows.append({key: asked[key] for key in ("operation", "wrong", "before")} | {"what": "process", "error": why})
    return rows


def tables(found: Mapping[str, Any]) -> list[list[dict[str, Any]]]:
    """Right kernels, wrong ones before and after their fix, then counts."""
    rows = found["rows"]
    right = [_shown(row) for row in rows if row["wrong"] is None]
    wrong = [_of_bug(row) for row in rows if row["wrong"] is not None]
    return [some for some in (right, wrong, _counts(rows)) if some]


def _shown(row: Mapping[str, Any]) -> dict[str, Any]:
    said = {"operation": row["operation"], "dtype": row.get("dtype", ""), "T": row.get("T", ""), "what": row["what"]}
    if "error" in row:
        return said | dict.fromkeys(("verdict", *_COLUMNS), "") | {"verdict": "none", "decided by": row["error"][:60]}
    seconds = row["seconds"]
    return said | {
        "verdict": row["verdict"], "doubt": row["doubt"], "decided by": _decided(row),
        "error / budget": f"{row['over_budget']:.3g}", "first wrong": row["origin"] or "",
        "kernel s": f"{seconds['kernel']:.2g}", "reference s": f"{seconds['reference']:.2g}",
        "judge s": f"{seconds['judge']:.2g}", "assert_close": _passes(row["assert_close"]),
        "RMS": "" if row["rms"] is None else f"{row['rms']:.2g}", "own tests": _passes(row["own_test"]),
    }  # fmt: skip


_COLUMNS = (
    "doubt", "decided by", "error / budget", "first wrong", "kernel s", "reference s", "judge s", "assert_close", "RMS",
    "own tests",
)  # fmt: skip


def _decided(row: Mapping[str, Any]) -> str:
    """The reference and the contract under which it was judged."""
    return f"{row['reference']} {row['contract'] or row['declared']}"


def _passes(found: bool | None) -> str:
    return "" if found is None else "passes" if found else "fails"


def _of_bug(row: Mapping[str, Any]) -> dict[str, Any]:
    bug = WRONG[row["wrong"]]
    return {
        "commit": bug.after,
        "state": "before" if row["before"] else "after",
        "shows": " ".join(bug.shows),
    } | _shown(row)


def _counts(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """How many of each kind were judged, and how."""
    found = []
    for truth in ("right", "wrong"):
        for what in dict.fromkeys(row["what"] for row in rows if row["what"] != "process"):
            for dtype in DTYPES:
                some = [
                    one for one in rows if one["what"] == what and one.get("dtype") == dtype and _truth(one) == truth
                ]
                judged = [one for one in some if "error" not in one]
                if some:
                    found.append({
                        "truth": truth, "what": what, "dtype": dtype, "runs": len(some), "judged": len(judged),
                        "bug": sum(one["verdict"] == "bug" for one in judged),
                        "suspicious": sum(one["verdict"] == "suspicious" for one in judged),
                        "untestable": sum(one["verdict"] == "untestable" for one in judged),
                        "assert_close fails": sum(one["assert_close"] is False for one in judged),
                        "own tests fail": sum(one["own_test"] is False for one in judged),
                    })  # fmt: skip
    return found


def _truth(row: Mapping[str, Any]) -> str:
    """Whether the run is of a wrong kernel, or reference; a bug of the backward pass leaves the forward pass right."""
    if row["wrong"] is None or not row["before"]:
        return "right"
    return "wrong" if row["what"] in WRONG[row["wrong"]].wrong_in else "right"


def wrong(found: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Runs whose verdict is not as the truth says; none where nothing was judged is wrong, too."""
    judged = [row for row in found["rows"] if "error" not in row]
    odd = [row for row in judged if (row["verdict"] == "bug") != (_truth(row) == "wrong")]
    return odd or ([] if judged else [{"error": "nothing was judged"}])
