"""A contract that is read off a function: its fields, and what shows each of them."""

import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from workbench.case.case import Case
from workbench.readings.contract.ends import ends
from workbench.readings.contract.field import Field, unread
from workbench.readings.contract.operands import operands
from workbench.readings.contract.probs import probs
from workbench.readings.contract.row_sum import exp, row_sum
from workbench.readings.contract.scores import products_of, rounded, scores
from workbench.readings.contract.subject import Subject
from workbench.readings.contract.sums import kept, sums
from workbench.readings.contract.tiles import tiles
from workbench.shown import shown_by
from workbench.trace.trace import Trace


@dataclass(frozen=True, eq=False)
class MeasuredContract:
    """What a function promises of its arithmetic, as far as it was read off its outputs."""

    target: str
    case: Case  #: on which it was read; tile_order as a list and split_bounds hold of its keys alone
    every: tuple[Field, ...]  #: all fields that were looked at, read or not
    calls: int
    seconds: float = field(compare=False)

    @property
    def fields(self) -> Mapping[str, Any]:
        """What was read, as a function returns it by the name of "contract"."""
        return MappingProxyType({one.name: one.value for one in self.every if one.is_read})

    @property
    def evidence(self) -> Mapping[str, str]:
        """What shows each field that was read, in a sentence."""
        return MappingProxyType({one.name: one.evidence for one in self.every if one.is_read})

    @property
    def unread(self) -> Mapping[str, str]:
        """Why the others cannot be read."""
        return MappingProxyType({one.name: one.evidence for one in self.every if not one.is_read})

    def __str__(self) -> str:
        return "\n".join(shown_by("contract.lines", self))


@np.errstate(all="ignore")
def measured_contract(trace: Trace) -> MeasuredContract:
    """The contract of the function of a trace, which is believed right.

    Refusal for a trace at rest, a case in which scores are more than scale * q @ k, and a function that refuses its own
    case with other numbers in q, k and v.
    """
    begun = time.monotonic()
    with threadpool_limits(1, "blas"), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        subject = Subject(trace)
        found = _read(subject)
    return MeasuredContract(
        target=trace.target,
        case=trace.case,
        every=tuple(found),
        calls=subject.calls,
        seconds=time.monotonic() - begun,
    )


def _read(subject: Subject) -> list[Field]:
    bits, how = kept(subject), rounded(subject)
    found = [*tiles(subject), *scores(subject, how, bits.values), *operands(subject), *probs(subject)]

    def value(name: str) -> Any:
        return next((one.value for one in found if one.name == name and one.is_read), None)

    dtype, rounding = value("probs_dtype"), value("probs_rounding") or "nearest"
    found.append(row_sum(subject, dtype, rounding))
    if how == "none" and value("scaled_q_dtype") == "float32":
        found.append(exp(subject))
    else:
        found.append(unread("exp_ulps", "scores or q may be rounded to 16 bits, which would hide errors of exp"))
    bounds, merged = value("split_bounds"), value("block_k") is not None
    splits = (value("splits") or 1) > 1 or (bounds is not None and len(bounds) > 2)
    found += sums(subject, bits, products_of(how), splits)
    found += ends(subject, dtype, value("probs_normalised"), merged)
    if value("normalisation") == "lse":
        # exp(score - lse) is what a division would give, and there is none
        found = [one for one in found if one.name != "probs_normalised"]
    return found
