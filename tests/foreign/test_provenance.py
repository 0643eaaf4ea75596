"""What code ran: its files, whether it is stale, whether it repeats; and that what is wrong stands above the verdict."""

import ctypes
import hashlib
import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import ml_dtypes
import numpy as np
import pytest
from click.testing import CliRunner

from workbench import Case, Refusal, diff, load, run, save
from workbench.cli.main import commands
from workbench.files import package_folders
from workbench.foreign.collect import failed, files, of_run
from workbench.foreign.find import find
from workbench.trace.provenance import File, Provenance
from workbench.trace.stale import since

CASE = Case(seqlen=16, head_dim=8, block_q=16, block_k=16)
ARGUMENTS = ["--seqlen", "16", "--head-dim", "8"]
PREVIOUS = "previous.safetensors"


def file(path: str, sha256: str, *, loaded: bool = True) -> File:
    return File(path, sha256, "2026-01-02T03:04:05Z", loaded)


def of(*some: File, **repeated: bool | int | None) -> Provenance:
    return Provenance(some, "cpu", "", {}, **repeated)  # type: ignore[arg-type]


SOURCE, OBJECT = file("/a/mine.cu", "1", loaded=False), file("/a/mine.so", "2" * 64)


def test_nothing_changed() -> None:
    assert since(of(SOURCE, OBJECT), of(SOURCE, OBJECT), PREVIOUS, moved=False) == (
        (),
        f"since {PREVIOUS}: no file changed",
    )


def test_a_source_that_changed_alone_is_stale() -> None:
    gates, remark = since(of(replace(SOURCE, sha256="9"), OBJECT), of(SOURCE, OBJECT), PREVIOUS, moved=False)
    assert remark == f"since {PREVIOUS}: changed: mine.cu"
    assert gates == (
        f"stale: mine.cu changed since {PREVIOUS}, but the compiled code is unchanged: mine.so (sha256 22222222, of "
        "2026-01-02T03:04:05Z). The old code was judged: rebuild it",
    )


@pytest.mark.parametrize(
    "now",
    [
        of(replace(SOURCE, sha256="9"), replace(OBJECT, sha256="8")),
        of(SOURCE, replace(OBJECT, sha256="8")),
        of(replace(SOURCE, sha256="9")),
    ],
    ids=["rebuilt", "built anew", "compiled at run time"],
)
def test_what_was_rebuilt_is_not_stale(now: Provenance) -> None:
    assert since(now, of(SOURCE, OBJECT), PREVIOUS, moved=False)[0] == ()


def test_of_two_extensions_the_one_of_the_source_is_stale() -> None:
    other = file("/a/other.so", "3")
    now = of(replace(SOURCE, sha256="9"), OBJECT, replace(other, sha256="8"))
    (gate,), _ = since(now, of(SOURCE, OBJECT, other), PREVIOUS, moved=False)
    assert "mine.so" in gate and "other.so" not in gate
    rebuilt = of(replace(SOURCE, sha256="9"), replace(OBJECT, sha256="8"), other)
    assert since(rebuilt, of(SOURCE, OBJECT, other), PREVIOUS, moved=False)[0] == ()


def test_other_numbers_are_of_other_code_but_for_the_extension_of_the_source() -> None:
    """A kernel that is compiled at run time, beside an extension of something else."""
    now, before = of(replace(SOURCE, sha256="9"), file("/a/other.so", "3")), of(SOURCE, file("/a/other.so", "3"))
    assert len(since(now, before, PREVIOUS, moved=False)[0]) == 1 and since(now, before, PREVIOUS, moved=True)[0] == ()
    stale = since(of(replace(SOURCE, sha256="9"), OBJECT), of(SOURCE, OBJECT), PREVIOUS, moved=True)
    assert len(stale[0]) == 1 and "mine.so" in stale[0][0]


def test_a_python_source_is_what_runs() -> None:
    script = file("/a/mine.py", "4")
    assert since(of(replace(script, sha256="9"), OBJECT), of(script, OBJECT), PREVIOUS, moved=False) == (
        (),
        f"since {PREVIOUS}: changed: mine.py",
    )


