"""The plugin: settings of a run and of a test, what a failed test leaves, the summary, alone and under xdist."""

import subprocess
import sys
from functools import partial
from importlib.metadata import entry_points

import numpy as np
import pytest
from hypothesis import settings

# before pytester, which forgets what is imported while it runs
import workbench.report.folder
import workbench.testing.arrays
import workbench.testing.attention  # noqa: F401
from workbench import Case
from workbench.testing import AttentionError, assert_attention, plugin
from workbench.testing.plugin import LONGEST, OPTIONS, folder_name
from workbench.testing.settings import Settings, current
from workbench.trace.file import load

pytest_plugins = ["pytester"]

#: the name of the plugin: of its entry point, where the installation has it
PLUGIN = "attention" if entry_points(group="pytest11", name="attention") else "workbench.testing.plugin"
#: with it, and of the other plugins that may be installed with those alone that the tests need
PLUGINS = [word for name in (PLUGIN, "hypothesispytest", "xdist") for word in ("-p", name)]
SUITE = """
import numpy as np
import pytest
from workbench import Case
from workbench.testing import AttentionError, assert_attention, assert_attention_close

CASE = Case(seqlen=6, head_dim=8)


def right(q, k, v, *, scale, causal, base=1.0, error=0.0):
    print("called")
    scores = q.astype(np.float64) @ np.swapaxes(k, -1, -2) * scale
    row_max = scores.max(-1, keepdims=True)
    probs = np.exp(scores - row_max)
    row_sum = probs.sum(-1, keepdims=True)
    out = probs @ v / row_sum * (1 + error)
    return out.astype(np.float32), ((row_max + np.log(row_sum)) * base)[..., 0].astype(np.float32)


def wrong(q, k, v, *, scale, causal):
    return right(q, k, v, scale=scale, causal=causal, base=1.25)


def slightly_off(q, k, v, *, scale, causal):
    return right(q, k, v, scale=scale, causal=causal, error=5e-6)


def test_right(attention_check):
    for seed in range(3):
        attention_check(right, CASE.but(seed=seed))

"""
WRONG = """
def test_wrong():
    assert_attention(right, CASE)
    assert_attention(wrong, CASE)

"""
SUSPICIOUS = """
def test_suspicious():
    assert_attention(slightly_off, CASE)

"""


@pytest.fixture(autouse=True)
def as_before(monkeypatch):
    """Without a search for causes, of which each takes a second; and with the profile of hypothesis that was loaded."""
    monkeypatch.setattr("workbench.judge.diff.QUICK", 0.0)
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    before = settings.get_current_profile_name()
    yield
    settings.load_profile(before)


def ran(pytester, suite, *words, ini=""):
    """A run of pytest on a suite, without a search for the smallest case."""
    pytester.makepyfile(suite)
    if ini:
        pytester.makeini(f"[pytest]\n{ini}")
    search = [] if any("shrink" in word for word in (*words, ini)) else ["--attention-shrink-effort=0"]
    # warnings are those of a user's suite, which ours would take for errors
    usual = ("-p", "no:cacheprovider", "--strict-markers", "-W", "default::UserWarning")
    return pytester.runpytest_inprocess(*PLUGINS, *usual, *search, *words)


def sections(result):
    return [line for line in result.outlines if line.startswith("====") and " attention " in line]


# --- who does not use it


def test_a_run_without_checks_shows_nothing(pytester):
    result = ran(pytester, "def test_x(): pass")
    result.assert_outcomes(passed=1)
    assert "attention" not in "\n".join(result.outlines[4:])  # below the header, which lists plugins


