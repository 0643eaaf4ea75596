"""Other rules and bits lost: with the verdicts, in a pass of their own, whole or in parts, they are the same."""

from dataclasses import replace
from functools import cached_property, reduce
from operator import add
from typing import Any

import numpy as np
import pytest

from campaigns.known import reduced
from tests.stored import stored
from workbench import Case, Trace, diff, run
from workbench.case.assumptions import usual
from workbench.case.contract import of_foreign
from workbench.expectation.expectation import Expectation
from workbench.expectation.observed import Observed
from workbench.judge import blocks as parts
from workbench.judge import diagnostics
from workbench.judge import usual_rules as rules
from workbench.judge.sensitivity import with_sensitivity
from workbench.judge.usual_rules import Rule
from workbench.reference import dense

CASES = {
    "flash": Case(
        seqlen_q=50, seqlen_k=36, heads=2, head_dim=16, block_q=16, block_k=16, dtype="bfloat16", probs_dtype="bfloat16"
    ),
    "split_k": Case(
        seqlen_q=30, seqlen_k=40, heads=4, kv_heads=2, batch=2, head_dim=16, block_q=16, block_k=16, causal=True, splits=5,
        dtype="float16",
    ),
}  # fmt: skip
LIMIT = 700  #: scores at once, of 1800 a head of flash and 1200 of split_k


@pytest.fixture(scope="module", params=[(kernel, probes) for kernel in CASES for probes in ("all", "lean", "output")],
                ids=lambda param: "-".join(param))  # fmt: skip
def trace(request: pytest.FixtureRequest) -> Trace:
    kernel, probes = request.param
    return dumping(kernel, probes)


def dumping(kernel: str, probes: str) -> Trace:
    """A run with those probes, cut from one with all of them, which other tests compile, too."""
    return reduced(stored(kernel, CASES[kernel]), probes)


def assert_same(found: diagnostics.Diagnostics, expected: diagnostics.Diagnostics) -> None:
    assert found.rules == expected.rules and len(found.rules) == 3
    assert list(found.bits_lost) == list(expected.bits_lost) and "out" in found.bits_lost
    for name, bits in expected.bits_lost.items():
        np.testing.assert_array_equal(found.bits_lost[name], bits)


@pytest.mark.campaign(but=2)
def test_with_the_verdicts_or_after_them_they_are_the_same(trace: Trace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "AT_ONCE_ON_CPU", LIMIT)
    together, after = diff(trace, report=True), diff(trace)
    assert together.gathered is not None and after.gathered is None
    assert_same(together.diagnostics, after.diagnostics)
    expected = together["out"].propagated.expected  # type: ignore[union-attr]
    of_parts = (
        rules.deviation(together.run, part, part.of(expected, "bhqd")) for part in parts.parts_of(trace.case, "cpu")
    )
    assert together.rules == reduce(add, of_parts).rules


