"""Watched runs of any target: a kernel of ours, or what a foreign function launches of numba.cuda."""

from collections.abc import Callable
from dataclasses import replace
from inspect import Parameter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack, cast

from workbench.case.case import Case
from workbench.case.fields import GIVEN
from workbench.case.given import RunOptions
from workbench.case.options import FOREIGN, OURS, Options
from workbench.case.user_code import Function, running
from workbench.cuda.kernels import KERNELS
from workbench.foreign.arguments import OtherParameters, parameters_of
from workbench.foreign.find import names_in
from workbench.foreign.lacking import is_numba_kernel, lacking
from workbench.foreign.launches import Launches, bare
from workbench.foreign.merge import run_function
from workbench.foreign.target import Target, target_of
from workbench.progress import step
from workbench.raised import as_raised
from workbench.refusal import Raised, Refusal, Unavailable
from workbench.trace.trace import Trace

if TYPE_CHECKING:
    from workbench.cuda.check import Checked
    from workbench.cuda.host.watch import Watch

#: scores of a run that is watched unasked, at most: 2 s of a kernel of ours on 2 cores, and what compiling takes
IN_SECONDS = 2**20
#: the function of a file that launches its kernels
LAUNCH = "launch"
#: arrays that are in the host's memory, where the emulator's are
_ON_HOST = ("numpy", "torch")


def check(
    target: str | Callable[..., Any], case: Case | None = None, *, schedules: int = 1, **given: Unpack[RunOptions]
) -> "Checked":
    """What a watched run of `target` on `case` finds, of a correct one nothing; where none is given on the usual one.

    Of a kernel of ours as of `cuda.check.check`, which takes `faults` and `probes`. Of a foreign function, every access
    of the kernels of numba.cuda that it launches, without their probes: uninitialised-read, race, out-of-bounds,
    misaligned; divergent-barrier, missing-lanes, runaway; and unwritten-output, elements that no kernel wrote and the
    host reads. It is called with the case as in `run`, with the options `arrays` and `layout`; one that has no
    parameters is called as it is, and takes neither. Its `schedules` orders of blocks and threads are compared by what
    is in each array afterwards: order-dependent.

    Refusal for a function that launches nothing, or raises without a finding.

    >>> check("flash", Case(seqlen=33, head_dim=32, block_q=16, block_k=16)).findings
    ()
    """
    from workbench.cuda.check import Checked, merged_findings
    from workbench.cuda.check import check as check_kernel
    from workbench.cuda.host.watch import Watch
    from workbench.cuda.schedules import schedules_of

    found = target_of(target)
    if found.kernel is not None:
        return check_kernel(found.name, case or Case(), schedules=schedules, **cast("dict[str, Any]", given))
    options, called = Options(**given), watchable(found)
    function = called.function()
    if ours := options.given(OURS):
        raise Refusal(f"{ours[0]} is for built-in kernels ({', '.join(KERNELS)}); {found.name} is not built in")
    tried, alone = schedules_of(schedules), takes_nothing(function)
    if alone and (case is not None or given):
        what = "a case" if case is not None else next(iter(given))
        raise Refusal(f"{called.name} has no parameters, so it takes no {what.removeprefix('a ')}")
    case = None if alone else case or Case()
    watches = [Watch(schedule) for schedule in tried]
    findings = []
    for watch in watches:
        _run(function, called.name, case, options, watch)
        complete = not watch.memory.findings  # else it may have been given up before
        if complete and called.name != found.name and (kernel := found.found().__name__) not in watch.launched:
            raise Refusal(f"{called.name} launches {', '.join(dict.fromkeys(watch.launched))}, but not {kernel}")
        findings += watch.memory.findings
        if not findings:
            findings += watches[0].differences(watch, called.name)
    return Checked(
        target=found.name,
        faults=(),
        case=case,
        schedules=tried,
        launches=len(watches[0].launched),
        blocks=watches[0].blocks,
        findings=merged_findings(findings),
        called_with=options.printable(),
    )


def options_of(trace: Trace) -> dict[str, Any] | None:
    """The options with which `check` watches the kernels of a run on its case; None where it cannot: they are not in
    numba.cuda, or the run had inputs or stages of its own, or is a trace at rest.
    """
    said = trace.called_with
    if (said.trace, said.values) != (None, None) or said.feed or trace.case_run.distribution == GIVEN:
        return None
    if trace.backend != "foreign":
        return {"faults": trace.faults} if trace.faults else {}
    if not trace.launched or said.arrays not in _ON_HOST:
        return None
    return {name: getattr(said, name) for name in said.given(FOREIGN) if name in ("arrays", "layout")}


def watched(trace: Trace) -> "Checked | None":
    """What a watched run of a trace's kernels on its case finds; None where it cannot be watched, or not in seconds."""
    case, options = trace.case_run, options_of(trace)
    if options is None or case.score_count > IN_SECONDS:
        return None
    try:
        with step("watch the run", None):
            return check(trace.target, case, **options)
    except Refusal:
        return None


def watchable(found: Target) -> Target:
    """What is called for a target: the foreign function that it is, or the function `launch` beside the kernel of
    numba.cuda that it is. Refusal for what is neither.
    """
    if not found.is_foreign:
        raise Refusal(f"{found.name} is {found.kind.value}, which cannot be run: read it with `workbench.load`")
    function = found.found()
    if is_numba_kernel(function) and callable(launch := _beside(function, LAUNCH)):
        path, colon, _ = found.name.rpartition(":")
        return Target(path + colon + LAUNCH, found.kind, launch)
    return replace(found, given=function)


def _beside(kernel: Any, name: str) -> Any:
    """What the file of a kernel has under a name."""
    function = getattr(kernel, "py_func", None)  # a kernel with its grid has none
    return None if function is None else function.__globals__.get(name)


def takes_nothing(function: Function) -> bool:
    """Whether a function has no parameters that need a value."""
    optional = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
    parameters = parameters_of(function).values()
    return all(one.default is not one.empty or one.kind in optional for one in parameters)


def _run(function: Function, name: str, case: Case | None, options: Options, watch: "Watch") -> None:
    """Call a function under a watch, to its end, or until a launch is given up."""
    from workbench.cuda.host.watch import GivenUp

    try:
        with bare(watch):
            if case is None:
                _call(function, name)
            else:
                run_function(function, case, replace(options, backend="emulator"), name=name)
    except GivenUp:
        pass
    except OtherParameters as refusal:
        path = Path(name.rpartition(":")[0])
        kernels = names_in(path)[1] if path.suffix == ".py" else []
        launches = f"launches {' or '.join(kernels)}" if kernels else "launches any kernel"
        raise Refusal(f"{refusal}\nor give one without parameters, which makes its own arrays and {launches}") from None
    except Refusal:
        if not watch.memory.findings:  # of which it may be a consequence
            raise


def _call(function: Function, name: str) -> None:
    """Call a function that takes nothing."""
    launches = Launches(name, on_emulator=True)
    try:
        with running(function), launches.sent():
            function()
    except (Refusal, Unavailable, KeyboardInterrupt):
        raise
    except BaseException as error:  # sys.exit among them
        if why := lacking(error, name):
            raise Unavailable(why) from None
        raise Raised(f"{name} raised:\n{as_raised(error)}") from None
    launches.check("emulator")
