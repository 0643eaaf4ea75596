"""The assertion on a kernel: what passes, what fails and what the failure says, by itself and in tests of hypothesis."""

import math
import re
from types import SimpleNamespace

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.control import current_build_context

from workbench import Case, Diff, Refusal, diff, run
from workbench.cli.main import commands
from workbench.testing import (
    AttentionError,
    AttentionWarning,
    assert_attention,
    assert_attention_close,
    examples,
    message,
)
from workbench.testing import attention as checks
from workbench.testing.message import in_a_line
from workbench.testing.settings import Settings, current

CASE = Case(heads=2, seqlen=20, head_dim=16)
#: of tests inside of tests
QUICK = settings(
    database=None,
    deadline=None,
    derandomize=True,
    max_examples=10,
    phases=[Phase.generate, Phase.shrink],
    suppress_health_check=[HealthCheck.differing_executors],
)


def attention(q, k, v, *, scale, causal, error=0.0, base=1.0):
    """In float64, with a relative error of out, and lse in a base."""
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    scores = q @ np.swapaxes(k, -1, -2) * scale
    if causal:
        n, m = scores.shape[-2:]
        scores = np.where(np.tri(n, m, m - n, dtype=bool), scores, -np.inf)
    row_max = scores.max(-1, keepdims=True)
    probs = np.exp(scores - row_max)
    row_sum = probs.sum(-1, keepdims=True)
    out = probs @ v / row_sum * (1 + error)
    return out.astype(np.float32), ((row_max + np.log(row_sum)) * base)[..., 0].astype(np.float32)


def in_base_2(q, k, v, *, scale, causal):
    return attention(q, k, v, scale=scale, causal=causal, base=np.log2(np.e))


def slightly_off(q, k, v, *, scale, causal):
    return attention(q, k, v, scale=scale, causal=causal, error=5e-6)


pytestmark = pytest.mark.usefixtures("without_searches")


def failure(*words, **options):
    with pytest.raises(AttentionError) as raised:
        assert_attention(*words, **options)
    return raised.value


# --- what passes, what fails


def test_a_right_kernel_gives_its_judgement():
    judged = assert_attention(attention, CASE.but(causal=True))
    assert isinstance(judged, Diff) and judged.verdict in ("exact", "rounding")


def test_a_bug_fails_with_its_judgement():
    error = failure(in_base_2, CASE)
    assert isinstance(error, AssertionError)
    assert (error.diff.verdict, error.diff.origin) == ("bug", "lse")


@pytest.mark.campaign(but=2)
@pytest.mark.parametrize(
    ("fail_on", "fails"), [(None, False), ("bug", False), ("biased", False), ("suspicious", True)], ids=str
)
def test_what_is_suspicious_fails_where_that_is_asked_for(fail_on, fails):
    if fails:
        assert str(failure(slightly_off, CASE, fail_on=fail_on)).startswith("suspicious in out, ")
        return
    with pytest.warns(AttentionWarning, match="^suspicious in out, .*within budget only with "):
        judged = assert_attention(slightly_off, CASE, fail_on=fail_on)
    assert (judged.verdict, judged.doubt, judged["out"].doubt) == ("suspicious", "assumption", "assumption")


@pytest.mark.parametrize("factor", [0.98, 1.02])
def test_a_factor_of_out_fails_though_within_the_budget(factor):
    """Of a kernel in bfloat16 that tells nothing the budget is 2% of out and more."""
    case = Case(seqlen_q=16, seqlen_k=128, dtype="bfloat16")
    out = attention(*case.inputs(), scale=case.scale, causal=False)[0]
    arrays = [out.astype(case.inputs()[0].dtype), *case.inputs()]
    assert assert_attention_close(*arrays).doubt == ""
    arrays[0] = (out * factor).astype(arrays[0].dtype)
    with pytest.raises(AttentionError, match="no known library computes like that") as raised:
        assert_attention_close(*arrays)
    judged = raised.value.diff
    assert judged.verdict == "bug" and judged["out"].worst(1)[0].over_budget < 1
    assert "suspect the probe" not in str(judged)


def test_settings_say_what_the_call_does_not():
    token = current.set(Settings(fail_on="suspicious", shrink_effort=0.0))
    try:
        failure(slightly_off, CASE)
        with pytest.warns(AttentionWarning):
            assert_attention(slightly_off, CASE, fail_on="bug")
    finally:
        current.reset(token)


