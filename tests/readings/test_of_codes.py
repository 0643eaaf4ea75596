"""Kernels on codes, read off `out` alone: decode tables entry by entry, whose scale is multiplied, maps of codes."""

import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from workbench import Case, run
from workbench.case.formats import FORMATS
from workbench.readings.reader import Measured, measured

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
import fp8_attention as example  # noqa: E402

CASE = Case(codes="e4m3", heads=2, seqlen=64, head_dim=32)


def kernel(
    q: Any, k: Any, v: Any, *, scale_q: Any, scale_k: Any, scale_v: Any, scale: float, causal: bool,
    codes: str = "e4m3", bug: str = "", **zeros: Any,
) -> np.ndarray:  # fmt: skip
    """Attention on codes of a format with scales of heads."""
    table = FORMATS[codes].values.astype(np.float32)
    wrong = table.copy()
    if bug == "zero point of v":
        wrong = table - (table[129] - table[128])
    if bug == "nan code of v":
        wrong[0x7F] = 480
    if bug == "last code of v":
        wrong[0x7E] = 0
    scales = {"q": scale_q, "k": scale_k, "v": scale_v}
    if bug == "scale of k for v":
        scales["v"] = scale_k
    if bug == "scale of head 0 for v":
        scales["v"] = np.full_like(scale_v, scale_v[0])
    x = {
        name: (wrong if name == bug[-1:] else table)[of] * scales[name].reshape(-1, 1, 1)
        for name, of in (("q", q), ("k", k), ("v", v))
    }
    scores = x["q"] @ np.swapaxes(x["k"], -1, -2) * np.float32(scale)
    if causal:
        scores = np.where(np.tri(*scores.shape[-2:], dtype=bool), scores, np.float32(-np.inf))
    probs = np.exp(scores - scores.max(-1, keepdims=True))
    found: np.ndarray = probs @ x["v"] / probs.sum(-1, keepdims=True)
    return found


def read(function: Any, case: Case = CASE) -> Measured:
    found = measured(run(function, case))
    assert found.calls <= 200
    return found


@pytest.mark.parametrize("codes", ["e4m3", "simulated"])
def test_of_a_right_kernel_nothing_is_found(codes: str) -> None:
    found = read(partial(kernel, codes=codes), CASE.but(codes=codes))
    assert not found.findings and found.calls <= 3


#: fault -> codes, and the words of each finding
FAULTS = {
    "zero point of v": ("simulated", ("V is decoded wrong: codes 0x01-0xff are decoded as the code 1 below",)),
    "last code of v": ("e4m3", ("V is decoded wrong: code 0x7e is 0",)),
    "scale of k for v": ("e4m3", ("V is multiplied by the scale of K",)),
    "scale of head 0 for v": ("int8", ("all heads of V are multiplied by the scale of head 0",)),
}


@pytest.mark.parametrize("bug", FAULTS)
def test_a_table_or_a_scale_is_read(bug: str) -> None:
    codes, words = FAULTS[bug]
    found = read(partial(kernel, codes=codes, bug=bug), CASE.but(codes=codes))
    assert [finding.text for finding in found.findings] == [*words] and found.proved


def test_a_code_that_no_number_has_tells_nothing() -> None:
    assert not read(partial(kernel, bug="nan code of v")).findings


@pytest.mark.campaign(but=1)
@pytest.mark.parametrize(
    ("name", "words"),
    [
        (
            "sign_and_fragment",
            {
                "V is decoded wrong: codes 0x81-0xfe are decoded with the wrong sign",
                "K is read wrong: each 16 x 16 block is transposed",
            },
        ),
        (
            "octave_and_swizzle",
            {
                "chunks of 8 elements are swizzled (87.5% of its elements come from elsewhere): dim bit 3 by row bit 0, dim bit"
                " 4 by row bit 1",
                "K is decoded wrong: codes 0x40-0x47 are decoded as twice their value",
            },
        ),
        ("short_table_and_pairs", {"V is decoded wrong: codes 0xc0-0xfe are 0", "K is read wrong: chunks of 8"}),
        (
            "bit_and_fragment",
            {
                "V is read wrong: each 16 x 16 block is transposed",
                "K is decoded wrong: codes 0x01, 0x03, 0x05",
            },
        ),
        (
            "octave_of_all_and_swizzle",
            {f"{x} is decoded wrong: codes 0x40-0x47 are decoded as twice their value" for x in "QKV"}
            | {"chunks of 8"},
        ),
    ],
)
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_a_table_and_a_layout_at_once(causal: bool, name: str, words: set[str]) -> None:
    found = read(getattr(example, f"numpy_{name}"), CASE.but(head_dim=64, causal=causal))
    assert len(found.findings) == len(words) and found.proved
    assert all(any(part in one.text for one in found.findings) for part in words)
    assert all(one.left <= 1e-4 * one.error for one in found.proofs)


def test_a_fault_is_not_left_out_beside_a_larger_one() -> None:
    """What K's layout does to out is less than a tenth of what V's table does: weights show it."""
    found = read(example.numpy_sign_and_fragment, CASE.but(seqlen_q=64, seqlen_k=192, head_dim=64))
    assert [one.reading for one in found.findings] == ["table of v", "elements"]
    assert all(one.left <= 1e-6 for one in found.proofs)


def test_numbers_are_made_of_the_code_of_0_after_a_table_was_read() -> None:
    """Keys of score 0 that were given the smallest code instead made Q's table wrong, which it is not."""
    found = read(example.numpy_octave_and_swizzle, CASE.but(heads=8, head_dim=64))
    assert [one.reading for one in found.findings] == ["elements", "table of k"] and found.proved


@pytest.mark.gpu
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_the_kernel_on_tensor_cores_is_its_twin(causal: bool) -> None:
    case = CASE.but(heads=4, kv_heads=2, seqlen=80, head_dim=64, causal=causal)
    assert not read(example.attention, case).findings
    found = read(example.sign_and_fragment, case.but(seqlen=64))
    assert len(found.findings) == 2 and found.proved
