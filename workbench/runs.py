"""What TARGET and the options of the command line run: one call for each case, each of which gives a trace."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.options import cases_of, foreign_of, needs_of
from workbench.refusal import Refusal

if TYPE_CHECKING:
    from workbench.trace import Trace

Calls = list[Callable[[], "Trace"]]


def runs(
    target: str | None,
    *,
    faults: tuple[str, ...],
    probes: str,
    backend: str,
    values: str | None = None,
    contract: tuple[str, ...] | None = None,
    **options: Any,
) -> tuple[Calls, float | None]:
    """What to run, one call for each case, and about how many seconds it takes where that is known.

    `target` is a kernel of ours (or several, separated by commas), a foreign one as path.py:function, or a trace as
    FILE.safetensors, which takes no options; or None, where `values` is a log of printed values and `contract` (words
    such as base2=true) what its kernel promises. `options` are those of `options.case_options` and FOREIGN.
    """
    if values is not None:
        others = {"fault": faults, "probes": probes != "all", "backend": backend != "auto"}
        return [_printed(values, target, others | foreign_of(options), contract or (), options)], None
    if contract is not None:
        raise Refusal('--contract is for --values; a function says it in its "contract", a kernel of ours has its own')
    if target is None:
        raise Refusal("diff takes a TARGET, or --values LOG")
    if target.endswith(".safetensors"):
        if given := [name for name, value in {**options, "faults": faults}.items() if value]:
            raise Refusal(f"a trace brings its own case and takes no other options; got {', '.join(given)}")
        from workbench.trace import load

        return [partial(load, Path(target))], None
    from workbench.cuda.kernels import KERNELS
    from workbench.target import run

    targets = target.split(",") if set(target.split(",")) <= set(KERNELS) else [target]
    foreign = foreign_of(options)
    cases = cases_of({**options, **needs_of(faults, options)})
    ours: dict[str, Any] = {"faults": faults, "probes": probes, "backend": backend, "inputs": options["inputs"]}
    calls: Calls = [partial(run, name, case, **ours, **foreign) for name in targets for case in cases]
    if targets[0] not in KERNELS:
        return calls, None
    from workbench.cuda.run import estimate_s

    return calls, sum(estimate_s(name, cases, faults, probes, backend) for name in targets)


def _printed(
    log: str, target: str | None, others: dict[str, Any], contract: tuple[str, ...], options: dict[str, Any]
) -> Callable[[], "Trace"]:
    """What reads a log of printed values, which takes no target and none of the `others` among the options."""
    if target is not None:
        raise Refusal(f"--values judges what the log holds, and takes no TARGET; got {target!r}")
    if given := [f"--{name}" for name, value in others.items() if value]:
        raise Refusal(
            f"--values takes the options of the case and --inputs alone, since the kernel ran elsewhere; got {given[0]}"
        )
    cases = cases_of(options)
    if len(cases) != 1:
        raise Refusal(f"a log is of one case; the case options make {len(cases)}")
    from workbench.log import load_log

    return partial(load_log, log, cases[0], dict(map(_field, contract)), options["inputs"])


def _field(word: str) -> tuple[str, Any]:
    """A field of a contract and its value: true, false, a number or a word."""
    name, equals, value = word.partition("=")
    if not equals:
        raise Refusal(f"--contract takes FIELD=VALUE; got {word!r}")
    try:
        return name, json.loads(value)
    except ValueError:
        pass
    try:
        return name, float(value)  # inf and nan
    except ValueError:
        return name, value