def test_a_backend_that_settings_say_is_that_of_kernels_of_ours_alone():
    token = current.set(Settings(backend="none such"))
    try:
        with pytest.raises(Refusal, match="none such"):
            assert_attention("flash", CASE)
        assert_attention(attention, CASE)  # a foreign one takes no backend
    finally:
        current.reset(token)


def test_nothing_judged_is_no_pass():
    error = failure(attention, CASE.but(input_std=1e18))
    assert error.diff.verdict == "untestable" and str(error).startswith("untestable in out")


def test_a_gate_is_no_pass():
    calls = iter(range(100))

    def unsteady(q, k, v, *, scale, causal):
        out, lse = attention(q, k, v, scale=scale, causal=causal)
        out[0, 0, 0, 0] = np.nextafter(out[0, 0, 0, 0], np.float32(np.inf if next(calls) % 2 else -np.inf))
        return out, lse

    error = failure(unsteady, CASE, runs=2)
    assert error.diff.verdict == "rounding" and str(error).startswith("gate failed: unsteady gives different bits")


def test_wrong_usage_is_no_verdict():
    with pytest.raises(Refusal, match="fail_on must be one of"):
        assert_attention(attention, CASE, fail_on="rounding")
    with pytest.raises(Refusal, match="faults? is for built-in kernels"):
        assert_attention(attention, CASE, faults=["flash-scale-twice"])
    with pytest.raises(Refusal, match="unknown kernel 'flush'"):
        assert_attention("flush", CASE)


# --- what it says


def test_it_says_where_why_and_how_to_repeat_it(request, monkeypatch):
    monkeypatch.chdir(request.config.rootpath)
    monkeypatch.setattr("workbench.judge.diff.QUICK", 4000.0)
    first, *lines = str(failure(in_base_2, CASE.but(seqlen=64))).splitlines()
    name = "tests/testing/test_attention.py:in_base_2"
    assert first.startswith("bug in lse, ") and first.endswith(
        f"x its budget: lse is in base 2, not in base e ({name})"
    )
    assert any(line.startswith("lse    bug <- origin") for line in lines)
    assert any(line.startswith("  cause: lse is in base 2, not in base e; reproduces 128 of 128") for line in lines)
    assert f"repeat: workbench diff {name} --seqlen 64 --heads 2 --head-dim 16" in lines


def test_of_a_function_without_a_name_it_says_the_test_and_the_call():
    def local(q, k, v, *, scale, causal):
        return in_base_2(q, k, v, scale=scale, causal=causal)

    token = current.set(Settings(shrink_effort=0, node="tests/test_x.py::test_y[1 2]"))
    try:
        *_, test, call = str(failure(local, CASE, device="cpu")).splitlines()
    finally:
        current.reset(token)
    assert test == "repeat: pytest 'tests/test_x.py::test_y[1 2]'"
    again = call.removeprefix("in Python: ")
    assert again == "assert_attention(local, Case(heads=2, seqlen=20, head_dim=16), device='cpu')"
    with pytest.raises(AttentionError):
        eval(again)


@pytest.mark.campaign
def test_the_smallest_case_is_part_of_it():
    token = current.set(Settings(shrink_effort=1.0))
    try:
        said = str(failure(in_base_2, CASE))
    finally:
        current.reset(token)
    assert "smallest: " in said and "h=1 q=1 k=1 d=1" in said and "lse is in base 2" in said


def test_why_there_is_no_smaller_case_is_said():
    token = current.set(Settings(shrink_effort=1.0))
    inputs = dict(zip("qkv", CASE.inputs(), strict=True))
    try:
        said = str(failure(in_base_2, CASE, inputs=inputs))
    finally:
        current.reset(token)
    assert "no smaller case was searched for: " in said and "in Python: assert_attention(in_base_2" in said


def test_a_kernel_that_raises_while_its_case_is_shrunk_does_not_hide_the_report():
    """What it raises has the failure as its context, whose text is being made."""

    def picky(q, k, v, *, scale, causal):
        if q.shape[2] != CASE.seqlen_q:
            raise ValueError("20 queries, or none")
        return in_base_2(q, k, v, scale=scale, causal=causal)

    token = current.set(Settings(shrink_effort=0.05))
    try:
        assert_attention(picky, CASE)
    except AttentionError as error:
        said = str(error)
    finally:
        current.reset(token)
    assert (
        said.count("first wrong stage: lse or one before it (only out and lse were given)") == 1
        and "q=20" in said.split("smallest: ")[1].splitlines()[0]
    )


