"""Probes on a GPU: the example, every type, real fragments, and every kind of compiled code."""

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from workbench import Case, Refusal, diff, run
from workbench.foreign.probes import cuda_cpp as probes
from workbench.foreign.probes.memory import GpuArray, current_device
from workbench.trace.trace import unwritten

pytestmark = pytest.mark.gpu

EXAMPLE = Path(__file__).parent.parent.parent.parent / "examples" / "cuda_split_k.py"
CASE = Case(seqlen_q=70, seqlen_k=200, heads=4, kv_heads=2, batch=2, causal=True)
TOOLKIT = Path("/usr/local/cuda/include")
Q, K = np.zeros((2, 3, 20, 24)), np.zeros((2, 1, 40, 24))


def compiled(source: str, *defines: str) -> Any:
    """A cuda.core ObjectCode of a source with the header."""
    from cuda.core import Program, ProgramOptions
    from cuda.pathfinder import find_nvidia_header_directory

    found = [folder for name in ("cudart", "cccl") if (folder := find_nvidia_header_directory(name))]
    options = ProgramOptions(
        arch="sm_{}{}".format(*current_device().compute_capability),
        include_path=[str(probes.include_dir()), *found, str(TOOLKIT)],
        define_macro=["WB_PROBES", *defines],
    )
    return Program(source, "c++", options).compile("cubin")


def launched(code: Any, kernel: str, block: int, *arguments: Any) -> None:
    """Run a kernel of an ObjectCode in one block."""
    from cuda.core import LaunchConfig, launch

    config = LaunchConfig(grid=1, block=block)
    launch(current_device().default_stream, config, code.get_kernel(kernel), *arguments)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_the_example_is_right_and_its_fault_is_found(dtype: str, causal: bool) -> None:
    for case in (CASE, CASE.but(seqlen=64, head_dim=128)):
        case = case.but(dtype=dtype, causal=causal)
        right, wrong = (diff(run(f"{EXAMPLE}:{name}", case)) for name in ("split_k", "counts_sum_twice"))
        assert right.verdict in ("exact", "rounding"), (right.origins, case)
        assert [stage.name for stage in right.not_judged] == ["probs_cast"]
        assert wrong.origins == ("merge_weight",), case
        assert all(not unwritten(stage).any() for stage in right.trace.stages.values())


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_probes_do_not_change_a_bit_of_the_example(dtype: str) -> None:
    from workbench.foreign.find import find

    split_k = find(f"{EXAMPLE}:split_k")
    for case in (CASE.but(dtype=dtype), CASE.but(dtype=dtype, seqlen=200, head_dim=128)):
        runs = [split_k(*case.inputs(), scale=case.scale, causal=case.causal, probed=x) for x in (False, True)] * 3
        outputs = [name for name in runs[0] if name != "contract"]
        assert outputs == ["partial_O", "partial_max", "partial_sum", "out", "lse"]
        assert all(one[name].tobytes() == runs[0][name].tobytes() for one in runs for name in outputs)


TYPES = """
#include <cuda_fp16.h>
#include <cuda_bf16.h>
#include <cuda_fp8.h>
#include "workbench_probe.cuh"
extern "C" __global__ void kernel() {
    if (threadIdx.x < 40)
        for (int b = 0; b < 2; ++b)
            for (int d = 0; d < 24; ++d) WB_PROBE(codes_k, TYPE(d % 2 ? ODD : 1.0f), b, 0, threadIdx.x, d);
}
"""


