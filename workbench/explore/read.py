"""A function run and measured in one call: what it computes, and what it promises of its arithmetic."""

from collections.abc import Callable
from typing import Any, Unpack

from workbench.case.case import Case
from workbench.case.given import RunOptions
from workbench.foreign.run import USUAL, run
from workbench.readings.contract.measured import MeasuredContract, measured_contract
from workbench.readings.reader import Measured
from workbench.readings.sample import measured_in_part


def measure(
    target: str | Callable[..., Any], case: Case = USUAL, *, effort: float = 1.0, **given: Unpack[RunOptions]
) -> Measured:
    """What `target` computes on inputs of the shape of `case`, read off its outputs by choosing these: P itself, and
    each part that is not as the case says, as data, with runs on unseen inputs that prove it.

    `target` and `given` are those of `run`; it is called 3 to 200 times. Of a run of more than 4 million scores some
    rows of one head are read, or those of `where`. `effort`: how many times as many calls may be made. Raises Refusal
    as `run` does, and for a kernel whose v is a part of its k, one that gives no out, and a part of a run whose rows
    are other ones elsewhere (`trace.rows.of_rows`).

    >>> found = measure("examples/numpy_attention.py:scale_twice", Case(seqlen=16, head_dim=8))
    >>> [finding.text for finding in found.findings]
    ['the scale is 0.707107, not 0.353553: scores are multiplied by 2']
    """
    where = given.pop("where", None)
    return measured_in_part(run(target, case, **given), where, effort=effort)


def measure_contract(
    target: str | Callable[..., Any], case: Case = USUAL, **given: Unpack[RunOptions]
) -> MeasuredContract:
    """What `target`, which is believed right, promises of its arithmetic, read off its outputs on inputs of the shape
    of `case`: `fields`, as a function returns them by the name of "contract", and the `evidence` of each.

    `target` and `given` are those of `run`; it is called 30 to 400 times. Raises Refusal as `run` does, and for a case
    in which a score is more than scale * q @ k: a softcap, a bias, sinks, codes and the like.
    """
    return measured_contract(run(target, case, **given))
