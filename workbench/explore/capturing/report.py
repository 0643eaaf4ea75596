"""What a capture saw."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from workbench.explore.capturing.verdict import Judged
from workbench.records import number
from workbench.shown import shown_by


@dataclass(frozen=True, repr=False)
class Report:
    """Calls of one function, and what was judged of them."""

    target: str
    folder: str
    calls: int  #: that were seen
    sampled: int  #: of these, chosen
    judged: int  #: of these, judged in float64
    dropped: Mapping[str, int]  #: of the sampled, those that were not judged because of how they came: why -> how many
    unread: Mapping[str, int]  #: those of which the judge knows no reference, and defects: why -> how many
    wrong: int  #: of the judged, those that left their budgets
    doubted: int  #: of the judged, those within it that `diff` calls suspicious or biased
    worst: Judged | None  #: of those within their budget the one nearest to it
    kept: Judged | None  #: the first that left it
    causes: tuple[str, ...]  #: of the kept one, in sentences: found by calling the function again where that can be
    host_s: float  #: seconds of the caller beside the calls themselves, on a CPU with the judgement
    judging_s: float  #: seconds of judgement
    gradients: int = 0  #: backward passes of judged calls, judged
    awaited: int = 0  #: those that did not run until now
    wrong_gradients: int = 0  #: of the judged backward passes, those that left their budgets
    kept_gradients: Judged | None = None  #: the first of these
    remarks: tuple[str, ...] = ()  #: what no call is told, and so none is judged by
    unseen: str = ""  #: of no call: why none may have been seen, and what to do

    @property
    def verdict(self) -> str:
        """That of what was kept of calls and backward passes: bug, or suspicious beyond chance; untestable where none
        was judged; rounding, also where some of many right calls are suspicious.
        """
        kept = [one for one in (self.kept, self.kept_gradients) if one is not None]
        if kept:
            return max(kept, key=lambda one: one.proved).verdict
        return "rounding" if self.judged else "untestable"

    def as_dict(self) -> dict[str, Any]:
        """The document `workbench.capture/1`, also `report.json` in the folder of a capture, of plain Python values.

        - `folder`: of what is kept
        - `verdict`: of the kept call; otherwise `rounding`, or `untestable` if none was judged
        - `calls`, `sampled`, `judged`, `wrong`, `doubted`: counts; `doubted`: suspicious, within 7 standard deviations
        - `dropped`, `unread`, `unseen`, `remarks`: why sampled calls were not judged; why no call was seen; what is not
          judged
        - `kept`, `worst`: the first wrong call, the worst right one: `call`, `verdict`, `leaves`, `stage`,
          `over_budget`, `max_abs`, `element`, `where` (layer, step), `reason`
        - `causes`: of the first wrong call
        - `gradients`, `wrong_gradients`, `awaited`, `kept_gradients`: backward passes judged, wrong, not run yet; the
          first wrong one
        - `host_s`, `judging_s`: seconds added to the caller; seconds of judging
        """
        fields: dict[str, Any] = number({"schema": "workbench.capture/1", "verdict": self.verdict, **asdict(self)})
        return fields

    def __str__(self) -> str:
        return "\n".join(shown_by("captured.lines", self))

    def __repr__(self) -> str:
        return (
            f"<Report of {self.target}: {self.verdict}, {self.calls} calls, {self.judged} judged, {self.wrong} wrong>"
        )
