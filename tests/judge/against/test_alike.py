"""Which stages of two traces mean the same, where, and which runs are not of one problem."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.stored import stored
from workbench import Case, Refusal, Trace, run
from workbench.case.contract import of_foreign
from workbench.case.stages import ALGORITHMS, stages_of
from workbench.expectation.observed import Observed
from workbench.judge.against.alike import ORDER, check_same_problem, shared

SMALL = Case(seqlen=100, head_dim=8, block_q=16, block_k=16)
BY_TILE = ["row_max", "correction", "probs", "probs_cast", "row_sum", "acc"]
PARTIALS = ["partial_max", "partial_sum", "partial_O"]
MERGED = ["merge_max", "merge_weight", "merge_sum"]


def trace(kernel: str, **changes: Any) -> Trace:
    return stored(kernel, SMALL.but(**changes))


def test_every_stage_has_its_place_in_the_order() -> None:
    assert len(set(ORDER)) == len(ORDER) and set(ORDER) == {name for known in ALGORITHMS.values() for name in known}
    for known in ALGORITHMS.values():
        assert [name for name in ORDER if name in known] == list(known)


def test_two_runs_of_one_kernel_share_everything() -> None:
    found = shared(Observed(trace("split_k", splits=2)), Observed(trace("split_k", splits=2)))
    assert list(found.tiles) == list(stages_of("split_k")) and not found.apart
    assert all(tiles is None for tiles in found.tiles.values())


def test_a_state_is_shared_in_the_tiles_where_it_starts_at_the_same_key() -> None:
    """7 tiles of 16 keys; 3 splits hold tiles 0-2, 3-5 and 6."""
    found = shared(Observed(trace("split_k", splits=3)), Observed(trace("flash")))
    assert list(found.tiles) == ["qk", "scores", *BY_TILE, "out", "lse"]
    for name in BY_TILE:
        assert found.tiles[name] is not None and list(np.flatnonzero(found.tiles[name])) == [0, 1, 2]
    assert found.apart == dict.fromkeys([*PARTIALS, *MERGED], "B has no such stage")


def test_splits_of_other_keys_are_not_comparable() -> None:
    """2 splits start at tiles 0 and 4, 4 splits at 0, 2, 4 and 6."""
    found = shared(Observed(trace("split_k", splits=2)), Observed(trace("split_k", splits=4)))
    assert found.tiles["acc"] is not None and list(np.flatnonzero(found.tiles["acc"])) == [0, 1, 4, 5]
    reason = "2 splits in A, 4 in B, with different keys"
    assert found.apart == dict.fromkeys([*PARTIALS, "merge_weight"], reason)
    assert [found.tiles[name] for name in ("merge_max", "merge_sum", "out", "lse")] == [None] * 4


@pytest.mark.campaign
def test_tiles_of_another_size_are_not_comparable_but_splits_of_the_same_keys_are() -> None:
    """64 keys in 2 splits: tiles of 16 and of 32 both break at key 32."""
    a, b = (trace("split_k", seqlen=64, splits=2, block_k=block_k) for block_k in (16, 32))
    found = shared(Observed(a), Observed(b))
    assert found.apart == dict.fromkeys(BY_TILE, "key tiles of 16 in A, of 32 in B")
    assert list(found.tiles) == ["qk", "scores", *PARTIALS, *MERGED, "out", "lse"]
    assert "partial_O" in shared(Observed(a), Observed(trace("split_k", seqlen=64, splits=4, block_k=32))).apart


def test_what_is_not_given_or_not_told_is_not_comparable() -> None:
    whole = trace("flash")
    b = replace(whole, stages={name: x for name, x in whole.stages.items() if name != "qk"})
    assert shared(Observed(whole), Observed(b)).apart == {"qk": "B did not return it"}
    assert shared(Observed(b), Observed(whole)).apart == {"qk": "A did not return it"}
    assert shared(Observed(b), Observed(b)).apart == {}
    untold = replace(whole, contract=of_foreign({}, whole.case))
    reason = "A: the contract does not declare block_k, so its key tiles are unknown"
    assert shared(Observed(untold), Observed(whole)).apart == dict.fromkeys(BY_TILE, reason)


def test_splits_of_unknown_tiles_are_not_comparable() -> None:
    whole = trace("split_k", splits=2)
    untold = replace(whole, contract=replace(whole.contract, block_k=None))
    reasons = shared(Observed(whole), Observed(untold)).apart
    assert (
        reasons["merge_weight"]
        == "the contract does not declare block_k and splits, so the keys of a split are unknown"
    )


@pytest.mark.parametrize(
    ("changes", "differ"),
    [
        ({"seqlen_k": 30}, "seqlen_k: 100 and 30"),
        ({"heads": 2}, "heads: 1 and 2"),
        ({"scale": 0.5}, "scale: 0.3535533845424652 and 0.5"),
        ({"causal": True}, "causal: False and True"),
    ],
)
def test_runs_of_other_problems_are_refused(changes: dict[str, Any], differ: str) -> None:
    with pytest.raises(Refusal) as refused:
        check_same_problem(Observed(trace("flash")), Observed(trace("split_k", **changes)))
    assert str(refused.value) == f"flash against split_k: both must run the same problem; they differ in {differ}"


def test_the_alignment_of_a_causal_mask_matters_where_it_moves_the_diagonal() -> None:
    cases = [SMALL.but(causal=True, causal_alignment=way) for way in ("bottom-right", "top-left")]
    check_same_problem(*(Observed(stored("flash", case)) for case in cases))
    with pytest.raises(Refusal) as refused:
        check_same_problem(*(Observed(stored("flash", case.but(seqlen_q=40))) for case in cases))
    assert str(refused.value) == (
        "flash against flash: both must run the same problem; they differ in causal_alignment: bottom-right and top-left"
    )


def test_windows_on_other_parts_are_refused() -> None:
    whole, part, other = (stored("flash", SMALL, where=where) for where in (None, "q=0:8", "q=8:16"))
    check_same_problem(Observed(part), Observed(part))
    with pytest.raises(Refusal) as refused:
        check_same_problem(Observed(part), Observed(other))
    assert str(refused.value) == (
        "flash against flash: both must cover the same part of the run; they cover b=0:1,h=0:1,q=0:8 and b=0:1,h=0:1,q=8:16"
    )
    with pytest.raises(Refusal) as refused:
        check_same_problem(Observed(part), Observed(whole))
    assert str(refused.value) == (
        "flash against flash: both must cover the same part of the run; they cover b=0:1,h=0:1,q=0:8 and all of it"
    )


def test_other_inputs_are_refused() -> None:
    with pytest.raises(Refusal) as refused:
        check_same_problem(Observed(trace("flash")), Observed(trace("split_k", seed=1)))
    assert str(refused.value) == (
        "flash against split_k: q (both float32) must be bit-identical; 800 of 800 elements differ, first at [0, 0, 0, 0]: 0.125730217 and 0.345584184"
    )


@pytest.mark.campaign
@pytest.mark.parametrize(("dtype", "other"), [("float16", "float32"), ("bfloat16", "float16")])
def test_inputs_of_other_dtypes_may_be_roundings_of_the_same_numbers(dtype: str, other: str) -> None:
    check_same_problem(Observed(trace("flash", dtype=dtype)), Observed(trace("flash", dtype=other)))
    check_same_problem(Observed(trace("flash", dtype=other)), Observed(trace("flash", dtype=dtype)))


@pytest.mark.campaign
def test_inputs_of_other_dtypes_and_other_numbers_are_refused() -> None:
    a, b = trace("flash"), trace("flash", dtype="float16")
    v = b.inputs["v"].copy()
    v[0, 0, 2, 3] = np.nextafter(v[0, 0, 2, 3], np.float16(np.inf))
    with pytest.raises(Refusal) as refused:
        check_same_problem(Observed(a), Observed(replace(b, inputs={**b.inputs, "v": v})))
    assert str(refused.value) == (
        "flash against flash: v (float32 and float16) may differ by one rounding to each dtype; 1 of 800 elements differ, first at [0, 0, 2, 3]: "
        f"{a.inputs['v'][0, 0, 2, 3]:.9g} and {v[0, 0, 2, 3]:.9g}"
    )


def test_a_mask_that_one_alone_was_given_is_refused() -> None:
    def kernel(q, k, v, *, scale, causal, mask=None):
        return q

    case = SMALL.but(distribution="given")
    arrays = dict(zip("qkv", SMALL.inputs(), strict=True))
    mask = np.tri(100, dtype=bool)
    plain, masked = (run(kernel, case, inputs=some) for some in (arrays, {**arrays, "mask": mask}))
    with pytest.raises(Refusal) as refused:
        check_same_problem(Observed(plain), Observed(masked))
    assert str(refused.value) == ("kernel against kernel: both must read the same inputs; B was given mask, A was not")
    check_same_problem(Observed(masked), Observed(masked))


@pytest.mark.campaign
def test_codes_stand_for_inputs_that_nobody_knows() -> None:
    made = stored("fp8", Case(seqlen=32, head_dim=16))
    codes = {name: made.stages[name] for name in made.stages if name.startswith(("codes", "scale"))}
    given = stored("fp8", Case(seqlen=32, head_dim=16, distribution="given"), inputs=codes)
    check_same_problem(Observed(given), Observed(given))
    with pytest.raises(Refusal) as refused:
        check_same_problem(Observed(given), Observed(made))
    assert str(refused.value) == "fp8 against fp8: both must read the same inputs; B was given q, A was not"
    other = codes["codes_k"].copy()
    other[0, 0, 1, 2] ^= 1
    changed = replace(given, stages={**given.stages, "codes_k": other})
    with pytest.raises(Refusal) as refused:
        check_same_problem(Observed(given), Observed(changed))
    assert str(refused.value).startswith("fp8 against fp8: codes_k (both uint8) must be bit-identical; ")
