"""Undeclared arithmetic excuses what it does, and nothing that is as large."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.plain_kernels import attention, bfloat16, cut, inputs, naive, same
from workbench.expectation.elements import State
from workbench.judge.reference import contracts
from workbench.judge.reference.contracts import judged
from workbench.judge.reference.given import matched
from workbench.reference.graph import trace
from workbench.reference.graph.operands import cut_off, to_nearest, with_operands


def rounded(x: np.ndarray) -> np.ndarray:
    """What TF32 keeps of float32, rounded to nearest."""
    return ((x.view(np.int32) + 0x1000) & ~0x1FFF).view(np.float32)


def float16(x: np.ndarray) -> np.ndarray:
    return x.astype(np.float16).astype(np.float32)


def gate(x, w):
    y = 1 / (1 + np.exp(-(x @ w)))
    return y


def gated(x, w, *, factor: float = 1.0, operand: Callable[..., Any] = same):
    return np.float32(factor) / (1 + np.exp(-(operand(x) @ operand(w))))


def scan(k, v, decay):
    state = np.zeros((k.shape[1], v.shape[1]), k.dtype)
    for t in range(len(k)):
        state = np.exp(decay[t]) * state + k[t][:, None] * v[t]
    return state


def scanned(k, v, decay, *, state=same, decays=same, operand=same):
    found = np.zeros((k.shape[1], v.shape[1]), np.float32)
    for t in range(len(k)):
        found = state(decays(np.exp(decay[t])) * found + operand(k[t])[:, None] * operand(v[t]))
    return found


def drawn(f: Callable[..., Any], seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng([seed, 57])
    if f is naive:
        return inputs(seed, "float32")
    shapes = {"x": (32, 64), "w": (64, 24)} if f is gate else {"k": (24, 16), "v": (24, 8), "decay": (24,)}
    found = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    return {name: -abs(x) / 8 if name == "decay" else x / 8 if name == "w" else x for name, x in found.items()}


def by_chunks(k, v, decay, *, operand=same, chunk=8):
    """The same scan by chunks, as a matrix product a chunk: keys are multiplied by decays before they are rounded."""
    found = np.zeros((k.shape[1], v.shape[1]), np.float32)
    for t in range(0, len(k), chunk):
        left = decay[t : t + chunk].sum() - np.cumsum(decay[t : t + chunk])
        keys = k[t : t + chunk] * np.exp(left)[:, None]
        found = np.exp(decay[t : t + chunk].sum()) * found + operand(keys).T @ operand(v[t : t + chunk])
    return found


def of(f: Callable[..., Any], kernel: Callable[..., Any], seed: int = 0, gpu: bool = False, **how: Any) -> Any:
    given = drawn(f, seed)
    graph, made = trace(f, given), kernel(**given, **how)
    (stage,) = judged(graph, matched(graph, [made], [np.zeros(made.shape, bool)], "f"), None, "float32", gpu).stages
    return stage


def off_in_scale(q, k, v):
    return attention(q * np.float32(1 - 2.0**-10), k, v)


RIGHT = [
    (naive, attention, {"operand": cut}), (naive, attention, {"operand": rounded}),
    (gate, gated, {"operand": cut}), (gate, gated, {"operand": rounded}), (scan, scanned, {"operand": rounded}),
]  # fmt: skip
WRONG: list[tuple[Any, Any, dict[str, Any]]] = [
    (naive, off_in_scale, {}), (gate, gated, {"factor": 1.0001}), (gate, gated, {"factor": 1 - 2.0**-11}),
    (scan, scanned, {"state": bfloat16}), (scan, scanned, {"state": float16}), (scan, scanned, {"decays": float16}),
]  # fmt: skip


@pytest.mark.parametrize(("f", "kernel", "how"), RIGHT)
def test_tf32_is_an_assumption_where_its_errors_are_those_of_the_operands(f: Any, kernel: Any, how: Any) -> None:
    for seed in range(2):
        stage = of(f, kernel, seed, **how)
        assert (stage.verdict, stage.doubt) == ("suspicious", "assumption") and "operands=tf32" in stage.reason


def test_errors_that_are_suspicious_alone_are_excused_by_prediction_alone() -> None:
    rng = np.random.default_rng(58)
    a, b = rng.standard_normal((16, 1024)).astype(np.float32), rng.standard_normal((1024, 24)).astype(np.float32)
    for operand, factor, doubt in ((rounded, 1.0, "assumption"), (same, 1 - 2.0**-14, "evidence")):
        graph, made = trace(lambda a, b: a @ b, {"a": a, "b": b}), operand(a) @ operand(b) * np.float32(factor)
        (stage,) = judged(graph, matched(graph, [made], [np.zeros(made.shape, bool)], "f"), None, "float32").stages
        assert stage.decisive is not None and not stage.decisive.summary.outside
        assert (stage.verdict, stage.doubt) == ("suspicious", doubt)
        assert stage.reason.startswith(f"{stage.decisive.summary.count(State.SUSPICIOUS)} of 384 elements exceed")
        assert ("--contract operands=tf32" in stage.reason) == (doubt == "assumption")


def test_tf32_of_other_operands_is_an_assumption_where_a_gpu_made_it() -> None:
    told = [of(scan, by_chunks, 0, gpu, operand=x).doubt for x, gpu in ((cut, True), (rounded, True), (cut, False))]
    assert told == ["assumption", "assumption", "evidence"]


@pytest.mark.parametrize(("f", "kernel", "how"), WRONG)
def test_what_is_as_large_as_arithmetic_that_nobody_declared_fails(f: Any, kernel: Any, how: Any) -> None:
    for seed, gpu in ((0, False), (1, float16 not in how.values())):  # which has the digits of TF32
        stage = of(f, kernel, seed, gpu, **how)
        assert stage.verdict == "bug" or stage.doubt == "evidence"


def test_a_factor_is_not_taken_for_what_cutting_off_does_on_average(monkeypatch: pytest.MonkeyPatch) -> None:
    def shrunk(q, k, v):
        return attention(q * np.float32(1 - 0.72 * 2.0**-10), k, v, stages=True)["scores"]

    given = drawn(naive, 0)
    graph, made = trace(naive, given), shrunk(**given)
    one = matched(graph, {"scores": made}, {"scores": np.zeros(made.shape, bool)}, "f")
    (stage,) = judged(graph, one, None, "float32").stages
    assert stage.doubt == "evidence" and "TF32 of these operands has other errors" in stage.reason
    monkeypatch.setattr("workbench.judge.reference.explained.LINES", 0)
    assert judged(graph, one, None, "float32").stages[0].doubt == "assumption"


def test_a_state_is_carried_and_tiles_are_not() -> None:
    graph = trace(scan, drawn(scan, 0))
    assert contracts._is_carried(graph, "state")
    assert not any(contracts._is_carried(trace(naive, drawn(naive, 0)), name) for name in ("scores", "probs"))


def test_operands_are_those_that_tf32_hardware_reads() -> None:
    x = np.random.default_rng(0).standard_normal(4096).astype(np.float32)
    x = np.concatenate([x, x * np.float32(2.0**-90), np.float32([0, 1, 1 - 2.0**-24, 1 + 2.0**-10, -(2.0 - 2.0**-23)])])
    line: Any = None
    assert np.array_equal(cut_off(line, x.astype(np.float64)), cut(x))
    near, tie = to_nearest(line, x.astype(np.float64)), (x.view(np.int32) & 0x1FFF) == 0x1000
    assert np.array_equal(near[~tie], rounded(x)[~tie])


def test_a_run_on_changed_operands_is_that_run() -> None:
    given = {name: x.astype(np.float64) for name, x in drawn(scan, 0).items()}
    (made,) = with_operands(trace(scan, given), ["result"], {}, cut_off)
    state = np.zeros((16, 8))
    for t in range(24):
        outer = cut_off(None, given["k"][t])[:, None] * cut_off(None, given["v"][t])  # type: ignore[arg-type]
        state = np.exp(given["decay"][t]) * state + outer
    assert np.allclose(made, state, rtol=1e-12, atol=1e-12)
