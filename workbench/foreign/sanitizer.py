"""NVIDIA's compute-sanitizer over a run of a foreign function on a GPU, and its reports as findings.

Each tool runs the function once, in a process of its own. Reports are read as the manual shows them
(docs.nvidia.com/compute-sanitizer).
"""

import inspect
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from workbench.arrays import module
from workbench.case.case import Case
from workbench.case.options import Options
from workbench.cuda.check import Checked
from workbench.cuda.emulator import Finding, merged
from workbench.cuda.gpu import look_for_gpu
from workbench.foreign.call import run_foreign
from workbench.foreign.find import find
from workbench.foreign.launches import bare
from workbench.refusal import Refusal, Unavailable

#: tool -> options; with memory between allocations, memcheck sees a read that would else hit the next array
TOOLS = {"memcheck": ["--padding", "4096"], "racecheck": [], "initcheck": [], "synccheck": []}
#: of initcheck, offered from CUDA 13.1's release on
_SHARED = ("--initcheck-address-space", "all")
TIMEOUT_S = 300.0
_MARK = "========="
_PLACE = re.compile(
    r"(?:at|Frame:)\s*(?P<function>\S.*?)\+0x[\da-f]+(?: in (?P<file>.+?):(?P<line>\d+))?"
    r"(?: \[(?P<hazards>\d+) hazards?\])?$"
)
_THREAD = re.compile(r"[Tt]hreads?(?: starting at)? \((\d+),(\d+),(\d+)\)")
_BLOCK = re.compile(r"in block \((\d+),(\d+),(\d+)\)")
_TOTAL = re.compile(r"(?:ERROR|RACECHECK) SUMMARY: (\d+) ")
#: what begins a record -> the kind of finding; the first that matches
_KINDS = (
    (re.compile(r"(Potential )?[Ii]nvalid __\w+__ "), "out-of-bounds"),
    (re.compile(r"Uninitialized "), "uninitialised-read"),
    (re.compile(r"\w+: Race reported between |.*hazard detected at "), "race"),
    (re.compile(r"Barrier error detected\. (Divergent thread\(s\) in warp|Invalid)"), "missing-lanes"),
    (re.compile(r"Barrier error detected|Barrier called by "), "divergent-barrier"),
    (re.compile(r"Syncwarp called by "), "missing-lanes"),
    (re.compile(r"Deadlock detected"), "runaway"),
)


def check(name: str, case: Case, options: Mapping[str, Any], timeout_s: float = TIMEOUT_S) -> Checked:
    """What the tools find in a run of the foreign function `name` (path.py:function) on `case`.

    `options` are `arrays`, `device` and `layout`, as of `run_foreign`. Refusal for a function that fails without a
    finding, Unavailable without a GPU or compute-sanitizer.
    """
    program = _program()
    offered = subprocess.run([program, "--help"], capture_output=True, text=True, check=True).stdout
    home = _home(find(name))
    command = [sys.executable, "-m", "workbench.foreign.sanitizer"]
    words = [*command, name, json.dumps(case.as_dict()), json.dumps({**options})]
    ran: dict[str, str] = {}
    silent: dict[str, str] = {}
    findings: list[Finding] = []
    for tool in TOOLS:
        if f"{tool} " not in offered:
            silent[tool] = f"not offered by {program}"
            continue
        shared = tool == "initcheck" and _SHARED[0] in offered
        extra = [*TOOLS[tool], *(_SHARED if shared else ())]
        report, failure = _report([program, "--tool", tool, "--report-api-errors", "no", *extra], words, timeout_s)
        found, why = read(report, home)
        if failure and not found and not why:
            raise Refusal(f"{name} failed under {tool}:\n{failure}")
        if why:
            silent[tool] = f"{why}{f': {failure}' if failure else ''}"
        else:
            ran[tool] = "global memory alone" if tool == "initcheck" and not shared else ""
        findings += found
    return Checked(
        target=name, faults=(), case=case, schedules=(), launches=0, blocks=0, findings=tuple(merged(iter(findings))),
        tools=ran, silent=silent, called_with=Options(backend="cuda", **options),
    )  # fmt: skip


def _program() -> str:
    """Path of compute-sanitizer."""
    folders = [os.environ.get("PATH", ""), "/usr/local/cuda/bin", str(Path(sys.prefix, "bin"))]
    program = shutil.which("compute-sanitizer", path=os.pathsep.join(folders))
    if program is None:
        raise Unavailable(
            "check --backend cuda needs compute-sanitizer of the CUDA toolkit (memcheck, racecheck, synccheck, "
            "initcheck), which was not found: put its folder on PATH"
        )
    if isinstance(why := look_for_gpu(), str):
        raise Unavailable(f"check --backend cuda needs an NVIDIA GPU; none was found ({why})")
    return program


