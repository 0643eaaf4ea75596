"""Loops, merges, buffers, lanes, casts and maps of blocks that `out` alone tells; of right kernels nothing is found."""

import numpy as np
import pytest

from tests.readings.loops import kernel
from workbench import Case, run
from workbench.readings.casts import FORMATS
from workbench.readings.known_wrong_kernels import kernels
from workbench.readings.maps import in_words, relaid, rows_completed
from workbench.readings.model import right
from workbench.readings.online import Loop, corrected
from workbench.readings.reader import measured
from workbench.readings.target import Target

CASE = Case(heads=4, kv_heads=2, seqlen_q=32, seqlen_k=48, head_dim=16, causal=True)
FULL = CASE.but(causal=False)

#: fault -> its case, the reading that finds it, and what its words hold
FAULTS = {
    "row ^ 8": (CASE, "loop", "correction of the accumulator is that of row i ^ 8 (tiles of 16 keys)"),
    "merge": (FULL, "merge", "merging two states keeps the larger lse"),
    "not cleared": (FULL, "notcleared", "the row sum starts from what the previous head"),
    "lanes": (FULL, "lanes", "row sums are not reduced over the 4 lanes"),
    "cut off": (CASE, "cast", "q and k are rounded to TF32 (truncated)"),
    "narrow accumulator": (FULL, "cast", "the accumulator is rounded to bfloat16 after each tile (tiles of 16 keys)"),
    "fragments": (FULL, "moved", "P @ V uses P rearranged within 8 x 8 blocks"),
    "tiles unscaled": (CASE, "response", "scores of keys 16-47 that rows 0-31 see are multiplied by 2"),
    "polynomial": (CASE, "exponential", "1.0000 + 0.6500 f + 0.3500 f^2"),
    "wide rows": (FULL.but(head_dim=24), "operands", "rows of q and k are read 32 dims wide, not 24"),
    "q by rows": (CASE.but(kv_heads=4, seqlen_q=48, head_dim=32), "elements", "Q is read wrong"),
    "v of the next head": (FULL, "elements", "V is read wrong"),
}


@pytest.mark.parametrize("bug", FAULTS)
def test_what_no_weight_tells_is_found_as_a_whole(bug: str) -> None:
    case, reading, words = FAULTS[bug]
    found = measured(run(kernel(bug), case))
    (finding,) = found.findings
    assert finding.reading == reading and words in finding.text and found.proved and found.calls <= 80
    assert all(one.left <= 0.03 * one.error for one in found.proofs)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_of_a_right_loop_nothing_is_found(dtype: str) -> None:
    for case in (CASE, FULL):
        assert not measured(run(kernel(""), case.but(dtype=dtype))).findings


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_what_usual_casts_explain_is_no_other_cast(dtype: str) -> None:
    """Of a right loop all that is left of float64 is rounding, which a loop with one more cast would predict as well."""
    target = Target(run(kernel(""), FULL.but(dtype=dtype)))
    assert not kernels(target, right(target))[1]


def test_a_correction_of_other_rows_stays_within_the_rows_there_are() -> None:
    alpha = -np.arange(12.0).reshape(1, 1, 12, 1)
    assert corrected(alpha, "row ^ 8")[0, 0, :, 0].tolist() == [-8, -9, -10, -11, -4, -5, -6, -7, 0, -1, -2, -3]


def test_a_right_loop_is_attention() -> None:
    target = Target(run(kernel(""), CASE))
    model = right(target)
    for loop in (Loop(16), Loop(12, backward=True), Loop(48)):
        out, lse = loop(model.parts(target.natural))
        assert np.allclose(out, model.predicted(target.natural)) and np.allclose(lse, model.lse(target.natural))


def test_a_bias_is_read_as_its_slopes() -> None:
    def scaled(
        q: np.ndarray, k: np.ndarray, v: np.ndarray, *, scale: float, causal: bool, alibi_slopes: np.ndarray
    ) -> np.ndarray:
        """The bias is added before scores are scaled."""
        distance = abs(np.arange(k.shape[2] - q.shape[2], k.shape[2])[:, None] - np.arange(k.shape[2]))
        scores = (q @ k.swapaxes(-1, -2) - np.asarray(alibi_slopes)[:, None, None] * distance) * scale
        scores = np.where((np.tri(*distance.shape, k.shape[2] - q.shape[2]) > 0) | (not causal), scores, -np.inf)
        p = np.exp(scores - scores.max(-1, keepdims=True))
        return np.asarray(p @ v / p.sum(-1, keepdims=True), dtype=np.float32)

    found = measured(run(scaled, CASE.but(kv_heads=4, alibi_slopes="geometric")))
    (finding,) = found.findings
    assert "slopes are multiplied by 0.25, which is the scale" in finding.text and found.proved


def test_rows_that_lie_apart_are_filled_in() -> None:
    """Of rows 96 apart that wrap around, those that were not read go on as the others do."""
    size, dims = 2 * 40 * 32, 32
    whole = (96 * np.arange(40)[:, None] + np.arange(dims)) % size
    read = np.where(np.arange(40)[:, None] < 12, -2, whole)
    assert np.array_equal(rows_completed(read[None, None].copy(), size)[0, 0], whole)


def test_a_cache_that_is_split_in_another_way_has_a_name() -> None:
    row, dim = np.indices((24, 16))
    for rule, said in relaid(row, dim, 24, 16):
        assert sorted(rule.reshape(-1)) == list(range(24 * 16)) and said in in_words(rule, 16)


def test_formats_round_or_cut_off() -> None:
    x = np.array([1 + 2.0**-11 + 2.0**-12, 1 + 2.0**-11, -1 - 2.0**-10 - 2.0**-11, np.inf, 0.0])
    assert FORMATS["TF32"](x).tolist() == [1 + 2.0**-10, 1.0, -1 - 2.0**-9, np.inf, 0.0]
    assert FORMATS["TF32 (truncated)"](x).tolist() == [1.0, 1.0, -1 - 2.0**-10, np.inf, 0.0]
    assert FORMATS["float16"](x)[0] == 1 + 2.0**-10
