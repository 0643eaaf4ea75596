"""Two runs held against each other: correct kernels never part, a fault is named where both can show it."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.builds import FEW_BUILDS, draw_few_builds
from tests.stored import stored
from workbench import Case, Diff, Refusal, Trace, diff, run
from workbench.expectation.observed import Observed
from workbench.explore import ranges
from workbench.explore.sample import sample
from workbench.judge.against.pair import Against, against

CASE = Case(seqlen=64, head_dim=16, causal=True, block_q=16, block_k=16)


def judged(kernel: Any, case: Case = CASE, *faults: str) -> Diff:
    return diff(stored(kernel, case, faults=faults) if isinstance(kernel, str) else run(kernel, case))


@pytest.fixture(scope="module")
def flash() -> Diff:
    return judged("flash")


ON_CODES = Case(seqlen=64, causal=True, block_k=32)


@pytest.fixture(scope="module")
def flash_beside_codes() -> Diff:
    return judged("flash", ON_CODES)


#: fault -> the first stage that flash has too, in which it shows. With 2 splits of 2 tiles, stages of tiles are shared
#: in tiles 0 and 1: no row is without keys there, so that the missing guard shows in the later ones alone
PARTS_AT = {
    "reduce-double-counts-sum": "out",
    "partial-no-masked-tile-guard": "out",
    "partial-acc-uninitialised": "acc",
    "reduce-acc-uninitialised": "out",
    "partial-offset-wrong-split": "out",
    "reduce-sum-unweighted": "out",
    "partial-O-float16": "out",
    "partial-split-unwritten": "out",
}


@pytest.mark.campaign(but=2)
@pytest.mark.parametrize(("fault", "stage"), PARTS_AT.items())
def test_a_fault_of_split_k_shows_where_flash_has_the_same_stage(flash: Diff, fault: str, stage: str) -> None:
    broken = judged("split_k", CASE, fault)
    pair = against(broken, flash)
    assert (pair.verdict, pair.parts_at, pair[stage].verdict) == ("diverges", stage, "diverges")
    assert pair[stage].wrong == (pair[stage].outside, 0), "A is wrong, B is not"
    turned = against(flash, broken)
    assert turned.parts_at == stage and turned[stage].wrong == (0, pair[stage].outside)


def test_two_correct_kernels_do_not_part(flash: Diff) -> None:
    pair = against(judged("split_k"), flash)
    assert (pair.verdict, pair.parts_at, pair.differs_at, pair.moved) == ("rounding", None, "out", {})
    assert [stage.verdict for stage in pair][:8] == ["identical"] * 8
    assert 0 < pair["out"].over_budgets < 1 and pair["acc"].tiles == (0, 1) and pair["acc"].size == 64 * 2 * 16


def test_the_first_difference_of_one_kernel_with_two_settings() -> None:
    pair = against(*(judged("split_k", CASE.but(splits=splits)) for splits in (2, 4)))
    assert (pair.verdict, pair.differs_at) == ("rounding", "merge_sum")
    assert pair["merge_max"].verdict == "identical" and pair["row_max"].tiles == (0, 2)
    assert pair["merge_sum"].max_ulp >= 1


def test_the_same_run_twice_is_identical(flash: Diff) -> None:
    pair = against(flash, flash)
    assert (pair.verdict, pair.differs_at, pair.parts_at) == ("identical", None, None)
    assert all(stage.verdict == "identical" and stage.worst is None for stage in pair)


@pytest.mark.parametrize(
    ("fault", "stage"),
    [("flash-no-correction", "acc"), ("flash-stale-max", "probs"), ("flash-row-sum-no-correction", "row_sum")],
)
def test_a_fault_in_tiles_that_are_not_shared_is_not_taken_for_an_input(fault: str, stage: str) -> None:
    """It shows where the max moves. With 4 splits only tile 0, where nothing was before, is shared: the wrong states of
    later tiles must not count as what out reads.
    """
    broken = judged("flash", CASE, fault)
    assert broken.origin == stage and broken["out"].role == "victim"
    pair = against(broken, judged("split_k", CASE.but(splits=4)))
    assert pair[stage].tiles == (0,) and pair[stage].verdict == "identical"
    assert (pair.parts_at, pair["out"].verdict) == ("out", "diverges")
    assert against(broken, judged("split_k", CASE.but(splits=1))).parts_at == stage


def test_what_inputs_carry_is_no_difference_of_the_stage(flash: Diff) -> None:
    pair = against(judged("flash", CASE, "flash-scale-twice"), flash)
    assert pair.parts_at == "scores"
    assert [stage.name for stage in pair if stage.verdict == "diverges"] == ["scores"]
    assert pair["out"].verdict == "carried" and pair["out"].carried > 0 == pair["out"].outside
    assert pair["out"].max_own < 1e-6 < 0.1 < pair["out"].max_abs


def test_the_same_fault_in_both_is_a_bug_of_both_and_they_do_not_part() -> None:
    pair = against(*(judged("flash", CASE.but(block_q=block_q), "flash-scale-twice") for block_q in (16, 32)))
    assert pair.parts_at is None and (pair.a.origin, pair.b.origin) == ("scores", "scores")


@pytest.mark.campaign
def test_dtypes_may_differ(flash: Diff) -> None:
    """What rounding q, k and v to float16 moves is carried along; the scale of a faulty kernel is not."""
    half = judged("split_k", CASE.but(dtype="float16"))
    pair = against(half, flash)
    assert pair.verdict == "rounding" and set(pair.moved) == {"q", "k", "v"}
    assert pair["out"].max_abs > 100 * pair["lse"].max_own and pair["scores"].max_own < 1e-6
    broken = judged("split_k", CASE.but(dtype="float16"), "reduce-double-counts-sum")
    assert against(broken, flash).parts_at == "out"


@pytest.mark.campaign
@pytest.mark.parametrize(
    ("kernel", "options"),
    [
        ("flash", {"codes": "simulated"}),
        ("split_k", {"codes": "simulated"}),
        ("flash", {"codes": "e4m3", "probs_dtype": "float32"}),
        ("split_k", {"codes": "e5m2", "scores": "scalar"}),
    ],
    ids=str,
)
def test_quantisation_is_no_bug(kernel: str, options: dict[str, str]) -> None:
    quantised = judged("fp8", ON_CODES.but(**options))
    pair = against(quantised, judged(kernel, ON_CODES))
    assert pair.verdict == "rounding" and pair.apart["codes_q"] == pair.apart["dequant_k"] == "B has no such stage"
    read = Observed(quantised.trace).attention.trace.inputs["q"].astype(np.float64)
    assert pair.moved["q"] == np.abs(read - quantised.trace.inputs["q"]).max() > 1e-3
    assert pair["out"].max_abs > 0.005 and pair["out"].max_own < 0.002


@pytest.mark.campaign
@pytest.mark.parametrize(("fault", "stage"), [("b-leading-dimension", "qk"), ("rescale-per-lane", "acc")])
def test_a_fault_of_a_quantised_kernel_is_more_than_its_loss(flash_beside_codes: Diff, fault: str, stage: str) -> None:
    assert against(judged("fp8", ON_CODES, fault), flash_beside_codes).parts_at == stage


def test_a_wrong_decoding_is_seen_against_float64_alone(flash_beside_codes: Diff) -> None:
    """Another kernel has no such stage, and to the later ones it is as good as other inputs."""
    pair = against(judged("fp8", ON_CODES, "v-uses-k-scale"), flash_beside_codes)
    assert (pair.a.origin, pair.parts_at, pair.verdict) == ("lut_v", None, "rounding")


def test_two_quantised_kernels_are_compared_from_their_codes_on() -> None:
    table, direct = (judged("fp8", ON_CODES.but(decode=decode)) for decode in ("table", "direct"))
    pair = against(table, direct)
    assert pair.parts_at is None and pair.apart == dict.fromkeys(["lut_k", "lut_v"], "B did not return it")
    assert [stage.name for stage in pair][:9] == [
        *("scale_q", "scale_k", "scale_v", "codes_q", "codes_k", "codes_v", "dequant_q", "dequant_k", "dequant_v")
    ]


def foreign(scale_error: float = 1.0, units: float = 1.0) -> Any:
    """A foreign kernel that gives scores, in base 2 where `units` is log2(e), out and lse."""

    def kernel(q, k, v, *, scale, causal):
        scores = q @ np.swapaxes(k, -1, -2) * np.float32(scale * scale_error)
        scores = np.where(np.tri(*scores.shape[-2:], dtype=bool), scores, np.float32(-np.inf))
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        total = weights.sum(-1)
        stored = np.where(np.isfinite(scores), scores * np.float32(units), np.float32(-1e30))
        contract = {"base2": units != 1.0, "mask_sentinel": -1e30}
        lse = scores.max(-1) + np.log(total)
        return {"scores": stored, "out": weights @ v / total[..., None], "lse": lse, "contract": contract}

    return kernel


@pytest.mark.parametrize("units", [1.0, float(np.log2(np.e))])
def test_a_foreign_kernel_is_compared_in_natural_units(flash: Diff, units: float) -> None:
    pair = against(judged(foreign(units=units)), flash)
    assert pair.parts_at is None and list(stage.name for stage in pair) == ["scores", "out", "lse"]
    assert pair["scores"].max_abs < 1e-5 and pair["scores"].over_budgets < 0.1
    assert against(judged(foreign(1.01, units)), flash).parts_at == "scores"


def test_end_to_end_where_nothing_else_is_shared(flash: Diff) -> None:
    """out alone, held against a kernel with every stage: its own stages before out must not excuse it."""
    broken = judged("flash", CASE, "flash-scale-twice").trace
    alone = replace(broken, stages={"out": broken.stages["out"]}, requested=())
    for one, other in ((alone, flash.trace), (flash.trace, alone)):
        pair = against(diff(one), diff(other))
        assert pair.parts_at == "out" and pair["out"].given == ()


def test_nothing_in_common_is_untestable(flash: Diff) -> None:
    def only(name: str) -> Trace:
        return replace(flash.trace, stages={name: flash.trace.stages[name]}, requested=())

    pair = against(diff(only("out")), diff(only("lse")))
    assert (pair.verdict, pair.stages) == ("untestable", ())
    assert pair.apart == {"out": "B did not return it", "lse": "A did not return it"}


def test_other_problems_are_refused(flash: Diff) -> None:
    with pytest.raises(Refusal, match="^flash against flash: both must run the same problem; they differ in seqlen_q"):
        against(flash, judged("flash", CASE.but(seqlen=32)))


def test_repr(flash: Diff) -> None:
    assert repr(against(judged("split_k", CASE, "reduce-double-counts-sum"), flash)) == (
        "<Against of split_k and flash: diverges at out>"
    )
    assert repr(against(flash, flash)) == "<Against of flash and flash: identical>"


def random_pair(random: np.random.Generator, kind: str) -> Against:
    """Two correct kernels on a case of any shape, mask, scale and distribution."""
    with pytest.MonkeyPatch.context() as patch:
        draw_few_builds(patch)
        if kind != "kernels":
            patch.setattr(ranges, "BUILDS", FEW_BUILDS[:1])
        case = sample(random, "flash", batch=1)
    if kind == "codes":
        case = case.but(head_dim=64, dtype="float32", block_q=None, block_k=None, distribution="normal")
        case = case.but(softcap=None, window=None)
    elif random.integers(2):
        case = case.but(probs_dtype=case.dtype)
    split = case.but(splits=int(random.integers(1, 6)))
    if kind == "splits":
        return against(judged("split_k", split), judged("split_k", case.but(splits=int(random.integers(1, 6)))))
    if kind == "tiles":
        return against(judged("flash", case), judged("flash", case.but(block_k=32)))
    if kind == "codes":
        return against(judged("fp8", case), judged("split_k", split))
    if kind == "dtypes":
        split = split.but(dtype="float16", probs_dtype=case.probs_dtype and "float16")
    return against(judged("flash", case), judged("split_k", split))


@pytest.mark.campaign
@pytest.mark.parametrize("kind", ["kernels", "splits", "tiles", "dtypes", "codes"])
def test_random_correct_kernels_never_part(kind: str) -> None:
    random, over = np.random.default_rng(0), []
    for _ in range(8):
        pair = random_pair(random, kind)
        assert pair.verdict in ("identical", "rounding"), (pair, pair.a.trace.case, pair.b.trace.case)
        over += [stage.over_budgets for stage in pair if stage.judged]
    # budgets that nothing comes near would prove nothing
    assert max(over) > 0.01


def test_elements_given_in_part_are_compared_alone_and_excuse_nothing(flash: Diff) -> None:
    """Of scores 3 elements were printed: the rest may be wrong, so that out is not judged from it."""
    broken = judged("flash", CASE, "flash-scale-twice").trace
    scores, off = (np.full(broken.stages["scores"].shape, np.nan, dtype) for dtype in (np.float32, np.float64))
    good = flash.trace.stages["scores"]
    scores[0, 0, 5, :3], off[0, 0, 5, :3] = good[0, 0, 5, :3], 0.0
    stages = {"scores": scores, "out": broken.stages["out"]}
    sparse = diff(replace(broken, stages=stages, sparse={"scores": off}, requested=()))
    for pair in (against(sparse, flash), against(flash, sparse)):
        assert (pair["scores"].verdict, pair["scores"].size, pair["scores"].differing) == ("identical", 3, 0)
        assert (pair.parts_at, pair["out"].given) == ("out", ())
