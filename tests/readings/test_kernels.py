"""Loops, merges, buffers, lanes, casts and maps of blocks that `out` alone tells; of right kernels nothing is found."""

import numpy as np
import pytest

from tests.readings.loops import kernel
from workbench import Case, run
from workbench.readings.online import Loop, corrected
from workbench.readings.reader import measured

CASE = Case(heads=4, kv_heads=2, seqlen_q=32, seqlen_k=48, head_dim=16, causal=True)
FULL = CASE.but(causal=False)

#: fault -> its case, the reading that finds it, and what its words hold
FAULTS = {
    "row ^ 8": (CASE, "loop", "correction of the accumulator is that of row i ^ 8; tiles of 16 keys"),
    "merge": (FULL, "merge", "two states have the larger lse of both"),
    "not cleared": (FULL, "notcleared", "the row sum begins with what the head"),
    "lanes": (FULL, "lanes", "row sums are not reduced over the 4 lanes"),
    "cut off": (CASE, "cast", "q and k are rounded to TF32 (cut off)"),
    "narrow accumulator": (FULL, "cast", "the accumulator is rounded to bfloat16 after each tile, tiles of 16 keys"),
    "fragments": (FULL, "moved", "P stands elsewhere in blocks of 8 x 8 for P @ V"),
    "tiles unscaled": (CASE, "response", "scores of keys 16-47 in rows 0-31 are 2 times what they should be"),
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


def test_a_correction_of_other_rows_stays_within_the_rows_there_are() -> None:
    alpha = -np.arange(12.0).reshape(1, 1, 12, 1)
    assert corrected(alpha, "row ^ 8")[0, 0, :, 0].tolist() == [-8, -9, -10, -11, -4, -5, -6, -7, 0, -1, -2, -3]


def test_a_right_loop_is_attention() -> None:
    from workbench.readings.model import right
    from workbench.readings.target import Target

    target = Target(run(kernel(""), CASE))
    model = right(target)
    for loop in (Loop(16), Loop(12, backward=True), Loop(48)):
        out, lse = loop(model.parts(target.natural))
        assert np.allclose(out, model.predicted(target.natural)) and np.allclose(lse, model.lse(target.natural))
