"""What the workbench says of every case, beside what tolerances say: a process a case, several side by side."""

import json
import os
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from campaigns.real.cases import CASES, DTYPES, Case
from campaigns.real.row import write
from campaigns.real.wrong import WRONG
from workbench.bench.harness import gathered
from workbench.refusal import Refusal

SCHEMA = "workbench.linear/1"
#: seconds of a case, for the estimate
CASE_S = 20.0
#: verdicts on what is wrong: over budget, or never written
FOUND = ("bug", "missing")
#: one thread a process; the project's kernels take no other backend, and run as they are written
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "TORCHDYNAMO_DISABLE": "1", "FLA_DISABLE_BACKEND_DISPATCH": "1"}


def measure(
    checkouts: str,
    device: str = "cuda",
    jobs: int = 1,
    wrong: bool = False,
    names: Sequence[str] = (),
    dtypes: Sequence[str] = (),
    tokens: int | None = None,
    limit: float = 60.0,
    whole: float = 3600.0,
    seed: int = 0,
) -> dict[str, Any]:
    """The JSON document: a row for each kernel and dtype, forward and with gradients; `wrong`: also for each bug,
    before and after its fix.

    checkouts: a folder with a folder for each commit, named as here. tokens: T of every case; None: its own. limit:
    seconds of a process; whole: of all of them. What one has not said by then is missing, which a row says. Refusal for
    no such case, and where this process has used the device.
    """
    common = {"checkouts": str(Path(checkouts).resolve()), "device": device, "seed": seed, "T": tokens}
    each = [{**one, **common} for one in _asked(names, wrong) if not dtypes or one["dtype"] in dtypes]
    if not each:
        raise Refusal(f"no case is named {' or '.join(names)}")
    _warm()
    with tempfile.TemporaryDirectory() as folder:
        several = gathered("judge kernels of linear attention", CASE_S * len(each) / jobs,
                           _spread(each, Path(folder), jobs, limit, time.monotonic() + whole))  # fmt: skip
    return {"schema": SCHEMA, "rows": [row for rows in several for row in rows]}


def _asked(names: Sequence[str], wrong: bool) -> Iterator[dict[str, Any]]:
    """The slowest first, which are those with gradients and two references; then bugs; then all others."""
    slow = [one for one in CASES if one.gradients and len(one.references) > 1]
    yield from _right(slow, names)
    for i, bug in enumerate(WRONG if wrong else ()):
        if not names or bug.case.operation in names or bug.after in names:
            for before in (True, False) if bug.after else (True,):
                for dtype in bug.dtypes:
                    yield {"operation": bug.case.operation, "wrong": i, "before": before, "dtype": dtype}
    yield from _right([one for one in CASES if one not in slow], names)


def _right(cases: Sequence[Case], names: Sequence[str]) -> Iterator[dict[str, Any]]:
    for one in cases:
        if not names or one.operation in names:
            for dtype in one.dtypes:
                yield {"operation": one.operation, "wrong": None, "before": False, "dtype": dtype}


def _warm() -> None:
    """Loads what every process needs once: forks have it. None of it may have touched the device by then."""
    import torch
    import triton  # noqa: F401

    import workbench.operations.reference.call  # noqa: F401

    torch.set_num_threads(1)
    if torch.cuda.is_initialized():
        raise Refusal("the device was used in this process, and processes are forked from it. Run the campaign alone")


def _spread(
    each: Sequence[Mapping[str, Any]], folder: Path, jobs: int, limit: float, end: float
) -> Iterator[list[dict[str, Any]]]:
    """The rows of each case, as they end: one process each, `jobs` side by side, stopped after `limit` seconds; none
    runs after the `end`.
    """
    os.environ.update({key: x for key, x in ENVIRONMENT.items() if key not in os.environ})
    fork, waiting = get_context("fork"), [*enumerate(each)]
    running: dict[int, tuple[Any, float]] = {}
    while waiting or running:
        while waiting and len(running) < jobs:
            i, asked = waiting.pop(0)
            if time.monotonic() > end:
                yield _read(asked, folder / f"{i}.jsonl", "not begun in time")
                continue
            process = fork.Process(target=write, args=(asked, folder / f"{i}.jsonl"))
            process.start()
            running[i] = process, time.monotonic()
        time.sleep(0.05)
        for i, (process, began) in [*running.items()]:
            late = time.monotonic() > min(began + limit, end)
            if process.is_alive() and not late:
                continue
            if process.is_alive():
                process.kill()
            process.join()
            del running[i]
            why = f"not done within {limit:g} s" if late else f"ended with {process.exitcode}" * bool(process.exitcode)
            yield _read(each[i], folder / f"{i}.jsonl", why)


def _read(asked: Mapping[str, Any], file: Path, why: str) -> list[dict[str, Any]]:
    """The rows of one process, and one that says why there are no more."""
    rows = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    if why:
        said = {key: asked[key] for key in ("operation", "wrong", "before", "dtype")}
        rows.append(said | {"what": "gradients" if rows else "forward", "error": why})
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
        for what in dict.fromkeys(row["what"] for row in rows):
            for dtype in (*DTYPES, "float16"):
                some = [
                    one for one in rows if one["what"] == what and one.get("dtype") == dtype and _truth(one) == truth
                ]
                judged = [one for one in some if "error" not in one]
                if some:
                    found.append({
                        "truth": truth, "what": what, "dtype": dtype, "runs": len(some), "judged": len(judged),
                        "bug": sum(one["verdict"] in FOUND for one in judged),
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
    odd = [row for row in judged if (row["verdict"] in FOUND) != (_truth(row) == "wrong")]
    return odd or ([] if judged else [{"error": "nothing was judged"}])