@pytest.mark.parametrize(
    ("ctype", "dtype", "odd"),
    [
        ("float", np.float32, 1.5),
        ("__half", np.float16, 1.5),
        ("__nv_bfloat16", ml_dtypes.bfloat16, 1.5),
        ("__nv_fp8_e4m3", ml_dtypes.float8_e4m3fn, 1.5),
        ("__nv_fp8_e5m2", ml_dtypes.float8_e5m2, 1.5),
        ("(unsigned char)", np.uint8, 3.0),
    ],
)
def test_values_keep_their_type(ctype: str, dtype: Any, odd: float) -> None:
    code = compiled(TYPES.replace("TYPE", ctype).replace("ODD", f"{odd}f"))
    dumps = probes.hand_over(code, "fp8", Q, K, block_k=16)
    launched(code, "kernel", 64)
    found = dumps.stages()["codes_k"]
    assert found.dtype == dtype and found.shape == (2, 1, 40, 24)
    assert (found[..., ::2].astype(float) == 1).all() and (found[..., 1::2].astype(float) == odd).all()


REFUSED = """
#include "workbench_probe.cuh"
extern "C" __global__ void kernel(int first) { WB_PROBE(lse, 1.0f, 0, 0, first + int(threadIdx.x)); }
"""


def test_a_wrong_index_is_counted_and_touches_nothing() -> None:
    code = compiled(REFUSED)
    dumps = probes.hand_over(code, "flash", Q, K, block_k=16)
    launched(code, "kernel", 64, np.int32(20))
    with pytest.raises(Refusal, match=r"^probes of lse must stay in \[b h q\] = \[2, 3, 20\]; 64 stores did not"):
        dumps.stages()
    assert all((words.read() == probes.UNWRITTEN).all() for words in dumps.words.values())
    launched(code, "kernel", 20, np.int32(0))  # what was read is stored into no more
    assert (dumps.words["lse"].read() == probes.UNWRITTEN).all()


MMA = """
#include <cuda_fp16.h>
#include "workbench_probe.cuh"
// scores[16 rows, 8 keys] of a [16, 16] and b [8, 16], by the words of the PTX ISA for mma.m16n8k16
extern "C" __global__ void kernel(const __half *a, const __half *b) {
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    auto pair = [](const __half *x) { return *reinterpret_cast<const unsigned *>(x); };
    const unsigned a0 = pair(a + g * 16 + 2 * t), a1 = pair(a + (g + 8) * 16 + 2 * t);
    const unsigned a2 = pair(a + g * 16 + 2 * t + 8), a3 = pair(a + (g + 8) * 16 + 2 * t + 8);
    const unsigned b0 = pair(b + g * 16 + 2 * t), b1 = pair(b + g * 16 + 2 * t + 8);
    float c[4] = {};
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
    WB_PROBE_FRAGMENT(qk, c, r, c_, 1, 2, r + 8, 32 + c_);
}
"""


def test_registers_of_mma_are_where_the_header_says() -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-8, 9, shape).astype(np.float16) for shape in ((16, 16), (8, 16)))
    there = [GpuArray.of(x) for x in (a, b)]
    code = compiled(MMA)
    dumps = probes.hand_over(code, "flash", Q, K, block_k=16)
    launched(code, "kernel", 32, *(x.address for x in there))
    found = dumps.stages()["qk"]
    assert np.array_equal(found[1, 2, 8:, 32:], (a @ b.T)[:12]) and (~unwritten(found)).sum() == 12 * 8


WMMA = """
#include <mma.h>
#include "workbench_probe.cuh"
using namespace nvcuda::wmma;
extern "C" __global__ void kernel(const __half *a, const __half *b) {
    fragment<matrix_a, M, N, 16, __half, row_major> x;
    fragment<matrix_b, M, N, 16, __half, col_major> y;
    fragment<accumulator, M, N, 16, ACCUMULATOR> c;
    load_matrix_sync(x, a, 16);
    load_matrix_sync(y, b, 16);
    fill_fragment(c, ACCUMULATOR(0.0f));
    mma_sync(c, x, y, c);
    WB_PROBE_FRAGMENT(qk, c, row, key, 1, 2, row, 24 + key);
}
"""


