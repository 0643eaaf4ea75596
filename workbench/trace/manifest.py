"""The manifest of a trace at rest, and of what a rank leaves: where it stands in a file, which fields it may have, and
what each may hold.
"""

import json
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from workbench.case.fields import FIELDS
from workbench.records import Rule, one_of
from workbench.refusal import Refusal

KEY = "workbench"  #: of the manifest in the metadata of a safetensors file
OF_OPERATION = "workbench-operation"  #: the same of a run of an operation beside attention
BACKENDS = ("foreign", "emulator", "cuda")


def of_type(kind: type, words: str) -> Rule:
    """A value of JSON of one kind."""
    return Rule(words, lambda x: isinstance(x, kind))


def list_of(words: str, known: Collection[str] | None = None) -> Rule:
    """A list of texts, which are those `known` where there are such."""

    def holds(x: Any) -> bool:
        texts = isinstance(x, list) and all(isinstance(one, str) for one in x)
        return texts and (known is None or {*x} <= {*known})

    return Rule(words, holds)


def _stages(x: Any) -> bool:
    records = isinstance(x, dict) and x and all(isinstance(one, dict) for one in x.values())
    return bool(records) and all(
        isinstance(one.get("axes"), str) and {*one} <= {"axes", "statistics"} for one in x.values()
    )


def _versions(x: Any) -> bool:
    return isinstance(x, dict) and all(isinstance(one, str) for one in x.values())


def _lines(x: Any) -> bool:
    kinds = {"path": str, "line": int, "text": str}
    return isinstance(x, dict) and all(
        isinstance(one, dict) and {name: type(value) for name, value in one.items()} == kinds for one in x.values()
    )


def _ranks(x: Any) -> bool:
    return isinstance(x, list) and all(
        isinstance(one, dict)
        and {*one} == {"keys", "queries"}
        and all(_whole_numbers(some) for ranges in one.values() for some in ranges)
        for one in x
    )


def _whole_numbers(x: Any) -> bool:
    return isinstance(x, list) and len(x) == 3 and all(isinstance(i, int) for i in x) and x[2] > 0


_NAMES, _TEXTS = list_of("a list of stages"), list_of("a list of strings")
_HASH = Rule("64 hexadecimal digits", lambda x: isinstance(x, str) and re.fullmatch("[0-9a-f]{64}", x) is not None)

#: field -> what it is where it is not given (... where it must be), and its rule
Fields = Mapping[str, tuple[Any, Rule]]
_FIELDS: Fields = {
    "target": (..., of_type(str, "a string: the kernel's name")),
    "checksum": (None, _HASH),
    "stages": (..., Rule('an object of stage name -> {"axes": letters}, with at least one stage', _stages)),
    "algorithm": (None, of_type(str, "a string")),
    "case": ({}, of_type(dict, "an object of fields of a case")),
    "contract": ({}, of_type(dict, "an object of fields of a contract")),
    "window": (None, of_type(str, 'a string such as "b=0,h=3,q=64:128"')),
    "requested": ([], _NAMES),
    "put_in": ([], _NAMES),
    "sparse": ([], _NAMES),
    "backend": ("foreign", one_of(BACKENDS)),
    "faults": ([], _TEXTS),
    "versions": ({}, Rule("an object of name -> text", _versions)),
    "notes": ([], _TEXTS),
    "gates": ([], _TEXTS),
    "provenance": (None, of_type(dict, "an object")),
    "ranks": ([], Rule('a list of {"keys": [[start, stop, step]], "queries": ...}, one for each rank', _ranks)),
    "lines": ({}, Rule('an object of stage -> {"path": text, "line": number, "text": text}', _lines)),
}


def metadata_of(path: Path) -> Mapping[str, str] | None:
    """The metadata of a safetensors file; None where nothing can be read."""
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        return None
    try:
        with safe_open(path, framework="numpy") as file:
            return file.metadata() or {}
    except SafetensorError:
        return None


def text_of(path: Path) -> str | None:
    """The manifest in a safetensors file, as it stands there; None where there is none, or nothing can be read."""
    return (metadata_of(path) or {}).get(KEY)


def schema_of(path: Path) -> str | None:
    """The schema that the manifest in a file states; None where there is none."""
    try:
        found = json.loads(text_of(path) or "null")
    except (json.JSONDecodeError, RecursionError):
        return None
    return found.get("schema") if isinstance(found, dict) else None


def fields_of_case(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """What the manifest states of the case; Refusal for a field that cases do not have."""
    stated: dict[str, Any] = manifest["case"]
    if unknown := sorted({*stated} - {*FIELDS}):
        raise Refusal(f"the case has unknown fields {', '.join(unknown)}; its fields are {', '.join(FIELDS)}")
    return stated


def checked(text: str, schema: str, known: Fields = _FIELDS) -> dict[str, Any]:
    """The manifest in JSON, with every field of those `known`, a trace's; Refusal for another schema, and for a field
    that is missing, unknown or breaks its rule.
    """
    try:
        manifest = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise Refusal(f"the manifest is not JSON ({error})") from None
    if not isinstance(manifest, dict) or manifest.get("schema") != schema:
        found = manifest.get("schema") if isinstance(manifest, dict) else manifest
        raise Refusal(f"the manifest must have schema {schema!r}; got {found!r}")
    if unknown := sorted({*manifest} - {*known, "schema"}):
        raise Refusal(f"the manifest has unknown fields {', '.join(unknown)}; its fields are {', '.join(known)}")
    found = {}
    for name, (default, rule) in known.items():
        if name not in manifest:
            if default is ...:
                raise Refusal(f"the manifest lacks {name!r}, {rule.words}")
            found[name] = default
            continue
        if not rule.holds(manifest[name]):
            raise Refusal(f"the manifest's {name!r} must be {rule.words}; got {json.dumps(manifest[name])}")
        found[name] = manifest[name]
    return found
