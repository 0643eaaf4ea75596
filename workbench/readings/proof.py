"""Whether what was measured predicts runs that no reading saw."""

from dataclasses import dataclass

import numpy as np

from workbench.readings.model import Model, right
from workbench.readings.of_lse import Lse
from workbench.readings.target import Answer, Target
from workbench.refusal import Refusal, Unavailable

#: seeds of unseen inputs, beside the case's own
UNSEEN = (1009, 2003)
#: share of the error that what was measured may leave of an unseen run
LEFT = 0.1


@dataclass(frozen=True, eq=False)
class Proof:
    """What was measured, held against a run on inputs that no reading saw."""

    seed: int
    error: float  #: root of the mean square of out - expected, over what is finite in both
    left: float  #: the same of out - what was measured predicts
    held: bool  #: whether that is less than a tenth, or within the budgets of rounding
    lse_held: bool = True  #: the same of lse, where it was returned and something was read of it


def unseen(target: Target, seed: int) -> Answer | None:
    """A run on inputs that no reading saw; None where the function refuses them."""
    try:
        return target.drawn(target.case.seed + seed)
    except (Refusal, Unavailable):
        return None


def proved(target: Target, model: Model, of_lse: Lse | None, seed: int, answer: Answer | None) -> Proof:
    """A run on unseen inputs, against what was measured."""
    if answer is None:
        return Proof(seed, np.nan, np.nan, False)
    plain = right(target)
    made = model.predicted(answer)
    error, left = rms(answer, answer.expected), rms(answer, made)
    held = predicted(answer, model, plain)
    return Proof(seed, error, left, held, lse_predicted(answer, model, plain, of_lse))


def predicted(answer: Answer, model: Model, plain: Model) -> bool:
    """Whether out of a run is as the model has it: within budgets, or but for a tenth of the error. What the casts of
    a kernel in 16 bits make of float64 no model has.
    """
    made = model.predicted(answer)
    if not np.array_equal(np.isnan(answer.out), np.isnan(made)):
        return False
    # of a run that is within the budgets of right ones these tell nothing of what is wrong with it
    telling = answer.wrong.any() or np.array_equal(made, plain.predicted(answer), equal_nan=True)
    if telling and within(answer, made, plain):
        return True
    error, left, casts = rms(answer, answer.expected), rms(answer, made), model.rounding(answer)
    return bool(left**2 <= (LEFT * error) ** 2 + casts**2 and left <= error / 2)


def within(answer: Answer, made: np.ndarray, plain: Model) -> bool:
    """Whether all of out of a run is within the budgets of what a model made of it."""
    alike = (answer.out == made) | (np.isnan(answer.out) & np.isnan(made))
    # budgets are about what casts make of float64, which a model without them is off by
    of_casts = abs(answer.expected - plain.predicted(answer))
    return bool(np.all((abs(answer.out - made) <= answer.allowed + of_casts) | alike))


def lse_predicted(answer: Answer, model: Model, plain: Model, of_lse: Lse | None) -> bool:
    """Whether lse of a run, where it is returned and wrong, is as the model or a reading of its own has it."""
    if answer.lse is None or not answer.wrong_lse.any():
        return True
    made = model.lse(answer) if of_lse is None else of_lse(model, plain, answer)
    if model.lost is not None:
        made = np.where(model.lost & np.isnan(answer.lse), np.nan, made)
    alike = (answer.lse == made) | (np.isnan(answer.lse) & np.isnan(made)) | np.isinf(answer.expected_lse)
    with np.errstate(invalid="ignore"):
        if np.all(alike | (abs(answer.lse - made) <= answer.allowed_lse)):
            return True
    return explained(answer.lse, made, answer.expected_lse)


def explained(actual: np.ndarray, made: np.ndarray, expected: np.ndarray) -> bool:
    """Whether a prediction, `made`, leaves at most a tenth of the error; of elements that are finite in all three."""
    finite = np.isfinite(actual) & np.isfinite(made) & np.isfinite(expected)
    if not finite.any():
        return False
    off, error = (np.sqrt(np.mean((x - actual)[finite] ** 2)) for x in (made, expected))
    return bool(off <= LEFT * error)


def rms(answer: Answer, made: np.ndarray) -> float:
    """The root of the mean square of out - `made`, over what is finite in both."""
    finite = np.isfinite(answer.out) & np.isfinite(made)
    return float(np.sqrt(np.mean((answer.out - made)[finite] ** 2))) if finite.any() else 0.0
