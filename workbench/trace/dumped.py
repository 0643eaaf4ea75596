"""Dumps that other programs wrote, read by names that a mapping gives: a file of arrays, a folder of files, one a
tensor, as SGLang's dumper leaves it, or a file of records, as PyTorch's DebugMode keeps them.
"""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from workbench.case.case import Case
from workbench.case.fields import FIELDS
from workbench.case.inputs import NAMES
from workbench.case.options import NAMELESS, Options
from workbench.case.stages import INPUTS, STAGES
from workbench.refusal import Refusal
from workbench.trace.inputs import read_any
from workbench.trace.manifest import text_of
from workbench.trace.plain import BOX, NAME, check_layout_word, of_arrays, stated_by
from workbench.trace.trace import Trace

#: what a mapping may say: key -> kind of its value, and what it is
KEYS: Mapping[str, tuple[type, str]] = {
    "target": (str, "a name for the kernel"),
    "layout": (str, "axes of q, k, v and out: b h s d, or x for heads and dims in one; a missing axis has size 1"),
    "lse_layout": (str, "axes of lse: b h s"),
    "records": (str, "the file of records, instead of one file per tensor"),
    "op": (str, "for records: the op to read; each of its records is one call"),
    "tensors": (dict, "input or stage -> its file, or where it is in a record"),
    "case": (dict, "fields of the case that the arrays do not determine"),
    "contract": (dict, "the kernel's contract"),
}
#: in the place of the number of a call in the names of files
CALL = "{call}"


@dataclass(frozen=True)
class Mapped:
    """What a mapping says."""

    path: str
    tensors: Mapping[str, str]
    target: str = ""
    layout: str = BOX
    lse_layout: str = ""
    records: str = ""
    op: str = ""
    case: Mapping[str, Any] = ()  # type: ignore[assignment]
    contract: Mapping[str, Any] = ()  # type: ignore[assignment]


def load_dump(
    path: str | Path | Mapping[str, Any],
    mapping: str | Path | Mapping[str, Any],
    case: Case | Mapping[str, Any] | None = None,
    contract: str | Mapping[str, Any] | None = None,
) -> dict[int, Trace]:
    """The calls in a dump by number, in their order: what another program wrote into a file, a folder, or a file of
    records, by the names that `mapping` gives (docs/reference/trace-format.md), a TOML file or what one holds; or a
    dict of arrays of Python's. `case` and `contract` say what the mapping does not. Nothing in a file is executed.

    Refusal for a mapping that says what it may not, a name that fits no file or several of one call, a call that lacks
    what others have, what is said twice and otherwise, and arrays that do not fit the case.
    """
    where = Path() if isinstance(path, Mapping) else Path(path)
    if not where.exists():
        raise Refusal(f"{path}: a mapping reads a file of arrays, a folder, or a file of records; it does not exist")
    if text_of(where) is not None:
        raise Refusal(f"{path}: a trace names its own arrays; leave the mapping out")
    said = _mapping(mapping, where)
    mapped = said.path or "the mapping"
    if isinstance(path, Mapping) and said.records + said.op:
        raise Refusal(f"{mapped}: records are in a file; got a dict of arrays")
    if contract is not None and said.contract:
        raise Refusal(f"{mapped}: the mapping has a [contract] already; got {contract!r}, too")
    stated = stated_by(case, said.case, f"{mapped}: [case]")
    alone = said.target or (NAME if isinstance(path, Mapping) else str(path))
    if isinstance(path, Mapping):
        found = {0: (alone, _taken(path, said, alone))}
    elif where.is_file() and not said.records:
        found = {0: (alone, _taken(read_any(where), said, alone))}
    else:
        calls = _of_records(where, said) if said.records else _of_files(where, said)
        found = {i: (f"{said.target or 'dump'}, call {i}", arrays) for i, arrays in sorted(calls.items())}
    promises = said.contract or contract
    at = Options(
        trace=None if isinstance(path, Mapping) else str(path),
        mapping=said.path or NAMELESS,
        contract=None if said.contract else contract,
    ).printable()

    def trace(name: str, arrays: Mapping[str, Any]) -> Trace:
        how = {"layout": said.layout, "lse_layout": said.lse_layout}
        made = of_arrays(arrays, stated, name=name, contract=promises, **how)
        own = {field: x for field, x in made.called_with.stated.items() if field not in said.case}
        return replace(made, called_with=replace(at, stated=own))

    return {call: trace(name, arrays) for call, (name, arrays) in found.items()}


