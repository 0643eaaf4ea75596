"""The watched emulator beside NVIDIA's compute-sanitizer: which fault is found by whom, with a line or not, how fast.

Every fault that a watched run finds is put in and run under each tool, in a process of its own, and so are the kernels
without a fault, in which nothing must be found. A tool has the line where its report names one that the emulator's
finding names. Seconds are those of a whole process: with everything compiled in it on both sides, and for the emulator
also of a second one, which finds the compiled code on disk; under a tool, numba.cuda compiles anew each time.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import campaigns.faults  # noqa: F401  (the whole catalogue)
from workbench.bench.harness import gathered
from workbench.case.case import Case
from workbench.case.options import Options
from workbench.cuda.check import check
from workbench.cuda.faults.catalogue import CATALOGUE
from workbench.cuda.gpu import gpu
from workbench.cuda.kernels import KERNELS
from workbench.cuda.run import run_kernel, versions
from workbench.foreign.sanitizer import TOOLS
from workbench.refusal import Unavailable

SCHEMA = "workbench.bench-sanitizer/1"
#: a report's total, and the places that reports name
SUMMARY = re.compile(r"(?:ERROR SUMMARY: |RACECHECK SUMMARY: )(\d+) (?:error|hazard)")
PLACE = re.compile(r"([\w.]+\.py):(\d+)")
TIMEOUT_S = 60


def measure(jobs: int = 0) -> dict[str, Any]:
    """The JSON document of one run of the comparison; `jobs` processes at a time, half the CPUs when 0.

    A row has the fault ("" for none), the kernel, and for `emulator` and each tool: `found` (null where the tool gave
    no report, as when the kernel hangs for TIMEOUT_S), `line` (whether it names a line of the finding; null where
    nothing is found) and `seconds`; `emulator` has `cached_seconds` too. Unavailable without compute-sanitizer or GPU.
    """
    program = shutil.which("compute-sanitizer")
    if program is None or gpu() is None:
        raise Unavailable("the comparison needs a GPU and the CUDA toolkit's compute-sanitizer; one is missing")
    pairs = [("", name) for name in KERNELS] + [(f.id, f.kernel) for f in CATALOGUE.values() if f.finding]
    tools = [[tool, *options] for tool, options in TOOLS.items()]
    commands = [
        [*prefix, sys.executable, "-m", "campaigns.sanitizer", kernel, fault, where]
        for fault, kernel in pairs
        for prefix, where in [([], "emulator"), *(([program, "--tool", *tool], "cuda") for tool in tools)]
    ]
    workers = jobs or max(1, (os.cpu_count() or 2) // 2)
    with ThreadPoolExecutor(workers) as pool:
        name, estimate_s = f"run {len(commands)} processes", 20.0 * len(commands) / workers
        results = gathered(name, estimate_s, pool.map(_timed, commands))
    width = 1 + len(TOOLS)
    rows = [_row(pair, results[width * i : width * (i + 1)]) for i, pair in enumerate(pairs)]
    version = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout
    return {
        "schema": SCHEMA,
        "versions": {**versions("cuda"), "compute-sanitizer": re.findall(r"Version (\S+)", version)[0]},
        "rows": rows,
    }


def _timed(command: list[str]) -> tuple[str, list[float]]:
    """What a command prints, on both streams, and the seconds it takes; of the emulator twice."""
    both: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    with tempfile.TemporaryDirectory() as cache:
        seconds = []
        for _ in range(2 if "emulator" in command else 1):
            started = time.perf_counter()
            environment = os.environ | {"WORKBENCH_CACHE": cache}
            try:
                output = subprocess.run(command, **both, text=True, timeout=TIMEOUT_S, env=environment).stdout
            except subprocess.TimeoutExpired:
                output = ""
            seconds.append(time.perf_counter() - started)
        return output, seconds


def _row(pair: tuple[str, str], results: Sequence[tuple[str, list[float]]]) -> dict[str, Any]:
    fault, kernel = pair
    (own, (cold_s, cached_s)), *others = results
    places = {tuple(place) for place in json.loads(own.splitlines()[-1])}
    row: dict[str, Any] = {"fault": fault, "kernel": kernel}
    row["emulator"] = {"found": bool(places), "line": True if places else None, "seconds": cold_s}
    row["emulator"]["cached_seconds"] = cached_s
    for tool, (output, (seconds,)) in zip(TOOLS, others, strict=True):
        totals = [int(total) for total in SUMMARY.findall(output)]
        found = sum(totals) > 0 if totals else None
        named = {(file, int(line)) for file, line in PLACE.findall(output)}
        row[tool] = {"found": found, "line": bool(named & places) if found else None, "seconds": seconds}
    return row


def tables(results: dict[str, Any]) -> list[list[dict[str, Any]]]:
    """The document as tables for a screen: rows of equal columns."""
    rows = []
    for row in results["rows"]:
        cells = {name: _text(cell) for name, cell in row.items() if isinstance(cell, dict)}
        rows.append({"fault": row["fault"] or "none", "kernel": row["kernel"], **cells})
    return [rows, [results["versions"]]]


def _text(cell: dict[str, Any]) -> str:
    """One cell of a row in words: found with or without a line, not found, or no report; and seconds."""
    words = {None: "no report", False: "-", True: "found, line" if cell["line"] else "found"}[cell["found"]]
    cached = f", {cell['cached_seconds']:.0f} s cached" if "cached_seconds" in cell else ""
    return f"{words} ({cell['seconds']:.0f} s{cached})"


def main(kernel: str, fault: str, where: str) -> None:
    """Run one kernel: on the GPU, or watched, with the findings' places as JSON in the last line."""
    length = (CATALOGUE[fault].seqlen if fault else None) or 128
    options: dict[str, Any] = {"seqlen_q": length, "seqlen_k": length, "heads": 2, "causal": True}
    options |= {"head_dim": 32, "block_q": 32, "block_k": 32, "splits": 3 if KERNELS[kernel].splits else None}
    options["dtype"] = KERNELS[kernel].dtypes[0]
    case = Case(**options | dict(CATALOGUE[fault].needs if fault else {}))
    faults = [fault] if fault else []
    if where == "cuda":
        run_kernel(kernel, case, Options(faults=faults, probes="output", backend="cuda"), guarded=False)
        return
    findings = check(kernel, case, faults=faults, probes="output").findings
    places = [(f.file, f.line) for f in findings] + [(f.other_file, f.other_line) for f in findings if f.other_file]
    sys.stdout.write(json.dumps([(os.path.basename(file), line) for file, line in places]) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
