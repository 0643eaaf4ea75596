"""Forward passes run through autograd: by the names of their adapters, in each layout, with what the case has."""

import sys
import types
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from tests.operations.dense_backward import dense
from workbench import Refusal
from workbench.foreign.adapters import ADAPTERS
from workbench.judge.stage import RIGHT_VERDICTS
from workbench.operations.attention_backward import ATTENTION_BACKWARD
from workbench.operations.backward_inputs import after_forward
from workbench.operations.call import diff_operation, runner
from workbench.operations.case import OperationCase

SIZES = {"batch": 2, "heads": 4, "kv_heads": 2, "queries": 12, "keys": 20, "dim": 16, "dim_v": 16}


def _numbers(scale: float, causal: bool, window: Any, softcap: float) -> dict[str, Any]:
    found: dict[str, Any] = {"scale": scale, "causal": causal, "window_left": window[0], "window_right": window[1]}
    return found | ({"softcap": softcap} if softcap else {})


def flash_attn_func(
    q: Any, k: Any, v: Any, *, softmax_scale: float, causal: bool, window_size: Any = (-1, -1), softcap: float = 0.0,
    alibi_slopes: Any = None, return_attn_probs: bool = False,
) -> Any:  # fmt: skip
    """As FlashAttention-2's, [batch, length, heads, dim]."""
    given = {name: x.transpose(1, 2).float() for name, x in {"q": q, "k": k, "v": v}.items()}
    given |= {} if alibi_slopes is None else {"alibi_slopes": alibi_slopes}
    out, lse = dense(given, _numbers(softmax_scale, causal, window_size, softcap))
    return out.to(q.dtype).transpose(1, 2), lse, None


def flash_attn_varlen_func(
    q: Any, k: Any, v: Any, *, cu_seqlens_q: Any, cu_seqlens_k: Any, max_seqlen_q: int, max_seqlen_k: int,
    softmax_scale: float, causal: bool, return_attn_probs: bool = False,
) -> Any:  # fmt: skip
    """As FlashAttention-2's, [all rows, heads, dim]."""
    import torch

    outs, lses = [], []
    for b in range(len(cu_seqlens_q) - 1):
        rows, keys = (slice(int(x[b]), int(x[b + 1])) for x in (cu_seqlens_q, cu_seqlens_k))
        parts = {"q": q[None, rows], "k": k[None, keys], "v": v[None, keys]}
        given = {name: x.transpose(1, 2).float() for name, x in parts.items()}
        out, lse = dense(given, _numbers(softmax_scale, causal, (-1, -1), 0.0))
        outs.append(out.to(q.dtype).transpose(1, 2)[0])
        lses.append(lse[0])
    return torch.cat(outs), torch.cat(lses, -1), None


@pytest.fixture(autouse=True)
def flash_attn(monkeypatch: pytest.MonkeyPatch) -> None:
    package = types.ModuleType("flash_attn")
    package.flash_attn_func, package.flash_attn_varlen_func = flash_attn_func, flash_attn_varlen_func  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "flash_attn", package)


def through(target: Any, **given: Any) -> Any:
    return diff_operation(target, "attention_backward", axes=SIZES, gradients=True, arrays="torch", **given)


@pytest.mark.parametrize(
    ("numbers", "optional"),
    [({}, ()), ({"causal": 1, "window_left": 4}, ()), ({"softcap": 2.0}, ("dlse",)), ({}, ("alibi_slopes",))],
    ids=["plain", "window", "softcap, dlse", "alibi"],
)
def test_flash_attn(numbers: dict[str, float], optional: tuple[str, ...]) -> None:
    for dtype in ("float16", "bfloat16"):
        got = through("flash_attn:flash_attn_func", numbers=numbers, optional=optional, dtype=dtype, device="cpu")
        names = ["dq", "dk", "dv", *(["dslopes"] if optional == ("alibi_slopes",) else [])]
        assert got.verdict in RIGHT_VERDICTS and [one.name for one in got.stages] == names, str(got)


