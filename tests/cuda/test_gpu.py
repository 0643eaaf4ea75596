"""The same kernels on a GPU: right, unchanged by probes, and within rounding of the emulator."""

import numpy as np
import pytest

from workbench import Case, diff, run
from workbench.floats import DTYPES, to_float64

pytestmark = pytest.mark.gpu

KERNELS = ("flash", "split_k")  # those on floats; those on tensor cores are in the files of their own tests

SHAPES = [(4, 4), (64, 64), (65, 64), (128, 64), (192, 64), (256, 64), (512, 64)]


@pytest.mark.parametrize("kernel", list(KERNELS))
@pytest.mark.parametrize("dtype", list(DTYPES))
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_correct_kernels_are_right(kernel: str, dtype: str, causal: bool) -> None:
    for seqlen, head_dim in SHAPES:
        case = Case(seqlen=seqlen, head_dim=head_dim, dtype=dtype, causal=causal, heads=2)
        judged = diff(run(kernel, case, backend="cuda"))
        assert judged.verdict in ("exact", "rounding"), (judged.origins, case)


@pytest.mark.parametrize("kernel", list(KERNELS))
@pytest.mark.parametrize("dtype", list(DTYPES))
def test_probes_do_not_change_a_bit_of_the_output(kernel: str, dtype: str) -> None:
    case = Case(seqlen=200, head_dim=64, dtype=dtype, causal=True, heads=2)
    plain, probed = (run(kernel, case, probes=probes, backend="cuda") for probes in ("output", "all"))
    assert all(plain.stages[name].tobytes() == probed.stages[name].tobytes() for name in ("out", "lse"))


@pytest.mark.parametrize("kernel", list(KERNELS))
def test_gpu_and_emulator_agree_within_rounding(kernel: str) -> None:
    """Contraction and exp differ; an output of size 1 may differ by some rounding errors of float32."""
    case = Case(seqlen=130, head_dim=64, causal=True)
    on_gpu, on_emulator = (run(kernel, case, backend=backend) for backend in ("cuda", "emulator"))
    difference = np.abs(to_float64(on_gpu.stages["out"]) - to_float64(on_emulator.stages["out"]))
    assert difference.size and difference.max() < 1e-5


@pytest.mark.parametrize("dtype", list(DTYPES))
def test_torch_tensors_on_the_gpu_are_taken_as_inputs(dtype: str) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    case = Case(seqlen=70, head_dim=64, dtype=dtype)
    tensors = tuple(torch.from_numpy(x.astype(np.float32)).to(getattr(torch, dtype)).cuda() for x in case.inputs())
    expected, found = run("flash", case, backend="cuda"), run("flash", case, backend="cuda", inputs=tensors)
    assert found.stages["out"].tobytes() == expected.stages["out"].tobytes()
