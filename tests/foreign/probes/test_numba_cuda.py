"""Probes in kernels of numba.cuda: nothing of them in production, each stage in a run; what they may not be."""

import importlib.util
import itertools
import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from tests.refusals import refusal
from workbench import Case, run
from workbench.case.stages import STAGES
from workbench.foreign.find import find
from workbench.foreign.launches import Launches
from workbench.foreign.probes.numba_cuda import PROBED

HEAD = """

import numpy as np
from numba import cuda, float32
from workbench.foreign.probes.numba_cuda import probe, probed

"""
NUMBERS = itertools.count()


@pytest.fixture
def load(tmp_path: Path) -> Callable[[str], ModuleType]:
    """load(text): the module that a file makes, and nobody's."""

    def made(text: str) -> ModuleType:
        path = tmp_path / f"mine{next(NUMBERS)}.py"
        path.write_text(HEAD + text)
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return made


#: with probes in a branch, alone in a branch, alone in a loop, in a closure; and lines that only they need
KERNEL = """
def made(FACTOR, decorated):
    @decorated
    def kernel(x: 'float32[:, ::1]', out):
        i = cuda.grid(1)
        total = float32(0)
        for j in range(x.shape[1]):
            value = x[i, j] * float32(FACTOR)
            probe.scores[0, 0, i, j] = value
            if value > 1:
                probe.probs[0, 0, i, j] = value + float32(1)
            else:
                total += value
            total += value
        for j in range(3):
            probe.probs_cast[0, 0, i, j] = total
        if i == 0:
            probe.lse[0, 0, i] = (
                total
            )
        out[i] = total
    return kernel
"""


def ptx(function: Any, *buffers: Any) -> str:
    """Of a kernel, without its name, which holds that of its file."""
    from numba import cuda, float32, void

    text, _ = cuda.compile_ptx(function, void(float32[:, ::1], float32[::1], *buffers), cc=(9, 0))
    found = re.sub(r"_ZN\w+", "NAME", text)
    assert ("st.global.f64" in found) == bool(buffers) and (buffers or found.count("st.global") == 1)
    return found


def test_in_production_a_kernel_is_that_of_a_source_without_probes(load: Callable[[str], ModuleType]) -> None:
    from numba import float64

    lines = KERNEL.replace("                total\n            )", "total)").splitlines()
    bare = load("\n".join(re.sub(r"probe\..*", "pass", line) for line in lines if line.strip() != "total)"))
    mine = load(KERNEL)
    probed = mine.made(3, mine.probed)
    assert ptx(probed) == ptx(bare.made(3, lambda function: function))
    other = mine.made(5, mine.probed)
    assert ptx(probed) != ptx(other), "the closure's own constant"
    with_probes = getattr(probed, PROBED)
    assert with_probes.stages == ("scores", "probs", "probs_cast", "lse")
    ptx(with_probes.function, *(float64[:, :, :, ::1],) * 3, float64[:, :, ::1])
    assert (probed.__name__, probed.__module__, probed.__doc__) == ("kernel", mine.__name__, None)
    assert probed.__code__.co_filename == mine.__file__


def test_a_run_dumps_what_probes_store(load: Callable[[str], ModuleType]) -> None:
    from numba import cuda

    mine = load(KERNEL)
    kernel = cuda.jit(mine.made(3, mine.probed))
    x = np.arange(12, dtype=np.float32).reshape(2, 6) / 10
    with Launches("mine", Case(seqlen_q=2, seqlen_k=5), on_emulator=True).sent() as launches:
        out = np.zeros(2, np.float32)
        kernel[1, 2](x, out)
        found, told = launches.concatenated({"out": out}, {}, {})
    scores = x * np.float32(3)
    assert np.array_equal(found["scores"][0, 0], scores[:, :5]), "the sixth has no slot"
    large = scores[:, :5] > 1
    assert np.array_equal(found["probs"][0, 0][large], scores[:, :5][large] + np.float32(1))
    assert launches.kernels == ["kernel"] and told == {}
    assert {x.dtype for x in found.values()} == {np.dtype(np.float32)}
    assert np.array_equal(found["probs_cast"][0, 0, :, :3], np.repeat(out[:, None], 3, 1))
    assert found["lse"].view(np.uint32).tolist() == [[[out[:1].view(np.uint32)[0], 0x7FA0BEEF]]], "1 is unwritten"


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (
            "probe.score[b, h, q, k] = 1",
            f":5: probe.score: there is no stage 'score'; stages are: {', '.join(STAGES)}",
        ),
        ("probe.scores[b, h, q] = 1", ":5: probe.scores takes an index for each of its axes [b h q k]; got [(b, h, q)]"),
        ("probe.lse[b, h, 0:q] = 1", ":5: probe.lse takes an index for each of its axes [b h q]; got [(b, h, 0:q)]"),
        ("probe.lse[b] = 1", ":5: probe.lse takes an index for each of its axes [b h q]; got [b]"),
        ("x = probe.lse[b, h, q] = 1", ":5: a probe stores one element: probe.scores[b, h, q, k] = x"),
        ("probe.lse[b, h, q] = k = 1", ":5: assign probe.lse in a statement without other targets: probe.lse[b, h, q] = k = 1"),
        ("probe.lse[b, h, q] += 1", ":5: a probe stores one element: probe.scores[b, h, q, k] = x"),
        ("k = probe", ":5: a probe stores one element: probe.scores[b, h, q, k] = x"),
        ("k = 1", ":3: kernel is @probed but has no probe, such as probe.scores[b, h, q, k] = x"),
        ("probe.row_max[b, h, q, k] = 1", ":3: probe.row_max needs @probed(block_k=...), since its axes are [b h q t]"),
        (
            "probe.partial_max[b, h, k, q] = 1",
            ":3: probe.partial_max needs @probed(splits=...), since its axes are [b h s q]",
        ),
    ],
)  # fmt: skip
def test_what_is_no_probe_is_refused_with_its_line(load: Callable[[str], ModuleType], lines: str, message: str) -> None:
    text = f"@cuda.jit\n@probed\ndef kernel(b, h, q, k):\n    b = 0\n    {lines}\n"
    line, message = message[1:].split(":", 1)
    mine = f"/mine{next(NUMBERS) + 1}.py:{int(line) + HEAD.count(chr(10))}:{message}"
    assert refusal(load, text).endswith(mine)


