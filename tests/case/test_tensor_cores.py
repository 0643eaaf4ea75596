"""The table of tensor cores in a contract: what a generation resolves, what is said beside it, and what a GPU tells."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.refusals import refusal
from workbench import Case, diff, run
from workbench.case import contract
from workbench.case.contract import Contract, of_foreign
from workbench.case.presets import merged, parse
from workbench.case.tensor_cores import GENERATIONS, Accumulation, generation_of, known_of, table
from workbench.cuda import gpu
from workbench.floats import DTYPES
from workbench.foreign import call
from workbench.report.text import in_full

TF32: Mapping[str, Any] = {"input_precision": "tf32"}


def resolved(dtype: str, said: Mapping[str, Any], **options: Any) -> tuple[str, int, int]:
    """accumulation, mma_block and mma_extra_bits of a kernel."""
    promise = of_foreign(said, Case(dtype=dtype), **options)
    return promise.accumulation, promise.mma_block, promise.mma_extra_bits


@pytest.mark.parametrize(
    ("capability", "generation"),
    [
        ((7, 0), "volta"),
        ((7, 5), "turing"),
        ((8, 0), "ampere"),
        ((8, 6), "ampere"),
        ((8, 7), "ampere"),
        ((8, 9), "ada"),
        ((9, 0), "hopper"),
        ((10, 0), "blackwell"),
        ((10, 3), "blackwell"),
        ((12, 0), "blackwell"),
        ((6, 1), None),
        ((7, 2), None),
        ((13, 0), None),
    ],
)
def test_generations_of_compute_capabilities(capability: tuple[int, int], generation: str | None) -> None:
    assert generation_of(capability) == generation
    assert generation is None or generation in GENERATIONS


@pytest.mark.parametrize(
    ("dtype", "said", "expected"),
    [
        ("float16", {"tensor_core": "volta"}, ("tensor-core", 4, 0)),
        ("float16", {"tensor_core": "turing"}, ("tensor-core", 8, 1)),
        ("bfloat16", {"tensor_core": "ampere"}, ("tensor-core", 8, 1)),
        ("bfloat16", {"tensor_core": "hopper"}, ("tensor-core", 16, 2)),
        ("float32", {"tensor_core": "ampere", **TF32}, ("tensor-core", 4, 1)),
        ("float32", {"tensor_core": "hopper", "input_precision": "tf32x3"}, ("tensor-core", 8, 2)),
        # qk of 16 bits, acc of float32 probs: the shorter blocks of TF32
        ("float16", {"tensor_core": "hopper", **TF32}, ("tensor-core", 8, 2)),
        # float32 as it is meets no tensor core
        ("float32", {"tensor_core": "hopper"}, ("nearest", 4, 0)),
        # what is said beside it
        ("float16", {"tensor_core": "hopper", "mma_block": 8}, ("tensor-core", 8, 2)),
        ("float16", {"tensor_core": "hopper", "accumulation": "nearest"}, ("nearest", 16, 2)),
        ("float16", {"tensor_core": None}, ("any", 4, 0)),
    ],
)
def test_a_generation_settles_what_nobody_says(
    dtype: str, said: dict[str, Any], expected: tuple[str, int, int]
) -> None:
    assert resolved(dtype, said) == expected
    promise = of_foreign(said, Case(dtype=dtype))
    assert promise.tensor_core == said["tensor_core"] and "tensor_core" not in promise.assumed
    known = known_of(said["tensor_core"], "tf32" if promise.input_precision != "ieee" else dtype, declared=True)
    assert not {*known, *said} & {*promise.assumed}
    assert contract.of_dict(promise.as_dict()) == promise
    assert of_foreign(parse(",".join(f"{name}={x}" for name, x in said.items())), Case(dtype=dtype)) == promise


def test_float8_operands_unless_they_were_seen_widened() -> None:
    case = Case(codes="e4m3")
    found = {name: of_foreign({"tensor_core": name}, case) for name in ("ada", "hopper", "blackwell")}
    pairs = {name: (promise.mma_block, promise.mma_extra_bits) for name, promise in found.items()}
    assert pairs == {"ada": (16, -10), "hopper": (32, -10), "blackwell": (32, 2)}
    widened = of_foreign({"tensor_core": "hopper"}, case, "bfloat16")
    assert (widened.mma_block, widened.mma_extra_bits) == (16, 2)
    assert of_foreign({"tensor_core": "volta"}, Case(codes="simulated")).mma_block == 4


@pytest.mark.parametrize(
    ("case", "said", "kinds", "operands"),
    [
        (Case(dtype="bfloat16"), {"tensor_core": "turing"}, "float16", "bfloat16"),
        (Case(), {"tensor_core": "volta", **TF32}, "float16", "tf32"),
        (Case(codes="e4m3"), {"tensor_core": "ampere"}, "float16, bfloat16, tf32", "float8"),
    ],
)
def test_operands_that_its_tensor_cores_do_not_multiply(
    case: Case, said: dict[str, Any], kinds: str, operands: str
) -> None:
    assert refusal(of_foreign, said, case) == (
        f'"contract" field tensor_core={said["tensor_core"]} multiplies {kinds}; the products of this case have {operands} operands: '
        "leave tensor_core out"
    )
    told = {name: x for name, x in said.items() if name != "tensor_core"}
    assert of_foreign(told, case, gpu=said["tensor_core"]) == of_foreign(told, case)  # of a GPU nothing is known then


def test_words_that_are_no_generation_and_two_that_differ() -> None:
    words = ", ".join(GENERATIONS)
    assert refusal(of_foreign, {"tensor_core": "a100"}, Case()) == (
        f"\"contract\" field tensor_core must be one of {words}; got 'a100'"
    )
    assert refusal(merged, {"tensor_core": "ampere"}, {"tensor_core": "hopper"}, "mine") == (
        'mine says tensor_core=hopper in its "contract", but --contract says tensor_core=ampere: leave out the wrong one'
    )


# ---- told by the GPU


def test_a_gpu_tells_what_its_tensor_cores_keep_and_not_that_they_multiply() -> None:
    for dtype, expected in (("float16", ("any", 16, 2)), ("float32", ("nearest", 4, 0))):
        assert resolved(dtype, {}, gpu="hopper") == expected
    assert resolved("float32", TF32, gpu="hopper") == ("any", 8, 2)
    assert resolved("float16", {"mma_block": 4}, gpu="hopper") == ("any", 4, 2)
    assert resolved("float16", {"tensor_core": "ampere"}, gpu="hopper") == ("tensor-core", 8, 1)
    promise = of_foreign({}, Case(dtype="float16"), gpu="hopper")
    assert promise.tensor_core == "hopper" and "tensor_core" in promise.assumed
    assert not {"mma_block", "mma_extra_bits"} & {*promise.assumed} and "accumulation" in promise.assumed
    codes = Case(codes="e4m3")  # which a kernel may widen first
    assert of_foreign({}, codes, gpu="hopper") == of_foreign({}, codes)


def test_a_run_on_a_gpu_is_told_its_tensor_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """An H100 in the driver's place; arrays stay where they are."""
    monkeypatch.setattr(gpu, "gpu", lambda: gpu.Gpu("NVIDIA H100", (9, 0), "13.0"))

    def kernel(q: np.ndarray, k: np.ndarray, v: np.ndarray, *, scale: float, causal: bool) -> np.ndarray:
        scores = q.astype(np.float32) @ k.astype(np.float32).swapaxes(-1, -2) * np.float32(scale)
        probs = np.exp(scores - scores.max(-1, keepdims=True))
        return (probs @ v.astype(np.float32) / probs.sum(-1, keepdims=True)).astype(q.dtype)

    case = Case(seqlen=20, head_dim=16, dtype="float16")
    told = {}
    for device in ("cpu", "cuda"):
        monkeypatch.setattr(call, "home", lambda arrays, wanted, device=device: device)
        told[device] = diff(run(kernel, case))
        assert told[device].verdict == "rounding"
    assert told["cpu"].trace.contract.tensor_core is None
    assert told["cuda"].trace.contract.tensor_core == "hopper" and told["cuda"].trace.contract.mma_block == 16
    assert "tensor_core=hopper (read off the GPU)" in in_full(told["cuda"])
    monkeypatch.setattr(gpu, "gpu", lambda: gpu.Gpu("unheard of", (99, 0), "99.0"))
    assert diff(run(kernel, case)).trace.contract.tensor_core is None


# ---- the table


def test_the_weakest_and_the_usual_core_are_rows_of_the_table() -> None:
    for dtype in DTYPES:
        promise = of_foreign({}, Case(dtype=dtype))
        weakest = Accumulation(promise.mma_block, promise.mma_extra_bits)
        kinds = [x for name, one in GENERATIONS.items() for kind, x in one.items() if kind != "float8"]
        assert kinds and max(one.ulps / one.block for one in kinds) == weakest.ulps / weakest.block
    assert (Contract.mma_block, Contract.mma_extra_bits) == GENERATIONS["hopper"]["float16"]
    assert len(table()) == len({(one["generation"], one["operands"]) for one in table()}) == 17


def test_what_a_step_may_lose() -> None:
    """Of 16 products and the sum so far a quarter of a last bit each, and a last bit of the sum; of E8M13 2^10 of both."""
    assert Accumulation(16, 2).ulps == 17 / 4 + 1 and Accumulation(16, 2).fraction_bits == 23
    assert Accumulation(32, -10).ulps == 34 * 2**10 and Accumulation(32, -10).fraction_bits == 13
    assert replace(of_foreign({}, Case()), **Accumulation(8, 1).fields()).mma_block == 8
