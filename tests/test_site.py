"""What the site generates holds every public name, command, option, field and document, and refuses what is not explained."""

import ast
import re
from dataclasses import dataclass
from pathlib import Path

import click
import pytest

import workbench
from docs.generators import GENERATORS, MARK, api, commands, contracts, documents, filled
from docs.generators.markdown import escaped, table
from docs.generators.screens import shown
from workbench.case.contract import Contract
from workbench.cli.main import commands as group
from workbench.explore.laws.backward_every import GRADIENT_LAWS
from workbench.explore.laws.every import LAWS
from workbench.foreign.adapters import ADAPTERS
from workbench.operations.every import OPERATIONS

PAGES = Path(__file__).parents[1] / "docs"


def test_every_generator_is_on_one_page() -> None:
    marks = [found[1] for page in PAGES.rglob("*.md") for found in MARK.finditer(page.read_text())]
    assert sorted(marks) == sorted(GENERATORS)
    with pytest.raises(KeyError):
        filled("<!-- generated: no-such -->\n")


def test_text_is_shown_as_it_stands() -> None:
    assert escaped("f(x, *, eps) <a> `a|b`") == r"f(x, \*, eps) \<a\> `a\|b`"
    assert table(["a", "b"], []) == "" and table(["a"], [["1"]]) == "| a |\n|---|\n| 1 |\n"


def test_a_screen_shows_its_command() -> None:
    assert shown("<!-- screen: workbench diff f -->\n```\nright\n```\n") == "```\n$ workbench diff f\nright\n```\n"
    assert "<!-- screen" not in "".join(shown(page.read_text()) for page in PAGES.rglob("*.md"))


# --- Python


def test_every_public_name_has_a_section_and_every_result_is_described() -> None:
    shown = api.package("workbench") + api.package("workbench.testing")
    assert re.findall(r"^(?:\.\. auto\w+|\.\. py:data):: (.*)$", shown, re.MULTILINE) == api.exported()
    assert {"ReferenceDiff", "Explained", "Checked", "Shrunk"} <= {path.rpartition(".")[2] for path in api.returned()}
    assert not {f"workbench.{name}" for name in workbench.__all__} & api.returned()


def test_a_name_without_a_docstring_is_refused() -> None:
    @dataclass
    class Bare:
        x: int  # whose docstring is made by dataclass: Bare(x: int)

    for what in (Bare, lambda: None):
        with pytest.raises(ValueError, match="x.Bare is public and has no docstring"):
            api._section("x.Bare", what)


def test_members_that_are_picked_exist() -> None:
    for name, members in api.MEMBERS.items():
        record = getattr(workbench, name)
        found = {*dir(record), *record.__dataclass_fields__}
        assert {*members.split(", ")} <= found, name


# --- the command line


def test_every_command_and_option_is_listed() -> None:
    page = commands.commands()
    parts = {part.split("\n", 1)[0]: part for part in page.split("### workbench ")[1:]}
    leaves = dict(commands._leaves(group, ()))
    assert {*parts} == {*leaves} and "bench kernel" in parts
    for name, command in leaves.items():
        assert f"](#workbench-{name.replace(' ', '-')})" in page
        flags = [one.opts[0] for one in command.params if isinstance(one, click.Option) and not one.hidden]
        assert [flag for flag in flags if not re.search(rf"`{flag}[ ,`]", parts[name])] == [], name
    assert len(parts["explain"]) < len(parts["diff"]), "options that diff has are named, not told again"


# --- contracts and cases


def test_every_field_of_a_contract_is_listed() -> None:
    page = contracts.fields()
    declared = [name for name, one in Contract.__dataclass_fields__.items() if one.metadata]
    assert re.findall(r"^\| `(\w+)`", page, re.MULTILINE) == declared
    assert "| `operands` |" in contracts.of_references() and "`tf32`" in contracts.of_references()


def test_a_setting_that_names_no_words_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contracts, "commented", lambda record: iter([("exp_ulps", "a number"), ("operands", "a word")]))
    with pytest.raises(ValueError, match="the comment of contract field operands must name its words"):
        contracts.of_references()


def test_a_field_without_a_comment_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "bare.py"
    file.write_text(
        "class Bare:\n    #: said\n    #: above\n    x: int = 0\n    y: int = 0  #: behind\n    z: int = 0\n"
    )
    monkeypatch.setattr(contracts.inspect, "getfile", lambda record: str(file))
    found = contracts.commented(type("Bare", (), {}))
    assert [next(found), next(found)] == [("x", "said above"), ("y", "behind")]
    with pytest.raises(ValueError, match="field z of Bare has no comment"):
        next(found)


# --- laws


def test_every_law_is_listed() -> None:
    page = filled((PAGES / "how-to/laws.md").read_text())
    assert not [
        law.name for law in (*LAWS.values(), *GRADIENT_LAWS.values()) if f"| {law.name} | {law.kind} |" not in page
    ]


# --- operations


def test_every_convention_and_distribution_of_an_operation_is_listed() -> None:
    parts = filled((PAGES / "how-to/operations.md").read_text()).split("\n### ")[1:]
    assert [part.split("\n", 1)[0] for part in parts] == [*OPERATIONS]
    for part, one in zip(parts, OPERATIONS.values(), strict=True):
        assert not [name for name in (*one.inputs, *one.conventions, *one.distributions) if f"`{name}`" not in part]


# --- packages


def test_every_function_of_a_package_is_listed() -> None:
    page = filled((PAGES / "how-to/packages.md").read_text())
    assert not [target for target in ADAPTERS if f"| `{target}` | " not in page]


# --- documents

WRITER = '''
def document(x):
    """The document `workbench.thing/1`.

    - `a`, `b`: what they are, and
      more
    """
    return {"schema": "workbench.thing/1", "a": 1, "b": {"c": 2}}
'''


def test_every_document_of_the_package_is_explained() -> None:
    page = documents.documents()
    assert page.startswith("## workbench.diff/1\n") and page.count("\n## ") >= 25
    assert "| `workbench.diffs/1` | `runs` |" in documents.plurals()


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (WRITER, "the docstring of x.py:document lacks the fields c"),
        (WRITER.replace("more", "`c`") + 'OTHER = "workbench.other/1"\n', "no docstring lists .* workbench.other/1"),
        (WRITER.replace("The document", "Each of"), "no docstring lists .* workbench.thing/1"),
        (WRITER.replace("more", "`c`"), ""),
    ],
    ids=["a field that nobody explains", "a schema without a writer", "a part without a whole", "right"],
)
def test_what_is_not_explained_is_refused(source: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "_sources", lambda: iter([(Path("x.py"), ast.parse(source))]))
    if said:
        with pytest.raises(ValueError, match=said):
            documents.documents()
    else:
        assert "| `a`, `b` | what they are, and `c` |" in documents.documents()
