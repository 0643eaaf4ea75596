"""Every command that a report or a message suggests is one that runs: one of each kind does here."""

import ast
import importlib
import re
import shlex
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from tests.suggesting import KERNELS, MINE, SCENES, SMALL
from tests.test_layout import SOURCES, parse
from workbench import suggested
from workbench.case.spellings import REMOVED, RETIRED
from workbench.cli.main import commands

#: functions that make a command of the verb that they are given, in their place the verbs that they are called with
WRAPPERS = {"run_command": "run_command", "diff_command": "run_command", "operation_command": "operation_command"}


@cache
def calls() -> list[tuple[str, str, ast.Call]]:
    """Where the package calls `command`, and what makes one: module, function, and the call."""
    found = []
    for module, path in SOURCES.items():
        if not any(f"{name}(" in path.read_text() for name in ("command", *WRAPPERS)):
            continue
        scopes = [node for node in ast.walk(parse(module)) if isinstance(node, ast.FunctionDef)]
        for node in ast.walk(parse(module)):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id in ("command", *WRAPPERS)
            ):
                within = [scope for scope in scopes if scope.lineno <= node.lineno <= (scope.end_lineno or 0)]
                inner = max(within, key=lambda scope: scope.lineno).name if within else "<module>"
                found.append((module, inner, node))
    return found


def name_of(call: ast.Call) -> str:
    """The function that is called."""
    assert isinstance(call.func, ast.Name)
    return call.func.id


def verb_of(call: ast.Call) -> str | None:
    """The verb that a call names; None where it has it from its caller."""
    texts = [x.value for x in call.args if isinstance(x, ast.Constant) and isinstance(x.value, str)]
    return next((text for text in texts if text in commands.commands), None)


def kinds() -> dict[str, list[ast.Call]]:
    """Every kind of a command that is suggested, `module.function verb`, and the calls that make it."""
    found: dict[str, list[ast.Call]] = {}
    makers = {inner: f"{module}.{inner}" for module, inner, call in calls() if name_of(call) == "command"}
    for module, inner, call in calls():
        name = name_of(call)
        where = f"{module}.{inner}" if name == "command" else makers[WRAPPERS[name]]
        asked = any(isinstance(x, ast.Name) and x.id == "verb" for x in call.args)
        verb = verb_of(call) or ("diff" if name == "diff_command" and not asked else None)
        if verb is not None:
            found.setdefault(f"{where} {verb}", []).append(call)
    return found


def constant(some: list[ast.Call]) -> bool:
    """Whether a kind is the same words wherever it is suggested."""
    return all(isinstance(x, ast.Constant) for call in some for x in call.args) and not any(x.keywords for x in some)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[tuple[str, str]]:
    """The kind and the line of each command that is suggested from now on, in a folder with the kernels."""
    for module in {module for module, _, call in calls() if name_of(call) == "command"}:
        importlib.import_module(module)
    found: list[tuple[str, str]] = []
    original = suggested.command

    def recorded(verb: str, *more: Any) -> str:
        frame, line = sys._getframe(1), original(verb, *more)
        found.append((f"{frame.f_globals['__name__']}.{frame.f_code.co_name} {verb}", line))
        return line

    for module in [*sys.modules.values()]:
        if getattr(module, "command", None) is original:
            monkeypatch.setattr(module, "command", recorded)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("workbench.judge.against.calls.CAUSE_S", 0.1, raising=False)
    Path(MINE).write_text(KERNELS)
    return found


def check_runs(line: str) -> None:
    """What a user sees who runs it: a verdict, no refusal."""
    program, verb, *words = shlex.split(line)
    words = [{"TARGET": f"{MINE}:right", "FILE.py:FUNCTION": f"{MINE}:right"}.get(word, word) for word in words]
    words += ["--seconds", "0.1"] if verb == "explain" else []
    words += SMALL if verb == "contract" and words and "--seqlen" not in words else []
    shown = CliRunner().invoke(commands, [verb, *words])
    assert program == "workbench"
    assert shown.exit_code in (0, 1) and isinstance(shown.exception, SystemExit | None), (
        f"{line}\n{shown.output}\n{shown.exception}"
    )


@pytest.mark.parametrize("name", [pytest.param(name, marks=scene.marks) for name, scene in SCENES.items()])
def test_what_is_suggested_runs(
    name: str, made: list[tuple[str, str]], without_causes: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = SCENES[name]
    monkeypatch.setattr("workbench.work.SEARCH", 200.0)  # whether the command runs, not what it finds
    if scene.torch:
        pytest.importorskip("torch", reason="torch is not installed")
    scene.say()
    lines = dict.fromkeys(line for _, line in made)
    assert {*scene.kinds} <= {kind for kind, _ in made}
    for line in lines:
        check_runs(line)


def test_every_kind_is_run() -> None:
    told = {kind for scene in SCENES.values() for kind in scene.kinds}
    same = {kind for kind, some in kinds().items() if constant(some)}
    assert len(kinds()) > 20 and {*kinds()} == told | same and not told & same


def test_what_is_the_same_everywhere_runs() -> None:
    lines = {
        suggested.command(*(x.value for x in call.args)) for some in kinds().values() if constant(some) for call in some
    }
    assert lines == {
        "workbench contract",
        "workbench faults",
        "workbench kernels",
        "workbench doctor",
        "workbench calibrate",
    }
    for line in lines - {"workbench calibrate"}:  # which measures for minutes
        check_runs(line)
    with commands.commands["calibrate"].make_context("calibrate", []):
        pass


def texts() -> Iterator[tuple[str, str]]:
    """Module and text of every string of the package that is no docstring."""
    for module in SOURCES:
        tree = parse(module)
        documented = (ast.Module, ast.ClassDef, ast.FunctionDef)
        first = [node.body[0] for node in ast.walk(tree) if isinstance(node, documented) and node.body]
        told = {id(node.value) for node in first if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in told:
                yield module, node.value


def leaves(group: click.Command) -> Iterator[click.Command]:
    for one in group.commands.values() if isinstance(group, click.Group) else ():
        yield from leaves(one) if isinstance(one, click.Group) else [one]


def test_no_other_text_names_a_command() -> None:
    """All go through `suggested.command`, so that they are seen here."""
    named = re.compile(rf"\bworkbench (?:{'|'.join(commands.commands)})\b")
    found = {module for module, text in texts() if named.search(text)}
    assert found == {"workbench.report.acceptance", "workbench.report.compared"}, "names of suites in JUnit"


def test_every_option_that_a_text_names_is_one() -> None:
    known = {
        one
        for leaf in leaves(commands)
        for param in leaf.params
        if isinstance(param, click.Option)
        for one in param.opts
    }
    known |= {"--help", "--help-all"}
    of_others = {"workbench.foreign.sanitizer", "workbench.foreign.extension", "workbench.testing.plugin"}
    unknown = [
        (module, flag)
        for module, text in texts()
        for flag in re.findall(r"(?<![\w-])--[a-z][a-z-]*[a-z]", text)
        if flag not in known and module not in of_others and "pip install" not in text
    ]
    removed = {name.split()[-1] for name in REMOVED}
    assert {flag for _, flag in unknown} <= {*RETIRED, *removed} and {module for module, _ in unknown} == {
        "workbench.case.spellings"
    }
