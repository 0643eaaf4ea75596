"""Dumps that other programs wrote, read by names that a mapping gives: a folder of .pt files, one a tensor, as SGLang's
dumper leaves it, or a file of records, as PyTorch's DebugMode keeps them.
"""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from workbench.arrays import as_numpy
from workbench.case.fields import FIELDS
from workbench.case.inputs import NAMES, normalised
from workbench.case.options import NAMELESS, Options
from workbench.case.stages import INPUTS, LSE, OUT, STAGES
from workbench.refusal import Refusal
from workbench.trace.assembled import assembled
from workbench.trace.inputs import case_of, read_any
from workbench.trace.manifest import text_of
from workbench.trace.trace import Trace

BOX = "bhsd"
#: what a mapping may say: key -> kind of its value, and what it is
KEYS: Mapping[str, tuple[type, str]] = {
    "target": (str, "a name for what ran"),
    "layout": (str, "axes of q, k, v and out, of b h s d, or x for heads and dims in one; a missing one has size 1"),
    "lse_layout": (str, "axes of lse, of b h s"),
    "records": (str, "the file of records, in the place of one file a tensor"),
    "op": (str, "of records: the op whose records are calls"),
    "tensors": (dict, "input or stage -> its file, or where it is in a record"),
    "case": (dict, "fields of the case that arrays do not tell"),
    "contract": (dict, "what the kernel promises"),
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


def load_dump(path: str | Path, mapping: str | Path | Mapping[str, Any]) -> dict[int, Trace]:
    """The calls in a dump by number, in their order: what another program wrote into a folder, or into a file of
    records, by the names that `mapping` gives (docs/trace-format.md), a TOML file or what one holds. Nothing in a file
    is executed.

    Refusal for a mapping that says what it may not, a name that fits no file or several of one call, a call that lacks
    what others have, and arrays that do not fit the case.
    """
    where = Path(path)
    if not where.exists():
        raise Refusal(f"{path}: a mapping reads a folder, or a file of records; there is none")
    if text_of(where) is not None:
        raise Refusal(f"{path}: a trace says itself what it holds; leave the mapping out")
    said = _mapping(mapping, where.name if where.is_file() else "")
    folder = where.parent if where.is_file() else where
    found = _of_records(folder, said) if said.records else _of_files(folder, said)
    options = Options(trace=str(path), mapping=said.path or NAMELESS)
    return {call: replace(_trace(said, call, arrays), called_with=options) for call, arrays in sorted(found.items())}


def _mapping(given: str | Path | Mapping[str, Any], records: str) -> Mapped:
    """The mapping, checked; `records`: the name of the file of records, where that is the dump."""
    path = "" if isinstance(given, Mapping) else str(given)
    where = path or "the mapping"
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
            raise Refusal(f"{where}: {key}={value!r} is nothing that a mapping says: {listed}")
    tensors = told.get("tensors", {})
    known = (*NAMES, *STAGES)
    if unknown := [name for name, value in tensors.items() if name not in known or not isinstance(value, str)]:
        raise Refusal(f"{where}: [tensors] maps inputs and stages ({', '.join(known)}) to texts; got {unknown[0]}")
    if lacking := [name for name in (*INPUTS, OUT) if name not in tensors]:
        raise Refusal(f"{where}: [tensors] needs q, k, v and out; it lacks {', '.join(lacking)}")
    if unknown := [name for name in told.get("case", {}) if name not in FIELDS]:
        raise Refusal(f"{where}: [case] has no field {unknown[0]}; fields are {', '.join(FIELDS)}")
    if records and told.setdefault("records", records) != records:
        raise Refusal(f"{where}: the records are in {told['records']!r}; got {records!r}")
    if bool(told.get("records")) != bool(told.get("op")):
        raise Refusal(f"{where}: records and op are said together: the records of one op are the calls")
    layout = told.get("layout", BOX)
    if len({*layout}) != len(layout) or not {*layout} <= {*BOX, "x"} or ("x" in layout) == ("d" in layout):
        raise Refusal(f"{where}: layout is {KEYS['layout'][1]}; got {layout!r}")
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
                    f"{folder}: {name} of call {call} is both {other} and {file}; say more of its name than {of_file!r}"
                )
            found.setdefault(call, {})[name] = _inside(read_any(folder / file), key, f"{folder / file}")
        if not any(name in one for one in found.values()):
            raise Refusal(f"{folder}: no file is {of_file!r}, which {name} is by the mapping; it has {_some(files)}")
    for call, arrays in found.items():
        if lacking := [name for name in said.tensors if name not in arrays]:
            raise Refusal(f"{folder}: call {call} has no {', '.join(lacking)}, which other calls have")
    return found


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


