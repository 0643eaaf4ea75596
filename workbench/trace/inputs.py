"""Inputs in files: .safetensors (a trace too), .npz and .pt; and the case of them."""

import io
import re
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from workbench.arrays import module
from workbench.case.case import Case
from workbench.case.fields import DRAWN, GIVEN, of_role
from workbench.case.formats import said_by
from workbench.case.inputs import NAMES, Arrays, fields, normalised
from workbench.case.stages import STAGES
from workbench.files import write_atomically
from workbench.refusal import Refusal
from workbench.trace.join import is_trace, load_all
from workbench.trace.manifest import text_of
from workbench.trace.trace import Trace

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
#: what .npz calls bfloat16, of which it has no name
_BFLOAT16 = np.dtype("V2")


def load(path: str | Path) -> dict[str, np.ndarray]:
    """The inputs in a file, by name, in the dtypes of `normalised`: .safetensors (a trace too, also in several files as
    of `join.files_of`: what its kernel read), .npz, or .pt, a dict of tensors. Of what a run left beside them (`plain`)
    the stages are not read. Nothing in the file is executed. Refusal for a file that is none of them, is damaged, or
    holds anything else.
    """
    path = Path(path)
    if (trace := _trace(path)) is not None:
        return {**trace.inputs, **{name: trace.stages[name] for name in trace.put_in}}
    return normalised({x: value for x, value in read(path).items() if x in NAMES or x not in STAGES}, str(path))


def save(arrays: Arrays, path: str | Path) -> None:
    """Write inputs by name (`drawn`) as .safetensors or .npz; `load` reads them. Refusal for another suffix, for a file
    that is there and holds no inputs, and for a dtype that .npz has no name for.
    """
    path = Path(path)
    if path.suffix not in (".safetensors", ".npz"):
        raise Refusal(f"{path}: inputs must be written as .safetensors or .npz; got {path.suffix or 'no suffix'}")
    if path.exists():
        try:
            if _trace(path) is None:
                normalised(read(path), str(path))
        except Refusal as refusal:
            raise Refusal(f"inputs may overwrite only a file of inputs; give another file\n{refusal}") from None
    whole = {name: np.ascontiguousarray(x) for name, x in arrays.items()}
    if path.suffix == ".safetensors":
        from safetensors.numpy import save as serialised

        return write_atomically(path, serialised(whole))
    if unknown := [name for name, x in whole.items() if x.dtype.kind == "V" or x.dtype.name not in np.sctypeDict]:
        raise Refusal(f"{path}: .npz has no {whole[unknown[0]].dtype}, which {unknown[0]} is: write .safetensors")
    buffer = io.BytesIO()
    np.savez(buffer, **whole)  # type: ignore[arg-type]
    write_atomically(path, buffer.getvalue())


def read(path: Path) -> Mapping[str, Any]:
    """The arrays in a file by name, as its library gives them, whatever they are; files as of `load`."""
    if not path.is_file():
        raise Refusal(f"{path}: no such file")
    readers = {".safetensors": _safetensors, ".npz": _npz, ".pt": _pt}
    if path.suffix not in readers:
        raise Refusal(f"{path}: arrays must be in {', '.join(readers)}; got {path.suffix or 'no suffix'}")
    return readers[path.suffix](path)


def read_any(path: Path) -> Any:
    """What a file holds, of a .pt file whatever of tensors, dicts, lists and numbers; others as of `read`."""
    return _of_torch(path) if path.suffix == ".pt" and path.is_file() else read(path)


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
    if said_by(told.get("codes"), stated.get("codes")):
        told |= {"codes": stated["codes"]} if stated.get("codes") else {}
    for name, value in told.items():
        if name in stated and stated[name] != value:
            raise Refusal(f"{where} has {name}={value}; got {name}={stated[name]}")
    case = Case(**{**stated, **told, "distribution": GIVEN})
    for name in of_role(DRAWN):
        if name in stated and not (name == "seed" and case.draws_beside):
            raise Refusal(f"{name} is for drawn inputs; these come from {where}")
    return case


def _trace(path: Path) -> Trace | None:
    """The trace in a safetensors file, in several, or in a folder, if it is one."""
    if not is_trace(str(path)) or (path.is_file() and text_of(path) is None):
        return None  # of a file that cannot be read `read` says what is wrong with it
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
            held = {name: file[name] for name in file.files}
            return {name: x.view(ml_dtypes.bfloat16) if x.dtype == _BFLOAT16 else x for name, x in held.items()}
    except (ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
        raise Refusal(f"{path}: not a complete npz file of plain arrays ({error})") from None


def _pt(path: Path) -> Mapping[str, Any]:
    held = _of_torch(path)
    if not isinstance(held, Mapping):
        raise Refusal(f"{path}: must hold a dict of name -> tensor; got {type(held).__name__}")
    return held


def _of_torch(path: Path) -> Any:
    torch = module("torch", "a .pt file")
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises many kinds, from zipfile's to pickle's, with advice to load it unsafely
        found = re.search(r"Unsupported global: GLOBAL (\S+)", str(error))
        if found and zipfile.is_zipfile(path):
            raise Refusal(f"{path}: must hold only a dict of name -> tensor; it holds a {found[1]}") from None
        raise Refusal(f"{path}: not a complete .pt file as torch.save writes it") from None