def test_the_text_is_made_once_and_when_it_is_asked_for(monkeypatch):
    made = []
    monkeypatch.setattr(checks, "of_run", lambda *_, **__: made.append(1) or "said")
    error = failure(in_base_2, CASE)
    assert made == []
    assert str(error) == str(error) == "said" and made == [1]


# --- in a test of hypothesis


def test_no_text_is_made_while_hypothesis_shrinks(monkeypatch):
    """hypothesis raises and drops the errors of smaller examples; of the smallest it prints the error of two runs."""
    raised, made = [], []
    monkeypatch.setattr(checks, "of_run", lambda judged, **said: made.append(said) or "said")
    token = current.set(Settings(shrink_effort=1.0))

    @QUICK
    @given(st.integers(1, 40))
    def test(n):
        try:
            assert_attention(in_base_2, Case(seqlen=n, head_dim=8))
        except AttentionError:
            raised.append(n)
            raise

    try:
        with pytest.raises(AttentionError) as error:
            test()
    finally:
        current.reset(token)
    assert str(error.value) == "said" and len(raised) > 5 and 1 <= len(made) <= 2
    assert {one["effort"] for one in made} == {0.0}, "hypothesis has shrunk it"
    assert all(any("Case(seqlen=1, head_dim=8)" in line for line in one["again"]) for one in made)


def test_hypothesis_is_told_how_near_the_budget_is():
    seen = []

    @QUICK
    @given(st.integers(1, 40))
    def test(n):
        first = assert_attention(attention, Case(seqlen=n, head_dim=8, seed=n))
        assert_attention(attention, Case(seqlen=n, head_dim=8, seed=n + 1))  # the same label again
        over = max(stage.worst(1)[0].over_budget for stage in first)
        seen.append((over, current_build_context().data.target_observations))

    test()
    told = [(over, observed) for over, observed in seen if over > 0]
    assert len(told) > 5
    for over, observed in told:
        assert list(observed.values()) == [math.log2(over)]


def test_an_error_without_bound_is_told_as_a_number():
    """A NaN is infinitely far outside, which `hypothesis.target` takes for wrong usage."""

    @QUICK
    @given(st.just(4))
    def test(n):
        with pytest.raises(AttentionError):
            assert_attention(lambda q, k, v, *, scale, causal: q * np.nan, Case(seqlen=n, head_dim=8))
        assert list(current_build_context().data.target_observations.values()) == [1024.0]

    test()


@pytest.mark.campaign
def test_two_faults_are_two_failures_of_hypothesis(monkeypatch):
    """It takes failures of one type from one line for one, and would shrink the first fault into the second."""
    monkeypatch.setattr(checks, "of_run", lambda *_, **__: "said")

    def twice_wrong(q, k, v, *, scale, causal):
        long, odd = q.shape[2] >= 16, q.shape[2] % 2
        return attention(q, k, v, scale=scale, causal=causal, error=float(long), base=1 + odd * 0.5)

    @settings(QUICK, max_examples=40)
    @given(st.integers(1, 32).map(lambda n: Case(seqlen=n, head_dim=8)))
    def test(case):
        assert_attention(twice_wrong, case)

    with pytest.raises(ExceptionGroup) as raised:
        test()
    assert {error.diff.origin for error in raised.value.exceptions} == {"out", "lse"}


