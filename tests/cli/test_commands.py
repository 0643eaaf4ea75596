"""A first screen of help is short; the whole one groups options, each in one section."""

import re

import click
import pytest
from click.testing import CliRunner

from campaigns import cli as campaigns
from workbench.case.fields import QUANTISED, flag
from workbench.cli.commands import CAMPAIGNS, OTHERS, SECTIONS
from workbench.cli.main import commands
from workbench.refusal import Refusal


def of(*words):
    """The command that words name."""
    command = commands
    for word in words:
        command = command.commands[word]
    return command


def help_of(*words, asked="-h", width=120):
    result = CliRunner().invoke(commands, [*words, asked], terminal_width=width)
    assert result.exit_code == 0
    return result.stdout


def sections(text):
    """Heading -> the options below it, as the help shows them."""
    found = {}
    for line in text.splitlines():
        if line.endswith(":") and not line.startswith(" "):
            listed = found.setdefault(line[:-1], [])
        elif option := re.match(r"  (-{1,2}[\w-]+)", line):
            listed.append(option[1])
    return found


GROUPED = [("diff",), ("show",), ("check",), ("bench", "kernel")]


@pytest.mark.parametrize("words", GROUPED, ids=" ".join)
def test_every_option_of_a_command_that_takes_a_case_is_in_one_section(words):
    found = sections(help_of(*words, asked="--help-all"))
    listed = [option for options in found.values() for option in options]
    known = [option for option in of(*words).params if isinstance(option, click.Option)]
    assert len(listed) == len(set(listed)) == len(known) + 2, "two more: -h, --help-all"
    if words != ("bench", "kernel"):
        assert set(found) <= {*SECTIONS}, f"no section has {found.get(OTHERS)}"
    order = [heading for heading in SECTIONS if heading in found]
    assert [*found][: len(order)] == order and len(order) >= 5


def test_options_that_belong_together_stand_together():
    found = sections(help_of("diff", asked="--help-all"))
    assert {"--seqlen", "--causal", "--dtype", "--inputs"} <= {
        *found["The case; lists make a run of every combination"]
    }
    assert {"--arrays", "--layout", "--runs"} <= {*found["A kernel of yours"]}
    assert {"--json", "--html", "-v", "--out", "--fail-on", "-h", "--help-all"} == {*found["What is printed"]}
    assert {*found["Kernels on quantised codes"]} == {flag(name) for name in QUANTISED}


OF_CASES = [name for name, command in commands.commands.items() if getattr(command, "takes_cases", False)]


@pytest.mark.parametrize("name", OF_CASES)
def test_a_first_screen_of_help_fits_a_terminal_and_says_how_many_options_there_are(name):
    text = help_of(name, width=80)
    ((heading, listed),) = sections(text).items()
    of_all = sections(help_of(name, asked="--help-all")).values()
    assert len(text.splitlines()) <= 24 and {"--seqlen", "--causal"} <= {*listed}
    assert heading == f"Options; all {sum(map(len, of_all))} with --help-all"


def test_commands_that_take_a_case_are_those():
    assert {"diff", "show", "explain", "sweep", "measure"} <= {*OF_CASES} and "doctor" not in OF_CASES


@pytest.mark.parametrize("words", [("faults",), ("doctor",)], ids=" ".join)
def test_a_command_with_few_options_has_one_list(words):
    assert [*sections(help_of(*words))] == ["Options"]


def test_arguments_are_no_options():
    assert not re.search(r"^  TARGET *$", help_of("diff"), re.MULTILINE)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("diff", "flash", "--causal", "true"), "--causal is a flag and takes no value; got 'true': leave 'true' out"),
        (
            ("check", "--causal", "False", "flash"),
            "--causal is a flag and takes no value; got 'False': leave --causal out, which is off without",
        ),
    ],
)
def test_a_flag_that_is_given_a_value_is_named(words, said):
    result = CliRunner().invoke(commands, words)
    assert result.exit_code == 2 and result.stderr.splitlines()[-1] == f"Error: {said}"


@pytest.mark.parametrize("name", CAMPAIGNS)
def test_a_command_that_is_a_campaign_now_says_so(name):
    assert name in campaigns.commands.commands
    result = CliRunner().invoke(commands, ["bench", name, "--jobs", "2"])
    assert isinstance(result.exception, Refusal) and str(result.exception) == (
        f"{name} is a campaign, which is not installed with workbench: in a checkout of its repository, run "
        f"python -m campaigns {name} --jobs 2"
    )


def test_score_is_one_and_faults_are_listed_still():
    result = CliRunner().invoke(commands, ["score", "--help"])
    assert isinstance(result.exception, Refusal) and str(result.exception).endswith("python -m campaigns score --help")
    assert CliRunner().invoke(commands, ["faults"]).exit_code == 0
