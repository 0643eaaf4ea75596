"""The commands that run the same again."""

import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from workbench.case.case import Case
from workbench.case.fields import DRAWN, GIVEN, PROBLEM, QUANTISED, TILES, flag, of_role, typed
from workbench.case.stages import QUANTISED_INPUTS

if TYPE_CHECKING:
    from workbench.cuda.check import Checked
    from workbench.judge.against.pair import Against
    from workbench.judge.diff import Diff
    from workbench.trace.trace import Trace


def diff_command(diff: "Diff") -> str:
    """The command that judges the same run again; empty where there is none, of a callable or on arrays of Python's."""
    trace = diff.trace
    if not _has_names(trace):
        return ""
    printed, at_rest = "values" in trace.called_with, "trace" in trace.called_with
    options = [] if at_rest else case_options(trace.case_run, own=_takes_tiles(trace))
    options += _options(trace.called_with)
    return _command("diff", "" if printed else _named(trace), () if at_rest else trace.faults, options)


def _has_names(*traces: "Trace") -> bool:
    """Whether a command can say what was run, and on which inputs."""
    run = [trace for trace in traces if "trace" not in trace.called_with]
    drawn = all(trace.case.distribution != GIVEN for trace in run)
    return (drawn or any("inputs" in trace.called_with for trace in run)) and all(map(_has_target, run))


def _has_target(trace: "Trace") -> bool:
    if "values" in trace.called_with or trace.backend != "foreign" or ".py:" in trace.target:
        return True
    from workbench.foreign.find import installed

    return trace.target in installed()


def _takes_tiles(trace: "Trace") -> bool:
    """Whether tiles and splits of the case are options of the run, not what its contract says: a function reads stages
    that were made with them.
    """
    return trace.backend != "foreign" or "values" in trace.called_with or bool({*trace.put_in} - {*QUANTISED_INPUTS})


def against_command(pair: "Against") -> str:
    """The command that compares the same two runs again; empty where they have other dtypes, which none does, and where
    `diff_command` has none for one of them.
    """
    a, b = pair.a.trace, pair.b.trace
    if a.case.dtype != b.case.dtype or not _has_names(a, b):
        return ""
    printed = "values" in a.called_with
    both = {**b.called_with, **a.called_with}
    if "trace" in both:  # it brings the case and the inputs
        options = _options({name: value for name, value in both.items() if name != "inputs"})
        words = ["--against", shlex.quote(_named(b)), *options]
        return _command("diff", "" if printed else _named(a), () if "trace" in a.called_with else a.faults, words)
    own = _takes_tiles(a)
    options = case_options(a.case_run, own=own)
    for name in QUANTISED if a.case.codes is None else ():
        if getattr(b.case, name) is not None:
            options += [flag(name), str(getattr(b.case, name))]
    for name in of_role(TILES) if b.backend != "foreign" else ():
        if getattr(b.case, name) not in (None, getattr(a.case, name) if own else None):
            options += [flag(f"against_{name}"), str(getattr(b.case, name))]
    if "foreign" not in (a.backend, b.backend) and a.backend != b.backend:
        options += ["--backend", a.backend, "--against-backend", b.backend]
    options += _options(both)
    beside = [] if b.faults or "feed" in b.called_with else ["--against", shlex.quote(b.target)]
    return _command("diff", "" if printed else a.target, a.faults, [*beside, *options])


def check_command(checked: "Checked") -> str:
    """The command that watches the same run again."""
    schedules = ["--schedules", str(len(checked.schedules))] if len(checked.schedules) > 1 else []
    foreign = _options(checked.called_with)
    options = case_options(checked.case, own=not checked.called_with)
    return _command("check", checked.target, checked.faults, [*options, *schedules, *foreign])


def _named(trace: "Trace") -> str:
    """The TARGET that a trace was made from: its file, where it lay at rest."""
    return str(trace.called_with.get("trace", trace.target))


def _options(called_with: Mapping[str, str | Sequence[str]]) -> list[str]:
    given = {name: value for name, value in called_with.items() if name != "trace"}
    pairs = [(name, [value] if isinstance(value, str) else value) for name, value in given.items() if value]
    flags = [f"--{name}" for name, value in given.items() if not value]
    return flags + [word for name, values in pairs for one in values for word in (f"--{name}", shlex.quote(one))]


def _command(verb: str, target: str, faults: Sequence[str], options: Sequence[str]) -> str:
    words = ["workbench", verb, *filter(None, [target]), *(word for fault in faults for word in ("--fault", fault))]
    return " ".join([*map(shlex.quote, words), *options])


def case_options(case: Case, own: bool) -> list[str]:
    """The command line's case options that give `case`; tiles and splits only where the kernel is ours (`own`)."""
    usual, derived = Case(), Case(heads=case.heads, head_dim=case.head_dim)
    lengths = ("seqlen_q", "seqlen_k")
    sizes = ["--seqlen", str(case.seqlen_q)]
    if case.seqlen_q != case.seqlen_k:
        sizes = [word for name in lengths for word in (flag(name), str(getattr(case, name)))]

    def said(name: str) -> list[str]:
        value, default = getattr(case, name), getattr(derived if name in ("kv_heads", "scale") else usual, name)
        if value in (None, default, QUANTISED.get(name, (None,))[0]):
            return []
        return [flag(name), *([] if value is True else [typed(value)])]

    of_problem = [name for name in of_role(PROBLEM) if name not in (*lengths, "causal")]
    drawn = () if case.distribution == GIVEN else of_role(DRAWN)
    names = (*of_problem, "probs_dtype", *drawn, *QUANTISED, "causal", *(of_role(TILES) if own else ()))
    return [*sizes, *(word for name in names for word in said(name))]
