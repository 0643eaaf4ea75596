"""What a failed assertion says: a line, the report, the smallest case, and how to repeat it."""

import traceback
from collections.abc import Sequence
from typing import TYPE_CHECKING

from workbench.judge.diff import Diff
from workbench.judge.fails import outcome
from workbench.judge.table import run_row
from workbench.refusal import Refusal, Unavailable
from workbench.report.numbers import times

if TYPE_CHECKING:
    from workbench.explore.shrink.shrink import Shrunk


def in_a_line(judged: Diff) -> str:
    """Verdict, where, how far, and the cause where one is known, in one line."""
    of = f" ({judged.trace.target})"
    if outcome(judged) == "gate":
        return f"gate failed: {judged.trace.gates[0]}{of}"
    stages = [judged[name] for name in judged.origins] or [one for one in judged if one.verdict == judged.verdict]
    said = f"{judged.verdict} in {', '.join(stage.name for stage in stages) or 'every stage'}"
    if (over := run_row(judged).over_budget) is not None and judged.verdict != "untestable":
        said += f", error {times(over)}"
    if judged.origins:
        whys = [one.text if one.proved else f"perhaps {one.text}" for one in judged.explained.causes]
    else:
        whys = [stage.reason for stage in stages if stage.reason][:1]
    return f"{said}{': ' if whys else ''}{'; '.join(whys)}{of}"


def of_run(judged: Diff, *, effort: float, again: Sequence[str]) -> str:
    """Of a kernel that was run. `effort`: of the search for the smallest case; 0: none is searched. `again`: lines that
    tell how to repeat the check, beside the command of the report.
    """
    shrunk, said = _smallest(judged, effort) if effort and judged.origins else (None, "")
    if shrunk is not None and shrunk.explained.causes:
        # searched on other cases, too: one message has one cause
        judged = judged.explained_by(shrunk.explained)
    return "\n\n".join([in_a_line(judged), "\n".join([str(judged), *again]), *filter(None, [said])])


def _smallest(judged: Diff, effort: float) -> "tuple[Shrunk | None, str]":
    """The smallest case that fails alike, and what the search for it gave. It comes after the judgement, which stands
    whatever becomes of the search.
    """
    try:
        from workbench.explore.shrink.shrink import shrink
        from workbench.report.shrunk import lines

        found = shrink(judged, effort)
        return found, "\n".join(lines(found))
    except (Refusal, Unavailable) as refusal:
        return None, f"no smaller case was searched for: {refusal}"
    except Exception as error:
        said = "".join(traceback.format_exception(error))
        return None, f"no smaller case was found, by a defect of the workbench itself, not of the kernel:\n{said}"
