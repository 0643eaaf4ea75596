"""The commands that run the same again."""

import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING

from workbench.case import GIVEN, QUANTISED, Case
from workbench.judge import Diff

if TYPE_CHECKING:
    from workbench.cuda.check import Checked


def diff_command(diff: Diff) -> str:
    """The command that judges the same run again."""
    trace = diff.trace
    printed, at_rest = "values" in trace.called_with, trace.called_with.get("trace")
    options = [] if at_rest else case_options(trace.case_run, own=trace.backend != "foreign" or printed)
    for name, value in trace.called_with.items():
        if name == "trace":
            continue
        for one in (value,) if isinstance(value, str) else value:
            options += [f"--{name}", shlex.quote(one)]
    if isinstance(at_rest, str):
        return _command("diff", at_rest, (), options)
    return _command("diff", "" if printed else trace.target, trace.faults, options)


def check_command(checked: "Checked") -> str:
    """The command that watches the same run again."""
    schedules = ["--schedules", str(len(checked.schedules))] if len(checked.schedules) > 1 else []
    foreign = [word for name, value in checked.called_with.items() for word in (f"--{name}", value)]
    options = case_options(checked.case, own=not checked.called_with)
    return _command("check", checked.target, checked.faults, [*options, *schedules, *foreign])


def _command(verb: str, target: str, faults: Sequence[str], options: Sequence[str]) -> str:
    words = ["workbench", verb, *filter(None, [target]), *(word for fault in faults for word in ("--fault", fault))]
    return " ".join([*map(shlex.quote, words), *options])


def case_options(case: Case, own: bool) -> list[str]:
    """The command line's case options that give `case`; tiles and splits only where the kernel is ours (`own`)."""
    default = Case().but(block_q=case.block_q, block_k=case.block_k)
    words: list[str] = []
    if case.seqlen_q == case.seqlen_k:
        words += ["--seqlen", str(case.seqlen_q)]
    else:
        words += ["--seqlen-q", str(case.seqlen_q), "--seqlen-k", str(case.seqlen_k)]
    derived = Case(heads=case.heads, head_dim=case.head_dim)
    for name in (
        "batch",
        "heads",
        "kv_heads",
        "head_dim",
        "dtype",
        "causal_alignment",
        "scale",
        "probs_dtype",
        *(() if case.distribution == GIVEN else ("seed", "distribution", "input_std")),
    ):
        reference = derived if name in ("kv_heads", "scale") else default
        if getattr(case, name) != getattr(reference, name):
            words += [f"--{name.replace('_', '-')}", str(getattr(case, name))]
    for name, (default_value, *_) in QUANTISED.items():
        if getattr(case, name) not in (None, default_value):
            words += [f"--{name.replace('_', '-')}", str(getattr(case, name))]
    if case.causal:
        words.append("--causal")
    for name in ("splits", "block_q", "block_k") if own else ():
        if getattr(case, name) is not None:
            words += [f"--{name.replace('_', '-')}", str(getattr(case, name))]
    return words
