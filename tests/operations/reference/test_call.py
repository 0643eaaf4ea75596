"""Functions judged by plain references: each verdict, each role, what stands above them."""

from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.plain_kernels import attention, bfloat16, cut, inputs, naive, naive_norm, naive_scan, scan_inputs
from workbench.foreign.memory import GUARD
from workbench.operations.reference.call import diff_reference, diff_results
from workbench.refusal import Raised, Refusal


def judged(dtype: str = "float32", contract: str | None = None, kernel: Any = None, **faults: Any):
    return diff_reference(kernel or partial(attention, **faults), naive, inputs, dtype=dtype, contract=contract)


# right kernels


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_a_right_kernel_is_right_and_all_of_it_was_judged(dtype: str) -> None:
    found = judged(dtype, stages=True)
    assert found.verdict == "rounding" and not found.fails and found.origin is None and found.victims == ()
    assert [one.name for one in found.stages] == ["scores", "weights", "probs", "out"]
    for stage in found.stages:
        assert stage.decisive is not None and stage.decisive.summary.judged == stage.decisive.summary.size > 0
        assert 0 < stage.worst(1)[0].over_budget <= 1


def test_a_kernel_that_rounds_operands_to_its_16_bits_needs_no_declaration_and_the_report_says_so() -> None:
    found = judged("bfloat16", operand=bfloat16)
    assert found.verdict == "rounding" and not found.fails and found.said == "operands=bfloat16"
    beyond = found.beyond_strict["out"]
    assert beyond.elements > 0 and beyond.over_budget > 1 and len(beyond.place) == 2


def test_results_match_in_order_by_name_and_alone() -> None:
    rng = np.random.default_rng(0)
    given = {"x": rng.standard_normal((4, 8)).astype(np.float32), "weight": np.ones(8, np.float32)}
    squares = (given["x"] ** 2).mean(-1, keepdims=True)
    out = given["x"] / np.sqrt(squares + np.float32(1e-6)) * given["weight"]
    for actual in ((out, squares), [out, None], out, {"squares": squares, "out": out}, {"result[0]": out}):
        found = diff_results(actual, naive_norm, given)
        assert found.verdict == "rounding", actual
    assert diff_results(out, naive_norm, given).others == ("squares",)
    assert diff_results((out, squares + 1), naive_norm, given).origin == "squares"


def test_a_scalar_is_a_result() -> None:
    x = np.arange(5, dtype=np.float32)
    assert diff_results(float(x.sum()), lambda x: x.sum(), {"x": x}).verdict == "exact"
    assert diff_results(10.5, lambda x: x.sum(), {"x": x}).verdict == "bug"


# wrong kernels


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_dropped_term_is_a_bug(dtype: str) -> None:
    found = judged(dtype, keys=47)
    assert found.verdict == "bug" and found.fails and found.origin == "out"
    assert "probs @ v" in found.definition("out")


def test_one_wrong_element_is_a_bug_at_its_place() -> None:
    def kernel(**given):
        out = attention(**given)
        out[7, 3] += 1e-3
        return out

    found = judged(kernel=kernel)
    assert found.verdict == "bug" and found["out"].worst(1)[0].place == (7, 3)
    assert found["out"].decisive.summary.outside == 1


def test_a_nan_where_the_reference_has_none_is_a_bug() -> None:
    def kernel(**given):
        out = attention(**given)
        out[0, 0] = np.nan
        return out

    found = judged("bfloat16", kernel=kernel)
    assert found.verdict == "bug" and found["out"].worst(1)[0].place == (0, 0)


def test_1_4427_for_log2_of_e_fails_from_out_alone() -> None:
    found = judged(log2e=1.4427)
    assert found.verdict == "suspicious" and found.doubt == "evidence" and found.fails
    assert not judged().fails


