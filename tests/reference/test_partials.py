"""Results of splits as FlashDecoding, FlashInfer and vLLM store them: right kernels and wrong ones, declared or not.

`online` makes the states of the splits; what is stored of them and the merge are here, in NumPy's float32.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from tests.online import NOTHING, F, online, promise
from workbench import Case, Refusal
from workbench.case.contract import of_foreign
from workbench.case.inputs import by_name
from workbench.floats import DTYPES
from workbench.judge.diff import Diff, diff
from workbench.trace.seen import promise_of
from workbench.trace.trace import Trace, check

SPLITS = 3
LOG2E = F(1.4426950408889634)
#: rows of the first queries see no key of the later splits, and the first none at all
CASE = Case(heads=2, kv_heads=1, seqlen_q=50, seqlen_k=48, head_dim=24, causal=True, seed=5)
STYLES = ("lse", "lse2", "lse-shares", "lse2-shares", "max,sum")
#: what each declares
SAID: Mapping[str, dict[str, str]] = {
    "lse": {"partial_stats": "lse"},
    "lse2": {"partial_stats": "lse2"},
    "lse-shares": {"partial_stats": "lse", "normalisation": "lse"},
    "lse2-shares": {"partial_stats": "lse2", "normalisation": "lse"},
    "max,sum": {"partials": "normalised"},
}


@np.errstate(all="ignore")
def kernel(case: Case, style: str, fault: str = "") -> dict[str, np.ndarray]:
    """The stages of splits and of their merge, with a fault or none."""
    stats, _, shares = style.partition("-")
    state = online(case, by_name(case), splits=SPLITS)
    m, l = (state[x].copy() for x in ("partial_max", "partial_sum"))
    if fault == "sum counted twice":
        l[:, :, 1] *= 2
    of_l = l[..., None]
    found = {"partial_O": np.where(of_l == 0, F(0), state["partial_O"] / of_l).astype(DTYPES[case.dtype])}
    if fault == "not normalised":
        found["partial_O"] = state["partial_O"].astype(DTYPES[case.dtype])
    if stats == "max,sum":
        found |= {"partial_max": m, "partial_sum": l}
        weighed = l
    else:
        lse = np.where(l == 0, NOTHING, m + np.log(l))
        found["partial_max"] = m = lse * LOG2E if stats == "lse2" else lse
        weighed = np.ones_like(l)
    if fault == "an lse of base 2":
        found["partial_max"] = m = m * LOG2E
    exp = np.exp2 if stats == "lse2" else np.exp
    top = found["merge_max"] = m.max(2)
    w = exp(m - np.where(top == NOTHING, F(0), top)[:, :, None])
    if fault == "a split's weight lost":
        w[:, :, 1] = 0
    total = found["merge_sum"] = (w * weighed).sum(2)
    if shares:
        w = np.where(total[:, :, None] == 0, F(0), w / total[:, :, None])
    found["merge_weight"] = w
    o = ((w * weighed)[..., None] * found["partial_O"].astype(F)).sum(2)
    by = (total != 0).astype(F) if shares else total
    found["lse"] = np.where(total == 0, NOTHING, (top / LOG2E if stats == "lse2" else top) + np.log(total))
    found["out"] = np.where(by[..., None] == 0, F(0), o / by[..., None])
    found["out"] = found["out"].astype(DTYPES[case.dtype])
    return found


def judged(case: Case, stages: Mapping[str, np.ndarray], said: Mapping[str, Any]) -> Diff:
    inputs = by_name(case)
    trace = Trace("mine", "split_k", case, promise_of(said, stages, inputs, case), inputs, dict(stages), requested=())
    return diff(check(trace, "mine"))


def declared(case: Case, style: str) -> dict[str, Any]:
    return promise(case, splits=SPLITS) | {"partials_dtype": case.dtype, "partials_rounding": "nearest"} | SAID[style]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("style", STYLES)
def test_right_kernels_are_right_where_they_say_what_they_store(style: str, dtype: str) -> None:
    case = CASE.but(dtype=dtype)
    found = judged(case, kernel(case, style), declared(case, style))
    assert {x.name: x.verdict for x in found if x.verdict not in ("exact", "rounding")} == {}
    assert {"partial_max", "partial_O", "merge_max", "merge_weight", "out", "lse"} <= {x.name for x in found}


@pytest.mark.parametrize("style", STYLES)
def test_what_is_stored_is_recognised_and_said(style: str) -> None:
    found = judged(CASE, kernel(CASE, style), {"block_k": 16, "splits": SPLITS})
    words = ",".join(f"{name}={x}" for name, x in SAID[style].items())
    assert found.verdict == "suspicious"
    assert f"within budget only with {words};" in found["partial_O"].reason
    assert judged(CASE, kernel(CASE, style), {"block_k": 16, "splits": SPLITS} | SAID[style]).verdict == "rounding"


#: fault -> the first wrong stage, by style where it is not the same in all
FAULTS: Mapping[str, dict[str, str]] = {
    "a split's weight lost": {"": "merge_weight"},
    "sum counted twice": {"max,sum": "partial_sum", "": "partial_max"},
    "not normalised": {"": "partial_O"},
    "an lse of base 2": {"": "partial_max"},
}


@pytest.mark.campaign(every=3)
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("style", STYLES)
def test_wrong_kernels_are_wrong_where_they_are(style: str, fault: str) -> None:
    found = judged(CASE, kernel(CASE, style, fault), declared(CASE, style))
    assert (found.verdict, found.origin) == ("bug", FAULTS[fault].get(style, FAULTS[fault][""]))


@pytest.mark.campaign(but=4)
@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("fault", FAULTS)
def test_no_convention_excuses_a_wrong_kernel_that_tells_none(style: str, fault: str) -> None:
    assert judged(CASE, kernel(CASE, style, fault), {"block_k": 16, "splits": SPLITS}).verdict == "bug"


def test_an_unnormalised_result_has_no_lse() -> None:
    assert of_foreign({"partial_stats": "lse"}, CASE).partials == "normalised"
    with pytest.raises(Refusal) as refusal:
        of_foreign({"partials": "unnormalised", "partial_stats": "lse2"}, CASE)
    assert str(refusal.value) == (
        '"contract" fields partials=unnormalised and partial_stats=lse2 contradict each other: a merge by lse needs '
        "partial_O divided by the sum of its split"
    )
