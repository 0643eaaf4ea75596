"""The plugin of pytest: options, the marker `attention`, the fixture `attention_check`, reports of failures, a summary.

Every run of pytest imports it where the workbench is installed. NumPy, numba, hypothesis and what judges are imported
when a test uses them.
"""

import argparse
import re
import sys
from collections.abc import Generator, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from workbench.judge.fails import FAIL_ON
from workbench.refusal import Unavailable
from workbench.testing.profiles import PROFILES
from workbench.testing.settings import Settings, current


class _Option(NamedTuple):
    """An option of the command line, --attention-<name>, and of the configuration, attention_<name>."""

    metavar: str
    help: str
    among: tuple[str, ...] = ()


OPTIONS = {
    "report": _Option("DIR", "Write the pictures and the trace of each failure to DIR/<test>/"),
    "backend": _Option("BACKEND", "Where built-in kernels run [auto]", ("auto", "emulator", "cuda")),
    "shrink_effort": _Option("N", "Effort of the search for the smallest failing case; 0: no search [0.3]"),
    "fail_on": _Option("VERDICT", "Mildest verdict that fails [evidence]", tuple(FAIL_ON)),
    "profile": _Option(
        "NAME", "Hypothesis profile, one of workbench.testing.PROFILES [Hypothesis's own]", tuple(PROFILES)
    ),
}
#: options that are gone -> what to give in their place
RETIRED = {"shrink_seconds": "attention_shrink_effort: 1 as for the command shrink, 0 for no search"}
#: keywords of the marker, those of a test alone
OF_MARKER = ("fail_on", "backend")
#: of a report's user_properties, which travel from xdist's workers
PROPERTY = "attention"
#: characters of a folder's name
LONGEST = 120

