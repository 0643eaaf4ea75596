"""Run any target on a case: a kernel of ours by name, a foreign one as `path.py:function` or as the callable itself."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from workbench.case import GIVEN, Case
from workbench.cuda.kernels import KERNELS
from workbench.foreign import find, run_foreign
from workbench.inputs import fields, normalised
from workbench.inputs import load as load_inputs
from workbench.refusal import Refusal
from workbench.trace import Trace


def run(
    target: str | Callable[..., Any],
    case: Case,
    *,
    faults: Sequence[str] = (),
    probes: str = "all",
    backend: str = "auto",
    inputs: Any = None,
    **foreign: str,
) -> Trace:
    """The trace of `target` on `case`.

    `faults`, `probes` (all, lean, output) and `backend` (auto, emulator, cuda) are for kernels of ours, `foreign`
    (arrays, device, layout, calibration) for others. `inputs`, instead of the case's own: a file as of `inputs.load`,
    (q, k, v), or a mapping of names to arrays as of `inputs.normalised`; `inputs.case_of` makes a case that fits them.
    Raises Refusal for an unknown target, an option that the target does not take and inputs that do not fit the case,
    Unavailable for a missing GPU.
    """
    name = target if isinstance(target, str) else getattr(target, "__name__", "callable")
    if inputs is not None:
        path = inputs if isinstance(inputs, str | Path) else None
        made = load_inputs(Path(path)) if path is not None else normalised(inputs, name)
        told = fields(made).get("codes")
        if told is not None and case.codes not in (None, told):
            raise Refusal(f"{path or name}: codes are {told}, and the case says {case.codes}")
        case = case.but(distribution=GIVEN, codes=told or case.codes)
        trace = _run(target, name, case, faults, probes, backend, made, foreign)
        return trace if path is None else replace(trace, called_with={**trace.called_with, "inputs": str(path)})
    return _run(target, name, case, faults, probes, backend, None, foreign)


def _run(
    target: str | Callable[..., Any],
    name: str,
    case: Case,
    faults: Sequence[str],
    probes: str,
    backend: str,
    inputs: Mapping[str, np.ndarray] | None,
    foreign: dict[str, str],
) -> Trace:
    if isinstance(target, str) and target in KERNELS:
        if foreign:
            raise Refusal(f"{', '.join(foreign)} are for foreign kernels; {target} is one of ours")
        from workbench.cuda.run import run_kernel

        return run_kernel(target, case, faults_in=faults, probes=probes, backend=backend, inputs=inputs)
    if isinstance(target, str) and ":" not in target:
        raise Refusal(
            f"unknown kernel {target!r}; kernels are {', '.join(KERNELS)}, a foreign one is given as path.py:function, "
            "a trace as FILE.safetensors"
        )
    for option, given in (("fault", faults), ("probes", probes != "all"), ("backend", backend != "auto")):
        if given:
            raise Refusal(f"{option} is for kernels of ours ({', '.join(KERNELS)}); {name} is a foreign one")
    if case.probs_dtype is not None:
        raise Refusal(
            f'probs_dtype is for kernels of ours ({", ".join(KERNELS)}); a foreign kernel says it in its "contract"'
        )
    for option in ("scores", "decode"):
        if getattr(case, option) is not None:
            quantised = ", ".join(kernel.name for kernel in KERNELS.values() if kernel.quantised)
            raise Refusal(f"{option} is for kernels of ours on 8-bit codes ({quantised}); {name} is a foreign one")
    if isinstance(target, str):
        return run_foreign(find(target), case, name=target, inputs=inputs, **foreign)
    return run_foreign(target, case, name=name, inputs=inputs, **foreign)
