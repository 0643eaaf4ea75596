"""Masks and biases among the inputs: the reference and the budgets know them, and functions that have the keyword."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.refusals import refusal
from workbench import Case, Diff, Refusal, diff, load, run, save
from workbench.case.inputs import by_name, normalised
from workbench.case.masks import attn_bias
from workbench.trace.inputs import case_of
from workbench.trace.inputs import load as load_inputs

CASE = Case(batch=2, heads=4, kv_heads=2, seqlen_q=20, seqlen_k=30)


def masked(rng: np.random.Generator, shape: tuple[int, ...]) -> dict[str, np.ndarray]:
    """A mask of half the keys, of which the first query of several sees none, and a bias."""
    seen = rng.random(shape) < 0.5
    seen[..., 0, :] &= shape[-2] == 1
    return {"mask": seen, "bias": (2 * rng.standard_normal(shape)).astype(np.float32)}


def torch_attention(uses_bias: bool, *names: str) -> Callable[..., Any]:
    def kernel(q: Any, k: Any, v: Any, *, scale: float, causal: bool, mask: Any = None, bias: Any = None) -> Any:
        import torch

        k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
        qk = q @ k.mT
        scores = qk * scale
        if bias is not None and uses_bias:
            scores = scores + bias
        if causal:
            scores = scores.masked_fill(
                torch.ones_like(scores, dtype=torch.bool).triu(1 + k.shape[2] - q.shape[2]), -torch.inf
            )
        if mask is not None:
            scores = scores.masked_fill(~mask, -torch.inf)
        out = torch.nan_to_num(torch.softmax(scores, -1)) @ v
        stages = {"qk": qk, "scores": scores, "out": out, "lse": torch.logsumexp(scores, -1)}
        return {name: stages[name] for name in names}

    return kernel


@pytest.mark.campaign(but=2)
@pytest.mark.parametrize("shape", [(20, 30), (2, 4, 20, 30), (1, 4, 1, 30), (2, 1, 20, 1)], ids=str)
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_a_mask_and_a_bias_are_part_of_the_reference(shape: tuple[int, ...], causal: bool) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    inputs = by_name(CASE) | masked(np.random.default_rng(0), shape)
    every = ("qk", "scores", "out", "lse")
    options: dict[str, Any] = {"inputs": inputs, "arrays": "torch"}
    case = CASE.but(causal=causal)
    right = diff(run(torch_attention(True, *every), case, **options))
    assert (right.verdict, right.origins, right.victims) == ("rounding", (), ())
    lse = right["lse"].decisive
    assert lse is not None and np.all((lse.expected == -np.inf)[:, :, 0]) == (shape[-2] > 1)
    ignored = diff(run(torch_attention(False, *every), case, **options))
    assert ignored.origins == ("scores",) and "lse" in ignored.victims
    alone = diff(run(torch_attention(False, "out"), case, **options))
    if shape[-1] == 1:  # a bias that all keys of a row share leaves out as it is
        assert ignored.victims == ("lse",) and alone.origins == ()
        return
    assert "out" in ignored.victims and alone.origins == ("out",) and {"qk", "scores"} <= set(alone["out"].upstream)
    assert diff(run(torch_attention(True, "out"), case, **options)).verdict in ("rounding", "exact")


def test_a_bias_may_hide_keys_and_either_may_come_alone() -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    both = masked(np.random.default_rng(1), (2, 4, 20, 30))
    hiding = np.where(both["mask"], both["bias"], -np.inf).astype(np.float32)
    for beside in ({"mask": both["mask"]}, {"bias": both["bias"]}, {"bias": hiding}):
        made = run(
            torch_attention(True, "qk", "scores", "out", "lse"), CASE, inputs=by_name(CASE) | beside, arrays="torch"
        )
        assert diff(made).verdict == "rounding"
        scores = diff(made)["scores"].decisive
        assert scores is not None and np.isfinite(scores.summary.max_abs)


def test_a_bias_that_cancels_the_product_leaves_the_roundings_of_both() -> None:
    """Far more than half an ulp of what is left: the product loses u of its own size, and so does the sum."""

    by = 0.0

    def kernel(q: Any, k: Any, v: Any, *, scale: float, causal: bool, bias: Any) -> Any:
        qk = q @ np.repeat(k, 2, 1).swapaxes(-1, -2)
        product = qk * np.float32(scale)
        return {"qk": qk, "scores": (product + by * 2.0**-24 * np.abs(product)).astype(np.float32) + bias}

    q, k, _ = CASE.inputs()
    exact = q.astype(np.float64) @ np.repeat(k, 2, 1).astype(np.float64).swapaxes(-1, -2) * CASE.scale
    inputs = by_name(CASE) | {"bias": -(exact * (1 + 2.0**-12)).astype(np.float32)}
    assert diff(run(kernel, CASE, inputs=inputs))["scores"].verdict == "exact"
    by = 8.0
    assert diff(run(kernel, CASE, inputs=inputs))["scores"].verdict == "bug"


def test_a_bias_as_low_as_the_sentinel_is_refused() -> None:
    """Nobody could tell its scores from masked ones."""
    inputs = dict(zip("qkv", CASE.inputs(), strict=True)) | {"bias": np.zeros((20, 30), np.float32)}
    inputs["bias"][3, 5] = -1e9

    def judged(sentinel: float) -> Diff:
        def kernel(*args: Any, **options: Any) -> Any:
            stages = torch_attention(True, "scores", "out")(*args, **options)
            return stages | {"contract": {"mask_sentinel": sentinel}}

        return diff(run(kernel, case_of(inputs), inputs=inputs, arrays="torch"))

    pytest.importorskip("torch", reason="torch is not installed")
    assert judged(-1e30).verdict == "rounding"
    with pytest.raises(Refusal) as refused:
        judged(-1e9)
    assert str(refused.value) == (
        "kernel: a score of mask_sentinel=-1e+09 or less counts as masked, but the bias reaches -1e+09: pass -inf or a "
        "mask instead"
    )


def test_a_bias_of_one_row_stays_one_row() -> None:
    """It is read for every part of a run, and would take 8 bytes for each score."""
    inputs = dict(zip("qkv", CASE.inputs(), strict=True)) | {"bias": np.ones((1, 30), np.float16)}
    trace = run(lambda q, k, v, *, scale, causal, bias: q, case_of(inputs), inputs=inputs)
    added = attn_bias(trace.case, trace.inputs)
    assert added is not None and added.bias.shape == (CASE.batch, CASE.heads, 20, 30)
    assert np.shares_memory(added.bias, trace.inputs["bias"])


def test_a_trace_keeps_its_mask_and_bias(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    inputs = by_name(CASE) | masked(np.random.default_rng(0), (20, 30))
    made = run(torch_attention(False, "scores", "out"), CASE, inputs=inputs, arrays="torch")
    save(made, tmp_path / "t.safetensors")
    again = load(tmp_path / "t.safetensors")
    assert all(np.array_equal(again.inputs[name], inputs[name]) for name in inputs)
    assert diff(again).origins == ("scores",)
    assert set(load_inputs(tmp_path / "t.safetensors")) == set(inputs)


def test_what_takes_no_mask_or_bias_says_so() -> None:
    given = by_name(CASE) | masked(np.random.default_rng(0), (20, 30))
    assert refusal(run, "fp8", CASE, inputs=given) == ("kernel fp8 takes no mask and no bias; got mask, bias")

    def kernel(q: Any, k: Any, v: Any, *, scale: float, causal: bool, mask: Any) -> Any:
        return q

    assert (
        refusal(run, kernel, CASE, inputs=given)
        == "kernel takes no bias, which the inputs hold: add the keyword; it takes mask"
    )
    for change, message in [
        ({"mask": np.ones((20, 30))}, "here: mask must be an array of bool; got float64"),
        (
            {"mask": np.ones(30, bool)},
            "here: mask must have axes [query key] or [batch head query key]; got shape [30]",
        ),
        ({"bias": np.full((20, 30), np.inf, np.float32)}, "here: bias must hold finite numbers or -inf; it holds inf"),
    ]:
        assert refusal(normalised, given | change, "here") == message
    wrong = given | {"mask": np.ones((20, 29), bool)}
    assert refusal(run, torch_attention(True, "out"), CASE, inputs=wrong, arrays="torch") == (
        "kernel: mask must have shape [2, 4, 20, 30] or [20, 30] for this case, or 1 in places; got [20, 29]"
    )
