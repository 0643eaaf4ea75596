"""A table of largest errors, as somebody wrote it down: read from a file, and checked."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

from workbench.case.case import Case
from workbench.case.distributions import FIXED
from workbench.case.fields import DRAWN, GIVEN, PROBLEM, TILES, of_role
from workbench.case.stages import RESULTS
from workbench.refusal import Refusal

SCHEMA = "workbench.symptoms/1"
#: of input_std: what people write in tests, and what lies between two of them is near enough to both
STDS = (2.0**-8, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 4.0)
_BLOCKS = (16, 32, 64, 128)
#: kernels -> what of them may be left open, with the values that are tried
OPEN: Mapping[str, Mapping[str, tuple[Any, ...]]] = {
    "flash": {"input_std": STDS, "block_k": _BLOCKS},
    "split_k": {"input_std": STDS, "splits": (2, 4, 8), "block_k": _BLOCKS},
}
#: what was compared -> its axes behind those of batch and head
STAGES = (*RESULTS,)
#: fields of a case that a table may have: for all of its cases, or of each
_SHAPES = ("batch", "heads", "kv_heads", "seqlen", "seqlen_q", "seqlen_k", "head_dim", "causal", "scale")
_OF_ALL = tuple(name for name in of_role(PROBLEM, DRAWN, TILES) if name not in _SHAPES)
_BESIDE = ("schema", "kernel", "stage", "unknown", "cases")
_NOT_FINITE = ("nan", "inf", "-inf")


@dataclass(frozen=True)
class Entry:
    """One number of a table."""

    case: int  #: index among the cases
    row: int | None  #: query; None: the largest of all
    value: float  #: largest |kernel - reference|; NaN and inf are what a difference with such numbers gives
    half_unit: float  #: of its last printed digit: the number that was rounded is no farther from `value`

    @property
    def least(self) -> float:
        """The least number that was printed so."""
        return self.value - self.half_unit if math.isfinite(self.value) else self.value


@dataclass(frozen=True)
class SymptomTable:
    """Largest errors of one stage of a kernel on several cases."""

    kernel: str
    stage: str  #: one of STAGES
    cases: tuple[Case, ...]  #: what is unknown has any value here
    entries: tuple[Entry, ...]
    seeded: bool  #: whether the inputs are those that the cases draw
    unknown: Mapping[str, tuple[Any, ...]]  #: fields -> the values that are tried

    @property
    def finest(self) -> float:
        """Half a unit of the last digit of the most precise number: what is below was printed as 0."""
        return min(entry.half_unit for entry in self.entries)


def read(path: Path) -> SymptomTable:
    """The table in a JSON file of `workbench.symptoms/1`.

    Errors are numbers, or "nan" and "inf"; how many digits they have is taken for how precise they are. Refusal for a
    field that does not exist, a value outside its rule, a row that a case does not have, and a table without errors.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"), parse_float=Decimal)
    except OSError as error:
        raise Refusal(f"{path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise Refusal(f"{path}: a table of symptoms must be a JSON document; {error}") from None
    return of_document(document, str(path))


def of_document(document: Any, where: str) -> SymptomTable:
    """As `read`, of what the file holds, its numbers as `decimal.Decimal`; `where` names it in messages."""
    _known(document, (*_BESIDE, *_SHAPES, *_OF_ALL), where)
    for name, accepted in (("schema", (SCHEMA,)), ("kernel", tuple(OPEN)), ("stage", STAGES)):
        value = document.get(name, STAGES[0] if name == "stage" else None)
        if value not in accepted:
            raise Refusal(f"{where}: {name} must be one of {', '.join(accepted)}; got {value!r}")
    kernel = document["kernel"]
    unknown = _unknown(document, OPEN[kernel], where)
    listed = document.get("cases")
    if not isinstance(listed, list) or not listed:
        raise Refusal(f"{where}: cases must be a list of at least one case; got {listed!r}")
    common = {name: _plain(x) for name, x in document.items() if name not in _BESIDE}
    if "splits" in document and "splits" not in OPEN[kernel]:
        raise Refusal(f"{where}: only split_k takes splits; got splits={common['splits']!r} for kernel {kernel}")
    if common.get("distribution") == GIVEN:
        raise Refusal(f"{where}: distribution {GIVEN} needs inputs, and a table has none")
    cases, entries = [], []
    for i, one in enumerate(listed):
        place = f"{where}: cases[{i}]"
        _known(one, ("max_abs", "rows", *_SHAPES), place)
        lengths = ("seqlen", "seqlen_q", "seqlen_k")
        outer = common if not {*lengths} & {*one} else {k: v for k, v in common.items() if k not in lengths}
        try:
            case = Case(**{**outer, **{k: _plain(v) for k, v in one.items() if k in _SHAPES}})
        except Refusal as refusal:
            raise Refusal(f"{place}: {refusal}") from None
        cases.append(case)
        entries += _entries(one, i, case, place)
    if not entries:
        raise Refusal(f"{where}: no case has max_abs or rows, so there is nothing to explain")
    return SymptomTable(
        kernel, document.get("stage", STAGES[0]), tuple(cases), tuple(entries), "seed" in document, unknown
    )


def _unknown(document: Mapping[str, Any], open_: Mapping[str, tuple[Any, ...]], where: str) -> dict[str, Any]:
    """What the table does not tell, whether it says so or not."""
    said = document.get("unknown", [])
    if not isinstance(said, list) or not {*map(str, said)} <= {*open_}:
        raise Refusal(f"{where}: unknown may list {', '.join(open_)}; got {said!r}")
    for name in said:
        if name in document:
            raise Refusal(
                f"{where}: {name} is listed as unknown but also given as {_plain(document[name])!r}; drop one"
            )
    fixed = document.get("distribution") in FIXED
    return {
        name: tried for name, tried in open_.items() if name not in document and not (fixed and name == "input_std")
    }


def _entries(one: Mapping[str, Any], i: int, case: Case, place: str) -> list[Entry]:
    rows = one.get("rows", {})
    if not isinstance(rows, dict):
        raise Refusal(f'{place}: rows must be {{"query": error}}; got {rows!r}')
    found = []
    for row, value in {None: one.get("max_abs"), **rows}.items():
        name = "max_abs" if row is None else f"rows[{row!r}]"
        if row is None and value is None:
            continue
        if row is not None and not (row.isdecimal() and int(row) < case.seqlen_q):
            raise Refusal(f"{place}: rows must be query indices, 0 to {case.seqlen_q - 1}; got {row!r}")
        found.append(Entry(i, None if row is None else int(row), *_error(value, f"{place}: {name}")))
    return found


def _error(value: Any, name: str) -> tuple[float, float]:
    """A largest error, and half a unit of its last digit."""
    if value in _NOT_FINITE or (isinstance(value, float) and not math.isfinite(value)):
        size = float(value)
    elif isinstance(value, int | Decimal) and not isinstance(value, bool):
        size = float(value)
    else:
        size = -1.0
    if size < 0:
        raise Refusal(f'{name} must be a number of at least 0, "nan" or "inf"; got {_plain(value)!r}')
    if not math.isfinite(size):
        return size, math.inf
    digits = Decimal(value).as_tuple().exponent
    assert isinstance(digits, int)
    return size, 0.5 * 10.0**digits


def _known(document: Any, names: tuple[str, ...], where: str) -> None:
    if not isinstance(document, dict):
        raise Refusal(f"{where} must be an object of names and values; got {document!r}")
    for name in document:
        if name not in names:
            raise Refusal(f"{where} may have only the fields {', '.join(names)}; got {name!r}")


def _plain(value: Any) -> Any:
    """Without Decimals, lists as tuples."""
    if isinstance(value, list):
        return tuple(map(_plain, value))
    return float(value) if isinstance(value, Decimal) else value
