"""The page of watched runs."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from workbench.report import findings
from workbench.report.command import check_command
from workbench.report.page.page import Page, Part

if TYPE_CHECKING:
    from workbench.cuda.check import Checked


def page(checked: Sequence["Checked"]) -> Page:
    """The page of a list of watched runs, what was found in each in the words of the text."""
    wrong = [one for one in checked if not one.passed]
    first = wrong[0] if wrong else checked[0]
    heading = findings.in_short(first).splitlines()[0].removeprefix(f"{check_command(first)}: ")
    many = [f"{len(checked)} runs: {len(checked) - len(wrong)} without findings, {len(wrong)} with findings"]
    return Page(
        title=f"check of {first.target}: {heading}",
        verdict="found" if wrong else "clean",
        kind="origin" if wrong else "clean",
        lines=many if len(checked) > 1 else [heading],
        about=[*dict.fromkeys(one.target for one in checked)],
        parts=[_part(one) for one in checked],
    )


def _part(one: "Checked") -> Part:
    command = check_command(one)
    first, *lines = findings.in_short(one).splitlines()
    return Part(command, [first.removeprefix(f"{command}: "), *lines], command=command, opened=not one.passed)
