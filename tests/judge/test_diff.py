"""The rules of judgement, each on a trace of a correct kernel with one thing changed in the dumped arrays."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.stored import stored
from workbench import Case, Diff, Trace, diff, run
from workbench.case.stages import stages_of
from workbench.expectation.elements import Elements, State, whole
from workbench.judge.against.pair import against
from workbench.judge.stage import StageDiff
from workbench.refusal import Refusal
from workbench.trace.trace import blank

CASE = Case(seqlen=96, heads=2, head_dim=32, block_q=16, block_k=16, causal=True)


@pytest.fixture(scope="module")
def flash() -> Trace:
    return run("flash", CASE, backend="emulator")


@pytest.fixture(scope="module")
def split_k() -> Trace:
    return run("split_k", CASE.but(splits=3), backend="emulator")


def test_what_is_no_trace_is_refused_with_a_sentence() -> None:
    with pytest.raises(Refusal, match="diff takes a trace, or a function with reference= and inputs="):
        diff("x")  # type: ignore[arg-type]


def changed(trace: Trace, **changes: Callable[[np.ndarray], None]) -> Trace:
    """The trace with copies of some stages changed in place."""
    stages = dict(trace.stages)
    for name, change in changes.items():
        stages[name] = stages[name].copy()
        change(stages[name])
    return replace(trace, stages=stages)


def only(trace: Trace, *names: str, foreign: bool = True) -> Trace:
    """The trace with these stages alone, as a foreign kernel of the same contract would give it."""
    return replace(
        trace, stages={name: trace.stages[name] for name in names}, requested=() if foreign else trace.requested
    )


def put(index: tuple, value: float) -> Callable[[np.ndarray], None]:
    """A change that writes one element."""

    def change(stage: np.ndarray) -> None:
        stage[index] = value

    return change


def outline(judged: Diff) -> tuple[str, tuple[str, ...]]:
    return judged.verdict, judged.origins


def test_clean_traces_have_no_origin_and_no_victim(flash: Trace, split_k: Trace) -> None:
    for trace in (flash, split_k):
        judged = diff(trace)
        assert outline(judged) == ("rounding", ())
        assert judged.origin is None and judged.victims == () and judged.not_judged == ()
        assert [stage.name for stage in judged] == list(stages_of(trace.algorithm))


def test_wrong_stage_is_the_origin_and_what_reads_it_is_not(flash: Trace) -> None:
    def scale(stage: np.ndarray) -> None:
        stage *= np.float32(1.001)

    judged = diff(changed(flash, probs=scale))
    # the other stages were computed from the right probs: against the changed ones they are wrong too, but only those
    # that read them
    assert judged.origins == ("probs", "probs_cast", "row_sum")
    assert "acc" not in judged.origins  # it reads probs_cast


def test_victim_is_right_on_its_own_inputs_and_wrong_against_q_k_v() -> None:
    judged = diff(run("flash", Case(seqlen=96, causal=True), faults=["flash-scale-twice"], backend="emulator"))
    assert outline(judged) == ("bug", ("scores",))
    assert judged.victims == ("row_max", "correction", "probs", "probs_cast", "row_sum", "acc", "out", "lse")
    assert all(judged[name].verdict in ("exact", "rounding") for name in judged.victims)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf], ids=str)
def test_wrong_class_is_a_bug_where_the_inputs_are_clean(flash: Trace, bad: float) -> None:
    judged = diff(changed(flash, lse=put((0, 1, 40), bad)))
    assert outline(judged) == ("bug", ("lse",))
    worst = judged["lse"].worst(1)[0]
    assert worst.index == {"b": 0, "h": 1, "q": 40} and worst.over_budget == np.inf and worst.state is State.NAN


def test_finite_value_where_minus_infinity_belongs_is_a_bug(flash: Trace) -> None:
    masked = (0, 0, 3, 50)
    assert np.isneginf(flash.stages["scores"][masked])
    judged = diff(changed(flash, scores=put(masked, -1e30)))
    assert judged["scores"].verdict == "bug" and judged["scores"].decisive.outside.sum() == 1


def test_nan_among_its_inputs_poisons_an_element_which_is_then_no_origin(flash: Trace) -> None:
    judged = diff(changed(flash, row_max=put((0, 0, 50, 0), np.nan), correction=put((0, 0, 50, 0), np.nan)))
    assert judged.origin == "row_max"
    correction = judged["correction"]
    assert (
        correction.isolated.state[0, 0, 50, 0] == State.POISONED
        and correction.isolated.state[0, 0, 50, 1] == State.POISONED
    )
    assert not correction.isolated.judged[0, 0, 50, 0] and not correction.isolated.outside[0, 0, 50, 0]
    assert correction.verdict in ("exact", "rounding") and "correction" in judged.victims


def test_nan_expectation_never_passes_as_equal_to_nan(flash: Trace) -> None:
    def all_nan(stage: np.ndarray) -> None:
        stage[:] = np.nan

    judged = diff(changed(flash, **{name: all_nan for name in flash.stages}))
    assert judged.origin == "qk" and judged.verdict == "bug"
    assert judged["lse"].verdict == "untestable" and "192 read NaN" in judged["lse"].reason


def test_several_origins_come_in_data_flow_order(split_k: Trace) -> None:
    judged = diff(changed(split_k, lse=put((0, 0, 5), 9.0), qk=put((0, 0, 5, 5), 9e3), merge_max=put((0, 1, 7), 9.0)))
    assert [name for name in judged.origins if name in ("qk", "merge_max", "lse")] == ["qk", "merge_max", "lse"]
    assert judged.origin == "qk"


def test_unwritten_slot_makes_its_stage_missing_and_an_origin(split_k: Trace) -> None:
    def forget(stage: np.ndarray) -> None:
        stage[0, 0, 1, 7] = blank((), np.dtype(np.float32))

    judged = diff(changed(split_k, partial_sum=forget))
    assert judged["partial_sum"].verdict == "missing" and judged.origin == "partial_sum" and judged.verdict == "missing"
    assert judged["partial_sum"].reason == "1 of 576 slots were never written"
    assert judged["merge_sum"].isolated.state[0, 0, 7] == State.POISONED


def test_requested_stage_that_is_absent_is_missing_and_a_foreign_one_only_listed(flash: Trace) -> None:
    without = {name: stage for name, stage in flash.stages.items() if name != "probs"}
    ours, foreign = diff(replace(flash, stages=without)), diff(replace(flash, stages=without, requested=()))
    assert ours.origin == "probs" and ours["probs"].verdict == "missing" and ours.verdict == "missing"
    assert foreign.verdict == "rounding" and [stage.name for stage in foreign.not_judged] == ["probs"]


def test_stage_is_judged_from_its_nearest_dumped_ancestors() -> None:
    faulty = run("split_k", CASE.but(splits=3), faults=["reduce-double-counts-sum"], backend="emulator")
    judged = diff(only(faulty, "partial_O", "partial_max", "partial_sum", "out"))
    assert judged.origins == ("out",)
    assert judged["out"].judged_from == ("partial_max", "partial_sum", "partial_O")
    assert judged["out"].upstream == ("merge_max", "merge_weight", "merge_sum")
    assert judged["out"].isolated is not None
    assert all(judged[name].verdict in ("exact", "rounding") for name in ("partial_O", "partial_max", "partial_sum"))


def test_lone_output_is_judged_end_to_end() -> None:
    faulty = run("flash", CASE, faults=["flash-no-correction"], backend="emulator")
    judged = diff(only(faulty, "out"))
    assert judged.origins == ("out",) and judged["out"].isolated is None
    assert judged["out"].upstream == ("qk", "scores", "row_max", "correction", "probs", "probs_cast", "row_sum", "acc")
    assert diff(only(run("flash", CASE, backend="emulator"), "out")).verdict == "rounding"


def test_nothing_given_is_untestable_never_green(flash: Trace) -> None:
    assert diff(only(flash)).verdict == "untestable"


def test_vacuous_budget_is_untestable_never_green() -> None:
    # a channel of 2^12 in q and k puts 2^24 into every dot product, of which float32 may lose 32 * 2^-24 * 2^24 = 32 on
    # the way
    case = Case(seqlen=16, head_dim=32, block_q=16, block_k=16)
    q, k, v = case.inputs()
    q[..., 0] = k[..., 0] = 2.0**12
    trace = stored("flash", case, inputs=(q, k, v))
    judged = diff(only(trace, "probs"))
    assert judged["probs"].verdict == "untestable" and judged.verdict == "untestable"
    assert "no finite budget" in judged["probs"].reason
    assert diff(trace).verdict in ("exact", "rounding")  # with its own inputs dumped the same stage can be judged


def test_unknown_tiles_and_splits_leave_tile_stages_unjudged_but_not_the_merge(split_k: Trace) -> None:
    unknown = replace(split_k.contract, block_k=None, splits=None)
    judged = diff(replace(only(split_k, "acc", "partial_O", "partial_max", "partial_sum", "out"), contract=unknown))
    assert {stage.name: stage.verdict for stage in judged} == {"out": "rounding"}
    assert judged["acc"].reason == "the contract does not declare block_k, so its key tiles are unknown"
    assert (
        judged["partial_O"].reason
        == "the contract does not declare block_k and splits, so the keys of a split are unknown"
    )
    assert judged["out"].judged_from == ("partial_max", "partial_sum", "partial_O")


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    names=st.lists(st.sampled_from(list(stages_of("split_k"))[8:]), min_size=1, unique=True),
    fields=st.sampled_from([("block_k", "splits"), ("block_k",), ("splits",)]),
)
def test_stages_of_splits_of_unknown_keys_are_read_together(
    split_k: Trace, names: list[str], fields: tuple[str, ...]
) -> None:
    """Partial results that are computed for other splits do not fit those that were dumped."""
    unknown = replace(split_k.contract, **dict.fromkeys(fields, None))
    judged = diff(replace(only(split_k, *names), contract=unknown))
    assert {stage.verdict for stage in judged} <= {"exact", "rounding"}
    if "merge_weight" in names and not {"partial_max", "partial_sum", "partial_O"} <= set(names):
        assert judged["merge_weight"].reason == (
            "the contract does not declare block_k and splits, and not all of partial_max, partial_sum, partial_O were given"
        )


@pytest.mark.campaign
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_subset_of_a_clean_trace_is_clean(data: st.DataObject, flash: Trace, split_k: Trace) -> None:
    trace = data.draw(st.sampled_from([flash, split_k]))
    names = data.draw(st.lists(st.sampled_from(list(trace.stages)), min_size=1, unique=True))
    judged = diff(only(trace, *names))
    assert judged.verdict in ("exact", "rounding") and {stage.name for stage in judged} == set(names)


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_fault_shows_at_the_first_dumped_stage_that_it_reaches(data: st.DataObject) -> None:
    trace = run("flash", CASE, faults=["flash-scale-twice"], backend="emulator")
    names = data.draw(st.lists(st.sampled_from(list(trace.stages)), min_size=1, unique=True))
    judged = diff(only(trace, *names))
    after = [name for name in trace.stages if name in names and name not in ("qk",)]
    origin = next(iter(after), None)
    # a state is also judged from its own previous tile, and correction from two maxima: both are right where scores
    # were not seen, so that the first stages in the order need not all be outside; none before the fault may be
    assert judged.origin is None if origin is None else judged.origin in after


def test_narrowing_and_profiles_speak_of_the_same_elements(flash: Trace) -> None:
    judged = diff(changed(flash, acc=put((0, 1, 63, 5, 5), 1e3)))["acc"]
    worst = judged.worst(3)[0]
    assert worst.index == {"b": 0, "h": 1, "q": 63, "t": 5, "d": 5} and worst.actual == 1000.0
    narrowed = judged.at(b=0, q=63)
    assert narrowed.axes == "htd" and narrowed.worst(1)[0].index == {"h": 1, "t": 5, "d": 5}
    assert judged.at(b=0, h=1, q=63, t=5, d=5).worst(1)[0].actual == 1000.0
    profile = judged.profile("q")
    assert profile.outside[63] == 1 and profile.outside.sum() == 1 and int(np.nanargmax(profile.over_budget)) == 63
    assert profile.mean_signed[63] > 1


def test_a_profile_adds_up_the_elements_of_each_index() -> None:
    expected = np.array([[1.0, -2.0, 3.0], [4.0, np.nan, -np.inf], [np.nan, np.nan, np.nan]])
    actual = np.array([[-1.0, -2.5, 3.0], [np.nan, 1.0, -np.inf], [1.0, 1.0, 1.0]])
    over = np.array([[4.0, 1.0, 0.0], [np.inf, np.nan, 0.0], [np.nan] * 3])
    kinds = {"o": State.OUTSIDE, "r": State.ROUNDING, "e": State.EXACT, "n": State.NAN, "p": State.POISONED}
    state = np.array([[kinds[kind] for kind in row] for row in ("ore", "npe", "ppp")], np.uint8)
    profile = StageDiff(
        "x", "qd", "bug", whole(Elements(actual, expected, np.full((3, 3), 0.5), np.ones((3, 3)), over, state)), None
    ).profile("q")
    expectations = {
        "outside": [1, 1, 0],
        "share_outside": [1 / 3, 1 / 2, np.nan],
        "over_budget": [4, np.inf, np.nan],
        "mean_signed": [(-2 - 0.5) / 3, 0, np.nan],
        "mean_abs": [2.5 / 3, 0, np.nan],
        "sign_disagreements": [1, 0, 0],
    }
    for name, values in expectations.items():
        np.testing.assert_array_equal(getattr(profile, name), values, strict=False, err_msg=name)


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda stage: stage.at(k=3), "stage acc has the axes b h q t d; got 'k'"),
        (lambda stage: stage.at(q=96), "stage acc: query q must be 0 to 95; got 96"),
        (lambda stage: stage.profile("s"), "stage acc has the axes b h q t d; got 's'"),
    ],
)
def test_wrong_axes_are_refused(flash: Trace, ask: Callable, message: str) -> None:
    with pytest.raises(Refusal) as refusal:
        ask(diff(flash)["acc"])
    assert str(refusal.value) == message


def test_the_truth_of_a_judgement_is_not_told():
    """`if diff(trace)` would be true of a bug."""
    judged = diff(run(lambda q, k, v, *, scale, causal: v))
    with pytest.raises(TypeError) as refused:
        bool(judged)
    assert (
        str(refused.value) == 'the truth value of a Diff is ambiguous; use its verdict, such as diff.verdict == "bug"'
    )
    with pytest.raises(TypeError) as refused:
        assert against(judged, judged)
    assert (
        str(refused.value) == "the truth value of an Against is ambiguous; use its verdict: pair.verdict == 'diverges'"
    )


def test_without_a_case_it_is_the_usual_one():
    assert run(lambda q, k, v, *, scale, causal: v).case == Case()
