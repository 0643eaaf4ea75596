"""Where samples judge: no worst case, or one that says nothing; and contracts that samples doubt."""

import re
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.plain_kernels import bfloat16
from workbench.judge.reference import samples as module
from workbench.judge.reference import sharper
from workbench.judge.reference.contracts import judged
from workbench.judge.reference.given import matched
from workbench.judge.reference.samples import AGAIN, FIRST
from workbench.judge.stage import StageDiff
from workbench.reference.graph import Contract, parse, trace


def of(
    f: Callable[..., Any], given: dict[str, Any], made: Any, dtype: str = "float32", words: str | None = None
) -> Any:
    graph = trace(f, given)
    arrays = made if isinstance(made, dict) else [made]
    empty = {key: np.zeros(x.shape, bool) for key, x in arrays.items()} if isinstance(made, dict) else [
        np.zeros(made.shape, bool)
    ]  # fmt: skip
    contract: Contract | None = None if words is None else parse(words, dtype)
    return judged(graph, matched(graph, arrays, empty, "f"), contract, dtype).stages[-1]


def delta(k, v, beta):  # type: ignore[no-untyped-def]
    state = np.zeros((k.shape[1], v.shape[1]), k.dtype)
    for t in range(k.shape[0]):
        state = state + k[t][:, None] * (beta[t] * (v[t] - k[t] @ state))[None, :]
    return state


def keyed(seed: int = 0, tokens: int = 32) -> dict[str, Any]:
    rng = np.random.default_rng([seed, 3])
    k, v = (rng.standard_normal((tokens, n)).astype(np.float32) for n in (8, 12))
    return {
        "k": k / np.sqrt((k * k).sum(-1, keepdims=True)),
        "v": v,
        "beta": rng.uniform(0.2, 1, tokens).astype(np.float32),
    }


def run_delta(k: Any, v: Any, beta: Any, forget: int = -1, scale: float = 1.0) -> Any:
    state = np.zeros((k.shape[1], v.shape[1]), np.float32)
    for t in range(len(k)):
        if t != forget:
            state = state + k[t][:, None] * (beta[t] * (v[t] - k[t] @ state))[None, :]
    return state * np.float32(scale)


def test_where_a_worst_case_explodes_samples_judge(monkeypatch: pytest.MonkeyPatch) -> None:
    given = keyed()
    wrong = of(delta, given, run_delta(**given, scale=1 + 2.0**-15), words="")
    assert wrong.verdict == "bug" and "samples" not in wrong.reason  # 64 of 96 elements by reverse mode
    monkeypatch.setattr(sharper, "LARGEST", 0)
    right = of(delta, given, run_delta(**given), words="")
    assert right.verdict == "rounding" and right.decisive.summary.judged == 96
    said = rf"samples alone judge \d+ of 96 elements: at most [01]\.\d+ deviations off, drawn by {FIRST} samples"
    assert re.fullmatch(said, right.reason)
    wrong = of(delta, given, run_delta(**given, scale=1 + 2.0**-15), words="")
    assert wrong.verdict == "bug" and "elements that samples alone judge are wrong, the worst " in wrong.reason
    assert f"drawn by {AGAIN} samples" in wrong.reason
    broken = run_delta(**given)
    broken[3, 3] = np.nan
    assert of(delta, given, broken, words="").verdict == "bug"


def test_nan_is_no_number_of_deviations_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharper, "LARGEST", 0)
    given = keyed()
    found = of(delta, given, run_delta(**given) * np.float32(np.nan), words="")
    assert found.verdict == "bug" and found.reason == ""


def quotient(x, y):  # type: ignore[no-untyped-def]
    return x / (y.sum(-1, keepdims=True) - 1.0)


def terms(off: float, n: int = 64) -> dict[str, Any]:
    """Sums that are `off` above 1, of terms that cancel."""
    rng = np.random.default_rng(7)
    y = (rng.standard_normal((32, n)) * 64).astype(np.float32)
    y[:, -1] = (1 + off - y[:, :-1].astype(np.float64).sum(-1)).astype(np.float32)
    return {"x": rng.standard_normal((32, 8)).astype(np.float32), "y": y}


def divided(x: Any, y: Any) -> Any:
    total = np.zeros((len(y), 1), np.float32)
    for column in y.T:
        total += column[:, None]
    with np.errstate(divide="ignore"):
        return x / (total - np.float32(1))


def test_a_division_by_about_0_has_no_worst_case() -> None:
    given = terms(0.006)
    right = of(quotient, given, divided(**given), words="")
    assert right.verdict == "rounding" and "samples alone judge 256 of 256 elements: at most" in right.reason
    forgotten = dict(given, y=np.delete(given["y"], 5, axis=1))
    assert of(quotient, given, divided(**forgotten), words="").verdict == "bug"


def test_a_deviation_that_would_pass_a_0_judges_nothing() -> None:
    given = terms(1e-4)
    made = divided(**given)
    for one in (made, 0.5 * made):
        found = of(quotient, given, one, words="")
        assert found.verdict == "untestable" and "infinite" in found.reason


def test_an_element_that_few_samples_call_wrong_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    given = keyed()
    monkeypatch.setattr(sharper, "LARGEST", 0)
    monkeypatch.setattr(module, "LIKELY", 0.5)
    found = of(delta, given, run_delta(**given), words="")
    assert f"drawn by {AGAIN} samples" in found.reason


