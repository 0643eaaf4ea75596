"""Triton's interpreter is asked nothing that it answers wrongly."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.python_path import python_path
from workbench import Case, Refusal, run

torch = pytest.importorskip("torch", reason="torch is not installed")
triton = pytest.importorskip("triton", reason="triton is not installed")
import triton.language as tl  # noqa: E402

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="kernels in Triton run on the GPU that is here")
CASE = Case(seqlen=16, head_dim=16, dtype="float16")


@triton.jit
def product(x, out):
    """The product of a matrix of 16 by 16 with itself."""
    i = tl.arange(0, 16)[:, None] * 16 + tl.arange(0, 16)[None, :]
    tl.store(out + i, tl.dot(tl.load(x + i), tl.load(x + i)))


@triton.jit
def one_more(x, out):
    """X * x + 1."""
    i = tl.arange(0, 16)
    x = tl.load(x + i)
    tl.store(out + i, x * x + 1)


@triton.jit
def below(x, out, n):
    """Rows and columns below n, by Python's `and`."""
    rows, cols = tl.arange(0, 16)[:, None], tl.arange(0, 16)[None, :]
    tl.store(out + rows * 16 + cols, tl.load(x + rows * 16 + cols), mask=rows < n and cols < n)


def attention(q: Any, k: Any, v: Any, *, scale: float, causal: bool, named: bool = False) -> Any:
    """No attention at all."""
    out = torch.empty((1, 1, 16, 16))
    if named:
        product[(1,)](out=out, x=q)
    else:
        product[(1,)](q, out)
    return out


def test_bits_of_other_types_are_taken_for_numbers() -> None:
    """The reason for all this. Where it fails, Triton has learned the types, and they need not be refused any more."""
    x, out = torch.full((16, 16), 1.5), torch.empty((16, 16))
    for dtype, result in ((torch.float16, 36), (torch.bfloat16, 4261478400)):
        product[(1,)](x.to(dtype), out)
        assert out[0, 0] == result
    one_more[(1,)](x.to(torch.float16), out)
    assert out[0, 0] == 3.25
    try:
        one_more[(1,)](x.to(torch.float8_e4m3fn), out)
        assert out[0, 0] != 3.25
    except Exception as error:  # Triton 3.6 raises
        assert type(error).__module__.startswith("triton.")


@pytest.mark.parametrize("named", [False, True])
def test_bfloat16_is_refused(named: bool) -> None:
    def kernel(q: Any, k: Any, v: Any, *, scale: float, causal: bool) -> Any:
        return attention(q, k, v, scale=scale, causal=causal, named=named)

    with pytest.raises(Refusal) as refusal:
        run(kernel, CASE.but(dtype="bfloat16"), arrays="torch")
    assert str(refusal.value) == (
        "Triton's interpreter computes on the raw bits of bfloat16 and float8; product got x in bfloat16: "
        "use --dtype float32 or float16, or a GPU without TRITON_INTERPRET"
    )
    assert run(kernel, CASE, arrays="torch").stages["out"].size


def test_float8_is_refused_wherever_it_comes_from() -> None:
    def kernel(q: Any, k: Any, v: Any, *, scale: float, causal: bool) -> Any:
        return attention(q.to(torch.float8_e5m2), k, v, scale=scale, causal=causal)

    with pytest.raises(Refusal, match="product got x in float8_e5m2: use --dtype float32 or float16"):
        run(kernel, CASE, arrays="torch")


def test_and_of_tensors_is_refused() -> None:
    """It stores rows that its mask leaves out: the interpreter takes the columns' part alone."""
    x, out = torch.ones((16, 16)), torch.zeros((16, 16))
    below[(1,)](x, out, 4)
    assert out.sum() == 64

    def kernel(q: Any, k: Any, v: Any, *, scale: float, causal: bool) -> Any:
        below[(1,)](q, torch.zeros((1, 1, 16, 16)), 4)
        return q

    with pytest.raises(Refusal, match=r"second operand alone of `a and b`.* here of shape \(16, 1\): write `a & b`"):
        run(kernel, CASE, arrays="torch")


def test_a_bfloat16_function_of_torch_is_not_refused() -> None:
    def sdpa(q: Any, k: Any, v: Any, *, scale: float, causal: bool) -> Any:
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, scale=scale)

    assert run(sdpa, CASE.but(dtype="bfloat16"), arrays="torch").stages["out"].dtype.name == "bfloat16"


@pytest.mark.campaign
def test_how_to_run_without_a_gpu_is_said() -> None:
    """In a process of its own, since Triton asks for the interpreter once, when it is imported."""
    root = Path(__file__).parent.parent.parent.parent
    code = "from workbench.cli.main import main; main()"
    target = [f"{root}/examples/triton_flash.py:attention", "--arrays", "torch"]
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = python_path(root)
    command = [sys.executable, "-c", code, "diff", *target]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert ran.returncode == 3 and ran.stdout == ""
    lines = [line for line in ran.stderr.splitlines(keepends=True) if "stopped after" not in line]  # of a slow machine
    assert "".join(lines) == (
        f"workbench: {target[0]} launches a Triton kernel, and there is no GPU. "
        "Without a GPU, Triton's interpreter runs its kernels on the CPU: set TRITON_INTERPRET=1 in the environment.\n"
    )
