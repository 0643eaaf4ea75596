"""Run any target on a case: a kernel of ours or of an installed package by name, a foreign one as `path.py:function` or
as the callable itself.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from workbench.case.box import LIMIT_GB
from workbench.case.case import Case
from workbench.case.fields import GIVEN
from workbench.case.inputs import by_name, fields
from workbench.cuda.kernels import KERNELS
from workbench.foreign.call import run_foreign
from workbench.foreign.feed import NOTHING, values, words
from workbench.foreign.find import find, installed
from workbench.foreign.isolation import limits_of, run_isolated
from workbench.foreign.lacking import NUMBA_PAGE, is_numba_kernel
from workbench.refusal import Refusal
from workbench.trace.inputs import taken
from workbench.trace.trace import Trace

USUAL = Case()


def run(
    target: str | Callable[..., Any],
    case: Case = USUAL,
    *,
    faults: Sequence[str] = (),
    probes: str = "all",
    backend: str = "auto",
    inputs: Any = None,
    feed: Mapping[str, Any] = NOTHING,
    where: str | None = None,
    limit_gb: float = LIMIT_GB,
    **foreign: Any,
) -> Trace:
    """The trace of `target` on `case`, where none is given the one of the command line without options.

    `faults`, `probes` (all, lean, output, or stages) and `backend` (auto, emulator, cuda) are for kernels of ours,
    `foreign` (arrays, device, layout, calibration, contract, runs, and isolate, timeout in seconds and memory_gb, each
    of which has it run in a process of its own) for others. `inputs`, instead of the case's own: a file as of
    `inputs.load`, (q, k, v), or a mapping of names to arrays as of `inputs.normalised`; `inputs.case_of` makes a case
    that fits them. `feed`: stages that are put in, as of `feed.values`; what makes them alone does not run. `where`: a
    window as of `box.parse`, to which dumps and judgement are limited; the kernel runs whole. Dumps of a kernel of
    ours that take more than `limit_gb` are refused.

    Raises Refusal for an unknown target, an option that the target does not take and inputs that do not fit the case,
    Unavailable for a missing GPU.
    """
    name = target if isinstance(target, str) else getattr(target, "__name__", "callable")
    said: dict[str, Any] = {"feed": words(feed)} if feed else {}
    if where is not None:
        said["where"] = where
    if probes != "all":
        said["probes"] = probes
    if limit_gb != LIMIT_GB:
        said["limit-gb"] = f"{limit_gb:g}"
    arrays: dict[str, np.ndarray] | None = None
    if inputs is not None:
        if isinstance(inputs, str | Path):
            said["inputs"] = str(inputs)
        arrays = taken(inputs, name)
        told = fields(arrays).get("codes")
        if told is not None and case.codes not in (None, told):
            raise Refusal(f"{said.get('inputs', name)}: codes are {told}, and the case says {case.codes}")
        case = case.but(distribution=GIVEN, codes=told or case.codes)
    if isinstance(target, str) and target in KERNELS:
        if foreign:
            raise Refusal(f"{', '.join(foreign)} are for foreign kernels; {target} is one of ours")
        from workbench.cuda.run import run_kernel

        trace = run_kernel(
            target, case, faults_in=faults, probes=probes, backend=backend, inputs=arrays,
            feed=_fed(target, case, arrays, feed), where=where, limit_gb=limit_gb,
        )  # fmt: skip
    else:
        ours = {"fault": faults, "probes": probes != "all", "backend": backend != "auto"}
        ours |= {"limit_gb": limit_gb != LIMIT_GB}
        _check_foreign(target, name, case, [option for option, given in ours.items() if given])
        limits = limits_of(foreign, name)
        foreign |= {"inputs": arrays, "feed": feed, "where": where}
        if limits is None:
            trace = run_foreign(_function(target, name), case, name=name, **foreign)
        elif isinstance(target, str):
            trace = run_isolated(target, case, limits, **foreign)
        else:
            raise Refusal(
                f"{name} is a callable, which no other process has: to isolate it, give it as path.py:function"
            )
    return replace(trace, called_with={**trace.called_with, **said}) if said else trace


def _fed(
    target: str, case: Case, inputs: Mapping[str, np.ndarray] | None, feed: Mapping[str, Any]
) -> Mapping[str, np.ndarray]:
    """The stages that are put into a kernel of ours."""
    if not feed:
        return NOTHING
    from workbench.cuda.plan import settle

    settled = settle(KERNELS[target], case)
    return values(KERNELS[target].algorithm, settled, by_name(settled, inputs), feed, target)


def _check_foreign(target: str | Callable[..., Any], name: str, case: Case, ours: Sequence[str]) -> None:
    """Refusal for what names no foreign function, and for options that kernels of `ours` alone take."""
    if isinstance(target, str) and ":" not in target and target not in (others := installed()):
        raise Refusal(
            f"unknown kernel {target!r}; kernels are {', '.join((*KERNELS, *others))}, a foreign one is given as "
            "path.py:function, a trace as FILE.safetensors"
        )
    if ours:
        raise Refusal(f"{ours[0]} is for kernels of ours ({', '.join(KERNELS)}); {name} is a foreign one")
    if case.probs_dtype is not None:
        raise Refusal(
            f"probs_dtype is for kernels of ours ({', '.join(KERNELS)}); what {name} does is told: "
            f'--contract probs_dtype={case.probs_dtype}, or probs_dtype in the "contract" that it returns'
        )
    for option in ("scores", "decode"):
        if getattr(case, option) is not None:
            quantised = ", ".join(kernel.name for kernel in KERNELS.values() if kernel.quantised)
            raise Refusal(f"{option} is for kernels of ours on 8-bit codes ({quantised}); {name} is a foreign one")


def _function(target: str | Callable[..., Any], name: str) -> Callable[..., Any]:
    """The foreign function that `target` is or names; Refusal for what cannot be called."""
    function = find(target) if isinstance(target, str) else target
    if not callable(function):
        raise Refusal(f"a target is the name of a kernel, path.py:function, or a function; got {function!r}")
    if is_numba_kernel(function):
        raise Refusal(
            f"{name} is a kernel of numba.cuda, which is launched, not called: give a function that takes q, k and v, "
            f"launches it and returns out; {NUMBA_PAGE} has one, on a GPU and on the emulator"
        )
    return function
