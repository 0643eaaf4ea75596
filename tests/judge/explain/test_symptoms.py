"""A table of largest errors leads to the causes that predict all of its numbers, and to none where there is none."""

import json

import numpy as np
import pytest

from workbench import Case
from workbench.judge.explain import symptom_search
from workbench.judge.explain.draws import Draws, Errors
from workbench.judge.explain.library import layout, mask, scale
from workbench.judge.explain.measurement import groups
from workbench.judge.explain.plausible import Range, deviations, ranges, surprises
from workbench.judge.explain.symptom_search import Search
from workbench.judge.explain.symptom_table import Entry, read
from workbench.judge.explain.symptoms import symptoms
from workbench.records import number

COMMON = {"schema": "workbench.symptoms/1", "kernel": "flash", "dtype": "float32", "causal": True, "heads": 2}
KNOWN = {"seed": 3, "input_std": 1.0, "block_k": 16}
LENGTHS = (9, 20, 37)


@pytest.fixture(autouse=True)
def few_hypotheses(monkeypatch):
    """Two families, and of a third what takes rows of another batch."""
    batches = [one for one in layout.hypotheses() if "batch" in one.id]
    assert batches
    known = (*mask.hypotheses(), *scale.hypotheses(), *batches)
    monkeypatch.setattr(symptom_search, "library", lambda families: known)


def attention(q, k, v, scale, seen):
    """Rows without keys are 0."""
    with np.errstate(all="ignore"):
        scores = np.where(seen, q @ k.swapaxes(-1, -2) * scale, -np.inf)
        probs = np.exp(scores - np.maximum(scores.max(-1, keepdims=True), -1e30))
        return np.nan_to_num(probs @ v / probs.sum(-1, keepdims=True), nan=0.0)


def errors(case, seen=lambda mask: mask, scale=1.0):
    """Of a kernel in float32 with another mask or scale."""
    narrow = case.inputs()
    wide = [x.astype(np.float64) for x in narrow]
    right = attention(*wide, case.scale, case.mask())
    found = attention(*narrow, np.float32(case.scale * scale), seen(case.mask()))
    return abs(found - right).max((0, 1, 3))


def off_by_one(seen):
    return np.roll(seen, 1, 0) & seen & (np.arange(len(seen)) > 0)[:, None]


def written(tmp_path, errors_of, **fields):
    """The file of a table with three digits of the largest error and of three rows."""
    cases = []
    for length in LENGTHS:
        found = errors_of(Case(seqlen=length, head_dim=16, heads=2, causal=True, seed=3))
        rows = {str(i): number(float(f"{found[i]:.3g}")) for i in (0, 1, length - 1)}
        cases.append({"seqlen": length, "head_dim": 16, "max_abs": number(float(f"{found.max():.3g}")), "rows": rows})
    path = tmp_path / "table.json"
    path.write_text(json.dumps(COMMON | fields | {"cases": cases}))
    return path


def ids(found):
    return [one.id for cause in found.plausible for one in cause.members]


def test_known_inputs_lead_to_the_one_cause(tmp_path):
    found = symptoms(written(tmp_path, lambda case: errors(case, off_by_one), **KNOWN))
    assert found.verdict == "plausible causes" and found.table.seeded and not found.table.unknown
    assert found.plausible[0].id == "mask.right--1" and found.plausible[0].deviation == 0
    assert found.plausible[0].values == ({},) and found.plausible[0].against == ()
    assert "mask.right-+1" not in ids(found) and "mask.none" not in ids(found)
    document = found.as_dict()
    assert json.loads(json.dumps(document)) == document
    assert document["schema"] == "workbench.symptoms-explained/1" and document["plausible"][0]["id"] == "mask.right--1"


@pytest.mark.campaign
def test_known_inputs_of_an_unknown_size_lead_to_both(tmp_path):
    found = symptoms(written(tmp_path, lambda case: errors(case, off_by_one), seed=3, block_k=16))
    assert [*found.table.unknown] == ["input_std"] and found.plausible[0].id == "mask.right--1"
    assert found.plausible[0].values == ({"input_std": 1.0},) and not any("batch" in one for one in ids(found))


def test_one_number_that_is_off_by_a_hundredth_speaks_against_it(tmp_path):
    path = written(tmp_path, lambda case: errors(case, off_by_one), **KNOWN)
    document = json.loads(path.read_text())
    document["cases"][2]["max_abs"] *= 1.01
    path.write_text(json.dumps(document))
    found = symptoms(path)
    assert found.verdict == "no change of the source explains it" and found.tried > 100


def test_unknown_inputs_lead_to_a_set_with_values_and_a_measurement(tmp_path):
    found = symptoms(written(tmp_path, lambda case: errors(case, scale=case.scale), block_k=16))
    assert [*found.table.unknown] == ["input_std"] and not found.table.seeded
    cause = next(one for one in found.plausible if "scale.twice" in [x.id for x in one.members])
    assert {"input_std": 1.0} in cause.values and all(one["input_std"] in (0.5, 1.0, 2.0) for one in cause.values)
    assert len(found.plausible) > 1 and not any("batch" in one for one in ids(found))
    measured = found.measurement
    assert measured is not None and measured.parted == groups(measured.predicted) > 1
    assert len(measured.predicted) == min(len(found.plausible), 15)


def test_a_correct_kernel_leaves_nothing_to_explain(tmp_path):
    known = symptoms(written(tmp_path, errors, **KNOWN))
    assert (known.verdict, known.rounding, known.plausible) == ("nothing to explain", ({},), ())
    found = symptoms(written(tmp_path, errors))
    assert found.verdict == "nothing to explain" and {"input_std": 1.0, "block_k": 16} in found.rounding


