"""What was measured of a machine's arithmetic: as data, at rest, and in the words of contracts.

At rest it is one JSON document; numbers that are not finite are the strings "inf" and "nan" there.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from types import NoneType
from typing import Any, get_args

from workbench.case.tensor_cores import Accumulation
from workbench.files import write_atomically
from workbench.records import number
from workbench.refusal import Refusal

SCHEMA = "workbench.calibration/1"
#: functions that every calibration has
EXPONENTIALS = ("exp", "fast_exp", "ex2", "ex2_ftz")
LOGARITHMS = ("log", "fast_log", "fast_log_near_1")
#: a rounding, or an outcome, that has no name here
OTHER = "other"
#: what float64's own error adds to a measured one, in ulps of float32: 1 of its ulps at most, of which 2^29 are one
REFERENCE_ULPS = 2.0**-29


@dataclass(frozen=True)
class Errors:
    """The errors of one function of float32, in ulps as of `floats.ulp`; those of fast_log_near_1 in units of 2^-22."""

    tried: int  #: arguments, all of which have a normal number as their result (of log: are one)
    ulps: float  #: no error is larger than ulps + ulps_per_x |x|; inf where a result is 0, infinite or NaN by mistake
    ulps_per_x: float  #: 0 but for a function whose error grows with its argument
    largest: float  #: the largest error
    at: float  #: the argument where it is
    exact: bool  #: whether exp and 2^x of 0 and of -inf, and log of 1, are exactly 1, 0 and 0
    flushes: bool | None  #: whether subnormal results (of log: arguments) count as 0; None: not looked at
    subnormal_ulps: float | None  #: the largest error among those that do not; an ulp is 2^-149 at subnormal results


@dataclass(frozen=True)
class TensorCore:
    """How one tensor-core operation adds. In a step it adds products, and the sum so far or c."""

    block: int  #: fewest products that meet in one step
    #: bits kept of an addend below the last bit of a float32 as large as the step's largest addend; 9 stands for more
    extra_bits: int
    addend_rounding: str  #: of what lies below them: one of `cuda.casts.ROUNDINGS`, or "other"
    #: of a step's sum to float32, or to as many bits as its addends keep where these are fewer; "exact" where there is
    #: no bit to be rounded
    sum_rounding: str
    c_rounding: str | None  #: of c plus the finished sum of all products; None: c is an addend of a step


@dataclass(frozen=True)
class Cast:
    """What one conversion of float32 to a narrower type does."""

    rounding: str  #: one of `cuda.casts.ROUNDINGS`, or "other"
    flushes: bool  #: whether subnormal results become 0
    overflow: str  #: what a finite number beyond the largest becomes: "infinity", "largest", "nan" or "other"
    infinity: str  #: what infinity becomes, likewise
    nan: str  #: what NaN becomes, likewise


@dataclass(frozen=True)
class Calibration:
    """What was measured on one machine."""

    backend: str  #: "cuda" or "emulator"
    device: str  #: name of the GPU, or "emulator"
    compute_capability: tuple[int, int] | None  #: None for the emulator
    driver: str | None  #: the newest CUDA release that the driver serves, such as "13.0"; None for the emulator
    versions: Mapping[str, str]  #: of Python and the packages that matter
    functions: Mapping[str, Errors]  #: by the names of `EXPONENTIALS` and `LOGARITHMS`
    tensor_cores: Mapping[str, TensorCore]  #: by the operations of `cuda.ptx` that the machine has
    casts: Mapping[str, Cast]  #: by the names of `cuda.casts.CONVERSIONS` that the machine has


def contract_fields(calibration: Calibration, exp: str = "exp") -> dict[str, Any]:
    """What a kernel that runs on the machine may say in its contract.

    exp_ulps, exp_ulps_per_x: float; exp is off by at most exp_ulps + exp_ulps_per_x |x| ulps of float32, rounded up to
    thousandths. exp_flushes: bool, whether its subnormal results become 0. accumulation: "tensor-core"; a kernel that
    multiplies otherwise says "nearest". mma_block, mma_extra_bits: int, of the operation with the widest bound for long
    sums (`bound_ulps`). All of it holds for what numba-cuda
    compiles: another compiler's exp may be another one, and options may make it flush.

    `exp`: which function the kernel calls, one of `EXPONENTIALS`. Refusal for another, and where a sum on tensor cores
    is rounded in a way that has no such bound.
    """
    if exp not in EXPONENTIALS:
        raise Refusal(f"exp must be one of {', '.join(EXPONENTIALS)}; got {exp!r}")
    for name, core in calibration.tensor_cores.items():
        if OTHER in (core.addend_rounding, core.sum_rounding, core.c_rounding):
            raise Refusal(f"the rounding of tensor-core sums is unknown: {name} on {calibration.device} has {core}")
    widest = max(calibration.tensor_cores.values(), key=lambda core: bound_ulps(core.block, core.extra_bits))
    errors = calibration.functions[exp]
    return {
        "exp_ulps": _thousandths(errors.ulps + REFERENCE_ULPS),
        "exp_ulps_per_x": _thousandths(errors.ulps_per_x),
        "exp_flushes": errors.flushes,
        "accumulation": "tensor-core",
        "mma_block": widest.block,
        "mma_extra_bits": widest.extra_bits,
    }


def bound_ulps(block: int, extra_bits: int) -> float:
    """How far a long sum on tensor cores is off at most, for each product, in ulps of the sum of all sizes."""
    return Accumulation(block, extra_bits).ulps / block


def _thousandths(x: float) -> float:
    return math.ceil(x * 1000) / 1000 if math.isfinite(x) else x


def document(calibration: Calibration) -> dict[str, Any]:
    """The document `workbench.calibration/1`."""
    return {"schema": SCHEMA, **number(asdict(calibration))}


def save(calibration: Calibration, path: Path) -> None:
    """Write `calibration` to `path`, in the place of another one. Refusal where anything else is there."""
    check_free(path)
    write_atomically(path, json.dumps(document(calibration), indent=1).encode())


def check_free(path: Path) -> None:
    """Refusal where `path` is there and no calibration."""
    if path.exists():
        try:
            load(path)
        except Refusal as refusal:
            raise Refusal(f"only an existing calibration is overwritten; give another file\n{refusal}") from None


def load(path: Path) -> Calibration:
    """The calibration in `path`. Refusal for a file that is absent, truncated, something else, or lacks a field."""
    if not path.is_file():
        raise Refusal(f"{path}: no such file")
    try:
        data = json.loads(path.read_bytes())
    except ValueError as error:
        raise Refusal(f"{path}: not a complete JSON document ({error})") from None
    schema = data.get("schema") if isinstance(data, dict) else None
    if schema != SCHEMA:
        raise Refusal(f"{path}: a calibration has the schema {SCHEMA!r}; got {schema!r}")
    own = {field.name: field.type for field in fields(Calibration)}
    _check_names(data, ["schema", *own], str(path))
    for name, kind in {"functions": Errors, "tensor_cores": TensorCore, "casts": Cast}.items():
        where = f"{path}: {name}"
        data[name] = {key: _record(kind, item, f"{where}.{key}") for key, item in _mapping(data[name], where).items()}
    _check_names(data["functions"], [*EXPONENTIALS, *LOGARITHMS], f"{path}: functions")
    for name in ("tensor_cores", "casts"):
        if not data[name]:
            raise Refusal(f"{path}: {name} must have an entry; got none")
    for name in ("backend", "device", "driver"):
        _value(own[name], data[name], f"{path}: {name}")
    _mapping(data["versions"], f"{path}: versions")
    if (capability := data["compute_capability"]) is not None:
        if not isinstance(capability, list) or [type(part) for part in capability] != [int, int]:
            raise Refusal(f"{path}: compute_capability must be two whole numbers or null; got {capability!r}")
        data["compute_capability"] = tuple(capability)
    return Calibration(**{name: data[name] for name in own})


def _mapping(data: Any, where: str) -> dict[str, Any]:
    if not isinstance(data, dict):
        raise Refusal(f"{where} must be a mapping; got {data!r}")
    return data


def _check_names(data: Mapping[str, Any], names: list[str], where: str) -> None:
    if lacking := [name for name in names if name not in data]:
        raise Refusal(f"{where} lacks {', '.join(lacking)}")
    if unknown := [name for name in data if name not in names]:
        raise Refusal(f"{where} has unknown fields {', '.join(unknown)}")


def _record(kind: Any, data: Any, where: str) -> Any:
    """A record of JSON fields that have the types that it declares."""
    _check_names(_mapping(data, where), [field.name for field in fields(kind)], where)
    return kind(**{field.name: _value(field.type, data[field.name], f"{where}.{field.name}") for field in fields(kind)})


def _value(kind: Any, value: Any, where: str) -> Any:
    kinds = get_args(kind) or (kind,)
    if float in kinds and (value in ("inf", "nan") or (isinstance(value, int) and not isinstance(value, bool))):
        return float(value)
    if type(value) not in kinds:
        wanted = " or ".join("null" if one is NoneType else one.__name__ for one in kinds)
        raise Refusal(f"{where} must be of type {wanted}; got {value!r}")
    return value
