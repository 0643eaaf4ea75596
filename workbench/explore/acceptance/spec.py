"""What a function must do: ranges of cases, how their arrays lie, and what it promises of its arithmetic."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from workbench.case.case import Case
from workbench.explore.draw import Among, Between
from workbench.explore.sample import sample

#: lengths of a spec that says none
LONGEST = 256
#: what is drawn where a spec says nothing
USUAL: Mapping[str, Any] = {
    "batch": Between(1, 2),
    "kv_heads": Between(1, 2),
    "group": Between(1, 4),
    "seqlen_q": Between(1, LONGEST),
    "seqlen_k": Between(1, LONGEST),
    "head_dim": Among((64, 32, 128)),
    "dtype": "float32",
    "causal": Among((False, True)),
    "causal_alignment": "bottom-right",
    "scale": Among((None, None, 0.125, 0.3)),
    "softcap": None,
    "window": None,
}
#: products of q and k of a case, those of one head of 256 rows, 256 keys and 64 dims: a verdict takes 0.05 s in 16 bits
#: then, and 0.16 s for four such heads, so that there are fewer
WORK = 1 << 22
#: cases that are drawn for one with less work than that, at most; the one with the least is taken then
_DRAWS = 50


@dataclass(frozen=True)
class Spec:
    """What a function must do.

    `case`: field of a case, or name of `ranges.RANGES`, -> a value, or a range (`draw.Between`, `draw.Among`) of which
    any may come. `shapes`: fields of cases that are called for by name, each of which is run as it is, and beside it.
    `without`: families of cases that the function need not stand (`families.FAMILIES`).
    """

    case: Mapping[str, Any] = field(default_factory=dict)
    shapes: tuple[Mapping[str, Any], ...] = ()
    arrays: str = "numpy"
    device: str | None = None
    layout: str = "bhsd"
    contract: str | Mapping[str, Any] | None = None  #: as of `workbench.run`; what it leaves out is assumed the weakest
    lse: bool = False  #: whether it must return lse
    empty_rows: bool = False  #: whether rows that see no key are asked for: out 0, lse -inf
    batch_invariant: bool = False  #: whether bits may not depend on what else is in the batch
    contiguous: bool = False  #: whether arrays always lie contiguously, in the order of `layout`
    alignment: int = 1  #: of their starts, in bytes; 1: that of an element
    fresh: bool = False  #: whether a call may not overwrite the results of the one before
    without: tuple[str, ...] = ()

    @property
    def ranges(self) -> dict[str, Any]:
        """What is drawn of a case, by name."""
        usual = dict(USUAL)
        if "seqlen" in self.case:
            del usual["seqlen_q"], usual["seqlen_k"]
        if "heads" in self.case:
            del usual["kv_heads"], usual["group"]
        if "windowed" in self.case:
            del usual["window"]
        return usual | dict(self.case)

    def largest(self, name: str) -> int:
        """The largest value of a length that may come."""
        range_: Any = self.ranges.get(name, self.ranges.get("seqlen"))
        if isinstance(range_, Between):
            return range_.high
        return int(max(range_.values) if isinstance(range_, Among) else range_)

    def takes(self, name: str, value: Any) -> bool:
        """Whether a field may have a value."""
        range_ = self.ranges.get(name)
        if isinstance(range_, Between):
            return bool(range_.low <= value <= range_.high)
        return value in range_.values if isinstance(range_, Among) else bool(value == range_)

    def draw(self, random: np.random.Generator, **given: Any) -> Case:
        """A random case, of which `given` say some fields; of little work where one is found."""
        found: Case | None = None
        said = {name: x for name, x in self.case.items() if not _said_by(name, given)} | given
        for _ in range(_DRAWS):
            case = sample(random, empty_rows=self.empty_rows, usual=USUAL, **said)
            if found is None or work(case) < work(found):
                found = case
            if work(case) <= WORK:
                break
        assert found is not None
        return found


def _said_by(name: str, given: Mapping[str, Any]) -> bool:
    """Whether given fields say what a range is of."""
    by = {"kv_heads": {"heads"}, "group": {"heads"}, "seqlen_q": {"seqlen"}, "seqlen_k": {"seqlen"}}
    by |= {"seqlen": {"seqlen_q", "seqlen_k"}}
    return bool(by.get(name, set()) & {*given})


def work(case: Case) -> int:
    """Products of q @ k."""
    return case.score_count * case.head_dim
