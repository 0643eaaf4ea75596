"""The usual rules against PyTorch's own, and on outputs made to pass and to fail."""

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from workbench import Case, diff, run
from workbench.judge import usual_rules as rules
from workbench.reference import dense
from workbench.trace.trace import blank

DTYPES = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16, "float64": np.float64}


def tensor(x):
    """`x` as a torch tensor; bfloat16 by way of float32, which holds it."""
    import torch

    narrow = x.dtype == ml_dtypes.bfloat16
    return torch.from_numpy(x.astype(np.float32)).bfloat16() if narrow else torch.from_numpy(x)


def accepted_by_torch(out, ref):
    import torch

    try:
        torch.testing.assert_close(tensor(out), tensor(ref))
    except AssertionError:
        return False
    return True


@pytest.mark.parametrize("dtype", DTYPES)
def test_assert_close_is_torchs_element_by_element(dtype):
    pytest.importorskip("torch", reason="PyTorch's own assert_close is the judge here")
    rng, kind = np.random.default_rng(0), DTYPES[dtype]
    rtol, atol = rules.ASSERT_CLOSE[dtype]
    ref = (rng.standard_normal(400) * 10.0 ** rng.integers(-6, 3, 400)).astype(kind)
    # errors of 0.9 to 1.1 times the tolerance: half of them pass, and rounding decides of many
    exact = ref.astype(np.float64)
    error = rng.uniform(0.9, 1.1, 400) * (atol + rtol * np.abs(exact)) * rng.choice([-1, 1], 400)
    out = (exact + error).astype(kind)
    ours = [rules.assert_close(x, y.astype(np.float64)) <= 1 for x, y in zip(out[:, None], ref[:, None], strict=True)]
    torchs = [accepted_by_torch(x, y) for x, y in zip(out[:, None], ref[:, None], strict=True)]
    assert ours == torchs
    assert 50 < sum(ours) < 350
    assert not rules.assert_close(out, exact) <= 1 and not accepted_by_torch(out, ref)


@pytest.mark.parametrize("dtype", DTYPES)
def test_assert_close_on_special_values_is_torchs(dtype):
    pytest.importorskip("torch", reason="PyTorch's own assert_close is the judge here")
    values = np.array([np.nan, np.inf, -np.inf, 0.0, 1.0], DTYPES[dtype])
    for out in values:
        for ref in values:
            ours = rules.assert_close(np.array([out]), np.array([ref], np.float64))
            assert (ours <= 1) == accepted_by_torch(np.array([out]), np.array([ref])), (out, ref)


def test_tolerances_are_those_of_torch():
    torch = pytest.importorskip("torch", reason="PyTorch's own tolerances are the judge here")
    for dtype, tolerances in rules.ASSERT_CLOSE.items():
        assert torch.testing._comparison.default_tolerances(getattr(torch, dtype)) == tolerances


def test_float16_is_rounded_as_numpy_does_it():
    bits = np.arange(2**16, dtype=np.uint16).view(np.float16).astype(np.float32)  # every float16
    finite = np.sort(bits[np.isfinite(bits)])
    middles = (finite[1:] + finite[:-1]) / 2
    near = [np.nextafter(middles, np.float32(end)) for end in (-np.inf, np.inf)]
    edges = np.array([65519.99, 65520, -65520, 1e38, 1e-45, -1e-45, 2.0**-25, 3 * 2.0**-25], np.float32)
    x = np.concatenate([bits, middles, *near, edges]).astype(np.float32)
    with np.errstate(all="ignore"):
        found, expected = rules._rounded(x, np.dtype(np.float16)), x.astype(np.float16).astype(np.float32)
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, expected)
    assert np.array_equal(np.signbit(found), np.signbit(expected))


