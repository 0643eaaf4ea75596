"""Exit codes of the command line, and what leads to them."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from workbench.judge.diff import Diff

BUG, USAGE, ENVIRONMENT = 1, 2, 3
DEFECT = 70  # EX_SOFTWARE of sysexits.h: a crash must not look like a bug found


def failing(judged: "Diff") -> str:
    """The verdict, unless something stands above it."""
    return "gate" if judged.trace.gates else judged.verdict


def always_failing() -> set[str]:
    """What exits with BUG, whatever was asked for."""
    from workbench.judge.stage import ORIGIN_VERDICTS

    return {*ORIGIN_VERDICTS, "untestable", "gate"}
