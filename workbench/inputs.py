"""Inputs that are not a case's own, from a file or a caller: q, k and v, or 8-bit codes and scales in their place, and
a mask and a bias beside them.
"""

import io
import re
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from workbench.arrays import FLOATS, as_numpy, module
from workbench.case import DTYPES, GIVEN, Case
from workbench.quantize import SCALINGS, quantize
from workbench.refusal import Refusal
from workbench.stages import INPUTS, MASKS, QUANTISED_INPUTS
from workbench.trace import write_atomically

if TYPE_CHECKING:
    from workbench.trace import Trace

Arrays = Mapping[str, np.ndarray]

NAMES = (*INPUTS, *QUANTISED_INPUTS, *MASKS)
#: dtype of codes -> their format; uint8 codes may be of any
FORMATS: Mapping[np.dtype, str] = {
    np.dtype(ml_dtypes.float8_e4m3fn): "e4m3",
    np.dtype(ml_dtypes.float8_e5m2): "e5m2",
}
#: dtypes of codes
CODES = (np.dtype(np.uint8), *FORMATS)
#: dtype in a safetensors file -> NumPy's; the library's own loader knows no float8
_SAFETENSORS: Mapping[str, np.dtype] = {
    "F64": np.dtype(np.float64),
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn),
    "F8_E5M2": np.dtype(ml_dtypes.float8_e5m2),
    "I8": np.dtype(np.int8),
    "I16": np.dtype(np.int16),
    "I32": np.dtype(np.int32),
    "I64": np.dtype(np.int64),
    "U8": np.dtype(np.uint8),
    "BOOL": np.dtype(bool),
}


def load(path: str | Path) -> dict[str, np.ndarray]:
    """The inputs in a file, by name, in the dtypes of `normalised`: .safetensors (a trace too, also in several files as
    of `joined.files_of`: what its kernel read), .npz, or .pt, a dict of tensors. Nothing in the file is executed.
    Refusal for a file that is none of them, is damaged, or holds anything else.
    """
    path = Path(path)
    if (trace := _trace(path)) is not None:
        return {**trace.inputs, **{name: trace.stages[name] for name in trace.put_in}}
    return normalised(read(path), str(path))


def save(arrays: Arrays, path: str | Path) -> None:
    """Write inputs by name (`drawn`) as .safetensors or .npz; `load` reads them. Refusal for another suffix, for a file
    that is there and holds no inputs, and for a dtype that .npz has no name for.
    """
    path = Path(path)
    if path.suffix not in (".safetensors", ".npz"):
        raise Refusal(f"{path}: inputs are written as .safetensors or .npz; got {path.suffix or 'no suffix'}")
    if path.exists():
        try:
            load(path)
        except Refusal as refusal:
            raise Refusal(f"inputs take the place of others only; give another file\n{refusal}") from None
    whole = {name: np.ascontiguousarray(x) for name, x in arrays.items()}
    if path.suffix == ".safetensors":
        from safetensors.numpy import save as serialised

        return write_atomically(path, serialised(whole))
    if unknown := [name for name, x in whole.items() if x.dtype.kind == "V" or x.dtype.name not in np.sctypeDict]:
        raise Refusal(f"{path}: .npz has no {whole[unknown[0]].dtype}, which {unknown[0]} is: write .safetensors")
    buffer = io.BytesIO()
    np.savez(buffer, **whole)  # type: ignore[arg-type]
    write_atomically(path, buffer.getvalue())


def drawn(case: Case) -> dict[str, np.ndarray]:
    """What kernels read of a case: q, k and v; where it has codes their codes and scales, too, as a function under test
    is given them.
    """
    arrays = by_name(case)
    if case.codes is None:
        return arrays
    for x in INPUTS:
        made = quantize(arrays[x], case.codes, saturate=True, scaling=case.quantiser_scale or SCALINGS[0])
        arrays |= {f"codes_{x}": made.codes, f"scale_{x}": made.scale}
    return {name: arrays[name] for name in NAMES if name in arrays}


def read(path: Path) -> Mapping[str, Any]:
    """The arrays in a file by name, as its library gives them, whatever they are; files as of `load`."""
    if not path.is_file():
        raise Refusal(f"{path}: no such file")
    readers = {".safetensors": _safetensors, ".npz": _npz, ".pt": _pt}
    if path.suffix not in readers:
        raise Refusal(f"{path}: arrays are read from {', '.join(readers)}; got {path.suffix or 'no suffix'}")
    return readers[path.suffix](path)


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
    formats = {FORMATS[arrays[f"codes_{x}"].dtype] for x in INPUTS if _float8(arrays.get(f"codes_{x}"))}
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


