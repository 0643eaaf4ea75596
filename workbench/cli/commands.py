"""Commands whose help says which options belong together."""

from collections.abc import Mapping, Sequence

import click

from workbench.case import options
from workbench.case.fields import DRAWN, LAID, PROBLEM, QUANTISED, TILES, of_role

#: heading in the help -> parameters below it, by name; what stands nowhere comes last, under its own heading
SECTIONS: Mapping[str, Sequence[str]] = {
    "The case; lists make a run of every combination": (
        "full", "seqlen", *of_role(PROBLEM, LAID, DRAWN), "inputs",
    ),
    "Kernels of ours": ("faults", "backend", "probes", *of_role(TILES), "probs_dtype", "schedules"),
    "Kernels on quantised codes": (*QUANTISED,),
    "A kernel of yours": (*options.of_role(options.FOREIGN), "values"),
    "A part of a run": ("where", "by_head", "limit_gb", "feed"),
    "A second run beside it": (
        "against", "against_splits", "against_block_q", "against_block_k", "against_backend", "against_trace",
    ),
    "What is printed": ("verbose", "as_json", "out", "fail_on", "worst", "reference", "help"),
}  # fmt: skip
OTHERS = "Options"


class Command(click.Command):
    """A command that lists its options by section, where it takes a case."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write each section that has options of this command, in the order of SECTIONS."""
        options = [param for param in self.get_params(ctx) if isinstance(param, click.Option)]
        grouped = any(option.name == "seqlen" for option in options)
        records: dict[str, list[tuple[str, str]]] = {heading: [] for heading in (*SECTIONS, OTHERS)}
        for option in options:
            if (record := option.get_help_record(ctx)) is not None:
                name = "help" if "--help" in option.opts else option.name
                heading = next((key for key, names in SECTIONS.items() if name in names), OTHERS)
                records[heading if grouped else OTHERS].append(record)
        for heading, listed in records.items():
            if listed:
                with formatter.section(heading):
                    formatter.write_dl(listed)


class Commands(click.Group):
    """A group of such commands."""

    command_class = Command