def chosen(a, b, v):  # type: ignore[no-untyped-def]
    places = np.argmax(a @ b, axis=-1)
    return np.take_along_axis(v, places[:, None], axis=-1)


def test_a_choice_that_rounding_may_turn_is_no_bug_and_another_is() -> None:
    rng = np.random.default_rng(1)
    given = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in (("a", (300, 64)), ("v", (300, 8)))}
    given["b"] = rng.standard_normal((64, 8)).astype(np.float32)
    given["b"][:, 1] = given["b"][:, 0] * np.float32(1 + 2.0**-22)
    exact = np.argmax(given["a"].astype(np.float64) @ given["b"].astype(np.float64), -1)
    close = np.isin(exact, (0, 1))
    other = np.where(close, 1 - exact, exact)
    made = np.take_along_axis(given["v"], other[:, None], -1)
    assert close.sum() > 30 and of(chosen, given, made, words="").verdict == "untestable"
    row = int(np.flatnonzero(~close)[0])
    made[row] = given["v"][row, (exact[row] + 1) % 8]
    assert of(chosen, given, made, words="").verdict == "bug"


def gated(x, w):  # type: ignore[no-untyped-def]
    hidden = x @ w
    gate = 1 / (1 + np.exp(-hidden))
    out = hidden * gate
    return out


def halves(seed: int = 0) -> dict[str, Any]:
    rng = np.random.default_rng([seed, 4])
    return {
        name: rng.standard_normal(shape).astype(ml_dtypes.bfloat16)
        for name, shape in (("x", (64, 32)), ("w", (32, 48)))
    }


def eager(x: Any, w: Any, factor: float = 1.0) -> Any:
    hidden = bfloat16(x.astype(np.float32) @ w.astype(np.float32))
    gate = bfloat16(1 / bfloat16(1 + bfloat16(np.exp(-hidden))))
    return (hidden * gate * np.float32(factor)).astype(ml_dtypes.bfloat16)


def excused(found: StageDiff, words: str) -> bool:
    return (found.verdict, found.doubt) == ("suspicious", "evidence") and f"--contract {words}" in found.reason


def test_what_plain_torch_rounds_is_said_and_fails_until_it_is_declared() -> None:
    given = halves()
    made = eager(**given)
    assert excused(of(gated, given, made, "bfloat16"), "round=eager")
    assert of(gated, given, made, "bfloat16", "round=eager").verdict == "rounding"
    assert of(gated, given, made, "bfloat16", "").verdict == "bug"


@pytest.mark.parametrize("factor", [1.01, 1 / 1.01])
def test_a_factor_is_no_rounding_of_plain_torch(factor: float) -> None:
    given = halves()
    assert of(gated, given, eager(**given, factor=factor), "bfloat16").verdict == "bug"


def mixed(x, w, v):  # type: ignore[no-untyped-def]
    seen = v - (x @ w) * 0.3
    out = seen @ w.T
    return out


def test_a_stage_in_16_bits_behind_other_roundings_is_no_bug_though_most_of_it_is_predicted() -> None:
    given = halves(1) | {"v": halves(2)["x"][:, :1] + np.zeros((64, 48), ml_dtypes.bfloat16)}
    x, w, v = (one.astype(np.float32) for one in given.values())
    product = bfloat16(bfloat16(x @ w) * np.float32(0.3))
    seen = (v - product).astype(ml_dtypes.bfloat16)
    assert excused(of(mixed, given, {"seen": seen}, "bfloat16"), "round=eager")
    off = (v * np.float32(1.02) - product).astype(ml_dtypes.bfloat16)
    assert of(mixed, given, {"seen": off}, "bfloat16").verdict == "bug"
    off = seen.copy()
    off[3] = off[4]
    assert of(mixed, given, {"seen": off}, "bfloat16").verdict == "bug"


@pytest.mark.parametrize("seed", range(4))
def test_what_storing_few_sums_in_16_bits_loses_has_nothing_in_common(seed: int) -> None:
    given = halves(seed)
    graph = trace(gated, given)
    node = next(iter(graph.results.values()))
    samples = module.Samples(graph, parse("", "bfloat16"), {}, [node])
    value = samples.value([node])
    error = bfloat16(value.astype(np.float32)) - value
    half = np.spacing(bfloat16(abs(value).astype(np.float32)).astype(ml_dtypes.bfloat16)).astype(np.float64) / 2
    assert samples.is_chance([node], [error], [half]) and not samples.is_chance([node], [error], [0 * half])
    assert not samples.is_chance([node], [error + 2.0**-9 * value], [half])


def scores(q, k):  # type: ignore[no-untyped-def]
    return (q @ k.T) * 0.3


def scaled(q: Any, k: Any) -> Any:
    """The scale in q before it is rounded to bfloat16, which held it."""
    return bfloat16(q.astype(np.float32) * np.float32(0.3)) @ k.astype(np.float32).T


def test_operands_that_are_scaled_before_they_are_rounded() -> None:
    rng = np.random.default_rng(5)
    given = {name: rng.standard_normal((48, 32)).astype(ml_dtypes.bfloat16) for name in ("q", "k")}
    made = scaled(**given)
    assert excused(of(scores, given, made, "bfloat16"), "operands=scaled-bfloat16")
    assert of(scores, given, made, "bfloat16", "operands=scaled-bfloat16").verdict == "rounding"
    assert of(scores, given, made * np.float32(1.02), "bfloat16").verdict == "bug"
