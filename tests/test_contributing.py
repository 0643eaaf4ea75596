"""CONTRIBUTING.md names files, links and targets that exist; the issue forms ask for what repeats a report."""

import re
from pathlib import Path

import pytest

from tests.test_readme import headings
from workbench.cli.main import commands

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "CONTRIBUTING.md"
TEXT = PAGE.read_text()
FORMS = ROOT / ".github" / "ISSUE_TEMPLATE"


def test_its_files_exist() -> None:
    paths = set(re.findall(r"`((?:workbench|campaigns|tests)/[\w/]+(?:\.py|\.txt|/))`", TEXT))
    assert len(paths) > 30
    assert [path for path in sorted(paths) if not (ROOT / path).exists() and "NAME" not in path] == []


def test_its_links_lead_somewhere() -> None:
    for file, _, heading in (link.partition("#") for link in re.findall(r"\]\(([^)]+)\)", TEXT)):
        led = ROOT / file
        assert led.exists() and (not heading or heading in headings(led)), f"{file}#{heading}"


def test_the_targets_of_make_that_it_names_exist() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"\bmake ([a-z]+)", TEXT))
    assert named >= {"demo", "test", "lint"} and named <= targets


def test_it_is_short_and_says_that_there_is_no_licence() -> None:
    assert len(TEXT.splitlines()) <= 90
    assert "There is no licence yet" in TEXT and not list(ROOT.glob("LICEN[CS]E*"))


@pytest.mark.parametrize("name", ["wrong-verdict.yml", "bug.yml"])
def test_a_form_asks_for_what_repeats_a_report(name: str) -> None:
    form = (FORMS / name).read_text()
    assert "`workbench doctor`" in form and "doctor" in commands.commands
    assert "repeat: workbench diff" in form
    ids = re.findall(r"^    id: (\w+)$", form, re.MULTILINE)
    assert len(ids) == len(set(ids)) == form.count("required: true")
