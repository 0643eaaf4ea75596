"""Values that a kernel printed, one element a line: `WB scores 0 0 5 17 -1.25`, as a printf in its source writes them.

A line has the stage, the element's indices (separated by spaces or commas, in brackets or not) and its value, in any
format of printf. All other lines of the log are left alone.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from workbench.case import contract
from workbench.case.case import Case
from workbench.case.fields import ARITHMETIC, GIVEN, QUANTISER, of_role
from workbench.case.inputs import by_name
from workbench.case.options import Options
from workbench.case.presets import fields_of
from workbench.case.spellings import flag
from workbench.case.stages import ALGORITHMS, OF_QUANTISER, stages_of
from workbench.floats import DTYPES, round_to, ulp
from workbench.refusal import Refusal
from workbench.trace.inputs import load as load_inputs
from workbench.trace.sparse import check_index, dims_of, laid_out
from workbench.trace.trace import Trace, check

MARK = "WB"
#: stage, indices and value; between the last two stands a bracket, an equals sign or a colon, or space
_LINE = re.compile(
    rf"\s*{MARK}\s+([A-Za-z]\w*)\s*[\[(]?\s*(-?\d+(?:(?:\s*,\s*|\s*\]\s*\[\s*|\s+)-?\d+)*)"
    r"(?:\s*[\])]?\s*[=:]\s*|\s*[\])]\s*|\s*,\s*|\s+)(\S+)\s*"
)
_DECIMAL = re.compile(r"[+-]?(\d*)(?:\.(\d*))?(?:[eE]([+-]?\d+))?")
_SPECIAL = re.compile(r"([+-]?)(inf(?:inity)?|nan(?:\(\w*\))?)", re.IGNORECASE)
_HEX = re.compile(r"[+-]?0[xX][\da-fA-F]+(?:\.[\da-fA-F]*)?(?:[pP][+-]?\d+)?")


class Printed(NamedTuple):
    """One line of a log."""

    line: int  #: counted from 1
    stage: str
    place: tuple[int, ...]  #: its indices, in the order of the stage's axes
    text: str  #: the value as it was printed
    value: float


@dataclass(frozen=True)
class Log:
    """The values of a log."""

    path: str
    printed: tuple[Printed, ...]
    ignored: int  #: lines that are none of ours, empty ones left out


def read(path: Path) -> Log:
    """The values of a log; Refusal for a line that begins with WB and cannot be read, and where no line does."""
    if not path.is_file():
        raise Refusal(f"{path}: no such file")
    lines = [(i, line) for i, line in enumerate(path.read_text(errors="replace").splitlines(), 1) if line.strip()]
    ours = [(i, line) for i, line in lines if line.split(None, 1)[0] == MARK]
    if not ours:
        raise Refusal(f"{path}: none of its {len(lines)} lines is `{MARK} <stage> <indices> <value>`")
    return Log(str(path), tuple(_printed(path, *one) for one in ours), len(lines) - len(ours))


def _printed(path: Path, i: int, line: str) -> Printed:
    match = _LINE.fullmatch(line)
    value = number(match[3]) if match else None
    if match is None or value is None:
        raise Refusal(f"{path}, line {i}: a value must be `{MARK} <stage> <indices> <value>`; got {line.strip()!r}")
    return Printed(i, match[1], tuple(int(x) for x in re.findall(r"-?\d+", match[2])), match[3], value)


def number(text: str) -> float | None:
    """What printf wrote: decimal, %a, inf, nan, also as -nan(ind); None for anything else."""
    if special := _SPECIAL.fullmatch(text):
        return math.nan if special[2].lower().startswith("nan") else math.copysign(math.inf, float(f"{special[1]}1"))
    if _HEX.fullmatch(text):
        return float.fromhex(text)
    decimal = _DECIMAL.fullmatch(text)
    return float(text) if decimal and (decimal[1] or decimal[2]) else None


def half_units(texts: Sequence[str]) -> np.ndarray:
    """How far the values of one stage, printed in one format, may be from their texts, float64 [n].

    Half a unit of the last digit. Where all have as many decimals (%f, %e) that is the last digit as written; else
    trailing zeros were dropped (%g, Python), and the value with most significant digits tells how many there were.
    Nothing is lost of 0 then, and of inf, nan and %a ever.
    """
    found = [None if _SPECIAL.fullmatch(text) or _HEX.fullmatch(text) else _digits(text) for text in texts]
    decimal = [digits for digits in found if digits is not None]
    fixed = len({digits.decimals for digits in decimal}) == 1
    most = max((digits.significant for digits in decimal), default=0)
    return np.array([0.0 if digits is None else digits.half_unit(None if fixed else most) for digits in found])


class _Digits(NamedTuple):
    """The digits of a decimal number."""

    decimals: int
    significant: int  #: from the first that is not 0; 0 of a zero
    leading: int  #: power of ten of the first of them
    last: int  #: power of ten of the last that was written

    def half_unit(self, most: int | None) -> float:
        """Half a unit of the last digit, as written or as it was before zeros behind `most` digits were dropped."""
        if most is None:
            return 0.5 * 10.0**self.last
        return 0.5 * 10.0 ** (self.leading - most + 1) if self.significant else 0.0


def _digits(text: str) -> _Digits:
    match = _DECIMAL.fullmatch(text)
    assert match is not None
    whole, fraction, exponent = match[1] or "", match[2] or "", int(match[3] or 0)
    significant = (whole + fraction).lstrip("0")
    last = exponent - len(fraction)
    return _Digits(len(fraction), len(significant), last + len(significant) - 1, last)


def load_log(
    path: str | Path, case: Case, promises: str | Mapping[str, Any] | None = None, inputs: str | Path | None = None
) -> Trace:
    """The trace of a log of `case`; elements that were not printed are not judged. The kernel had the case's own
    inputs, or those in the file `inputs` (q, k, v, mask, bias; see `trace.inputs.load`).

    `block_k` and `splits` of the case say how the kernel tiles and splits the keys; stages with such axes need them.
    `promises` are other fields of its contract, or words, as of `presets.fields_of`. What is not said is assumed to be
    the weakest choice. Of an element that was printed several times the last value counts. Refusal for what `read`
    refuses, for a line whose stage or indices the case does not have, and for what is no promise.
    """
    for option in of_role(QUANTISER, ARITHMETIC):
        if getattr(case, option) is not None:
            raise Refusal(f"{flag(option)} is for built-in kernels; {path} comes from another kernel")
    said, declared = fields_of(promises or {}, case), {}
    for name in ("block_k", "splits"):
        if (own := getattr(case, name)) is not None:
            if said.get(name, own) != own:
                raise Refusal(f"{path}: the case has {name}={own}, and the contract {name}={said[name]}")
            declared[name] = own
    promise = contract.of_foreign({**declared, **said}, case)
    case = case.but(block_k=promise.block_k, splits=promise.splits, distribution=GIVEN if inputs else case.distribution)
    held = None if inputs is None else load_inputs(Path(inputs))
    if unread := [name for name in held or () if name in OF_QUANTISER]:
        raise Refusal(f"{inputs}: a log is judged from q, k and v; the inputs hold {unread[0]}")
    log = read(Path(path))
    split = case.splits is not None or any(line.stage not in ALGORITHMS["flash"] for line in log.printed)
    algorithm = "split_k" if split else "flash"
    known = stages_of(algorithm, case.numbers)
    by_stage: dict[str, dict[tuple[int, ...], list[Printed]]] = {}
    for line in log.printed:
        stage = known.get(line.stage)
        where = f"{path}, line {line.line}"
        if stage is None:
            raise Refusal(f"{where}: unknown stage {line.stage!r}; stages are {', '.join(known)}")
        check_index(stage, dims_of(stage, case, where), line.place, where)
        by_stage.setdefault(line.stage, {}).setdefault(line.place, []).append(line)

    stages, sparse = {}, {}
    for name in (name for name in known if name in by_stage):
        last = {index: lines[-1] for index, lines in by_stage[name].items()}
        of_case = known[name].result and known[name].dtype
        values, errors = _stored([*last.values()], DTYPES[case.dtype] if of_case else np.dtype(np.float32))
        dims = dims_of(known[name], case, str(path))
        stages[name], sparse[name] = laid_out(dims, np.array([*last]), values, errors)
    return check(
        Trace(
            target=log.path,
            algorithm=algorithm,
            case=case,
            contract=promise,
            inputs=by_name(case, held),
            stages=stages,
            requested=(),
            sparse=sparse,
            notes=_notes(log, by_stage),
            called_with=Options(values=log.path, contract=promises, inputs=inputs).printable(),
        ),
        log.path,
    )


def _stored(lines: Sequence[Printed], dtype: np.dtype) -> tuple[np.ndarray, np.ndarray]:
    """Printed values as an array of `dtype`, or of float32 where they have more bits, and how far each may be from what
    the kernel held: not at all where the digits tell it from its neighbours.
    """
    printed = np.array([line.value for line in lines])
    half = half_units([line.text for line in lines])
    with np.errstate(all="ignore"):
        rounded = round_to(printed, dtype)
        if dtype != np.float32 and not np.all((np.abs(rounded - printed) <= half) | ~np.isfinite(printed)):
            dtype, rounded = np.dtype(np.float32), round_to(printed, "float32")
        # the spacing below a power of two is half of that above
        told = half < ulp(rounded, dtype) / 4
        errors = np.where(told | ~np.isfinite(printed), 0.0, half + np.abs(rounded - printed))
    return rounded.astype(dtype), errors


def _notes(log: Log, by_stage: Mapping[str, Mapping[tuple[int, ...], Sequence[Printed]]]) -> tuple[str, ...]:
    """How many lines were read, and which elements were printed with different values."""
    elements = sum(map(len, by_stage.values()))
    notes = [f"{len(log.printed)} lines give {elements} elements; other lines, ignored: {log.ignored}"]
    for name, lines in by_stage.items():
        torn = {index: one for index, one in lines.items() if len({repr(line.value) for line in one}) > 1}
        if torn:
            index, one = next(iter(torn.items()))
            place = ", ".join(map(str, index))
            seen = {repr(line.value): line for line in one}
            values = ", ".join(f"{line.text} (line {line.line})" for line in seen.values())
            of = f"{len(torn)} element{'s' * (len(torn) > 1)}"
            notes.append(f"{name}: {of} printed with different values; the last is judged: [{place}] is {values}")
    return tuple(notes)
