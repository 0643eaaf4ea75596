"""Gradients of forward passes in torch, through autograd."""

from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from tests.operations.dense_backward import dense
from workbench import Case, Refusal
from workbench.operations.of_attention import backward_case
from workbench.testing import GradientWarning, assert_attention

SMALL = {"batch": 2, "heads": 4, "kv_heads": 2, "seqlen_q": 24, "seqlen_k": 32, "head_dim": 16}


def attention(
    q: Any, k: Any, v: Any, *, scale: float, causal: bool, softcap: float = 0.0, window_size: Any = None, sinks: Any = None,
    bias: Any = None, mask: Any = None, alibi_slopes: Any = None, dropout_p: float = 0.0, dropout_mask: Any = None,
) -> Any:  # fmt: skip
    """Takes all that a case may have, in float32."""
    numbers: dict[str, Any] = {"scale": scale, "causal": causal, "dropout_p": dropout_p}
    numbers |= {"softcap": softcap} if softcap else {}
    numbers |= {} if window_size is None else dict(zip(("window_left", "window_right"), window_size, strict=True))
    beside = {"sinks": sinks, "bias": bias, "mask": mask, "alibi_slopes": alibi_slopes, "dropout_mask": dropout_mask}
    given = {name: x if x.dtype in (bool,) else x.float() for name, x in {"q": q, "k": k, "v": v}.items()}
    given |= {name: x for name, x in beside.items() if x is not None}
    out, lse = dense(given, numbers)
    return out.to(q.dtype), lse


def in_numpy(q: Any, k: Any, v: Any, *, scale: float, causal: bool) -> Any:
    x = scale * np.einsum("bhqd,bhkd->bhqk", q, k)
    p = np.exp(x - x.max(-1, keepdims=True))
    return np.einsum("bhqk,bhkd->bhqd", p / p.sum(-1, keepdims=True), v).astype(q.dtype)


def squared(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    return score * score / (2 + h)


def even(b: Any, h: Any, q: Any, k: Any) -> Any:
    return (q + k + h) % 2 == 0


def no_lse(q: Any, k: Any, v: Any, *, scale: float, causal: bool) -> Any:
    return attention(q, k, v, scale=scale, causal=causal)[0]


def with_mod(q: Any, k: Any, v: Any, *, scale: float, causal: bool, score_mod: Any) -> Any:
    given = {name: x.float() for name, x in {"q": q, "k": k, "v": v}.items()}
    out, lse = dense(given, {"scale": scale, "causal": causal}, score_mod)
    return out.to(q.dtype), lse


def without_its_slope(q: Any, k: Any, v: Any, *, scale: float, causal: bool, score_mod: Any) -> Any:
    return with_mod(q, k, v, scale=scale, causal=causal,
                    score_mod=lambda score, *at: score_mod(score.detach(), *at) + score - score.detach())  # fmt: skip


def wrong(fault: str) -> Any:
    """A forward pass whose backward pass has a fault."""
    import torch

    class Attention(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, q: Any, k: Any, v: Any, scale: float) -> Any:
            p = torch.softmax(scale * q @ k.mT, -1)
            ctx.save_for_backward(q, k, v, p)
            ctx.scale = scale
            return p @ v

        @staticmethod
        def backward(ctx: Any, dout: Any) -> Any:
            q, k, v, p = ctx.saved_tensors
            dp = dout @ v.mT
            ds = p * (dp - (p * dp).sum(-1, keepdim=True)) * ctx.scale
            return ds @ k, ds.mT @ q * (ctx.scale if fault == "scale twice in dk" else 1), p.mT @ dout, None

    def function(q: Any, k: Any, v: Any, *, scale: float, causal: bool) -> Any:
        return Attention.apply(q, k, v, scale)

    return function


@pytest.mark.campaign(every=3)
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"causal": True},
        {"causal": True, "window": (7, 0), "softcap": 2.0},
        {"sinks": (0.5, -1.0, 0.0, 2.0)},
        {"alibi_slopes": (0.5, 0.25, 0.125, 0.0625), "dropout_p": 0.25},
        {"shared_kv": True, "head_dim": 24, "head_dim_v": 16, "scale": 0.2},
        {"seqlens_q": (24, 9), "seqlens_k": (20, 32), "seqlen_q": None, "seqlen_k": None, "causal": True},
    ],
    ids=["plain", "causal", "window", "sinks", "alibi", "shared", "ragged"],
)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_right_gradients_pass(fields: dict[str, Any], dtype: str) -> None:
    case = Case(**{**SMALL, "dtype": dtype, **fields})
    assert_attention(attention, case, arrays="torch", gradients=True)


