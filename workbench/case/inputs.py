"""Inputs that are not a case's own, as arrays: q, k and v, or codes and scales in their place, and
a mask and a bias beside them.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Any

import ml_dtypes
import numpy as np

from workbench.arrays import as_numpy
from workbench.case.case import Case
from workbench.case.fields import GIVEN
from workbench.case.formats import BY_DTYPE, FORMATS, TILE_ROWS, beside
from workbench.case.masks import mask_of_mod, spread
from workbench.case.stages import ALGORITHMS, INPUTS, MASKS, OF_HEADS, OF_QUANTISER, STAGES, scaled, shape
from workbench.floats import DTYPES, FLOATS
from workbench.refusal import Refusal

Arrays = Mapping[str, np.ndarray]

NAMES = (*INPUTS, *OF_QUANTISER, *MASKS, *OF_HEADS)
#: dtypes of codes
CODES = (np.dtype(np.uint8), *BY_DTYPE)
#: dtypes of scales and zero points
SCALES = (*FLOATS, *(np.dtype(x) for x in (ml_dtypes.float8_e8m0fnu, ml_dtypes.float8_e4m3fn, np.uint8, np.int32)))


def normalised(given: Any, where: str) -> dict[str, np.ndarray]:
    """The inputs in NumPy: `given` is (q, k, v) or a mapping of names to arrays of any library that speaks DLPack.

    q, k, v are float32, float16 or bfloat16, alike; codes_* uint8, int8, float8 or float4, one a byte, [batch, head,
    row, dim]; scale_* [head], or one number for all heads, which becomes float32 [1], or [batch, head, row(, block)]
    where tokens or blocks have scales, as zero_*; global_* as scales of heads; mask (bool, True: visible) and bias
    (added to scaled scores) [query, key] or [batch, head, query, key], of size 1 along axes where they are the same.
    Refusal for an unknown name, another dtype, codes without their scale, and where one of q, k and v is given neither
    itself nor as codes; `where` names the inputs in messages. Scales of tiles are [batch, head, tile], or those of
    their rows, alike.
    """
    named = given if isinstance(given, Mapping) else _in_order(given, where)
    if unknown := [name for name in named if name not in NAMES]:
        raise Refusal(f"{where}: inputs must be among {', '.join(NAMES)}; got {', '.join(unknown)}")
    arrays = {name: _read(name, named[name], where) for name in NAMES if name in named}
    for x in INPUTS:
        halves = [name for name in (f"codes_{x}", f"scale_{x}") if name in arrays]
        if len(halves) == 1:
            raise Refusal(f"{where}: quantised codes and scales come in pairs; {halves[0]} is alone")
        if not halves and x not in arrays:
            raise Refusal(f"{where}: {x} is missing; give {x}, or codes_{x} and scale_{x}")
    dtypes = {str(arrays[x].dtype) for x in INPUTS if x in arrays}
    if len(dtypes) > 1:
        raise Refusal(f"{where}: q, k and v must have one dtype; got {', '.join(sorted(dtypes))}")
    formats = {BY_DTYPE[arrays[f"codes_{x}"].dtype] for x in INPUTS if _float8(arrays.get(f"codes_{x}"))}
    if len(formats) > 1:
        raise Refusal(f"{where}: quantised codes must have one format; got {', '.join(sorted(formats))}")
    return arrays


def _in_order(given: Any, where: str) -> dict[str, Any]:
    """(q, k, v) by name."""
    values = tuple(given) if isinstance(given, Iterable) else ()
    if len(values) != len(INPUTS):
        got = f"{len(values)} of them" if isinstance(given, Iterable) else type(given).__name__
        raise Refusal(f"{where}: inputs must be a file, (q, k, v), or a mapping of names to arrays; got {got}")
    return dict(zip(INPUTS, values, strict=True))


def _read(name: str, value: Any, where: str) -> np.ndarray:
    kind = name.partition("_")[0]
    accepted = {"codes": CODES, **dict.fromkeys(("scale", "zero", "global"), SCALES)}.get(kind, tuple(DTYPES.values()))
    array = as_numpy(value, f"{where}: {name}", (np.dtype(bool),) if name.endswith("mask") else accepted)
    if name in OF_HEADS:
        if array.ndim != 1:
            raise Refusal(f"{where}: {name} must have one number per query head; got shape {list(array.shape)}")
        return array
    if name in MASKS:
        if array.ndim not in (2, 4):
            raise Refusal(
                f"{where}: {name} must have axes [query key] or [batch head query key]; got shape {list(array.shape)}"
            )
        if name == "bias" and np.any(np.isnan(array) | (array == np.inf)):
            raise Refusal(f"{where}: bias must hold finite numbers or -inf; it holds {array[~(array < np.inf)][0]}")
        return array
    if kind not in ("scale", "zero", "global"):
        if array.ndim != 4 or 0 in array.shape:
            raise Refusal(f"{where}: {name} must have axes [batch head row dim]; got shape {list(array.shape)}")
        return array
    stretched = array.reshape(-1)
    one_of_heads = array.ndim < 2 or stretched.size == max(array.shape)
    if not one_of_heads and array.ndim < 3:
        raise Refusal(
            f"{where}: {name} must have shape [head], be one number, or have axes [batch head row block]; got shape "
            f"{list(array.shape)}"
        )
    with np.errstate(over="ignore"):
        scale = stretched.astype(np.float32)
    below = -np.inf if kind == "zero" else 0
    if not np.all(np.isfinite(scale)) or np.any(scale < below) or np.any(scale != stretched.astype(np.float64)):
        shown = f"{stretched[:8].tolist()}" + (" ..." if stretched.size > 8 else "")
        raise Refusal(f"{where}: {name} must be finite float32 numbers of at least 0; got {shown}")
    return scale if one_of_heads else scale.reshape(array.shape)


def by_name(case: Case, given: Arrays | None = None) -> dict[str, np.ndarray]:
    """The inputs `given` (`normalised`), else the case's own; with what its mask_mod hides, and which probs are kept
    where it has dropout. What was given behind the end of a sequence is 0: nobody may read it.
    """
    found = dict(zip(INPUTS, case.inputs(), strict=True)) if given is None else dict(given)
    if given is not None and case.ragged:
        found |= {x: case.cut(x, found[x]) for x in INPUTS if x in found}
    if case.mask_mod is not None:
        of_mod = mask_of_mod(case)
        found["mask"] = spread(case, found["mask"]) & of_mod if "mask" in found else of_mod
    if "dropout_mask" not in found and (kept := case.dropout_mask()) is not None:
        found["dropout_mask"] = kept
    return found


def anew(case: Case, given: Arrays | None) -> tuple[Case, dict[str, np.ndarray] | None]:
    """The case and the inputs of another run of a kernel that was `given` inputs: drawn numbers of the spread of its q
    and k, between its masks and biases. None for inputs where the case's own are meant.
    """
    if given is None or case.distribution != GIVEN:
        return case, None
    spread_ = [float(np.std(given[x].astype(np.float64))) for x in "qk" if x in given]
    spread_ = [x for x in spread_ if np.isfinite(x) and x > 0]
    std = float(f"{np.sqrt(np.prod(spread_)) if len(spread_) == 2 else 1.0:.3g}")
    drawn = case.but(distribution="normal", input_std=std)
    beside = {name: x for name, x in given.items() if name in MASKS}
    if not beside:
        return drawn, None
    return case, {**dict(zip(INPUTS, drawn.inputs(), strict=True)), **beside}


def fields(arrays: Arrays) -> dict[str, Any]:
    """The fields of a case that inputs tell."""
    found = {x: arrays[x] if x in arrays else arrays[f"codes_{x}"] for x in INPUTS}
    (batch, heads, seqlen_q, head_dim), (_, kv_heads, seqlen_k, _) = found["q"].shape, found["k"].shape
    told: dict[str, Any] = {"batch": batch, "heads": heads, "kv_heads": kv_heads}
    told |= {"seqlen_q": seqlen_q, "seqlen_k": seqlen_k, "head_dim": head_dim, "head_dim_v": found["v"].shape[3]}
    told |= {name: tuple(arrays[name].tolist()) for name in OF_HEADS if name in arrays}
    floats = [arrays[x] for x in INPUTS if x in arrays]
    formats = [BY_DTYPE[array.dtype] for name, array in arrays.items() if name in OF_QUANTISER and _float8(array)]
    if floats:
        told["dtype"] = str(floats[0].dtype)
    if formats:
        told["codes"] = formats[0]
    for kind, codes in (("zero", "int4"), ("global", "nvfp4")):
        if any(name.startswith(kind) for name in arrays):
            told["codes"] = codes
    return told


def put_in(arrays: Arrays, case: Case, where: str) -> dict[str, np.ndarray]:
    """The codes, uint8, and scales, float32 with the axes of their stages, among the inputs, as a quantised kernel
    takes them. Refusal for codes without all that their format has beside them, and for what does not fit the case;
    `where` names them in messages.
    """
    found = {}
    for name in OF_QUANTISER:
        if name in arrays and name.startswith("codes"):
            found[name] = arrays[name].view(np.uint8)
        elif name in arrays:
            found[name] = _scale(name, arrays[name], case, where)
    for x in INPUTS if case.codes is not None else ():
        due = [f"codes_{x}", *beside(str(case.codes), x)]
        here = [name for name in OF_QUANTISER if name in found and name.endswith(f"_{x}")]
        if len(here) == 1:
            raise Refusal(f"{where}: quantised codes and scales come in pairs; {here[0]} is alone")
        if here and {*here} != {*due}:
            raise Refusal(f"{where}: {case.codes} codes need {', '.join(due)}; got {', '.join(here)}")
        if here and (largest := int(found[f"codes_{x}"].max())) >= (n := len(FORMATS[str(case.codes)].values)):
            raise Refusal(f"{where}: {case.codes} codes must be 0 to {n - 1}, one per byte; codes_{x} holds {largest}")
    return found


def _scale(name: str, scale: np.ndarray, case: Case, where: str) -> np.ndarray:
    """A scale or zero point with the axes of its stage; one number is that of all."""
    stage = ALGORITHMS[scaled("fp8_split_k", case.scale_of)].get(name, STAGES[name])
    wanted = shape(stage, case.sizes) if set(stage.axes) <= {"kv_h", *case.sizes} else scale.shape
    if scale.size == 1:
        return np.full(wanted, scale.ravel()[0])
    of_tiles = (*wanted[:2], -(-wanted[2] // TILE_ROWS)) if case.scale_of == "tile" else None
    if of_tiles and scale.size == math.prod(of_tiles):
        return _of_rows(scale.reshape(of_tiles), wanted[2])
    if scale.size == math.prod(wanted):
        found = scale.reshape(wanted)
        if of_tiles and not np.array_equal(found, _of_rows(found[:, :, ::TILE_ROWS, 0], wanted[2]), equal_nan=True):
            raise Refusal(
                f"{where}: {name} must be the same in the {TILE_ROWS} rows of a tile (scale_of=tile); got other values"
            )
        return found
    axes, also = " ".join(stage.axes), f", or {list(of_tiles)}, one per tile," if of_tiles else ""
    raise Refusal(
        f"{where}: {name} has axes [{axes}] and must have shape {list(wanted)}{also} for this case; got "
        f"{list(scale.shape)}"
    )


def _of_rows(of_tiles: np.ndarray, rows: int) -> np.ndarray:
    """Scales of tiles [batch, head, tile] as those of their rows, [batch, head, row, 1]."""
    return of_tiles[:, :, np.arange(rows) // TILE_ROWS, None]


def _float8(array: np.ndarray | None) -> bool:
    return array is not None and array.dtype in BY_DTYPE
