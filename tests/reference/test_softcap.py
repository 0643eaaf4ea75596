"""Scores under a softcap, and in a window: values against the referee, bounds against a float32 kernel written here."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from tests.reference.conftest import tiled
from workbench import Case, Trace, diff, run
from workbench.case.contract import TANH, of_foreign
from workbench.floats import DTYPES
from workbench.reference import dense
from workbench.reference.forward import PLAIN
from workbench.reference.steps import scores

F32 = np.float32
#: caps far below the scores, about as large, and far above them
CAPS = [0.1, 2.0, 50.0]
MASKS = {
    "full": {},
    "causal": dict(causal=True),
    "window": dict(window=(9, 4)),
    "causal window": dict(causal=True, window=(5, 0)),
    "rows without keys": dict(window=(3, 0), seqlen_q=60, seqlen_k=40),
}
BASE = Case(batch=2, heads=4, kv_heads=2, seqlen=45, head_dim=16, block_k=16)


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("softcap", CAPS)
@pytest.mark.parametrize("biased", [False, True], ids=["", "biased"])
def test_against_the_referee(softcap: float, mask: str, biased: bool) -> None:
    case = BASE.but(softcap=softcap, **MASKS[mask])
    q, k, v = (x.astype(np.float64) for x in case.inputs())
    bias = np.random.default_rng(0).standard_normal((case.seqlen_q, case.seqlen_k)) if biased else None
    options = dict(scale=case.scale, mask=case.mask(), attn_bias=bias, softcap=case.softcap)
    expected = dense.attention(q, k, v, **options)
    empty = ~case.mask().any(axis=1)
    assert empty.any() == (mask == "rows without keys")
    for made in (tiled("flash", 16)(q, k, v, **options), tiled("split_k", 7, 3)(q, k, v, **options)):
        # scores of at most 10^2, off by 16 * 2^-53 of sum|q k| and by as much for each of the steps up to the last
        for name, wanted in expected.items():
            finite = np.isfinite(wanted)
            assert np.array_equal(made[name][~finite], wanted[~finite])
            assert np.all(
                np.abs(made[name][finite] - wanted[finite]) <= 1e-13 * np.maximum(1, np.abs(wanted[finite]))
            ), name
        assert np.all(np.abs(made["capped"]) <= case.softcap)
        shown = made["capped"] if bias is None else made["capped"] + bias
        assert np.array_equal(made["scores"], np.where(case.mask(), shown, -np.inf))
        # what the referee gives without a softcap is something else, but where the cap is out of reach
        assert not np.allclose(made["out"], dense.attention(q, k, v, **{**options, "softcap": None})["out"], atol=1e-6)


Tanh = Callable[[np.ndarray], np.ndarray]


def accurate(x: np.ndarray) -> np.ndarray:
    """tanh of float32 rounded once."""
    return np.tanh(x.astype(np.float64)).astype(F32)


def off_by(relative: float) -> Tanh:
    """tanh that is off by so much, to alternating sides; its rounding counts in."""
    relative -= 2.0**-24

    def made(x: np.ndarray) -> np.ndarray:
        sides = np.where(np.arange(x.size).reshape(x.shape) % 2, 1.0, -1.0)
        return (np.tanh(x.astype(np.float64)) * (1 + relative * sides)).astype(F32)

    return made


def simulated(case: Case, by: Tanh, of: str = "exact") -> Trace:
    """A run of a float32 kernel in NumPy, one tile after the other, that declares such a tanh."""
    q, k, v = case.inputs()
    group = case.heads // case.kv_heads
    k, v = (np.repeat(x, group, axis=1) for x in (k, v))
    qk = q @ k.swapaxes(-1, -2)
    assert case.softcap is not None and qk.dtype == F32
    cap = F32(case.softcap)
    capped = cap * by(qk * F32(case.scale) / cap)
    scores = np.where(case.mask(), capped, F32(-np.inf))
    row_max = np.full(scores.shape[:-1], -np.inf, F32)
    row_sum, acc = np.zeros_like(row_max), np.zeros((*row_max.shape, v.shape[-1]), F32)
    for first in range(0, case.seqlen_k, 16):
        keys = slice(first, first + 16)
        highest = np.maximum(row_max, scores[..., keys].max(axis=-1))
        top = np.where(highest == -np.inf, F32(0), highest)
        rescale = np.exp(row_max - top)
        probs = np.exp(scores[..., keys] - top[..., None])
        row_sum = rescale * row_sum + probs.sum(axis=-1)
        acc, row_max = rescale[..., None] * acc + probs @ v[:, :, keys], highest
    empty = row_sum == 0
    out = np.where(empty[..., None], F32(0), acc / np.where(empty, F32(1), row_sum)[..., None])
    with np.errstate(divide="ignore"):
        lse = row_max + np.log(row_sum)
    stages = {"qk": qk, "capped": capped, "scores": scores, "out": out, "lse": lse}
    assert all(x.dtype == F32 for x in stages.values())
    return Trace(
        target="simulated", algorithm="flash", case=case, contract=replace(PLAIN, block_k=16, tanh=of),
        inputs=dict(zip("qkv", case.inputs(), strict=True)), stages=stages, requested=tuple(stages),
    )  # fmt: skip


def only(trace: Trace, *names: str) -> Trace:
    return replace(trace, stages={name: trace.stages[name] for name in names}, requested=names)


#: what a run may leave behind: everything, the ends, and each alone
DUMPS = [("qk", "capped", "scores", "out", "lse"), ("out", "lse"), ("capped",), ("scores",), ("qk", "scores"), ("out",)]


@pytest.mark.campaign(but=12)
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("softcap", CAPS)
@pytest.mark.parametrize(
    ("tanh", "of"),
    [(accurate, "exact"), (off_by(4 * 2.0**-24), "exact"), (off_by(TANH["approx"]), "approx")],
    ids=["exact", "exact, 2 ulp", "approx"],
)
def test_a_right_kernel_is_within_every_bound(tanh: Tanh, of: str, softcap: float, mask: str) -> None:
    trace = simulated(BASE.but(softcap=softcap, **MASKS[mask]), tanh, of)
    for names in DUMPS:
        judged = diff(only(trace, *names))
        assert [stage.name for stage in judged] == list(names)
        assert {stage.verdict for stage in judged} <= {"exact", "rounding"}, names


@pytest.mark.parametrize("mask", ["full", "causal window"])
@pytest.mark.parametrize("of", ["exact", "approx"])
@pytest.mark.parametrize("softcap", [0.1, 2.0])
def test_a_tanh_four_times_worse_is_found(of: str, softcap: float, mask: str) -> None:
    """Of caps that the scores reach; from qk at capped, and at scores where nobody saw capped."""
    case = BASE.but(softcap=softcap, **MASKS[mask])
    worse = off_by(4 * TANH[of])
    trace = simulated(case, worse, of)
    assert diff(trace).origins == ("capped",)
    assert diff(only(trace, "qk", "scores")).origins == ("scores",)
    bounded = diff(only(trace, "capped"))["capped"].propagated
    assert bounded is not None and bounded.outside.any()


def test_an_approximate_tanh_is_assumed_of_who_does_not_tell() -> None:
    case = BASE.but(softcap=2.0)
    trace = simulated(case, off_by(TANH["approx"]))
    assert diff(trace).origins == ("capped",)
    unsaid = of_foreign({"block_k": 16}, case)
    assert "tanh" in unsaid.assumed and unsaid.tanh == "approx"
    assert diff(replace(trace, contract=unsaid))["capped"].verdict == "rounding"


def test_a_cap_that_is_left_out_or_applied_to_masked_scores_is_named() -> None:
    case = BASE.but(softcap=2.0, causal=True)
    trace = simulated(case, accurate)
    uncapped = trace.stages["qk"] * F32(case.scale)
    assert diff(replace(trace, stages=trace.stages | {"capped": uncapped})).origins[0] == "capped"
    # a mask before the cap leaves -cap where -inf belongs
    late = np.where(case.mask(), trace.stages["capped"], F32(-case.softcap))  # type: ignore[operator]
    assert diff(replace(trace, stages=trace.stages | {"scores": late})).origins[0] == "scores"


def test_bounds_of_capped_are_those_of_its_argument_where_it_is_flat() -> None:
    """Scores 30 times the cap: whatever qk lost, tanh is 1, so that nothing but its own ulps are left."""
    case = BASE.but(softcap=0.05, distribution="large")
    trace = only(simulated(case, accurate), "capped")
    found = diff(trace)["capped"].propagated
    assert found is not None
    flat = np.abs(found.expected) == case.softcap
    assert flat.mean() > 0.5 and np.all(found.budget[flat] <= 8 * 2.0**-24 * F32(case.softcap))


def test_operations_of_tensors_store_each_result(monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers' Gemma 2 in bfloat16: product with the scale, quotient, tanh and product with the cap are each
    rounded, and so is the sum with a bias; within the budgets of the preset, and not without these roundings.
    """
    softcap = 50.0
    case = Case(heads=2, seqlen=48, head_dim=16, dtype="bfloat16", softcap=softcap, input_std=5.0)
    narrow = DTYPES["bfloat16"]
    bias = np.random.default_rng(0).standard_normal((48, 48)).astype(narrow)

    def stored(x: np.ndarray) -> np.ndarray:
        return x.astype(narrow).astype(F32)

    def eager(q: np.ndarray, k: np.ndarray, v: np.ndarray, *, bias: np.ndarray, **_: object) -> np.ndarray:
        q, k, v, bias = (x.astype(F32) for x in (q, k, v, bias))
        x = stored(stored(q @ k.swapaxes(-1, -2)) * F32(case.scale))
        x = stored(stored(np.tanh(stored(x / F32(softcap)))) * F32(softcap))
        x = stored(x + bias)
        weights = np.exp(x - x.max(-1, keepdims=True))
        return (stored(weights / weights.sum(-1, keepdims=True)) @ v).astype(narrow)

    inputs = {**dict(zip("qkv", case.inputs(), strict=True)), "bias": bias}
    trace = run(eager, case, inputs=inputs, contract="torch-eager")
    right = diff(trace)["out"].worst(1)[0].over_budget
    assert diff(trace).verdict == "rounding"
    monkeypatch.setattr(scores, "between", lambda at, value, bound=0.0: 0.0)
    assert diff(trace)["out"].worst(1)[0].over_budget > 1.2 * right
    assert diff(trace).verdict in ("suspicious", "bug")
