"""What the workbench says of every bug, before and after its fix, or of today's kernels, beside what tolerances say: a
process a run, several side by side.
"""

import json
import os
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from campaigns.real.checkout import tree
from campaigns.real.rows import CASES, NUMBERS, PROJECTS, WRONG
from campaigns.real.said import apart
from campaigns.real.tables import tables, wrong
from workbench.bench.harness import gathered
from workbench.files import write_atomically
from workbench.refusal import Refusal, unknown

__all__ = ["measure", "tables", "wrong"]
SCHEMA = "workbench.real/1"
#: seconds of a run, for the estimate
RUN_S = 20.0
#: one thread a process, and kernels as they are written
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "TORCHDYNAMO_DISABLE": "1"}


def measure(
    checkouts: str,
    device: str = "cuda",
    project: str | None = None,
    rows: Sequence[int] = (),
    names: Sequence[str] = (),
    audit: bool = False,
    dtypes: Sequence[str] = (),
    seed: int = 0,
    jobs: int = 1,
    limit: float = 60.0,
    whole: float = 3600.0,
    file: Path | None = None,
) -> dict[str, Any]:
    """The JSON document: rows of bugs before and after their fix; `audit`: of the newest commits' cases instead.

    checkouts: a folder with a clone of each project, or a folder for each commit in `<project>/`. rows: numbers of
    bugs, from 1 on; names: operations of an audit. limit: seconds of a process; whole: of all of them. What one has not
    said by then is missing, which a row says. file: has what is known after each process. Refusal for a project and for
    rows that there are not, and where this process has used the device.
    """
    if project is not None and project not in PROJECTS:
        raise Refusal(unknown("project", project, PROJECTS))
    each = [*(_audited(project, names) if audit else _bugs(project, rows))]
    each = [one for one in each if not dtypes or one["dtype"] in dtypes]
    if not each:
        raise Refusal("no row is left of what was asked")
    _warm(device)
    with tempfile.TemporaryDirectory() as folder:
        trees = _trees(Path(checkouts).resolve(), each, Path(folder))
        for i, one in enumerate(each):
            one |= {"device": PROJECTS[one["project"]].device or device, "seed": seed, "trees": trees[one["project"]]}
            one["arrays"] = None if audit else f"{folder}/{i}"
        document: dict[str, Any] = {"schema": SCHEMA, "audit": audit, "seed": seed, "device": device, "rows": []}

        def kept(some: list[dict[str, Any]]) -> None:
            document["rows"] += some
            if not audit:
                _compare(each, some, document["rows"])
            if file is not None:
                write_atomically(file, json.dumps(document).encode())

        each_process = _spread(each, Path(folder), jobs, limit, time.monotonic() + whole)
        gathered("judge real kernels", RUN_S * len(each) / jobs, map(kept, each_process))
    return document


def _bugs(project: str | None, rows: Sequence[int]) -> Iterator[dict[str, Any]]:
    for name, bug in WRONG.items():
        if (project is None or bug.project == project) and (not rows or NUMBERS[name] in rows):
            for dtype in bug.dtypes:
                for before in (True, False) if bug.after else (True,):
                    yield {"project": bug.project, "operation": bug.case.operation, "wrong": name, "before": before,
                           "dtype": dtype}  # fmt: skip


def _audited(project: str | None, names: Sequence[str]) -> Iterator[dict[str, Any]]:
    """The slowest first, which are those with gradients and two references."""
    asked = [
        (len(case.references) > 1 and case.gradients, name, case, dtype)
        for name, cases in CASES.items() if project in (None, name)
        for case in cases if not names or case.operation in names
        for dtype in case.dtypes
    ]  # fmt: skip
    for _, name, case, dtype in sorted(asked, key=lambda x: not x[0]):
        yield {"project": name, "operation": case.operation, "wrong": None, "before": False, "dtype": dtype}


