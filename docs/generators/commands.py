"""The reference of the command line: what click knows of each command."""

import inspect
import re
from collections.abc import Iterator

import click

from docs.generators.markdown import code, escaped, table
from workbench.case.spellings import EXAMPLES, flag
from workbench.cli.commands import OTHERS, SECTIONS, Command
from workbench.cli.exits import MEANINGS
from workbench.cli.main import GROUP
from workbench.cli.main import commands as group
from workbench.cli.spec import Spec, Text

#: the command whose options others share; they refer to it
FULL = "diff"


def commands() -> str:
    """A table of all commands, then a section for each: its usage, help and options."""
    found = dict(sorted(_leaves(group, ()), key=lambda leaf: leaf[0] != FULL))
    rows = [[f"[`{name}`](#workbench-{name.replace(' ', '-')})", escaped(_first(one))] for name, one in found.items()]
    return "\n".join([table(["command", "what it does"], rows), *(_section(name, one) for name, one in found.items())])


def exit_codes() -> str:
    """What each exit code means."""
    return table(["exit code", "meaning"], [[str(status), escaped(said)] for status, said in MEANINGS.items()])


def _leaves(command: click.Command, path: tuple[str, ...]) -> Iterator[tuple[str, click.Command]]:
    if not isinstance(command, click.Group):
        yield " ".join(path), command
        return
    for name, one in command.commands.items():
        yield from _leaves(one, (*path, name))


def _first(command: click.Command) -> str:
    """The first sentence of a command's help."""
    return re.split(r"(?<=\.)\s", inspect.cleandoc(command.help or ""))[0].rstrip(".").replace("\n", " ")


def _section(name: str, command: click.Command) -> str:
    context = click.Context(command, info_name=f"workbench {name}", **GROUP)
    usage = " ".join([context.info_name or "", *command.collect_usage_pieces(context)])
    lines = [f"### workbench {name}", "", "```text", usage, "```", "", _help(command), ""]
    shared = set() if name == FULL else {_told(option, context) for option in _options(group.commands[FULL])}
    for heading, options in _by_section(command).items():
        own = [option for option in options if _told(option, context) not in shared]
        same = [code(option.opts[0]) for option in options if option not in own]
        rows = [row for option in own for row in _rows(option, context)]
        lines += [f"**{heading}**", "", table(["option", "meaning"], rows)] if rows or same else []
        lines += [f"As of [{FULL}](#workbench-{FULL}): {', '.join(same)}.", ""] if same else []
    return "\n".join(lines)


def _help(command: click.Command) -> str:
    """The help as Markdown; a paragraph that click does not wrap keeps its lines."""
    parts = inspect.cleandoc(command.help or "").split("\n\n")
    return "\n\n".join(
        f"```text\n{part.removeprefix(chr(8)).strip()}\n```" if part.startswith("\b") else escaped(part)
        for part in parts
    )


def _options(command: click.Command) -> list[click.Option]:
    # with the settings of the group: a command keeps the names of its help option from the first time that it is asked
    return [one for one in command.get_params(click.Context(command, **GROUP)) if isinstance(one, click.Option)]


def _by_section(command: click.Command) -> dict[str, list[click.Option]]:
    """Heading -> options, as --help-all lists them."""
    found: dict[str, list[click.Option]] = {heading: [] for heading in (*SECTIONS, OTHERS)}
    topics = isinstance(command, Command) and command.takes_cases
    for option in _options(command):
        name = "help" if "--help" in option.opts else option.name
        found[next((one for one, names in SECTIONS.items() if topics and name in names), OTHERS)].append(option)
    return found


def _told(option: click.Option, context: click.Context) -> tuple[object, ...]:
    """What the help says of an option."""
    return option.name, option.get_help_record(context), tuple(_below(option))


def _below(option: click.Option) -> list[tuple[str, str]]:
    return option.type.rows if isinstance(option.type, Spec | Text) else []


def _rows(option: click.Option, context: click.Context) -> Iterator[list[str]]:
    """The option, and a row for each word of its values; none of an option that help hides."""
    record = option.get_help_record(context)
    if record is None:
        return
    example = (
        f"; such as {code(f'{flag(option.name)} {EXAMPLES[option.name]}')}"
        if isinstance(option.type, Spec) and option.name in EXAMPLES
        else ""
    )
    yield [code(record[0]), escaped(record[1]) + example]
    for said, meaning in _below(option):
        yield [f"&nbsp;&nbsp;{code(said.strip())}", escaped(meaning)]
