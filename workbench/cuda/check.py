"""Run a kernel of ours on the emulator with every access watched, and report what a GPU cannot show."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from workbench.case.case import Case
from workbench.case.options import Options
from workbench.cuda import emulator
from workbench.cuda.arrays import viewed
from workbench.cuda.build import Build, build
from workbench.cuda.emulator import Finding
from workbench.cuda.faults.catalogue import chosen
from workbench.cuda.faults.fault import applied
from workbench.cuda.kernels import KERNELS, OF_OPERATIONS
from workbench.cuda.plan import launches, plan
from workbench.cuda.schedules import Schedule, schedules_of
from workbench.shown import shown_by

#: kinds of findings that end a launch; they come first, since others may follow from them
_STOPPING = (
    *("divergent-barrier", "missing-lanes", "runaway", "misaligned"),
    *("uninitialised-barrier", "reinitialised-barrier"),
)


@dataclass(frozen=True)
class Checked:
    """What was found."""

    target: str
    faults: tuple[str, ...]
    case: Case | None  #: with its tiles and splits; None of a function that takes none, and of other operations
    schedules: tuple[Schedule, ...]
    launches: int  #: of kernel functions in one run
    blocks: int  #: that those launch
    findings: tuple[Finding, ...]
    tools: Mapping[str, str] = field(default_factory=dict)  #: on a GPU: tool that reported -> what it is limited to
    silent: Mapping[str, str] = field(default_factory=dict)  #: on a GPU: tool -> why it gave no whole report
    called_with: Options | None = None  #: of a foreign function: backend, arrays, device and layout
    words: tuple[str, ...] = ()  #: the command line's, for the case of an operation beside attention

    @property
    def passed(self) -> bool:
        """Whether nothing was found, and everyone who was to look did."""
        return not self.findings and not self.silent

    def line(self, file: str, number: int) -> str:
        """The text of a line of the source, with the faults put in; empty where it cannot be read."""
        if not Path(file).is_file():
            return ""
        text = Path(file).read_text()
        kernel = KERNELS.get(self.target) or OF_OPERATIONS.get(self.target)
        if kernel is not None and Path(file) in kernel.functions.values():
            text = applied(text, kernel.faults_of(Path(file), chosen(self.faults, self.target)), Path(file).name)
        return text.splitlines()[number - 1].strip()

    def as_dict(self) -> dict[str, Any]:
        """The document of `workbench check --json`, of plain Python values."""
        return shown_by("findings.check_document", self)

    def __str__(self) -> str:
        return shown_by("findings.in_short", self)

    def _repr_html_(self) -> str:
        return shown_by("findings.html_report", self)


def check(name: str, case: Case, *, faults: Sequence[str] = (), probes: str = "all", schedules: int = 1) -> Checked:
    """What a watched run of kernel `name` on `case` finds: nothing, of a correct kernel.

    Every access of shared, local and global memory is checked: uninitialised-read, race, out-of-bounds, misaligned,
    second-write (of an output or of a dumped stage), unwritten-output; and divergent-barrier, missing-lanes, runaway.
    The run is repeated under `schedules` orders of blocks and threads; where they give other bits, that is
    order-dependent.

    `faults` and `probes` (all, lean, output) as in `workbench.run`. Refusal for a case or a fault that the kernel
    cannot take.
    """

    def run() -> WatchedRun:
        made = plan(name, case, Options(faults=faults, probes=probes))
        started = []
        for function, grid, _ in launches(made.trace.case, made.kernel):
            file = made.kernel.functions[function]
            put_in = made.kernel.faults_of(file, made.faults)
            built = build(file, function, made.constants, made.trace.requested, put_in)
            arguments = made.arguments(built, viewed(made.arrays, made.views))
            dynamic = made.kernel.dynamic_bytes(made.constants, function)
            started.append(WatchedLaunch(built, grid, made.constants.threads, arguments, dynamic))
        return WatchedRun(started, made.arrays, made.inputs, made.exempt, made.trace.case)

    return under(schedules_of(schedules), run, name, faults)


def merged_findings(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Those of all runs, each place once, those first that others may follow from."""
    return tuple(sorted(emulator.merged(iter(findings)), key=lambda finding: finding.kind not in _STOPPING))


class WatchedLaunch(NamedTuple):
    """One launch of a watched run."""

    build: Build
    grid: tuple[int, int, int]
    threads: int
    arguments: Sequence[Any]
    dynamic: int = 0  #: bytes of shared memory that it asks for


class WatchedRun(NamedTuple):
    """What one run of a kernel launches, with fresh buffers."""

    launches: Sequence[WatchedLaunch]
    arrays: Mapping[str, np.ndarray]
    filled: Collection[str]  #: those that the host has written
    exempt: Callable[[str], np.ndarray | None]  #: elements of another that nobody need write
    case: Case | None = None  #: with its tiles and splits
    any_order: tuple[str, ...] = ()  #: arrays whose bits depend on the order of blocks


def under(tried: Sequence[Schedule], run: Callable[[], WatchedRun], name: str, faults: Sequence[str]) -> Checked:
    """What watched runs of a kernel find, one under each schedule; arrays are compared with those of the first."""
    findings: list[Finding] = []
    first: WatchedRun | None = None
    for schedule in tried:
        made = run()
        found, stores = watched(made, schedule)
        findings += found
        first = first or made
        if not findings:
            ordered = {one: x for one, x in first.arrays.items() if one not in first.any_order}
            findings += differences(ordered, made.arrays, stores)
    assert first is not None
    blocks = sum(int(np.prod(launch.grid)) for launch in first.launches)
    launched = len(first.launches)
    return Checked(name, tuple(faults), first.case, tuple(tried), launched, blocks, merged_findings(findings))


def watched(run: WatchedRun, schedule: Schedule) -> tuple[list[Finding], dict[str, str]]:
    """Findings of one run of all launches, or until one of them is given up; and ``file:line`` of the store to each of
    the arrays.
    """
    memory = emulator.Memory()
    for name, array in run.arrays.items():
        memory.add(array, written=name in run.filled, once=name not in run.filled)
    outputs: dict[str, tuple[emulator.Program, str]] = {}
    for built, grid, threads, arguments, dynamic in run.launches:
        kernel = built.for_emulator(watched=True)
        kernel(grid, threads, arguments, dynamic_shared_bytes=dynamic, memory=memory, **vars(schedule))
        if memory.abandoned:
            return memory.findings, {}
        names = {name: name for name in built.parameters} | {f"probe_{stage}": stage for stage in built.probes}
        for parameter, name in names.items():
            outputs.setdefault(name, (kernel.program, parameter))
    for name, (program, parameter) in outputs.items():
        if name not in run.arrays:
            continue
        if finding := memory.unwritten(program, parameter, run.arrays[name], run.exempt(name)):
            memory.findings.append(finding)
    return memory.findings, {name: program.store(parameter) for name, (program, parameter) in outputs.items()}


def differences(
    first: Mapping[str, np.ndarray], other: Mapping[str, np.ndarray], stores: Mapping[str, str]
) -> list[Finding]:
    """Findings for the arrays in which two runs of a kernel differ."""
    findings = []
    for name, array in first.items():
        differs = np.argwhere(array.view(np.uint8) != other[name].view(np.uint8))
        if len(differs):
            text = f"{name} has different bits under another order of blocks and threads"
            index = tuple(int(i) for i in differs[0][:-1])
            file, line = emulator.located(stores[name])
            findings.append(Finding("order-dependent", name, file, line, None, None, (), (), index, len(differs), text))
    return findings
