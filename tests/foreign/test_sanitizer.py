"""compute-sanitizer's reports as findings: the samples of its manual; the tools themselves need a GPU."""

import json
import shutil
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from workbench import Case, Refusal, Unavailable
from workbench.cli.main import commands
from workbench.cuda.gpu import Gpu
from workbench.foreign import sanitizer
from workbench.foreign.sanitizer import TOOLS, check, read

HOME = ("/home/me/mine.py", 7)
OUT_OF_BOUNDS = """========= COMPUTE-SANITIZER
========= Invalid __global__ write of size 4 bytes
=========     at out_of_bounds_function()+0xb0 in memcheck_demo.cu:39
=========     by thread (3,0,0) in block (1,2,0)
=========     Address 0x87654320 is out of bounds
=========     and is 137,179,965,340,896 bytes before the nearest allocation at 0x7cc43a800000 of size 1,024 bytes
=========         Device Frame: out_of_bounds_kernel()+0x30 in memcheck_demo.cu:44
=========     Saved host backtrace up to driver entry point at kernel launch time
=========         Host Frame: run_out_of_bounds() [0xadb6] in memcheck_demo
=========
========= Invalid __global__ write of size 4 bytes
=========     at unaligned_kernel()+0x50
=========     by thread (0,0,0) in block (0,0,0)
=========     Address 0x710fdca00001 is misaligned
=========     and is inside the nearest allocation at 0x710fdca00000 of size 4 bytes
=========
========= ERROR SUMMARY: 2 errors
"""
RACES = """========= COMPUTE-SANITIZER
========= Error: Race reported between Write access at sumKernel(int *, int *)+0x90 in /src/block_error.cu:41
=========     and Read access at sumKernel(int *, int *)+0x100 in /src/block_error.cu:51 [508 hazards]
=========
========= Warning: (Warp Level Programming) Potential RAW hazard detected at __shared__ 0x8c in block (0,0,0) :
=========     Write Thread (35,0,0) at sumKernel(int *, int *)+0x90 in /src/warp_error.cu:44
=========     Read Thread (32,0,0) at sumKernel(int *, int *)+0x120 in /src/warp_error.cu:56
=========     Current Value : 35
=========
========= RACECHECK SUMMARY: 2 hazards displayed (1 error, 1 warning)
"""
UNINITIALISED = """========= Uninitialized __{space}__ memory read of size 4 bytes
=========     at vectorAdd(int *)+0x70 in /src/memset_error.cu:41
=========     by thread (31,0,0) in block (1,0,0)
=========     Address 0x7f3c7ec000fc
=========
========= ERROR SUMMARY: 1 error
"""
BARRIERS = """========= Barrier error detected. Divergent thread(s) in block.
=========     at [clone myKernel(int *, int *)] outlineSync()+0x11f0 in test.cu:42
=========     by thread (32,0,0) in block (0,0,0)
=========         Device Frame: myKernel(int *, int *)+0xe40 in test.cu:60
=========
========= Barrier error detected. Divergent thread(s) in warp
=========     at ThreadDivergence(int *, int)+0xf0 in divergence.cu:79
=========     by thread (37,0,0) in block (0,0,0)
=========
========= Deadlock detected in Cuda::barrier wait called by threads starting at (0,0,0) in block (0,0,0), (active mask: 0xffffffff), barrier address: 0x0 at kernel+0x1190 in app.cu:98
=========
========= ERROR SUMMARY: 3 errors
"""
NOTHING = "========= COMPUTE-SANITIZER\n========= {} SUMMARY: 0 {}\n"


def found(report: str) -> list[tuple]:
    findings, why = read(report, HOME)
    assert why == ""
    return [(f.kind, f.file, f.line, f.other_file, f.other_line, f.block, f.threads, f.count) for f in findings]