def test_an_example_that_nobody_can_judge_does_not_count():
    """Scores of thousands in bfloat16, of a kernel that may round them to bfloat16: no pass, and no failure."""
    large = Case(seqlen=8, head_dim=32, dtype="bfloat16", distribution="large", scale=1.0)
    with pytest.raises(AttentionError):
        assert_attention(attention, large)
    counted = []

    @settings(max_examples=20, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(st.booleans())
    def holds(is_large):
        assert_attention(attention, large if is_large else large.but(distribution="normal", scale=0.1))
        counted.append(is_large)

    holds()
    assert counted and not any(counted)


@pytest.mark.campaign
def test_the_cause_of_a_shrunk_example_is_that_of_the_one_that_shows_it_best(monkeypatch):
    """One number, to which hypothesis shrinks lse in base 2, is what many formulas make."""
    monkeypatch.setattr("workbench.judge.diff.QUICK", 1000.0)
    token = current.set(Settings(shrink_effort=0, failed={}))

    @QUICK
    @given(st.integers(1, 40))
    def test(n):
        assert_attention(in_base_2, Case(seqlen=n, head_dim=8))

    try:
        with pytest.raises(AttentionError) as raised:
            test()
    finally:
        current.reset(token)
    headline, *lines = str(raised.value).splitlines()
    small = raised.value.diff
    assert small.trace.case.seqlen_q == 1 and small["lse"].decisive.summary.size == 1
    assert headline.startswith("bug in lse, ") and "lse is in base 2" in headline
    causes = [line for line in lines if line.lstrip().startswith("cause")]
    assert len(causes) == 1 and "one of" not in causes[0]
    assert "cause: lse is in base 2, not in base e; " in causes[0] and ", in another run: " in causes[0]
    assert in_a_line(small) == headline
    (found,) = [line for line in lines if line.startswith("find the cause: ")]
    again = re.fullmatch(r"find the cause: workbench explain .*:in_base_2 --seqlen (\d+) --head-dim 8", found)
    assert int(again[1]) > 20
    (cause,) = diff(run(in_base_2, Case(seqlen=int(again[1]), head_dim=8))).explained.causes
    assert cause.text == "lse is in base 2, not in base e"


def failed_on(kernel, *cases):
    """The judgements of a kernel on failing examples, as a test of hypothesis keeps them, and the last one's own."""
    failed = {}
    for case in cases:
        examples.keep(judged := diff(run(kernel, case)), failed)
    return examples.by_the_clearest(judged, failed), failed


def scaled(q, k, v, *, scale, causal):
    return attention(q, k, v, scale=1.01 * scale, causal=causal)


def v_shifted(q, k, v, *, scale, causal):
    return attention(q, k, np.roll(v, 1, 2), scale=scale, causal=causal)


def unmasked(q, k, v, *, scale, causal):
    return attention(q, k, v, scale=scale, causal=False)


SMALL, LARGE = (Case(seqlen=n, head_dim=8, causal=True) for n in (2, 24))


@pytest.mark.campaign(but=1)
@pytest.mark.parametrize("kernel", [in_base_2, scaled, unmasked], ids=lambda one: one.__name__)
def test_the_example_that_shows_most_tells_the_cause(kernel, monkeypatch):
    monkeypatch.setattr("workbench.judge.diff.QUICK", 1000.0)
    small, failed = failed_on(kernel, SMALL, LARGE, LARGE.but(seqlen=12), SMALL)
    seen = small.explained.elsewhere
    assert seen.trace.case.seqlen_q == 24 and len(failed[kernel.__name__, small.origin]) == 3
    assert [one.text for one in small.explained.causes] == [one.text for one in seen.explained.causes] != []


def test_the_printed_command_finds_the_cause_again(request, monkeypatch):
    """On the example that shows most, not on the smallest one, which many formulas fit."""
    monkeypatch.chdir(request.config.rootpath)
    monkeypatch.setattr("workbench.judge.diff.QUICK", 1000.0)
    name = "tests/testing/test_attention.py:in_base_2"
    failed = failed_on(name, LARGE)[1]

    def local(q, k, v, *, scale, causal):
        return in_base_2(q, k, v, scale=scale, causal=causal)

    failed |= {("local", "lse"): failed_on(local, LARGE)[1]["local", "lse"]}
    token = current.set(Settings(shrink_effort=0, failed=failed))
    try:
        said, of_local = (str(failure(kernel, SMALL)).splitlines() for kernel in (in_base_2, local))
    finally:
        current.reset(token)
    assert f"repeat: workbench diff {name} --seqlen 2 --head-dim 8 --causal" in said
    assert said[-1] == f"find the cause: workbench explain {name} --seqlen 24 --head-dim 8 --causal"
    again = CliRunner().invoke(commands, said[-1].split()[4:], catch_exceptions=False)
    assert again.exit_code == 1 and "lse: lse is in base 2" in again.stdout
    line = of_local[-1].removeprefix("find the cause: ")
    assert line == "assert_attention(local, Case(seqlen=24, head_dim=8, causal=True))"
    with pytest.raises(AttentionError, match="lse is in base 2"):
        eval(line)


def test_the_next_example_tells_it_where_the_first_has_no_cause(monkeypatch):
    """The one that shows most may show two faults."""
    monkeypatch.setattr("workbench.judge.diff.QUICK", 1000.0)

    def odd(q, k, v, *, scale, causal):
        out, lse = in_base_2(q, k, v, scale=scale, causal=causal)
        return out, lse + np.float32(q.shape[2] == 24) * np.sin(np.arange(lse.size, dtype=np.float32)).reshape(
            lse.shape
        )

    small, _ = failed_on(odd, LARGE, LARGE.but(seqlen=16), SMALL)
    assert small.explained.elsewhere.trace.case.seqlen_q == 16 and "base 2" in small.explained.causes[0].text


@pytest.mark.campaign(but=1)
@pytest.mark.parametrize(
    ("kernel", "cases"),
    [
        (scaled, (LARGE, LARGE.but(distribution="constant-v"))),  # of v alike out is right
        (unmasked, (LARGE, LARGE.but(distribution="constant-v"))),
        (scaled, (LARGE, Case(seqlen_q=4, seqlen_k=30, head_dim=8, distribution="constant-v"))),
    ],
    ids=["scale", "mask", "shape"],
)
def test_one_fault_is_one_failure_whatever_is_wrong_first(kernel, cases, monkeypatch):
    monkeypatch.setattr("workbench.judge.diff.QUICK", 1000.0)
    first, second = (diff(run(kernel, case)) for case in cases)
    assert (first.origin, second.origin) == ("out", "lse")
    assert examples.groups([first, second], lambda one: one) == [[first, second]]


def test_two_faults_are_two_failures(monkeypatch):
    monkeypatch.setattr("workbench.judge.diff.QUICK", 1000.0)

    def mixed(q, k, v, *, scale, causal):
        return (v_shifted if q.shape[2] == 24 else in_base_2)(q, k, v, scale=scale, causal=causal)

    first, second = (diff(run(mixed, case)) for case in (LARGE, LARGE.but(seqlen=20)))
    assert (first.origin, second.origin) == ("out", "lse")
    assert len(examples.groups([first, second], lambda one: one)) == 2


def test_a_report_that_fails_says_so(monkeypatch):
    monkeypatch.setattr(checks, "of_run", lambda *_, **__: 1 / 0)
    error = failure(in_base_2, CASE)
    assert "a defect of the workbench itself" in str(error) and "ZeroDivisionError" in str(error)
    assert str(error) == str(error)


@pytest.mark.campaign(but=2)
@pytest.mark.parametrize("factor", [1.01, 0.99, 1.02])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_scale_that_is_slightly_off_names_its_cause(factor, dtype, monkeypatch):
    """In bfloat16 no element is outside the budget of a kernel that tells nothing."""
    monkeypatch.setattr("workbench.judge.diff.QUICK", 1000.0)

    def off(q, k, v, *, scale, causal):
        return attention(q, k, v, scale=factor * scale, causal=causal)[0].astype(q.dtype)

    judged = diff(run(off, Case(seqlen=48, head_dim=16, dtype=dtype)))
    assert judged.verdict == "bug" and (judged["out"].decisive.summary.outside == 0) == (dtype == "bfloat16")
    (told,) = re.findall(r"scores are (?:multiplied by )?([\d.]+)", in_a_line(judged))
    assert abs(float(told) - factor) < 1e-3


def test_a_message_has_the_cause_of_its_longer_search(monkeypatch):
    found = diff(run(in_base_2, CASE)).explain(0.1)
    shrunk = SimpleNamespace(explained=found)
    monkeypatch.setattr(message, "_smallest", lambda judged, effort: (shrunk, "smallest: as small"))
    token = current.set(Settings(shrink_effort=0.05))
    try:
        text = str(failure(in_base_2, CASE))
    finally:
        current.reset(token)
    assert "lse is in base 2" in text.splitlines()[0] and "\n  cause: lse is in base 2" in text
    assert text.endswith("\n\nsmallest: as small") and "no cause found" not in text
