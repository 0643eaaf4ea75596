"""A function judged by a plain reference on every combination of sizes, dtypes, distributions and seeds."""

from collections.abc import Callable, Iterable
from typing import Any

from workbench.explore.swept import SweepRow, Swept, failed, largest, swept
from workbench.operations.reference.call import diff_reference
from workbench.operations.reference.case import ReferenceCase
from workbench.operations.reference.inputs import Given
from workbench.operations.reference.traced import References
from workbench.refusal import Refusal


def sweep_reference(
    target: str | Callable[..., Any], reference: References, inputs: Given, cases: Iterable[ReferenceCase], **asked: Any
) -> Swept:
    """What `target` makes of each case; target, reference, inputs and `asked` as of `call.diff_reference`. A case that
    `inputs` or the reference refuses, or on which the function raises, is a row. Refusal where none was taken.
    """
    return swept([_row(target, reference, inputs, case, asked) for case in cases], "reference")


def _row(
    target: str | Callable[..., Any], reference: References, inputs: Given, case: ReferenceCase, asked: dict[str, Any]
) -> SweepRow:
    try:
        found = diff_reference(target, reference, inputs, **case.asked(), **asked)
    except Refusal as refusal:
        return failed(case.words, refusal)
    if found.origin:
        cause = f"should be {found.definition(found.origin)}"
    else:
        cause = next(iter([*found.gates, *(one.reason for one in found.stages if one.reason)]), "")
    return SweepRow(found.case, found.verdict, found.origin, largest(found), cause * found.fails, found.fails, found)
