"""Steps that are changed: their values, and bounds that hold where what they read is off."""

from dataclasses import replace

import numpy as np

from tests.judge.explain.kernels import attention
from tests.stored import stored
from workbench import Case, run
from workbench.expectation.observed import Observed
from workbench.judge.explain.hypothesis import Hypothesis, altered, edited, read_as
from workbench.judge.explain.scene import Scene
from workbench.reference.walk import budgets, intervals, values

CASE = Case(heads=1, seqlen_q=9, seqlen_k=33, head_dim=8, scale=0.4, seed=3)
CODES = Case(seqlen=40, heads=2, head_dim=32, decode="table")
EDITS = {
    "acc": (altered("acc", lambda at, x: 3 * x[..., ::-1]), lambda x: 3 * x[..., ::-1]),
    "row_max": (altered("row_max", lambda at, x: x + at("-row_max") * 0), lambda x: x),
}


def test_a_changed_step_is_computed_and_bounded_with_its_change() -> None:
    scene = Scene.of(Observed(run(attention(dump=False), CASE)))
    doubled = Hypothesis("x.y", "acc is three times as large, its dims reversed", (EDITS["acc"][0],))
    table = edited(scene.problem.table, doubled)
    assert table is not None
    p = replace(scene.problem, table=table)
    right, found = values(scene.problem), values(p)
    first = right["acc"][:, :, :, 0]
    assert np.allclose(found["acc"][:, :, :, 0], 3 * first[..., ::-1], rtol=1e-12, atol=0)
    plain, changed = budgets(scene.problem, right, ["acc"])["acc"].bound, budgets(p, found, ["acc"])["acc"].bound
    assert np.all(changed[:, :, :, 0] >= 3 * plain[:, :, :, 0, ::-1]) and np.all(np.isfinite(changed))


def test_what_a_step_reads_may_change_for_it_alone() -> None:
    scene = Scene.of(Observed(run(attention(), CASE)))
    halved = Hypothesis("x.y", "row_sum adds half of probs", (read_as("row_sum", "summed", lambda at, x: x / 2),))
    assert scene.touched(halved) == ("row_sum",)
    found = scene.predicted(halved, ["row_sum", "acc"])
    assert found is not None and np.array_equal(found["acc"], scene.expected["acc"])
    before = np.concatenate([np.zeros((1, 1, 9, 1)), scene.actual["row_sum"][..., :-1]], -1)
    tiles = scene.expected["row_sum"] - scene.actual["correction"] * before
    assert np.allclose(found["row_sum"], scene.expected["row_sum"] - tiles / 2, rtol=1e-12)


def test_an_edit_of_a_step_of_another_kind_does_not_fit() -> None:
    scene = Scene.of(Observed(run(attention(), CASE)))
    assert edited(scene.problem.table, Hypothesis("x.y", "", (read_as("row_sum", "qk", lambda at, x: x),))) is None
    assert edited(scene.problem.table, Hypothesis("x.y", "", (altered("merge_max", lambda at, x: x),))) is None


def test_what_codes_may_be_is_carried_through_a_change() -> None:
    """Of decoded rows whose codes, or the step itself, are changed: their interval is of the changed ones, too."""
    p = replace(Observed(stored("fp8", CODES)).decoding(), given={})
    mirrored = np.subtract(256, np.arange(257))
    (plain,) = intervals(p, ["dequant_k"]).values()
    assert np.any(plain.value)
    for edit in (
        altered("dequant_k", lambda at, x: -x),
        altered("codes_k", lambda at, x: mirrored[x.astype(int)]),
        read_as("dequant_k", "codes_k", lambda at, x: mirrored[x.astype(int)]),
    ):
        table = edited(p.table, Hypothesis("x.y", "", (edit,)))
        assert table is not None
        (found,) = intervals(replace(p, table=table), ["dequant_k"]).values()
        assert np.allclose(found.value, -plain.value) and np.all(found.low <= found.high)
        assert np.allclose(found.low, -plain.high, rtol=1e-3) and np.allclose(found.high, -plain.low, rtol=1e-3)