def test_accesses_out_of_bounds_and_misaligned() -> None:
    assert found(OUT_OF_BOUNDS) == [
        ("out-of-bounds", "memcheck_demo.cu", 39, None, None, (1, 2, 0), (3,), 1),
        ("misaligned", *HOME, None, None, (0, 0, 0), (0,), 1),
    ]
    texts = [finding.text for finding in read(OUT_OF_BOUNDS, HOME)[0]]
    assert texts == [
        "Invalid __global__ write of size 4 bytes, in out_of_bounds_function(); Address 0x87654320 is out of bounds; "
        "and is 137,179,965,340,896 bytes before the nearest allocation at 0x7cc43a800000 of size 1,024 bytes",
        "Invalid __global__ write of size 4 bytes, in unaligned_kernel() (no line: compile the kernel with -lineinfo); "
        "Address 0x710fdca00001 is misaligned; and is inside the nearest allocation at 0x710fdca00000 of size 4 bytes",
    ]


def test_races_have_both_accesses() -> None:
    assert found(RACES) == [
        ("race", "/src/block_error.cu", 41, "/src/block_error.cu", 51, (), (), 508),
        ("race", "/src/warp_error.cu", 44, "/src/warp_error.cu", 56, (0, 0, 0), (35, 32), 1),
    ]


@pytest.mark.parametrize("space", ["global", "shared"])
def test_reads_of_what_nobody_wrote(space: str) -> None:
    assert found(UNINITIALISED.format(space=space)) == [
        ("uninitialised-read", "/src/memset_error.cu", 41, None, None, (1, 0, 0), (31,), 1)
    ]


def test_barriers() -> None:
    assert [(kind, line) for kind, _, line, *_ in found(BARRIERS)] == [
        ("divergent-barrier", 42),
        ("missing-lanes", 79),
        ("runaway", 98),
    ]


def test_a_file_beside_the_functions_is_found(tmp_path: Path) -> None:
    (tmp_path / "memcheck_demo.cu").write_text("\n" * 50)
    first = read(OUT_OF_BOUNDS, (str(tmp_path / "mine.py"), 7))[0][0]
    assert first.file == str(tmp_path / "memcheck_demo.cu")


@pytest.mark.parametrize("name", ["ERROR", "RACECHECK"])
def test_nothing_is_nothing(name: str) -> None:
    assert read(NOTHING.format(name, "errors"), HOME) == ([], "")


def test_what_is_no_whole_report_is_never_clean() -> None:
    assert read("", HOME) == ([], "no report")
    assert read("========= COMPUTE-SANITIZER\n========= Error: process didn't terminate\n", HOME) == ([], "no report")
    strange = "========= Something new\n=========     at f()+0x1\n========= ERROR SUMMARY: 1 error\n"
    assert read(strange, HOME) == ([], f"1 errors in a report that could not be read:\n{strange}")
    inner = "========= Internal Sanitizer Error: it did not track the launch. Errors might go undetected.\n"
    findings, why = read(inner + OUT_OF_BOUNDS, HOME)
    assert len(findings) == 2
    assert why == "Internal Sanitizer Error: it did not track the launch. Errors might go undetected."


