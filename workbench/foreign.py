"""Kernels that are not ours: a Python callable, found by `path.py:function`, run on a case and brought into a trace."""

import importlib.util
import sys
import traceback
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from workbench import contract
from workbench.arrays import ARRAYS, DEVICES, as_numpy, handed_over
from workbench.case import DTYPES, Case
from workbench.refusal import Refusal
from workbench.sparse import dims_of, of_coordinates
from workbench.stages import ALGORITHMS
from workbench.trace import Trace, check

LAYOUTS = ("bhsd", "bshd")
_USUAL = {"arrays": "numpy", "device": "cpu", "layout": "bhsd", "calibration": None}

Function = Callable[..., Any]


def find(target: str) -> Function:
    """The function that `path.py:function` names; Refusal where there is none."""
    path, _, name = target.rpartition(":")
    if not path.endswith(".py") or not name:
        raise Refusal(f"a foreign kernel is given as path.py:function; got {target!r}")
    if not Path(path).is_file():
        raise Refusal(f"{path}: no such file")
    spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses and pickles of the file look themselves up there
    try:
        spec.loader.exec_module(module)
    except Exception:
        raise Refusal(f"{path} could not be imported:\n{traceback.format_exc()}") from None
    function = getattr(module, name, None)
    if not callable(function):
        defined = ", ".join(key for key, value in vars(module).items() if callable(value) and not key.startswith("_"))
        raise Refusal(f"{path} defines no function {name!r}; it defines: {defined or 'none'}")
    return function


def run_foreign(
    function: Function,
    case: Case,
    *,
    name: str,
    arrays: str = "numpy",
    device: str = "cpu",
    layout: str = "bhsd",
    calibration: str | None = None,
    inputs: tuple[np.ndarray, np.ndarray, np.ndarray] | None = None,
) -> Trace:
    """The trace of a foreign kernel.

    `function(q, k, v, *, scale, causal)` takes q, k, v in the case's dtype as `arrays` of `layout` on `device` and
    returns out, (out, lse), or a dict of stage name -> array, with an optional key "contract" (a dict); a stage given
    in part is {"indices": [n, axes], "values": [n]} in place of an array. Refusal where it raises or returns anything
    else. `calibration`: a file of `workbench calibrate`, for what the contract does not say of exp and of tensor cores.
    """
    for option, value, accepted in (
        ("arrays", arrays, ARRAYS),
        ("device", device, DEVICES),
        ("layout", layout, LAYOUTS),
    ):
        if value not in accepted:
            raise Refusal(f"{option} is one of {', '.join(accepted)}; got {value!r}")
    options: dict[str, Any] = {"arrays": arrays, "device": device, "layout": layout, "calibration": calibration}
    q, k, v = case.inputs() if inputs is None else inputs
    handed = [
        handed_over(np.ascontiguousarray(_swapped(x)) if layout == "bshd" else x.copy(), arrays, device)
        for x in (q, k, v)
    ]
    try:
        returned = function(*handed, scale=case.scale, causal=case.causal)
    except Exception:
        hint = "\nIf it expects torch tensors, say --arrays torch." if arrays == "numpy" else ""
        raise Refusal(f"{name} raised on {arrays} arrays:\n{traceback.format_exc()}{hint}") from None
    stages, parts, declared = _stages(returned, name)
    algorithm = "flash" if set(stages) | set(parts) <= set(ALGORITHMS["flash"]) else "split_k"
    unknown = [stage for stage in (*stages, *parts) if stage not in ALGORITHMS[algorithm]]
    if unknown:
        raise Refusal(
            f"{name} returned unknown stages {', '.join(unknown)}; stages are: {', '.join(ALGORITHMS[algorithm])}"
        )
    if layout == "bshd" and "out" in stages and stages["out"].ndim == 4:
        stages["out"] = _swapped(stages["out"])
    if "out" in stages and "out_dtype" not in declared:
        own = stages["out"].dtype
        declared = {**declared, "out_dtype": next((key for key, dtype in DTYPES.items() if dtype == own), "float32")}
    if calibration is not None:
        declared = {**_measured(calibration), **declared}
    promise = contract.of_foreign(declared, case)
    settled, sparse = case.but(block_k=promise.block_k, splits=promise.splits), {}
    for key, given in parts.items():
        stage, where = ALGORITHMS[algorithm][key], f"{name}: {key}"
        stages[key], sparse[key] = of_coordinates(stage, dims_of(stage, settled, where), given, where)
    trace = Trace(
        target=name,
        algorithm=algorithm,
        case=settled,
        contract=promise,
        inputs={"q": q, "k": k, "v": v},
        stages={stage: stages[stage] for stage in ALGORITHMS[algorithm] if stage in stages},
        requested=(),
        sparse=sparse,
        called_with={key: value for key, value in options.items() if value != _USUAL[key]},
        rerun=None if inputs is not None else partial(run_foreign, function, name=name, **options),
    )
    return check(trace, name)


def _measured(path: str) -> dict[str, Any]:
    """Contract fields from a calibration; nobody said which exp the kernel calls, nor that it uses tensor cores."""
    from workbench.calibration import contract_fields, load

    fields = contract_fields(load(Path(path)), exp="fast_exp")
    return {name: value for name, value in fields.items() if name != "accumulation"}


def _swapped(x: np.ndarray) -> np.ndarray:
    """Between [b, h, s, d] and [b, s, h, d]."""
    return x.swapaxes(1, 2)


def _stages(returned: Any, name: str) -> tuple[dict[str, np.ndarray], dict[str, Mapping[str, Any]], Mapping[str, Any]]:
    """Stages by name, those given in part, and the declared contract, of what a foreign function returned."""
    declared: Mapping[str, Any] = {}
    if isinstance(returned, tuple) and len(returned) == 2:
        returned = {"out": returned[0], "lse": returned[1]}
    elif not isinstance(returned, Mapping):
        returned = {"out": returned}
    if "contract" in returned:
        declared = returned["contract"]
        if not isinstance(declared, Mapping):
            raise Refusal(f'{name}: "contract" must be a dict; got {type(declared).__name__}')
    given = {key: value for key, value in returned.items() if key != "contract"}
    if not given:
        raise Refusal(f"{name} returned no stage; return out, (out, lse), or a dict of stage name -> array")
    parts = {key: value for key, value in given.items() if isinstance(value, Mapping)}
    stages = {key: as_numpy(value, f"{name}: {key}") for key, value in given.items() if key not in parts}
    return stages, parts, declared
