"""The builds of our kernels that tests need, compiled before the tests are handed out: each once, those that take longest
first, on as many cores as there are processes of tests. Otherwise two of them wait for one compiler.

`make builds` runs the tests and writes which test file needs which builds, and the seconds of each, to builds.json. A
build that is not in it is compiled by the test that needs it; one that no longer exists fails the run (`tests.kept`).
"""

import importlib
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest

from tests.kept import WRONG

PLAN = Path(__file__).with_name("builds.json")
#: where each process of a run that records leaves what it compiled; set by `make builds`
RECORDED = "WORKBENCH_RECORD_BUILDS"


#: what the emulator compiles once for all kernels
SHARED = ("schedule", "aligned", "asynchronous", "clocked")


@dataclass(frozen=True)
class Planned:
    """A build, as text: what `workbench.cuda.build.build` takes, and the types of the arguments of its launch."""

    file: str
    function: str
    constants: str  #: the module of their type, a colon, their repr
    probes: Sequence[str]
    faults: Sequence[str]  #: ids
    boxed: bool
    watched: bool
    parameters: Sequence[Sequence[Any]]  #: the fields of each `Parameter`

    def compile(self) -> None:
        """Leave it in the emulator's cache on disk."""
        from workbench.cuda import build
        from workbench.cuda.emulator.arguments import Parameter
        from workbench.cuda.emulator.module import entry_of
        from workbench.cuda.faults.catalogue import CATALOGUE

        file = Path(build.__file__).with_name(self.file)
        faults = tuple(CATALOGUE[id] for id in self.faults)
        made = build.build(file, self.function, _constants(self.constants), self.probes, faults, boxed=self.boxed)
        parameters = tuple(Parameter(*one) for one in self.parameters)
        entry_of(made.for_emulator(watched=self.watched).program, parameters)


def _constants(text: str) -> Any:
    """The record that this names: the module of its type, a colon, its repr."""
    module, _, record = text.partition(":")
    return eval(record, vars(importlib.import_module(module)))


def _compiled(what: Planned | str) -> str:
    """Why a build of the plan is none of today; "" for one, or a shared module, that was compiled."""
    from workbench.cuda.emulator import launch

    try:
        if isinstance(what, str):
            launch._compiled(what)
        else:
            what.compile()
    except Exception as error:  # whatever a source that has changed since makes of it
        return f"{type(error).__name__}: {error}"
    return ""


def compile_first(plan: Sequence[dict[str, Any]], files: Sequence[str], jobs: int) -> tuple[int, list[str]]:
    """Compile the builds of these test files, or of those in these folders: how many, and why some no longer exist."""
    wanted = [one for one in plan if any(within(test, files) for test in one["tests"])]
    ordered = sorted(wanted, key=lambda one: -one["seconds"])
    builds = [Planned(**one["build"]) for one in ordered]
    if not builds:
        return 0, []
    with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
        return len(builds), [why for why in pool.map(_compiled, [*SHARED, *builds]) if why]


def asked_for(config: pytest.Config) -> list[str]:
    """The files and folders that pytest was asked for, as seen from the root."""
    here, root = config.invocation_params.dir, config.rootpath
    return [str((here / one.partition("::")[0]).resolve().relative_to(root)) for one in config.args]


def within(test: str, files: Sequence[str]) -> bool:
    """Whether a test file is one of those, or in a folder of those, that pytest was asked for."""
    return any(test == file or test.startswith(f"{file.rstrip('/')}/") for file in files)


# ------------------------------------------------------------------------------------------------------------- recording


