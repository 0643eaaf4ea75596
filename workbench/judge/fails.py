"""Which judgements fail: the rule of the command line's exit code, and of assertions in tests.

It imports no NumPy, so that `workbench --help` and a run of pytest that judges nothing are quick.
"""

from collections.abc import Mapping
from typing import Protocol

from workbench.refusal import Refusal


class Judged(Protocol):
    """A judgement, or what is kept of one."""

    @property
    def verdict(self) -> str: ...
    @property
    def doubt(self) -> str: ...
    @property
    def gates(self) -> tuple[str, ...]: ...


#: the mildest verdict that is to fail -> verdicts that fail besides those that always do
FAIL_ON: Mapping[str, tuple[str, ...]] = {
    "bug": (),
    "biased": ("biased",),
    "evidence": ("biased", "evidence"),
    "suspicious": ("biased", "evidence", "suspicious"),
}
#: the mildest that is to fail where nobody says another
USUAL = "evidence"


def outcome(judged: Judged) -> str:
    """The verdict, or "gate", where a gate failed, which stands above it."""
    return "gate" if judged.gates else judged.verdict


def classed(judged: Judged) -> str:
    """The outcome; "evidence" of what is suspicious by that, and not by an assumption."""
    found = outcome(judged)
    return "evidence" if found == "suspicious" and judged.doubt == "evidence" else found


def failing(fail_on: str = USUAL) -> frozenset[str]:
    """The outcomes that fail: always bug, missing, gate and untestable (nothing could be judged); `fail_on` is the
    mildest verdict that does, too. Refusal for one that is not in FAIL_ON.
    """
    from workbench.judge.stage import ORIGIN_VERDICTS

    if fail_on not in FAIL_ON:
        raise Refusal(f"fail_on must be one of {', '.join(FAIL_ON)}; got {fail_on!r}")
    return frozenset({*ORIGIN_VERDICTS, "untestable", "gate", *FAIL_ON[fail_on]})
