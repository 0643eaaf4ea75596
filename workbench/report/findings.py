"""Findings of watched runs as text and as JSON documents."""

from collections.abc import Sequence
from dataclasses import asdict
from io import StringIO
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

from workbench.line import near
from workbench.records import number
from workbench.report.command import check_command

if TYPE_CHECKING:
    from workbench.cuda.check import Checked
    from workbench.cuda.emulator import Finding


def check_document(checked: "Checked") -> dict[str, Any]:
    """The document `workbench.check/1` of one watched run.

    - `schedules`: orders of blocks and threads that were run
    - `tools`, `silent`: with compute-sanitizer: tools that ran; those whose report is incomplete, and why
    - `findings`: races and bad accesses, with lines and counts
    """
    return {
        "schema": "workbench.check/1",
        "target": checked.target,
        "faults": list(checked.faults),
        "case": None if checked.case is None else number(checked.case.as_dict()),
        "schedules": [asdict(schedule) for schedule in checked.schedules],
        "tools": dict(checked.tools),
        "silent": dict(checked.silent),
        "findings": [number(asdict(finding)) for finding in checked.findings],
    }


def checks_document(checked: Sequence["Checked"]) -> dict[str, Any]:
    """The document `workbench.checks/1` of a list of watched runs."""
    return {"schema": "workbench.checks/1", "runs": [check_document(one) for one in checked]}


def report(checked: Sequence["Checked"]) -> Text:
    """A paragraph for each run with findings, a line for each without, and the sum where there are several."""
    text = Text()
    for one in checked:
        found = len(one.findings)
        text.append(f"{check_command(one)}: ", style="bold")
        text.append(
            _many(found, "finding") if found else f"nothing found {_scope(one)}", style="green" if one.passed else "red"
        )
        text.append("\n")
        for tool, why in one.silent.items():
            text.append(f"{tool} gave an incomplete report: {why.rstrip()}\n", style="red")
        for finding in one.findings:
            text.append_text(_paragraph(one, finding))
    if len(checked) > 1:
        wrong = sum(not one.passed for one in checked)
        text.append(f"{len(checked)} runs: {len(checked) - wrong} without findings, {wrong} with findings\n")
    text.rstrip()
    return text


def in_short(checked: "Checked") -> str:
    """What `report` shows of one run, for `print`."""
    return report([checked]).plain


def html_report(checked: "Checked") -> str:
    """What `report` shows of one run as HTML, for Jupyter."""
    screen = Console(file=StringIO(), record=True, width=200, force_jupyter=False)
    screen.print(report([checked]), soft_wrap=True)
    return screen.export_html(inline_styles=True, code_format="<pre>{code}</pre>")


def _scope(checked: "Checked") -> str:
    """What was watched, or by whom."""
    if not checked.launches:
        tools = [f"{tool} ({limits})" if limits else tool for tool, limits in checked.tools.items()]
        return f"by {', '.join(tools) or 'no tool'}"
    where = f"in {_many(checked.launches, 'launch')} of {_many(checked.blocks, 'block')}"
    return where + (f", {len(checked.schedules)} schedules" if len(checked.schedules) > 1 else "")


def _many(count: int, noun: str) -> str:
    return f"{count} {noun}" + ("" if count == 1 else "es" if noun.endswith("ch") else "s")


def words(checked: "Checked") -> list[str]:
    """The findings of one run, the lines of each."""
    return [line for one in checked.findings for line in _paragraph(checked, one).plain.splitlines()]


def _paragraph(checked: "Checked", finding: "Finding") -> Text:
    text = Text()
    first, *more = finding.text.splitlines()
    text.append(f"{finding.kind}: ", style="bold red")
    text.append(f"{first}\n")
    places = [(finding.file, finding.line), (finding.other_file, finding.other_line)]
    for file, line in places:
        if file is not None and line is not None:
            text.append(f"  {near(file)}:{line}", style="cyan")
            text.append(f"  {checked.line(file, line)}\n")
    for line in more:
        text.append(f"{line}\n", style="dim")
    if finding.threads and not more:
        threads = f"thread{'s' * (len(finding.threads) > 1)} {' and '.join(map(str, finding.threads))}"
        text.append(f"  first in block {finding.block}, {threads}; {_many(finding.count, 'time')}\n", style="dim")
    return text
