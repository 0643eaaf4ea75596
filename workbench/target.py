"""Run any target on a case: a kernel of ours by name, a foreign one as `path.py:function` or as the callable itself."""

from collections.abc import Callable, Sequence
from typing import Any

from workbench.case import QUANTISED, Case
from workbench.cuda.kernels import KERNELS
from workbench.foreign import find, run_foreign
from workbench.refusal import Refusal
from workbench.trace import Trace


def run(
    target: str | Callable[..., Any],
    case: Case,
    *,
    faults: Sequence[str] = (),
    probes: str = "all",
    backend: str = "auto",
    inputs: tuple[Any, Any, Any] | None = None,
    **foreign: str,
) -> Trace:
    """The trace of `target` on `case`.

    `faults`, `probes` (all, lean, output) and `backend` (auto, emulator, cuda) are for kernels of ours, `foreign`
    (arrays, device, layout, calibration) for others; `inputs` are q, k, v in the case's dtype, not its own. Raises
    Refusal for an unknown target or an option that the target does not take, Unavailable for a missing GPU.
    """
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
    name = target if isinstance(target, str) else getattr(target, "__name__", "callable")
    for option, given in (("fault", faults), ("probes", probes != "all"), ("backend", backend != "auto")):
        if given:
            raise Refusal(f"{option} is for kernels of ours ({', '.join(KERNELS)}); {name} is a foreign one")
    if case.probs_dtype is not None:
        raise Refusal(
            f'probs_dtype is for kernels of ours ({", ".join(KERNELS)}); a foreign kernel says it in its "contract"'
        )
    for option in QUANTISED:
        if getattr(case, option) is not None:
            quantised = ", ".join(kernel.name for kernel in KERNELS.values() if kernel.quantised)
            raise Refusal(f"{option} is for kernels of ours on 8-bit codes ({quantised}); {name} is a foreign one")
    if isinstance(target, str):
        return run_foreign(find(target), case, name=target, inputs=inputs, **foreign)
    return run_foreign(target, case, name=name, inputs=inputs, **foreign)
