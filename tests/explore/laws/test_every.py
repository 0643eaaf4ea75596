"""Every law holds of a right kernel and is broken by one that breaks it; and of kernels of ours."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

from tests.builds import FEW_BUILDS
from tests.explore.laws.fields import WRONG
from tests.explore.laws.kernels import BREAKERS, attention, changed, merge, partials
from tests.refusals import refusal
from workbench import run
from workbench.case.case import Case
from workbench.explore.laws.every import LAWS, asked, held_to, laws, subject
from workbench.explore.laws.subject import Subject
from workbench.refusal import Refusal

PLAIN = {"batch": 2, "heads": 4, "kv_heads": 2, "seqlen_q": 12, "seqlen_k": 17, "head_dim": 16, "seed": 3}
FULL, CAUSAL = Case(**PLAIN), Case(**PLAIN, causal=True, causal_alignment="top-left")
#: laws that ask for a mask -> a case of theirs
CASES = {name: FULL for name in LAWS} | {"hidden-keys-changed": CAUSAL, "keys-appended": CAUSAL}
MERGES = ("partials-doubled", "partial-maxima-moved")
#: of kernels of ours, or tried in test_chunks.py
APART = {
    "splits-change-nothing", "tiles-change-nothing",
    "chunks-are-one-shot", "decode-is-prefill", "graph-replay-is-eager",
}  # fmt: skip
#: a kernel that multiplies in TF32 where there is one query
tf32_alone = changed(
    lambda q, k, v: (
        (q, k, v) if q.shape[2] > 1 else tuple((x.view(np.uint32) & 0xFFFFE000).view(np.float32) for x in (q, k, v))
    )
)


#: what a kernel has to say for its exactness to be asked
EXACT = {"row_max": "running", "exp_floor": None}


def of(function: Callable[..., Any], name: str) -> Subject:
    return subject(function, CASES[name], **({"contract": EXACT} if name == "exact-inputs" else {}))


@pytest.mark.campaign(but=10)
@pytest.mark.parametrize("name", BREAKERS)
def test_a_right_kernel_keeps_a_law_and_a_wrong_one_breaks_it(name: str) -> None:
    assert held_to(LAWS[name], of(attention, name)).held is True
    found = held_to(LAWS[name], of(BREAKERS[name], name))
    assert found.held is False and found.broke is not None
    if name != "inputs-are-kept":
        assert found.broke.stage in ("out", "lse") and 0 < found.broke.count <= found.broke.of
        assert not abs(found.broke.found - found.broke.wanted) <= found.broke.allowed


@pytest.mark.parametrize("name", MERGES)
def test_a_merge_keeps_its_laws_and_a_wrong_one_breaks_them(name: str) -> None:
    case = Case(seqlen_q=8, seqlen_k=32, head_dim=16)

    def asked_of(function: Callable[..., Any]) -> bool | None:
        def feed(case: Case, stages: Any) -> Any:
            return run(function, case.but(splits=2, block_k=16), feed=stages)

        return held_to(LAWS[name], Subject(partial(_run, partials), case, feed=feed)).held

    def wrong(partial_O: Any, partial_max: Any, partial_sum: Any, *, scale: float, causal: bool) -> Any:
        return merge(partial_O, partial_max, partial_sum, scale=scale, causal=causal, wrong=name)

    assert asked_of(merge_right) is True
    assert asked_of(wrong) is False


@pytest.mark.parametrize("name", MERGES)
def test_a_merge_of_raw_maxima_keeps_its_laws(name: str) -> None:
    """A number that is added to maxima without the scale moves lse by its product with that."""
    case, raw = Case(seqlen_q=8, seqlen_k=32, head_dim=16), {"scores_scaled": False}

    def whole(q: Any, k: Any, v: Any, *, scale: float, causal: bool) -> Any:
        found = partials(q, k, v, scale=scale, causal=causal)
        maxima = found["partial_max"] / np.float32(scale)
        return {**found, "partial_max": maxima, "contract": {**found["contract"], **raw}}

    def merged(partial_O: Any, partial_max: Any, partial_sum: Any, *, scale: float, causal: bool) -> Any:
        return merge(partial_O, partial_max * np.float32(scale), partial_sum, scale=scale, causal=causal)

    def feed(case: Case, stages: Any) -> Any:
        return run(merged, case.but(splits=2, block_k=16), feed=stages, contract=raw)

    found = held_to(LAWS[name], Subject(partial(_run, whole), case, feed=feed))
    assert found.held is True, found


def merge_right(partial_O: Any, partial_max: Any, partial_sum: Any, *, scale: float, causal: bool) -> Any:
    return merge(partial_O, partial_max, partial_sum, scale=scale, causal=causal)


def _run(function: Callable[..., Any], case: Case, inputs: Any = None) -> Any:
    return run(function, case, **({} if inputs is None else {"inputs": inputs}))


def test_exact_inputs_hold_a_kernel_that_declares_nothing() -> None:
    found = held_to(LAWS["exact-inputs"], subject(BREAKERS["exact-inputs"], FULL))
    assert found.held is False and found.broke is not None and found.broke.stage == "out"


def test_a_choice_that_would_explain_a_break_is_named() -> None:
    found = held_to(LAWS["rows-alone"], subject(tf32_alone, FULL)).broke
    assert found is not None and "if your kernel really has input_precision=tf32" in found.words
    other = held_to(LAWS["rows-alone"], subject(BREAKERS["rows-alone"], FULL)).broke
    assert other is not None and "if your kernel" not in other.words


def test_every_law_is_tried_here() -> None:
    with_fields = {name for names in WRONG.values() for name in names}
    assert {*LAWS} == {*BREAKERS} | {*MERGES} | APART | with_fields


@pytest.mark.parametrize("kernel", ["flash", "split_k"])
def test_kernels_of_ours_keep_all_laws(kernel: str) -> None:
    build = FEW_BUILDS[0]
    case = Case(
        batch=2, heads=2, kv_heads=1, seqlen_q=18, seqlen_k=35, head_dim=24, causal=True,
        splits=2 if kernel == "split_k" else None, block_q=build[0], block_k=build[1], dtype=build[-1],
    )  # fmt: skip
    found = laws(kernel, case, backend="emulator")
    assert not found.broken, [one.broke and one.broke.words for one in found.broken]
    assert found.signature["rows-alone"] and found.signature["hidden-keys-changed"]
    assert found.signature["splits-change-nothing"] is (None if kernel == "flash" else True)


def test_bits_are_asked_of_who_claims_them_and_the_first_stage_is_named() -> None:
    def by_rows(q: Any, k: Any, v: Any, *, scale: float, causal: bool) -> Any:
        """Adds the products of several queries in another order than those of one."""
        scores = q @ np.swapaxes(k, -1, -2) if q.shape[2] > 1 else (q[..., None, :] * k[:, :, None]).sum(-1)
        scores = scores * np.float32(scale)
        probs = np.exp(scores - scores.max(-1, keepdims=True))
        return {"qk": scores / np.float32(scale), "scores": scores, "out": probs @ v / probs.sum(-1, keepdims=True)}

    case = Case(seqlen=33, head_dim=64)
    assert held_to(LAWS["rows-alone"], subject(by_rows, case)).held is True
    found = held_to(LAWS["rows-alone"], subject(by_rows, case, invariant=True)).broke
    assert found is not None and found.stage == "qk" and "qk is the first stage whose bits differ" in found.words


def test_a_kernel_that_raises_on_other_values_broke_the_law_and_one_that_refuses_a_shape_is_not_asked() -> None:
    def raises(q: Any, k: Any, v: Any, *, scale: float, causal: bool) -> Any:
        if abs(q).max() > 8:
            raise ValueError("no")
        if q.shape[0] != 2:
            raise ValueError("two sequences alone")
        return attention(q, k, v, scale=scale, causal=causal)

    found = asked(subject(raises, FULL)).signature
    assert found["q-and-k-times-power-of-two"] is False and found["place-in-batch"] is None
    assert found["v-negated"] is True


def test_the_document_and_the_signature_say_the_same() -> None:
    found = laws(BREAKERS["rows-alone"], FULL)
    document = found.as_dict()
    assert document["schema"] == "workbench.laws/1" and document["broken"] == len(found.broken) > 0
    assert {one["name"]: one["held"] for one in document["laws"]} == found.signature
    (broken,) = [one for one in document["laws"] if one["name"] == "rows-alone"]
    assert broken["broke"]["stage"] == "out" and broken["broke"]["sentence"].startswith("out at b=")


def test_a_kernel_that_gives_nan_keeps_no_law() -> None:
    def nan(q: Any, k: Any, v: Any, *, scale: float, causal: bool) -> Any:
        found = attention(q, k, v, scale=scale, causal=causal)
        return np.full_like(found["out"], np.nan), np.full_like(found["lse"], np.nan)

    found = laws(nan, CAUSAL)
    kept = {name for name, held in found.signature.items() if held}
    assert kept <= {name for name, law in LAWS.items() if law.kind == "bits" or law.kind == "hidden"}


def test_a_fault_may_be_in_no_line_of_the_runs_that_laws_ask_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lengths of caches, say, are read of padded batches alone, and rows-alone packs what it asks."""

    def run_kernel(name: str, case: Case, options: Any, *, again: bool) -> Any:
        raise Refusal(f"chosen for {'another' if again else 'this'} case")

    monkeypatch.setattr("workbench.cuda.run.run_kernel", run_kernel)
    s = subject("split_k", FULL, faults=["reduce-double-counts-sum"])
    assert refusal(s.attend, s.asked) == "chosen for this case"
    assert refusal(s.attend, s.asked.but(seed=1)) == "chosen for another case"
    assert s.feed is not None and refusal(s.feed, s.asked.but(seed=1), {}) == "chosen for another case"


@pytest.mark.parametrize("option", ["where", "feed"])
def test_parts_of_a_run_are_refused(option: str) -> None:
    with pytest.raises(Refusal, match=f"{option} is not for laws"):
        subject("flash", FULL, **{option: "b=0"})
