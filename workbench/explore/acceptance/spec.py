"""What a function must do: ranges of cases, how their arrays lie, and what it promises of its arithmetic."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np

from workbench.case.case import Case
from workbench.case.fields import FIELDS
from workbench.explore.draw import Among, Between
from workbench.explore.ranges import RANGES
from workbench.explore.sample import sample
from workbench.floats import DTYPES
from workbench.refusal import Refusal, meant

OPERATION = "attention"
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
#: names of RANGES that a spec does not give: of kernels of ours, and what a family chooses
_OTHERS = {"splits", "codes", "distribution", "seed", "input_std", "block_q", "block_k", "probs_dtype", "pack_gqa"}
#: products of q and k of a case: a verdict on one takes about a tenth of a second (0.12 s at 4 * 256 * 256 * 64)
WORK = 1 << 24
#: cases that are drawn for one with less work than that, at most; the one with the least is taken then
_DRAWS = 50
_NONE = "none"  #: which TOML has no word for


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
        range_ = self.ranges.get(name, self.ranges.get("seqlen"))
        if isinstance(range_, Between):
            return range_.high
        return max(range_.values) if isinstance(range_, Among) else int(range_)

    def takes(self, name: str, value: Any) -> bool:
        """Whether a field may have a value."""
        range_ = self.ranges.get(name)
        if isinstance(range_, Between):
            return bool(range_.low <= value <= range_.high)
        return value in range_.values if isinstance(range_, Among) else bool(value == range_)

    def draw(self, random: np.random.Generator, **given: Any) -> Case:
        """A random case, of which `given` say some fields; of little work where one is found."""
        found: Case | None = None
        ranges = {name: x for name, x in self.ranges.items() if not _said_by(name, given)} | given
        for _ in range(_DRAWS):
            case = sample(random, **ranges)
            if not self.empty_rows and _has_empty_rows(case):
                continue
            if found is None or work(case) < work(found):
                found = case
            if work(case) <= WORK:
                return case
        if found is None:
            raise Refusal(
                f"{_DRAWS} cases of the spec were drawn, and in each a row sees no key: say empty_rows = true"
            )
        return found


def _said_by(name: str, given: Mapping[str, Any]) -> bool:
    """Whether given fields say what a range is of."""
    by = {"kv_heads": {"heads"}, "group": {"heads"}, "seqlen_q": {"seqlen"}, "seqlen_k": {"seqlen"}}
    by |= {"seqlen": {"seqlen_q", "seqlen_k"}}
    return bool(by.get(name, set()) & {*given})


def work(case: Case) -> int:
    """Products of q @ k."""
    return case.score_count * case.head_dim


def _has_empty_rows(case: Case) -> bool:
    mask = case.mask()
    rows = mask.any(axis=-1)
    if case.ragged:
        rows |= ~(np.arange(case.seqlen_q) < case.lengths_q[:, None])[:, None]
    return not bool(rows.all())


def read(path: str | Path) -> Spec:
    """The spec of a TOML file; Refusal for one that cannot be read, and for a word that is none."""
    try:
        found = tomllib.loads(Path(path).read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise Refusal(f"--spec {path}: {getattr(error, 'strerror', None) or error}") from None
    except tomllib.TOMLDecodeError as error:
        raise Refusal(f"--spec {path}: {error}") from None
    return of_plain(found, str(path))


def of_plain(found: Mapping[str, Any], where: str) -> Spec:
    """The spec of plain values, as a TOML file has them; `where` names it in messages."""
    found = dict(found)
    if (operation := found.pop("operation", OPERATION)) != OPERATION:
        raise Refusal(f"{where}: operation is {OPERATION}, the forward pass; got {operation!r}")
    own = {one.name: one for one in fields(Spec)}
    if unknown := [name for name in found if name not in own]:
        raise Refusal(f"{where}: a spec has operation, {', '.join(own)}; got {unknown[0]!r}{meant(unknown[0], own)}")
    usual = Spec()
    for name, value in found.items():
        kind = type(getattr(usual, name))
        if kind in (bool, int, str) and type(value) is not kind:
            raise Refusal(f"{where}: {name} must be of type {kind.__name__}; got {value!r}")
    case = {name: _range(name, x, where) for name, x in found.pop("case", {}).items()}
    listed = tuple({name: _value(name, x, where) for name, x in one.items()} for one in found.pop("shapes", ()))
    spec = Spec(case, listed, **{**found, "without": tuple(found.get("without", ()))})
    check(spec, where)
    return spec


def check(spec: Spec, where: str) -> None:
    """Refusal for families that there are not, and for ranges of which no case can be drawn."""
    from workbench.explore.acceptance.families import FAMILIES

    if unknown := [name for name in spec.without if name not in FAMILIES]:
        raise Refusal(f"{where}: families are {', '.join(FAMILIES)}; got without {unknown[0]!r}")
    for name in {*spec.case, *(name for one in spec.shapes for name in one)}:
        known = ({*FIELDS, *RANGES, "seqlen"}) - _OTHERS
        if name not in known:
            raise Refusal(f"{where}: fields of a case are {', '.join(sorted(known))}; got {name!r}{meant(name, known)}")
    for one in spec.ranges.get("dtype", ()) if isinstance(spec.ranges["dtype"], tuple) else ():
        if one not in DTYPES:
            raise Refusal(f"{where}: dtype is one of {', '.join(DTYPES)}; got {one!r}")
    random = np.random.default_rng(0)
    spec.draw(random)
    for one in spec.shapes:
        spec.draw(random, **one)


def _range(name: str, x: Any, where: str) -> Any:
    """A range of TOML: {from = 1, to = 256}, a list of values, or a value."""
    if isinstance(x, Mapping):
        ends = (x.get("from"), x.get("to"))
        if {*x} != {"from", "to"} or not all(type(end) is int for end in ends) or ends[0] > ends[1]:
            raise Refusal(f"{where}: a range of {name} is {{from = 1, to = 256}}, whole numbers; got {dict(x)!r}")
        return Between(*ends)
    if isinstance(x, list):
        if not x:
            raise Refusal(f"{where}: {name} must have a value; got an empty list")
        return Among(tuple(_value(name, one, where) for one in x))
    return _value(name, x, where)


def _value(name: str, x: Any, where: str) -> Any:
    if isinstance(x, Mapping):
        raise Refusal(f"{where}: {name} must be a value; got {dict(x)!r}")
    if isinstance(x, list):
        return tuple(x)
    return None if x == _NONE else x