def taken(given: Any, where: str) -> dict[str, np.ndarray]:
    """The inputs `given`: a file as of `load`, or arrays as of `normalised`, which `where` names in messages."""
    return load(given) if isinstance(given, str | Path) else normalised(given, where)


def case_of(given: Any, where: str | None = None, **stated: Any) -> Case:
    """The case of inputs (`taken`), whose fields they do not tell are `stated`; `where` names them in messages. Refusal
    where one contradicts them.

    >>> q, k = np.zeros((1, 2, 16, 32), np.float16), np.zeros((1, 2, 48, 32), np.float16)
    >>> case = case_of((q, k, k), causal=True)
    >>> case.heads, case.seqlen_q, case.seqlen_k, case.dtype, case.causal
    (2, 16, 48, 'float16', True)
    """
    where = where or (str(given) if isinstance(given, str | Path) else "inputs")
    told = fields(taken(given, where))
    if "seqlen" in stated:
        seqlen = stated.pop("seqlen")
        stated = {"seqlen_q": seqlen, "seqlen_k": seqlen} | stated
    for name in ("seed", "distribution", "input_std"):
        if name in stated:
            raise Refusal(f"{name} is for inputs that are drawn; these come from {where}")
    for name, value in told.items():
        if name in stated and stated[name] != value:
            raise Refusal(f"{where} has {name}={value}; got {name}={stated[name]}")
    return Case(**{**stated, **told}, distribution=GIVEN)


def fields(arrays: Arrays) -> dict[str, Any]:
    """The fields of a case that inputs tell."""
    found = {x: arrays[x] if x in arrays else arrays[f"codes_{x}"] for x in INPUTS}
    (batch, heads, seqlen_q, head_dim), (_, kv_heads, seqlen_k, _) = found["q"].shape, found["k"].shape
    told: dict[str, Any] = {"batch": batch, "heads": heads, "kv_heads": kv_heads}
    told |= {"seqlen_q": seqlen_q, "seqlen_k": seqlen_k, "head_dim": head_dim}
    floats = [arrays[x] for x in INPUTS if x in arrays]
    formats = [FORMATS[array.dtype] for name, array in arrays.items() if name in QUANTISED_INPUTS and _float8(array)]
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
    return array is not None and array.dtype in FORMATS


def _trace(path: Path) -> "Trace | None":
    """The trace in a safetensors file, in several, or in a folder, if it is one."""
    from safetensors import SafetensorError, safe_open

    from workbench.joined import is_trace, load_all

    if not is_trace(str(path)):
        return None
    try:
        if path.is_file():
            with safe_open(path, framework="numpy") as file:
                if "workbench" not in (file.metadata() or {}):
                    return None
    except SafetensorError:
        return None  # `read` says what is wrong with it
    return load_all(str(path))


def _safetensors(path: Path) -> Mapping[str, Any]:
    from safetensors import SafetensorError, deserialize

    try:
        tensors = deserialize(path.read_bytes())
    except SafetensorError as error:
        raise Refusal(f"{path}: not a complete safetensors file ({error})") from None
    for name, tensor in tensors:
        if tensor["dtype"] not in _SAFETENSORS:
            raise Refusal(f"{path}: {name} has dtype {tensor['dtype']}; known are {', '.join(_SAFETENSORS)}")
    return {
        name: np.frombuffer(tensor["data"], _SAFETENSORS[tensor["dtype"]]).reshape(tensor["shape"])
        for name, tensor in tensors
    }


def _npz(path: Path) -> Mapping[str, Any]:
    try:
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except (ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
        raise Refusal(f"{path}: not a complete npz file of plain arrays ({error})") from None


def _pt(path: Path) -> Mapping[str, Any]:
    torch = module("torch", "a .pt file")
    try:
        held = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises many kinds, from zipfile's to pickle's, with advice to load it unsafely
        found = re.search(r"Unsupported global: GLOBAL (\S+)", str(error))
        if found and zipfile.is_zipfile(path):
            raise Refusal(f"{path}: must hold a dict of name -> tensor alone; it holds a {found[1]}") from None
        raise Refusal(f"{path}: not a complete .pt file as torch.save writes it") from None
    if not isinstance(held, Mapping):
        raise Refusal(f"{path}: must hold a dict of name -> tensor; got {type(held).__name__}")
    return held