def test_parts_add_up_to_the_whole(trace: Trace, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = diagnostics.diagnostics(Observed(trace))
    monkeypatch.setattr(parts, "AT_ONCE_ON_CPU", LIMIT)
    cut = diagnostics.diagnostics(Observed(trace))
    for found, expected in zip(cut.rules, whole.rules, strict=True):
        assert found.name == expected.name
        # products of fewer rows may add up in another order, plain attention's in float32
        np.testing.assert_allclose((found.value, found.limit), (expected.value, expected.limit), rtol=0.2)
    for name, bits in whole.bits_lost.items():
        np.testing.assert_allclose(cut.bits_lost[name], bits, atol=1e-6)


def test_a_report_computes_every_part_once_and_nothing_larger(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = dumping("flash", "output")
    monkeypatch.setattr(parts, "AT_ONCE_ON_CPU", LIMIT)
    scores: list[int] = []
    computed, plain = vars(Expectation)["computed"].func, rules.plain_attention

    @cached_property
    def of_expectation(self: Expectation) -> dict[str, np.ndarray]:
        found: dict[str, np.ndarray] = computed(self)
        if isinstance(self.part.q, slice):  # not the few queries that controls are computed of
            scores.append(found["scores"].size)
        return found

    def of_plain(q: np.ndarray, k: np.ndarray, v: np.ndarray, **options: Any) -> np.ndarray:
        scores.append(q[..., 0].size * k.shape[2])
        return plain(q, k, v, **options)

    of_expectation.__set_name__(Expectation, "computed")
    monkeypatch.setattr(Expectation, "computed", of_expectation)
    monkeypatch.setattr(rules, "plain_attention", of_plain)
    judged = diff(trace, report=True)
    assert judged.bits_lost and judged.rules
    assert len(scores) == 2 * len(list(parts.parts_of(trace.case, "cpu"))) and sum(scores) == 2 * 2 * 50 * 36
    assert max(scores) <= LIMIT


def test_rows_without_keys_are_held_against_what_the_contract_says() -> None:
    case = Case(seqlen_q=4, seqlen_k=2, heads=1, head_dim=8, causal=True)
    right = dense.attention(*case.inputs(), scale=case.scale, mask=case.mask())["out"]

    def attention(q: np.ndarray, k: np.ndarray, v: np.ndarray, **options: Any) -> dict[str, Any]:
        out = right.astype(np.float32)
        assert not out[:, :, :2].any() and out[:, :, 2:].all()
        out[:, :, :2] = 7.0
        return {"out": out, "contract": {"empty_out": 7.0}}

    assert [rule.passes for rule in diff(run(attention, case)).rules] == [True, True, True]


def test_an_out_that_was_not_given_has_no_rules() -> None:
    trace = dumping("flash", "all")
    trace = replace(trace, stages={name: trace.stages[name] for name in ("qk", "lse")}, requested=())
    for report in (False, True):
        judged = diff(trace, report=report)
        assert judged.rules == () and list(judged.bits_lost) == ["qk"]


def test_of_a_kernel_on_codes_the_rules_are_against_what_it_should_have_read() -> None:
    case = Case(heads=4, kv_heads=2, seqlen=64, head_dim=64)  # whose builds are those of other tests
    judged = diff(stored("fp8", case, faults=["v-uses-k-scale"]), report=True)
    of_out = judged["out"].propagated
    assert judged.gathered is None and of_out is not None
    assert judged.rules[1] == Rule("atol 1e-2", of_out.summary.max_abs, 1e-2) and not judged.rules[1].passes


def test_the_usual_contract_is_held_against_in_the_same_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """A function that says nothing is judged under two contracts, of which each part is computed once; as if each had a
    pass of its own.
    """
    trace = replace(dumping("flash", "output"), contract=of_foreign({}, CASES["flash"]))
    out = trace.stages["out"].copy()
    out[0, 0, 7, 3] += 0.5
    trace = replace(trace, stages={**trace.stages, "out": out})
    whole = diff(trace)
    monkeypatch.setattr(parts, "AT_ONCE_ON_CPU", LIMIT)
    worst: dict[str, Any] = {}

    def doubts(run: Observed, judged: Any, failing: Any, device: str) -> Any:
        strict = run.under(usual(run.contract))
        assert strict.contract != run.contract
        worst.update(failing(strict, ["out", "lse"]))
        assert passes == ["judge flash"]
        return with_sensitivity(run, judged, failing, device)

    monkeypatch.setattr("workbench.judge.diff.with_sensitivity", doubts)
    passes: list[str] = []
    over_parts = parts.over_parts
    monkeypatch.setattr(parts, "over_parts", lambda *words: (passes.append(words[3]), over_parts(*words))[1])
    found = diff(trace)
    assert found.verdict == whole.verdict == "bug"
    apart = parts.comparisons(Observed(replace(trace, contract=usual(trace.contract))), ["out", "lse"], "cpu")
    assert [*worst] == ["out"]
    for name, (_, of_name) in apart.items():
        assert of_name is not None and (of_name.summary.outside > 0) == (name in worst)
        assert of_name.summary.outside == 0 or worst[name] == of_name.summary.worst
