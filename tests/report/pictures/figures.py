"""Stages to draw, and what their pictures hold."""

import numpy as np

from workbench.case.case import Case
from workbench.expectation.elements import Elements, State, whole
from workbench.judge.stage import StageDiff

RUN = "mine.py:attention: float16 b=1 h=4 q=8 k=8 d=64, causal bottom-right, normal inputs, seed 0"
CASE = Case(seqlen=8, heads=4, causal=True, block_q=4, block_k=2, splits=2)
ORDER = (
    "exact",
    "within",
    "not judged",
    "poisoned",
    "suspicious",
    "over",
    "nan",
    "unwritten",
)  # by importance, least first


def comparison(over_budget, state=None, statistical=0.5):
    """A comparison with expectation 2, budget 0.5 and the given ratios and states; NaN where the state says so."""
    over_budget = np.asarray(over_budget, float)
    state = np.full(over_budget.shape, State.ROUNDING, np.uint8) if state is None else np.asarray(state, np.uint8)
    over_budget = np.where((state == State.NAN) | (state == State.UNWRITTEN), np.inf, over_budget)
    over_budget = np.where((state == State.POISONED) | (state == State.VACUOUS), np.nan, over_budget)
    state = np.where((state <= State.ROUNDING) & (over_budget > 1), np.uint8(State.OUTSIDE), state)
    expected = np.full(over_budget.shape, 2.0)
    actual = np.where(np.isfinite(over_budget), expected + 0.5 * np.nan_to_num(over_budget, posinf=0), np.nan)
    half = np.full(over_budget.shape, 0.5)
    likely = np.broadcast_to(np.float32(statistical), half.shape)
    return whole(Elements(actual.astype(np.float32), expected, half, likely, over_budget, state))


def stage(over_budget, state=None, *, axes="bhqk", name="scores", verdict="rounding", propagated=None):
    return StageDiff(name, axes, verdict, comparison(over_budget, state), propagated)


def texts(figure):
    found = [text.get_text() for axes in figure.axes for text in axes.texts] + [
        text.get_text() for text in figure.texts
    ]
    ticks = [tick.get_text() for axes in figure.axes for tick in (*axes.get_xticklabels(), *axes.get_yticklabels())]
    return [*found, *ticks]


def legend(figure):
    return [text.get_text() for box in figure.legends for text in box.get_texts()]


def pixels(figure):
    return np.asarray(figure.axes[0].images[0].get_array())


def rgb(colour):
    return [int(colour[i : i + 2], 16) for i in (1, 3, 5)]


def element(kind):
    """Ratio and state of an element of the kind, as in ORDER."""
    special = {
        "not judged": State.VACUOUS,
        "poisoned": State.POISONED,
        "nan": State.NAN,
        "unwritten": State.UNWRITTEN,
        "suspicious": State.SUSPICIOUS,
    }
    return {"exact": 0.0, "within": 1.0, "suspicious": 1.0, "over": 1.0001}.get(kind, 0.0), special.get(
        kind, State.ROUNDING
    )