def _trees(checkouts: Path, each: Iterable[Mapping[str, Any]], into: Path) -> dict[str, dict[str, str]]:
    """Project -> commit -> its folder; a commit that is not there has none, which `_missing` says."""
    found: dict[str, dict[str, str]] = {}
    for one in each:
        project, mine = PROJECTS[one["project"]], found.setdefault(one["project"], {})
        for commit in _commits(one):
            if commit not in mine and f"{commit} is missing" not in mine:
                try:
                    mine[commit] = str(tree(checkouts, project, commit, into / "trees"))
                except Refusal as refusal:
                    mine[f"{commit} is missing"] = str(refusal)
    return found


def _commits(asked: Mapping[str, Any]) -> set[str]:
    """Those that a run needs: its kernel's, and its references'."""
    newest = PROJECTS[asked["project"]].newest
    if asked["wrong"] is None:
        return {newest}
    bug = WRONG[asked["wrong"]]
    return {newest, bug.before if asked["before"] else bug.after}


def _missing(asked: Mapping[str, Any]) -> str:
    return next((why for key, why in asked["trees"].items() if key.partition(" ")[0] in _commits(asked)
                 and key.endswith(" is missing")), "")  # fmt: skip


def _warm(device: str) -> None:
    """Loads what every process needs once: forks have it. None of it may have touched the device by then."""
    os.environ.update({key: x for key, x in ENVIRONMENT.items() if key not in os.environ})
    if device == "cpu":
        os.environ.setdefault("TRITON_INTERPRET", "1")
    import torch
    import torch.fx.experimental.symbolic_shapes  # noqa: F401  # a backward pass imports it, which takes a second

    import campaigns.real.row  # noqa: F401
    import workbench.operations.reference.call  # noqa: F401

    torch.set_num_threads(1)
    if torch.cuda.is_initialized():
        raise Refusal("the device was used in this process, and processes are forked from it. Run the campaign alone")


def _spread(
    each: Sequence[Mapping[str, Any]], folder: Path, jobs: int, limit: float, end: float
) -> Iterator[list[dict[str, Any]]]:
    """The rows of each run, as they end: one process each, `jobs` side by side, stopped after `limit` seconds; none
    runs after the `end`.
    """
    from campaigns.real.row import write

    fork, waiting = get_context("fork"), [*enumerate(each)]
    running: dict[int, tuple[Any, float]] = {}
    while waiting or running:
        while waiting and len(running) < jobs:
            i, asked = waiting.pop(0)
            if why := _missing(asked) or "not begun in time" * (time.monotonic() > end):
                yield _read(asked, folder / f"{i}.jsonl", why)
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
    """The rows of one process, the last of those for the same pass, and one that says why a pass has none."""
    from campaigns.real.row import case_of

    lines = file.read_text().splitlines() if file.exists() else []
    rows = {row["what"]: row for row in map(json.loads, filter(lambda x: x.endswith("}"), lines))}
    said = {key: asked[key] for key in ("project", "operation", "wrong", "before", "dtype")}
    missing = [what for what in case_of(asked)[3] if what not in rows]
    return [*rows.values(), *(said | {"what": what, "error": why or "ended early"} for what in missing)]


def _compare(
    each: Sequence[Mapping[str, Any]], some: Sequence[Mapping[str, Any]], rows: Iterable[dict[str, Any]]
) -> None:
    """Says in the rows of a bug's wrong half how far it is from the right one, once both are there. some: rows that
    have just come; each: the runs of their bug.
    """
    files = {(one["wrong"], one["dtype"], one["before"]): one["arrays"] for one in each}
    new = {(row["wrong"], row["dtype"]) for row in some}
    for row in (row for row in rows if row["before"] and (row["wrong"], row["dtype"]) in new):
        was, now = (
            Path(f"{files.get((row['wrong'], row['dtype'], before))}.{row['what']}.npz") for before in (True, False)
        )
        if was.exists() and now.exists():
            row |= apart(was, now, WRONG[row["wrong"]].shows)