def test_infinities_and_nan_match_by_class() -> None:
    def logs(x):
        return np.log(x)

    x = np.array([0.0, -1.0, 2.0], np.float32)
    right = np.array([-np.inf, np.nan, np.log(2)], np.float32)
    assert diff_results(right, logs, {"x": x}).verdict in ("exact", "rounding")
    for i, wrong in ((0, np.inf), (0, -3e38), (1, 0.0), (2, np.nan)):
        actual = right.copy()
        actual[i] = wrong
        found = diff_results(actual, logs, {"x": x})
        assert found.verdict == "bug" and found.stages[0].worst(1)[0].place == (i,), wrong


# stages


def test_a_wrong_stage_with_right_later_ones_is_the_origin_and_they_are_its_victims() -> None:
    def kernel(**given):
        made = attention(**given, stages=True)
        probs = made["probs"].copy()
        probs[3] *= np.float32(1.001)
        return {**made, "probs": probs, "out": probs @ given["v"]}

    found = judged(kernel=kernel)
    assert found.origins == ("probs",) and found.victims == ("out",)
    assert found["scores"].role == found["weights"].role == "clean"
    assert found["probs"].worst(1)[0].place[0] == 3 and "weights.sum" in found.definition("probs")


def test_a_wrong_dump_of_a_right_kernel_is_wrong_given_its_inputs_too() -> None:
    def kernel(**given):
        made = attention(**given, stages=True)
        return {**made, "probs": made["probs"] * np.float32(1.001)}

    assert judged(kernel=kernel).origins == ("probs", "out")


@pytest.mark.parametrize("stages", [False, True])
def test_a_stage_of_float32_inputs_in_16_bits_fails_until_it_is_declared(stages: bool) -> None:
    found = judged(stored=bfloat16, stages=stages)
    assert found.verdict == "suspicious" and found.doubt == "evidence" and found.fails
    reason = next(one.reason for one in found.stages if one.verdict == "suspicious")
    assert "--contract stored=probs:bfloat16" in reason and "no default arithmetic" in reason
    declared = judged(stored=bfloat16, stages=stages, contract="stored=probs:bfloat16")
    assert declared.verdict in ("exact", "rounding") and declared.declared
    assert judged(contract="stored=probs:bfloat16").fails  # of a kernel that does not


def test_a_stage_whose_dtype_is_16_bits_is_stored_in_them() -> None:
    def kernel(**given):
        made = attention(**given, stored=bfloat16, stages=True)
        return {**made, "probs": made["probs"].astype(ml_dtypes.bfloat16)}

    found = judged(kernel=kernel)
    assert found.verdict in ("exact", "rounding") and found.victims == ()


def test_a_stage_given_in_16_bits_may_have_been_read_in_more() -> None:
    def kernel(**given):
        made = attention(**given, stages=True)
        return {**made, "probs": made["probs"].astype(ml_dtypes.bfloat16)}

    found = judged(kernel=kernel)
    assert found.verdict in ("exact", "rounding") and found.origin is None and found.victims == ()


def test_tf32_is_excused_and_a_small_error_is_not_excused_by_it() -> None:
    found = judged(operand=cut)
    assert found.verdict == "suspicious" and found.doubt == "assumption" and "operands=tf32" in found["out"].reason
    assert judged(operand=cut, contract="operands=tf32").verdict in ("exact", "rounding")

    def kernel(**given):
        return attention(**given) + np.float32(3e-5) * (given["q"] > 2)

    small = judged(kernel=kernel)
    assert small.fails and small.doubt == "evidence" or small.verdict == "bug"


def test_turns_of_a_loop_are_judged_from_the_turn_before() -> None:
    def kernel(x, decay):
        state, states = np.zeros(8, np.float32), []
        for t in range(6):
            state = state * decay[t] + x[t]
            if t == 3:
                state = state * np.float32(1.01)
            states.append(state)
        return {"state": [np.zeros(8, np.float32), *states], "result": np.stack(states) * 2}

    found = diff_reference(kernel, naive_scan, scan_inputs())
    assert found.origins == ("state",) and found["state"].worst(1)[0].place[0] == 4  # the first turn is the zeros
    assert found["state"].decisive.summary.outside <= 8 and found["result"].role == "victim"


# what is not judged


