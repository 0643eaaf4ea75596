"""What foreign functions launch of numba.cuda, watched on the emulator, from Python and from the command line."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.refusals import invoked, refusal, refused
from workbench import Case, Unavailable, check, diff, run
from workbench.cuda.gpu import gpu
from workbench.foreign.target import target_of

#: a tile of keys whose second barrier is an argument, and a program of one's own; each of its faults is a number
MINE = """
import math
import numpy as np
from numba import cuda, float32

TILE = 16

@cuda.jit("void(float32[:,:,:,::1], float32[:,:,:,::1], float32[:,:,:,::1], float32[:,:,:,:], float32, boolean)")
def attend(q, k, v, out, scale, synchronised):
    keys = cuda.shared.array((TILE, 8), float32)
    i = cuda.threadIdx.x
    row = cuda.grid(1)
    largest, total = float32(-1e30), float32(0)
    acc = cuda.local.array(8, float32)
    for d in range(8):
        acc[d] = 0
    for first in range(0, k.shape[2], TILE):
        for d in range(8):
            keys[i, d] = k[0, 0, first + i, d]
        cuda.syncthreads()
        for j in range(TILE):
            score = float32(0)
            for d in range(8):
                score += q[0, 0, row, d] * keys[j, d]
            score *= scale
            larger = max(largest, score)
            correction, prob = math.exp(largest - larger), math.exp(score - larger)
            total = total * correction + prob
            largest = larger
            for d in range(8):
                acc[d] = acc[d] * correction + prob * v[0, 0, first + j, d]
        if synchronised:
            cuda.syncthreads()
    for d in range(8):
        out[0, 0, row, d] = acc[d] / total

