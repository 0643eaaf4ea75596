"""Scales of blocks, read off `out` alone: MXFP8, NVFP4 and float32 scales of tokens, right and wrong."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

from workbench import Case, run
from workbench.case.formats import FORMATS
from workbench.readings.reader import Measured, measured

CASE = Case(heads=2, seqlen=64, head_dim=64)
#: format -> dims that share a scale
BLOCKS = {"mxfp8-e4m3": 32, "mxfp8-e5m2": 32, "nvfp4": 16}


def swizzled(scale: np.ndarray) -> np.ndarray:
    """Scales that lie in tiles of 32 rows with rows 8 apart beside each other, read as if they lay plainly."""
    b, h, rows, blocks = scale.shape
    return scale.reshape(b, h, rows // 32, 4, 8, blocks).swapaxes(3, 4).reshape(scale.shape)


def power(scale: np.ndarray) -> np.ndarray:
    return np.where(scale > 0, np.exp2(np.floor(np.log2(np.maximum(scale, 1e-30)))), 0).astype(np.float32)


#: fault -> what becomes of scales [b, h, row, block]
FAULTS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "next block": lambda x: np.roll(x, -1, -1),
    "next row": lambda x: np.roll(x, -1, 2),
    "next head": lambda x: np.roll(x, -1, 1),
    "swizzled": swizzled,
    "rounded down": power,
    "not multiplied": lambda x: np.ones_like(x),
    "twice": np.square,
}


def attention(q: Any, k: Any, v: Any, *, scale: float, causal: bool, codes: str, bug: str = "", **more: Any) -> Any:
    fault, _, name = bug.rpartition(" of ")
    table = FORMATS[codes].values.astype(np.float32)
    x = {}
    for one, of in (("q", q), ("k", k), ("v", v)):
        scales, over = more[f"scale_{one}"], more.get(f"global_{one}", np.ones(1, np.float32))
        decoded = table[of]
        if one == name:
            if fault == "wrong table":
                decoded = np.where(of % 16 == 5, table[np.maximum(of, 1) - 1], decoded)
            if fault == "scale of q":
                scales = more["scale_q"]
            if fault == "scale of the tensor q":
                over = more["global_q"]
            if fault == "no scale of the tensor":
                over = np.ones(1, np.float32)
            scales = FAULTS.get(fault, lambda x: x)(scales)
        block = (2 if (one, fault) == (name, "blocks twice as wide") else 1) * BLOCKS.get(codes, of.shape[-1])
        at = np.minimum(np.arange(of.shape[-1]) // block, scales.shape[-1] - 1)
        x[one] = decoded * scales[..., at] * over[0]
        if (one, fault) == (name, "rows swapped and next block"):
            x[one] = (decoded * np.roll(scales, -1, -1)[..., at] * over[0])[:, :, np.arange(of.shape[2]) ^ 1]
    x = {one: np.repeat(rows, q.shape[1] // rows.shape[1], 1) for one, rows in x.items()}
    scores = x["q"] @ np.swapaxes(x["k"], -1, -2) * np.float32(scale)
    if causal:
        scores = np.where(np.tri(*scores.shape[-2:], dtype=bool), scores, np.float32(-np.inf))
    probs = np.exp(scores - scores.max(-1, keepdims=True))
    return probs @ x["v"] / probs.sum(-1, keepdims=True)


def kernel(codes: str, bug: str = "") -> Callable[..., Any]:
    """A function that takes all that its format has."""
    made = partial(attention, codes=codes, bug=bug)

    def plain(q: Any, k: Any, v: Any, *, scale_q: Any, scale_k: Any, scale_v: Any, scale: float, causal: bool) -> Any:
        return made(q, k, v, scale_q=scale_q, scale_k=scale_k, scale_v=scale_v, scale=scale, causal=causal)

    def of_tensors(
        q: Any, k: Any, v: Any, *, scale_q: Any, scale_k: Any, scale_v: Any, global_q: Any, global_k: Any,
        global_v: Any, scale: float, causal: bool,
    ) -> Any:  # fmt: skip
        of = {"global_q": global_q, "global_k": global_k, "global_v": global_v}
        of |= {"scale_q": scale_q, "scale_k": scale_k, "scale_v": scale_v}
        return made(q, k, v, scale=scale, causal=causal, **of)

    return of_tensors if FORMATS[codes].tensor_scale else plain


def read(codes: str, bug: str = "", **options: Any) -> Measured:
    found = measured(run(kernel(codes, bug), CASE.but(codes=codes, **options)))
    assert found.calls <= 200, (found.calls, str(found))
    return found


@pytest.mark.parametrize("codes", BLOCKS)
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_of_a_right_kernel_nothing_is_found(codes: str, causal: bool) -> None:
    found = read(codes, causal=causal, heads=4, kv_heads=2)
    assert not found.findings and found.calls <= 3 and found.verdict.stage is None


#: format, fault, and the words of each finding
WRONG = [
    ("nvfp4", "next block of v", ["V is multiplied by the wrong scales: block i is block i + 1 (mod 4)"]),
    ("nvfp4", "next block of k", ["K is multiplied by the wrong scales: block i is block i + 1 (mod 4)"]),
    ("nvfp4", "next block of q", ["Q is multiplied by the wrong scales: block i is block i + 1 (mod 4)"]),
    ("nvfp4", "no scale of the tensor of v", ["V is not multiplied by its tensor scale"]),
    ("nvfp4", "rounded down of v", ["scales of V are rounded down to powers of two"]),
    ("nvfp4", "rounded down of k", ["scales of K are rounded down to powers of two"]),
    ("nvfp4", "wrong table of k", ["K is decoded wrong: code 0x05 is 2, not 3"]),
    ("mxfp8-e4m3", "swizzled of k", ["K is multiplied by the wrong scales: row i of each 32 is row 8 (i mod 4) + i div 4"]),
    ("mxfp8-e4m3", "next row of v", ["V is multiplied by the wrong scales: row i is row i + 1 (mod 64)"]),
    ("mxfp8-e4m3", "next head of v", ["V is multiplied by the wrong scales: head 0 comes from head 1, 1 from 0"]),
    ("mxfp8-e4m3", "blocks twice as wide of q", ["Q is multiplied by the wrong scales: those of blocks of 64 dims, not 32"]),
    ("mxfp8-e4m3", "not multiplied of v", ["V is not multiplied by its scale"]),
    ("mxfp8-e4m3", "twice of q", ["Q is multiplied by its scale twice"]),
    ("mxfp8-e4m3", "scale of q of v", ["V is multiplied by the scale of Q"]),
    ("mxfp8-e5m2", "wrong table of v", ["V is decoded wrong: codes 0x05 of each 16 (from 0x05 to 0xf5) are decoded without bit 0"]),
    *(
        (codes, f"rows swapped and next block of {x}", [f"{x.upper()} is read wrong: row i is row i xor 1",
         f"{x.upper()} is multiplied by the wrong scales: block"])
        for codes, x in (("nvfp4", "v"), ("mxfp8-e4m3", "k"), ("nvfp4", "q"))
    ),
]  # fmt: skip


@pytest.mark.campaign(but=4)
@pytest.mark.parametrize(("codes", "bug", "words"), WRONG, ids=[f"{a} {b}" for a, b, _ in WRONG])
def test_a_fault_of_a_format_of_blocks_is_read(codes: str, bug: str, words: list[str]) -> None:
    found = read(codes, bug)
    assert len(found.findings) == len(words) and found.proved
    assert all(one.text.startswith(said) for one, said in zip(found.findings, words, strict=True))
    assert all(one.left <= 1e-5 * one.error for one in found.proofs) and len(found.proofs) == 2


@pytest.mark.parametrize(
    ("bug", "words"),
    [
        ("next row of k", "K is multiplied by the wrong scales: row i is row i + 1 (mod 64)"),
        ("next row of v", "V is multiplied by the wrong scales: row i is row i + 1 (mod 64)"),
        ("rounded down of q", "scales of Q are rounded down to powers of two"),
    ],
)
def test_scales_of_tokens_too(bug: str, words: str) -> None:
    """Of a causal run, of grouped heads, where rows see some of the keys."""
    found = read("e4m3", bug, scale_of="token", heads=4, kv_heads=2, causal=True)
    assert [one.text for one in found.findings] == [words] and found.proved


def test_a_map_is_data() -> None:
    (finding,) = read("nvfp4", "next block of v").findings
    entry = np.arange(2 * 64 * 4).reshape(1, 2, 64, 4)
    assert np.array_equal(finding.data["v"], np.roll(entry, -1, -1).repeat(16, -1))
