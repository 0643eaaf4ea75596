"""Under which contract a kernel is right that declares nothing."""

import ml_dtypes
import numpy as np
import pytest

from tests.plain_kernels import attention, bfloat16, cut, inputs, naive
from workbench.judge.reference import contracts
from workbench.judge.reference.contracts import judged, words_of
from workbench.judge.reference.given import matched
from workbench.judge.reference.sharper import MOST, OTHERS
from workbench.judge.reference.stages import under
from workbench.reference.graph import Contract, parse, trace


def of(actual, dtype: str = "float32", declared: Contract | None = None, seed: int = 0):
    graph = trace(naive, inputs(seed, dtype))
    given = matched(graph, [actual], [np.zeros(actual.shape, bool)], "f")
    return judged(graph, given, declared, dtype)


def test_the_words_of_a_contract_are_those_that_parse_reads() -> None:
    for words in (
        "operands=tf32",
        "operands=float32,stored=probs:bfloat16+out:float16",
        "exp_ulps=3",
        "exp=natural",
        "fast=erf+tanh",
    ):
        contract = parse(words)
        assert parse(words_of(contract, parse(""))) == contract
    assert words_of(Contract()) == "" and words_of(parse("")) == "exp=base2"


def test_strict_comes_first_and_usual_only_where_it_must() -> None:
    given = inputs(0, "bfloat16")
    strict = of(attention(**given), "bfloat16")
    assert strict.contract == Contract() and strict.beyond_strict == {} and strict.stages[0].verdict != "bug"
    usual = of(attention(**given, operand=bfloat16), "bfloat16")
    assert usual.contract == Contract(operands="bfloat16") and usual.stages[0].verdict == "rounding"
    beyond = usual.beyond_strict["out"]
    assert 0 < beyond.elements < given["q"].size and beyond.over_budget > 1
    wrong = of(attention(**given, keys=40), "bfloat16")
    assert wrong.contract.operands == "bfloat16" and wrong.stages[0].role == "origin"


def test_a_declared_contract_is_the_only_one() -> None:
    actual = attention(**inputs(0, "bfloat16"), operand=bfloat16)
    found = of(actual, "bfloat16", Contract())
    assert found.stages[0].verdict == "bug" and found.contract == Contract()


@pytest.mark.parametrize("seed", range(3))
def test_an_excuse_has_to_look_like_the_errors(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    given = inputs(seed, "float32")
    (tf32,) = of(attention(**given, operand=cut), seed=seed).stages
    assert tf32.verdict == "suspicious" and tf32.doubt == "assumption" and "operands=tf32" in tf32.reason
    actual = attention(**given)
    actual[3] *= np.float32(1 + 2.0**-11)  # a row, by what TF32 would be off
    (row,) = of(actual, seed=seed).stages
    assert row.verdict == "bug" and row.if_declared is not None and "operands=tf32" in row.if_declared.words
    monkeypatch.setattr(contracts, "FITS", 0.0)
    assert of(actual, seed=seed).stages[0].verdict == "suspicious"


def test_what_is_far_beyond_fails_though_something_excuses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    actual = attention(**inputs(0, "float32"), operand=cut)
    (found,) = of(actual).stages
    assert found.over_usual is not None and 1 < found.over_usual < contracts.EXCUSED
    monkeypatch.setattr(contracts, "EXCUSED", found.over_usual / 2)
    (beyond,) = of(actual).stages
    assert beyond.verdict == "suspicious" and beyond.doubt == "evidence" and "none that is known" in beyond.reason


def test_nan_is_never_excused() -> None:
    actual = attention(**inputs(0, "float32"), operand=cut)
    actual[0, 0] = np.nan
    assert of(actual).stages[0].verdict == "bug"


def test_reverse_mode_is_sharper_than_forward_and_finds_what_that_hides() -> None:
    graph = trace(naive, inputs(0, "float32"))
    wrong = attention(**inputs(0, "float32"), log2e=1.4427)
    given = matched(graph, [wrong], [np.zeros(wrong.shape, bool)], "f")
    sharp, forward = (under(graph, Contract(), given, sharp=sharp)[0] for sharp in (True, False))
    assert forward.verdict == "rounding" and sharp.verdict == "suspicious"
    changed = sharp.decisive.budget < forward.decisive.budget
    assert OTHERS <= changed.sum() <= MOST + OTHERS and (sharp.decisive.budget <= forward.decisive.budget).all()


def of_stages(seed: int, size: float = 1.0, **how):
    given = {name: x * np.float32(size if name != "v" else 1) for name, x in inputs(seed, "float32").items()}
    made, graph = attention(**given, stages=True, **how), trace(naive, given)
    empty = {name: np.zeros(x.shape, bool) for name, x in made.items()}
    return judged(graph, matched(graph, made, empty, "f"), None, "float32")


def test_base_2_is_usual_and_a_wrong_base_is_not() -> None:
    right = [of_stages(seed, size) for seed in range(4) for size in (1.0, 1.8)]
    assert all(stage.verdict == "rounding" for one in right for stage in one.stages)
    assert {one.words for one in right} == {"", "exp=base2"}
    wrong = [of_stages(seed, log2e=1.4427) for seed in range(4)]
    assert all([stage.verdict for stage in one.stages].index("bug") == 1 for one in wrong)
    assert of(attention(**inputs(0, "float32"), log2e=1.4427)).stages[0].doubt == "evidence"


def test_a_stage_beyond_chance_under_an_undeclared_contract_fails() -> None:
    rng = np.random.default_rng(1)
    dy, x, weight = (rng.standard_normal(shape).astype(ml_dtypes.bfloat16) for shape in ((30, 768), (30, 768), (768,)))

    weight[-1] = 0.4  # so that the lost column stays within what operands in bfloat16 may lose

    def plain(dy, x, weight):
        g = dy * weight
        inner = (g * x).mean(-1, keepdims=True)
        dx = g - x * inner
        return dx

    g, wide = (one.astype(np.float32) for one in (dy.astype(np.float32) * weight.astype(np.float32), x))
    short = (g[:, :-1] * wide[:, :-1]).sum(-1, keepdims=True) / np.float32(768)  # without the last column
    made = {"inner": short, "dx": (g - wide * short).astype(ml_dtypes.bfloat16)}
    graph = trace(plain, {"dy": dy, "x": x, "weight": weight})
    empty = {name: np.zeros(one.shape, bool) for name, one in made.items()}
    inner = judged(graph, matched(graph, made, empty, "f"), None, "bfloat16").stages[0]
    assert inner.name == "inner" and not inner.decisive.summary.outside  # no element is over operands in bfloat16
    assert inner.verdict == "suspicious" and inner.doubt == "evidence"
