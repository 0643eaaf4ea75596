"""Commands whose help says which options belong together."""

import inspect
import re
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise

import click

from workbench.case import options
from workbench.case.fields import DRAWN, LAID, PROBLEM, TILES, of_role
from workbench.case.spellings import REMOVED, RETIRED, TRUTHS
from workbench.cli.captured import IN_PYTHON
from workbench.cli.spec import SAID, Spec, Text
from workbench.refusal import Refusal

#: heading in the help -> parameters below it, by name; what stands nowhere comes last, under its own heading
SECTIONS: Mapping[str, Sequence[str]] = {
    "Case (lists run every combination)": (
        "seqlen", *of_role(PROBLEM, LAID, DRAWN), "codes", "inputs",
    ),
    "Built-in kernels": ("faults", "backend", "probes", *of_role(TILES), "schedules"),
    "Your kernel": (*options.of_role(options.FOREIGN), "values", "mapping"),
    "Part of a run": ("where", "by_head", "feed"),
    "Further runs": ("against", "measure"),
    "Other operations": ("operation", "references", "axes", "gradients"),
    "Many cases": (
        "random", "case_timeout", "case_memory_gb", "disk_gb", "jobs", "scheduler", "resume",
    ),
    "Output": (
        "verbose", "effort", "seconds", "as_json", "html", "out", "fail_on", "worst", "expected", "help", "help_all",
    ),
}  # fmt: skip
OTHERS = "Options"
#: what a first screen of help lists, which fits a terminal of 24 lines; --help-all lists every section
FIRST = (
    "seqlen", "dtype", "causal", "inputs", "faults", "arrays", "contract", "against", "operation", "references",
    "random", "effort", "worst", "verbose", "html", "out",
)  # fmt: skip
#: commands that this package had; they run from a checkout of its repository
CAMPAIGNS = (
    "assertions",
    "diff",
    "emulator",
    "faults",
    "features",
    "fp8",
    "merges",
    "probes",
    "sanitizer",
    "score",
    "shrink",
    "steps",
    "verdicts",
)


def _help_all(ctx: click.Context, param: click.Parameter, asked: bool) -> None:
    """Print the whole help, and end."""
    if asked and not ctx.resilient_parsing:
        ctx.meta[_help_all.__name__] = True
        click.echo(ctx.get_help(), color=ctx.color)
        ctx.exit()


def _may_be_target(word: str) -> bool:
    """Whether a word is no value of an option that somebody mistyped."""
    from workbench.foreign.target import known

    return not re.fullmatch(r"\w[\w.-]*", word) or known(word) is not None


def _refuse_removed(said: str) -> None:
    """Refusal for a command, or an option of one, that there was: what to do instead."""
    if said in REMOVED:
        raise Refusal(f"workbench {said} was removed: {REMOVED[said]}")