def torch_attention(q, k, v, scale, mask):
    """attention_ref of FlashAttention's tests with upcast=False and reorder_ops=True, for BHSD tensors."""
    import torch

    q, k, v = (tensor(x) for x in (q, k, v))
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))
    scores = (q @ (k * scale).mT).masked_fill(~torch.from_numpy(mask), -torch.inf)
    softmax = torch.softmax(scores, dim=-1).masked_fill(torch.from_numpy(~mask.any(axis=1))[:, None], 0.0)
    return (softmax @ v).float().numpy()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_plain_attention_has_torchs_bits_where_sums_are_exact(dtype):
    """Integers make the sums exact in float32 in any order, weights of 16 bits too: what is left is the rounding to the
    dtype after each step.
    """
    pytest.importorskip("torch", reason="plain attention is what PyTorch computes")
    case = Case(
        heads=4, kv_heads=2, seqlen_q=40, seqlen_k=33, head_dim=32, dtype=dtype, causal=True
    )  # fmt: skip
    random = np.random.default_rng(0)
    q, k, v = (
        (step * random.integers(-high, high + 1, x.shape)).astype(x.dtype)
        for x, step, high in zip(case.inputs(), (64, 64, 1), (1, 1, 8), strict=True)
    )
    ours = rules.plain_attention(q, k, v, scale=case.scale, mask=case.mask())
    assert ours.dtype == q.dtype and np.any(~case.mask().any(axis=1))
    assert np.array_equal(ours.astype(np.float32), torch_attention(q, k, v, case.scale, case.mask()))
    # the roundings are there: attention in float64, rounded once, differs
    exact = dense.attention(q, k, v, scale=case.scale, mask=case.mask())["out"]
    assert np.any(ours != exact.astype(q.dtype))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_plain_attention_rounds_its_scores_as_torch_does(dtype):
    """With v the identity, out is the rounded softmax; with small integers in q and k, the scores are exact but for the
    roundings of k * scale and of the dot product. What is left is exp, of which float32 libraries differ by an ulp or
    so: that moves a weight across a midpoint of a 16-bit type once in thousands.
    """
    pytest.importorskip("torch", reason="plain attention is what PyTorch computes")
    rng, kind = np.random.default_rng(1), DTYPES[dtype]
    q, k = (rng.integers(-3, 4, (1, 2, 32, 32)).astype(kind) for _ in range(2))
    v = np.broadcast_to(np.eye(32), q.shape).astype(kind)
    scale, mask = float(np.float32(32**-0.5)), np.ones((32, 32), bool)
    ours = rules.plain_attention(q, k, v, scale=scale, mask=mask).astype(np.float32)
    torchs = torch_attention(q, k, v, scale, mask)
    assert np.mean(ours != torchs) < 0.01
    # the weights tell: those of unrounded scores are others by the dozen
    unrounded = rules.plain_attention(*(x.astype(np.float32) for x in (q, k, v)), scale=scale, mask=mask)
    assert np.mean(unrounded.astype(kind).astype(np.float32) != torchs) > 0.1


def test_flash_attention_rule_by_hand():
    # at 1 the spacing of float16 is 2^-10. 1 + 0.3 rounds to 1331/1024 and, less 0.3, to 1 - 1/2048 or 1: the shift
    # loses at most 2^-11; plain attention is off by 2^-9
    ref = np.array([1.0, 0.5])
    plain = np.array([1 + 2**-9, 0.5], np.float16)
    shift = np.abs((ref.astype(np.float16) + np.float16(0.3) - np.float16(0.3)).astype(np.float64) - ref).max()
    limit = 2 * 2**-9 + 2 * shift
    for error, passes in ((limit, True), (limit + 2**-10, False), (np.nan, False)):
        deviation = rules.Deviation(0, 0, *rules.flash_attention(np.array([1.0 + error, 0.5], np.float16), ref, plain))
        rule = deviation.rules[-1]
        assert (rule.name, rule.passes, rule.limit) == ("FlashAttention 2x", passes, limit)
    assert shift > 0


def test_max_abs_looks_at_the_reference_before_the_cast():
    expected = np.array([256.0, 100.4])
    out = expected.astype(np.float16)
    assert rules.max_abs(out, expected) == abs(float(out[1]) - 100.4) > 1e-2 and rules.assert_close(out, expected) <= 1
    assert not rules.max_abs(np.array([np.nan]), np.array([0.0])) <= 1e-2


def test_deviations_of_parts_add_up_to_the_largest_and_keep_a_nan():
    total = rules.Deviation(0.5, 1e-3, 1.0, 0.25, 0.0) + rules.Deviation(2.0, 1e-4, 0.5, 0.125, 0.5)
    assert total == rules.Deviation(2.0, 1e-3, 1.0, 0.25, 0.5)
    assert [(rule.value, rule.limit, rule.passes) for rule in total.rules] == [
        (2.0, 1.0, False),
        (1e-3, 1e-2, True),
        (1.0, 1.5, True),
    ]
    nothing = rules.Deviation(*[np.nan] * 5)
    assert not any(rule.passes for sum in (total + nothing, nothing + total) for rule in sum.rules)


@pytest.mark.campaign(but=1)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_usual_rules_of_a_right_and_a_wrong_kernel(dtype):
    case = Case(seqlen=70, heads=2, kv_heads=1, head_dim=32, block_q=16, block_k=16, dtype=dtype, causal=True)
    right = run("flash", case, backend="emulator")
    names = ("assert_close", "atol 1e-2", "FlashAttention 2x")
    assert {rule.name: rule.passes for rule in diff(right).rules} == dict.fromkeys(names, True)
    wrong = run("flash", case, faults=["flash-no-correction"], backend="emulator")
    assert {rule.name: rule.passes for rule in diff(wrong).rules} == dict.fromkeys(names, False)
    nothing = replace(right, stages={"out": blank(right.stages["out"].shape, right.stages["out"].dtype)})
    assert {rule.name: rule.passes for rule in diff(nothing).rules} == dict.fromkeys(names, False)