@pytest.mark.parametrize("accumulator", ["float", "__half"])
@pytest.mark.parametrize(("m", "n"), [(16, 16), (32, 8), (8, 32)], ids=str)
def test_fragments_of_wmma_are_found(accumulator: str, m: int, n: int) -> None:
    if not (TOOLKIT / "crt" / "mma.h").is_file():
        pytest.skip(f"there is no crt/mma.h in {TOOLKIT}")
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-4, 5, (rows, 16)).astype(np.float16) for rows in (m, n))
    there = [GpuArray.of(x) for x in (a, b)]
    code = compiled(WMMA.replace("ACCUMULATOR", accumulator).replace("M,", f"{m},").replace("N,", f"{n},"))
    dumps = probes.hand_over(code, "flash", Q, K, block_k=16)
    launched(code, "kernel", 32, *(x.address for x in there))
    found = dumps.stages()["qk"]
    rows, keys = min(m, 20), min(n, 16)
    assert found.dtype == (np.float32 if accumulator == "float" else np.float16)
    assert np.array_equal(found[1, 2, :rows, 24 : 24 + keys], (a @ b.T)[:rows, :keys])
    assert (~unwritten(found)).sum() == rows * keys


UNIT = """
#include "workbench_probe.cuh"
__global__ void kernel_NAME() { WB_PROBE(STAGE, float(threadIdx.x), 1, 2, threadIdx.x, 0); }
extern "C" int launch_NAME() { kernel_NAME<<<1, 20>>>(); return cudaDeviceSynchronize(); }
"""


@pytest.fixture
def shared_object(tmp_path: Path) -> Callable[..., Path]:
    """shared_object(names by stage) -> what nvcc makes of a translation unit for each of them."""
    if shutil.which("nvcc") is None:
        pytest.skip("there is no nvcc here")

    def made(names: dict[str, str], *options: str) -> Path:
        for stage, name in names.items():
            (tmp_path / f"{name}.cu").write_text(UNIT.replace("NAME", name).replace("STAGE", stage))
        path = tmp_path / "extension.so"
        words = ["nvcc", "-std=c++17", "-shared", "-Xcompiler", "-fPIC", "-arch=native", *options]
        words += [f"-I{probes.include_dir()}", *(f"{tmp_path}/{name}.cu" for name in names.values()), "-o", str(path)]
        done = subprocess.run(words, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return path

    return made


def test_a_shared_object_of_nvcc_with_two_translation_units(shared_object: Callable[..., Path]) -> None:
    import ctypes

    path = shared_object({"row_max": "first", "row_sum": "second"}, "-DWB_PROBES")
    dumps = probes.hand_over(path, "flash", Q, K, block_k=16)
    library = ctypes.CDLL(str(path))
    assert library.launch_first() == 0 and library.launch_second() == 0
    found = dumps.stages()
    assert list(found) == ["row_max", "row_sum"]
    assert all(np.array_equal(stage[1, 2, :, 0], np.arange(20)) for stage in found.values())


def test_code_without_probes_is_refused(shared_object: Callable[..., Path]) -> None:
    with pytest.raises(Refusal, match="extension.so holds no probes: compile it with -DWB_PROBES"):
        probes.hand_over(shared_object({"row_max": "first"}), "flash", Q, K, block_k=16)
    plain = compiled('extern "C" __global__ void kernel() {}')
    with pytest.raises(Refusal, match="^the ObjectCode holds no probes: compile it with -DWB_PROBES"):
        probes.hand_over(plain, "flash", Q, K, block_k=16)


def test_a_module_of_cupy() -> None:
    cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
    options = ("-std=c++17", "-DWB_PROBES", f"-I{probes.include_dir()}")
    code = cupy.RawModule(code=REFUSED, options=options)
    dumps = probes.hand_over(code, "flash", cupy.asarray(Q), cupy.asarray(K), block_k=16)
    code.get_function("kernel")((1,), (20,), (cupy.int32(0),))
    assert (dumps.stages()["lse"][0, 0] == 1).all()
    plain = cupy.RawModule(code='extern "C" __global__ void kernel() {}')
    with pytest.raises(Refusal, match="^the RawModule holds no probes"):
        probes.hand_over(plain, "flash", Q, K, block_k=16)