class Command(click.Command):
    """A command whose help lists its most used options, where it takes a case; --help-all lists all, by section."""

    @property
    def takes_cases(self) -> bool:
        """Whether it has the options of a case, which are many."""
        return any(param.name == "seqlen" for param in self.params)

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """As click has it, with --help-all."""
        found = super().get_params(ctx)
        if not self.takes_cases:
            return found
        text = "Show every option, by topic, and exit."
        asked = click.Option(
            ["--help-all"], is_flag=True, is_eager=True, expose_value=False, callback=_help_all, help=text
        )
        return [*found, asked]

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The first paragraph and a sentence, or examples; with --help-all the text as click writes it."""
        if not self.takes_cases or _help_all.__name__ in ctx.meta:
            return super().format_help_text(ctx, formatter)
        first, second, *_ = [*inspect.cleandoc(self.help or "").split("\n\n"), ""]
        if not second.startswith("\b"):  # examples, line by line
            second = re.split(r"(?<=\.)\s", second)[0]
        formatter.write_paragraph()
        with formatter.indentation():
            formatter.write_text(f"{first}\n\n{second}".strip())

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As click has it. A flag that is given a value is named, which click would take for a TARGET; what follows an
        option that may stand alone is its value where it reads as one, and is named where it is no TARGET either; an
        option that there was says what it is now; one that takes one value is given once.
        """
        options = [one for one in self.get_params(ctx) if isinstance(one, click.Option)]
        flags = {x for one in options if one.is_flag for x in one.opts}
        for flag, value in pairwise(args):
            if flag in flags and value.lower() in SAID:
                what = f"leave {value!r} out" if SAID[value.lower()] else f"leave {flag} out to turn it off"
                raise click.UsageError(f"{flag} is a flag and takes no value; got {value!r}: {what}", ctx)
        alone = {x: one.type for one in options if isinstance(one.type, Spec) and one.name in TRUTHS for x in one.opts}
        behind = {}  # what was not taken as the value of an option -> the option
        for i, word in enumerate(args):
            value = "".join(args[i + 1 : i + 2])
            if word in alone and not alone[word].takes(value):
                args = [*args[:i], f"{word}=yes", *args[i + 1 :]]
                behind[value] = word
        try:
            self._check_once(ctx, args)
            return super().parse_args(ctx, args)
        except click.NoSuchOption as unknown:
            _refuse_removed(f"{self.name} {unknown.option_name}")
            now = RETIRED.get(unknown.option_name)
            if now is None or not any(now.split()[0] in one.opts for one in options):
                raise
            raise Refusal(f"{unknown.option_name} was replaced: {now}") from None
        except click.UsageError as error:
            wrong = [value for value in behind if type(error) is click.UsageError and not _may_be_target(value)]
            if not wrong:
                raise
            option = behind[wrong[0]]
            words = ", ".join(f"{name}=" for name in alone[option].words)
            raise click.UsageError(f"{option} takes no, yes and {words}; got {wrong[0]!r}", ctx) from None

    def _check_once(self, ctx: click.Context, args: list[str]) -> None:
        """Refusal for an option of one value that was given twice: a list of values is one value."""
        *_, order = self.make_parser(ctx).parse_args([*args])
        once = [one for one in order if isinstance(one, click.Option) and not (one.multiple or one.is_flag)]
        for one, times in Counter(once).items():
            if times > 1:
                raise click.UsageError(f"{one.opts[0]} is given {times} times, but takes one value or list", ctx)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write each section that has options of this command, in the order of SECTIONS."""
        options = [param for param in self.get_params(ctx) if isinstance(param, click.Option)]
        short = self.takes_cases and _help_all.__name__ not in ctx.meta
        records: dict[str, list[tuple[str, str]]] = {heading: [] for heading in (*SECTIONS, OTHERS)}
        for option in options:
            if (record := option.get_help_record(ctx)) is not None and not (short and option.name not in FIRST):
                name = "help" if "--help" in option.opts else option.name
                heading = next((key for key, names in SECTIONS.items() if name in names), OTHERS)
                below = option.type.rows if isinstance(option.type, Spec | Text) and not short else []
                records[heading if self.takes_cases else OTHERS] += [record, *below]
        if short:
            first = [record for listed in records.values() for record in listed]
            records = {f"Common options (--help-all shows all {len(options)})": first}
        for heading, listed in records.items():
            if listed:
                with formatter.section(heading):
                    formatter.write_dl(listed)


class Commands(click.Group):
    """A group of such commands."""

    command_class = Command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click has it; Refusal for a campaign, which says how it is run, and for a command that was removed."""
        _refuse_removed(args[0])
        if args[0] == "capture" and args[0] not in self.commands:
            raise Refusal(IN_PYTHON)
        if args[0] in CAMPAIGNS and args[0] not in self.commands:
            raise Refusal(
                f"{args[0]} is a campaign, not a command of workbench: in a checkout of the repository run python -m "
                f"campaigns {shlex.join(args)}"
            )
        return super().resolve_command(ctx, args)
