"""Memory of a call: guards, fresh memory, and what was never written."""

import ctypes
import subprocess
import sys
from functools import partial
from types import ModuleType

import ml_dtypes
import numpy as np
import pytest

from workbench.foreign.memory import Memory, unwritten


def fresh(dtype):
    return np.empty((4, 3), dtype), np.empty_like(np.zeros(5, dtype))


DTYPES = [np.float64, np.float32, np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, np.int32, np.uint8]


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda one: np.dtype(one).name)
@pytest.mark.parametrize("strides", ["C", "transposed", "gaps", "reversed", "scalar", "empty"])
def test_a_copy_holds_the_same_in_the_same_strides(dtype, strides: str) -> None:
    whole = np.arange(24).reshape(4, 6).astype(dtype)
    x = {
        "C": whole,
        "transposed": whole.T,
        "gaps": whole[:, ::2],
        "reversed": whole[::-1],
        "scalar": whole[1, 1:2].reshape(()),
        "empty": whole[:0],
    }[strides]
    memory = Memory()
    made = memory.placed("x", x)
    assert made.dtype == x.dtype and made.shape == x.shape and made.tobytes() == x.tobytes()
    assert made.base is not x and not np.may_share_memory(made, x) and memory.broken == []
    assert (made.strides == x.strides) is (strides not in ("reversed", "empty")) or strides == "empty"


def test_a_write_on_either_side_is_seen() -> None:
    for at in (-1, 3):
        memory = Memory()
        made = memory.placed("x", np.ones(3, np.float32))
        (ctypes.c_float * 1).from_address(made.ctypes.data + 4 * at)[0] = 0.0
        assert memory.broken == ["x"]


@pytest.mark.parametrize("dtype", DTYPES[:4], ids=lambda one: np.dtype(one).name)
def test_fresh_memory_is_nan_and_known_until_it_is_written(dtype) -> None:
    memory = Memory()
    with memory.fresh(fresh):
        x, like = fresh(dtype)
    assert np.isnan(x.astype(np.float64)).all() and unwritten(x).all() and unwritten(like).all()
    x[1:] = 0
    assert unwritten(x).sum() == 3 and not unwritten(np.full(3, np.nan, dtype)).any()
    before = len(memory.blocks)
    fresh(dtype)  # and the name is NumPy's again
    assert len(memory.blocks) == before and isinstance(np, ModuleType) and np.float32 is np.zeros(1, "f4").dtype.type
    with memory.fresh(fresh):
        assert np.empty(3, object).dtype == object and np.zeros(3).sum() == 0 and np.linalg.norm(np.ones(4)) == 2


def test_guards_are_no_unwritten_memory() -> None:
    memory = Memory()
    made = memory.placed("x", np.ones(4, np.float32))
    beyond = np.lib.stride_tricks.as_strided(made, (6,), made.strides)
    assert np.isnan(beyond[4:]).all() and not unwritten(beyond).any()
    assert not unwritten(beyond * np.float32(2)).any()


def test_torch_s_fresh_memory_and_its_copies() -> None:
    torch = pytest.importorskip("torch")
    x = torch.arange(12, dtype=torch.bfloat16).reshape(3, 4).t()
    memory = Memory()
    made = memory.placed("x", x)
    assert torch.equal(made, x) and made.stride() == x.stride() and made.data_ptr() != x.data_ptr()
    spread = memory.placed("row", torch.ones(1, 4).expand(3, 4))
    assert spread.stride() == (0, 1) and torch.equal(spread, torch.ones(3, 4))
    with memory.fresh(fresh):
        several = [torch.empty(3), torch.empty_like(x), made.new_empty(2), torch.empty((2, 2), dtype=torch.float64)]
        assert torch.empty(0).numel() == 0 and torch.empty(2, dtype=torch.bool).shape == (2,)
    assert all(torch.isnan(one).all() for one in several) and several[1].stride() == x.stride()
    assert memory.broken == []
    # autograd strides over fresh memory from where its storage begins
    assert all(one.storage_offset() == 0 for one in [made, *several])
    (ctypes.c_float * 4).from_address(several[0].data_ptr())[3] = 0.0
    assert memory.broken == ["memory that it allocated"]
    assert not torch.isnan(torch.zeros(3)).any()


COMPILED = """
import sys, torch
from workbench.foreign.memory import Memory

def backend(graph, _):
    return lambda *x: [one + 1 for one in graph(*x)]

with Memory().fresh(print):
    plain = torch.empty(3).fill_(1.0) * 2
print(plain.tolist(), "torch._dynamo" in sys.modules)
f = torch.compile(lambda x: torch.relu(x) * 2, backend=backend)
with Memory().fresh(f):
    print(f(torch.ones(3)).tolist())
"""


def test_what_torch_compiles_runs_as_it_was_compiled_and_nothing_else_waits_for_its_compiler() -> None:
    pytest.importorskip("torch")
    run = subprocess.run([sys.executable, "-c", COMPILED], capture_output=True, text=True)
    assert run.stdout.splitlines() == ["[2.0, 2.0, 2.0] False", "[3.0, 3.0, 3.0]"], run.stderr


COUNTED = 0


def counting(x):
    global COUNTED
    COUNTED += 1
    return np.empty_like(x)


class Called:
    def __call__(self, x):
        return np.empty_like(x)


def test_what_a_function_keeps_in_its_file_is_kept() -> None:
    x = np.zeros(3, np.float32)
    for function in (counting, partial(counting), Called()):
        memory = Memory()
        with memory.fresh(function):
            assert unwritten(function(x)).all()
    assert COUNTED == 2