def test_fewer_than_99_of_100_judged_is_untestable_and_says_the_line() -> None:
    a = np.random.default_rng(0).standard_normal((10, 64)).astype(np.float32)

    def near(a, b):
        return 1.0 / ((a * b).sum(-1) - (b * a).sum(-1))

    found = diff_results(np.full(10, np.inf, np.float32), near, {"a": a, "b": a[::-1].copy()})
    assert found.verdict == "untestable" and found.fails
    assert "10 of 10 elements not judged" in found.stages[0].reason and "test_call.py:" in found.stages[0].reason


# what stands above the verdict


def test_written_inputs_are_a_gate() -> None:
    def kernel(q, k, v):
        out = attention(q, k, v)
        q *= 2
        return out

    found = judged(kernel=kernel)
    assert found.verdict == "rounding" and found.fails and "wrote to its input q" in found.gates[0]


def test_a_write_behind_an_input_is_a_gate_and_a_read_is_nan() -> None:
    def writes(q, k, v):
        out = attention(q, k, v)
        np.lib.stride_tricks.as_strided(v, (v.size + 1,), (4,))[v.size] = 0.0
        return out

    def reads(q, k, v):
        wide = np.lib.stride_tricks.as_strided(v, (v.shape[0] + 1, v.shape[1]), v.strides)
        return attention(q, k, wide[1:])

    assert GUARD >= 4 * 32
    assert any("before or behind v" in gate for gate in judged(kernel=writes).gates)
    found = judged(kernel=reads)
    assert found.verdict == "bug" and np.isnan(found["out"].decisive.actual).any()


def test_slots_that_nobody_wrote_are_missing() -> None:
    def kernel(q, k, v):
        out = np.empty(q.shape, q.dtype)
        out[:-1] = attention(q, k, v)[:-1]
        return out

    found = judged("bfloat16", kernel=kernel)
    assert found.verdict == "missing" and found.origin == "out" and "32 of 1536" in found["out"].reason


def test_runs_that_differ_are_said_and_the_worse_counts() -> None:
    calls = []

    def kernel(**given):
        calls.append(1)
        out = attention(**given)
        out[0, 0] += 0.5 * (len(calls) == 2)
        return out

    found = judged(kernel=kernel)
    assert found.verdict == "bug" and "different bits" in found.notes[0]


# several references


def test_right_by_one_reference_is_right_and_the_report_names_which() -> None:
    def other(q, k, v):
        return q * 1.0

    for references in ([other, naive], [naive, other]):
        found = diff_reference(attention, references, inputs)
        assert found.verdict == "rounding" and found.reference == "naive" and not found.fails
    both = diff_reference(partial(attention, keys=47), [other, naive], inputs)
    assert both.fails and len(both.tried) == 1
    with pytest.raises(Refusal, match="got none"):
        diff_reference(attention, [], inputs)


def test_what_is_wrong_by_all_is_judged_as_by_each_alone() -> None:
    def other(q, k, v):
        return q * 1.0

    in_tf32 = partial(attention, operand=cut)
    alone, both = diff_reference(in_tf32, naive, inputs), diff_reference(in_tf32, [other, naive], inputs)
    assert (both.verdict, both.doubt, both.reference) == (alone.verdict, alone.doubt, "naive")
    assert both["out"].reason == alone["out"].reason and "--contract" in both["out"].reason


# what is refused


def test_what_does_not_fit_is_refused() -> None:
    def returning(made):
        return lambda q, k, v: made

    out = np.zeros((48, 32), np.float32)
    for made, words in (
        ({"outt": out}, "stage 'outt'; did you mean out"),
        (out[:4], r"shape \[4, 32\]; out of the reference \(.*plain_kernels.py:\d+\) has \[48, 32\]"),
        (out.astype(np.int32), "in int32"),
        ((out, out), "returned 2 arrays; the reference returns 1"),
        (None, "returned None"),
        ("text", "must be an array or a number; got str"),
        ({}, "returned no array"),
        (out.astype(complex), "got complex128"),
    ):
        with pytest.raises(Refusal, match=words):
            judged(kernel=returning(made))
    with pytest.raises(Refusal, match="called by keyword with q, k, v"):
        judged(kernel=lambda q, k: q)
    with pytest.raises(Raised, match="ZeroDivisionError"):
        judged(kernel=lambda q, k, v: 1 / 0)
    with pytest.raises(Refusal, match="contract stores"):
        judged(contract="stored=prob:bfloat16")
    with pytest.raises(Refusal, match="contract setting"):
        judged(contract="operand=bfloat16")


