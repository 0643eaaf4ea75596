"""Faults read off `out` alone: what is found is what is wrong, and predicts runs that no reading saw."""

from typing import Any

import numpy as np
import pytest

from tests.judge.explain.test_domain import SQUARE, tiles_of_their_own
from tests.readings.kernels import kernel
from workbench import Case, Refusal, run
from workbench.readings.reader import Measured, measured
from workbench.work import Work

CASE = Case(heads=2, kv_heads=2, seqlen=48, head_dim=16)
GROUPED = Case(heads=4, kv_heads=2, seqlen_q=32, seqlen_k=48, head_dim=16)


def read(bug: str, case: Case = CASE, *, lse: bool = False) -> Measured:
    found = measured(run(kernel(bug, lse=lse), case))
    assert found.calls <= 200
    return found


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_of_a_right_kernel_nothing_is_found(dtype: str, causal: bool) -> None:
    found = read("", GROUPED.but(dtype=dtype, causal=causal))
    assert not found.findings and not found.proofs and found.calls <= 4
    assert np.all(abs(found.weights - found.expected_weights) <= 0.01) and found.weights.size > 0


#: fault -> the reading that finds it, and what its words hold
FAULTS = {
    "heads of k": ("heads", "head 1 reads kv head 1, not kv head 0"),
    "k transposed": ("elements", "each 8 x 8 block is transposed"),
    "v swizzled": ("elements", "V is read wrong"),
    "last dims": ("elements", "dims 8-15 are read as 0"),
    "scale 1 % off": ("response", "scores are multiplied by 1.01"),
    "capped": ("response", "capped as 5 * tanh(1 x / 5)"),
    "last key": ("start", "keys 47 in rows 0-31 get no weight"),
    "no correction": ("loop", "the correction of the accumulator is left out (tiles of 16 keys)"),
    "sum not rescaled": ("denominator", "tile sums"),
    "phantom": ("denominator", "the denominator is the sum of e^s plus 1"),
    "undivided": ("denominator", "weights are not divided by their sum"),
    "rows moved": ("place", "rows of out are stored in the wrong place"),
    "added": ("added", "with V = 0, out is "),
}


@pytest.mark.parametrize("bug", FAULTS)
def test_a_fault_is_read_off_out_alone(bug: str) -> None:
    reading, words = FAULTS[bug]
    found = read(bug, GROUPED)
    (finding,) = found.findings
    assert finding.reading == reading and words in finding.text and finding.wrong > 0
    assert found.proved and all(one.left <= 0.01 * one.error for one in found.proofs) and len(found.proofs) == 2


def test_a_mask_that_is_off_by_one_is_read_exactly() -> None:
    found = read("strict", CASE.but(causal=True))
    (finding,) = found.findings
    assert "keys at offset +0 from the diagonal in rows 0-47 get no weight" in finding.text and found.proved
    hidden = np.isneginf(finding.data["table"])
    assert np.array_equal(hidden[0, 0], ~np.tri(48, k=-1, dtype=bool))


def test_maps_are_data() -> None:
    found = read("k transposed")
    (finding,) = found.findings
    index = np.arange(48 * 16).reshape(6, 8, 2, 8).transpose(0, 3, 2, 1).reshape(48, 16)
    assert np.array_equal(finding.data["k"], index)


@pytest.mark.campaign(but=2)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("bug", ["k transposed", "no correction", "last key"])
def test_in_16_bits_too(bug: str, dtype: str) -> None:
    found = read(bug, GROUPED.but(dtype=dtype, seqlen_q=64, seqlen_k=64))
    assert [one.reading for one in found.findings] == [FAULTS[bug][0]] and found.proved


@pytest.mark.parametrize(
    ("bug", "readings"),
    [
        ("v swizzled, scale 1 % off", ["elements", "response"]),
        ("v swizzled, rows moved", ["place", "elements"]),
        ("scale 1 % off, no correction", ["loop", "response"]),
    ],
)
def test_two_faults_are_both_named(bug: str, readings: list[str]) -> None:
    """Each reading is corrected by those before it: a map of V does not show again in weights, nor one of K in steps."""
    found = read(bug)
    assert sorted(one.reading for one in found.findings) == sorted(readings) and found.proved


def test_lse_has_findings_of_its_own() -> None:
    found = read("base 2", lse=True)
    (finding,) = found.findings
    assert (finding.reading, finding.text) == ("lse", "lse is in base 2, not in base e") and all(
        one.lse_held for one in found.proofs
    )


@pytest.mark.campaign  # a build of its own
def test_a_kernel_of_ours_is_measured_on_the_emulator() -> None:
    case = Case(seqlen=48, head_dim=16, block_q=16, block_k=16)
    (finding,) = measured(run("flash", case, faults=["flash-scale-twice"])).findings
    assert "the scale is 0.0625, not 0.25" in finding.text
    assert not measured(run("flash", case)).findings


