"""What a user's type checker sees: each public name, options by name, and types of what is returned."""

import ast
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import get_type_hints

import pytest

import workbench
import workbench.testing
from workbench.case.given import RunOptions, SweepOptions
from workbench.case.options import AT_REST, ROLES, Options
from workbench.explore.sweep.plan import TAKEN

ROOT = Path(__file__).parent.parent
USER = ROOT / "examples" / "typed.py"


def checked(file: Path, cache: Path) -> str:
    """What `mypy --strict` says of a file, without the project's settings; as of an installed package, nothing is said
    of the workbench itself.
    """
    words = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--follow-imports=silent",
        "--config-file=",
        "--no-error-summary",
    ]
    done = subprocess.run(
        [*words, f"--cache-dir={cache}", str(file)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return done.stdout + done.stderr


def test_the_file_of_a_user_has_every_public_name() -> None:
    found = {
        (node.value.id, node.attr)
        for node in ast.walk(ast.parse(USER.read_text()))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
    }
    names = {("wb", name) for name in [*workbench.__all__, "__version__"]}
    names |= {("wt", name) for name in workbench.testing.__all__}
    assert names - found == set()


@pytest.mark.campaign
def test_mypy_takes_the_file_of_a_user_and_finds_its_mistakes(tmp_path: Path) -> None:
    assert checked(USER, tmp_path / "cache") == ""
    wrong = tmp_path / "wrong.py"
    wrong.write_text(
        "from workbench import Case, diff, run\n"
        "run('flash', Case(seqlen=16), fautls=['a'])\n"
        "run('flash', Case(seqlen='16'))\n"
        "number: float = diff(run('flash')).verdict\n"
    )
    lines = checked(wrong, tmp_path / "cache").splitlines()
    assert [line.split(":")[1] for line in lines if ": error:" in line] == ["2", "3", "4"]


def test_the_options_that_checkers_see_are_those_of_a_run() -> None:
    declared = get_type_hints(Options)
    shown = {one.name: declared[one.name] for one in fields(Options) if ROLES[one.name] != AT_REST}
    assert get_type_hints(RunOptions) == shown
    assert [*SweepOptions.__annotations__] == [*TAKEN]


def test_the_version_is_that_of_the_installation() -> None:
    from importlib.metadata import version

    assert workbench.__version__ == version("attention-workbench")
