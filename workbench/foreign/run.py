"""Run any target on a case: a kernel of ours or of an installed package by name, a foreign one as `path.py:function` or
as the callable itself.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Unpack

import numpy as np

from workbench.case.case import Case
from workbench.case.fields import GIVEN
from workbench.case.formats import said_by
from workbench.case.given import RunOptions
from workbench.case.inputs import by_name, fields
from workbench.case.options import FOREIGN, OURS, ROLES, Options, flag_of
from workbench.case.spellings import flag
from workbench.case.stages import scaled
from workbench.cuda.kernel import Kernel
from workbench.cuda.kernels import KERNELS
from workbench.foreign.feed import values
from workbench.foreign.isolation import limits_of, run_isolated
from workbench.foreign.merge import run_function
from workbench.foreign.target import Target, target_of
from workbench.refusal import Refusal
from workbench.trace.inputs import taken
from workbench.trace.trace import Trace

USUAL = Case()


def run(target: str | Callable[..., Any], case: Case = USUAL, **given: Unpack[RunOptions]) -> Trace:
    """The trace of `target` on `case`, where none is given the one of the command line without options.

    `given` are fields of `options.Options`: `faults`, `probes` (all, lean, output, or stages) and `limit_gb`, above
    which dumps are refused, for kernels of ours; `backend` (auto, emulator, cuda) for these, and for those of
    numba.cuda that a foreign function launches; arrays, device, layout, calibration, contract, runs, and isolate,
    timeout in seconds and memory_gb, each of which has it run in a process of its own, for others. `inputs`, instead of
    the case's own: a file as of `inputs.load`, (q, k, v), or a mapping of names to arrays as of `inputs.normalised`;
    `inputs.case_of` makes a case that fits them. `feed`: stages that are put in, as of `feed.values`; what makes them
    alone does not run. `where`: as of `box.parse`, to which dumps and judgement are limited; the kernel runs whole.

    Raises Refusal for an unknown target, an option that the target does not take and inputs that do not fit the case,
    Unavailable for a missing GPU.

    >>> import numpy as np
    >>> def attention(q, k, v, *, scale, causal):
    ...     weights = np.exp(q @ k.swapaxes(-1, -2) * np.float32(scale))
    ...     return weights @ v / weights.sum(-1, keepdims=True)
    >>> run(attention, Case(seqlen=16, head_dim=8)).stages["out"].shape
    (1, 1, 16, 8)
    """
    return _run(target, case, given)


def run_again(target: str | Callable[..., Any], case: Case, **given: Unpack[RunOptions]) -> Trace:
    """As `run`, of a target that ran with these options on another case: faults were chosen for that one, and may be in
    no line of what is built for this.
    """
    return _run(target, case, given, again=True)


def _run(target: str | Callable[..., Any], case: Case, given: Mapping[str, Any], *, again: bool = False) -> Trace:
    options, found = Options(**given), target_of(target)
    name, printable = found.name, options.printable()
    if options.inputs is not None:
        options = replace(options, inputs=taken(options.inputs, name))
        codes = fields(options.inputs).get("codes")
        if not said_by(codes, case.codes):
            raise Refusal(f"{printable.inputs or name}: quantised codes are {codes}, but the case has {case.codes}")
        case = case.but(distribution=GIVEN, codes=case.codes or codes)
    if found.kernel is not None:
        if foreign := [option for option in given if ROLES[option] == FOREIGN]:
            raise Refusal(f"{flag_of(foreign[0])} is for your own kernels; {name} is built in")
        from workbench.cuda.run import run_kernel

        options = replace(options, feed=_fed(found.kernel, case, options))
        return replace(run_kernel(name, case, options, again=again), called_with=printable)
    _check_foreign(found, case, options)
    printable = replace(printable, backend=options.backend)  # no trace of a foreign function has one of its own
    if (limits := limits_of(options, name)) is None:
        made = run_function(found.function(), case, options, name=name)
        return replace(made, called_with=replace(printable, arrays=made.called_with.arrays))
    if found.given is not None:
        raise Refusal(f"{name} is a callable, which no other process can load: to isolate it, give path.py:function")
    return replace(run_isolated(name, case, options, limits=limits), called_with=printable)


def _fed(kernel: Kernel, case: Case, options: Options) -> Mapping[str, np.ndarray]:
    """The stages that are put into a kernel of ours."""
    if not options.feed:
        return {}
    from workbench.cuda.plan import resolve

    resolved = resolve(kernel, case)
    algorithm = scaled(kernel.algorithm, resolved.scale_of)
    return values(algorithm, resolved, by_name(resolved, options.inputs), options.feed, kernel.name)


def _check_foreign(found: Target, case: Case, options: Options) -> None:
    """Refusal for what is no function, and for options that kernels of ours alone take."""
    name, ours = found.name, ", ".join(KERNELS)
    if not found.is_foreign:
        raise Refusal(f"{name} is {found.kind.value}, which cannot be run: read it with `workbench.load`")
    if given := options.given(OURS):
        raise Refusal(f"{flag_of(given[0])} is for built-in kernels ({ours}); {name} is not built in")
    if case.probs_dtype is not None:
        raise Refusal(
            f"{flag('probs_dtype')} is for built-in kernels ({ours}); declare what {name} does "
            f'with --contract probs_dtype={case.probs_dtype}, or probs_dtype in the "contract" that it returns'
        )
    for option in ("scores", "decode"):
        if getattr(case, option) is not None:
            quantised = ", ".join(kernel.name for kernel in KERNELS.values() if kernel.quantised)
            raise Refusal(f"{flag(option)} is for built-in quantised kernels ({quantised}); {name} is not built in")
