"""Indices of stages, as NumPy's and by axis name: what they choose, and how wrong ones are refused."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.stored import stored
from workbench import Case, Diff, Refusal, diff, run
from workbench.expectation.elements import State
from workbench.judge.selection import chosen, grid, parse

DIMS = (2, 3, 5, 7)
RULE = (
    "a selection is a stage and, in brackets, an index or a slice for each axis, in order or by name: qk, "
    "qk[0,0,0:3,0:3], qk[...,-1], qk[q=5,k=0:3]"
)


@pytest.fixture(scope="module")
def judged() -> Diff:
    case = Case(seqlen=20, heads=2, head_dim=8, block_q=16, block_k=16, causal=True)
    return diff(stored("flash", case, faults=["flash-scale-twice"]))


def ends(size: int) -> st.SearchStrategy[int | None]:
    return st.none() | st.integers(-2 * size, 2 * size)


def one(size: int) -> st.SearchStrategy[object]:
    steps = st.none() | st.integers(-3, 3).filter(bool)
    return st.integers(-size, size - 1) | st.builds(slice, ends(size), ends(size), steps)


@given(st.integers(0, 4).flatmap(lambda n: st.tuples(*map(one, DIMS[:n]))), st.booleans())
def test_positions_choose_what_numpy_chooses(index: tuple[object, ...], dots: bool) -> None:
    array = np.arange(np.prod(DIMS)).reshape(DIMS)
    written = (..., *index) if dots and len(index) == 4 else index
    wanted = array[written]
    if wanted.size == 0:
        with pytest.raises(Refusal, match="none of them$"):
            chosen("qk", "bhqk", DIMS, written)
    else:
        assert np.array_equal(array[grid(chosen("qk", "bhqk", DIMS, written))].ravel(), wanted.ravel())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("qk", {}),
        ("qk[1]", {"b": range(1, 2)}),
        ("qk[...]", {}),
        ("qk[..., 0]", {"k": range(0, 1)}),
        ("qk[0,...,1:3]", {"b": range(0, 1), "k": range(1, 3)}),
        ("qk[ 0 , 1 ,]", {"b": range(0, 1), "h": range(1, 2)}),
        ("qk[:,-1,::2]", {"h": range(2, 3), "q": range(0, 5, 2)}),
        ("qk[q=-1, k=6:2:-2]", {"q": range(4, 5), "k": range(6, 2, -2)}),
        ("qk[k=5:100]", {"k": range(5, 7)}),
    ],
)
def test_text(text: str, expected: dict[str, range]) -> None:
    stage, index = parse(text)
    everything = dict(zip("bhqk", map(range, DIMS), strict=True))
    assert stage == "qk" and chosen(stage, "bhqk", DIMS, index) == everything | expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("qk[", f"{RULE}; got 'qk['"),
        ("", f"{RULE}; got ''"),
        ("qk[0][1]", f"{RULE}; got '0][1' in 'qk[0][1]'"),
        ("qk[]", f"{RULE}; got '' in 'qk[]'"),
        ("qk[0,,1]", f"{RULE}; got '' in 'qk[0,,1]'"),
        ("qk[1.5]", f"{RULE}; got '1.5' in 'qk[1.5]'"),
        ("qk[1:2:3:4]", f"{RULE}; got '1:2:3:4' in 'qk[1:2:3:4]'"),
        ("qk[q=]", f"{RULE}; got '' in 'qk[q=]'"),
        ("qk[q=1,2]", "give indices in order or by name, not both; got 'qk[q=1,2]'"),
        ("qk[q=1,q=2]", "give each axis once; got q twice in 'qk[q=1,q=2]'"),
        ("qk[0,0,0,0,0]", "stage qk has 4 axes, b h q k; got 5 indices"),
        ("qk[0,0,0,0,...,0]", "stage qk has 4 axes, b h q k; got 5 indices"),
        ("qk[...,0,...]", "stage qk: use ... at most once, for all the axes not named; got 2"),
        ("qk[0,3]", "stage qk: head h must be 0 to 2; got 3"),
        ("qk[q=-6]", "stage qk: query q must be 0 to 4; got -6"),
        ("qk[d=0]", "stage qk has the axes b h q k; got 'd'"),
        ("qk[bh=0]", "stage qk has the axes b h q k; got 'bh'"),
        ("qk[q=...]", "stage qk: query q takes an index or a slice; got Ellipsis"),
        ("qk[q=5:9]", "stage qk: query q runs from 0 to 4; 5:9 selects none of them"),
        ("qk[k=3:3:2]", "stage qk: key k runs from 0 to 6; 3:3:2 selects none of them"),
        ("qk[k=::0]", "stage qk: key k takes a slice with a step other than 0; got ::0"),
    ],
)
def test_what_is_refused(text: str, expected: str) -> None:
    with pytest.raises(Refusal) as refused:
        stage, index = parse(text)
        chosen(stage, "bhqk", DIMS, index)
    assert str(refused.value) == expected


def test_elements_of_a_judged_stage(judged: Diff) -> None:
    stage = judged["scores"]
    by_place, by_name = stage[0, -1, 3:5, ::10], stage.select(b=0, h=1, q=slice(3, 5), k=slice(None, None, 10))
    assert repr(by_place.rows()) == repr(by_name.rows())
    assert by_place.shape == (1, 1, 2, 2) and by_place.size == 4
    found = stage.isolated
    assert found is not None
    assert by_place.indices == {"b": range(0, 1), "h": range(1, 2), "q": range(3, 5), "k": range(0, 20, 10)}
    for name in ("actual", "expected", "budget", "over_budget", "state"):
        assert np.array_equal(getattr(by_place, name), getattr(found, name)[:1, 1:, 3:5, ::10], equal_nan=True)
    row = by_place.rows()[2]
    assert row["index"] == {"b": 0, "h": 1, "q": 4, "k": 0}
    assert row["error"] == row["actual"] - row["expected"] and row["over_budget"] > 1
    # masked: -inf as it should be, which is no error
    hidden = by_place.rows()[1]
    assert (hidden["index"], hidden["actual"], hidden["expected"]) == (
        {"b": 0, "h": 1, "q": 3, "k": 10},
        -np.inf,
        -np.inf,
    )
    assert (hidden["error"], hidden["over_budget"], hidden["state"]) == (0.0, 0.0, State.EXACT)


def test_worst_within_a_selection(judged: Diff) -> None:
    stage = judged["scores"]
    everywhere = [element.index for element in stage.worst(3)]
    assert [row["index"] for row in stage[...].worst(3)] == everywhere
    row = stage[:, 0].worst(1)[0]
    assert row["index"]["h"] == 0
    assert row["over_budget"] == np.nanmax(stage.judged.over_budget[:, 0]) > 1


def test_a_victim_shows_its_distance_from_q_k_v(judged: Diff) -> None:
    stage = judged["out"]
    assert stage.role == "victim" and stage.propagated is not None
    assert np.array_equal(stage[0].expected, stage.propagated.expected)


def test_a_stage_that_was_not_judged_shows_its_values_alone() -> None:
    def kernel(q: np.ndarray, k: np.ndarray, v: np.ndarray, *, scale: float, causal: bool) -> dict[str, np.ndarray]:
        return {"row_max": np.ones((1, 1, 20, 1), np.float32)}

    judged = diff(run(kernel, Case(seqlen=20, head_dim=8)))
    found = judged["row_max"][0, 0, 3]
    row = found.rows()[0]
    assert (row["actual"], row["expected"], row["error"], row["state"]) == (1.0, None, None, None)
    with pytest.raises(Refusal) as refused:
        found.worst(1)
    assert str(refused.value) == "stage row_max was not judged, so it has no worst element"
    with pytest.raises(Refusal) as refused:
        judged["acc"][0]
    assert str(refused.value) == "stage acc has no values: not given"
    with pytest.raises(Refusal) as refused:
        judged["acd"]
    assert str(refused.value).startswith("kernel has no stage 'acd'; its stages: qk, scores, row_max, ")


def test_a_narrowed_stage_is_selected_by_the_axes_that_are_left(judged: Diff) -> None:
    narrowed = judged["scores"].at(b=0, h=1)
    assert narrowed[3, 0].rows()[0]["actual"] == judged["scores"][0, 1, 3, 0].rows()[0]["actual"]
    with pytest.raises(Refusal) as refused:
        judged["scores"].at(q=slice(0, 3))  # type: ignore[arg-type]
    assert str(refused.value) == "at takes an index for each axis; `select` takes slices; got a slice for 'q'"
