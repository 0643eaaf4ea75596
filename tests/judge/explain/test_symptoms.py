"""A table of largest errors leads to the causes that predict all of its numbers, and to none where there is none."""

import json

import numpy as np
import pytest

from workbench import Case
from workbench.judge.explain import symptom_search
from workbench.judge.explain.draws import Draws, Errors
from workbench.judge.explain.library import mask
from workbench.judge.explain.likely import likely
from workbench.judge.explain.measurement import groups
from workbench.judge.explain.plausible import Range, numbers
from workbench.judge.explain.symptom_search import Search
from workbench.judge.explain.symptom_table import STDS, Entry, read
from workbench.judge.explain.symptoms import symptoms
from workbench.records import number

COMMON = {"schema": "workbench.symptoms/1", "kernel": "flash", "dtype": "float32", "causal": True, "heads": 2}
KNOWN = {"seed": 3, "input_std": 1.0, "block_k": 16}
LENGTHS = (9, 20, 37)


@pytest.fixture(autouse=True)
def few_hypotheses(monkeypatch):
    """Two families, and of a third what takes rows of another batch."""
    known = tuple(one for one in likely() if one.family in ("mask", "scale") or "batch" in one.id)
    assert any("batch" in one.id for one in known)
    monkeypatch.setattr(symptom_search, "likely", lambda: known)


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
    assert found.plausible[0].id == "mask.right--1" and found.plausible[0].values == ({},)
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
    assert found.verdict == "no likely fault explains it" and found.tried > 50


def test_unknown_inputs_lead_to_a_set_with_values_and_a_measurement(tmp_path):
    found = symptoms(written(tmp_path, lambda case: errors(case, scale=case.scale), block_k=16))
    assert [*found.table.unknown] == ["input_std"] and not found.table.seeded
    cause = next(one for one in found.plausible if "scale.twice" in [x.id for x in one.members])
    assert {"input_std": 1.0} in cause.values and all(0.5 <= one["input_std"] <= 2.0 for one in cause.values)
    assert len(found.plausible) <= 5 and not any("batch" in one for one in ids(found))
    measured = found.measurement
    assert len(found.plausible) == 1 or (measured is not None and measured.parted == groups(measured.predicted) > 1)


@pytest.mark.campaign
def test_a_correct_kernel_leaves_nothing_to_explain(tmp_path):
    known = symptoms(written(tmp_path, errors, **KNOWN))
    assert (known.verdict, known.rounding, known.plausible) == ("nothing to explain", ({},), ())
    found = symptoms(written(tmp_path, errors, block_k=16))
    assert {"input_std": 1.0} in found.rounding  # with smaller inputs these errors are a fault's
    assert found.verdict in ("nothing to explain", "rounding, or a plausible cause")


@pytest.mark.campaign
def test_what_changes_no_number_of_a_table_is_no_cause(tmp_path):
    """Of a mask without a left edge, and where all but that would be rounding."""
    found = symptoms(written(tmp_path, errors, block_k=16))
    assert not any("left" in one for one in ids(found))


def test_random_numbers_are_explained_by_no_change_of_the_source(tmp_path):
    random = np.random.default_rng(0)
    for fields in (KNOWN, {"block_k": 16}):
        found = symptoms(written(tmp_path, lambda case: 10.0 ** random.uniform(-3, 1, case.seqlen_q), **fields))
        assert found.verdict == "no likely fault explains it" and found.plausible == ()


def test_nan_is_explained_by_nan_alone(tmp_path):
    """By slots of the last tile, which is ragged in each case, that nobody wrote; by no scale and no other mask."""
    found = symptoms(written(tmp_path, lambda case: np.full(case.seqlen_q, np.nan), **KNOWN))
    assert [[one.id for one in cause.members] for cause in found.plausible] == [["mask.unvisited-ragged"]]


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


