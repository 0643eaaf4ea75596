"""All implementations against torch in float64, against ball arithmetic, and what the package imports."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import workbench.reference
from tests.reference.conftest import tiled
from workbench.case.case import Case
from workbench.reference import dense

flint = pytest.importorskip("flint", reason="the judge with proven bounds, python-flint, is not installed")
pytestmark = pytest.mark.filterwarnings("error")

SHAPES = {
    "square": dict(seqlen=33, head_dim=16),
    "more keys": dict(seqlen_q=5, seqlen_k=70, head_dim=16),
    "more queries": dict(seqlen_q=40, seqlen_k=17, head_dim=16),
    "grouped heads": dict(batch=2, heads=6, kv_heads=2, seqlen_q=9, seqlen_k=33, head_dim=8),
    "one key": dict(seqlen_q=3, seqlen_k=1, head_dim=4),
    "odd head_dim": dict(seqlen=19, head_dim=7),
    "large scores": dict(seqlen=33, head_dim=16, distribution="large"),
}
MASKS = {"full": {}, "bottom-right": dict(causal=True), "top-left": dict(causal=True, causal_alignment="top-left")}


def case_and_inputs(shape: str, mask: str = "full", dim_v: int | None = None):
    """A case, and its q, k, v in float64; v with a head_dim of its own where `dim_v` says so."""
    case = Case(**SHAPES[shape], **MASKS[mask])
    q, k, v = (x.astype(np.float64) for x in case.inputs())
    if dim_v is not None:
        v = np.random.default_rng(1).standard_normal((*v.shape[:3], dim_v))
    return case, q, k, v


def assert_within(actual, expected, bound):
    """Equal infinities, and elsewhere |actual - expected| <= bound."""
    assert actual.shape == expected.shape and actual.size > 0
    finite = np.isfinite(expected)
    assert np.array_equal(actual[~finite], expected[~finite])
    assert np.all(np.abs(actual[finite] - expected[finite]) <= bound)


@pytest.mark.campaign(every=5)
@pytest.mark.parametrize("dim_v", [None, 5], ids=["same head_dim", "v of head_dim 5"])
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("shape", SHAPES)
def test_against_torch(attention, shape, mask, dim_v):
    torch = pytest.importorskip("torch", reason="torch is the second opinion here")
    case, q, k, v = case_and_inputs(shape, mask, dim_v)
    result = attention(q, k, v, scale=case.scale, mask=case.mask())

    group = case.heads // case.kv_heads
    tq, tk, tv = torch.from_numpy(q), *(torch.from_numpy(x).repeat_interleave(group, dim=1) for x in (k, v))
    how = {"is_causal": True} if mask == "top-left" else {"attn_mask": torch.from_numpy(case.mask())}
    out = torch.nn.functional.scaled_dot_product_attention(tq, tk, tv, scale=case.scale, **how).numpy()
    scores = (tq @ tk.mT * case.scale).masked_fill(~torch.from_numpy(case.mask()), -torch.inf)
    # a row without keys is 0 / 0 by torch's formula, and 0 by ours
    empty = ~case.mask().any(axis=1)
    out[:, :, empty] = 0.0

    # scores below 2^11 are off by up to some 2^-42, and that is a relative error of every weight; |v| < 2^6
    bound = 1e-9 if shape == "large scores" else 1e-13
    assert_within(result["out"], out, bound)
    assert_within(result["lse"], torch.logsumexp(scores, dim=-1).numpy(), bound)
    assert np.any(empty) == (shape in ("more queries", "one key") and mask == "bottom-right")


def ball_attention(q, k, v, scale, mask):
    """out and lse of one head as balls that hold the exact values for the given float64 inputs."""
    exact = [[[flint.arb(float(x)) for x in row] for row in matrix] for matrix in (q, k, v)]
    queries, keys, values = exact
    outs, lses = [], []
    for i, query in enumerate(queries):
        visible = [j for j in range(len(keys)) if mask[i, j]]
        weights = [(sum(a * b for a, b in zip(query, keys[j], strict=True)) * scale).exp() for j in visible]
        total = sum(weights, flint.arb(0))
        columns = range(len(values[0]))
        outs.append([sum((w * values[j][d] for w, j in zip(weights, visible, strict=True))) / total for d in columns])
        lses.append(total.log())
    return outs, lses


def outside_ball(values, balls, bound):
    """How many values may differ from what their ball encloses by more than bound * (1 + |ball|)."""
    pairs = list(zip(np.ravel(values), np.ravel(np.array(balls, object)), strict=True))
    assert pairs and all(ball.rad() < 1e-25 for _, ball in pairs)
    return sum(not abs(flint.arb(float(x)) - ball) <= bound * (1 + abs(ball)) for x, ball in pairs)


@pytest.mark.parametrize("distribution", ["normal", "near-cancelling", "peaked"])
def test_against_ball_arithmetic(attention, distribution):
    case = Case(heads=2, kv_heads=1, seqlen_q=5, seqlen_k=9, head_dim=4, causal=True, distribution=distribution)
    q, k, v = (x.astype(np.float64) for x in case.inputs())
    result = attention(q, k, v, scale=case.scale, mask=case.mask())
    # The balls are built from the very float64 inputs, at 113 bits. The 4 terms of a score sum to less than 16 in
    # absolute value, so that it is off by 4 * 16 * 2^-53 = 7e-15 at worst, as is every weight, relatively; the sums
    # over 9 keys and the division add 12 roundings of 1e-16.
    bound = 1e-14
    with flint.ctx.workprec(113):
        for head in range(2):
            out, lse = ball_attention(q[0, head], k[0, 0], v[0, 0], case.scale, case.mask())
            assert outside_ball(result["out"][0, head], out, bound) == 0
            assert outside_ball(result["lse"][0, head], lse, bound) == 0
            # the bound has power: an lse off by 2^-40, 131072 times less than a float32 ulp at 1, is seen in every row
            wrong = result["lse"][0, head] + 2.0**-40
            assert outside_ball(wrong, lse, bound) == wrong.size


@pytest.mark.parametrize("name", ["all inputs are NaN", "one NaN in v", "infinite score"])
def test_bad_inputs_do_not_vanish(attention, name):
    case, q, k, v = case_and_inputs("square", "bottom-right")
    if name == "all inputs are NaN":
        q, k, v = (np.full_like(x, np.nan) for x in (q, k, v))
    elif name == "one NaN in v":
        v[0, 0, 0] = np.nan
    else:
        q[0, 0, :, 0], k[0, 0, 0, 0] = 1e200, 1e200
    result = attention(q, k, v, scale=case.scale, mask=case.mask())
    assert np.all(np.isnan(result["out"]))
    assert np.all(np.isnan(result["lse"])) == (name != "one NaN in v")


def test_the_dispatch_by_algorithm():
    case, q, k, v = case_and_inputs("square")
    options = dict(scale=case.scale, mask=case.mask())
    expected = dense.attention(q, k, v, **options)["out"]
    assert_within(tiled("flash", 16)(q, k, v, **options)["out"], expected, 1e-13)
    assert_within(tiled("split_k", 16, 2)(q, k, v, **options)["out"], expected, 1e-13)


def test_the_reference_imports_neither_numba_nor_a_kernel():
    package = Path(workbench.reference.__file__).parents[1]
    code = (
        "import sys, types\n"
        # `workbench` itself may offer kernels: a bare package shows what the reference alone asks for
        "workbench = types.ModuleType('workbench')\n"
        f"workbench.__path__ = [{str(package)!r}]\n"
        "sys.modules['workbench'] = workbench\n"
        "import workbench.reference.dense, workbench.reference.forward\n"
        "print([m for m in sys.modules if m.split('.')[0].startswith('numba') or m.startswith('workbench.cuda')])\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "[]\n"
