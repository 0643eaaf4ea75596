"""Kernels in styles of the wild: right where they declare what they do, and what explains them where they do not."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.numpy_kernels import Style, kernel
from workbench import Case, Diff, Refusal, diff, run
from workbench.case.assumptions import alternatives, usual
from workbench.case.contract import of_foreign
from workbench.case.stages import ALGORITHMS
from workbench.expectation.observed import Observed
from workbench.judge.blocks import comparisons
from workbench.trace.trace import Trace

#: what `styles` does, unless a style says otherwise
PLAIN: dict[str, Any] = {
    "block_k": 16,
    "scores_dtype": "float32",
    "probs_dtype": "float32",
    "partials_dtype": "float32",
    "row_sum_of_cast": False,
    "accumulation": "nearest",
    "exp_ulps": 1.0,
    "exp_ulps_per_x": 1.2,  # exp2 of the product with log2(e)
    "exp_flushes": False,
    "exp_argument": "difference",
    "normalisation": "division",
    "fast_math": False,
    "out_rounding": "nearest",
}
ENDS = ("out", "lse")
CASE = Case(seqlen_q=40, seqlen_k=72, heads=2, head_dim=32, input_std=2.0)
CAUSAL = CASE.but(seqlen_q=72, causal=True)
#: shapes, distributions and masks on which no correct kernel may be called wrong
CASES = [
    CASE,
    CAUSAL,
    CAUSAL.but(distribution="peaked", seed=1),
    CASE.but(distribution="large", seed=2, input_std=1.0),
    CASE.but(distribution="tiny", seed=3),
    CASE.but(distribution="outlier-channels", seed=4, head_dim=64, input_std=0.5),
]


def traced(style: Style, case: Case = CASE, names: tuple[str, ...] | None = None, **contract: Any) -> Trace:
    return run(kernel(style, contract, names), case)


def judged(style: Style, case: Case = CASE, names: tuple[str, ...] | None = None, **contract: Any) -> Diff:
    return diff(traced(style, case, names, **contract))


def worst(found: Diff, name: str) -> float:
    one = found[name].isolated or found[name].propagated
    assert one is not None and one.summary.worst is not None
    return one.summary.worst.over_budget


def is_of(found: Diff, choice: str, *wrong: str) -> None:
    """The stages `wrong` are suspicious: right, as all others, only of a kernel that makes the choice."""
    assert found.verdict == "suspicious" and found.origins == ()
    for name in wrong:
        assert found[name].reason.startswith(f"within budget only with {choice}; otherwise a bug ("), name


def is_right(found: Diff) -> None:
    """No stage is wrong, and each was judged."""
    assert found.verdict in ("exact", "rounding", "suspicious", "biased"), (found.origins, found.verdict)
    assert all((stage.isolated or stage.propagated).judged.any() for stage in found)  # type: ignore[union-attr]


def explained(trace: Trace) -> set[str]:
    """The fields of which another choice makes the trace right that is wrong under the usual contract; None among them
    where it is right under that.
    """
    found = {name for name, promise, _ in alternatives(trace.contract) if _right(replace(trace, contract=promise))}
    return found | ({"usual"} if _right(replace(trace, contract=usual(trace.contract))) else set())


def _right(trace: Trace) -> bool:
    names = [name for name in trace.stages if name not in Observed(trace).unjudgeable]
    both = comparisons(Observed(trace), names, "cpu").values()
    decisive = [(isolated or propagated).summary for isolated, propagated in both]  # type: ignore[union-attr]
    return all(one.judged and not one.outside for one in decisive)


# ------------------------------------------------------------------------------- FlashAttention-2's exponential and units


@pytest.mark.campaign(but=1)
@pytest.mark.parametrize("argument", ["difference", "fma"])
@pytest.mark.parametrize("units", ["natural", "log2", "raw"])
def test_scores_of_all_units_and_both_arguments_of_exp(units: str, argument: str) -> None:
    style = Style(units=units, exp_argument=argument)
    said = {"natural": {}, "log2": {"base2": True}, "raw": {"scores_scaled": False}}[units]
    for case in CASES[::2]:
        is_right(judged(style, case, **PLAIN | said | {"exp_argument": argument}))
        is_right(judged(style, case, block_k=16, **said))
        is_right(judged(style, case, ENDS))
    found = explained(traced(style, block_k=16))
    assert found == {"natural": found, "log2": {"base2"}, "raw": {"scores_scaled"}}[units]
    assert ("usual" in found) == (units == "natural")


def test_an_fma_is_no_difference() -> None:
    """What fma leaves in the argument is u |max|, which the budget of a difference has no room for."""
    case = CASES[2]
    style = Style(units="raw", exp_argument="fma")
    said = PLAIN | {"scores_scaled": False, "base2": False}
    assert judged(style, case, **said | {"exp_argument": "difference"}).origins == ("probs",)
    told = judged(style, case, **said | {"exp_argument": "fma"})
    is_right(told)
    assert 0.1 < worst(told, "probs") <= 1  # it is as wide as it has to be, and not ten times wider


@pytest.mark.parametrize("units", ["natural", "log2", "raw"])
def test_the_budget_of_an_fma_still_finds_a_wrong_constant(units: str) -> None:
    """log2(e) as 1.4427, 3.5e-6 off, moves probs by 1e-5 at |x| = 4."""

    def careless(x: np.ndarray) -> np.ndarray:
        return np.exp2(x.astype(np.float64) * (1.4427 / np.log2(np.e))).astype(np.float32)

    said = {"natural": {}, "log2": {"base2": True}, "raw": {"scores_scaled": False}}[units]
    found = judged(Style(units=units, exp_argument="fma", exp2=careless), **PLAIN | said | {"exp_argument": "fma"})
    assert "probs" in found.origins


def test_raw_scores_need_a_scale() -> None:
    with pytest.raises(Refusal, match="scores_scaled=false needs a scale above 0; this case has scale=0"):
        judged(Style(units="raw"), CASE.but(scale=0.0), scores_scaled=False, block_k=16)


# --------------------------------------------------------------------------------------------------------------- maxima


def raised(previous: np.ndarray, top: np.ndarray) -> np.ndarray:
    return np.where(top == -np.inf, np.float32(4), top + np.float32(3.3))


def late(previous: np.ndarray, top: np.ndarray) -> np.ndarray:
    return np.where(top > previous + np.float32(2), top, previous)


@pytest.mark.campaign
def test_maxima_above_the_running_one() -> None:
    for case in CASES[:3]:
        style = Style(maximum=raised)
        is_right(judged(style, case, **PLAIN | {"row_max": "upper_bound"}))
        is_right(judged(style, case, ENDS, row_max="upper_bound"))
        assert judged(style, case, **PLAIN | {"row_max": "running"}).origins == ("row_max",)
        is_of(judged(style, case, **PLAIN), "row_max=upper_bound", "row_max")
    assert explained(traced(Style(maximum=raised), CAUSAL, block_k=16)) == {"row_max"}


def test_an_upper_bound_is_no_lower_one() -> None:
    is_right(judged(Style(maximum=late), CAUSAL, **PLAIN | {"row_max": "any"}))
    assert judged(Style(maximum=late), CAUSAL, **PLAIN | {"row_max": "upper_bound"}).origins == ("row_max",)


def test_without_their_maximum_stages_that_depend_on_it_are_not_judged() -> None:
    found = judged(Style(maximum=raised), CAUSAL, ("probs", "row_sum", *ENDS), **PLAIN | {"row_max": "upper_bound"})
    assert [stage.name for stage in found] == [*ENDS] and found.verdict == "rounding"
    why = "the contract does not declare row_max=running, and row_max was not given"
    assert {stage.reason for stage in found.not_judged if stage.name in ("probs", "row_sum")} == {why}


def test_maxima_of_splits_may_be_chosen_too() -> None:
    style, said = Style(maximum=raised, splits=2), PLAIN | {"row_max": "upper_bound", "splits": 2}
    is_right(judged(style, **said))
    merged = ("partial_max", "partial_sum", "partial_O", "merge_max", "merge_sum", *ENDS)
    for case in (CASE, CAUSAL, CASES[2]):
        found = judged(style, case, merged, **said)
        is_right(found)
        assert [stage.name for stage in found] == [*merged] and found.victims == ()
    wrong = traced(style, CASE, merged, **said)
    wrong.stages["partial_sum"][0, 0, 1, 3] *= np.float32(1.0001)  # type: ignore[index]
    assert diff(replace(wrong, rerun=None)).origins == ("partial_sum", "merge_sum")


# -------------------------------------------------------------------------------------------------------- tiles and splits


@pytest.mark.campaign
def test_splits_of_keys_that_are_no_whole_tiles() -> None:
    bounds = (0, 40, 40, 72)
    style = Style(split_bounds=bounds)
    for case in (CASE, CAUSAL):
        is_right(judged(style, case, **PLAIN | {"split_bounds": bounds}))
        is_right(judged(style, case, split_bounds=[*bounds], block_k=16))
        # the keys of a split are known without its tiles
        partials = ("partial_max", "partial_sum", "partial_O", "merge_sum", *ENDS)
        found = judged(style, case, partials, split_bounds=bounds)
        is_right(found)
        assert [stage.name for stage in found] == [*partials]
    assert "partial_max" in judged(style, **PLAIN | {"split_bounds": (0, 32, 40, 72)}, names=partials).origins


@pytest.mark.campaign
@pytest.mark.parametrize("order", ["descending", [2, 0, 4, 1, 3]])
def test_rows_visit_tiles_in_the_order_that_is_declared(order: Any) -> None:
    for case in (CASE, CAUSAL):
        is_right(judged(Style(tile_order=order), case, **PLAIN | {"tile_order": order}))
        is_right(judged(Style(tile_order=order), case, block_k=16, tile_order=order))
        assert "row_max" in judged(Style(tile_order=order), case, **PLAIN | {"tile_order": "ascending"}).origins
        if order == "descending":
            undeclared = judged(Style(tile_order=order), case, **PLAIN)
            is_right(undeclared)
            assert "tile_order=descending" in str(undeclared)
        is_right(judged(Style(tile_order=order, splits=2), case, **PLAIN | {"tile_order": order, "splits": 2}))
    if order == "descending":
        assert explained(traced(Style(tile_order=order), CAUSAL, block_k=16)) == {"tile_order"}


@pytest.mark.campaign(but=1)
@pytest.mark.parametrize("style", [Style(skips=True), Style(skips=True, tile_order="descending")])
def test_slots_of_skipped_tiles_are_not_judged(style: Style) -> None:
    said = {"skips_masked_tiles": True, "tile_order": style.tile_order}
    found = judged(style, CAUSAL, **PLAIN | said)
    is_right(found)
    is_right(judged(style, CAUSAL, block_k=16, **said))
    rows, tiles = np.meshgrid(np.arange(72), np.arange(5), indexing="ij")
    sees = tiles * 16 <= rows
    for name in ("row_max", "correction", "row_sum", "acc"):
        of_rows = found[name].isolated.judged.reshape(2, 72, 5, -1)  # type: ignore[union-attr]
        assert np.array_equal(of_rows.all(axis=-1), np.broadcast_to(sees, (2, 72, 5)))
        assert np.array_equal(of_rows.any(axis=-1), np.broadcast_to(sees, (2, 72, 5)))
    assert judged(style, CAUSAL, **PLAIN | said | {"skips_masked_tiles": False}).verdict == "bug"


def test_a_kernel_that_skips_a_tile_with_a_key_is_wrong() -> None:
    trace = traced(Style(skips=True), CAUSAL, **PLAIN | {"skips_masked_tiles": True})
    for name, slot in (("acc", (0, 1, 40, 2, 3)), ("probs", (0, 0, 71, 70)), ("row_max", (0, 0, 16, 1))):
        left = trace.stages[name].copy()
        assert np.isfinite(left[slot])
        left[slot] = np.nan
        assert diff(replace(trace, stages={**trace.stages, name: left}, rerun=None)).origins[0] == name


def test_splits_without_a_visible_key_may_be_skipped() -> None:
    style = Style(skips=True, splits=2)
    is_right(judged(style, CAUSAL, **PLAIN | {"skips_masked_tiles": True, "splits": 2}))


# ------------------------------------------------------------------------------------------------- sums, masks and zeros


@pytest.mark.campaign
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_sum_of_either_probs_where_it_is_not_declared(dtype: str) -> None:
    cast = {"probs_dtype": dtype, "probs_rounding": "nearest"}
    for of_cast, case in ((False, CASE), (True, CASE), (True, CASES[2])):
        style, narrow = Style(probs_dtype=dtype, row_sum_of_cast=of_cast), case.but(dtype=dtype)
        is_right(judged(style, narrow, **PLAIN | cast | {"row_sum_of_cast": of_cast}))
        is_right(judged(style, narrow, **{k: x for k, x in (PLAIN | cast).items() if k != "row_sum_of_cast"}))
        is_right(judged(style, narrow, block_k=16))
        for names in (ENDS, ("row_sum", "lse"), ("out",)):  # scores in 16 bits say nothing of peaked weights
            is_right(judged(style, narrow, names, block_k=16, scores_dtype="float32"))
    wrong = traced(Style(probs_dtype=dtype, row_sum_of_cast=True), CASE.but(dtype=dtype), block_k=16)
    assert explained(wrong) == {"row_sum_of_cast"}


@pytest.mark.campaign
@pytest.mark.parametrize("sentinel", [-1e9, -1e30])
def test_a_mask_may_add_its_sentinel(sentinel: float) -> None:
    said = {"mask_sentinel": sentinel}
    for style, more in (
        (Style(sentinel=sentinel), {}),
        (Style(sentinel=sentinel, tile_order="descending"), {"tile_order": "descending"}),
        (Style(sentinel=sentinel, splits=3), {"splits": 3}),
    ):
        found = judged(style, CAUSAL, **PLAIN | said | more)
        is_right(found)
        is_right(judged(style, CAUSAL, block_k=16, **said, **more))
        # weights of rows that have seen no key mean nothing, those of masked keys beside visible ones are 0
        if not more:
            assert np.all(found["probs"].isolated.judged)  # type: ignore[union-attr]
    assert judged(Style(sentinel=sentinel), CAUSAL, block_k=16).verdict == "rounding"  # read off its scores


def test_half_a_sentinel_is_masked_and_less_is_not() -> None:
    said = PLAIN | {"mask_sentinel": -1e9, "skips_masked_tiles": False}
    trace = traced(Style(sentinel=-1e9), CAUSAL, **said)
    scores = trace.stages["scores"].copy()
    for held, verdict in ((-0.5e9, "exact"), (-0.49e9, "bug"), (0.0, "bug")):
        scores[0, 0, 3, 50] = held  # a masked key
        found = diff(replace(trace, stages={**trace.stages, "scores": scores}, rerun=None))
        assert found["scores"].verdict in (verdict, "rounding" if verdict == "exact" else verdict), held
    scores[0, 0, 3, 50], scores[0, 0, 50, 3] = -1e9, -1e9  # a visible one
    assert diff(replace(trace, stages={**trace.stages, "scores": scores}, rerun=None)).origins[0] == "scores"


@pytest.mark.campaign(but=1)
@pytest.mark.parametrize(
    ("what", "dtype"),
    [
        ("scale", "float16"),
        ("scale", "float32"),
        ("q", "bfloat16"),
        ("k", "float32"),
        ("v", "float16"),
        ("v", "float32"),
    ],
)
def test_zeros_are_testable(what: str, dtype: str) -> None:
    case = CASE.but(dtype=dtype, **({"scale": 0.0} if what == "scale" else {}))
    inputs = [x * 0 if name == what else x for name, x in zip("qkv", case.inputs(), strict=True)]
    for names in (None, ENDS, ("out",), ("qk", "scores", *ENDS), ("scores",)):
        found = diff(run(kernel(Style(), {"block_k": 16}, names), case, inputs=tuple(inputs)))
        is_right(found)

    def wrong(q: np.ndarray, k: np.ndarray, v: np.ndarray, **options: Any) -> dict[str, Any]:
        made = kernel(Style(), {"block_k": 16}, ("scores", "out", "lse"))(q, k, v, **options)
        zero = "out" if what == "v" else "scores"
        return made | {zero: made[zero] + made[zero].dtype.type(1e-3)}

    assert diff(run(wrong, case, inputs=tuple(inputs))).origins[0] == ("out" if what == "v" else "scores")


# ----------------------------------------------------------------------------------------------------- contracts in words


@pytest.mark.parametrize(
    ("contract", "message"),
    [
        (
            {"split_bounds": [0, 40]},
            '"contract" field split_bounds must end with 72, the keys of this case; got [0, 40]',
        ),
        (
            {"split_bounds": [0, 72], "splits": 2},
            '"contract" fields split_bounds and splits contradict each other: [0, 72] are 1 splits; got splits=2',
        ),
        (
            {"tile_order": [1, 0], "block_k": 16},
            '"contract" field tile_order must list the 5 tiles of this case; got [1, 0]',
        ),
        (
            {"tile_order": "backwards"},
            '"contract" field tile_order must be ascending, descending, or a list of all tiles, such as [0, 2, 1]; got '
            "'backwards'",
        ),
        ({"exp_floor": 3.0}, '"contract" field exp_floor must be a negative number, or None; got 3.0'),
        ({"row_max": "max"}, "\"contract\" field row_max must be one of running, upper_bound, lagging, any; got 'max'"),
    ],
)
def test_what_does_not_fit_is_refused(contract: dict[str, Any], message: str) -> None:
    with pytest.raises(Refusal) as refused:
        of_foreign(contract, CASE)
    assert str(refused.value) == message


def test_numbers_of_numpy_are_numbers() -> None:
    promise = of_foreign({"block_k": np.int64(16), "split_bounds": np.array([0, 8, 72]), "base2": np.True_}, CASE)
    assert (promise.block_k, promise.split_bounds, promise.splits, promise.base2) == (16, (0, 8, 72), 2, True)


def test_the_usual_contract_keeps_what_was_declared() -> None:
    case = CASE.but(dtype="bfloat16")
    said = {"scores_dtype": "bfloat16", "row_sum_of_cast": True, "block_k": 16, "exp_ulps": 2000.0}
    told = usual(of_foreign(said, case))
    assert all(getattr(told, name) == value for name, value in said.items())
    assert (told.probs_dtype, told.partials_dtype, told.normalisation) == ("bfloat16", "float32", "division")
    named = {name for name, promise, _ in alternatives(of_foreign(said, case))}
    assert not named & set(said) and {"probs_dtype", "exp_floor", "normalisation", "accumulator_dtype"} <= named
    assert all(set(ALGORITHMS) and promise.block_k == 16 for _, promise, _ in alternatives(of_foreign(said, case)))
