"""Functions on quantised codes, held to `workbench accept`."""

from pathlib import Path
from typing import Any

import pytest

from tests.refusals import refusal
from workbench.explore.acceptance.file import of_plain
from workbench.explore.acceptance.run import Acceptance, accept

KERNELS = """
import ml_dtypes
import numpy as np


def _attention(q, k, v, scale, causal):
    k, v = (np.repeat(x, q.shape[1] // x.shape[1], 1) for x in (k, v))
    scores = q @ k.swapaxes(-1, -2) * np.float32(scale)
    if causal:
        rows, keys = scores.shape[-2:]
        scores = np.where(np.tri(rows, keys, keys - rows, dtype=bool), scores, -np.inf)
    probs = np.exp(scores - scores.max(-1, keepdims=True))
    return (probs @ v / probs.sum(-1, keepdims=True)).astype(np.float32)


def _e4m3(codes, scale):
    scale = scale[:, None, None] if scale.ndim == 1 else scale
    return codes.view(ml_dtypes.float8_e4m3fn).astype(np.float32) * scale


def all_codes(q, k, v, *, scale_q, scale_k, scale_v, scale, causal):
    return _attention(_e4m3(q, scale_q), _e4m3(k, scale_k), _e4m3(v, scale_v), scale, causal)


def a_scale_of_k_for_v(q, k, v, *, scale_q, scale_k, scale_v, scale, causal):
    return _attention(_e4m3(q, scale_q), _e4m3(k, scale_k), _e4m3(v, scale_k), scale, causal)


def no_scale_of_q(q, k, v, *, scale_q, scale_k, scale_v, scale, causal):
    return _attention(_e4m3(q, np.ones_like(scale_q)), _e4m3(k, scale_k), _e4m3(v, scale_v), scale, causal)


def a_cache(q, k, v, *, scale_k, scale_v, scale, causal):
    k, v = (x.view(np.int8).astype(np.float32) * s for x, s in ((k, scale_k), (v, scale_v)))
    return _attention(q.astype(np.float32), k, v, scale, causal)


def a_cache_by_the_token_before(q, k, v, *, scale_k, scale_v, scale, causal):
    return a_cache(q, k, v, scale_k=np.roll(scale_k, 1, 2), scale_v=scale_v, scale=scale, causal=causal)


def _four_bits(codes, scale, zero):
    scale, zero = (np.repeat(x, 64, -1)[..., : codes.shape[-1]] for x in (scale, zero))
    return (codes.astype(np.float32) - zero) * scale


def four_bits(q, k, v, *, scale_k, scale_v, zero_k, zero_v, scale, causal):
    return _attention(q.astype(np.float32), _four_bits(k, scale_k, zero_k), _four_bits(v, scale_v, zero_v), scale, causal)


def four_bits_without_zeros(q, k, v, *, scale_k, scale_v, zero_k, zero_v, scale, causal):
    k, v = _four_bits(k, scale_k, 0 * zero_k), _four_bits(v, scale_v, zero_v)
    return _attention(q.astype(np.float32), k, v, scale, causal)


def decodes_in_place(q, k, v, *, scale_q, scale_k, scale_v, scale, causal):
    made = all_codes(q, k, v, scale_q=scale_q, scale_k=scale_k, scale_v=scale_v, scale=scale, causal=causal)
    k[...] = 0
    return made


def on_floats(q, k, v, *, scale, causal):
    return _attention(q, k, v, scale, causal)
"""
SHORT = {"seqlen": [24, 33], "head_dim": 80, "kv_heads": 2, "distribution": "normal"}
E4M3 = {"codes": "e4m3", **SHORT}
CACHE = {"codes": "int8", "of": "kv", "scale_of": "token", "dtype": "float16", **SHORT}
INT4 = {"codes": "int4", "of": "kv", "scale_of": "block", **SHORT}


def held(folder: Path, name: str, case: dict[str, Any], index: int) -> Acceptance:
    file = folder / "kernels.py"
    file.write_text(KERNELS)
    return accept(f"{file}:{name}", {"case": case, "without": ["beside"]}, unsafe=True, seed=4, only=index)


@pytest.mark.campaign(but=2)
@pytest.mark.parametrize("index", range(3))
@pytest.mark.parametrize(
    ("name", "case"),
    [("all_codes", E4M3), ("all_codes", {**E4M3, "scale_of": "token"}), ("a_cache", CACHE), ("four_bits", INT4)],
)
def test_a_right_function_passes(tmp_path: Path, name: str, case: dict[str, Any], index: int) -> None:
    found = held(tmp_path, name, case, index)
    assert found.failure is None and found.cases == 1 and found.worst is not None and found.worst < 1


@pytest.mark.campaign(but=2)
@pytest.mark.parametrize(
    ("name", "case"),
    [
        ("a_scale_of_k_for_v", E4M3),
        ("no_scale_of_q", E4M3),
        ("a_cache_by_the_token_before", CACHE),
        ("four_bits_without_zeros", INT4),
    ],
)
def test_a_wrong_one_fails(tmp_path: Path, name: str, case: dict[str, Any]) -> None:
    failure = held(tmp_path, name, case, 0).failure
    assert failure is not None and failure.kind == "wrong" and failure.judged is not None
    assert failure.judged.trace.put_in  # it was given codes


def test_codes_are_an_input_that_is_not_written_to(tmp_path: Path) -> None:
    failure = held(tmp_path, "decodes_in_place", E4M3, 0).failure
    assert failure is not None and failure.words == "input k was overwritten"


def test_a_function_that_takes_no_codes_is_told_the_keywords(tmp_path: Path) -> None:
    failure = held(tmp_path, "on_floats", E4M3, 0).failure
    assert failure is not None and failure.words == (
        "it takes no e4m3 codes, but the spec has them: add the keywords scale_q, scale_k, scale_v"
    )


def test_scales_that_a_format_does_not_have_are_refused() -> None:
    said = refusal(of_plain, {"case": {"codes": "int8", "scale_of": "block"}}, "spec")
    assert said.startswith("int8 codes take scale_of=") and "got scale_of=block" in said