def test_a_reference_that_raises_or_has_no_rule_is_named_with_its_line() -> None:
    def broken(q, k, v):
        return np.fft.fft(q)

    with pytest.raises(Refusal, match=r"test_call.py:\d+"):
        diff_reference(attention, broken, inputs)
    with pytest.raises(Raised, match="(?s)reference .*KeyError"):
        diff_reference(attention, lambda q, k, v: {}["x"], inputs)


def test_places_that_a_kernel_chose_count_within_a_tie_and_are_bugs_beyond_it() -> None:
    def gate(x):
        places = np.argsort(-x.sum(-1), axis=-1)[:, :2]
        return np.take_along_axis(x.sum(-1), places, -1), places

    rng = np.random.default_rng(0)
    x = rng.standard_normal((6, 4, 32)).astype(np.float32)
    x[0, 1] = x[0, 2, ::-1]  # the same sum in another order
    sums = x.sum(-1)
    sums[0, 1] = sums[0, 2]
    places = np.argsort(-sums, axis=-1, kind="stable")[:, :2]
    tie = places.copy()
    row = tie[0]
    tie[0] = np.where(row == 1, 2, np.where(row == 2, 1, row))
    for chosen in (places, tie):
        found = diff_results((np.take_along_axis(sums, chosen, -1), chosen), gate, {"x": x})
        assert found.verdict in ("exact", "rounding"), str(found)
    wrong = places.copy()
    wrong[3] = wrong[3, ::-1]
    found = diff_results((np.take_along_axis(sums, wrong, -1), wrong), gate, {"x": x})
    assert found.origin == "places" and found["places"].worst(1)[0].place[0] == 3 and found["result[0]"].role == "clean"


def test_whole_numbers_and_truths_are_exact() -> None:
    def counted(x):
        return np.floor(x).astype(np.int64), x > 0

    x = np.array([0.0, 0.5, 2.0**40, -3.5], np.float32)
    right = np.floor(x.astype(np.float64)).astype(np.int64), x > 0
    assert diff_results(right, counted, {"x": x}).verdict == "exact"
    for at in range(4):
        wrong = right[0].copy()
        wrong[at] += 1
        found = diff_results((wrong, right[1]), counted, {"x": x})
        assert found.verdict == "bug" and found.stages[0].worst(1)[0].place == (at,)
    assert diff_results((right[0], ~right[1]), counted, {"x": x}).verdict == "bug"
    zeros = np.zeros(3)  # of float64, whose ulp at 0 halves to 0
    assert diff_results(zeros, lambda x: x * 1.0, {"x": zeros.astype(np.float32)}).verdict == "exact"
    assert diff_results(zeros + 1e-30, lambda x: x * 1.0, {"x": zeros.astype(np.float32)}).verdict == "bug"


def test_what_follows_a_decision_that_rounding_may_turn_is_untestable_where_it_is_wrong() -> None:
    def clipped(x):
        total = (x * x).sum()
        if total > 1.0:
            x = x / np.sqrt(total)
        out = x * 2.0
        return out

    x = np.full(4, 0.5, np.float32)
    near = {"x": np.array([0.5, 0.5, 0.5, np.nextafter(np.float32(0.5), np.float32(1))], np.float32)}
    found = diff_results(near["x"] * np.float32(2) * np.float32(1.001), clipped, near)
    assert found.verdict == "untestable" and found.fails and "if at" in found.stages[0].reason
    assert "test_call.py:" in found.stages[0].reason
    assert diff_results(np.full(4, np.nan, np.float32), clipped, near).verdict == "bug"
    far = {"x": x * np.float32(4)}
    assert diff_results(far["x"], clipped, far).verdict == "bug"
    assert diff_results(far["x"] / np.float32(2), clipped, far).verdict in ("exact", "rounding")
