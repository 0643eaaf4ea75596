"""Kernels that are not ours: a Python callable, found by `path.py:function`, run on a case and brought into a trace."""

import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from workbench import contract
from workbench.arrays import ARRAYS, DEVICES, as_numpy, handed_over
from workbench.case import DTYPES, Case
from workbench.inputs import CODES, put_in
from workbench.quantize import KINDS, SCALINGS, quantize
from workbench.refusal import Refusal
from workbench.sparse import dims_of, of_coordinates
from workbench.stages import ALGORITHMS, INPUTS, MASKS, QUANTISED_INPUTS
from workbench.trace import Trace, check, check_inputs

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
    inputs: Mapping[str, np.ndarray] | None = None,
) -> Trace:
    """The trace of a foreign kernel.

    `function(q, k, v, *, scale, causal)` takes q, k, v in the case's dtype as `arrays` of `layout` on `device` and
    returns out, (out, lse), or a dict of stage name -> array, with an optional key "contract" (a dict); a stage given
    in part is {"indices": [n, axes], "values": [n]} in place of an array. Where the case has codes, a function with the
    keywords scale_q, scale_k and scale_v takes codes (uint8) in the place of q, k and v, and a scale for each head; any
    other quantises itself. A mask and a bias among the inputs are keywords too. Refusal where it raises or returns
    anything else.

    `calibration`: a file of `workbench calibrate`, for what the contract does not say of exp and of tensor cores.
    `inputs`: those of `inputs.normalised`; the case's own where None.
    """
    for option, value, accepted in (
        ("arrays", arrays, ARRAYS),
        ("device", device, DEVICES),
        ("layout", layout, LAYOUTS),
    ):
        if value not in accepted:
            raise Refusal(f"{option} is one of {', '.join(accepted)}; got {value!r}")
    options: dict[str, Any] = {"arrays": arrays, "device": device, "layout": layout, "calibration": calibration}
    read = dict(zip(INPUTS, case.inputs(), strict=True)) if inputs is None else dict(inputs)
    floats = {x: read[x] for x in (*INPUTS, *MASKS) if x in read}
    check_inputs(case, floats, name)
    beside = {x: handed_over(read[x].copy(), arrays, device) for x in MASKS if x in read}
    takes = inspect.signature(function).parameters
    anything = any(parameter.kind == parameter.VAR_KEYWORD for parameter in takes.values())
    if lacking := [x for x in beside if x not in takes and not anything]:
        raise Refusal(f"{name} takes no {' and no '.join(lacking)}, which the inputs hold: give it the keyword")
    case, codes = _codes(function, case, read, name)

    def handed(x: np.ndarray) -> Any:
        turned = x.ndim == 4 and layout == "bshd"
        return handed_over(np.ascontiguousarray(_swapped(x)) if turned else x.copy(), arrays, device)

    scales = {stage: handed(x) for stage, x in codes.items() if stage.startswith("scale")}
    qkv = [handed(codes[f"codes_{x}"] if codes else read[x]) for x in INPUTS]
    try:
        returned = function(*qkv, **scales, **beside, scale=case.scale, causal=case.causal)
    except Exception:
        hint = "\nIf it expects torch tensors, say --arrays torch." if arrays == "numpy" else ""
        raise Refusal(f"{name} raised on {arrays} arrays:\n{traceback.format_exc()}{hint}") from None
    stages, parts, declared = _stages(returned, name)
    if layout == "bshd" and "out" in stages and stages["out"].ndim == 4:
        stages["out"] = _swapped(stages["out"])
    if changed := [stage for stage, x in codes.items() if stage in stages and not np.array_equal(stages[stage], x)]:
        raise Refusal(f"{name} returned {', '.join(changed)} other than it was given")
    algorithm = _algorithm(case, [*stages, *parts], name)
    if parts and algorithm == "fp8":
        raise Refusal(f"{name}: stages of a kernel on 8-bit codes are given whole; {next(iter(parts))} is not")
    if "out" in stages and "out_dtype" not in declared:
        own = stages["out"].dtype
        declared = {**declared, "out_dtype": next((key for key, dtype in DTYPES.items() if dtype == own), "float32")}
    if calibration is not None:
        declared = {**_measured(calibration, case), **declared}
    decoded = {str(x.dtype) for stage, x in stages.items() if stage.startswith("dequant") and x.dtype.itemsize == 2}
    promise = contract.of_foreign(declared, case, decoded.pop() if len(decoded) == 1 else None)
    settled, sparse = case.but(block_k=promise.block_k, splits=promise.splits), {}
    for key, given in parts.items():
        stage, where = ALGORITHMS[algorithm][key], f"{name}: {key}"
        stages[key], sparse[key] = of_coordinates(stage, dims_of(stage, settled, where), given, where)
    trace = Trace(
        target=name,
        algorithm=algorithm,
        case=settled,
        contract=promise,
        inputs=floats,
        stages={stage: x for stage in ALGORITHMS[algorithm] if (x := codes.get(stage, stages.get(stage))) is not None},
        requested=(),
        put_in=tuple(codes),
        sparse=sparse,
        called_with={key: value for key, value in options.items() if value != _USUAL[key]},
        rerun=None if inputs is not None else partial(run_foreign, function, name=name, **options),
    )
    return check(trace, name)