def test_probed_stands_below_jit(load: Callable[[str], ModuleType]) -> None:
    said = refusal(load, "@probed\n@cuda.jit\ndef kernel(x):\n    probe.lse[0, 0, 0] = x[0]\n")
    assert said.startswith("put @probed below @cuda.jit, on the function itself; got CUDADispatcher(<function kernel")


def test_a_file_with_a_wrong_probe_is_refused_without_a_traceback(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(HEAD + "@cuda.jit\n@probed\ndef kernel(x):\n    probe.nope[0] = 1\n")
    assert refusal(find, f"{path}:attention") == (
        f"{path} could not be imported because of its line 8:\n"
        f"{path}:10: probe.nope: there is no stage 'nope'; stages are: {', '.join(STAGES)}"
    )


DEVICE = """
@cuda.jit(device=True)
def inner(x):
    probe.lse[0, 0, 0] = x
    return x

@cuda.jit(device=True)
def outer(x):
    return inner(x)

@cuda.jit
def kernel(x):
    x[0] = outer(x[1])

@cuda.jit
def bare(x):
    probe.lse[0, 0, 0] = x[0]
"""


@pytest.mark.parametrize(("kernel", "function", "line"), [("kernel", "inner", 10), ("bare", "bare", 23)])
def test_probes_elsewhere_are_refused(load: Callable[[str], ModuleType], kernel: str, function: str, line: int) -> None:
    mine = load(DEVICE)
    with Launches("mine", on_emulator=True).sent():
        assert refusal(getattr(mine, kernel)[1, 1], np.zeros(3)) == (
            f"{mine.__file__}:{line}: {function} has a probe but is not @probed: put @probed below @cuda.jit of the "
            "kernel, and return a device function's values to the kernel to dump them"
        )


def test_outside_of_a_kernel_there_is_no_probe(load: Callable[[str], ModuleType]) -> None:
    probe = load("").probe
    assert refusal(lambda: probe.scores) == (
        "probe.scores is outside of a @probed kernel, in which you write `probe.scores[...] = value`"
    )


#: one thread, which copies what a test says
COPY = """
@cuda.jit
@probed(block_k=8)
def kernel(x, out):
    i = cuda.grid(1)
    out[0, 0, i, 0] = x[0, 0, i, 0]
    if i % 2 == 0:
        probe.lse[0, 0, i] = x[0, 0, i, 0]

def attention(q, k, v, *, scale, causal):
    out = np.zeros_like(q)
    kernel[1, 4](q, out)
    return MADE
"""
SMALL = Case(seqlen=4, head_dim=1)


def attention(load: Callable[[str], ModuleType], made: str) -> Callable[..., Any]:
    function: Callable[..., Any] = load(COPY.replace("MADE", made)).attention
    return function


def test_what_a_function_and_its_probes_both_say_is_refused(load: Callable[[str], ModuleType]) -> None:
    both = attention(load, '{"out": out, "lse": out[..., 0]}')
    assert refusal(run, both, SMALL) == "attention returned lse, which its probes also dump: remove one of the two"
    other = attention(load, '{"out": out, "contract": {"block_k": 4}}')
    where = other.__code__.co_filename
    assert refusal(run, other, SMALL) == (
        f'{where}:10: @probed(block_k=8), but attention declares block_k=4 in its "contract" or in another kernel'
    )


def test_tiles_are_the_contract_s(load: Callable[[str], ModuleType]) -> None:
    trace = run(attention(load, "out"), SMALL)
    assert trace.contract.block_k == 8 and "block_k" not in trace.contract.assumed
    assert trace.notes == ("launched on the emulator: kernel",)


def test_float64_is_dumped_as_such_or_refused_where_slots_are_unwritten(load: Callable[[str], ModuleType]) -> None:
    text = COPY.replace("MADE", "out").replace("[1, 4](q,", "[1, 4](q.astype(np.float64) / 3,")
    assert refusal(run, load(text).attention, SMALL) == (
        "probe.lse stored float64 numbers but left 2 of 4 slots unwritten, the first at (0, 0, 1): dump "
        "float32, or write every slot"
    )
    trace = run(load(text.replace("i % 2 == 0", "i < 4")).attention, SMALL)
    assert trace.stages["lse"].dtype == np.float64
