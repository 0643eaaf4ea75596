"""The commands that run the same again."""

import shlex
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from workbench.case.command_line import case_fields, case_options, fault_options
from workbench.case.exposing_lost_keys import exposing_lost_keys
from workbench.case.fields import ARITHMETIC, GIVEN, QUANTISED, TILES, of_role
from workbench.case.options import NAMELESS, Options
from workbench.case.spellings import said
from workbench.case.stages import OF_QUANTISER
from workbench.suggested import command

if TYPE_CHECKING:
    from workbench.cuda.check import Checked
    from workbench.explore.laws.law import Laws
    from workbench.judge.against.pair import Against
    from workbench.judge.diff import Diff
    from workbench.trace.trace import Trace


def diff_command(diff: "Diff", verb: str = "diff") -> str:
    """The command that judges the same run again, or explains it; empty where there is none, of a callable or on arrays
    of Python's.
    """
    return run_command(verb, diff.trace, ["--measure"] if verb == "diff" and diff.of_measure is not None else [])


def run_command(verb: str, trace: "Trace", more: Iterable[str] = ()) -> str:
    """The command `verb` of what was run, on the same case, with `more` words; empty as of `diff_command`."""
    if not _has_names(trace):
        return ""
    asked = trace.called_with if verb == "diff" else replace(trace.called_with, against_trace=None)
    printed, at_rest = asked.values is not None, asked.trace is not None
    options = [] if at_rest else [*fault_options(trace.faults), *case_options(trace.case_run, own=takes_tiles(trace))]
    return command(verb, "" if printed else _named(trace), [*options, *asked.words(), *more])


def telling_command(trace: "Trace") -> str:
    """The command that judges the same kernel on inputs in which the absence of any key shows (`telling`); of one that
    no command runs, the command that writes such inputs.
    """
    cases = [*exposing_lost_keys(trace.case_run)]
    changes = {"distribution": ",".join(dict.fromkeys(case.distribution for case in cases))}
    if (last := max(case.seed for case in cases)) > 0:
        changes["seed"] = ",".join(map(str, range(last + 1)))
    asked = case_fields(cases[0].but(seed=0), own=takes_tiles(trace)) | changes
    words = [*map(shlex.quote, said(asked))]
    beside = replace(trace.called_with, inputs=None)
    if beside.trace is None and beside.values is None and not beside.feed and _has_target(trace):
        return command("diff", trace.target, [*fault_options(trace.faults), *words, *beside.words()])
    first = cases[0].but(seed=0, **dict.fromkeys(of_role(ARITHMETIC)))
    words = case_options(first, own=False)
    return command("inputs", "", [*words, "--out", f"{first.distribution}.safetensors"])


def _has_names(*traces: "Trace") -> bool:
    """Whether a command can say what was run, and on which inputs."""
    if any(trace.called_with.mapping == NAMELESS for trace in traces):
        return False
    run = [trace for trace in traces if trace.called_with.trace is None]
    drawn = all(trace.case.distribution != GIVEN for trace in run)
    inputs = drawn or any(trace.called_with.inputs for trace in run)
    return inputs and all(all(trace.called_with.feed.values()) and _has_target(trace) for trace in run)


def _has_target(trace: "Trace") -> bool:
    if trace.called_with.values is not None or trace.backend != "foreign":
        return True
    from workbench.foreign.target import known

    found = known(trace.target)
    return found is not None and found.is_foreign


def takes_tiles(trace: "Trace") -> bool:
    """Whether tiles and splits of the case are options of the run, not what its contract says: a function reads stages
    that were made with them.
    """
    return trace.backend != "foreign" or trace.called_with.values is not None or bool({*trace.put_in} - {*OF_QUANTISER})


def against_command(pair: "Against") -> str:
    """The command that compares the same two runs again; empty where they have other dtypes, which none does, and where
    `diff_command` has none for one of them.
    """
    a, b = pair.a.trace, pair.b.trace
    if a.case.dtype != b.case.dtype or not _has_names(a, b):
        return ""
    printed = a.called_with.values is not None
    both = a.called_with.beside(b.called_with)
    if both.trace is not None:  # it brings the case and the inputs
        words = ["--against", shlex.quote(_named(b)), *replace(both, inputs=None).words()]
        faults = [] if a.called_with.trace else fault_options(a.faults)
        return command("diff", "" if printed else _named(a), [*faults, *words])
    own = takes_tiles(a)
    options = case_options(a.case_run, own=own)
    of_codes = {n: x for n in QUANTISED if (x := getattr(b.case, n)) is not None} if a.case.codes is None else {}
    options += said(of_codes)
    beside = [] if b.faults or b.called_with.feed else [b.target]
    for name in of_role(TILES) if b.backend != "foreign" else ():
        value, of_first = getattr(b.case, name), getattr(a.case, name) if own else None
        usual = False if name == "pack_gqa" and of_first is None else of_first
        if value not in (None, usual):
            beside.append(f"{name}={('yes' if value else 'no') if name == 'pack_gqa' else value}")
    if "foreign" not in (a.backend, b.backend) and a.backend != b.backend:
        options += ["--backend", a.backend]
        beside.append(f"backend={b.backend}")
    options += both.words()
    second = ["--against", shlex.quote(",".join(beside))] if beside else []
    return command("diff", "" if printed else a.target, [*fault_options(a.faults), *second, *options])


def watch_command(trace: "Trace") -> str:
    """The command that watches the kernels of a run on the same case; empty where none does."""
    from workbench.foreign.check import options_of

    options = options_of(trace)
    if options is None or not _has_names(trace):
        return ""
    case = case_options(trace.case_run, own=trace.backend != "foreign")
    beside = {name: x for name, x in options.items() if name != "faults"}
    return command("check", trace.target, [*fault_options(trace.faults), *case, *Options(**beside).words()])


def check_command(checked: "Checked") -> str:
    """The command that watches the same run again."""
    schedules = ["--schedules", str(len(checked.schedules))] if len(checked.schedules) > 1 else []
    foreign = [] if checked.called_with is None else checked.called_with.words()
    options = [] if checked.case is None else case_options(checked.case, own=checked.called_with is None)
    return command(
        "check", checked.target, [*fault_options(checked.faults), *options, *checked.words, *schedules, *foreign]
    )


def laws_command(found: "Laws") -> str:
    """The command that asks the laws of the same kernel on the same case again; empty where none does."""
    trace, s = found.subject.first.trace, found.subject
    invariant = ["--invariant"] if s.claimed else []
    return run_command("laws", trace if s.ours else replace(trace, case=s.asked), invariant)


def _named(trace: "Trace") -> str:
    """The TARGET that a trace was made from: its file, where it lay at rest."""
    return trace.called_with.trace or trace.target