def _of_records(folder: Path, said: Mapped) -> dict[int, dict[str, Any]]:
    """Call -> name -> what a record of the op holds; records of an op are counted from 0."""
    path = folder / said.records
    held = read_any(path)
    if not isinstance(held, list) or not all(isinstance(one, Mapping) and "op" in one for one in held):
        raise Refusal(f'{path}: records are a list of dicts, each with its "op"; got {type(held).__name__}')
    calls = [one for one in held if one["op"] == said.op]
    if not calls:
        raise Refusal(
            f"{path}: no record is of {said.op}; it has {_some(dict.fromkeys(str(one['op']) for one in held))}"
        )
    return {
        call: {name: _inside(one, at, f"{path}, {said.op} {call}") for name, at in said.tensors.items()}
        for call, one in enumerate(calls)
    }


def _inside(held: Any, key: str, where: str) -> Any:
    """What lies under a key; steps into dicts and lists are separated by dots."""
    for step in filter(None, key.split(".")):
        inside = isinstance(held, list | tuple) and step.isdecimal() and int(step) < len(held)
        if not inside and not (isinstance(held, Mapping) and step in held):
            has = _some(map(str, held)) if isinstance(held, Mapping) else f"a {type(held).__name__}"
            raise Refusal(f"{where}: nothing under {step!r} of {key!r}; there is {has}")
        held = held[int(step)] if inside else held[step]
    if not hasattr(held, "shape"):
        has = f"; it has {_some(map(str, held))}, which a key behind a colon tells" if isinstance(held, Mapping) else ""
        raise Refusal(f"{where}: no array but a {type(held).__name__}{has}")
    return held


def _some(names: Any) -> str:
    listed = [*names]
    return ", ".join(listed[:5]) + (f" and {len(listed) - 5} more" if len(listed) > 5 else "") if listed else "nothing"


def _trace(said: Mapped, call: int, arrays: Mapping[str, Any]) -> Trace:
    name = f"{said.target or 'dump'}, call {call}"
    stated = dict(said.case)
    for x in ("q", "k", "v"):
        heads = stated.get("heads") if x == "q" else stated.get("kv_heads", stated.get("heads"))
        arrays = {**arrays, x: boxed(as_numpy(arrays[x], f"{name}: {x}"), said.layout, heads, f"{name}: {x}")}
    inputs = normalised({x: value for x, value in arrays.items() if x in NAMES}, name)
    case = case_of(inputs, name, **stated)
    stages = {x: as_numpy(value, f"{name}: {x}") for x, value in arrays.items() if x in STAGES}
    stages[OUT] = boxed(stages[OUT], said.layout, case.heads, f"{name}: out")
    if LSE in stages:
        layout = said.lse_layout or "".join(axis for axis in "bhs" if axis != "b" or "b" in said.layout)
        stages[LSE] = boxed(stages[LSE], layout, case.heads, f"{name}: lse")
    return assembled(name, case, inputs, stages, said.contract)


def boxed(x: np.ndarray, layout: str, heads: int | None, what: str) -> np.ndarray:
    """An array with the axes `layout` as [b, h, s, d], or [b, h, s] without dims; x is heads and dims in one axis."""
    if x.ndim != len(layout):
        raise Refusal(f"{what} has shape {list(x.shape)}; the layout {layout} has {len(layout)} axes")
    if "x" in layout:
        at = layout.index("x")
        if not heads or x.shape[at] % heads:
            raise Refusal(
                f"{what} has {x.shape[at]} numbers along x, heads and dims in one: [case] says heads and kv_heads; got "
                f"{heads}"
            )
        x = x.reshape(*x.shape[:at], heads, x.shape[at] // heads, *x.shape[at + 1 :])
        layout = layout.replace("x", "hd")
    dims = BOX if "d" in layout else "bhs"
    x = x.transpose([layout.index(axis) for axis in dims if axis in layout])
    for place, axis in enumerate(dims):
        x = x if axis in layout else np.expand_dims(x, place)
    return np.ascontiguousarray(x)
