"""The manifest of a trace at rest: which fields it may have, and what each may hold."""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from workbench.refusal import Refusal

BACKENDS = ("foreign", "emulator", "cuda")


def _names(x: Any) -> bool:
    return isinstance(x, list) and all(isinstance(name, str) for name in x)


def _of(kind: type) -> Callable[[Any], bool]:
    return lambda x: isinstance(x, kind)


def _stages(x: Any) -> bool:
    records = isinstance(x, dict) and x and all(isinstance(one, dict) for one in x.values())
    return bool(records) and all(
        isinstance(one.get("axes"), str)
        and isinstance(one.get("statistics", {}), dict)
        and {*one} <= {"axes", "statistics"}
        for one in x.values()
    )


#: field -> what it is where it is not given (... where it must be), its rule in words, and whether a value keeps it
_FIELDS: Mapping[str, tuple[Any, str, Callable[[Any], bool]]] = {
    "target": (..., "a text, the kernel's name", _of(str)),
    "checksum": (
        None,
        "64 hexadecimal digits",
        lambda x: isinstance(x, str) and re.fullmatch("[0-9a-f]{64}", x) is not None,
    ),
    "stages": (..., 'an object of stage name -> {"axes": letters}, with at least one stage', _stages),
    "algorithm": (None, "a text", _of(str)),
    "case": ({}, "an object of fields of a case", _of(dict)),
    "contract": ({}, "an object of fields of a contract", _of(dict)),
    "window": (None, 'a text such as "b=0,h=3,q=64:128"', _of(str)),
    "requested": ([], "a list of stages", _names),
    "put_in": ([], "a list of stages", _names),
    "sparse": ([], "a list of stages", _names),
    "backend": ("foreign", f"one of {', '.join(BACKENDS)}", lambda x: x in BACKENDS),
    "faults": ([], "a list of texts", _names),
    "versions": (
        {},
        "an object of name -> text",
        lambda x: isinstance(x, dict) and all(isinstance(one, str) for one in x.values()),
    ),
    "notes": ([], "a list of texts", _names),
    "gates": ([], "a list of texts", _names),
    "provenance": (None, "an object", _of(dict)),
}


def checked(text: str, schema: str) -> dict[str, Any]:
    """The manifest in JSON, with every field; Refusal for another schema, and for a field that is missing, unknown or
    breaks its rule.
    """
    try:
        manifest = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise Refusal(f"the manifest is not JSON ({error})") from None
    if not isinstance(manifest, dict) or manifest.get("schema") != schema:
        found = manifest.get("schema") if isinstance(manifest, dict) else manifest
        raise Refusal(f"the manifest must have schema {schema!r}; got {found!r}")
    if unknown := sorted({*manifest} - {*_FIELDS, "schema"}):
        raise Refusal(f"the manifest has unknown fields {', '.join(unknown)}; its fields are {', '.join(_FIELDS)}")
    found = {}
    for name, (default, rule, holds) in _FIELDS.items():
        if name not in manifest:
            if default is ...:
                raise Refusal(f"the manifest lacks {name!r}, {rule}")
            found[name] = default
            continue
        if not holds(manifest[name]):
            raise Refusal(f"the manifest's {name!r} must be {rule}; got {json.dumps(manifest[name])}")
        found[name] = manifest[name]
    return found
