"""The rest of attention's domain in its backward pass: each gradient is torch's in float64."""

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.operations import mods
from tests.operations.backwards import FAULTS, FAULTS_OF, FAULTS_OF_MODS, backward
from tests.operations.dense_backward import gradients, gradients_of
from workbench import Refusal, Unavailable
from workbench.operations.backward_inputs import forward, mod_slope
from workbench.operations.case import OperationCase
from workbench.operations.every import OPERATIONS
from workbench.operations.expected import Reference
from workbench.operations.judge import OperationDiff, judged
from workbench.operations.run import OWN, OperationRun, results, run_operation
from workbench.reference.graph import Expected

BACKWARD = OPERATIONS["attention_backward"]
SIZES = {"batch": 3, "heads": 4, "kv_heads": 2, "queries": 9, "keys": 12, "dim": 5, "dim_v": 7}
WINDOW = {"window_left": 4, "window_right": 2}


#: what a case has beside the usual: numbers, optional inputs, sizes
DOMAIN: dict[str, tuple[dict[str, Any], tuple[str, ...], dict[str, int]]] = {
    "plain": ({}, (), {}),
    "causal": ({"causal": 1}, (), {}),
    "causal, more queries than keys": ({"causal": 1}, (), {"queries": 15}),
    "softcap": ({"softcap": 0.7}, (), {}),
    "window": (WINDOW, (), {}),
    "window on the left": ({"causal": 1, "window_left": 3}, (), {}),
    "sinks": ({}, ("sinks",), {}),
    "dlse": ({}, ("dlse",), {}),
    "sinks, dlse, rows without keys": ({"causal": 1}, ("sinks", "dlse"), {"queries": 15}),
    "dlse, rows without keys": ({"causal": 1}, ("dlse",), {"queries": 15}),
    "bias": ({}, ("bias",), {}),
    "bias of each batch": ({}, ("bias",), {"bias_batch": 3, "bias_heads": 1}),
    "bias of each key": ({}, ("bias",), {"bias_batch": 3, "bias_heads": 1, "bias_queries": 1}),
    "bias of all": ({}, ("bias",), {"bias_batch": 3}),
    "alibi": ({"causal": 1}, ("alibi_slopes",), {}),
    "alibi of columns": ({"alibi_column": 1}, ("alibi_slopes",), {}),
    "dropout": ({"dropout_p": 0.3}, ("dropout_mask",), {}),
    "mask": ({}, ("mask",), {}),
    "lengths": ({}, ("seqlens_k",), {}),
    "lengths, causal, window": ({"causal": 1, **WINDOW}, ("seqlens_k",), {}),
    "lengths, alibi": ({}, ("seqlens_k", "alibi_slopes"), {}),
    "shared": ({"shared_kv": 1}, (), {"dim": 7, "dim_v": 5}),
    "shared, one kv head, all its dims": ({"shared_kv": 1, "causal": 1}, (), {"kv_heads": 1, "dim_v": 5}),
    "shared, softcap, dlse": ({"shared_kv": 1, "softcap": 0.7}, ("dlse",), {"dim": 7, "dim_v": 4}),
    "softcap, bias": ({"softcap": 0.7}, ("bias",), {}),
    "softcap, sinks, window, dlse": ({"softcap": 0.7, "causal": 1, **WINDOW}, ("sinks", "dlse"), {}),
    "dropout, sinks, bias, dlse": ({"dropout_p": 0.3}, ("dropout_mask", "sinks", "bias", "dlse"), {}),
    "all": ({"softcap": 0.9, "causal": 1, **WINDOW, "dropout_p": 0.2}, tuple(BACKWARD.optional), {}),
}
#: and a score_mod
MODS: dict[str, tuple[Any, dict[str, Any], tuple[str, ...], dict[str, int]]] = {
    "score_mod": (mods.squashed, {}, (), {}),
    "score_mod, softcap, bias": (mods.weighed, {"softcap": 0.9}, ("bias",), {}),
    "score_mod, sinks, dlse, lengths": (mods.bent, {"causal": 1}, ("sinks", "dlse", "seqlens_k"), {}),
    "score_mod that hides": (mods.hiding, {}, ("dlse", "alibi_slopes"), {}),
    "score_mod that hides, mask, shared": (mods.hiding, {"shared_kv": 1}, ("mask",), {"dim": 7, "dim_v": 5}),
}
DOMAIN |= {name: rest for name, (_, *rest) in MODS.items()}  # type: ignore[misc]


def diff(function: Callable[..., Any], case: OperationCase) -> OperationDiff:
    return judged(run_operation(function, case, name="mine"))


def expected(run: OperationRun, *names: str) -> dict[str, Expected]:
    """Stages of inputs alone, with budgets."""
    return Reference(run).expected({}, names)


