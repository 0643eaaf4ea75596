"""What TARGET and the options of the command line run: one call for each case, each of which gives a trace."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from workbench.case.fields import TILES, of_role
from workbench.case.options import flag_of
from workbench.case.spellings import flag
from workbench.cli.options import CASE_OPTIONS, cases_of, fields_of, given, needs_of
from workbench.refusal import Refusal

if TYPE_CHECKING:
    from workbench.case.case import Case
    from workbench.trace.trace import Trace

Calls = list[Callable[[], "Trace"]]


def runs(
    target: str | None,
    *,
    values: str | None = None,
    mapping: str | None = None,
    by_head: bool = False,
    **options: Any,
) -> Calls:
    """What to run, one call for each case.

    `target` is as of `target.targets_of`; a trace, whose files may hold parts of one run (`join.files_of`), takes no
    option but `where`, and arrays take those of the case beside it. None, where `values` is a log of printed values.
    `mapping`: the file that names what lies in the file or folder `target`, a call each. `by_head`: a call for each
    head. `options` are those of `options.run_options`.
    """
    if options["where"] is not None and by_head:
        raise Refusal("--by-head takes every head, but --where only some; got both")
    asked = {**given(options), **({"by_head": True} if by_head else {})}
    if values is not None:
        return [_printed(values, target, asked, options)]
    if target is None:
        raise Refusal(
            "TARGET is missing: a built-in kernel, FILE.py:FUNCTION or a trace; `diff` and `explain` also "
            "take --values LOG"
        )
    if mapping is not None:
        return _of_arrays(target, mapping, asked, options)
    from workbench.foreign.target import targets_of

    targets = targets_of(target)
    if targets[0].is_trace and not targets[0].brings_case:
        return _of_arrays(target, None, asked, options)
    if targets[0].is_trace:
        if others := [flag_of(name) for name in {**of_case(options), **asked} if name != "where"]:
            raise Refusal(f"a trace brings its own case and takes no option but --where; got {', '.join(others)}")
        from workbench.trace.join import calls_of
        from workbench.trace.load import load

        files = [str(file) for file in calls_of(target)] or [target]
        return [partial(part_of, partial(load, file), options["where"]) for file in files]
    from workbench.foreign.feed import parse as parse_feed
    from workbench.foreign.run import run

    cases = cases_of({**options, **needs_of(options["faults"], options)})
    asked["feed"] = parse_feed(options["feed"])
    asked.pop("by_head", None)
    calls: Calls = [
        partial(run, found.name, case, **{**asked, "where": where})
        for found in targets
        for case in cases
        for where in (_heads(case) if by_head else [options["where"]])
    ]
    if targets[0].kernel is None:
        _check_foreign(target, options)
    return calls


def of_case(options: Mapping[str, Any]) -> dict[str, bool]:
    """The options of a case that were given."""
    return {name: True for name in CASE_OPTIONS if options.get(name)}


def _of_arrays(target: str, mapping: str | None, asked: Mapping[str, Any], options: Mapping[str, Any]) -> Calls:
    """A call for each case that the options say of arrays at rest, and for each that a dump holds; they take few of the
    options that were `asked` for.
    """
    taken = {"where": None, "contract": None} | ({} if mapping else {"layout": "bhsd"})
    if others := [flag_of(name) for name in asked if name not in taken]:
        words = ", ".join(map(flag_of, taken))
        raise Refusal(f"{target} cannot be run: it takes the options of a case, {words}; got {others[0]}")
    from workbench.trace.dumped import load_dump
    from workbench.trace.load import load

    where, contract = options["where"], options.get("contract")
    if mapping is None:
        layout = options.get("layout") or "bhsd"
        return [
            partial(part_of, partial(load, target, case, contract=contract, layout=layout), where)
            for case in fields_of(options)
        ]
    dumps = (load_dump(target, mapping, case, contract) for case in fields_of(options))
    return [partial(part_of, partial(_same, trace), where) for dump in dumps for trace in dump.values()]


def _same(trace: "Trace") -> "Trace":
    return trace


def part_of(read: Callable[[], "Trace"], where: str | None) -> "Trace":
    """The trace that a call reads, or a part of it."""
    from workbench.trace.narrow import narrowed

    return read() if where is None else narrowed(read(), where)


def _check_foreign(target: str, options: dict[str, Any]) -> None:
    """Refusal for tiles and splits of a foreign function, unless it reads stages, which are then made with them."""
    given = [flag(name) for name in of_role(TILES) if options[name]]
    if not given or ":" not in target:
        return
    from workbench.foreign.arguments import stages_read
    from workbench.foreign.find import find
    from workbench.foreign.merge import is_merge

    function = find(target)
    if is_merge(function) and given == ["--splits"]:  # so many ranks
        return
    if not stages_read(function):
        if given[0] == "--block-q":
            raise Refusal(f"--block-q is for built-in kernels; {target} has its own, on which no stage depends")
        name = given[0].removeprefix("--").replace("-", "_")
        raise Refusal(
            f"{given[0]} is for built-in kernels; declare what {target} does with --contract "
            f'{name}={options[name][0]}, or {name} in the "contract" that it returns'
        )


def _heads(case: "Case") -> list[str]:
    """A part for each head of each batch."""
    return [f"b={b},h={h}" for b in range(case.batch) for h in range(case.heads)]


def _printed(log: str, target: str | None, asked: Mapping[str, Any], options: dict[str, Any]) -> Callable[[], "Trace"]:
    """What reads a log of printed values, which takes no target and few of the options that were `asked` for."""
    if target is not None:
        raise Refusal(f"--values replaces TARGET; got {target!r}")
    if others := [flag_of(name) for name in asked if name not in ("inputs", "contract")]:
        raise Refusal(
            "--values takes only case options, --inputs and --contract, since the kernel ran elsewhere; "
            f"got {others[0]}"
        )
    cases = cases_of(options)
    if len(cases) != 1:
        raise Refusal(f"a log has one case; the case options make {len(cases)}")
    from workbench.trace.printed import load_log

    return partial(load_log, log, cases[0], options.get("contract"), options.get("inputs"))
