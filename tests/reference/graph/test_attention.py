"""Flash and split-K as plain functions: budgets of the graph beside those of today's walk, stage by stage."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.reference.graph import plain_attention as plain
from tests.reference.graph.attention_today import Attention, drawn, expected, whole
from workbench.floats import DTYPES, round_to, ulp
from workbench.reference.graph import Contract, budget_at, budgets, parse, sources, trace

#: the least ratio of isolated budgets, worst case and statistical, of stages whose budgets are sharper than today's
SHARPER: dict[tuple[str, str], tuple[float, float]] = {
    # a product with a power of two is exact, and today's has two roundings: half an ulp, which all are allowed, of two
    ("flash", "scores"): (0.25, 0.25),
    ("split_k", "scores"): (0.25, 0.25),
    # today's counts one operation more than n + 1 terms take: n / (n + 1) of tiles of 16 keys at least. Statistical: of
    # c acc and p v of opposite signs prefixes shrink, where today's takes |c acc p v| for their product
    ("flash", "row_sum"): (16 / 18, 0.85),
    ("split_k", "row_sum"): (16 / 18, 0.85),
    ("flash", "acc"): (16 / 18, 0.4),
    ("split_k", "acc"): (16 / 18, 0.4),
    # K splits take K - 1 additions and a product, and today's counts K + 1 operations; of one split none is added
    ("split_k", "merge_sum"): (0.5, 0.5),
    ("split_k", "out"): (1 / 3, 1 / 3),
    # max + log(sum) is one rounding, of which today's counts two, for a merge that might be in it
    ("flash", "lse"): (0.5, 0.5),
    ("split_k", "lse"): (0.5, 0.5),
}
WORST, STATISTICAL = (0.95, 1.05), (0.7, 1.4)


def half_an_ulp(x: np.ndarray) -> np.ndarray:
    """What every comparison allows a float32 dump."""
    return ulp(x, "float32") / 2


def case(number: int, normal: bool = False) -> Attention:
    dtype = [*DTYPES][number % 3]
    return drawn(np.random.default_rng([number, 53]), dtype, normal)


@np.errstate(all="ignore")
def stages(one: Attention, isolated: bool) -> Iterator[tuple[str, np.ndarray, Any, Any, np.ndarray]]:
    """Name, value, today's budget, the graph's two, and a float32 run, of finite elements."""
    graph = one.graph()
    dumps = one.dumps(graph)
    whole_dumps = {name: whole(name, turns) for name, turns in dumps.items()}
    today = one.today(whole_dumps, isolated)
    made = expected(graph, Contract(), dumps if isolated else {})
    assert made.keys() == today.keys() >= {"qk", "probs", "acc", "out", "lse"}
    for name, (value, worst, likely) in made.items():
        assert np.allclose(value, today[name].value, rtol=1e-9, atol=1e-12), name
        held = np.isfinite(value)
        assert np.all(worst[~held] == 0) and np.array_equal(whole_dumps[name][~held], value[~held])
        budget = today[name].budget
        yield name, value[held], (budget.bound[held], budget.statistical[held]), (worst[held], likely[held]), whole_dumps[name][held]  # fmt: skip


@pytest.mark.campaign(but=6)
@pytest.mark.parametrize("number", range(600))
def test_isolated_budgets_are_those_of_today(number: int) -> None:
    one = case(number)
    for name, value, today, mine, _ in stages(one, isolated=True):
        floor = half_an_ulp(value)
        least = SHARPER.get((one.algorithm, name), (WORST[0], STATISTICAL[0]))
        for budget, old, low, (_, high) in zip(mine, today, least, (WORST, STATISTICAL), strict=True):
            ratio = np.maximum(budget, floor) / np.maximum(old, floor)
            assert ratio.size and np.all(ratio >= low * (1 - 1e-3)) and np.all(ratio <= high), name


@pytest.mark.campaign(but=6)
@pytest.mark.parametrize("number", range(600))
def test_a_float32_run_is_within_isolated_and_propagated(number: int) -> None:
    for isolated in (True, False):
        for name, value, _, (worst, likely), actual in stages(case(number), isolated):
            off = abs(actual - value)
            assert np.all(off <= np.maximum(worst, half_an_ulp(value))), name
            assert np.all(off <= np.maximum(likely, half_an_ulp(value))), name


def some(rng: np.random.Generator, shape: tuple[int, ...], n: int) -> list[tuple[int, ...]]:
    return [tuple(int(rng.integers(0, size)) for size in shape) for _ in range(n)]


def ratios_in_reverse(numbers: range) -> tuple[np.ndarray, np.ndarray]:
    """Of budgets of out in float32, in reverse mode, to today's; float32 runs lie within."""
    found: list[tuple[float, float]] = []
    for number in numbers:
        one = drawn(np.random.default_rng([number, 54]), "float32", normal=True)
        graph = one.graph()
        dumps = {name: whole(name, turns) for name, turns in one.dumps(graph).items()}
        today = one.today(dumps, given=False)["out"]
        elements = some(np.random.default_rng(number), today.value.shape, 6)
        at = budget_at(graph, Contract(), "out", elements)
        for k, element in enumerate(elements):
            value = today.value[element]
            off = abs(dumps["out"][element] - value)
            assert off <= max(at.statistical[k], float(half_an_ulp(value)))
            found.append(
                (at.bound[k] / today.budget.bound[element], at.statistical[k] / today.budget.statistical[element])
            )
    worst, likely = np.array(found).T
    return worst, likely