def one_number(*draws, rounding=0.0, finest=1e-3):
    return numbers(Errors(np.array([[[[x] for x in draws]]]), np.full((1, 1, len(draws), 1), rounding)), finest)


def agrees(made, value, half_unit=0.0, finest=1e-3):
    return bool(made.agree([Entry(0, None, value, half_unit)], finest).all())


def test_a_known_number_is_contradicted_beyond_its_digits_and_rounding():
    made = one_number(2.0, rounding=0.01)
    assert [agrees(made, x) for x in (1.98, 1.995, 2.005, 2.02)] == [False, True, True, False]
    assert agrees(made, 2.1, 0.1) and not agrees(made, np.nan) and not agrees(made, np.inf) and not agrees(made, 0.0)
    assert agrees(one_number(0.0), 0.0, 0.5) and not agrees(one_number(0.0), 0.1)
    assert agrees(one_number(np.inf), np.inf) and not agrees(one_number(np.inf), 2.0)


def test_a_number_of_random_inputs_is_contradicted_beyond_what_one_draw_of_a_thousand_is():
    made = one_number(*np.exp2([-0.5, 0.5] * 4))
    off = 5.41 * 1.061 * np.std([-0.5, 0.5] * 4, ddof=1)
    assert [agrees(made, 2.0 ** (x * off)) for x in (-1.01, -0.99, 0.99, 1.01)] == [False, True, True, False]


def test_a_nan_that_is_predicted_stands_against_numbers_alone():
    never, some, always = one_number(*[1.0] * 8), one_number(np.nan, *[1.0] * 7), one_number(*[np.nan] * 8)
    assert [agrees(x, 1.0) for x in (never, some, always)] == [True, True, False]
    assert [agrees(x, np.nan) for x in (never, some, always)] == [False, True, True]
    assert Range.of(always.low.item(), always.high.item(), always.nan.item()).as_dict()["nan"]


def test_predictions_that_overlap_are_one_group():
    nan = Range(np.nan, np.nan, True)
    assert groups([Range(0, 1), Range(0.5, 2), Range(3, 4)]) == 2
    assert groups([Range(3, 4), Range(0, 5), Range(1, 2)]) == 1
    assert groups([nan, nan, Range(0, 1)]) == 2 and groups([nan]) == 1 and groups([]) == 0


def split_attention(q, k, v, scale, block, splits, fault):
    """A causal kernel of splits by hand, in float32, as reports tell of it; not a line of the library."""
    length, parts = q.shape[0], []
    tiles = np.array_split(np.arange(length).reshape(-1, block), splits) if splits > 1 else [np.arange(length)[None]]
    for own in tiles:
        keys = own.ravel()
        scores = (q @ k[keys].T * np.float32(scale * scale if fault == "scale twice" else scale)).astype(np.float32)
        seen = keys <= np.arange(length)[:, None] - (fault == "a key less")
        scores = np.where(seen | (fault == "no mask"), scores, np.float32(-np.inf))
        top = np.maximum(scores.max(1, keepdims=True), np.float32(-1e30))
        probs = np.exp(scores - top)
        parts.append((top, probs.sum(1, keepdims=True), probs @ v[keys]))
    most = np.maximum.reduce([top for top, _, _ in parts])
    weights = [np.exp(top - most) for top, _, _ in parts]
    below = sum((1 if fault == "unweighted" else w) * s for w, (_, s, _) in zip(weights, parts, strict=True))
    above = sum(w * (s if fault == "double" else 1) * o for w, (_, s, o) in zip(weights, parts, strict=True))
    return above if fault == "no division" else above / np.where(below == 0, 1, below)


