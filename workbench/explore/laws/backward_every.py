"""All laws of the backward pass, asked of a function on a case."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Unpack

import numpy as np

from workbench.explore.laws import backward_laws
from workbench.explore.laws.backward_run import Gradients
from workbench.explore.laws.law import Break, Finding, Law, Verdict
from workbench.operations.attention_backward import ATTENTION_BACKWARD
from workbench.operations.call import Asked, asked_for
from workbench.refusal import Raised, Refusal
from workbench.shown import shown_by

_OF_KIND = {
    "budget": (backward_laws.directional_derivative,),
    "bits": (
        backward_laws.dout_times_power_of_two,
        backward_laws.dq_of_a_row_without_keys_is_0,
        backward_laws.gradients_of_a_key_that_nobody_sees_are_0,
    ),
}
#: every law of the backward pass by its name
GRADIENT_LAWS: Mapping[str, Law] = {
    law.name: law for kind, some in _OF_KIND.items() for law in (Law(check, kind) for check in some)
}


@dataclass(frozen=True)
class GradientLaws:
    """What a function made of every law of the backward pass on a case."""

    subject: Gradients = field(repr=False)
    findings: tuple[Finding, ...]

    @property
    def broken(self) -> tuple[Finding, ...]:
        """Those that it broke."""
        return tuple(one for one in self.findings if one.held is False)

    @property
    def signature(self) -> dict[str, bool | None]:
        """Law -> whether it held; None where it does not apply."""
        return {one.law.name: one.held for one in self.findings}

    def as_dict(self) -> dict[str, Any]:
        """The document `workbench.gradient-laws/1` of `workbench laws --operation attention_backward --json`.

        - `conventions`: of the backward pass
        - `broken`: how many laws are broken
        - `laws`: a record for each law, as of `workbench.laws/1`
        """
        run, case = self.subject.first.diff.run, self.subject.case
        return {
            "schema": "workbench.gradient-laws/1",
            "target": run.target,
            **case.as_dict(),
            "conventions": dict(self.subject.conventions),
            "broken": len(self.broken),
            "laws": [one.as_dict() for one in self.findings],
        }

    def __str__(self) -> str:
        return shown_by("gradient_laws.in_short", self)


def gradient_laws(target: str | Callable[..., Any], **asked: Unpack[Asked]) -> GradientLaws:
    """What `target` makes of every law of the backward pass on a case; arguments as of
    `operations.call.diff_operation`. Raises what the run of the case itself raises.
    """
    run, case = asked_for(target, ATTENTION_BACKWARD, **asked)
    subject = Gradients(run, case, case.inputs())
    _ = subject.first  # what the case itself raises is raised
    return GradientLaws(subject, tuple(_finding(law, subject) for law in GRADIENT_LAWS.values()))


def _finding(law: Law, s: Gradients) -> Finding:
    found = _checked(law, s)
    return Finding(law, lacking=found) if isinstance(found, str) else Finding(law, broke=found)


def _checked(law: Law, s: Gradients) -> Verdict:
    try:
        with np.errstate(all="ignore"):
            return law.check(s)
    except Raised as raised:
        return Break("", {}, np.nan, np.nan, 0.0, why=f"it ran on the case, but fails on other values: {raised}")
    except Refusal as refusal:
        return str(refusal).strip().splitlines()[-1]