def test_the_budget_of_out_in_reverse_is_far_sharper_than_todays() -> None:
    worst, likely = ratios_in_reverse(range(12))
    assert np.median(worst) <= 0.7 and np.median(likely) <= 0.3


@pytest.mark.campaign
def test_it_is_so_in_200_cases() -> None:
    worst, likely = ratios_in_reverse(range(200))
    assert np.median(worst) <= 0.7 and np.median(likely) <= 0.3


def naive_case(seed: int) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    rng = np.random.default_rng(seed)
    arrays = {x: rng.standard_normal((1, 1, 96, 64)).astype(np.float32) for x in "qkv"}
    return arrays, {"scale": 0.125, "mask": np.tri(96, dtype=bool)[None, None]}


def worst_in_reverse(arrays: Any, how: Any, out: np.ndarray, n: int = 24) -> float:
    """The largest error / budget among the elements that are farthest off for their forward budget."""
    graph = trace(plain.naive, {**arrays, **how})
    exact = budgets(graph, Contract(), names=["result[0]"])["result[0]"]
    off = abs(out - exact.value)
    farthest = np.argsort((off / exact.budget.statistical).ravel())[-n:]
    elements = [tuple(int(i) for i in np.unravel_index(place, off.shape)) for place in farthest]
    at = budget_at(graph, Contract(), "result[0]", elements)
    return max(off[e] / max(at.statistical[k], half_an_ulp(exact.value[e])) for k, e in enumerate(elements))


@pytest.mark.parametrize(("f", "more"), [("flash", {"block": 16}), ("flash", {"block": 64}), ("split_k", {"block": 16, "splits": 3})],
                         ids=["tiles of 16", "tiles of 64", "splits"])  # fmt: skip
def test_kernels_of_other_tiles_are_within_the_budget_of_the_naive_function(f: str, more: dict[str, Any]) -> None:
    arrays, how = naive_case(1)
    with np.errstate(all="ignore"):
        out = getattr(plain, f)(**arrays, **how | {"scale": np.float32(0.125)}, **more)[0]
    assert out.dtype == np.float32 and 0 < worst_in_reverse(arrays, how, out) <= 1


def test_1_4427_in_place_of_log2_e_is_found_from_out() -> None:
    arrays, how = naive_case(2)
    scores = np.where(how["mask"], (arrays["q"] @ np.swapaxes(arrays["k"], -1, -2)) * np.float32(0.125), -np.inf)

    def out(log2_e: float) -> np.ndarray:
        weights = np.exp2((scores - scores.max(-1, keepdims=True)) * np.float32(log2_e)).astype(np.float32)
        return weights @ arrays["v"] / weights.sum(-1, keepdims=True)

    assert worst_in_reverse(arrays, how, out(np.log2(np.e))) <= 1 < worst_in_reverse(arrays, how, out(1.4427))


def test_scores_are_the_largest_source_of_a_naive_functions_out() -> None:
    arrays, how = naive_case(3)
    listed = sources(trace(plain.naive, {**arrays, **how}), Contract(), "out", (0, 0, 90, 5))
    assert listed[0].line.number == plain.naive.__code__.co_firstlineno + 1


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_probs_in_16_bits_are_within_what_such_kernels_usually_do_and_nothing_else_is(dtype: str) -> None:
    """The operands of the second product are rounded as the inputs' dtype, out too; a state in 16 bits is a bug."""
    arrays, how = naive_case(4)
    arrays = {name: x.astype(DTYPES[dtype]) for name, x in arrays.items()}
    q, k, v = (x.astype(np.float32) for x in arrays.values())
    scores = np.where(how["mask"], (q @ np.swapaxes(k, -1, -2)) * np.float32(how["scale"]), -np.inf)
    probs = np.exp(scores - scores.max(-1, keepdims=True))

    def narrow(x: np.ndarray) -> np.ndarray:
        return round_to(x.astype(np.float64), dtype).astype(np.float32)

    right = narrow(probs) @ v / probs.sum(-1, keepdims=True)
    wrong = narrow(np.exp(narrow(scores) - scores.max(-1, keepdims=True))) @ v / probs.sum(-1, keepdims=True)
    graph = trace(plain.naive, {**arrays, **how})
    made = {words: budgets(graph, parse(words, dtype), names=["out"])["out"] for words in ("", "operands=float32")}
    usual, strict = made[""], made["operands=float32"]
    off = abs(right - usual.value)
    assert np.all(off <= usual.budget.statistical) and np.any(off > strict.budget.bound)
    elements = some(np.random.default_rng(0), right.shape, 12)
    at = budget_at(graph, parse("", dtype), "out", elements)
    assert all(off[e] <= at.statistical[n] for n, e in enumerate(elements))
    assert np.any(abs(wrong - usual.value) > usual.budget.statistical)

    stored = parse(f"stored=out:{dtype}", dtype)
    expected_out = budgets(graph, stored, names=["out"])["out"]
    actual = narrow(right)
    held = abs(actual - expected_out.value) <= expected_out.budget.bound
    assert held.size and np.all(held)
