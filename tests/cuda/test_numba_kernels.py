"""A kernel of a user's in numba.cuda runs on the emulator as it stands, is judged, and is watched."""

from pathlib import Path

import pytest

from tests.refusals import refused
from workbench import Case, Unavailable, check, run
from workbench.cuda.gpu import gpu

KERNEL = Path(__file__).with_name("my_numba_kernel.py").read_text()
SECOND_BARRIER = "        cuda.syncthreads()\n        probe"


@pytest.fixture
def kernel(tmp_path: Path) -> Path:
    path = tmp_path / "my_numba_kernel.py"
    path.write_text(KERNEL)
    return path


@pytest.mark.campaign
def test_it_is_watched_and_a_barrier_that_lacks_is_named(kernel: Path) -> None:
    case = Case(seqlen=40, causal=True)
    assert check(f"{kernel}:attention", case).passed
    kernel.write_text(KERNEL.replace(SECOND_BARRIER, "        probe"))
    assert KERNEL.count(SECOND_BARRIER) == 1
    lines = kernel.read_text().splitlines()
    findings = check(f"{kernel}:attention", case).findings
    assert {(one.kind, one.array) for one in findings} == {("race", "k_tile"), ("race", "v_tile")}
    assert {lines[line - 1].strip() for one in findings for line in (one.line, one.other_line) if line} == {
        "score += q[b, h, row, d] * k_tile[j, d]",
        "acc[d] = acc[d] * correction + prob * v_tile[j, d]",
        "k_tile[i // DIM, i % DIM] = k[b, h, first + i // DIM, i % DIM]",
        "v_tile[i // DIM, i % DIM] = v[b, h, first + i // DIM, i % DIM]",
    }


def test_a_kernel_in_the_place_of_a_function_is_told_of_the_page(kernel: Path) -> None:
    target = f"{kernel}:flash"
    assert refused("diff", target) == (
        f"{target} is a numba.cuda kernel: it is launched, not called. Give a function that takes q, k and v, "
        "launches it and returns out, as in docs/how-to/numba.md. To watch the kernel alone, add a function `launch` "
        f"without parameters that launches it, and run `workbench check {target}`"
    )


@pytest.mark.skipif(gpu() is not None, reason="there is a GPU, which has it")
def test_what_nothing_stands_in_for_is_told_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(
        "from numba import cuda\ndef attention(q, k, v, *, scale, causal):\n    return q * len(cuda.gpus)\n"
    )
    with pytest.raises(Unavailable) as raised:
        run(f"{path}:attention", Case(seqlen=4))
    assert str(raised.value) == (
        f"{path}:attention needs a GPU for numba.cuda, and there is none: the emulator does not cover "
        f"{path}:3: return q * len(cuda.gpus)"
    )
