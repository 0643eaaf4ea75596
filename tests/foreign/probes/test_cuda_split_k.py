"""The example in CUDA C++: its verdict and its fault on the CPU (g++) and on a GPU, its cubins with and without probes."""

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from workbench import Case, Unavailable, diff, run
from workbench.cuda.gpu import gpu
from workbench.foreign.find import find
from workbench.foreign.probes import cuda_cpp as probes

ROOT = Path(__file__).parent.parent.parent.parent
EXAMPLE = ROOT / "examples" / "cuda_split_k.py"
SOURCE = (ROOT / "examples" / "split_k.cu").read_text()
OUTPUTS = ("out", "lse", "partial_O", "partial_max", "partial_sum")
CASES = [
    Case(seqlen=70, head_dim=16, causal=True),
    Case(seqlen_q=20, seqlen_k=130, heads=4, kv_heads=2, batch=2, head_dim=24, dtype="float16"),
]
#: GPUs for which the example is compiled
ARCHITECTURES = [(8, 0), (8, 9), (9, 0), (10, 0)]


@pytest.fixture(scope="module")
def example() -> Any:
    """The module."""
    return sys.modules[find(f"{EXAMPLE}:split_k").__module__]


def stripped(source: str) -> str:
    """The source without a word of probes."""
    return "\n".join(line for line in source.splitlines() if not re.search("WB_PROBE|workbench_probe", line))


@pytest.fixture(scope="module")
def on_cpu(example: Any, on_host: Callable[..., Path], launch_on_host: Callable[..., None]) -> Callable[..., Any]:
    """on_cpu(*defines, probed) -> the example as a foreign function on the CPU."""

    def made(*defines: str, probed: bool = True) -> Callable[..., Any]:
        def split_k(q: np.ndarray, k: np.ndarray, v: np.ndarray, *, scale: float, causal: bool) -> dict[str, Any]:
            names = dict(example.constants(str(q.dtype), q.shape[3])) | dict.fromkeys(defines, "1")
            names["ELEMENT"] = {"float32": "float", "float16": "_Float16"}[str(q.dtype)]
            code = on_host('#include "split_k.cu"', "split_k_partial", "split_k_reduce", defines=names, probed=probed)
            tiles = {"block_k": example.BLOCK_K, "splits": example.SPLITS}
            dumps = probes.hand_over(code, "split_k", q, k, **tiles) if probed else None
            stages = example.buffers(q)
            arrays = {"q": q, "k": k, "v": v} | stages
            for kernel, grid, arguments, scalars in example.launches(q.shape, k.shape, scale, causal):
                values = [*(arrays[name] for name in arguments), *scalars]
                launch_on_host(code, kernel, grid, example.BLOCK_Q * example.LANES, values)
            return stages | (dumps.stages() if dumps else {}) | {"contract": example.CONTRACT}

        return split_k

    return made


@pytest.mark.campaign
@pytest.mark.parametrize("case", CASES, ids=["float32", "float16"])
def test_on_the_cpu_it_is_right_and_its_fault_is_found(on_cpu: Callable[..., Any], case: Case) -> None:
    right, wrong = (diff(run(on_cpu(*defines), case)) for defines in ((), ("COUNTS_SUM_TWICE",)))
    assert right.verdict == "rounding" and [stage.name for stage in right.not_judged] == ["probs_cast"]
    assert wrong.origins == ("merge_weight",) and wrong.victims == ("out",)
    plain = run(on_cpu(probed=False), case)
    assert tuple(plain.stages) == tuple(stage for stage in right.trace.stages if stage in OUTPUTS)
    assert all(plain.stages[name].tobytes() == right.trace.stages[name].tobytes() for name in OUTPUTS)


@pytest.mark.campaign(but=1)
@pytest.mark.parametrize("cc", ARCHITECTURES, ids=lambda cc: "sm_{}{}".format(*cc))
def test_without_the_macro_the_cubin_is_that_of_the_source_without_probes(
    example: Any, monkeypatch: pytest.MonkeyPatch, cc: tuple[int, int]
) -> None:
    def cubin(*defines: str) -> bytes:
        return bytes(example.compiled.__wrapped__(cc, "float16", 64, defines).code)

    probed, plain = cubin("WB_PROBES"), cubin()
    assert probes.TABLE.encode() in probed and probes.TABLE.encode() not in plain
    monkeypatch.setattr(Path, "read_text", lambda _: stripped(SOURCE))
    assert plain == cubin() and "PROBE" not in stripped(SOURCE) and "__shfl_xor_sync" in stripped(SOURCE)


def test_five_lines_beside_the_probes() -> None:
    """The include, two options of the compiler, the buffers and what they held."""
    lines = [line for line in [*SOURCE.splitlines(), *EXAMPLE.read_text().splitlines()] if "WB_PROBE(" not in line]
    concerned = [line for line in lines if re.search(r"workbench_probe|include_dir|WB_PROBES|hand_over|dumps\.", line)]
    assert len(concerned) == 5, concerned


def test_without_a_gpu_it_is_unavailable() -> None:
    if gpu() is not None:
        pytest.skip("there is a GPU")
    with pytest.raises(Unavailable, match="^CUDA C\\+\\+ kernels run on an NVIDIA GPU, and there is none here: "):
        run(f"{EXAMPLE}:split_k", CASES[0])
    words = [sys.executable, "-c", "from workbench.cli.main import main; main()", "diff", f"{EXAMPLE}:split_k"]
    result = subprocess.run(words, capture_output=True, text=True, check=False)
    assert result.returncode == 3 and "CUDA C++ kernels run on an NVIDIA GPU" in result.stderr
