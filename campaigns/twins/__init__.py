"""Functions written from README.md alone, 15 wrong and 15 right, each with true facts of a contract: `diff` of each.

`truths.json` was written before the first run: what is wrong, where, and what may be said of it.
"""

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

from campaigns.spread import spread
from workbench.bench.harness import gathered

SCHEMA = "workbench.twins/1"
HERE = Path(__file__).parent
# measured on 2 cores, for an estimate only
RUN_S = 4.0


def measure(jobs: int = 1, names: tuple[str, ...] = ()) -> dict[str, Any]:
    """A row for each function (all, or those of `names`): its truth, and the verdict, exit code, first wrong stage and
    cause of `diff`; `false` counts wrong functions that pass and right ones that fail. What a row says of a cause is
    held against its truth by a reader.
    """
    truths = [one for one in json.loads((HERE / "truths.json").read_text()) if not names or one["name"] in names]
    rows = gathered("diff of twins", RUN_S * len(truths) / jobs, spread(_row, truths, jobs))
    wrong = [row["name"] for row in rows if (row["truth"] == "wrong") != (row["exit_code"] == 1)]
    return {"schema": SCHEMA, "functions": len(rows), "false": wrong, "rows": rows}


def tables(results: dict[str, Any]) -> list[list[dict[str, Any]]]:
    """What each was called, then how many wrongly."""
    shown = [
        {name: row[name] for name in ("name", "truth", "exit_code", "verdict", "stage", "first_wrong", "cause")}
        for row in results["rows"]
    ]
    return [shown, [{"functions": results["functions"], "falsely called": ", ".join(results["false"]) or "none"}]]


def _row(truth: dict[str, Any]) -> dict[str, Any]:
    words = shlex.split(truth["command"].replace("kernels.py", str(HERE / "kernels.py")))[1:]
    said, document = (_ran([*words, *more]) for more in ((), ("--json",)))
    found = json.loads(document.stdout)
    return {
        "name": truth["name"],
        "truth": truth["verdict"],
        "wrong": truth["wrong"],
        "stage": truth["first_visible_stage"],
        "exit_code": said.returncode,
        "verdict": found["verdict"],
        "first_wrong": found["origin"] or "",
        "cause": "; ".join(line.split("cause: ")[1] for line in said.stdout.splitlines() if "cause: " in line),
        "said": said.stdout,
    }


def _ran(words: list[str]) -> subprocess.CompletedProcess[str]:
    start = [sys.executable, "-c", "from workbench.cli.main import main; main()"]
    done = subprocess.run([*start, *words], capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1) or not done.stdout:
        raise RuntimeError(f"{shlex.join(words)}: exit code {done.returncode}: {done.stderr}")
    return done
