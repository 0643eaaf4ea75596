"""Traces of our kernels at rest, for tests of what judges and shows them: a compile takes seconds, a file milliseconds.

    STORE=1 pytest tests/judge ...    records those that the tests ask for and that are missing, each of which fails
    STORE=run pytest tests/judge ...  runs the kernels instead, as campaigns do
    python -m tests.stored            runs the kernels of all that are there again, and writes the files anew
    python -m tests.stored forget ... takes out these files, which no test reads: a whole run that finds any fails

`manifest.json` names every file by what was asked: the kernel, the case, and the options of the run.
tests/test_stored.py holds them against today's kernels.
"""

import hashlib
import json
import lzma
import os
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import workbench.cuda.run as of_ours
from workbench import Case, Trace, load, run, save
from workbench.case.options import ANY, OURS, Options
from workbench.files import write_atomically

FOLDER = Path(__file__).with_name("stored")
MANIFEST = FOLDER / "manifest.json"
HOW = "STORE=1 .venv/bin/pytest -k NAME_OF_THE_TEST"
#: files that this process read for tests
READ: set[str] = set()
#: right kernels that run where no file has their trace, which would take more room than their few builds take seconds
SHARED = ("flash", "split_k")
run_kernel = of_ours.run_kernel


def stored(kernel: str | Callable[..., Any], case: Case, **options: Any) -> Trace:
    """As `workbench.run` on the emulator; the trace of a kernel of ours, and what `rerun` gives, are read from files."""
    with from_files():
        return run(kernel, case, **options if callable(kernel) else {"backend": "emulator", **options})


@contextmanager
def from_files() -> Iterator[None]:
    """Whoever runs a kernel of ours on the emulator in this process gets the trace at rest."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(of_ours, "run_kernel", at_rest)
        yield


def at_rest(name: str, case: Case, options: Options, *, guarded: bool = True, again: bool = False) -> Trace:
    """As `workbench.cuda.run.run_kernel`."""
    if os.environ.get("STORE") == "run" or of_ours.choose_backend(options.backend) == "cuda":
        return run_kernel(name, case, options, guarded=guarded, again=again)
    asked = question(name, case, options)
    file = file_of(asked)
    if file not in manifest():
        trace = run_kernel(name, case, options, guarded=guarded, again=again)
        if name in SHARED and not options.faults:
            return trace
        if os.environ.get("STORE") != "1":
            # no exception of the code under test, which may go on after any
            pytest.fail(f"no trace is stored for {json.dumps(asked)}; {HOW} records it", pytrace=False)
        record(file, asked, trace)
    READ.add(file)
    trace = read(file)

    def rerun(case: Case, inputs: Mapping[str, np.ndarray] | None = None) -> Trace:
        return at_rest(name, case, replace(options, inputs=inputs), guarded=guarded, again=True)

    anew = options.inputs is None and not options.feed
    return replace(trace, rerun=rerun if anew else None, called_with=Options())


# ------------------------------------------------------------------------------------------------------------- the files


def question(name: str, case: Case, options: Options) -> dict[str, Any]:
    """The kernel, case and options of a run as JSON, by which its file is named; arrays are given by their hashes."""
    usual, stated = Case().as_dict(), case.as_dict()
    said = {name: getattr(options, name) for name in options.given(OURS, ANY) if name != "backend"}
    return {
        "kernel": name,
        "case": {name: x for name, x in stated.items() if x != usual[name]},
        **json.loads(json.dumps(said, default=_hashed)),
    }


def _hashed(array: np.ndarray) -> str:
    content = np.ascontiguousarray(array)
    return hashlib.sha256(f"{array.dtype}{array.shape}".encode() + content.tobytes()).hexdigest()[:16]


def file_of(asked: Mapping[str, Any]) -> str:
    digest = hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()[:16]
    return f"{asked['kernel']}-{digest}.xz"


@cache
def manifest() -> dict[str, dict[str, Any]]:
    """File -> what was asked."""
    return json.loads(MANIFEST.read_text()) if MANIFEST.exists() else {}


def record(file: str, asked: dict[str, Any], trace: Trace) -> None:
    """Write a trace, and its line of the manifest; one process at a time does so."""
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "trace.safetensors")
        save(replace(trace, versions={}), path)
        (FOLDER / file).write_bytes(lzma.compress(path.read_bytes(), preset=9))
    manifest.cache_clear()  # another process may have written it
    _name({**manifest(), file: asked})


def forget(files: Collection[str]) -> None:
    """Take out traces, and their lines of the manifest."""
    for file in files:
        (FOLDER / file).unlink()
    _name({file: asked for file, asked in manifest().items() if file not in files})


def _name(files: Mapping[str, Any]) -> None:
    """Write the manifest."""
    lines = (f"{json.dumps(name)}: {json.dumps(one)}" for name, one in sorted(files.items()))
    write_atomically(MANIFEST, b"".join([b"{\n", ",\n".join(lines).encode(), b"\n}\n"]))
    manifest.cache_clear()


def read(file: str) -> Trace:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "trace.safetensors")
        path.write_bytes(lzma.decompress((FOLDER / file).read_bytes()))
        return load(path)


# ------------------------------------------------------------------------------------------------------- today's kernels


def asked_again(asked: Mapping[str, Any], trace: Trace) -> tuple[str, Case, Options]:
    """The arguments of `run_kernel` that gave a stored trace; arrays that were given are those that lie in it."""
    options = {name: x for name, x in asked.items() if name not in ("kernel", "case")}
    arrays = {**trace.inputs, **{name: trace.stages[name] for name in trace.put_in}}
    for name in ("inputs", "feed"):
        if name in options:
            options[name] = {one: arrays[one] for one in options[name]}
    case = Case(**{**Case().as_dict(), **asked["case"]})
    return asked["kernel"], case, Options(**options, backend="emulator")


def today(file: str) -> Trace:
    """What the kernel of a stored trace does today."""
    return run_kernel(*asked_again(manifest()[file], read(file)), again=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["forget"]:
        sys.exit(forget(sys.argv[2:]))
    for file, asked in list(manifest().items()):
        print(file, flush=True)
        record(file, asked, today(file))