@contextmanager
def recording(current: Any) -> Iterator[dict[Planned, dict[str, Any]]]:
    """What is compiled meanwhile: build -> its seconds and the test files that need it; `current()` names the file."""
    from workbench.cuda import build, check, run
    from workbench.cuda.emulator import launch
    from workbench.cuda.faults.catalogue import CATALOGUE

    known = {**CATALOGUE}  # a test may add one of its own, which the plan cannot name
    found: dict[Planned, dict[str, Any]] = {}
    specs: dict[int, tuple[Any, ...]] = {}
    kept: list[Any] = []
    made, emulated, entry_of = build.build, build.Build.for_emulator, launch.entry_of

    def building(file: Path, function: str, constants: Any, probes: Any, faults: Any, *, boxed: bool = False) -> Any:
        one = made(file, function, constants, probes, faults, boxed=boxed)
        if all(known.get(fault.id) is fault for fault in faults):
            said = f"{type(constants).__module__}:{constants!r}"
            specs[id(one)] = (file.name, function, said, (*probes,), tuple(fault.id for fault in faults), boxed)
            kept.append(one)
        return one

    def for_emulator(self: Any, *, watched: bool = False) -> Any:
        one = emulated(self, watched=watched)
        if id(self) in specs:
            specs[id(one.program)] = (*specs[id(self)], watched)
            kept.append(one.program)
        return one

    def compiling(program: Any, parameters: Any) -> Any:
        began = time.monotonic()
        entry = entry_of(program, parameters)
        if id(program) in specs:
            said = tuple(astuple(one) for one in parameters)
            row = found.setdefault(Planned(*specs[id(program)], said), {"seconds": 0.0, "tests": set()})
            row["seconds"] = max(row["seconds"], time.monotonic() - began)
            row["tests"].add(current())
        return entry

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "build", building)
        patch.setattr(check, "build", building)
        patch.setattr(build.Build, "for_emulator", for_emulator)
        patch.setattr(launch, "entry_of", compiling)
        yield found


def put_together(folder: Path) -> None:
    """Write the plan from what the processes of a run left."""
    rows: dict[str, dict[str, Any]] = {}
    for path in sorted(folder.glob("*.json")):
        for one in json.loads(path.read_text()):
            row = rows.setdefault(json.dumps(one["build"]), {"build": one["build"], "seconds": 0.0, "tests": set()})
            row["seconds"] = max(row["seconds"], one["seconds"])
            row["tests"] |= {*one["tests"]}
    plan = [
        {**row, "seconds": round(row["seconds"], 1), "tests": sorted(row["tests"])} for _, row in sorted(rows.items())
    ]
    PLAN.write_text("[\n" + ",\n".join(json.dumps(row) for row in plan) + "\n]\n")
    print(f"{len(plan)} builds, {sum(row['seconds'] for row in plan):.0f} s")


# ------------------------------------------------------------------------------------------------------------ the plugin


class Recorder:
    """Writes what the tests of this process compiled."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.file = folder, ""
        self.context = recording(lambda: self.file)
        self.found = self.context.__enter__()

    def pytest_runtest_protocol(self, item: pytest.Item) -> None:
        """Know the file of the test that runs."""
        self.file = item.location[0]

    def pytest_sessionfinish(self) -> None:
        """Write the file of this process."""
        self.context.__exit__(None, None, None)
        rows = [{"build": vars(one), **row, "tests": sorted(row["tests"])} for one, row in self.found.items()]
        self.folder.joinpath(f"{os.getpid()}.json").write_text(json.dumps(rows))


def pytest_configure(config: pytest.Config) -> None:
    """Record where that is asked for."""
    if folder := os.environ.get(RECORDED):
        config.pluginmanager.register(Recorder(Path(folder)), "builds")


def pytest_sessionstart(session: pytest.Session) -> None:
    """Compile what the tests need, in the process that hands them out."""
    config = session.config
    jobs = getattr(config.option, "numprocesses", None)
    recorded = RECORDED in os.environ  # what is compiled now would seem to take no time
    chosen = config.option.markexpr  # campaigns and tests of a GPU, which need other builds
    if not jobs or recorded or chosen or hasattr(config, "workerinput") or config.option.collectonly:
        return
    count, gone = compile_first(json.loads(PLAN.read_text()), asked_for(config), jobs)
    if gone:
        config.stash[WRONG] += [
            f"{len(gone)} of {count} planned builds no longer exist; `make builds` plans anew: {gone[0]}"
        ]


if __name__ == "__main__":
    put_together(Path(sys.argv[1]))