def _home(function: Callable[..., Any]) -> tuple[str, int]:
    """File and line at which a function is defined: a finding without a line of its own is told there."""
    function = inspect.unwrap(function)
    _, line = inspect.getsourcelines(function)
    return str(inspect.getsourcefile(function)), line


def _report(tool: Sequence[str], words: Sequence[str], timeout_s: float) -> tuple[str, str]:
    """What a tool reports of a command, and what the command says where it fails, or the tool gives up."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "log")
        # a caching allocator would hide reads past a tensor's end
        environment = os.environ | {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
        both: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        try:
            done = subprocess.run(
                [*tool, "--log-file", str(log), *words], **both, env=environment, timeout=timeout_s, check=False
            )
            failure = done.stdout if done.returncode else ""
        except subprocess.TimeoutExpired:
            return "", f"no report within {timeout_s:.0f} s"
        return log.read_text(errors="replace") if log.exists() else "", failure


def read(report: str, home: tuple[str, int]) -> tuple[list[Finding], str]:
    """The findings of a report, and why it is none, or not complete; empty where it is. Those without a line are told
    at `home`, file and line of the function.
    """
    records: list[list[str]] = []
    for line in report.splitlines():
        text = line.strip().removeprefix(_MARK)
        if line.strip().startswith(_MARK) and text.strip():
            if text.startswith("  ") and records:
                records[-1].append(text.strip())
            else:
                records.append([text.strip()])
    found = [finding for record in records if (finding := _finding(record, home))]
    if inner := [record[0] for record in records if record[0].startswith("Internal Sanitizer Error")]:
        return found, inner[0]
    totals = [int(total) for total in _TOTAL.findall(report)]
    if not totals:
        return found, "no report"
    if totals[-1] and not found:
        return found, f"{totals[-1]} errors in a report that could not be read:\n{report}"
    return found, ""


def _finding(record: Sequence[str], home: tuple[str, int]) -> Finding | None:
    """The finding of one record, a heading and its details; None of one that is about no access of a kernel."""
    head = record[0]
    kind = next((kind for pattern, kind in _KINDS if pattern.match(head)), None)
    if kind is None:
        return None
    whole = "\n".join(record)
    if kind == "out-of-bounds" and "is misaligned" in whole:
        kind = "misaligned"
    places = [match for line in record if not line.startswith("Host Frame") and (match := _PLACE.search(line))]
    hazards = sum(int(match["hazards"] or 0) for match in places)
    known = [match for match in places if match["file"]]
    if kind != "race":
        known = known[:1]  # the others are callers
    (file, line), *others = [_located(match, home) for match in known] or [home]
    other = next((place for place in others if place != (file, line)), (None, None))
    thread, block = _THREAD.findall(whole), _BLOCK.findall(whole)
    where = places[0]["function"] if places else ""
    note = "" if known else " (no line: compile the kernel with -lineinfo)"
    details = [line for line in record[1:] if line.startswith(("Address", "and is", "Current Value"))]
    return Finding(
        kind=kind,
        array="",
        file=file,
        line=line,
        other_file=other[0],
        other_line=other[1],
        block=tuple(map(int, block[0])) if block else (),
        threads=tuple(int(x) for x, *_ in thread[:2]),
        index=(),
        count=hazards or 1,
        text="; ".join([f"{head.rstrip(' :')}{f', in {where}' if where else ''}{note}", *details]),
    )


def _located(match: re.Match[str], home: tuple[str, int]) -> tuple[str, int]:
    """File and line of a place; a file without a folder is one beside the function's."""
    file = Path(match["file"])
    beside = Path(home[0]).parent / file
    return str(beside if not file.is_absolute() and beside.exists() else file), int(match["line"])


def main(name: str, case: str, options: str) -> None:
    """Run a foreign function once, as the tools watch it."""
    said = json.loads(options)
    if said.get("arrays") == "cupy":
        module("cupy").cuda.set_allocator(None)  # as for torch
    try:
        with bare():
            run_foreign(find(name), Case(**json.loads(case)), Options(**said), name=name)
    except Refusal as refusal:
        sys.exit(str(refusal))


if __name__ == "__main__":
    main(*sys.argv[1:])
