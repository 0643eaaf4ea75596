"""What TARGET and the options of the command line run: one call for each case, each of which gives a trace."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from workbench.case.fields import TILES, flag, of_role
from workbench.cli.options import cases_of, foreign_of, needs_of
from workbench.refusal import Refusal

if TYPE_CHECKING:
    from workbench.case.case import Case
    from workbench.trace.trace import Trace

Calls = list[Callable[[], "Trace"]]


def runs(
    target: str | None,
    *,
    faults: tuple[str, ...],
    probes: str,
    backend: str,
    values: str | None = None,
    feed: tuple[str, ...] = (),
    where: str | None = None,
    by_head: bool = False,
    limit_gb: float | None = None,
    **options: Any,
) -> tuple[Calls, float | None]:
    """What to run, one call for each case, and about how many seconds it takes where that is known.

    `target` is a kernel of ours (or several, separated by commas), a foreign one as path.py:function, or a trace as
    FILE.safetensors (several, a folder or a pattern of files that hold windows on one run; `join.files_of`), which
    takes no option but `where`; or None, where `values` is a log of printed values. `feed`, `where` and `limit_gb` as
    in `foreign.run.run`; `by_head`: a call for each head. `options` are those of `options.case_options` and of foreign
    kernels.
    """
    if where is not None and by_head:
        raise Refusal("--by-head takes one head after the other, and --where some of them; got both")
    others = {"fault": faults, "probes": probes != "all", "backend": backend != "auto", "feed": feed}
    others |= {"by-head": by_head, "limit-gb": limit_gb is not None}
    if values is not None:
        others |= {"where": where is not None, **foreign_of(options), "contract": None}
        return [_printed(values, target, others, options)], None
    if target is None:
        raise Refusal("diff takes a TARGET, or --values LOG")
    from workbench.cuda.kernels import KERNELS
    from workbench.trace.join import is_trace

    if target not in KERNELS and is_trace(target):
        if given := [flag(name) for name, value in {**options, **others}.items() if value]:
            raise Refusal(f"a trace brings its own case and takes no option but --where; got {', '.join(given)}")
        return [partial(_loaded, target, where)], None
    from workbench.foreign.feed import parse as parse_feed
    from workbench.foreign.run import run

    targets = target.split(",") if set(target.split(",")) <= set(KERNELS) else [target]
    foreign = foreign_of(options)
    cases = cases_of({**options, **needs_of(faults, options)})
    ours: dict[str, Any] = {"faults": faults, "probes": probes, "backend": backend, "inputs": options["inputs"]}
    ours |= {"feed": parse_feed(feed)} | ({} if limit_gb is None else {"limit_gb": limit_gb})
    calls: Calls = [
        partial(run, name, case, where=window, **ours, **foreign)
        for name in targets
        for case in cases
        for window in (_heads(case) if by_head else [where])
    ]
    if targets[0] not in KERNELS:
        _check_foreign(target, options)
        return calls, None
    from workbench.cuda.run import estimate_s

    return calls, sum(estimate_s(name, cases, faults, probes, backend) for name in targets)


def _check_foreign(target: str, options: dict[str, Any]) -> None:
    """Refusal for tiles and splits of a foreign function, unless it reads stages, which are then made with them."""
    given = [flag(name) for name in of_role(TILES) if options[name]]
    if not given or ":" not in target:
        return
    from workbench.foreign.arguments import stages_read
    from workbench.foreign.find import find

    if not stages_read(find(target)):
        if given[0] == "--block-q":
            raise Refusal(f"--block-q is for kernels of ours; {target} chooses its own, and no stage depends on it")
        name = given[0].removeprefix("--").replace("-", "_")
        raise Refusal(
            f"{given[0]} is for kernels of ours; what {target} does is told: --contract {name}={options[name][0]}, or "
            f'{name} in the "contract" that it returns'
        )


def _loaded(target: str, where: str | None) -> "Trace":
    """The trace that TARGET names, or a window on it."""
    from workbench.trace.join import load_all
    from workbench.trace.narrow import narrowed

    trace = load_all(target)
    return trace if where is None else narrowed(trace, where)


def _heads(case: "Case") -> list[str]:
    """A window for each head of each batch."""
    return [f"b={b},h={h}" for b in range(case.batch) for h in range(case.heads)]


def _printed(log: str, target: str | None, others: dict[str, Any], options: dict[str, Any]) -> Callable[[], "Trace"]:
    """What reads a log of printed values, which takes no target and none of the `others` among the options."""
    if target is not None:
        raise Refusal(f"--values judges what the log holds, and takes no TARGET; got {target!r}")
    if given := [f"--{name}" for name, value in others.items() if value]:
        raise Refusal(
            "--values takes the options of the case, --inputs and --contract alone, since the kernel ran elsewhere; "
            f"got {given[0]}"
        )
    cases = cases_of(options)
    if len(cases) != 1:
        raise Refusal(f"a log is of one case; the case options make {len(cases)}")
    from workbench.trace.printed import load_log

    return partial(load_log, log, cases[0], options["contract"], options["inputs"])
