"""A trace at rest: a safetensors file of q, k, v and the stages by name, with a JSON manifest in its metadata.

Any program can write one (docs/reference/trace-format.md). Nothing in it is executed.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from workbench.case import contract
from workbench.case.box import case_of, parse, with_causal
from workbench.case.case import Case
from workbench.case.fields import DRAWN, GIVEN, QUANTISED, of_role
from workbench.case.inputs import fields as fields_of_inputs
from workbench.case.options import Options
from workbench.case.ranks import of_lists
from workbench.case.stages import ALGORITHMS, INPUTS, MASKS, STAGES, algorithm_of, stages_of
from workbench.files import write_atomically
from workbench.line import Line
from workbench.refusal import Refusal
from workbench.suggested import command
from workbench.trace.manifest import KEY, OF_OPERATION, checked, fields_of_case
from workbench.trace.provenance import of_dict as provenance_of
from workbench.trace.seen import promise_of
from workbench.trace.trace import Trace, check

SCHEMA = "workbench.trace/2"
#: suffixes of other formats, which `load` goes by
OTHERS = (".npz", ".pt")
#: the checksum in a manifest, and what stands in its place while the file is hashed
_CHECKSUM, _BLANK = re.compile(r'"checksum":\s*"([0-9a-f]{64})"'), "0" * 64
#: dtypes of arrays, as safetensors names them
_FLOATS = ("F16", "BF16", "F32", "F64")
#: fields of a case that a box changes, which the arrays of one therefore do not tell
_OF_BOX = ("batch", "heads", "kv_heads", "seqlen_q")


def save(trace: Trace, path: str | Path) -> None:
    """Write `trace` as a safetensors file; a failed run leaves no half-written file. Refusal for a `path` that says
    another format, .npz or .pt, which `load` would read as that.

    >>> from tempfile import TemporaryDirectory
    >>> from workbench import Case, load, run
    >>> trace = run("examples/numpy_attention.py:attention", Case(seqlen=16, head_dim=8))
    >>> with TemporaryDirectory() as folder:
    ...     save(trace, f"{folder}/run.safetensors")
    ...     load(f"{folder}/run.safetensors")
    <Trace of examples/numpy_attention.py:attention: scores, out>
    """
    from safetensors.numpy import save as serialised

    if Path(path).suffix in OTHERS:
        raise Refusal(f"{path}: a trace must be written as .safetensors; got {Path(path).suffix}")
    known = ALGORITHMS[trace.algorithm]
    manifest = {
        "schema": SCHEMA,
        "target": trace.target,
        "algorithm": trace.algorithm,
        "case": trace.case_run.as_dict(),
        "contract": trace.contract.as_dict(),
        "stages": {name: {"axes": known[name].axes} for name in trace.stages},
        "window": None if trace.box is None else str(trace.box),
        "requested": list(trace.requested),
        "put_in": list(trace.put_in),
        "sparse": list(trace.sparse),
        "backend": trace.backend,
        "faults": list(trace.faults),
        "versions": dict(trace.versions),
        "notes": list(trace.notes),
        "gates": list(trace.gates),
        "provenance": None if trace.provenance is None else trace.provenance.as_dict(),
        "ranks": [one.as_lists() for one in trace.ranks],
        "lines": {name: asdict(line) for name, line in trace.lines.items()},
    }
    inputs = trace.inputs if trace.as_given is None else trace.as_given.inputs
    sparse = {f"sparse.{name}": errors for name, errors in trace.sparse.items()}
    arrays = {name: np.ascontiguousarray(array) for name, array in {**inputs, **trace.stages, **sparse}.items()}
    text = json.dumps({"checksum": _BLANK} | {key: x for key, x in manifest.items() if x})
    content = serialised(arrays, {KEY: text})
    at = content.index(_BLANK.encode())  # the manifest begins with it, and what comes before is lengths and dtypes
    checksum = hashlib.sha256(content).hexdigest()
    write_atomically(Path(path), b"".join([content[:at], checksum.encode(), content[at + len(checksum) :]]))


def load(path: str | Path) -> Trace:
    """The trace in `path`. Raises Refusal for a file that is truncated, is no trace, does not have the checksum that it
    states, whose manifest says what it may not, or that lacks or misshapes a stage.
    """
    text, arrays = _read(Path(path))
    _check_bytes(Path(path), text)
    try:
        manifest = checked(text, SCHEMA)
        made = check(_trace(manifest, arrays), str(path))
    except Refusal as refusal:
        raise Refusal(f"{path}: {str(refusal).removeprefix(f'{path}: ')}") from None
    return replace(made, called_with=Options(trace=str(path)))


def _read(path: Path) -> tuple[str, dict[str, np.ndarray]]:
    """The manifest and the arrays in a file."""
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        raise Refusal(f"{path}: no such file")
    try:
        with safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
            if KEY not in metadata:
                if OF_OPERATION in metadata:
                    raise Refusal(
                        f"{path}: a run of an operation: load it with workbench.operations.stored.load, "
                        f"or judge it with `{command('diff', str(path))}`"
                    )
                found = sorted(metadata) or "no metadata"
                raise Refusal(f"{path}: a trace carries its manifest as metadata {KEY!r}; this file has {found}")
            names = list(file.keys())
            for name in names:
                kind = file.get_slice(name).get_dtype()
                wanted = ("BOOL",) if name.endswith("mask") else _FLOATS
                wanted = ("U8",) if name.startswith("codes") else wanted
                if kind not in wanted:
                    raise Refusal(f"{path}: {name} has dtype {kind}; it must have {' or '.join(wanted)}")
            return metadata[KEY], {name: file.get_tensor(name) for name in names}
    except SafetensorError as error:
        raise Refusal(f"{path}: not a complete safetensors file ({error})") from None


def _check_bytes(path: Path, text: str) -> None:
    """Refusal where the file is not what the checksum of its manifest, the `text`, was made of; a manifest may have
    none.
    """
    if (stated := _CHECKSUM.search(text)) is None:
        return
    with path.open("rb") as file:
        size = file.read(8)
        header = file.read(int.from_bytes(size, "little")).replace(stated[1].encode(), _BLANK.encode(), 1)
        hashed = hashlib.sha256(size + header)
        while part := file.read(2**24):
            hashed.update(part)
    if hashed.hexdigest() != stated[1]:
        raise Refusal(
            f"{path}: damaged, or changed since it was written: its checksum is {hashed.hexdigest()}, its manifest "
            f'states {stated[1]}; if you changed it on purpose, delete "checksum" from its manifest'
        )


def _trace(manifest: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> Trace:
    """The trace of a manifest and its arrays; Refusal where they do not fit each other."""
    stages: Mapping[str, Mapping[str, Any]] = manifest["stages"]
    sparse = {name: f"sparse.{name}" for name in manifest["sparse"]}
    if counted := [name for name, one in stages.items() if "statistics" in one]:  # which older files have
        raise Refusal(
            f"statistics of {', '.join(counted)} are no longer judged: write the elements (of a large stage, those in "
            'a "window" of the run), or leave the stage out'
        )
    if missing := [name for name in (*stages, *sparse.values()) if name not in arrays]:
        raise Refusal(f"the manifest names {', '.join(missing)}, which the file does not hold")
    if unnamed := [name for name in arrays if name not in (*INPUTS, *MASKS, *stages, *sparse.values())]:
        raise Refusal(f"the file holds {', '.join(unnamed)}, which the manifest does not name")
    inputs = {name: arrays[name] for name in (*INPUTS, *MASKS) if name in arrays}
    case = _case(manifest, {**inputs, **{name: arrays[name] for name in manifest["put_in"] if name in arrays}})
    algorithm = _algorithm(manifest, case)
    known = ALGORITHMS[algorithm]
    for name, one in stages.items():
        if one["axes"] != known[name].axes:
            raise Refusal(f"stage {name} has axes {known[name].axes!r}, outermost first; got {one['axes']!r}")
    promise = _contract(manifest, case, {name: arrays[name] for name in stages}, inputs)
    if "assumed" not in manifest["contract"]:
        case = case.but(block_k=promise.block_k, splits=promise.splits)
    box = None if manifest["window"] is None else parse(manifest["window"], case)
    return Trace(
        target=manifest["target"],
        algorithm=algorithm,
        case=case if box is None else case_of(case, box),
        contract=promise,
        inputs=inputs if box is None else with_causal(inputs, case, box),
        stages={name: arrays[name] for name in known if name in stages},
        requested=tuple(manifest["requested"]),
        put_in=tuple(manifest["put_in"]),
        backend=manifest["backend"],
        faults=tuple(manifest["faults"]),
        versions=manifest["versions"],
        sparse={name: arrays[errors] for name, errors in sparse.items()},
        notes=tuple(manifest["notes"]),
        gates=tuple(manifest["gates"]),
        provenance=None if manifest["provenance"] is None else provenance_of(manifest["provenance"]),
        ranks=tuple(map(of_lists, manifest["ranks"])),
        find_lines=partial(dict, {name: Line(**line) for name, line in manifest["lines"].items()}),
        box=box,
        whole=None if box is None else case,
    )


def _case(manifest: Mapping[str, Any], read: Mapping[str, np.ndarray]) -> Case:
    """The case that the manifest states; what it does not state is told by what the kernel read, else the default."""
    stated = fields_of_case(manifest)
    either = [read.get(x, read.get(f"codes_{x}")) for x in INPUTS]
    told = fields_of_inputs(read) if all(array is not None and array.ndim == 4 for array in either) else {}
    if manifest["window"] is not None:
        told = {name: value for name, value in told.items() if name not in _OF_BOX}
    drawn = {*of_role(DRAWN)} & set(stated)
    case = Case(**{**({} if drawn else {"distribution": GIVEN}), **told, **stated})
    unscaled = case.codes is not None and case.quantiser_scale is None
    # as of a function under test
    return case.but(quantiser_scale=QUANTISED["quantiser_scale"][0]) if unscaled else case


def _algorithm(manifest: Mapping[str, Any], case: Case) -> str:
    """Whose stages the manifest names."""
    names = [*manifest["stages"], *manifest["requested"], *manifest["put_in"], *manifest["sparse"]]
    stated = manifest["algorithm"]
    if stated is None:
        splits = manifest["contract"].get("splits", case.splits) not in (None, 1)
        if unknown := [name for name in names if name not in STAGES]:
            raise Refusal(f"unknown stage {unknown[0]!r}; stages are: {', '.join(STAGES)}")
        return algorithm_of(names, codes=case.codes is not None, splits=splits, scale_of=case.scale_of)
    if stated not in ALGORITHMS:
        raise Refusal(f"algorithm must be one of {', '.join(ALGORITHMS)}; got {stated!r}")
    known = stages_of(stated, case.numbers)
    if unknown := [name for name in names if name not in known]:
        raise Refusal(f"unknown stage {unknown[0]!r}; stages of {stated}: {', '.join(known)}")
    return stated


def _contract(
    manifest: Mapping[str, Any], case: Case, stages: Mapping[str, np.ndarray], inputs: Mapping[str, np.ndarray]
) -> contract.Contract:
    """What the kernel promises: every field, as the workbench writes them, or what it declares, the weakest choice
    where it is silent.
    """
    plain = manifest["contract"]
    if "assumed" in plain:
        return contract.of_dict(plain)
    declared = contract.numbers(plain)
    for name in ("block_k", "splits"):
        if getattr(case, name) is not None:
            declared = {name: getattr(case, name)} | declared
    return promise_of(declared, stages, inputs, case)