def test_what_holds_no_pattern_is_not_told() -> None:
    """Junk that is another for each input is read as this or that; unseen runs refute it."""

    def junk(q: np.ndarray, k: np.ndarray, v: np.ndarray, *, scale: float, causal: bool) -> np.ndarray:
        seed = int(abs(q).sum() * 1000) % 2**31
        return np.random.default_rng(seed).standard_normal(q.shape).astype(q.dtype)

    assert not measured(run(junk, CASE)).proved


def test_a_function_is_refused_when_the_work_is_over() -> None:
    trace = run(kernel("undivided"), CASE)
    with pytest.raises(Refusal, match="was not measured: the effort ran out after 1 calls"):
        measured(trace, work=Work(1.0))


def test_inputs_that_were_given_are_measured_with_their_mask() -> None:
    case = CASE.but(heads=1, kv_heads=1)
    rng = np.random.default_rng(0)
    given = {name: 2 * rng.standard_normal((1, 1, 48, 16)).astype(np.float32) for name in "qkv"}
    mask = np.tri(48, dtype=bool) | (rng.random((48, 48)) < 0.3)

    def function(q: np.ndarray, k: np.ndarray, v: np.ndarray, *, scale: float, causal: bool, mask: np.ndarray) -> Any:
        scores = np.where(mask, q @ np.swapaxes(k, -1, -2) * np.float32(1.01 * scale), np.float32(-np.inf))
        probs = np.exp(scores - scores.max(-1, keepdims=True))
        return probs @ v / probs.sum(-1, keepdims=True)

    found = measured(run(function, case.but(distribution="given"), inputs={**given, "mask": mask}))
    (finding,) = found.findings
    assert "scores are multiplied by 1.01" in finding.text and found.proved
    assert np.all(found.weights[:, :, ~mask] == 0) and np.all(found.weights[:, :, mask] > 0)


def test_one_key_has_no_neighbour_to_differ_from() -> None:
    case = CASE.but(seqlen_q=8, seqlen_k=1)
    assert read("scale 1 % off", case).weights.shape == (1, 2, 8, 1)  # it weighs 1, whatever its score is
    found = read("added", case)
    assert [one.reading for one in found.findings] == ["added"] and found.proved


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize(("twice", "guarded"), [(True, True), (False, False), (True, False)])
def test_a_sum_that_counts_twice_and_nan_of_a_tile_are_read_off_out_alone(
    causal: bool, twice: bool, guarded: bool
) -> None:
    def attention(q: np.ndarray, k: np.ndarray, v: np.ndarray, *, scale: float, causal: bool) -> np.ndarray:
        return tiles_of_their_own(q, k, v, scale=scale, causal=causal, twice=twice, guarded=guarded)[0]

    found = measured(run(attention, SQUARE.but(heads=2, causal=causal)))
    texts = [one.text for one in found.findings]
    of_sum = (
        "weights of each tile are multiplied by e^(ln(own sum)), but the denominator is not (tiles begin at keys 0, 32)"
    )
    of_nan = "rows 0-31 of out are NaN whatever V is"
    assert texts == [of_nan] * (causal and not guarded) + [of_sum] * twice
    assert found.proved is bool(texts)


def test_runs_that_read_weights_are_judged_as_one_of_a_wider_v() -> None:
    """In each of its columns one key counts, so that budgets are those of each run alone."""
    weights = read("", GROUPED.but(dtype="bfloat16", causal=True)).read
    assert len(weights.answers) == 3
    for of in ("expected", "allowed"):
        alone = weights.joined([getattr(one, of) for one in weights.answers])
        assert alone.size > 0 and np.array_equal(getattr(weights, of), alone)


def masked_by_a_number(q: Any, k: Any, v: Any, *, scale: float, causal: bool) -> Any:
    """Attention whose mask is -1e30: a row that sees no key has the mean of v."""
    scores = q @ k.swapaxes(-1, -2) * np.float32(scale)
    seen = np.tri(*scores.shape[-2:], k=scores.shape[-1] - scores.shape[-2], dtype=bool)
    scores = np.where(seen, scores, np.float32(-1e30))
    probs = np.exp(scores - scores.max(-1, keepdims=True))
    return probs @ v / probs.sum(-1, keepdims=True)


def test_what_a_mask_adds_is_told_where_a_hidden_key_stands_beside_one_that_is_seen() -> None:
    """In rows without keys any number of all keys makes the mean."""
    found = measured(run(masked_by_a_number, Case(seqlen_q=24, seqlen_k=12, head_dim=8, causal=True)))
    texts = [one.text for one in found.findings]
    assert "masked keys have a finite score that does not depend on q and k" in texts
    assert not any("masked scores are" in text or "the mask adds" in text for text in texts)
