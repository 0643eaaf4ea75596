"""What the workbench says of every case, beside what tolerances say: a process a case, several side by side."""

import json
import os
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from campaigns.linear.asked import asked, parts, truth
from campaigns.linear.faults import FAULTS
from campaigns.linear.row import heading, write
from campaigns.linear.runs import save
from campaigns.real.case import DTYPES
from campaigns.real.rows.fla_wrong import WRONG
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
    kernels: int = 4,
    runs: str | None = None,
    judged: bool = True,
    wrong: bool = False,
    faults: bool = False,
    forward: bool = False,
    names: Sequence[str] = (),
    dtypes: Sequence[str] = (),
    tokens: int | None = None,
    limit: float = 60.0,
    whole: float = 3600.0,
    seed: int = 0,
) -> dict[str, Any]:
    """The JSON document: a row for each kernel and dtype, forward and with gradients; `wrong`: also for each bug,
    before and after its fix; `faults`: of these instead; `forward`: of
    results alone.

    checkouts: a folder with a folder for each commit, named as here. kernels: how many of the `jobs` processes run
    kernels at once. runs: a folder in which runs are kept; those that are there are judged, and their kernels do not
    run again. judged: whether they are. tokens: T of every case; None: its own. limit: seconds of a process; whole: of
    all of them. What one has not said by then is missing, which a row says. Refusal for no such case, and where this
    process has used the device.
    """
    common = {"checkouts": str(Path(checkouts).resolve()), "device": device, "seed": seed, "T": tokens,
              "forward": forward}  # fmt: skip
    each = [{**one, **common} for one in asked(names, wrong, faults) if not dtypes or one["dtype"] in dtypes]
    if not each:
        raise Refusal(f"no case is named {' or '.join(names)}")
    _warm()
    with tempfile.TemporaryDirectory() as folder:
        kept = Path(runs or folder)
        kept.mkdir(parents=True, exist_ok=True)
        tasks = [_Task(one, {what: kept / _file(one, what) for what in parts(one)}, Path(folder)) for one in each]
        rows = gathered("judge kernels of linear attention", CASE_S * len(each) / jobs,
                        _spread(tasks, judged, jobs, kernels, limit, time.monotonic() + whole))  # fmt: skip
    return {"schema": SCHEMA, "rows": rows}


def _file(asked: Mapping[str, Any], what: str) -> str:
    """The name of the file of a run."""
    row = heading(asked, what)
    state = "" if row["wrong"] is None else f"-{row['wrong']}-{'before' if row['before'] else 'after'}"
    state += "" if row["fault"] is None else f"-fault-{row['fault']}"
    return f"{row['operation']}{state}-{row['dtype']}-{row['T']}-{what}-{asked['seed']}.run".replace(" ", "-")


def _warm() -> None:
    """Loads what every process needs once: forks have it. None of it may have touched the device by then."""
    import torch
    import torch.fx.experimental.symbolic_shapes  # noqa: F401  # a backward pass imports it, which takes a second
    import triton  # noqa: F401

    import workbench.operations.reference.call  # noqa: F401

    torch.set_num_threads(1)
    if torch.cuda.is_initialized():
        raise Refusal("the device was used in this process, and processes are forked from it. Run the campaign alone")


@dataclass
class _Task:
    """A process: a kernel on the device, or the judgement of one of its runs."""

    asked: Mapping[str, Any]
    files: Mapping[str, Path]  #: what is judged -> the file of its run
    folder: Path  #: of rows
    what: str = ""  #: which of these is judged; empty of a kernel
    process: Any = None
    began: float = 0.0

    @property
    def row(self) -> Path:
        """The file of what is said of a run."""
        return self.folder / f"{self.files[self.what].name}.row"

    @property
    def missing(self) -> dict[str, Path]:
        """Of its files those that are not there."""
        return {what: x for what, x in self.files.items() if not x.exists()}

    def judgements(self) -> list["_Task"]:
        """What is to be judged of runs that are there."""
        return [replace(self, what=what) for what, x in self.files.items() if x.exists()]

    def start(self) -> None:
        args = (self.asked, self.what, self.files[self.what], self.row) if self.what else (self.asked, self.files)
        self.process = get_context("fork").Process(target=write if self.what else save, args=args)
        self.began = time.monotonic()
        self.process.start()