@pytest.mark.parametrize("causal", [0, 1])
def test_flash_attn_of_packed_sequences(causal: int) -> None:
    """A batch without keys has a gradient of 0, and so have keys behind the end of a sequence."""
    for seed in range(3):
        got = through("flash_attn:flash_attn_varlen_func", optional=("seqlens_k",), dtype="float16", seed=seed,
                      numbers={"causal": causal}, device="cpu")  # fmt: skip
        assert got.verdict in RIGHT_VERDICTS, str(got)


def bent(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    return score * abs(score) / (1 + h)


@pytest.mark.campaign(but=1)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_flex_with_a_score_mod(dtype: str) -> None:
    with patch("torch.nn.attention.flex_attention._validate_device", lambda *_: None):
        got = through("torch:flex_attention", functions={"score_mod": bent}, dtype=dtype, optional=("bias",))
    assert got.verdict in RIGHT_VERDICTS and "score_mod=" in got.headline and "repeat:" not in str(got), str(got)


@pytest.mark.parametrize("optional", [(), ("bias",), ("mask",), ("seqlens_k",), ("alibi_slopes", "dlse")])
def test_flex(optional: tuple[str, ...]) -> None:
    """It has a backward pass on a CPU, which it refuses to run: the check of the device is off here."""
    with patch("torch.nn.attention.flex_attention._validate_device", lambda *_: None):
        got = through("torch:flex_attention", optional=optional, numbers={"causal": 1, "softcap": 3.0})
    assert got.verdict in RIGHT_VERDICTS, str(got)


@pytest.mark.parametrize("target", ["torch:scaled_dot_product_attention", "torch:flex_attention"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_v_that_is_a_part_of_k_has_no_gradient_of_its_own(target: str, dtype: str) -> None:
    axes = {"batch": 2, "heads": 4, "kv_heads": 1, "queries": 12, "keys": 40, "dim": 48, "dim_v": 32}
    with patch("torch.nn.attention.flex_attention._validate_device", lambda *_: None):
        got = diff_operation(target, "attention_backward", axes=axes, dtype=dtype, numbers={"shared_kv": 1, "causal": 1},
                             gradients=True, arrays="torch")  # fmt: skip
    assert got.verdict in RIGHT_VERDICTS and [one.name for one in got.stages] == ["dq", "dkv"], str(got)


@pytest.mark.parametrize("optional", [(), ("bias",), ("mask",), ("seqlens_k",), ("alibi_slopes",)])
def test_sdpa(optional: tuple[str, ...]) -> None:
    for dtype in ("float32", "bfloat16"):
        got = through("torch:scaled_dot_product_attention", optional=optional, numbers={"window_left": 5}, dtype=dtype)
        assert got.verdict in RIGHT_VERDICTS and got.run.case.conventions["accumulation_dtype"] == "inputs", str(got)


@pytest.mark.parametrize("target", ADAPTERS)
def test_what_is_told_of_a_backward_pass_is_a_convention(target: str) -> None:
    for told in ADAPTERS[target].gradients.values():
        OperationCase(ATTENTION_BACKWARD, conventions=told)


def test_heads_of_a_group_are_added_up_in_16_bits() -> None:
    """On a CPU SDPA's flash backend adds dK and dV of the heads of a group to one sum in the dtype of the inputs: here
    dV of the first head is 0.0643, and each of the others is rounded as that is.
    """
    axes = {"batch": 2, "heads": 3, "kv_heads": 1, "queries": 1, "keys": 100, "dim": 64, "dim_v": 64}
    got = diff_operation(
        "torch:scaled_dot_product_attention", "attention_backward", axes=axes, dtype="bfloat16", seed=682,
        distribution="mean-of-4", numbers={"causal": 1}, optional=("alibi_slopes",), gradients=True, arrays="torch",
    )  # fmt: skip
    assert got.verdict in RIGHT_VERDICTS, str(got)


def test_dk_that_is_stored_times_the_scale_is_subnormal_sooner() -> None:
    """flex stores dK of each head in float16, where 17 and 13.4 times the smallest number are 1e-6 and 8e-7."""
    axes = {"heads": 4, "kv_heads": 2, "queries": 1, "keys": 150, "dim": 32, "dim_v": 32}
    with patch("torch.nn.attention.flex_attention._validate_device", lambda *_: None):
        got = diff_operation(
            "torch:flex_attention", "attention_backward", axes=axes, dtype="float16", seed=176, distribution="one-hot",
            numbers={"causal": 1, "softcap": 20.0}, gradients=True, arrays="torch",
        )  # fmt: skip
    assert got.verdict in RIGHT_VERDICTS, str(got)


@pytest.mark.parametrize("backend", ["MATH", "FLASH_ATTENTION"])
def test_a_mask_of_alibi_is_not_rounded_to_the_dtype_of_q(backend: str) -> None:
    """dV of weights e^(slope * -1), a slope that bfloat16 does not hold: 5.0127 and not 5."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    slope = 5.01171875 + 2.0**-10
    axes = {"heads": 1, "kv_heads": 1, "queries": 1, "keys": 2, "dim": 8, "dim_v": 8}
    case = OperationCase(ATTENTION_BACKWARD, axes, "bfloat16", optional=("alibi_slopes",))
    ones = {name: np.ones((1, 1, 2 if name in "kv" else 1, 8)) for name in ("q", "k", "v", "dout")}
    drawn = after_forward(case.setting, {**ones, "alibi_slopes": np.array([slope], np.float32)})
    inputs = {name: drawn[name].astype(case.dtype_of(name)) for name in case.takes}
    run = runner("torch:scaled_dot_product_attention", ATTENTION_BACKWARD, gradients=True, arrays="torch")
    with sdpa_kernel(getattr(SDPBackend, backend)):
        of_first = run(case, inputs).stages["dv"][0, 0, 0, 0]
    weight, rounded = (
        np.asarray(1 / (1 + np.exp(np.float64(x)))).astype(of_first.dtype)
        for x in (slope, np.asarray(slope).astype(of_first.dtype))
    )
    assert of_first == weight != rounded


def test_gradients_of_all_that_a_function_takes() -> None:
    def function(q: Any, k: Any, v: Any, *, scale: float, causal: bool, sinks: Any, bias: Any, **beside: Any) -> Any:
        return dense({"q": q, "k": k, "v": v, "sinks": sinks, "bias": bias}, {"scale": scale, "causal": causal})

    got = through(function, optional=("sinks", "bias", "dlse"))
    assert got.verdict in RIGHT_VERDICTS and [one.name for one in got.stages] == ["dq", "dk", "dv", "dsink", "dbias"]

    def without(q: Any, k: Any, v: Any, *, scale: float, causal: bool, sinks: Any, bias: Any) -> Any:
        return dense(
            {"q": q, "k": k, "v": v, "sinks": sinks, "bias": bias.detach()}, {"scale": scale, "causal": causal}
        )

    with pytest.raises(Refusal, match="no gradient reached bias"):
        through(without, optional=("sinks", "bias"))


@pytest.mark.parametrize(
    ("read", "names", "origins"),
    [
        (lambda slopes: slopes, ["dq", "dk", "dv", "dslopes"], ()),
        (lambda slopes: slopes.detach(), ["dq", "dk", "dv"], ()),
        (lambda slopes: 2 * slopes.detach() - slopes, ["dq", "dk", "dv", "dslopes"], ("dslopes",)),
    ],
    ids=["learned", "constants", "with its sign turned"],
)
def test_slopes_have_a_gradient_unless_they_are_constants(read: Any, names: list[str], origins: Any) -> None:
    def function(q: Any, k: Any, v: Any, *, scale: float, causal: bool, alibi_slopes: Any) -> Any:
        return dense({"q": q, "k": k, "v": v, "alibi_slopes": read(alibi_slopes)}, {"scale": scale, "causal": causal})

    got = through(function, optional=("alibi_slopes",))
    assert [one.name for one in got.stages] == names and got.origins == origins, str(got)


@pytest.mark.parametrize(
    ("target", "optional", "said"),
    [
        ("torch:scaled_dot_product_attention", ("sinks",), "takes no sinks, which the case has"),
        ("torch:scaled_dot_product_attention", ("dlse",), "its lse is detached"),
        ("jax.nn:dot_product_attention", (), ""),
    ],
    ids=["sinks", "dlse", "jax"],
)
def test_what_a_function_does_not_take_is_refused(target: str, optional: tuple[str, ...], said: str) -> None:
    if target.startswith("jax"):
        pytest.importorskip("jax")
    with pytest.raises(Refusal, match=said):
        through(target, optional=optional)
