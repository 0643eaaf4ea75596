"""A case on several draws of its inputs: the largest errors that a faulty kernel makes there."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from workbench.case.case import Case
from workbench.case.contract import of_foreign
from workbench.case.presets import fields_of
from workbench.case.promises import unwrapped
from workbench.case.stages import INPUTS, OUT
from workbench.expectation.expectation import Expectation
from workbench.expectation.observed import Observed
from workbench.floats import DTYPES, round_to, ulp
from workbench.judge.explain.hypothesis import Hypothesis
from workbench.judge.explain.scene import Arrays, predicted
from workbench.reference.problem import Problem
from workbench.reference.walk import values
from workbench.trace.trace import Trace

#: what kernels that are in use have alike: float32 between their stages, and probs that may be cast
USUAL = "torch-sdpa"

#: indices of queries; None: the largest error of all
Rows = Sequence[int | None]


class Errors(NamedTuple):
    """Largest |kernel - reference| of some rows, float64 [draws, rows], NaN where there is one, and how far
    rounding may move it.
    """

    size: np.ndarray
    rounding: np.ndarray

    def shaped(self, *shape: int) -> "Errors":
        """With the draws in axes of their own."""
        return Errors(*(x.reshape(*shape, x.shape[-1]) for x in self))


@dataclass(frozen=True, eq=False)
class Draws:
    """A kernel on one case, whose inputs are drawn several times: `cases` differ in input_std and seed alone.

    Several cases of one batch each are computed as batches of one: nothing that a hypothesis changes in a batch shows
    in another, but for an index of batches, which has no wrong value where there is one batch.
    """

    kernel: str
    stage: str
    cases: tuple[Case, ...]
    rows: Rows

    @cached_property
    def _runs(self) -> "list[_Run]":
        if self.cases[0].batch == 1:
            return [_Run(self.kernel, self.stage, self.cases)]
        return [_Run(self.kernel, self.stage, (case,)) for case in self.cases]

    @property
    def table(self) -> Mapping[str, Any]:
        """The steps of the kernel."""
        return self._runs[0].problem.table

    @cached_property
    def correct(self) -> Errors:
        """What a kernel without a fault makes: nothing but rounding."""
        return self._concatenated([run.errors(run.stored(run.expected), self.rows) for run in self._runs])

    def errors(self, hypothesis: Hypothesis) -> Errors | None:
        """What a kernel with this fault makes; None where it cannot have it."""
        found = [run.predicted(hypothesis) for run in self._runs]
        whole = [x for x in found if x is not None]
        if len(whole) < len(found):
            return None
        return self._concatenated([run.errors(x, self.rows) for run, x in zip(self._runs, whole, strict=True)])

    def predicted(self, hypothesis: Hypothesis) -> list[np.ndarray] | None:
        """The stage itself, of a kernel with this fault."""
        found = [run.predicted(hypothesis) for run in self._runs]
        return None if any(x is None for x in found) else found  # type: ignore[return-value]

    def _concatenated(self, found: Sequence[Errors]) -> Errors:
        return Errors(*(np.concatenate(x) for x in zip(*found, strict=True)))


@dataclass(frozen=True, eq=False)
class _Run:
    """Draws that are computed at once."""

    kernel: str
    stage: str
    cases: tuple[Case, ...]

    @cached_property
    def _expectation(self) -> Expectation:
        case = self.cases[0]
        drawn = [one.inputs() for one in self.cases]
        inputs = {name: np.concatenate(x) for name, x in zip(INPUTS, zip(*drawn, strict=True), strict=True)}
        tiles = {"block_k": case.block_k, "splits": case.splits}
        contract = of_foreign({**unwrapped(fields_of(USUAL, case))[0], **tiles}, case)
        together = case.but(batch=case.batch * len(self.cases))
        trace = Trace(self.kernel, self.kernel, together, contract, inputs, {}, ())
        return Expectation(Observed(trace), {}, statistics=False)

    @property
    def problem(self) -> Problem:
        return self._expectation.problem

    @cached_property
    def expected(self) -> Arrays:
        return values(self.problem)

    @cached_property
    def _allowed(self) -> np.ndarray:
        """How far a right kernel may be, by rounding and by storing."""
        name = self.stage
        bound = self._expectation.budgets([name])[name].bound
        with np.errstate(all="ignore"):
            return bound + np.nan_to_num(ulp(self.expected[name], self._dtype) / 2)

    @property
    def _dtype(self) -> np.dtype:
        return DTYPES[self.cases[0].dtype if self.stage == OUT else "float32"]

    def stored(self, found: Arrays) -> np.ndarray:
        """The stage as it is stored, so that what is too large is infinite."""
        return round_to(found[self.stage], self._dtype)

    def predicted(self, hypothesis: Hypothesis) -> np.ndarray | None:
        found = predicted(self.problem, self.expected, hypothesis, [self.stage])
        return None if found is None else self.stored(found)

    def errors(self, found: np.ndarray, rows: Rows) -> Errors:
        """How far a stage is from what it should be. What is larger than it should be is rounded as much more."""
        right = self.expected[self.stage]
        with np.errstate(all="ignore"):
            error = np.where(found == right, 0.0, abs(found - right))
            size, allowed = self._by_row(error), self._by_row(self._allowed)
            largest, usual = (self._by_row(_finite(abs(x))).max(-1) for x in (found, right))
            growth = np.nan_to_num(largest / usual, nan=1.0, posinf=1.0)
        allowed = allowed * np.maximum(growth, 1.0)[:, None]
        return Errors(_picked(size, rows), _picked(allowed, rows))

    def _by_row(self, x: np.ndarray) -> np.ndarray:
        """The largest of each row, [draws, q]; NaN where there is one."""
        b, h, q = x.shape[:3]
        flat = x.reshape(len(self.cases), b // len(self.cases) * h, q, -1)
        largest: np.ndarray = flat.max((1, 3))
        return largest


def _picked(x: np.ndarray, rows: Rows) -> np.ndarray:
    return np.stack([x.max(-1) if row is None else x[:, row] for row in rows], -1)


def _finite(x: np.ndarray) -> np.ndarray:
    return np.where(np.isfinite(x), x, 0.0)
