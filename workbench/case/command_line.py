"""A case, and the faults of a run, in the words of the command line."""

import shlex
from collections.abc import Sequence
from typing import Any

from workbench.case.case import Case
from workbench.case.fields import DRAWN, GIVEN, LAID, PROBLEM, QUANTISED, TILES, of_role
from workbench.case.spellings import NEED_VALUE, WORDS, said


def fault_options(faults: Sequence[str]) -> list[str]:
    """Faults of a kernel as options, quoted for a shell."""
    return [word for fault in faults for word in ("--fault", shlex.quote(fault))]


def case_options(case: Case, own: bool) -> list[str]:
    """The command line's case options that give `case`, quoted for a shell; tiles and splits only where the
    kernel is ours (`own`).
    """
    return [*map(shlex.quote, said(case_fields(case, own)))]


def case_fields(case: Case, own: bool) -> dict[str, Any]:
    """The fields that make `case`, those alone that are not as usual, and its lengths; as of `case_options`."""
    unusual, lengths = case.unusual, ("seqlen_q", "seqlen_k")
    found: dict[str, Any] = {"seqlen": case.seqlen_q}
    if case.seqlen_q != case.seqlen_k:
        found = {name: getattr(case, name) for name in lengths}
    if case.ragged:  # whose sequences tell what they can
        found = {name: unusual[name] for name in ("seqlen", *lengths) if name in unusual}
    of_problem = [name for name in of_role(PROBLEM, LAID) if name not in (*lengths, "causal")]
    drawn = of_role(DRAWN) if case.distribution != GIVEN else ("seed",) if case.draws_beside else ()
    names = (*of_problem, "probs_dtype", *drawn, *QUANTISED, "causal", *(of_role(TILES) if own else ()))
    silent = {field for option in NEED_VALUE if option not in unusual for field in WORDS[option].values()}
    names = tuple(name for name in names if name not in silent)
    # what quantised kernels take where none is given is as usual there
    return found | {n: unusual[n] for n in names if n in unusual and unusual[n] != QUANTISED.get(n, (None,))[0]}
