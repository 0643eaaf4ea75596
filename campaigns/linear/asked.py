"""What is asked of one process: a right kernel, a wrong one before or after its fix, or a fault, in one dtype."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from campaigns.linear.faults import FAULTS, NONE
from campaigns.real.case import Case
from campaigns.real.inputs import Tensors
from campaigns.real.rows.fla import CASES, RIGHT, named
from campaigns.real.rows.fla_wrong import WRONG

#: what is judged of a case
FORWARD, GRADIENTS = "forward", "gradients"


def asked(names: Sequence[str], wrong: bool, faults: bool) -> Iterator[dict[str, Any]]:
    """Those with one reference first, which take a second to judge; then bugs; then those with two. Faults are for
    themselves.
    """
    if faults:
        for i, one in enumerate(FAULTS):
            if not names or one.operation in names:
                for dtype in one.case.dtypes:
                    yield _one(one.operation, dtype, fault=i)
        return
    several = [one for one in CASES if len(one.references) > 1]
    yield from _right([one for one in CASES if one not in several], names)
    for i, bug in enumerate(WRONG if wrong else ()):
        if not names or bug.case.operation in names or bug.after in names:
            for before in (True, False) if bug.after else (True,):
                for dtype in bug.dtypes:
                    yield _one(bug.case.operation, dtype, wrong=i, before=before)
    yield from _right(several, names)


def _right(cases: Sequence[Case], names: Sequence[str]) -> Iterator[dict[str, Any]]:
    for one in cases:
        if not names or one.operation in names:
            for dtype in one.dtypes:
                yield _one(one.operation, dtype)


def _one(operation: str, dtype: str, **which: Any) -> dict[str, Any]:
    """wrong: which of WRONG, and whether before its fix; fault: which of FAULTS."""
    return {"operation": operation, "dtype": dtype, "wrong": None, "before": False, "fault": None} | which


def case_of(one: Mapping[str, Any]) -> tuple[Case, str, str]:
    """The case, the commit of its kernel, and that of its references."""
    if one["fault"] is not None:
        return FAULTS[one["fault"]].case, RIGHT, RIGHT
    if one["wrong"] is None:
        return named(one["operation"]), RIGHT, RIGHT
    bug = WRONG[one["wrong"]]
    commit = bug.before if one["before"] else bug.after
    return bug.case, *((RIGHT, commit) if bug.of_reference else (commit, RIGHT))


def parts(one: Mapping[str, Any]) -> tuple[str, ...]:
    """What is judged: of a bug what it is in, of a fault its results; gradients only where these are asked."""
    found: tuple[str, ...] = (FORWARD,)
    if one["wrong"] is not None:
        found = WRONG[one["wrong"]].wrong_in
    elif one["fault"] is None and named(one["operation"]).gradients:
        found = FORWARD, GRADIENTS
    return tuple(what for what in found if what == FORWARD or not one["forward"])


def tokens(case: Case, one: Mapping[str, Any], gradients: bool) -> int:
    """T, where none is asked that of the case."""
    return one["T"] or (case.back if gradients else case.T)


def inputs_of(case: Case, one: Mapping[str, Any], gradients: bool) -> Tensors:
    """The inputs on the CPU, without the gradient of a result that nobody goes back from."""
    made = case.inputs(one["seed"], getattr(torch, one["dtype"]), tokens(case, one, gradients))
    return {name: x for name, x in made.items() if gradients or not name.startswith("d")}


def truth(one: Mapping[str, Any], what: str) -> str:
    """`wrong` or `right`, of a kernel or reference: a bug of the backward pass leaves the forward pass right."""
    if one["fault"] is not None:
        return "right" if FAULTS[one["fault"]].fault == NONE else "wrong"
    bug = None if one["wrong"] is None or not one["before"] else WRONG[one["wrong"]]
    return "wrong" if bug is not None and bug.shows and what in bug.wrong_in else "right"
