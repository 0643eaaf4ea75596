"""Inputs that are not a case's own, as arrays: q, k and v, or 8-bit codes and scales in their place, and
a mask and a bias beside them.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from workbench.arrays import as_numpy
from workbench.case.case import Case
from workbench.case.formats import BY_DTYPE
from workbench.case.stages import INPUTS, MASKS, QUANTISED_INPUTS
from workbench.floats import DTYPES, FLOATS
from workbench.refusal import Refusal

Arrays = Mapping[str, np.ndarray]

NAMES = (*INPUTS, *QUANTISED_INPUTS, *MASKS)
#: dtypes of codes
CODES = (np.dtype(np.uint8), *BY_DTYPE)


def normalised(given: Any, where: str) -> dict[str, np.ndarray]:
    """The inputs in NumPy: `given` is (q, k, v) or a mapping of names to arrays of any library that speaks DLPack.

    q, k, v are float32, float16 or bfloat16, alike; codes_* uint8 or float8, [batch, head, row, dim]; scale_* [head] or
    one number for all heads, which become float32 [1]; mask (bool, True: visible) and bias (added to scaled scores)
    [query, key] or [batch, head, query, key], of size 1 along axes where they are the same. Refusal for an unknown
    name, another dtype, codes without their scale, and where one of q, k and v is given neither itself nor as codes;
    `where` names the inputs in messages.
    """
    named = given if isinstance(given, Mapping) else _in_order(given, where)
    if unknown := [name for name in named if name not in NAMES]:
        raise Refusal(f"{where}: inputs are {', '.join(NAMES)}; got {', '.join(unknown)}")
    arrays = {name: _read(name, named[name], where) for name in NAMES if name in named}
    for x in INPUTS:
        halves = [name for name in (f"codes_{x}", f"scale_{x}") if name in arrays]
        if len(halves) == 1:
            raise Refusal(f"{where}: codes and scales come in pairs; {halves[0]} is alone")
        if not halves and x not in arrays:
            raise Refusal(f"{where}: {x} is missing; give {x}, or codes_{x} and scale_{x}")
    dtypes = {str(arrays[x].dtype) for x in INPUTS if x in arrays}
    if len(dtypes) > 1:
        raise Refusal(f"{where}: q, k and v must have one dtype; got {', '.join(sorted(dtypes))}")
    formats = {BY_DTYPE[arrays[f"codes_{x}"].dtype] for x in INPUTS if _float8(arrays.get(f"codes_{x}"))}
    if len(formats) > 1:
        raise Refusal(f"{where}: codes must have one format; got {', '.join(sorted(formats))}")
    return arrays


def _in_order(given: Any, where: str) -> dict[str, Any]:
    """(q, k, v) by name."""
    values = tuple(given) if isinstance(given, Iterable) else ()
    if len(values) != len(INPUTS):
        got = f"{len(values)} of them" if isinstance(given, Iterable) else type(given).__name__
        raise Refusal(f"{where}: inputs are a file, (q, k, v), or a mapping of names to arrays; got {got}")
    return dict(zip(INPUTS, values, strict=True))


def _read(name: str, value: Any, where: str) -> np.ndarray:
    kind = name.partition("_")[0]
    accepted = {"codes": CODES, "scale": FLOATS, "mask": (np.dtype(bool),)}.get(kind, tuple(DTYPES.values()))
    array = as_numpy(value, f"{where}: {name}", accepted)
    if name in MASKS:
        if array.ndim not in (2, 4):
            raise Refusal(
                f"{where}: {name} must have axes [query key] or [batch head query key]; got shape {list(array.shape)}"
            )
        if name == "bias" and np.any(np.isnan(array) | (array == np.inf)):
            raise Refusal(f"{where}: bias must hold finite numbers or -inf; it holds {array[~(array < np.inf)][0]}")
        return array
    if kind != "scale":
        if array.ndim != 4 or 0 in array.shape:
            raise Refusal(f"{where}: {name} must have axes [batch head row dim]; got shape {list(array.shape)}")
        return array
    stretched = array.reshape(-1)
    if array.ndim > 1 and stretched.size != max(array.shape):
        raise Refusal(f"{where}: {name} is one number a head, [head], or one for all; got shape {list(array.shape)}")
    with np.errstate(over="ignore"):
        scale = stretched.astype(np.float32)
    if not np.all(np.isfinite(scale)) or np.any(scale < 0) or np.any(scale != stretched.astype(np.float64)):
        raise Refusal(f"{where}: {name} must hold finite numbers of float32, 0 or more; got {stretched.tolist()}")
    return scale


def by_name(case: Case, given: Arrays | None = None) -> dict[str, np.ndarray]:
    """The inputs `given` (`normalised`), else the case's own."""
    return dict(zip(INPUTS, case.inputs(), strict=True)) if given is None else dict(given)


def fields(arrays: Arrays) -> dict[str, Any]:
    """The fields of a case that inputs tell."""
    found = {x: arrays[x] if x in arrays else arrays[f"codes_{x}"] for x in INPUTS}
    (batch, heads, seqlen_q, head_dim), (_, kv_heads, seqlen_k, _) = found["q"].shape, found["k"].shape
    told: dict[str, Any] = {"batch": batch, "heads": heads, "kv_heads": kv_heads}
    told |= {"seqlen_q": seqlen_q, "seqlen_k": seqlen_k, "head_dim": head_dim}
    floats = [arrays[x] for x in INPUTS if x in arrays]
    formats = [BY_DTYPE[array.dtype] for name, array in arrays.items() if name in QUANTISED_INPUTS and _float8(array)]
    if floats:
        told["dtype"] = str(floats[0].dtype)
    if formats:
        told["codes"] = formats[0]
    return told


def put_in(arrays: Arrays, case: Case) -> dict[str, np.ndarray]:
    """The codes, uint8, and scales, float32 [head], among the inputs, as a quantised kernel takes them."""
    sizes = {"q": case.heads, "k": case.kv_heads, "v": case.kv_heads}
    found = {}
    for name in QUANTISED_INPUTS:
        if name in arrays and name.startswith("codes"):
            found[name] = arrays[name].view(np.uint8)
        elif name in arrays:
            scale, heads = arrays[name], sizes[name[-1]]
            found[name] = np.repeat(scale, heads) if scale.size == 1 else scale
    return found


def _float8(array: np.ndarray | None) -> bool:
    return array is not None and array.dtype in BY_DTYPE
