"""Handing buffers to compiled code: what is refused, and where the header is."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from workbench import Refusal, Unavailable
from workbench.case.stages import ALGORITHMS
from workbench.cuda.gpu import gpu
from workbench.foreign.probes import cuda_cpp as probes

SPLITTING = ", ".join(name for name, stages in ALGORITHMS.items() if "merge_weight" in stages)
Q, K = np.zeros((1, 2, 20, 24)), np.zeros((1, 1, 40, 24))


class ObjectCode:
    """What cuda.core's is recognised by."""

    def get_kernel(self, name: str) -> None: ...


def test_the_header_is_where_python_says() -> None:
    header = probes.include_dir() / "workbench_probe.cuh"
    lines = header.read_text().splitlines()
    assert 50 < len(lines) <= 150 and max(map(len, lines)) <= 120


@pytest.mark.parametrize(
    ("code", "algorithm", "options", "message"),
    [
        ("a.so", "flsh", {}, f"algorithm must be one of {', '.join(ALGORITHMS)}; got 'flsh'"),
        (
            "a.so",
            "flash",
            {"splits": 2},
            f"splits is for {SPLITTING}, which need it; got algorithm 'flash' and splits=2",
        ),
        (
            "a.so",
            "split_k",
            {},
            f"splits is for {SPLITTING}, which need it; got algorithm 'split_k' and splits=None",
        ),
        ("nowhere.so", "flash", {}, "nowhere.so: no such file"),
        (
            7,
            "flash",
            {},
            "code is a cuda.core ObjectCode, a cupy.RawModule, or the path or module of a shared object; got int",
        ),
        (
            __file__,
            "flash",
            {"stages": "scoers"},
            "probes must be one of all, lean, output, or some of the stages qk, scores, row_max, correction, probs, "
            "probs_cast, row_sum, acc, out, lse; got 'scoers'",
        ),
        (__file__, "flash", {}, f"{__file__} is no shared object that can be loaded: "),
    ],
)
def test_what_cannot_be_handed_over_is_refused(
    code: Any, algorithm: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(Refusal) as refusal:
        probes.hand_over(code, algorithm, Q, K, block_k=16, **options)
    said = str(refusal.value)
    assert said.startswith(message) if message.endswith(": ") else said == message


def test_code_for_a_gpu_is_unavailable_without_one() -> None:
    if gpu() is not None:
        pytest.skip("there is a GPU")
    with pytest.raises(Unavailable, match="^CUDA C\\+\\+ kernels run on an NVIDIA GPU, and there is none here: "):
        probes.hand_over(ObjectCode(), "flash", Q, K, block_k=16)


def test_a_shared_object_is_found_by_its_module(tmp_path: Path) -> None:
    class Extension:
        __file__ = str(tmp_path / "gone.so")

    with pytest.raises(Refusal) as refusal:
        probes.hand_over(Extension(), "flash", Q, K, block_k=16)
    assert str(refusal.value) == f"{tmp_path}/gone.so: no such file"
