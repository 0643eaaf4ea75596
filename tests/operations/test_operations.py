"""Operations beside attention: right functions are right, and each fault is found at its stage."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.operations import backwards, chunks, deltas, norms, ropes
from workbench import Refusal
from workbench.operations.call import diff_operation
from workbench.operations.case import OperationCase
from workbench.operations.every import OPERATIONS
from workbench.operations.judge import OperationDiff, judged
from workbench.operations.run import run_operation

NORM, DELTA, BACKWARD = (OPERATIONS[name] for name in ("rmsnorm", "gated_delta_rule", "attention_backward"))
OF_NORM = OperationCase(NORM, {"rows": 24, "dim": 96})
OF_DELTA = OperationCase(DELTA, {"tokens": 40, "dim": 16, "dim_v": 16}, numbers={"scale": 0.25})
SIZES = {"heads": 4, "kv_heads": 2, "queries": 40, "keys": 48, "dim": 16, "dim_v": 16}
FUNCTIONS = {
    "rmsnorm": norms.rmsnorm,
    "gated_delta_rule": deltas.gated_delta_rule,
    "attention_backward": backwards.backward,
    "rope": ropes.rope,
}


def diff(function: Callable[..., Any], case: OperationCase) -> OperationDiff:
    return judged(run_operation(function, case, name="mine"))


def random_case(name: str, seed: int) -> OperationCase:
    """One whose sizes fit each other."""
    rng, of = np.random.default_rng(seed), OPERATIONS[name]
    while True:
        sizes = {axis: int(rng.integers(1, 4 if axis in ("b", "h", "g") else 60)) for axis in of.axes}
        numbers: dict[str, float] = {"causal": bool(rng.integers(2))} if "causal" in of.numbers else {}
        dtype, distribution = str(rng.choice(["float32", "float16", "bfloat16"])), str(rng.choice([*of.distributions]))
        optional = tuple(one for one in of.optional if rng.random() < 0.2)
        if name == "attention_backward":
            sizes |= {one: sizes[of_] if rng.random() < 0.5 else 1 for one, of_ in zip("mnr", "bhq", strict=True)}
            numbers |= {"dropout_p": float(rng.choice([0.1, 0.5]))} if "dropout_mask" in optional else {}
            numbers |= {"softcap": float(rng.choice([0.5, 30.0]))} if rng.random() < 0.2 else {}
            numbers |= {f"window_{x}": int(rng.integers(-1, 20)) for x in ("left", "right") if rng.random() < 0.2}
        try:
            return OperationCase(of, sizes, dtype, distribution, seed, numbers, optional=optional)
        except Refusal:
            continue


def made(name: str, seed: int) -> OperationDiff:
    return diff(FUNCTIONS[name](dumps=seed % 2 == 0), random_case(name, seed))


@pytest.mark.parametrize("name", OPERATIONS)
def test_right_functions_are_right(name: str) -> None:
    for seed in range(12):
        got = made(name, seed)
        assert got.verdict in ("exact", "rounding") and got.stages, (seed, str(got))


@pytest.mark.campaign
@pytest.mark.parametrize("name", OPERATIONS)
def test_no_right_function_of_500_is_called_wrong(name: str) -> None:
    for seed in range(500):
        got = made(name, seed)
        assert got.verdict in ("exact", "rounding", "suspicious", "untestable") and got.stages, (seed, str(got))


@pytest.mark.parametrize("fault", norms.FAULTS)
def test_faults_of_rmsnorm(fault: str) -> None:
    case = OperationCase(NORM, OF_NORM.sizes, distribution="near-eps" if "eps" in fault else "normal")
    got = diff(norms.rmsnorm(fault), case)
    assert got.origin == norms.FAULTS[fault] and got.verdict == "bug"
    assert diff(norms.rmsnorm(fault, dumps=False), case).origin == "out"


@pytest.mark.campaign(every=2)
@pytest.mark.parametrize("fault", deltas.FAULTS)
def test_faults_of_the_gated_delta_rule(fault: str) -> None:
    got = diff(deltas.gated_delta_rule(fault), OF_DELTA)
    assert got.origin == deltas.FAULTS[fault] and got.verdict == "bug"
    assert diff(deltas.gated_delta_rule(fault, dumps=False), OF_DELTA).origin == "out"


@pytest.mark.campaign(every=3)
@pytest.mark.parametrize("fault", backwards.FAULTS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_faults_of_the_backward_pass(fault: str, dtype: str) -> None:
    case = OperationCase(BACKWARD, SIZES, dtype, numbers={"causal": True})
    got = diff(backwards.backward(fault), case)
    assert got.origin == backwards.FAULTS[fault] and got.verdict == "bug"
    assert diff(backwards.backward(fault, dumps=False), case).origin in ("dq", "dk", "dv")


@pytest.mark.parametrize("distribution", BACKWARD.distributions)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_the_backward_pass_of_torch(distribution: str, dtype: str) -> None:
    """Its own operations, on a CPU: what they store in 16 bits is told."""
    import torch

    def attention(q: Any, k: Any, v: Any, *, scale: float, causal: bool) -> Any:
        seen = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).tril(k.shape[2] - q.shape[2])
        wide = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
        return torch.nn.functional.scaled_dot_product_attention(q, *wide, attn_mask=seen, scale=scale)

    stored = dict.fromkeys(("qk_dtype", "dprobs_dtype", "dk_sum_dtype", "dv_sum_dtype"), "inputs")
    told = {} if dtype == "float32" else {"delta": "probs", "dscores_of": "cast probs", **stored}
    got = diff_operation(
        attention, "attention_backward", axes=SIZES, dtype=dtype, distribution=distribution, numbers={"causal": True},
        contract=told, arrays="torch", gradients=True,
    )  # fmt: skip
    assert got.verdict in ("exact", "rounding") and len(got.stages) == 3, str(got)


def test_errors_of_a_carried_state_do_not_explode() -> None:
    """Through absolute values they double with every token: 6e24 at 256."""
    right = deltas.gated_delta_rule(dumps=False)

    def by_token(*inputs: Any, **numbers: Any) -> dict[str, Any]:
        return {"out": right(*inputs, **numbers), "contract": {"chunk": 1}}

    # one that says nothing may be chunked, which loses more
    for function, tokens, most in ((by_token, 64, 270), (by_token, 256, 330), (right, 64, 2700)):
        case = OperationCase(DELTA, {"heads": 1, "tokens": tokens, "dim": 32, "dim_v": 32})
        found = diff(function, case)["out"].isolated
        assert found is not None
        error, budget = abs(found.error), found.budget
        assert np.all(error <= budget) and np.median(budget) < most * np.median(error[error > 0])


@pytest.mark.parametrize("distribution", DELTA.distributions)
def test_a_chunked_kernel_in_float32_that_does_not_say_so_is_right(distribution: str) -> None:
    for seed, chunk in enumerate((16, 64, 64, 64)):
        chunked = chunks.in_numpy(chunk, names=("out",))
        case = OperationCase(
            DELTA, {"tokens": 125 + seed, "dim": 16, "dim_v": 11}, distribution=distribution, seed=seed
        )
        assert diff(lambda *x, chunked=chunked, **of: chunked(*x, **of)["out"], case).verdict == "rounding"


def test_what_is_undumped_between_is_judged_from_before() -> None:
    full = deltas.gated_delta_rule("beta twice")

    def some(*inputs: Any, **numbers: Any) -> dict[str, Any]:
        stages = full(*inputs, **numbers)
        return {name: stages[name] for name in ("recalled", "state", "out")}

    got = diff(some, OF_DELTA)
    assert got.origin == "state" and got["state"].judged_from == ("recalled", "state") and got.others[0] == "scaled"


def test_conventions_are_told() -> None:
    def offset(x: np.ndarray, weight: np.ndarray, *, eps: float) -> dict[str, Any]:
        stages = norms.rmsnorm()(x, weight + 1, eps=eps)
        return {"out": stages["out"], "contract": {"weight_offset": 1}}

    assert diff(offset, OF_NORM).verdict == "rounding"
    told = OperationCase(NORM, OF_NORM.sizes, conventions={"weight_offset": 1})
    assert diff(norms.rmsnorm(), told).origin == "out"


def test_a_cast_before_the_weight_is_a_convention() -> None:
    def cast(x: np.ndarray, weight: np.ndarray, *, eps: float) -> Any:
        stages = norms.rmsnorm()(x, weight, eps=eps)
        return (stages["normed"].astype(x.dtype).astype(np.float32) * weight.astype(np.float32)).astype(x.dtype)

    case = OperationCase(NORM, OF_NORM.sizes, "bfloat16")
    assert diff(cast, case).origin == "out"
    told = OperationCase(NORM, OF_NORM.sizes, "bfloat16", conventions={"cast": "before weight"})
    assert diff(cast, told).verdict in ("exact", "rounding")


def test_nan_is_a_bug() -> None:
    def nan(x: np.ndarray, weight: np.ndarray, *, eps: float) -> np.ndarray:
        out = norms.rmsnorm(dumps=False)(x, weight, eps=eps)
        out[3, 5] = np.nan
        return np.asarray(out)

    got = diff(nan, OF_NORM)
    assert got.origin == "out" and got["out"].isolated is not None and got["out"].isolated.summary.outside == 1
    assert "\n  1 non-finite mismatch\n" in str(got) and "worst at n=3 d=5: actual nan, " in str(got)


def test_torch_tensors() -> None:
    import torch

    def with_torch(x: Any, weight: Any, *, eps: float) -> Any:
        return torch.nn.functional.rms_norm(x, (x.shape[-1],), weight, eps)

    for dtype in ("float32", "bfloat16"):
        case = OperationCase(NORM, OF_NORM.sizes, dtype)
        got = judged(run_operation(with_torch, case, name="torch", arrays="torch"))
        assert got.verdict in ("exact", "rounding")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"sizes": {"row": 3}}, "axes of rmsnorm must be among rows, dim; got 'row'"),
        ({"sizes": {"rows": 0}}, "rmsnorm: rows must be at least 1; got 0"),
        ({"numbers": {"epsilon": 1}}, "numbers of rmsnorm are eps; got 'epsilon'"),
        ({"conventions": {"cast": "never"}}, "rmsnorm: cast must be one of after weight, before weight; got 'never'"),
        ({"distribution": "flat"}, "distributions of rmsnorm are normal, near-eps, outlier; got 'flat'"),
        ({"operation": BACKWARD, "sizes": {"heads": 3}}, "attention_backward: heads must be a multiple of kv_heads"),
        ({"dtype": "float8"}, "dtype must be one of float32, float16, bfloat16; got 'float8'"),
    ],
    ids=["axis", "size", "number", "convention", "distribution", "rule", "dtype"],
)
def test_cases_that_are_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(Refusal) as refused:
        OperationCase(**{"operation": NORM, **changes})
    assert str(refused.value) == said


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda x, weight: x, "is called as rmsnorm(x, weight, *, eps)"),
        (
            lambda x, weight, eps: {"sum": x},
            "returned unknown stages sum; stages of rmsnorm: squares, rstd, normed, out",
        ),
        (lambda x, weight, eps: x[:, :4], "out has axes [rows, dim] and must have shape [24, 96]; got [24, 4]"),
        (lambda x, weight, eps: None, "returned None; it must return out, rstd, or a dict of stages"),
        (lambda x, weight, eps: {"contract": {"weight_offset": 0}}, "returned no stage of rmsnorm"),
    ],
    ids=["parameters", "stage", "shape", "none", "nothing"],
)
def test_functions_that_are_refused(function: Callable[..., Any], said: str) -> None:
    with pytest.raises(Refusal) as refused:
        run_operation(function, OF_NORM, name="mine")
    assert said in str(refused.value)


def test_gradients_that_autograd_does_not_see_are_refused() -> None:
    def detached(q: Any, k: Any, v: Any, *, scale: float, causal: bool) -> Any:
        return q.detach()

    def of_q(q: Any, k: Any, v: Any, *, scale: float, causal: bool) -> Any:
        return q * 2

    for function, said in ((detached, "its out is detached"), (of_q, "no gradient reached k, v")):
        with pytest.raises(Refusal, match=said):
            diff_operation(function, "attention_backward", arrays="torch", gradients=True)
    with pytest.raises(
        Refusal, match="gradients needs attention_backward and torch arrays; got rmsnorm and numpy arrays"
    ):
        diff_operation(norms.rmsnorm(), "rmsnorm", gradients=True)


def test_in_a_shell_a_judgement_is_a_line() -> None:
    got = diff_operation(norms.rmsnorm("eps outside the root"), "rmsnorm", distribution="near-eps")
    assert repr(got) == "<OperationDiff of function, rmsnorm: bug, origins ['rstd'], victims ['normed', 'out']>"