# a program that takes compute-sanitizer's options, runs the command where a file `run` says so, and leaves a report
FAKE = """#!{python}
import pathlib, subprocess, sys
words = sys.argv[1:]
if words == ["--help"]:
    print("{help}")
    sys.exit()
tool, log = words[words.index("--tool") + 1], words[words.index("--log-file") + 1]
pathlib.Path("{folder}", tool + ".options").write_text(" ".join(words[: words.index("--log-file")]))
code = subprocess.run(words[words.index("{python}"):]).returncode if pathlib.Path("{folder}", "run").exists() else 0
report = pathlib.Path("{folder}", tool)
if report.exists():
    pathlib.Path(log).write_text(report.read_text())
sys.exit(code)
"""
KERNEL = """
import numpy as np
def attention(q, k, v, *, scale, causal):
    return q
def failing(q, k, v, *, scale, causal):
    raise RuntimeError("no such kernel")
"""
HELP = "memcheck  : Memory\\nracecheck : Shared\\nsynccheck : Sync\\ninitcheck : Global"


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder where reports are put by the names of tools, and a compute-sanitizer that gives them."""
    offer(tmp_path, HELP)
    for tool in TOOLS:
        (tmp_path / tool).write_text(NOTHING.format("RACECHECK" if tool == "racecheck" else "ERROR", "errors"))
    (tmp_path / "mine.py").write_text(KERNEL)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(sanitizer, "look_for_gpu", lambda: Gpu("H200", (9, 0), "13.0"))
    return tmp_path


def offer(folder: Path, text: str) -> None:
    program = folder / "compute-sanitizer"
    program.write_text(FAKE.format(python=sys.executable, help=text, folder=folder))
    program.chmod(0o755)


CASE = Case(seqlen=16, head_dim=8)
WORDS = ["--backend", "cuda", "--seqlen", "16", "--head-dim", "8"]


def test_every_tool_runs_the_function(tools: Path) -> None:
    clean = check(f"{tools}/mine.py:attention", CASE, {})
    assert clean.passed and clean.tools == {
        "memcheck": "",
        "racecheck": "",
        "initcheck": "global memory alone",
        "synccheck": "",
    }
    assert (tools / "memcheck.options").read_text() == "--tool memcheck --report-api-errors no --padding 4096"
    offer(tools, HELP + "\\n  --initcheck-address-space arg (=global)")
    (tools / "racecheck").write_text(RACES)
    dirty = check(f"{tools}/mine.py:attention", CASE, {})
    assert [finding.kind for finding in dirty.findings] == ["race", "race"] and dirty.tools["initcheck"] == ""
    assert (tools / "initcheck.options").read_text().endswith("--initcheck-address-space all")


@pytest.mark.campaign
def test_the_command(tools: Path) -> None:
    target = f"{tools}/mine.py:attention"
    (tools / "run").touch()
    clean = CliRunner().invoke(commands, ["check", target, *WORDS])
    assert (clean.exit_code, clean.stdout) == (
        0,
        f"workbench check {target} --seqlen 16 --head-dim 8 --backend cuda: nothing found by memcheck, racecheck, "
        "initcheck (global memory alone), synccheck\n",
    )
    (tools / "run").unlink()
    (tools / "memcheck").write_text(OUT_OF_BOUNDS)
    dirty = CliRunner().invoke(commands, ["check", target, *WORDS])
    assert dirty.exit_code == 1 and dirty.stdout.splitlines()[:3] == [
        f"workbench check {target} --seqlen 16 --head-dim 8 --backend cuda: 2 findings",
        "out-of-bounds: Invalid __global__ write of size 4 bytes, in out_of_bounds_function(); Address 0x87654320 is out "
        "of bounds; and is 137,179,965,340,896 bytes before the nearest allocation at 0x7cc43a800000 of size 1,024 bytes",
        "  memcheck_demo.cu:39  ",
    ]
    document = json.loads(CliRunner().invoke(commands, ["check", target, *WORDS, "--json"]).stdout)
    assert document["schema"] == "workbench.check/1" and document["silent"] == {}
    assert [finding["kind"] for finding in document["findings"]] == ["out-of-bounds", "misaligned"]


def test_a_tool_that_is_absent_or_silent_is_named_and_never_clean(tools: Path) -> None:
    offer(tools, HELP.replace("synccheck", "sync"))
    (tools / "racecheck").unlink()
    said = CliRunner().invoke(commands, ["check", f"{tools}/mine.py:attention", *WORDS])
    assert said.exit_code == 1
    assert said.stdout.splitlines()[1:] == [
        "racecheck gave an incomplete report: no report",
        f"synccheck gave an incomplete report: not offered by {tools}/compute-sanitizer",
    ]


def test_a_function_that_fails_is_refused(tools: Path) -> None:
    (tools / "run").touch()
    with pytest.raises(Refusal) as refused:
        check(f"{tools}/mine.py:failing", CASE, {})
    said = str(refused.value)
    assert said.startswith(f"{tools}/mine.py:failing failed under memcheck:\n") and "no such kernel" in said


def test_a_tool_that_hangs_is_silent(tools: Path) -> None:
    checked = check(f"{tools}/mine.py:attention", CASE, {}, timeout_s=0.01)
    assert checked.silent == dict.fromkeys(TOOLS, "no report: no report within 0 s") and not checked.passed


def test_without_the_program_or_a_gpu(tools: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sanitizer, "look_for_gpu", lambda: "no NVIDIA driver")
    with pytest.raises(
        Unavailable, match="^check --backend cuda needs an NVIDIA GPU; none was found \\(no NVIDIA driver\\)$"
    ):
        check(f"{tools}/mine.py:attention", CASE, {})
    (tools / "compute-sanitizer").unlink()
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    with pytest.raises(Unavailable) as missing:
        check(f"{tools}/mine.py:attention", CASE, {})
    assert str(missing.value) == (
        "check --backend cuda needs compute-sanitizer of the CUDA toolkit (memcheck, racecheck, synccheck, "
        "initcheck), which was not found: put its folder on PATH"
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["flash", "--backend", "cuda"],
            "--backend cuda is for your own functions (path.py:function); flash is built in",
        ),
        (["flash", "--backend", "tpu"], "check runs on emulator or cuda; got --backend 'tpu'"),
        (
            ["flash", "--arrays", "torch"],
            "--arrays is for your own functions; flash is built in",
        ),
        (
            ["mine.py:attention", "--backend", "cuda", "--schedules", "2"],
            "--schedules is for the emulator; got it with --backend cuda",
        ),
    ],
)
def test_what_check_does_not_take_is_refused(words: list[str], message: str) -> None:
    result = CliRunner().invoke(commands, ["check", *words])
    assert isinstance(result.exception, Refusal) and str(result.exception) == message


#: with a line that each tool must name
ON_GPU = """
import numpy as np
from numba import cuda, float32

