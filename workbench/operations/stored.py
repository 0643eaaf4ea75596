"""A run of an operation at rest: a safetensors file of what it read and returned, with the rest as JSON in its
metadata. Nothing in it is executed.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from workbench.files import write_atomically
from workbench.operations.case import OperationCase
from workbench.operations.every import OPERATIONS
from workbench.operations.run import OperationRun, shape_of
from workbench.refusal import Refusal
from workbench.trace.manifest import OF_OPERATION as KEY

#: the schema of what stands in the metadata of such a file
SCHEMA = "workbench.operation-run/1"
#: what stands before the names of inputs and of stages, of which some are alike
_READ, _MADE = "read.", "made."


def save(run: OperationRun, path: str | Path, notes: tuple[str, ...] = ()) -> None:
    """Write a run, with `notes` in words, as a safetensors file; a failed run leaves no half-written file."""
    from safetensors.numpy import save as serialised

    of = run.case
    told = {
        "schema": SCHEMA, "operation": of.operation.name, "target": run.target, "sizes": dict(of.sizes),
        "dtype": of.dtype, "numbers": dict(of.numbers), "conventions": dict(of.conventions),
        "optional": list(of.optional), "own": list(run.own), "told": list(run.told), "notes": list(notes),
    }  # fmt: skip
    arrays = {f"{_READ}{name}": x for name, x in run.inputs.items()}
    arrays |= {f"{_MADE}{name}": x for name, x in run.stages.items()}
    content = serialised({name: np.ascontiguousarray(x) for name, x in arrays.items()}, {KEY: json.dumps(told)})
    write_atomically(Path(path), content)


def stored(target: str) -> Path | None:
    """The file of such a run that TARGET, a file or a folder with one alone, names; None where it names none."""
    path = Path(target)
    files = sorted(path.glob("*.safetensors")) if path.is_dir() else [path]
    return files[0] if len(files) == 1 and files[0].is_file() and _told(files[0]) is not None else None


def load(path: str | Path) -> OperationRun:
    """The run in a file. Refusal for a file that is none, and for arrays that do not fit what it says."""
    from safetensors.numpy import load_file

    told = _told(Path(path))
    if told is None:
        raise Refusal(f"{path}: not a stored operation run: no metadata {KEY!r}")
    try:
        if told["schema"] != SCHEMA or told["operation"] not in OPERATIONS:
            raise Refusal(f"{path}: unknown schema {told['schema']!r} or operation {told['operation']!r}")
        case = OperationCase(
            OPERATIONS[told["operation"]], told["sizes"], told["dtype"], "", 0, told["numbers"], told["conventions"],
            tuple(told["optional"]),
        )  # fmt: skip
        arrays = load_file(path)
        inputs = {name: arrays[f"{_READ}{name}"] for name in case.takes}
        made = {name.removeprefix(_MADE): x for name, x in arrays.items() if name.startswith(_MADE)}
        run = OperationRun(told["target"], case, inputs, made, tuple(told["own"]), tuple(told["told"]))
        stages = case.operation.stages(run.setting)
        for name, x in made.items():
            if name not in stages or x.shape != shape_of(case, stages[name]):
                raise Refusal(f"{path}: {name} with shape {list(x.shape)} matches no stage of {case}")
        return replace(run, stages={name: made[name] for name in stages if name in made})
    except KeyError as error:
        raise Refusal(f"{path}: {error.args[0]!r} is missing") from None


def _told(path: Path) -> dict[str, Any] | None:
    """The metadata of a file; None where it is no such file."""
    from safetensors import SafetensorError, safe_open

    if path.suffix != ".safetensors" or not path.is_file():
        return None
    try:
        with safe_open(path, framework="numpy") as file:
            text = (file.metadata() or {}).get(KEY)
    except SafetensorError:
        return None  # whoever reads it as a trace says what is wrong with it
    return None if text is None else dict(json.loads(text))
