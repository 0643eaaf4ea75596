"""Two captured runs of one model, judged: a record for each call, and what follows from all."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from workbench.judge.against.departure import Departure, Distance
from workbench.judge.against.shares import Share
from workbench.judge.stage import EVIDENCE, ORIGIN_VERDICTS
from workbench.records import number
from workbench.shown import shown_by


@dataclass(frozen=True)
class OfCall:
    """One side of a call."""

    verdict: str
    stage: str | None  #: the first wrong one, of those that were captured
    over_budget: float
    doubt: str = ""  #: why it is suspicious, as of `Diff.doubt`
    file: str = ""  #: that holds it; none of a call of a dump, or in memory

    @property
    def wrong(self) -> bool:
        """Whether it leaves its budget."""
        return self.verdict in ORIGIN_VERDICTS

    @property
    def right(self) -> bool:
        """Whether nothing speaks against it but assumptions."""
        return not self.wrong and self.verdict != "untestable" and self.doubt != EVIDENCE


@dataclass(frozen=True)
class CallPair:
    """One call of both sides."""

    call: int
    a: OfCall
    b: OfCall
    asked: Mapping[str, tuple[str, str]]  #: what the two asked otherwise: scale, mask, ... -> of A, of B
    largest: float  #: |out_a - out_b|
    difference: float  #: its root mean square
    carried: float  #: root mean square of what the inputs differ by already makes of it
    own: float  #: and of what arises in the call
    shares: tuple[Share, ...]  #: of what arises; none where a side is wrong
    apart: Distance  #: how far q, k and v are apart
    place: str = ""  #: which call of a model it is: layer 7, step 3
    whole: bool = True  #: whether both sides have all of it

    @property
    def named(self) -> str:
        """The call in words: call 43 (layer 7, step 3)."""
        return f"call {self.call}" + (f" ({self.place})" if self.place else "")

    @property
    def wrong(self) -> tuple[str, ...]:
        """The sides that leave their budgets."""
        return tuple(name for name, side in (("A", self.a), ("B", self.b)) if side.wrong)


@dataclass(frozen=True)
class Cause:
    """What explains the first wrong call."""

    stage: str  #: that it changes
    text: str
    rivals: int  #: other formulas that fit as well


@dataclass(frozen=True, repr=False)
class Runs:
    """Two captured runs of one model."""

    a: str
    b: str
    pairs: tuple[CallPair, ...]
    alone: tuple[str, ...]  #: calls that one side has alone, in words
    causes: Mapping[str, Cause]  #: side -> what explains its first wrong call, where something does
    departed: Departure | None  #: where inputs first differ by more than rounding makes of what came before
    folders: bool = False  #: whether a and b are folders

    @property
    def verdict(self) -> str:
        """bug where a side leaves its budget; differs where inputs differ by more than rounding makes; diverges where
        the two asked different things; untestable where a call was judged on neither side; suspicious; else rounding
        or identical.
        """
        if any(pair.wrong for pair in self.pairs):
            return "bug"
        if self.first is not None:
            return "differs" if self.departed is not None else "diverges"
        if not self.pairs or any("untestable" in (pair.a.verdict, pair.b.verdict) for pair in self.pairs):
            return "untestable"
        if not all(pair.a.right and pair.b.right for pair in self.pairs):
            return "suspicious"
        return "rounding" if any(pair.largest != 0 for pair in self.pairs) else "identical"

    @property
    def first(self) -> CallPair | None:
        """The first call that is wrong, that the two asked otherwise, or whose inputs differ by more than rounding."""
        departed = None if self.departed is None else self.departed.call
        return next((pair for pair in self.pairs if pair.wrong or pair.asked or pair.call == departed), None)

    @property
    def shares(self) -> tuple[Share, ...]:
        """Of what arises in all calls together where both sides are right, the largest first."""
        found: dict[str, Share] = {}
        square = sum(pair.shares[0].square for pair in self.pairs if pair.shares)
        for share in (share for pair in self.pairs for share in pair.shares):
            before = found.get(share.words, Share(share.words, (0.0, 0.0), square))
            dot = (before.dot[0] + share.dot[0], before.dot[1] + share.dot[1])
            found[share.words] = replace(before, dot=dot)
        return tuple(sorted(found.values(), key=lambda one: -abs(one.share)))

    @property
    def interaction(self) -> float:
        """What of these shares goes to another rounding where they are left out in the other order."""
        return sum(one.interaction for one in self.shares) / 2

    def as_dict(self) -> dict[str, Any]:
        """The document `workbench.compare-runs/1` of `workbench compare-runs --json`, of plain Python values.

        - `a`, `b`: the folders
        - `verdict`: `bug`, `differs` (inputs differ by more than rounding), `diverges` (the runs differ in what they
          compute), `untestable`, `suspicious`, `rounding`, `identical`
        - `first`, `departed`: the first wrong or differing call; where the runs diverge: `call`, `behind` (the call
          before), `inputs`, `allowed`, `factor`, `rows`, `batches`, `where`
        - `causes`: of `A` and `B`: `stage`, `text`, `rivals`
        - `shares`, `interaction`: which rounding causes the difference: `words`, `share` of its square, `interaction`
          (effect of order)
        - `alone`: calls that only one side has
        - `calls`: `a` and `b` (`verdict`, `stage`, `over_budget`, `doubt`, `file`), `wrong`, `asked` (settings that
          differ), `largest`, `difference`, `carried`, `own` (root mean squares), `shares`, `place` (layer, step),
          `apart` (relative difference of inputs and `out`, and `rounding` allowed)
        """
        first = self.first
        pairs = [asdict(pair) | {"wrong": pair.wrong, "shares": _documents(pair.shares)} for pair in self.pairs]
        made: dict[str, Any] = number({
            "schema": "workbench.compare-runs/1", "a": self.a, "b": self.b, "verdict": self.verdict,
            "first": None if first is None else first.call,
            "causes": {name: asdict(cause) for name, cause in self.causes.items()},
            "departed": None if self.departed is None else asdict(self.departed),
            "shares": _documents(self.shares), "interaction": self.interaction,
            "alone": list(self.alone), "calls": pairs,
        })  # fmt: skip
        return made

    def save_html(self, path: str | Path) -> None:
        """Write the page of `workbench compare-runs --html`. Refusal where nothing can be written there."""
        shown_by("page.two_runs.save", path, self)

    def __bool__(self) -> bool:
        raise TypeError('the truth value of Runs is ambiguous; use their verdict, such as runs.verdict == "bug"')

    def __str__(self) -> str:
        return "\n".join(shown_by("runs.lines", self))

    def __repr__(self) -> str:
        return f"<Runs {self.a} and {self.b}: {self.verdict}, {len(self.pairs)} calls>"


def _documents(found: Sequence[Share]) -> list[dict[str, Any]]:
    return [{"words": one.words, "share": one.share, "interaction": one.interaction} for one in found]
