"""Calls that adapters make are read back as what was asked, by what is judged of them."""

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests import packages as stand_ins
from workbench import Case, Refusal, capture, load, run
from workbench.case.masks import attn_bias, visible
from workbench.foreign.adapters import ADAPTERS
from workbench.foreign.calls import reader_of

torch = pytest.importorskip("torch", reason="torch is not installed")
SDPA, FLEX = "torch:scaled_dot_product_attention", "torch:flex_attention"
FLASH, PREFILL = "flash_attn:flash_attn_func", "flashinfer:single_prefill_with_kv_cache"
XFORMERS = "xformers.ops:memory_efficient_attention"
SMALL = Case(heads=4, kv_heads=2, seqlen_q=20, seqlen_k=32, head_dim=16, scale=0.3)
CASES = [
    (SDPA, SMALL.but(causal=True, causal_alignment="top-left")),
    (SDPA, SMALL.but(causal=True)),  # as a mask
    (SDPA, SMALL.but(alibi_slopes="geometric")),  # as a bias
    (SDPA, SMALL.but(batch=2, dtype="bfloat16", head_dim_v=32)),
    (FLEX, SMALL.but(window=(7, 3))),
    (FLASH, SMALL.but(causal=True, dtype="float16")),
    (FLASH, SMALL.but(window=(5, 2), softcap=3.0, dtype="bfloat16", scale=1.0)),
    (PREFILL, SMALL.but(causal=True, dtype="float16")),
    (PREFILL, SMALL.but(causal=True, window=(9, 0), softcap=2.0, scale=1.0, dtype="float16")),
    (XFORMERS, Case(heads=4, seqlen_q=20, seqlen_k=32, head_dim=16, causal=True, causal_alignment="top-left")),
    (XFORMERS, Case(heads=4, seqlen_q=20, seqlen_k=32, head_dim=16, causal=True)),
]


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_ins.install(monkeypatch)
    flex = importlib.import_module("torch.nn.attention.flex_attention")
    monkeypatch.setattr(flex, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)


def function(target: str) -> Any:
    module, _, name = ADAPTERS[target].function.partition(":")
    return getattr(importlib.import_module(module), name)


@pytest.mark.parametrize(("target", "case"), CASES, ids=[f"{x}-{i}" for i, (x, _) in enumerate(CASES)])
def test_what_is_heard_is_what_was_asked(target: str, case: Case, tmp_path: Path) -> None:
    with capture(function(target), tmp_path, keep="all") as c:
        asked = run(target, case, device="cpu")
    assert (c.report.verdict, c.report.judged, c.report.unread) == ("rounding", 1, {})
    heard = load(tmp_path / "calls/000000.safetensors")
    assert (heard.case.scale, heard.case.softcap) == (case.scale, case.softcap)
    for name in "qkv":
        assert np.array_equal(heard.inputs[name].astype(float), asked.inputs[name].astype(float))
    assert np.array_equal(heard.stages["out"].astype(float), asked.stages["out"].astype(float))
    seen = [np.broadcast_to(visible(one.case, one.inputs), (case.batch, 4, 20, 32)) for one in (heard, asked)]
    bias = heard.inputs.get("bias", np.zeros(1)) * np.ones((1, 4, 20, 32))
    # what is hidden may be -inf of a float mask
    assert np.array_equal(seen[0] & (bias > -np.inf), seen[1])
    added = attn_bias(asked.case, asked.inputs)
    wanted = np.zeros(1) if added is None else added.bias
    assert np.allclose(np.where(seen[1], bias, 0), np.where(seen[1], wanted, 0), rtol=1e-6)


def test_autocast_reads_other_numbers_than_it_is_given(tmp_path: Path) -> None:
    q = torch.randn(1, 2, 40, 16)
    with (
        capture(torch.nn.functional.scaled_dot_product_attention, tmp_path, keep="all") as c,
        torch.autocast("cpu", torch.bfloat16),
    ):
        out = torch.nn.functional.scaled_dot_product_attention(q, q, q)
    assert out.dtype == torch.bfloat16 and c.report.verdict == "rounding"
    assert load(tmp_path / "calls/000000.safetensors").case.dtype == "bfloat16"


def test_what_no_reference_is_known_of_is_told(tmp_path: Path) -> None:
    q = torch.ones(1, 2, 8, 16)
    sdpa = torch.nn.functional.scaled_dot_product_attention
    with capture(sdpa, tmp_path) as c:
        torch.nn.functional.scaled_dot_product_attention(q, q, q, dropout_p=0.5)
        torch.nn.functional.scaled_dot_product_attention(q.double(), q.double(), q.double())
        torch.nn.functional.scaled_dot_product_attention(q, q, q * torch.inf)
    assert (c.report.verdict, c.report.calls, c.report.judged) == ("untestable", 3, 0)
    told = [*c.report.unread]
    assert told[:2] == [f"{SDPA} with dropout_p", "unsupported dtype torch.float64"]
    assert "inputs must be finite, or NaN; v holds inf at" in told[2]
    assert "nothing was judged, so no call is known to be right" in str(c.report)


def test_a_function_that_nobody_knows_needs_a_spec() -> None:
    with pytest.raises(Refusal, match="pass a spec of its calls"):
        reader_of(run)


def test_at_the_dispatcher_flash_attention_counts_from_the_bottom_right_and_others_from_the_top_left() -> None:
    read, aten = reader_of(torch.ops.aten.scaled_dot_product_attention).read, torch.ops.aten
    q, k = torch.ones(1, 2, 4, 8), torch.ones(1, 2, 6, 8)
    one = read(aten._scaled_dot_product_flash_attention.default, q, k, k, 0.0, True, scale=0.5)
    assert one.fields == {"causal": True, "scale": 0.5}
    for op in (aten._scaled_dot_product_flash_attention_for_cpu.default, aten.scaled_dot_product_attention.default):
        other = read(op, q, k, k, is_causal=True)
        assert other.fields == {"causal": True, "causal_alignment": "top-left"}
    bias = torch.zeros(1, 2, 4, 6)
    of = read(aten._scaled_dot_product_efficient_attention.default, q, k, k, bias, False)
    assert of.inputs["bias"] is not None and of.fields == {}
    with pytest.raises(Refusal, match="with dropout_p"):
        read(aten._scaled_dot_product_cudnn_attention.default, q, k, k, None, False, 0.1)