def _codes(
    function: Function, case: Case, read: Mapping[str, np.ndarray], name: str
) -> tuple[Case, dict[str, np.ndarray]]:
    """The case with its quantiser settled, and the codes and scales that the function is to be given, by stage: those
    put in, and what our quantiser makes of the others; none for a function that takes q, k and v.
    """
    wanted = [f"scale_{x}" for x in INPUTS]
    takes = set(wanted) <= set(inspect.signature(function).parameters)
    found = put_in(read, case)
    if found and not takes:
        raise Refusal(
            f"{name} takes no codes, which are among the inputs: a function that does has the keywords "
            f"{', '.join(wanted)}"
        )
    if case.codes is None and not takes:
        if case.quantiser_scale is not None:
            raise Refusal(f"quantiser_scale is for kernels on 8-bit codes: say codes too; {name} got none")
        return case, {}
    if case.codes is None:
        raise Refusal(f"{name} takes codes, as its keyword {wanted[0]} says: choose codes of {', '.join(KINDS)}")
    scaling = case.quantiser_scale or SCALINGS[0]
    case = case.but(quantiser_scale=scaling)
    for x in INPUTS if takes else ():
        if f"codes_{x}" not in found:
            made = quantize(read[x], str(case.codes), saturate=True, scaling=scaling)
            found |= {f"codes_{x}": made.codes, f"scale_{x}": made.scale}
    return case, {stage: found[stage] for stage in QUANTISED_INPUTS if stage in found}


def _algorithm(case: Case, stages: Iterable[str], name: str) -> str:
    """Whose stages these are; Refusal where they are not of one algorithm."""
    known = dict.fromkeys(stage for one in ALGORITHMS.values() for stage in one)
    if unknown := [stage for stage in stages if stage not in known]:
        raise Refusal(f"{name} returned unknown stages {', '.join(unknown)}; stages are: {', '.join(known)}")
    for algorithm in ("flash", "split_k") if case.codes is None else ():
        if set(stages) <= set(ALGORITHMS[algorithm]):
            return algorithm
    if other := [stage for stage in stages if stage not in ALGORITHMS["fp8"]]:
        raise Refusal(
            f"{name} returned {', '.join(other)}; stages of a kernel on 8-bit codes are: {', '.join(ALGORITHMS['fp8'])}"
        )
    return "fp8"


def _measured(path: str, case: Case) -> dict[str, Any]:
    """Contract fields from a calibration; nobody said which exp the kernel calls, nor that it uses tensor cores. Those
    were measured on 16-bit operands, which float8 codes need not become.
    """
    from workbench.calibration import contract_fields, load

    fields = contract_fields(load(Path(path)), exp="fast_exp")
    float8 = case.codes in contract.FLOAT8
    return {name: x for name, x in fields.items() if name != "accumulation" and not (float8 and name.startswith("mma"))}


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
    stages = {}
    for key, value in given.items():
        if key.startswith("codes"):
            stages[key] = as_numpy(value, f"{name}: {key}", CODES).view(np.uint8)
        elif key not in parts:
            stages[key] = as_numpy(value, f"{name}: {key}")
    return stages, parts, declared
