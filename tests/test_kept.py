"""A run is red where what is kept for tests is no longer what they need, and says how to mend it."""

from types import SimpleNamespace
from typing import Any

import pytest

# before pytester, which forgets what is imported while it runs
from tests import compile_first, kept, stored

pytest_plugins = ["pytester"]

GREEN = "def test_x(): pass"
SKIPPED = "import pytest\ndef test_x(): pass\n{mark}@pytest.mark.skip\ndef test_y(): pass"
UNREAD = "ERROR: no test reads b.xz of */stored; `python -m tests.stored forget FILE ...` takes them out"


class Handing:
    """Of a run whose tests are handed to other processes, the option."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionstart(self, session: pytest.Session) -> None:
        session.config.option.numprocesses = 1


def ran(pytester: pytest.Pytester, suite: str, *words: str, **options: Any) -> pytest.RunResult:
    pytester.makepyfile(suite)
    pytester.makeini("[pytest]\nmarkers = gpu\n")
    usual = ("-p", "no:cacheprovider", "-p", "tests.kept", "-p", "tests.compile_first")
    return pytester.runpytest_inprocess(*usual, *words, **options)


def said(result: pytest.RunResult) -> list[str]:
    return [line for line in result.outlines if line.startswith("ERROR: ")]


@pytest.fixture
def two_stored(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Which of two stored traces, a.xz and b.xz, were read: the first."""
    read = {"a.xz"}
    monkeypatch.setattr(stored, "manifest", lambda: {"a.xz": {}, "b.xz": {}})
    monkeypatch.setattr(stored, "READ", read)
    return read


def test_a_planned_build_that_no_longer_exists_fails_the_run(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, two_stored: set[str]
) -> None:
    two_stored.add("b.xz")
    monkeypatch.delenv(compile_first.RECORDED, raising=False)  # of `make builds`, which compiles nothing first
    found = 77, ["KeyError: 'no-such-fault'"]
    monkeypatch.setattr(compile_first, "compile_first", lambda plan, files, jobs: found)
    result = ran(pytester, GREEN, plugins=[Handing()])
    assert result.ret == pytest.ExitCode.TESTS_FAILED and result.parseoutcomes() == {"passed": 1}
    assert said(result) == [
        "ERROR: 1 of 77 planned builds no longer exist; `make builds` plans anew: KeyError: 'no-such-fault'"
    ]
    found[1].clear()
    assert ran(pytester, GREEN, plugins=[Handing()]).ret == 0


def test_a_stored_trace_that_no_test_reads_fails_a_whole_run(pytester: pytest.Pytester, two_stored: set[str]) -> None:
    result = ran(pytester, GREEN)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines([UNREAD])
    result = ran(pytester, SKIPPED.format(mark="@pytest.mark.gpu\n"))  # which read none here
    assert result.ret == pytest.ExitCode.TESTS_FAILED and len(said(result)) == 1
    two_stored.add("b.xz")
    assert ran(pytester, GREEN).ret == 0


@pytest.mark.parametrize(
    ("suite", "words", "ret"),
    [
        pytest.param(GREEN, ["-k", "test_x"], 0, id="of some tests"),
        pytest.param(GREEN, ["."], 0, id="of a folder"),
        pytest.param(SKIPPED.format(mark=""), [], 0, id="that skips one"),
        pytest.param(f"{GREEN}\ndef test_y(): assert 0", [], 1, id="that fails"),
    ],
)
def test_another_run_does_not_tell(
    pytester: pytest.Pytester, two_stored: set[str], suite: str, words: list[str], ret: int
) -> None:
    result = ran(pytester, suite, *words)
    assert result.ret == ret and said(result) == []


def test_what_workers_read_is_put_together(two_stored: set[str]) -> None:
    config: Any = SimpleNamespace(stash=pytest.Stash(), workeroutput={})
    kept.pytest_configure(config)
    kept.pytest_sessionfinish(SimpleNamespace(config=config))  # type: ignore[arg-type]
    assert config.workeroutput == {"read": ["a.xz"]}
    nodes = [SimpleNamespace(config=config, workeroutput={"read": files}) for files in (["b.xz"], ["a.xz"])]
    for node in (*nodes, SimpleNamespace(config=config)):  # the last one crashed
        kept.pytest_testnodedown(node)
    assert config.stash[kept._READ] == {"a.xz", "b.xz"}