def _spread(
    runs: list[_Task], judged: bool, jobs: int, kernels: int, limit: float, end: float
) -> Iterator[dict[str, Any]]:
    """The rows, as they end: a process for a kernel, and then one for what is judged of it; `jobs` side by side, of
    which so many are kernels. One is stopped after `limit` seconds; none runs after the `end`.
    """
    os.environ.update({key: x for key, x in ENVIRONMENT.items() if key not in os.environ})
    judgements, running = [one for task in runs for one in task.judgements()] * judged, list[_Task]()
    runs = [replace(task, files=task.missing) for task in runs if task.missing]
    while runs or judgements or running:
        while (runs or judgements) and len(running) < jobs:
            if runs and sum(not one.what for one in running) < kernels:
                task = runs.pop(0)
            elif judgements:
                task = judgements.pop(0)
            else:
                break
            if time.monotonic() > end:
                yield from _missing(task, "not begun in time")
                continue
            task.start()
            running.append(task)
        time.sleep(0.02)
        for task in [*running]:
            late = time.monotonic() > min(task.began + limit, end)
            if task.process.is_alive() and not late:
                continue
            if task.process.is_alive():
                task.process.kill()
            task.process.join()
            running.remove(task)
            late = late and task.process.exitcode != 0
            why = f"not done within {limit:g} s" if late else f"ended with {task.process.exitcode}"
            if not task.what:
                judgements += task.judgements() * judged
                yield from _missing(replace(task, files=task.missing), why)
            elif task.row.exists():
                yield json.loads(task.row.read_text())
            else:
                yield from _missing(task, why)


def _missing(task: _Task, why: str) -> Iterator[dict[str, Any]]:
    """Rows that say why there are none."""
    for what in [task.what] if task.what else task.files:
        yield heading(task.asked, what) | {"error": why}


def tables(found: Mapping[str, Any]) -> list[list[dict[str, Any]]]:
    """Right kernels, wrong ones before and after their fix, then counts."""
    rows = found["rows"]
    right = [_shown(row) for row in rows if row["wrong"] is None and row["fault"] is None]
    wrong = [_of_bug(row) for row in rows if row["wrong"] is not None]
    faults = [{"fault": FAULTS[row["fault"]].fault or "none"} | _shown(row) for row in rows if row["fault"] is not None]
    return [some for some in (right, wrong, faults, _counts(rows)) if some]


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
    for kind in ("right", "wrong"):
        for what in dict.fromkeys(row["what"] for row in rows):
            for dtype in (*DTYPES, "float16"):
                some = [
                    one
                    for one in rows
                    if one["what"] == what and one.get("dtype") == dtype and truth(one, what) == kind
                ]
                judged = [one for one in some if "error" not in one]
                if some:
                    found.append({
                        "truth": kind, "what": what, "dtype": dtype, "runs": len(some), "judged": len(judged),
                        "bug": sum(one["verdict"] in FOUND for one in judged),
                        "suspicious": sum(one["verdict"] == "suspicious" for one in judged),
                        "untestable": sum(one["verdict"] == "untestable" for one in judged),
                        "assert_close fails": sum(one["assert_close"] is False for one in judged),
                        "own tests fail": sum(one["own_test"] is False for one in judged),
                    })  # fmt: skip
    return found


def wrong(found: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Runs whose verdict is not as the truth says, and those without one; none at all is wrong, too."""
    rows = found["rows"]
    odd = [row for row in rows if (row.get("verdict") in FOUND) != (truth(row, row["what"]) == "wrong")]
    return [*odd, *(row for row in rows if "error" in row and row not in odd)] or (
        [] if rows else [{"error": "no rows"}]
    )