def test_importing_it_is_light():
    heavy = "{'numpy', 'numba', 'torch', 'hypothesis', 'matplotlib', 'rich', 'click'} & {*sys.modules} - before"
    code = (
        f"import sys, pytest; before = {{*sys.modules}}; import workbench.testing.plugin; print('loaded', *({heavy}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "loaded"


# --- the summary


def test_a_summary_counts_checks_and_names_failures(pytester):
    result = ran(pytester, SUITE + WRONG)
    result.assert_outcomes(passed=1, failed=1)
    file = "test_a_summary_counts_checks_and_names_failures.py"
    result.stdout.re_match_lines(
        [
            r"=+ attention =+",
            rf"5 checks in 2 tests; closest passing check: 0\.\d+x its budget, {file}::test_\w+",
            rf"{file}::test_wrong: bug in lse, .*x its budget.* \({file}:wrong\)",
            r"=+ short test summary info =+",
        ],
        consecutive=True,
    )
    result.stdout.re_match_lines([r"E +workbench\.testing\.AttentionError: bug in lse, .*", r"E +stage +verdict .*"])
    result.stdout.no_re_match_line(r".*workbench.testing.attention\.py.*")  # frames of ours are no news


@pytest.mark.campaign
def test_what_passes_is_summed_up_unless_pytest_is_to_be_quiet(pytester):
    assert len(sections(ran(pytester, SUITE))) == 1
    assert sections(ran(pytester, SUITE, "-q")) == []
    assert len(sections(ran(pytester, SUITE + WRONG, "-q"))) == 1


def test_a_failure_that_a_test_expects_is_none(pytester):
    result = ran(
        pytester,
        SUITE + "def test_x():\n    with pytest.raises(AttentionError):\n        assert_attention(wrong, CASE)\n",
    )
    result.assert_outcomes(passed=2)
    result.stdout.re_match_lines([r"4 checks in 2 tests; .*"])
    result.stdout.no_re_match_line(".*bug in lse.*")


def test_a_failure_in_a_fixture_is_named_too(pytester):
    result = ran(
        pytester, SUITE + "@pytest.fixture\ndef made():\n    assert_attention(wrong, CASE)\n\ndef test_x(made): pass\n"
    )
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.re_match_lines([r"4 checks in 2 tests; .*", r".*::test_x: bug in lse, .*"])


def test_a_failure_that_is_expected_to_stay_is_none(pytester):
    result = ran(pytester, SUITE + "@pytest.mark.xfail(strict=True)" + WRONG)
    result.assert_outcomes(passed=1, xfailed=1)
    result.stdout.no_re_match_line(".*bug in lse.*")


@pytest.mark.campaign
def test_workers_of_xdist_tell_theirs(pytester):
    pytester.makepyfile(SUITE + SUSPICIOUS)
    result = pytester.runpytest_subprocess(
        *(*PLUGINS, "-p", "no:cacheprovider", "-n", "1", "--attention-fail-on=suspicious")
    )
    result.assert_outcomes(passed=1, failed=1)
    file = "test_workers_of_xdist_tell_theirs.py"
    nearest = r"4 checks in 2 tests; closest passing check: 0\.\d+x its budget, .*"
    result.stdout.re_match_lines([nearest, rf"{file}::test_suspicious: suspicious in out, .*"], consecutive=True)
    assert len(sections(result)) == 1


# --- settings


@pytest.mark.campaign(but=1)
@pytest.mark.parametrize(
    ("words", "ini", "failed"),
    [
        ((), "", 0),
        (("--attention-fail-on=suspicious",), "", 1),
        ((), "attention_fail_on = suspicious", 1),
        (("--attention-fail-on=bug",), "attention_fail_on = suspicious", 0),
    ],
)
def test_the_command_line_says_it_above_the_configuration(pytester, words, ini, failed):
    ran(pytester, SUITE + SUSPICIOUS, *words, ini=ini).assert_outcomes(passed=2 - failed, failed=failed)


@pytest.mark.campaign
def test_a_marker_says_it_above_both_and_the_nearest_marker_above_others(pytester):
    suite = "pytestmark = pytest.mark.attention(fail_on='suspicious')\n" + SUSPICIOUS
    suite += "@pytest.mark.attention(fail_on='bug')" + SUSPICIOUS.replace("test_suspicious", "test_let_pass")
    result = ran(pytester, SUITE + suite, "--attention-fail-on=bug")
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.re_match_lines([r".*::test_suspicious: suspicious in out, .*"])
    result.stdout.re_match_lines([r".*AttentionWarning: suspicious in out, .* within budget only with .*"])


def test_a_backend_is_said_like_a_verdict(pytester):
    suite = "from workbench.testing.settings import current\n"
    suite += "def test_option():\n    assert current.get().backend == 'cuda'\n"
    suite += "@pytest.mark.attention(backend='emulator')\ndef test_marker():\n    assert current.get().backend == 'emulator'\n"
    ran(pytester, SUITE + suite, ini="attention_backend = cuda").assert_outcomes(passed=3)


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("fail-on=rounding", "attention_fail_on must be one of bug, biased, evidence, suspicious; got 'rounding'"),
        ("backend=gpu", "attention_backend must be one of auto, emulator, cuda; got 'gpu'"),
        ("shrink-effort=-1", "attention_shrink_effort must be a number, 0 or more; got '-1'"),
        ("shrink-effort=nan", "attention_shrink_effort must be a number, 0 or more; got 'nan'"),
        (
            "shrink-seconds=10",
            "attention_shrink_seconds was removed; set attention_shrink_effort: 1 as for the command shrink, 0 for "
            "no search",
        ),
        ("shrink-effort=x", "attention_shrink_effort must be a number, 0 or more; got 'x'"),
        ("profile=fast", "attention_profile must be one of dev, ci, nightly, gpu; got 'fast'"),
    ],
)
def test_what_an_option_does_not_take_ends_the_run(pytester, word, said):
    result = ran(pytester, SUITE, f"--attention-{word}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert f"ERROR: {said}" in result.errlines


def test_a_keyword_that_the_marker_lacks_fails_its_test(pytester):
    result = ran(pytester, SUITE + "@pytest.mark.attention('bug', seconds=3)\ndef test_x(): pass\n")
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.re_match_lines([r"the marker attention takes fail_on, backend; got (seconds, bug|bug, seconds)"])


def test_options_and_marker_are_listed(pytester):
    result = ran(pytester, SUITE, "--help")
    for name in OPTIONS:
        result.stdout.re_match_lines([rf"  --attention-{name.replace('_', '-')}=.*"])
    ran(pytester, SUITE, "--markers").stdout.re_match_lines(
        [r"@pytest.mark.attention\(fail_on='evidence', backend='auto'\): .*"]
    )


# --- what a failure leaves


@pytest.mark.campaign
def test_pictures_and_trace_of_each_failure_lie_in_its_folder(pytester):
    made = "@pytest.fixture\ndef made():\n    yield\n    assert_attention(wrong, CASE.but(seqlen=4))\n"
    test = "@pytest.mark.parametrize('n', [5, 6])\ndef test_n(n, made):\n    assert_attention([right, wrong][n % 2], CASE.but(seqlen=n))\n"
    result = ran(pytester, SUITE + made + test, "-k", "test_n and 5", ini="attention_report = kept")
    result.assert_outcomes(failed=1, errors=1)
    kept = pytester.path / "kept"
    name = "test_pictures_and_trace_of_each_failure_lie_in_its_folder.py-test_n-5"
    assert {path.name for path in kept.iterdir()} == {name, f"{name}-teardown"}
    assert load(kept / name / "trace.safetensors").case.seqlen_q == 5
    assert load(kept / f"{name}-teardown" / "trace.safetensors").case.seqlen_q == 4
    assert (kept / name / "overview.png").stat().st_size > 0
    assert f"  pictures and trace: {kept / name}/" in result.outlines


def test_a_folder_that_cannot_be_made_does_not_hide_the_failure(pytester):
    pytester.path.joinpath("kept").touch()
    result = ran(pytester, SUITE + WRONG, "--attention-report=kept")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.re_match_lines([r".*::test_wrong: bug in lse, .*", r"  no pictures: kept/.*: .+"])


def test_two_tests_have_two_folders():
    nodes = ["a.py::test", "b/a.py::test", "a.py::test[1/2]", "a.py::test[1-2]", "a.py::test[1 2]", "a-py::test"]
    nodes += [
        "a.py::TestA::test",
        f"a.py::test[{'x' * 200}1]",
        f"a.py::test[{'x' * 200}2]",
        "a.py::test[é]",
        "b-a.py::test",
    ]
    names = [folder_name(node) for node in nodes] + [folder_name(nodes[0], 1)]
    assert len({*names}) == len(nodes) + 1
    assert all(0 < len(name) <= LONGEST + 9 and "/" not in name for name in names)
    assert names[:2] == ["a.py-test", "b-a.py-test"]


@pytest.mark.campaign
def test_what_a_kernel_prints_while_its_case_is_shrunk_is_captured(pytester):
    result = ran(pytester, SUITE + WRONG, "--attention-shrink-effort=0.05")
    result.assert_outcomes(passed=1, failed=1)
    lines = result.outlines
    captured = next(i for i, line in enumerate(lines) if "Captured stdout call" in line)
    # 2 are of the test; how many of the search there is time for depends on the machine
    assert lines.count("called") > 2 and lines.index("called") > captured
    result.stdout.re_match_lines([r"E +smallest: .*"])


# --- hypothesis


def failed_on(kernel, case):
    with pytest.raises(AttentionError) as raised:
        assert_attention(kernel, case)
    return raised.value


def scaled(q, k, v, *, scale, causal, base=1.0):
    scores = q.astype(np.float64) @ np.swapaxes(k, -1, -2) * scale * 1.25
    row_max = scores.max(-1, keepdims=True)
    probs = np.exp(scores - row_max)
    row_sum = probs.sum(-1, keepdims=True)
    lse = (row_max + np.log(row_sum))[..., 0] * (1 + (base - 1) * (q.shape[2] == 20))
    return (probs @ v / row_sum).astype(np.float32), lse.astype(np.float32)


def test_two_failures_of_hypothesis_are_one_where_one_fault_makes_both(monkeypatch):
    monkeypatch.setattr("workbench.judge.diff.QUICK", 1000.0)
    token = current.set(Settings(shrink_effort=0))
    try:
        cases = [Case(seqlen=20, head_dim=8, distribution="constant-v"), Case(seqlen=24, head_dim=8)]
        errors = [failed_on(scaled, case) for case in cases]
        assert [one.diff.origin for one in errors] == ["lse", "out"]
        found = plugin._by_fault(ExceptionGroup("Hypothesis found 2 distinct failures.", errors))
        assert found is errors[1]  # in which more is wrong
        assert "the same fault: bug in lse, " in str(found) and "scores are multiplied by 1.25" in str(found)
        other = failed_on(partial(scaled, base=1.5), cases[0])
        group = ExceptionGroup("Hypothesis found 2 distinct failures.", [other, errors[1]])
        assert plugin._by_fault(group) is group
        three = plugin._by_fault(ExceptionGroup("Hypothesis found 3 distinct failures.", [*errors, other]))
        assert (three.message, len(three.exceptions)) == ("Hypothesis found 2 distinct failures.", 2)
        assert plugin._by_fault(other) is other
        mixed = ExceptionGroup("mixed", [*errors, ValueError()])
        assert plugin._by_fault(mixed) is mixed
    finally:
        current.reset(token)


PROPERTY = """
from hypothesis import given, settings, strategies as st

@given(st.integers(1, 8))
def test_property(attention_check, n):
    attention_check(right, CASE.but(seqlen=n))
    assert settings.default.max_examples == {examples} and settings.get_current_profile_name() == "{profile}"
"""


def test_a_profile_is_loaded_where_one_is_named_and_the_fixture_serves_all_examples(pytester):
    suite = SUITE + PROPERTY.format(examples=20, profile="attention-gpu")
    ran(pytester, suite, "--attention-profile=gpu").assert_outcomes(passed=2)


def test_without_one_hypothesis_is_as_it_was(pytester):
    settings.register_profile("of-a-user", max_examples=7, deadline=None, database=None)
    suite = SUITE + "from hypothesis import settings\nsettings.load_profile('of-a-user')\n"
    ran(pytester, suite + PROPERTY.format(examples=7, profile="of-a-user")).assert_outcomes(passed=2)


def test_two_profiles_are_refused(pytester):
    result = ran(pytester, SUITE, "--attention-profile=dev", "--hypothesis-profile=default")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "ERROR: --hypothesis-profile default and attention_profile dev: give one of them" in result.errlines