@pytest.mark.campaign(but=1)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_functions_of_scores_and_of_masks(dtype: str) -> None:
    case = Case(**SMALL, dtype=dtype, score_mod=squared)
    assert_attention(with_mod, case, arrays="torch", gradients=True)
    with pytest.raises(AssertionError, match="bug in dq, dk"):
        assert_attention(without_its_slope, case, arrays="torch", gradients=True)
    assert_attention(attention, Case(**SMALL, dtype=dtype, mask_mod=even), arrays="torch", gradients=True)
    with patch("torch.nn.attention.flex_attention._validate_device", lambda *_: None):
        both = case.but(mask_mod=even, softcap=2.0)
        assert_attention("torch:flex_attention", both, gradients=True)


def test_arrays_of_another_layout() -> None:
    def bshd(q: Any, k: Any, v: Any, *, scale: float, causal: bool) -> Any:
        return no_lse(*(x.transpose(1, 2) for x in (q, k, v)), scale=scale, causal=causal).transpose(1, 2)

    assert_attention(bshd, Case(**SMALL, causal=True), arrays="torch", layout="bshd", gradients=True)


def test_a_bias_has_a_gradient() -> None:
    case = Case(**SMALL)
    rng = np.random.default_rng(0)
    inputs = dict(zip("qkv", case.inputs(), strict=True))
    for shape in ((24, 32), (2, 1, 24, 32), (1, 4, 1, 32)):
        given = {**inputs, "bias": rng.standard_normal(shape).astype(np.float32)}
        assert_attention(attention, case, arrays="torch", gradients=True, inputs=given)


def test_a_wrong_gradient_fails_and_says_how_to_repeat_it() -> None:
    case = Case(heads=2, seqlen=40, head_dim=16)
    assert_attention(wrong(""), case, arrays="torch", gradients=True)
    assert_attention(wrong("scale twice in dk"), case, arrays="torch")
    with pytest.raises(AssertionError) as failed:
        assert_attention(wrong("scale twice in dk"), case, arrays="torch", gradients=True)
    said = str(failed.value)
    assert said.startswith("bug in dk (function)\n\nfunction: attention_backward, float32 batch=1 heads=2")
    assert "first wrong stage: dk" in said and "repeat: pytest " in said
    assert "assert_attention(function, Case(heads=2, seqlen=40, head_dim=16), arrays='torch', gradients=True)" in said


def test_what_a_known_kernel_does_is_a_warning_until_it_is_told() -> None:
    """torch's flash on a CPU adds blocks of queries up in 16 bits: dV is 1.5 times the usual budget."""
    import torch

    def sdpa(q: Any, k: Any, v: Any, *, scale: float, causal: bool) -> Any:
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, scale=scale)

    case = Case(heads=2, seqlen=300, head_dim=32, dtype="bfloat16", input_std=3.0)
    with pytest.warns(GradientWarning, match="right with .*accumulation_dtype=inputs"):
        assert_attention(sdpa, case, arrays="torch", gradients=True)
    assert_attention(sdpa, case, arrays="torch", gradients={"accumulation_dtype": "inputs"})
    assert_attention("torch:scaled_dot_product_attention", case, gradients=True)


@pytest.mark.parametrize(
    "fields",
    [{}, {"causal": True, "causal_alignment": "top-left"}, {"window": (5, 3)}, {"alibi_slopes": (0.5, 0.25, 0.1, 0.0)}],
)
def test_torch_by_the_name_of_its_adapter(fields: dict[str, Any]) -> None:
    assert_attention("torch:scaled_dot_product_attention", Case(**SMALL, **fields), gradients=True)


@pytest.mark.parametrize(
    ("kernel", "case", "options", "said"),
    [
        ("flash", {}, {}, "gradients= needs a torch function; flash is a built-in kernel"),
        (in_numpy, {}, {}, "gradients= needs a torch function: pass arrays='torch'; got numpy"),
        (no_lse, {}, {"arrays": "torch", "layout": "strided"}, "needs layout bhsd or bshd; got strided"),
    ],
    ids=["ours", "numpy", "strided"],
)
def test_what_autograd_does_not_take_is_refused(kernel: Any, case: Any, options: Any, said: str) -> None:
    with pytest.raises(Refusal) as refused:
        assert_attention(kernel, Case(seqlen=16, head_dim=16, **case), gradients=True, **options)
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (
            {"page_size": 16},
            "page_size=16: a paged cache has no backward pass; leave out page_size",
        ),
        (
            {"codes": "e4m3"},
            "codes=e4m3: quantisation has no gradient; leave out codes and give dequantised inputs",
        ),
    ],
    ids=["pages", "codes"],
)
def test_gradients_that_nobody_makes_are_refused(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(Refusal) as refused:
        backward_case(Case(seqlen=16, head_dim=16, **fields))
    assert str(refused.value) == said