def by_hand(tmp_path, fault, kernel, std, lengths, head_dim, **fields):
    """The table of a test by hand: torch's normal numbers times std in float16, two digits of the largest errors."""
    random, cases = np.random.default_rng(5), []
    for length in lengths:
        narrow = [(random.standard_normal((length, head_dim)) * std).astype(np.float16) for _ in range(3)]
        q, k, v = (x.astype(np.float64) for x in narrow)
        right = attention(q, k, v, head_dim**-0.5, np.tri(length, dtype=bool))
        made = [x.astype(np.float32) for x in narrow]
        found = split_attention(*made, head_dim**-0.5, 16, 2 if kernel == "split_k" else 1, fault)
        off = abs(found.astype(np.float16) - right).max(1)
        rows = {str(i): float(f"{off[i]:.2g}") for i in (0, 1, length // 2, length - 1)}
        cases.append({"seqlen": length, "head_dim": head_dim, "max_abs": float(f"{off.max():.2g}"), "rows": rows})
    path = tmp_path / "table.json"
    document = {"schema": "workbench.symptoms/1", "kernel": kernel, "dtype": "float16", "causal": True, "cases": cases}
    path.write_text(json.dumps(document | fields))
    return path


#: what is wrong, its hypothesis, and the kernels that can have it
BY_HAND = {
    "double": ("merge.weight-times-sum", "split_k"),
    "unweighted": ("merge.weight-one-in-sum", "split_k"),
    "a key less": ("mask.right--1", "flash"),
    "no mask": ("mask.none", "flash"),
    "scale twice": ("scale.twice", "flash"),
    "no division": ("output.undivided", "split_k"),
}


def held(found, id):
    """The true cause is told, among five at most, of which no number contradicts one."""
    assert id in ids(found)[:5] and len(found.plausible) <= 5
    assert all(cause.values for cause in found.plausible)


@pytest.mark.campaign
def test_a_table_of_a_test_by_hand_with_small_inputs_leads_to_the_cause(tmp_path, monkeypatch):
    """The sums of the splits counted twice, inputs of 0.01, which nobody told."""
    few = tuple(one for one in likely() if one.family in ("merge", "scale"))
    monkeypatch.setattr(symptom_search, "likely", lambda: few)
    path = by_hand(tmp_path, "double", "split_k", 0.01, (32, 64), 16, splits=2, block_k=16)
    found = symptoms(path)
    held(found, "merge.weight-times-sum")
    assert all(0.005 < one["input_std"] < 0.02 for one in found.plausible[0].values)


@pytest.mark.campaign
@pytest.mark.parametrize("std", [0.01, 1.0])
@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("fault", BY_HAND)
def test_tables_of_tests_by_hand_lead_to_the_cause(tmp_path, monkeypatch, fault, head_dim, std):
    monkeypatch.setattr(symptom_search, "likely", likely)
    id, kernel = BY_HAND[fault]
    if (fault, std) in {("unweighted", 0.01), ("scale twice", 0.01)}:
        pytest.skip("all keys weigh the same, so that this fault is within rounding")
    if (fault, head_dim, std) == ("unweighted", 128, 1.0):
        pytest.xfail("a known limit: one of its 20 errors lies outside all draws of the true cause, which is dropped")
    found = symptoms(by_hand(tmp_path, fault, kernel, std, (64, 128, 256, 1024), head_dim))
    held(found, id)


def test_time_that_is_up_before_all_cases_were_tried_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(symptom_search, "MOST_SCORES", 0.0)
    found = symptoms(written(tmp_path, lambda case: errors(case, off_by_one), **KNOWN))
    assert (found.verdict, found.plausible, found.stopped) == ("not finished", (), True)


def test_the_estimate_is_corrected_as_it_goes(tmp_path):
    told = []
    Search(read(written(tmp_path, lambda case: errors(case, off_by_one), **KNOWN))).found(lambda *one: told.append(one))
    assert told[0][0].endswith("causes at seqlen 9") and told[0][1] > told[-1][1] >= 0


def test_what_small_inputs_are_is_tried():
    assert {2.0**-8, 0.01, 1.0, 4.0} <= {*STDS} and max(b / a for a, b in zip(STDS, STDS[1:], strict=False)) < 2.6