def test_what_stands_above_a_verdict() -> None:
    assert failed(of(OBJECT), "f") == failed(of(OBJECT, runs=3, identical=True, plain_agrees=True), "f") == ()
    assert failed(of(OBJECT, runs=3, identical=False), "f") == (
        "f gives different bits from run to run (3 runs); the first run is judged",
    )
    assert failed(of(OBJECT, plain_agrees=False), "f") == (
        "f gives different bits with and without probes; the probed kernel is judged, not the plain one",
    )
    assert failed(of(replace(OBJECT, sha256="")), "f") == (
        "mine.so was replaced on disk after loading, and the old version ran: restart",
    )


PLAIN = """
import numpy as np
import beside
calls = 0
def attention(q, k, v, *, scale, causal):
    global calls
    calls += 1
    s = q @ k.swapaxes(-1, -2) * np.float32(scale)
    p = np.exp(s - s.max(-1, keepdims=True))
    return {"scores": s, "out": beside.over(p @ v, p.sum(-1, keepdims=True))}
def drifting(q, k, v, *, scale, causal):
    made = attention(q, k, v, scale=scale, causal=causal)
    made["out"] *= np.float32(1 + calls % 2 * 2.0**-22)
    return made
def probed(q, k, v, *, scale, causal, probes=True):
    made = attention(q, k, v, scale=scale, causal=causal)
    return made if probes else {"out": made["out"]}
def disturbed(q, k, v, *, scale, causal, probed=True):
    made = attention(q, k, v, scale=scale, causal=causal)
    return made if probed else {"out": made["out"] * np.float32(1 + 2.0**-22)}
"""


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "beside.py").write_text("def over(x, y):\n    return x / y\n")
    (tmp_path / "mine.py").write_text(PLAIN)
    (tmp_path / "mine.cu").write_text("// a kernel\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "beside", raising=False)
    return str(tmp_path / "mine.py")


def test_a_foreign_run_tells_its_files(mine: str, tmp_path: Path) -> None:
    trace = run(f"{mine}:attention", CASE)
    found = trace.provenance
    assert found is not None and (found.runs, found.identical, found.plain_agrees, trace.gates) == (1, None, None, ())
    told = {Path(one.path).name: one for one in found.files if Path(one.path).parent == tmp_path.resolve()}
    assert {name: one.loaded for name, one in told.items()} == {"mine.py": True, "beside.py": True, "mine.cu": False}
    assert told["mine.py"].sha256 == hashlib.sha256(PLAIN.encode()).hexdigest()
    assert told["mine.py"].modified.endswith("Z") and len(told["mine.py"].modified) == 20
    assert found.versions["numpy"] == np.__version__ and found.device
    save(trace, tmp_path / "x.safetensors")
    assert load(tmp_path / "x.safetensors").provenance == found


def test_a_file_that_was_edited_between_two_runs_is_told_anew(mine: str, tmp_path: Path) -> None:
    function, source = find(f"{mine}:attention"), tmp_path / "mine.cu"
    before = of_run(function)
    source.write_text("// another kernel\n")
    (changed,) = {*of_run(function).files} - {*before.files}
    assert (Path(changed.path), changed.sha256) == (source, hashlib.sha256(source.read_bytes()).hexdigest())


def test_a_module_that_takes_the_place_of_another_is_told(mine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many modules, of the same names."""
    function = find(f"{mine}:attention")
    for name, other in (("one.py", "two.py"), ("two.py", "one.py")):
        helper = ModuleType("helper_of_mine")
        helper.__file__ = str(Path(mine).with_name(name))
        Path(helper.__file__).write_text("")
        monkeypatch.setitem(sys.modules, "helper_of_mine", helper)
        told = {one.name for one in files(function)}
        assert name in told and other not in told


def test_kernels_of_ours_are_told_by_their_versions() -> None:
    assert run("flash", CASE, backend="emulator").provenance is None


def test_runs_that_differ_are_said_above_the_verdict(mine: str) -> None:
    def said(name: str, *more: str) -> tuple[int, list[str]]:
        result = CliRunner().invoke(commands, ["diff", f"{mine}:{name}", *ARGUMENTS, *more])
        assert result.stdout, result.exception
        return result.exit_code, result.stdout.splitlines()

    assert said("attention", "--runs", "3")[0] == 0 and said("drifting")[0] == 0
    code, lines = said("drifting", "--runs", "3")
    assert code == 1
    assert lines[0] == (
        f"gate failed: {mine}:drifting gives different bits from run to run (3 runs); the first run is judged"
    )
    assert lines[1].startswith(f"{mine}:drifting: float32") and lines[-1].endswith("--runs 3")
    document = json.loads(said("drifting", "--runs", "2", "--json")[1][0])
    assert document["verdict"] == "rounding" and len(document["gates"]) == 1
    assert (document["provenance"]["runs"], document["provenance"]["identical"]) == (2, False)
    several = said("drifting", "--runs", "2", "--seed", "1,2")
    assert several[0] == 1 and several[1][0].startswith("gate failed: ")


def test_probes_that_change_the_outputs_are_said(mine: str) -> None:
    right, wrong = (run(f"{mine}:{name}", CASE, runs=2) for name in ("probed", "disturbed"))
    assert right.provenance is not None and (right.provenance.plain_agrees, right.gates) == (True, ())
    assert wrong.gates == (
        f"{mine}:disturbed gives different bits with and without probes; the probed kernel is judged, not the "
        "plain one",
    )


@pytest.mark.parametrize("runs", [0, True, "2"])
def test_runs_is_a_number(mine: str, runs: object) -> None:
    with pytest.raises(Refusal) as refused:
        run(f"{mine}:attention", CASE, runs=runs)
    assert str(refused.value) == f"runs must be a whole number of at least 1; got {runs!r}"


def test_a_function_that_writes_over_what_it_returned_is_seen() -> None:
    held = np.zeros((1, 1, 16, 8), np.float32)

    def kernel(q, k, v, *, scale, causal):
        held[...] += 1
        return held

    trace = run(kernel, CASE, runs=2)
    assert np.all(trace.stages["out"] == 1) and len(trace.gates) == 1


EXTENSION = """
extern "C" void attention(const float* q, const float* k, const float* v, float* s, int n, int d, float scale) {
    for (int i = 0; i < n; i++) for (int j = 0; j < n; j++) {
        float x = 0;
        for (int e = 0; e < d; e++) x += q[i * d + e] * k[j * d + e];
        s[i * n + j] = x * scale;
    }
}
"""
LOADER = """
import ctypes, pathlib
import numpy as np
library = ctypes.CDLL(str(pathlib.Path(__file__).parent / "build" / "kernel.so"))
def attention(q, k, v, *, scale, causal):
    s = np.zeros((1, 1, q.shape[2], k.shape[2]), np.float32)
    at = [x.ctypes.data_as(ctypes.c_void_p) for x in (q, k, v, s)]
    library.attention(*at, q.shape[2], q.shape[3], ctypes.c_float(scale))
    return {"scores": s}
"""


@pytest.mark.campaign
@pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")
def test_an_extension_that_was_not_rebuilt_is_named_above_the_verdict(tmp_path: Path) -> None:
    """Each run is a process of its own, as a user's is."""
    (tmp_path / "build").mkdir()
    (tmp_path / "mine.py").write_text(LOADER)

    def build(text: str) -> None:
        (tmp_path / "kernel.cpp").write_text(text)
        command = ["g++", "-shared", "-fPIC", "-O1", "kernel.cpp", "-o", "build/kernel.so"]
        subprocess.run(command, cwd=tmp_path, check=True)

    def diff(*words: str) -> tuple[int, list[str]]:
        program = [
            sys.executable,
            "-c",
            "from workbench.cli.main import main; main()",
            "diff",
            "mine.py:attention",
        ]
        done = subprocess.run([*program, *ARGUMENTS, *words], cwd=tmp_path, capture_output=True, text=True)
        assert done.stdout, done.stderr
        return done.returncode, done.stdout.splitlines()

    build(EXTENSION)
    assert diff("--out", "first")[0] == 0
    previous = "first/trace.safetensors"
    stored = load(tmp_path / previous).provenance
    assert stored is not None
    assert [Path(one.path).name for one in stored.files] == ["mine.py", "kernel.so", "kernel.cpp"]
    wrong = EXTENSION.replace("x * scale", "x * scale * 2")
    (tmp_path / "kernel.cpp").write_text(wrong)
    code, lines = diff("--against", f"since={previous}")
    assert code == 1
    assert lines[0].startswith(
        f"gate failed: stale: kernel.cpp changed since {previous}, but the compiled code is unchanged: kernel.so (sha256 "
    )
    assert lines[0].endswith("). The old code was judged: rebuild it")
    assert lines[1].startswith("mine.py:attention: float32") and lines[-1].endswith(f"--against since={previous}")
    build(wrong)
    code, lines = diff("--against", f"since={previous}")
    assert code == 1 and lines[0].startswith("mine.py:attention: float32")
    assert f"since {previous}: changed: kernel.so, kernel.cpp" in lines and "first wrong stage: scores" in "".join(
        lines
    )


def test_what_has_no_provenance_is_refused(mine: str, tmp_path: Path) -> None:
    ours, theirs = tmp_path / "ours.safetensors", tmp_path / "theirs.safetensors"
    save(run("flash", CASE, backend="emulator"), ours)
    save(run(f"{mine}:attention", CASE), theirs)

    def message(*words: str) -> str:
        return str(CliRunner().invoke(commands, ["diff", *words]).exception)

    assert message(f"{mine}:attention", "--against", f"since={ours}") == (
        f"{ours} has no provenance: it is not a run of your function by the workbench"
    )
    assert message(str(ours), "--against", f"since={theirs}") == (
        "--against since=FILE needs a function whose code is recorded; the code of flash is not"
    )
    assert message(f"{mine}:attention", "--against", "since=nowhere.safetensors") == "nowhere.safetensors: no such file"
    assert message("flash", "--runs", "2") == "--runs is for your own kernels; flash is built in"


def test_a_library_that_the_system_loaded_is_none_of_the_run() -> None:
    ctypes.CDLL("libm.so.6")

    def kernel(q, k, v, *, scale, causal):
        return q

    names = [Path(one.path).name for one in files(kernel)]
    assert names and not any(name.startswith(("libm.", "libc.", "_multiarray")) for name in names)


def test_runs_that_repeat_their_bits_say_so(mine: str) -> None:
    def kernel(q: np.ndarray, k: np.ndarray, v: np.ndarray, *, scale: float, causal: bool) -> np.ndarray:
        return np.zeros_like(q)

    assert run(kernel, CASE, runs=3).notes == ("the same bits in 3 runs",)
    assert run(kernel, CASE).notes == ()
    judged = diff(run(f"{mine}:probed", CASE, runs=2))
    notes = ("the same bits in 2 runs", "the same bits of out and lse without its probes")
    assert judged.trace.notes == notes and all(note in str(judged).splitlines() for note in notes)
    assert run(f"{mine}:disturbed", CASE, runs=2).notes == notes[:1]


LOADING = """
import ctypes
ctypes.CDLL(OBJECT)
def attention(q, k, v, *, scale, causal):
    return q
"""


def test_of_packages_what_was_loaded_before_the_target_is_not_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor what the workbench loads between two runs; what the target loaded is told in both, and in a later one what
    the function's module imported before it was handed over.
    """
    packages = tmp_path / "packages"
    (packages / "some-1.0.dist-info").mkdir(parents=True)
    for name in ("before", "between", "own", "handed"):
        (packages / name).mkdir()
        shutil.copy(ml_dtypes._ml_dtypes_ext.__file__, packages / name / f"{name}.so")
    monkeypatch.syspath_prepend(packages)
    package_folders.cache_clear()
    (tmp_path / "mine.py").write_text(LOADING.replace("OBJECT", repr(str(packages / "own" / "own.so"))))

    def told(target: object) -> set[str]:
        trace = run(target, CASE)
        assert trace.provenance is not None
        return {Path(one.path).stem for one in trace.provenance.files if Path(one.path).is_relative_to(packages)}

    try:
        ctypes.CDLL(str(packages / "before" / "before.so"))
        assert told(f"{tmp_path}/mine.py:attention") == {"own"}
        for name in ("between", "handed"):
            ctypes.CDLL(str(packages / name / f"{name}.so"))
        assert told(f"{tmp_path}/mine.py:attention") == {"own"}
        scope = {"handed": ModuleType("handed")}
        exec("def attention(q, k, v, *, scale, causal): return q", scope)
        assert told(scope["attention"]) == {"own", "handed"}
    finally:
        package_folders.cache_clear()