def right(q, k, v, *, scale, causal, synchronised=True):
    out = np.empty_like(q)
    attend[q.shape[2] // TILE, TILE](q, k, v, out, scale, synchronised)
    return out

def racing(q, k, v, *, scale, causal):
    return right(q, k, v, scale=scale, causal=causal, synchronised=False)

@cuda.jit
def sums(x, total, fault):
    i, n = cuda.threadIdx.x, cuda.blockDim.x
    part = cuda.shared.array(0, float32)
    part[i] = x[i + (fault == 1)]
    cuda.syncthreads()
    while n > 1:
        n //= 2
        if i < n:
            part[i] += part[i + n]
        if fault != 2:
            cuda.syncthreads()
    if fault == 3:
        cuda.atomic.add(total, 1, float32(1e8 if i == 0 else 1))
    if i == 0 and fault != 4:
        total[0] = part[0]

def program(fault, *, raises=False, seeded=True):
    x = cuda.to_device(np.arange(64, dtype=np.float32) if seeded else np.random.random(64).astype(np.float32))
    total = cuda.device_array(2, np.float32)
    total[1] = 5
    sums[1, 64, 0, 256](x if fault != 5 else cuda.device_array(64, np.float32), total, fault)
    if raises:
        raise KeyError("mine")
    return total.copy_to_host()

def launch(): return program(0)
def out_of_bounds(): return program(1)
def race(): return program(2, raises=True)
def order(): return program(3)
def unwritten(): return program(4)
def uninitialised(): return program(5)
def raising(): return program(0, raises=True)
def unseeded(): return program(0, seeded=False)
def nothing(): pass
def plain(q, k, v, *, scale, causal): return q
def other(a, b): pass
"""
CASE = Case(seqlen=32, head_dim=8)
LINES = {text.strip(): number for number, text in enumerate(MINE.splitlines(), 1)}


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(MINE)
    return path


def found(target: str, *case: Case, **options: Any) -> list[tuple[str, str, int]]:
    findings = check(target, *case, **options).findings
    assert all(one.file == target.rpartition(":")[0] and one.count > 0 for one in findings)
    return [(one.kind, one.array, one.line) for one in findings]


def test_a_right_kernel_and_one_without_a_barrier(mine: Path) -> None:
    checked = check(f"{mine}:right", CASE)
    assert (checked.findings, checked.launches, checked.blocks, checked.passed) == ((), 1, 2, True)
    read, write = LINES["score += q[0, 0, row, d] * keys[j, d]"], LINES["keys[i, d] = k[0, 0, first + i, d]"]
    assert found(f"{mine}:racing", CASE) == [("race", "keys", read)]
    said = invoked("check", f"{mine}:racing", "--seqlen", "32", "--head-dim", "8")
    assert said.exit_code == 1
    lines = said.stdout.splitlines()
    assert lines[0] == f"workbench check {mine}:racing --seqlen 32 --head-dim 8: 1 finding"
    assert lines[1] == "race: keys[0, 0] is accessed by two threads, at least one writing, with no barrier in between"
    assert lines[2].endswith(f"mine.py:{read}  score += q[0, 0, row, d] * keys[j, d]")
    assert lines[3].endswith(f"mine.py:{write}  keys[i, d] = k[0, 0, first + i, d]")
    assert diff(run(f"{mine}:right", CASE, backend="emulator")).verdict == "rounding"


@pytest.mark.parametrize(
    ("function", "findings"),
    [
        ("launch", []),
        ("out_of_bounds", [("out-of-bounds", "x", "part[i] = x[i + (fault == 1)]")]),
        ("race", [("race", "part", "part[i] += part[i + n]")]),
        ("unwritten", [("unwritten-output", "total", "cuda.atomic.add(total, 1, float32(1e8 if i == 0 else 1))")]),
        ("uninitialised", [("uninitialised-read", "x", "part[i] = x[i + (fault == 1)]")]),
    ],
)
def test_a_program_without_parameters(mine: Path, function: str, findings: list[tuple[str, str, str]]) -> None:
    assert found(f"{mine}:{function}") == [(kind, array, LINES[text]) for kind, array, text in findings]


def test_what_the_host_reads_of_what_nobody_wrote(mine: Path) -> None:
    (one,) = check(f"{mine}:unwritten").findings
    assert (one.text, one.index, one.count) == (
        "1 of 2 elements of total were never written but are read by the host",
        (0,),
        1,
    )


def test_orders_of_threads_are_compared(mine: Path) -> None:
    assert found(f"{mine}:order") == []
    (one,) = check(f"{mine}:order", schedules=3).findings
    line = LINES["cuda.atomic.add(total, 1, float32(1e8 if i == 0 else 1))"]
    assert (one.kind, one.array, one.line, one.index, one.text) == (
        *("order-dependent", "total", line, (1,)),
        "total has different bits under another order of blocks and threads",
    )
    assert found(f"{mine}:launch", schedules=3) == []
    assert refusal(check, f"{mine}:unseeded", schedules=2) == (
        f"{mine}:unseeded gives a different x on every run, so block and thread orders cannot be compared: seed its random inputs, or leave out --schedules"
    )


def test_the_command_line_and_its_document(mine: Path) -> None:
    said = invoked("check", f"{mine}:launch")
    assert (said.exit_code, said.stdout) == (
        0,
        f"workbench check {mine}:launch: nothing found in 1 launch of 1 block\n",
    )
    told = invoked("check", f"{mine}:race", "--json")
    document = json.loads(told.stdout)
    assert told.exit_code == 1 and document["case"] is None
    assert [(one["kind"], one["array"]) for one in document["findings"]] == [("race", "part")]
    several = invoked("check", f"{mine}:right", "--seqlen", "16,32", "--head-dim", "8")
    assert several.stdout.splitlines()[-1] == "2 runs: 2 without findings, 0 with findings"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nothing"], "{mine}:nothing launched no numba.cuda kernel: there is nothing to watch"),
        (["plain", "--seqlen", "16"], "{mine}:plain launched no numba.cuda kernel: there is nothing to watch"),
        (["attend"], "{mine}:launch launches sums, but not attend"),
        (["sums", "--seqlen", "5"], "{mine}:launch has no parameters, so it takes no --seqlen"),
        (
            ["other"],
            "{mine}:other(a, b) is called with q, k, v and the keywords scale, causal: too many positional arguments; "
            "wrap a function that takes others:\n"
            "  def attention(q, k, v, *, scale, causal):\n"
            "      return other(q, k, v)\n"
            "or give one without parameters, which makes its own arrays and launches attend or sums",
        ),
        (["launch", "--seqlen", "5"], "{mine}:launch has no parameters, so it takes no --seqlen"),
        (["launch", "--arrays", "layout=bshd"], "{mine}:launch has no parameters, so it takes no --arrays layout"),
        (
            ["right", "--probes", "lean"],
            "--probes is for built-in kernels ({ours}); {mine}:right is not built in",
        ),
    ],
)  # fmt: skip
def test_what_is_not_watched_is_refused(mine: Path, words: list[str], message: str) -> None:
    from workbench.cuda.kernels import KERNELS

    said = refused("check", f"{mine}:{words[0]}", *words[1:])
    assert said == message.format(mine=mine, ours=", ".join(KERNELS))


@pytest.mark.parametrize("named", ["path", "function"])
def test_a_kernel_is_launched_by_the_launch_of_its_file(mine: Path, named: str) -> None:
    mine.write_text(MINE.replace("return program(0)", "return program(2)"))
    target = f"{mine}:sums"
    (one,) = check(target if named == "path" else target_of(target).found()).findings
    line = LINES["part[i] += part[i + n]"]
    assert (one.kind, one.array, one.line) == ("race", "part", line)
    if named == "path":
        said = invoked("check", target)
        assert said.exit_code == 1 and said.stdout.startswith(f"workbench check {target}: 1 finding\nrace: part[")


def test_a_launch_that_takes_q_k_and_v_is_given_a_case(mine: Path) -> None:
    mine.write_text(MINE.replace("def launch(): return program(0)", "launch = racing"))
    assert {one.array for one in check(f"{mine}:attend", CASE).findings} == {"keys"}


def test_what_is_found_before_the_kernel_is_reached_is_told(mine: Path) -> None:
    mine.write_text(MINE.replace("return program(0)", "return program(1)"))
    assert [(kind, array) for kind, array, _ in found(f"{mine}:attend")] == [("out-of-bounds", "x")]


def test_a_kernel_with_no_launch_beside_it_is_refused(mine: Path) -> None:
    mine.write_text(MINE.replace("def launch()", "def start()"))
    assert refused("check", f"{mine}:sums") == (
        f"{mine}:sums is a numba.cuda kernel: it is launched, not called. Give a function that takes q, k and v, "
        "launches it and returns out, as in docs/how-to/numba.md. To watch the kernel alone, add a function `launch` "
        f"without parameters that launches it, and run `workbench check {mine}:sums`"
    )


def test_what_python_does_not_take_is_refused(mine: Path) -> None:
    assert refusal(check, f"{mine}:launch", CASE) == (f"{mine}:launch has no parameters, so it takes no case")
    assert refusal(check, f"{mine}:launch", schedules=0) == ("schedules must be a whole number of at least 1; got 0")
    assert refusal(check, "run.safetensors") == (
        "run.safetensors is a trace, which cannot be run: read it with `workbench.load`"
    )
    said = refusal(check, f"{mine}:raising")
    assert said.startswith(f"{mine}:raising raised:\nTraceback ") and said.endswith("KeyError: 'mine'\n")


def test_a_run_on_the_emulator_launches_something(mine: Path) -> None:
    assert refusal(run, f"{mine}:plain", CASE, backend="emulator") == (
        f"{mine}:plain launched no numba.cuda kernel: --backend emulator is for such kernels"
    )


@pytest.mark.skipif(gpu() is not None, reason="there is a GPU")
def test_a_backend_that_is_not_there(mine: Path) -> None:
    with pytest.raises(Unavailable, match="^backend cuda needs an NVIDIA GPU and its driver; none was found"):
        run(f"{mine}:right", CASE, backend="cuda")


def test_the_line_that_repeats_a_run_says_the_backend(mine: Path) -> None:
    words = ["diff", f"{mine}:right", "--seqlen", "16", "--head-dim", "8"]
    assert (
        f"repeat: workbench {' '.join(words)} --backend emulator\n" in invoked(*words, "--backend", "emulator").stdout
    )


@pytest.mark.campaign
@pytest.mark.parametrize("first", ["import mine", "import workbench; workbench.kernel; import mine"])
def test_numba_may_be_imported_by_the_function_itself(mine: Path, first: str) -> None:
    """In a process that has not imported it; by itself, or by ours, which is then half imported."""
    import subprocess
    import sys

    (mine.parent / "lazy.py").write_text(
        f"def attention(*args, **kw):\n    {first}\n    return mine.right(*args, **kw)\n"
    )
    program = (
        "import sys; from workbench import Case, run; assert 'numba' not in sys.modules; "
        f"print(run('{mine.parent}/lazy.py:attention', Case(seqlen=16, head_dim=8)).notes)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "('launched on the emulator: attend',)\n"


def test_a_kernel_with_its_grid_is_no_function_either(mine: Path) -> None:
    mine.write_text(mine.read_text() + "\n\nconfigured = sums[1, 2]\n")
    assert refused("check", f"{mine}:configured").startswith(
        f"{mine}:configured is a numba.cuda kernel: it is launched, not called. "
    )
