"""The file of a spec: TOML, whose words are its fields, and what is no spec."""

import os
import tomllib
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from workbench.case.fields import FIELDS
from workbench.explore.acceptance import reference_families
from workbench.explore.acceptance.families import FAMILIES, families_of
from workbench.explore.acceptance.reference_spec import ReferenceSpec
from workbench.explore.acceptance.spec import Spec
from workbench.explore.draw import Among, Between
from workbench.explore.ranges import RANGES
from workbench.refusal import Refusal, unknown

OPERATION = "attention"
#: names of RANGES that a spec does not give: of kernels of ours, and what a family chooses
_OTHERS = {"splits", "seed", "input_std", "block_q", "block_k", "probs_dtype", "pack_gqa"}
_NONE = "none"  #: which TOML has no word for


def read(path: str | Path) -> Spec | ReferenceSpec:
    """The spec of a TOML file; Refusal for one that cannot be read, and for a word that is none. Files that it names
    are beside it.
    """
    try:
        found = tomllib.loads(Path(path).read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise Refusal(f"--spec {path}: {getattr(error, 'strerror', None) or error}") from None
    except tomllib.TOMLDecodeError as error:
        raise Refusal(f"--spec {path}: {error}") from None
    return spec_of(found, str(path), Path(path).parent)


def spec_of(found: Mapping[str, Any], where: str, folder: Path | None = None) -> Spec | ReferenceSpec:
    """The spec of plain values: with a reference, or of attention. folder: of files that it names; None: the working
    folder.
    """
    if "reference" in found or "inputs" in found:
        return _of_reference(dict(found), where, folder or Path())
    return of_plain(found, where)


def of_plain(found: Mapping[str, Any], where: str) -> Spec:
    """The spec of attention of plain values, as a TOML file has them; `where` names it in messages."""
    found = dict(found)
    if (operation := found.pop("operation", OPERATION)) != OPERATION:
        raise Refusal(f"{where}: operation must be {OPERATION} (the forward pass); got {operation!r}")
    own = {one.name: one for one in fields(Spec)}
    if others := [name for name in found if name not in own]:
        raise Refusal(unknown(f"{where}: a spec has no", others[0], ("operation", *own)))
    usual = Spec()
    for name, value in found.items():
        kind = type(getattr(usual, name))
        if kind in (bool, int, str) and type(value) is not kind:
            raise Refusal(f"{where}: {name} must be of type {kind.__name__}; got {value!r}")
    case = {_field(name): _range(name, x, where) for name, x in found.pop("case", {}).items()}
    listed = tuple({_field(name): _value(name, x, where) for name, x in one.items()} for one in found.pop("shapes", ()))
    spec = Spec(case, listed, **{**found, "without": tuple(found.get("without", ()))})
    check(spec, where)
    return spec


def _of_reference(found: dict[str, Any], where: str, folder: Path) -> ReferenceSpec:
    own = {one.name for one in fields(ReferenceSpec)}
    if others := [name for name in found if name not in own]:
        raise Refusal(unknown(f"{where}: a spec with a reference has no", others[0], sorted(own)))
    if missing := [name for name in ("reference", "inputs") if not found.get(name)]:
        raise Refusal(f"{where}: {missing[0]} is missing: FILE.py:FUNCTION")
    references = found["reference"] if isinstance(found["reference"], list | tuple) else [found["reference"]]
    given = {
        "reference": tuple(_beside(one, folder) for one in references),
        "inputs": _beside(found["inputs"], folder),
        "axes": {name: _sizes(name, x, where) for name, x in found.get("axes", {}).items()},
        "dtype": _range("dtype", found.get("dtype", ReferenceSpec.dtype), where),
        "without": tuple(found.get("without", ())),
        "fixed": tuple(found.get("fixed", ())),
    }
    spec = ReferenceSpec(**{**found, **given})
    for name in ("contiguous", "fresh", "alignment", "arrays", "contract", "device"):
        usual, value = getattr(ReferenceSpec, name), getattr(spec, name)
        kind = str if usual is None else type(usual)
        if type(value) is not kind and value != usual:
            raise Refusal(f"{where}: {name} must be of type {kind.__name__}; got {value!r}")
    if others := [name for name in spec.without if name not in reference_families.FAMILIES]:
        raise Refusal(unknown(f"{where}: there is no family", others[0], reference_families.FAMILIES))
    return spec.checked(where)


def _beside(one: Any, folder: Path) -> Any:
    """A function, or what a file beside the spec has, named from the working folder."""
    if not isinstance(one, str):
        return one
    path, colon, name = one.rpartition(":") if ":" in one else (one, "", "")
    found = Path(os.path.relpath(folder / path))
    return f"{found if '..' not in found.parts else found.resolve()}{colon}{name}"


def _sizes(name: str, x: Any, where: str) -> Any:
    range_ = _range(name, x, where)
    values = range_.values if isinstance(range_, Among) else range_ if isinstance(range_, Between) else (range_,)
    if wrong := [n for n in values if type(n) is not int or n < 0]:
        raise Refusal(f"{where}: sizes of {name} are whole numbers; got {wrong[0]!r}")
    return range_


def check(spec: Spec, where: str) -> None:
    """Refusal for families that there are not, and for ranges of which no case can be drawn."""
    if others := [name for name in spec.without if name not in FAMILIES]:
        raise Refusal(unknown(f"{where}: there is no family", others[0], FAMILIES))
    if not families_of(spec):
        raise Refusal(f"{where}: `without` must leave one of the families {', '.join(FAMILIES)}")
    for name in {*spec.case, *(name for one in spec.shapes for name in one)}:
        known = ({*FIELDS, *RANGES, "seqlen"}) - _OTHERS
        if name not in known:
            raise Refusal(unknown(f"{where}: a case has no field", name, sorted(known)))
    random = np.random.default_rng(0)
    spec.draw(random)
    for one in spec.shapes:
        spec.draw(random, **one)


def _field(name: str) -> str:
    """The field of a case that a word of a spec is for: of codes `of` is said, as of --codes."""
    return "codes_of" if name == "of" else name


def _range(name: str, x: Any, where: str) -> Any:
    """A range of TOML: {from = 1, to = 256}, a list of values, or a value."""
    if isinstance(x, Mapping):
        ends: tuple[Any, Any] = (x.get("from"), x.get("to"))
        if {*x} != {"from", "to"} or not all(type(end) is int for end in ends):
            raise Refusal(f"{where}: a range of {name} has two integers, as {{from = 1, to = 256}}; got {dict(x)!r}")
        if ends[0] > ends[1]:
            raise Refusal(f"{where}: {name} needs from <= to; got {{from = {ends[0]}, to = {ends[1]}}}")
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