@cuda.jit(lineinfo=True)
def right(x, y, n):
    tile = cuda.shared.array(64, float32)
    i = cuda.threadIdx.x
    tile[i] = x[i]
    cuda.syncthreads()
    y[i] = tile[63 - i]

@cuda.jit(lineinfo=True)
def racing(x, y, n):
    tile = cuda.shared.array(64, float32)
    i = cuda.threadIdx.x
    tile[i] = x[i]
    y[i] = tile[63 - i]  # race

@cuda.jit(lineinfo=True)
def reaching(x, y, n):
    i = cuda.threadIdx.x
    y[i] = x[i + n]  # out-of-bounds

@cuda.jit(lineinfo=True)
def reading(x, y, n):
    i = cuda.threadIdx.x
    x[i] = y[i] + x[i]  # uninitialised-read

def launched(kernel, q):
    x, y = cuda.to_device(q.reshape(-1)), cuda.device_array(q.size, np.float32)
    kernel[1, 64](x, y, q.size)
    cuda.synchronize()
    return x.copy_to_host().reshape(q.shape)
""" + "".join(
    f"""
def {name}_attention(q, k, v, *, scale, causal):
    return launched({name}, q)
"""
    for name in ("right", "racing", "reaching", "reading")
)


@pytest.mark.gpu
@pytest.mark.skipif(shutil.which("compute-sanitizer") is None, reason="compute-sanitizer is not on PATH")
@pytest.mark.parametrize(
    ("name", "kind"),
    [("right", None), ("racing", "race"), ("reaching", "out-of-bounds"), ("reading", "uninitialised-read")],
    ids=["right", "racing", "reaching", "reading"],
)
def test_on_a_gpu(tmp_path: Path, name: str, kind: str | None) -> None:
    (tmp_path / "mine.py").write_text(ON_GPU)
    checked = check(f"{tmp_path}/mine.py:{name}_attention", CASE, {})
    assert checked.silent == {} and list(checked.tools) == list(TOOLS)
    lines = ON_GPU.splitlines()
    named = {
        (finding.kind, number)
        for finding in checked.findings
        for number in (finding.line, finding.other_line)
        if number is not None
    }
    wanted = {(kind, i) for i, line in enumerate(lines, 1) if line.endswith(f"# {kind}")}
    assert len(wanted) == (kind is not None) and wanted <= named
    # behind the end of an array lies memory that nobody wrote, as initcheck says too
    beside = {"uninitialised-read"} if name == "reaching" else set()
    assert {finding.kind for finding in checked.findings} - beside == ({kind} if kind else set())
    assert all(Path(finding.file) == tmp_path / "mine.py" for finding in checked.findings)