def _mapping(given: str | Path | Mapping[str, Any], where: Path) -> Mapped:
    """The mapping, checked; `where`: what it reads."""
    path = "" if isinstance(given, Mapping) else str(given)
    named = path or "the mapping"
    if isinstance(given, Mapping):
        told = dict(given)
    else:
        if not Path(given).is_file():
            raise Refusal(f"{given}: no such file")
        try:
            told = tomllib.loads(Path(given).read_text())
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise Refusal(f"{given}: not a TOML file ({error})") from None
    for key, value in told.items():
        if key not in KEYS or not isinstance(value, KEYS[key][0]):
            listed = "; ".join(f"{name}: {words}" for name, (_, words) in KEYS.items())
            raise Refusal(f"{named}: {key}={value!r} is not allowed in a mapping, which has {listed}")
    tensors = told.get("tensors", {})
    known = (*NAMES, *STAGES)
    if unknown := [name for name, value in tensors.items() if name not in known or not isinstance(value, str)]:
        raise Refusal(f"{named}: [tensors] maps inputs and stages ({', '.join(known)}) to texts; got {unknown[0]}")
    if lacking := [name for name in INPUTS if name not in tensors and f"codes_{name}" not in tensors]:
        raise Refusal(f"{named}: [tensors] needs q, k, v, and out or another stage; it lacks {', '.join(lacking)}")
    if unknown := [name for name in told.get("case", {}) if name not in FIELDS]:
        raise Refusal(f"{named}: [case] has no field {unknown[0]}; fields are {', '.join(FIELDS)}")
    if where.is_file() and told.get("op") and told.setdefault("records", where.name) != where.name:
        raise Refusal(f"{named}: the records are in {told['records']!r}; got {where.name!r}")
    if bool(told.get("records")) != bool(told.get("op")):
        raise Refusal(f"{named}: give records and op together: the records of one op are the calls")
    check_layout_word(told.get("layout", BOX), named)
    return Mapped(path, **{"case": {}, "contract": {}} | told)


def _of_files(folder: Path, said: Mapped) -> dict[int, dict[str, Any]]:
    """Call -> name -> what a file holds."""
    files = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    found: dict[int, dict[str, Any]] = {}
    places: dict[tuple[int, str], str] = {}
    for name, pattern in said.tensors.items():
        of_file, _, key = pattern.partition(":")
        matcher = re.compile(_regex(of_file))
        for file in files:
            if (match := matcher.fullmatch(file)) is None:
                continue
            call = int(match["call"]) if CALL in of_file else 0
            if (other := places.setdefault((call, name), file)) != file:
                raise Refusal(
                    f"{folder}: call {call} has two files for {name}, {other} and {file}; give a longer name than "
                    f"{of_file!r}"
                )
            found.setdefault(call, {})[name] = _inside(read_any(folder / file), key, f"{folder / file}")
        if not any(name in one for one in found.values()):
            raise Refusal(f"{folder}: no file matches {of_file!r}, the mapping's {name}; it has {_some(files)}")
    for call, arrays in found.items():
        if lacking := [name for name in said.tensors if name not in arrays]:
            raise Refusal(f"{folder}: call {call} has no {', '.join(lacking)}, which other calls have")
    return found


def _taken(held: Any, said: Mapped, where: str) -> dict[str, Any]:
    """Name -> what lies under its key in what one file holds."""
    return {name: _inside(held, key, where) for name, key in said.tensors.items()}


def _regex(pattern: str) -> str:
    """A pattern of names, where * is anything but a slash, and {call} a number, the same wherever it stands."""
    parts, seen = [], False
    for part in re.split(r"(\*|\{call\})", pattern):
        if part == CALL:
            parts.append("(?P=call)" if seen else r"(?P<call>\d+)")
            seen = True
        else:
            parts.append("[^/]*" if part == "*" else re.escape(part))
    return "".join(parts)


def _of_records(where: Path, said: Mapped) -> dict[int, dict[str, Any]]:
    """Call -> name -> what a record of the op holds; records of an op are counted from 0."""
    path = where if where.is_file() else where / said.records
    held = read_any(path)
    if not isinstance(held, list) or not all(isinstance(one, Mapping) and "op" in one for one in held):
        raise Refusal(f'{path}: records are a list of dicts, each with its "op"; got {type(held).__name__}')
    calls = [one for one in held if one["op"] == said.op]
    if not calls:
        raise Refusal(
            f"{path}: no record has op {said.op}; it has {_some(dict.fromkeys(str(one['op']) for one in held))}"
        )
    return {call: _taken(one, said, f"{path}, {said.op} {call}") for call, one in enumerate(calls)}


def _inside(held: Any, key: str, where: str) -> Any:
    """What lies under a key, itself or by its steps into dicts and lists, which dots separate."""
    whole = isinstance(held, Mapping) and key in held
    for step in [key] if whole else filter(None, key.split(".")):
        inside = isinstance(held, list | tuple) and step.isdecimal() and int(step) < len(held)
        if not inside and not (isinstance(held, Mapping) and step in held):
            has = _some(map(str, held)) if isinstance(held, Mapping) else f"a {type(held).__name__}"
            of = "" if step == key else f" of {key!r}"
            raise Refusal(f"{where}: nothing under {step!r}{of}; there is {has}")
        held = held[int(step)] if inside else held[step]
    if not hasattr(held, "shape"):
        has = f"; it has {_some(map(str, held))}; name one after a colon" if isinstance(held, Mapping) else ""
        raise Refusal(f"{where}: not an array but a {type(held).__name__}{has}")
    return held


def _some(names: Any) -> str:
    listed = [*names]
    return ", ".join(listed[:5]) + (f" and {len(listed) - 5} more" if len(listed) > 5 else "") if listed else "nothing"