def values(run: OperationRun, *names: str, **given: np.ndarray) -> dict[str, np.ndarray]:
    """Stages in float64, of inputs and those that are given."""
    return Reference(run).values(given, names)


def case_of(name: str, **changes: Any) -> OperationCase:
    """A case of DOMAIN."""
    numbers, optional, sizes = DOMAIN[name]
    functions = {"score_mod": MODS[name][0]} if name in MODS else {}
    return OperationCase(
        BACKWARD, {**SIZES, **sizes}, numbers=numbers, optional=optional, functions=functions, **changes
    )


@pytest.mark.parametrize("own", [(), ("lse",)], ids=["lse given", "lse made"])
@pytest.mark.parametrize("delta", BACKWARD.conventions["delta"])
@pytest.mark.parametrize("name", DOMAIN)
def test_gradients_are_those_of_autograd(name: str, delta: str, own: tuple[str, ...]) -> None:
    case = case_of(name, conventions={"delta": delta})
    inputs = case.inputs()
    exact = {**inputs, **forward(case.setting, inputs)}
    wanted = gradients(case.setting, inputs)
    made = values(OperationRun("mine", case, exact, {}, own), *results(case))
    names = [stage for one, stage in gradients_of(case.numbers).items() if one in inputs]
    assert results(case) == names
    for one in names:
        assert made[one].shape == wanted[one].shape
        np.testing.assert_allclose(made[one], wanted[one], rtol=1e-12, atol=1e-12, err_msg=one)
    for one in ("out", "lse"):
        np.testing.assert_allclose(exact[one], wanted[one], rtol=1e-12, atol=1e-12, err_msg=one)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"numbers": {"dropout_p": 0.1}}, "dropout_p and dropout_mask go together: give both"),
        ({"optional": ("dropout_mask",)}, "dropout_p and dropout_mask go together: give both"),
        ({"numbers": {"dropout_p": 1.0}, "optional": ("dropout_mask",)}, (
            "dropout_p must be at least 0 and below 1; "
            "got 1"
        )),
        ({"numbers": {"softcap": 0.0}}, "softcap must be above 0; got 0"),
        ({"numbers": {"window_left": -2}}, "window_left must be 0 or more, or -1 for no window; got -2"),
        ({"numbers": {"window_left": 2.5}}, "window_left must be a whole number; got 2.5"),
        ({"numbers": {"shared_kv": 1}, "sizes": {"dim": 4, "dim_v": 5}},
         "with shared_kv, dim_v must be at most dim (4); got 5"),
        ({"numbers": {"alibi_column": 1}}, "alibi_column needs alibi_slopes"),
        ({"sizes": {"bias_heads": 3}, "optional": ("bias",)}, "bias_heads must be 1 or heads; got 3"),
        ({"optional": ("dropout",)}, "optional inputs of attention_backward are dlse, sinks, bias, alibi_slopes, "
                                     "dropout_mask, mask, seqlens_k; got 'dropout'"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(Refusal) as refused:
        OperationCase(BACKWARD, **changes)
    assert str(refused.value).removeprefix("attention_backward: ") == said


@pytest.mark.campaign(every=4)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("name", DOMAIN)
def test_right_functions_are_right(name: str, dtype: str) -> None:
    first = [*DOMAIN].index(name) + len(dtype)  # two of the distributions for each
    for seed in (first, first + 1):
        distribution = [*BACKWARD.distributions][seed % len(BACKWARD.distributions)]
        got = diff(backward(dumps=seed % 2 == 0), case_of(name, dtype=dtype, distribution=distribution, seed=seed))
        assert got.verdict in ("exact", "rounding") and got.stages, (distribution, str(got))


@pytest.mark.campaign(every=3)
@pytest.mark.parametrize("fault", FAULTS_OF)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_faults_of_what_a_case_may_have(fault: str, dtype: str) -> None:
    numbers, optional, stage = FAULTS_OF[fault]
    sizes = {**SIZES, "queries": 24, "keys": 32, "dim": 8}
    case = OperationCase(BACKWARD, sizes, dtype, numbers=numbers, optional=optional)
    got = diff(backward(fault), case)
    assert got.origin == stage and got.verdict == "bug", str(got)
    assert diff(backward(fault, dumps=False), case).origin in results(case)


@pytest.mark.parametrize("told", ["float32", "inputs"])
def test_gradients_of_shared_memory_may_be_stored_before_they_are_added(told: str) -> None:
    case = OperationCase(BACKWARD, {"dim_v": 24}, "bfloat16", numbers={"shared_kv": 1})
    inputs = case.inputs()
    made = values(OperationRun("mine", case, inputs, {}), "dq", "dk", "dv")
    dtype = inputs["q"].dtype
    dk, dv = (made[name].astype(dtype).astype(np.float32) for name in ("dk", "dv"))
    dk[..., :24] += dv

    def function(*given: Any, **beside: Any) -> dict[str, Any]:
        conventions = {"probs_dtype": "float32", "dscores_dtype": "float32", "parts_dtype": told}
        return {"dq": made["dq"].astype(dtype), "dkv": dk.astype(dtype), "contract": conventions}

    assert judged(run_operation(function, case, name="mine")).origins == (("dkv",) if told == "float32" else ())


@pytest.mark.parametrize("fault", FAULTS_OF_MODS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_faults_of_a_score_mod(fault: str, dtype: str) -> None:
    functions = {"score_mod": mods.squashed}
    case = OperationCase(BACKWARD, {**SIZES, "queries": 24, "keys": 32}, dtype, functions=functions)
    got = diff(backward(fault), case)
    assert got.origin == FAULTS_OF_MODS[fault] and got.verdict == "bug", str(got)
    assert diff(backward(fault, dumps=False), case).origin in results(case)


@pytest.mark.parametrize(
    ("mod", "said"),
    [
        (
            lambda score, b, h, q, k: np.tanh(np.asarray(score)),
            "needs torch's autograd, which must see every operation: Run",
        ),
        (lambda score, b, h, q, k: score.no_such_thing, "score_mod="),
    ],
    ids=["NumPy's", "raises"],
)
def test_a_score_mod_whose_derivative_nobody_knows_is_refused(mod: Any, said: str) -> None:
    of = OperationCase(BACKWARD, SIZES, functions={"score_mod": mod}).setting
    with pytest.raises(Refusal, match=said):
        mod_slope(of, np.ones([of.sizes[axis] for axis in "bhqk"]))


def test_without_torch_no_derivative(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(Unavailable, match="squashed: its derivative needs torch, which is not installed here"):
        diff(backward(), case_of("score_mod"))


def test_a_score_mod_that_reads_no_score_has_a_derivative_of_0() -> None:
    of = OperationCase(BACKWARD, SIZES, functions={"score_mod": lambda score, b, h, q, k: 0.25 * (q - k)}).setting
    assert not mod_slope(of, np.ones([of.sizes[axis] for axis in "bhqk"])).any()


def test_a_kink_that_a_score_may_be_beyond_is_in_the_budget() -> None:
    """Scores that are stored in bfloat16 may come out on the other side of 1."""
    functions = {"score_mod": lambda score, b, h, q, k: abs(score - 1)}
    sizes = {**SIZES, "queries": 64, "keys": 64}
    case = OperationCase(BACKWARD, sizes, "bfloat16", functions=functions, conventions={"qk_dtype": "inputs"})
    found = expected(OperationRun("mine", case, case.inputs(), {}), "scores", "dscores", "dmodded")
    scores, dscores, dmodded = found.values()
    near = abs(scores.value - 1) <= scores.budget.bound / 2
    over = dmodded.budget.bound - dscores.budget.bound
    assert near.any() and np.all(over[near] >= 2 * abs(dscores.value)[near])
    assert np.median(over / abs(dscores.value)) < 1e-3


@pytest.mark.parametrize("told", ["float32", "inputs"])
def test_delta_may_be_stored_in_16_bits(told: str) -> None:
    """V with a mean makes delta large, K with one dQ of its errors."""
    case = OperationCase(BACKWARD, SIZES, "bfloat16", "mean-of-4", numbers={"scale": 0.01})
    inputs = case.inputs()
    inputs = {**inputs, "v": (4 + inputs["v"].astype(np.float32)).astype(inputs["v"].dtype)}
    inputs |= {name: x.astype(inputs[name].dtype) for name, x in forward(case.setting, inputs).items()}
    exact = values(OperationRun("mine", case, inputs, {}), "delta")["delta"]
    stored = exact.astype(inputs["q"].dtype).astype(np.float64)
    made = values(OperationRun("mine", case, inputs, {}), "dq", delta=stored)

    def function(*given: Any, **numbers: Any) -> dict[str, Any]:
        conventions = {"dscores_dtype": "float32", "delta_dtype": told}
        return {"dq": made["dq"].astype(inputs["q"].dtype), "contract": conventions}

    got = judged(run_operation(function, case, name="mine", inputs=inputs))
    assert got.origins == (("dq",) if told == "float32" else ()), str(got)


def test_an_error_of_a_row_is_one_over_its_keys() -> None:
    """A delta that is as far off as it may be takes all dS of its row along: dQ by delta's error times the sum of
    P K, which K with a mean of 4 makes sqrt(keys) times what independent errors of dS add up to; V with one, too, makes delta large.
    """
    case = OperationCase(BACKWARD, {"heads": 1, "kv_heads": 1, "queries": 8, "keys": 512, "dim_v": 256})
    inputs = case.inputs()
    inputs = {**inputs, "q": inputs["q"] / 64, "k": 4 + inputs["k"], "v": 4 + inputs["v"]}
    inputs |= {name: x.astype(np.float32) for name, x in forward(case.setting, inputs).items()}
    found = judged(run_operation(backward(), case, name="mine", inputs=inputs))["delta"].isolated
    assert found is not None and found.summary.judged
    off = found.expected.copy()
    off[..., 3] += 0.99 * (found.statistical * found.budget)[..., 3]  # of all rows at once no chance is
    made = values(OperationRun("mine", case, inputs, {}), "dq", "dk", "dv", delta=off)

    def function(*given: Any, **numbers: Any) -> tuple[np.ndarray, ...]:
        return tuple(made[name].astype(np.float32) for name in ("dq", "dk", "dv"))

    got = judged(run_operation(function, case, name="mine", inputs=inputs))
    assert got.verdict == "rounding", str(got)


@pytest.mark.parametrize("distribution", BACKWARD.distributions)
def test_an_lse_that_nobody_saw_has_a_budget_of_the_same_scores(distribution: str) -> None:
    """lse of scores that are all as far off as their sums of products may be."""
    case = OperationCase(BACKWARD, {"heads": 1, "kv_heads": 1, "dim": 256}, distribution=distribution, seed=3)
    inputs = case.inputs()
    scores, lse = expected(OperationRun("mine", case, inputs, {}, ("lse",)), "scores", "own_lse").values()
    for sign in (1, -1):
        moved = scores.value + sign * scores.budget.bound
        off = abs(np.log(np.exp(moved - moved.max(-1, keepdims=True)).sum(-1)) + moved.max(-1) - lse.value)
        assert np.all(off <= lse.budget.bound) and np.all(lse.budget.bound < 3 * off)


def test_exponents_that_are_far_off_move_p_by_more_than_their_slope() -> None:
    """Scores of 100 that are stored in bfloat16 are off by up to 0.25, and e^0.25 - 1 is 0.284."""
    case = OperationCase(BACKWARD, {"keys": 8}, "bfloat16", "one-hot", conventions={"qk_dtype": "inputs"},
                         numbers={"scale": 1.0})  # fmt: skip
    scores, probs = expected(OperationRun("mine", case, case.inputs(), {}), "scores", "probs").values()
    off = scores.budget.bound
    assert off.max() > 0.2
    for sign in (1, -1):
        assert np.all(probs.value * abs(np.expm1(sign * off)) <= probs.budget.bound)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_gradients_of_no_keys_are_judged(dtype: str) -> None:
    """They are 0, which can be told, though casts in float16 have a budget and there are no terms."""
    case = OperationCase(BACKWARD, SIZES, dtype, optional=("seqlens_k",))
    inputs = {**case.inputs(), "seqlens_k": np.zeros(3, np.int32)}
    inputs |= {name: x.astype(inputs[name].dtype) for name, x in forward(case.setting, inputs).items()}

    def wrong(*given: Any, **beside: Any) -> Any:
        return tuple(x + np.asarray(1e-3, x.dtype) for x in backward(dumps=False)(*given, **beside))

    right, other = (judged(run_operation(one, case, name="mine", inputs=inputs))
                    for one in (backward(dumps=False), wrong))  # fmt: skip
    assert right.verdict == "exact" and other.origins == ("dq", "dk", "dv")


@pytest.mark.campaign
def test_faults_from_gradients_alone() -> None:
    """Where nobody saw out and lse either; what is missed has next to no effect: a dQ that is 0 whatever its scale, a
    sink whose weight outliers take away.
    """
    faults = {fault: ({"causal": 1}, (), stage) for fault, stage in FAULTS.items()} | FAULTS_OF
    sizes, missed, runs = {**SIZES, "queries": 40, "keys": 48, "dim": 16, "dim_v": 16}, [], 0
    for fault, (numbers, optional, _) in faults.items():
        function = backward(fault, dumps=False)
        for dtype in ("float32", "float16", "bfloat16"):
            for distribution in BACKWARD.distributions:
                axes = sizes | ({"dim": 24} if "shared_kv" in numbers else {})
                case = OperationCase(BACKWARD, axes, dtype, distribution, numbers=numbers, optional=optional)

                def alone(*given: Any, case: OperationCase = case, **beside: Any) -> dict[str, Any]:
                    made = function(*given, **beside)  # noqa: B023 - called at once
                    return {**dict(zip(results(case), made, strict=True)), OWN: ["out", "lse"]}

                runs += 1
                if diff(alone, case).origin is None:
                    missed.append((fault, distribution))
    assert runs == 630 and len(missed) <= 5, missed