_USUAL = pytest.StashKey[Settings]()
_CHECKED = pytest.StashKey[list[float | None]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Each option twice: for the command line, and for the configuration."""
    group = parser.getgroup("attention", "attention kernels")
    for name, option in OPTIONS.items():
        said = f"{option.help}{'; one of ' + ', '.join(option.among) if option.among else ''}"
        flag, own = f"--attention-{name.replace('_', '-')}", f"attention_{name}"
        group.addoption(flag, dest=own, metavar=option.metavar, default=None, help=said)
        parser.addini(own, f"as {flag}", default="")
    for name in RETIRED:
        flag, own = f"--attention-{name.replace('_', '-')}", f"attention_{name}"
        group.addoption(flag, dest=own, default=None, help=argparse.SUPPRESS)
        parser.addini(own, argparse.SUPPRESS, default="")


def pytest_configure(config: pytest.Config) -> None:
    """Settings of this run; UsageError for a value that an option does not take."""
    words = "attention(fail_on='evidence', backend='auto'): settings of a test's checks of attention kernels"
    config.addinivalue_line("markers", words)
    for name, instead in RETIRED.items():
        if _said(config, name):
            raise pytest.UsageError(f"attention_{name} was removed; set {instead}")
    said = {name: value for name in OPTIONS if (value := _said(config, name))}
    for name, value in said.items():
        if (among := OPTIONS[name].among) and value not in among:
            raise pytest.UsageError(f"attention_{name} must be one of {', '.join(among)}; got {value!r}")
    try:
        effort = float(said.get("shrink_effort", Settings.shrink_effort))
    except ValueError:
        effort = -1.0
    if not effort >= 0:
        raise pytest.UsageError(f"attention_shrink_effort must be a number, 0 or more; got {said['shrink_effort']!r}")
    fail_on = said.get("fail_on", Settings.fail_on)
    config.stash[_USUAL] = Settings(fail_on=fail_on, backend=said.get("backend"), shrink_effort=effort)
    if (profile := said.get("profile")) is None:
        return
    if (theirs := config.getoption("--hypothesis-profile", None)) is not None:
        raise pytest.UsageError(f"--hypothesis-profile {theirs} and attention_profile {profile}: give one of them")
    from workbench.testing.profiles import load

    try:
        load(profile)
    except Unavailable as missing:
        raise pytest.UsageError(f"attention_profile: {missing}") from None


@pytest.fixture(scope="session")
def attention_check() -> Any:
    """`workbench.testing.assert_attention`. Of the session, since hypothesis refuses a fixture that is made anew for
    each test but not for each of its examples.
    """
    from workbench.testing.attention import assert_attention

    return assert_attention


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """A test runs with its own settings: those of the run, and above them those of its markers, the nearest last."""
    checked = item.stash[_CHECKED] = []
    settings = replace(item.config.stash[_USUAL], node=item.nodeid, checked=checked, failed={})
    token = current.set(replace(settings, **{name: x for name, x in _marked(item).items() if name in OF_MARKER}))
    try:
        return (yield)
    finally:
        current.reset(token)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """A marker that says what no check takes fails its test."""
    if unknown := [name for name in _marked(item) if name not in OF_MARKER]:
        pytest.fail(f"the marker attention takes {', '.join(OF_MARKER)}; got {', '.join(unknown)}", pytrace=False)


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_call() -> Generator[None, None, None]:
    """The texts of failures are made here, while pytest still captures what the kernel prints as its case is shrunk."""
    try:
        return (yield)
    except BaseException as error:
        raised = error
    for one in _errors(raised):
        str(one)
    raise _by_fault(raised)


def _by_fault(raised: BaseException) -> BaseException:
    """What a test raised, with one failure for each fault: hypothesis counts each first wrong stage of one fault."""
    errors = [*_errors(raised)]
    if not isinstance(raised, BaseExceptionGroup) or len(errors) != len(raised.exceptions):
        return raised
    from workbench.testing.examples import groups

    # the error of most wrong stages has the fullest cause
    fullest = (sorted(some, key=lambda one: -len(one.diff.origins)) for some in groups(errors, lambda one: one.diff))
    found = [first.beside(others) for first, *others in fullest]
    if len(found) == len(errors):
        return raised
    if len(found) == 1:
        return found[0]
    return ExceptionGroup(f"Hypothesis found {len(found)} distinct failures.", found).with_traceback(
        raised.__traceback__
    )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """What was checked, and what failed, goes with the report, in plain values."""
    report = yield
    checked, errors = item.stash.get(_CHECKED, []), [*_errors(call.excinfo.value if call.excinfo else None)]
    if checked or errors:
        from workbench.testing.message import in_a_line

        found = {
            "checked": len(checked),
            "nearest": max((x for x in checked if x is not None and x <= 1), default=None),
            "failures": [in_a_line(one.diff) for one in errors],
            "kept": [*_kept(errors, item, call.when)],
        }
        report.user_properties.append((PROPERTY, found))
        checked.clear()  # the next phase's are its own
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """How many were checked, how near the right ones came to their budgets, and a line for each failure."""
    reports = [one for some in terminalreporter.stats.values() for one in some if hasattr(one, "user_properties")]
    found = [(one, x) for one in reports for name, x in one.user_properties if name == PROPERTY]
    failed = [(one, x) for one, x in found if x["failures"] and one.failed]
    if not found or (config.get_verbosity() < 0 and not failed):
        return
    terminalreporter.section("attention")
    checks, tests = sum(x["checked"] for _, x in found), len({one.nodeid for one, _ in found})
    text = f"{checks} check{'s' * (checks > 1)} in {tests} test{'s' * (tests > 1)}"
    near = [(x["nearest"], one.nodeid) for one, x in found if x["nearest"] is not None]
    if near:
        largest, node = max(near)
        text += f"; closest passing check: {largest:.3g}x its budget, {node}"
    terminalreporter.write_line(text)
    for one, x in failed:
        for failure in x["failures"]:
            terminalreporter.write_line(f"{one.nodeid}: {failure}", red=True)
        for path in x["kept"]:
            terminalreporter.write_line(f"  {path}")


def _said(config: pytest.Config, name: str) -> str | None:
    """An option's value: of the command line, else of the configuration."""
    value = config.getoption(f"attention_{name}")
    return config.getini(f"attention_{name}") or None if value is None else value


def _marked(item: pytest.Item) -> dict[str, Any]:
    """What the markers of a test say; of several the nearest counts."""
    found: dict[str, Any] = {}
    for marker in item.iter_markers("attention"):
        found = {**marker.kwargs, **{str(x): x for x in marker.args}, **found}
    return found


def _errors(error: BaseException | None) -> Iterator[Any]:
    """The failed assertions among what a test raised, of which hypothesis makes a group where there are several."""
    loaded = sys.modules.get("workbench.testing.attention")
    if loaded is None:
        return
    if isinstance(error, loaded.AttentionError):
        yield error
    elif isinstance(error, BaseExceptionGroup):
        for one in error.exceptions:
            yield from _errors(one)


def _kept(errors: Sequence[Any], item: pytest.Item, phase: str) -> Iterator[str]:
    """Write the pictures and the trace of each failure of a test's phase, where that is asked for; in words, where they
    are, or why there are none. A folder of the command line is one from where that was given, one of the configuration
    from the root of the suite.
    """
    if (said := _said(item.config, "report")) is None:
        return
    from workbench.report.folder import write

    above = Path() if item.config.getoption("attention_report") is not None else item.config.rootpath
    for i, error in enumerate(errors):
        folder = above / said / (folder_name(item.nodeid, i) + ("" if phase == "call" else f"-{phase}"))
        try:
            write(error.diff, folder)
        except OSError as refused:
            yield f"no pictures: {folder}: {refused.strerror}"
        except Unavailable as missing:
            yield f"no pictures: {missing}"
        else:
            yield f"pictures and trace: {folder}/"


def folder_name(node: str, place: int = 0) -> str:
    """The name of a test's folder, of its failures but for the first with its place; two tests have two names."""
    plain = re.sub(r"::|[^\w.=-]", "-", node).strip("-")
    test, bracket, parameters = node.partition("[")
    if len(plain) > LONGEST or (bracket and not re.fullmatch(r"[\w.=-]*\]", parameters)) or "-" in test:
        import hashlib

        plain = f"{plain[:LONGEST]}-{hashlib.sha256(node.encode()).hexdigest()[:8]}"
    return plain if place == 0 else f"{plain}-{place + 1}"