def test_random_numbers_are_explained_by_no_change_of_the_source(tmp_path):
    random = np.random.default_rng(0)
    for fields in (KNOWN, {"block_k": 16}):
        found = symptoms(written(tmp_path, lambda case: 10.0 ** random.uniform(-3, 1, case.seqlen_q), **fields))
        assert found.verdict == "no change of the source explains it" and found.plausible == ()


def test_nan_is_explained_by_nan_alone(tmp_path):
    """By slots of the last tile, which is ragged in each case, that nobody wrote; by no scale and no other mask."""
    found = symptoms(written(tmp_path, lambda case: np.full(case.seqlen_q, np.nan), **KNOWN))
    assert [[one.id for one in cause.members] for cause in found.plausible] == [["mask.unvisited-ragged"]]


def test_a_cause_that_moves_little_in_peaked_rows_is_tried(tmp_path):
    search = Search(read(written(tmp_path, lambda case: np.full(case.seqlen_q, 2.0), block_k=16, scale=4.0)))
    left = {one.id for one in search._acting(search.applicable(), 0, lambda text: None)}
    assert "mask.right--1" in left


@pytest.mark.parametrize(("value", "kept"), [(np.nan, False), (np.inf, True), (2.0, True)])
def test_what_changes_nothing_where_a_case_is_wrong_is_out_at_once(tmp_path, value, kept):
    search = Search(read(written(tmp_path, lambda case: np.full(case.seqlen_q, value), block_k=16)))
    left = {one.id for one in search._acting(search.applicable(), 0, lambda text: None)}
    assert ("mask.none" in left, "scale.negative" in left) == (False, False)  # right in the last row, and in the first
    assert ("mask.inverted" in left) is kept


def test_what_takes_another_batch_is_no_cause_where_there_is_one(tmp_path):
    search = Search(read(written(tmp_path, errors, block_k=16)))
    before = search.applicable()
    left = search._of_one_batch(before, 0)
    assert {one.id for one in before} - {one.id for one in left} >= {"layout.batch-next-k", "layout.batch-reversed-k"}
    assert {one.id for one in scale.hypotheses() if {*one.stages} == {"scale"}} <= {one.id for one in left}


def test_draws_together_are_those_one_by_one():
    cases = [
        Case(seqlen=20, heads=4, kv_heads=2, head_dim=16, causal=True, block_k=16, seed=seed, input_std=std)
        for seed, std in ((0, 1.0), (1, 1.0), (0, 4.0))
    ]
    every = Draws("flash", "out", tuple(cases), (None, 0, 7))
    one = next(x for x in mask.hypotheses() if x.id == "mask.right-+1")
    alone = [Draws("flash", "out", (case,), (None, 0, 7)).errors(one) for case in cases]
    together = every.errors(one)
    assert together.size.shape == (3, 3) and together.size.min() > 0
    for i, x in enumerate(alone):
        np.testing.assert_allclose(together.size[i], x.size[0], rtol=1e-12)
        np.testing.assert_allclose(together.rounding[i], x.rounding[0], rtol=1e-12)


def test_a_deviation_is_a_factor_of_two_beyond_the_draws_and_the_digits():
    found = Errors(np.array([[1.0, 0.0], [2.0, 0.0]]), np.zeros((2, 2)))

    def off(first, second):
        return deviations(found, 2, [Entry(0, None, *first), Entry(0, 3, *second)], 1e-3)[0].tolist()

    # the standard deviation of log2 of 1 and 2 is 0.5
    assert off((1.5, 0.0), (0.0, 0.5)) == [0, 0] and off((2.7, 0.0), (0.0, 0.5)) == [0, 0]
    assert off((8.0, 0.0), (0.0, 0.5)) == [1.5, 0] and off((0.25, 0.0), (0.0, 0.5)) == [1.5, 0]
    assert off((9.0, 1.0), (0.0, 0.5)) == [1.5, 0]  # it was printed with no digits
    assert off((1.5, 0.0), (0.1, 0.0))[1] > 100  # what is predicted is right there
    assert off((0.0, 0.5), (0.0, 0.5))[0] == pytest.approx(np.log2(1 / 1e-3) - 0.5)  # what is wrong was printed as 0
    assert off((np.nan, np.inf), (0.0, 0.5)) == [np.inf, 0] and off((np.inf, np.inf), (0.0, 0.5)) == [np.inf, 0]


def test_a_nan_that_is_predicted_stands_against_numbers_alone():
    found = Errors(np.array([[np.nan, 1.0], [np.nan, np.nan]]), np.zeros((2, 2)))
    numbers, nans = ([Entry(0, None, x, 0.0), Entry(0, 1, x, 0.0)] for x in (1.0, np.nan))
    assert deviations(found, 2, numbers, 1e-3)[0].tolist() == [np.inf, 0]
    assert deviations(found, 2, nans, 1e-3)[0].tolist() == [0, 0]
    assert np.isfinite(surprises(found, 2, numbers, 1e-3)).all()
    assert [Range.of(*(x[0, 0] for x in ranges(found, 2))).nan, ranges(found, 2)[2].tolist()] == [True, [[True, True]]]


def test_predictions_that_overlap_are_one_group():
    nan = Range(np.nan, np.nan, True)
    assert groups([Range(0, 1), Range(0.5, 2), Range(3, 4)]) == 2
    assert groups([Range(3, 4), Range(0, 5), Range(1, 2)]) == 1
    assert groups([nan, nan, Range(0, 1)]) == 2 and groups([nan]) == 1 and groups([]) == 0
