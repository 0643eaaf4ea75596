"""Findings without which runs on unseen inputs are predicted as well: beside others these are none."""

from collections.abc import Sequence

from workbench.readings.believed import Believed
from workbench.readings.finding import Finding
from workbench.readings.model import Model
from workbench.readings.proof import LEFT, rms, within
from workbench.readings.target import Answer

#: how much more of the error may be left without a finding that is not needed, where budgets tell nothing
MORE = 1.1
#: share of the error that shows where budgets hide it
SHOWN = 1e-3
#: reading -> the part of a model that it says of the inputs that its data names
_OF_INPUTS = {
    "heads": "heads", "elements": "sources", "scale": "scales", "rescaled": "rescaled",
    "table of q": "tables", "table of k": "tables", "table of v": "tables",
}  # fmt: skip
#: reading -> the parts of a model that it says
_PARTS = {
    "start": ("start",), "fixed": ("fixed",), "response": ("respond", "factor"), "lost": ("lost",), "added": ("added",),
    "columns": ("columns",), "place": ("place",), "operands": ("operands", "over", "by_query"), "steps": ("step",),
    "denominator": ("denominator",), "flushed": ("flush",), "mixed": ("mixed",), "tiles": ("respond",),
    "dims": ("rescaled",),
}  # fmt: skip


def needed(read: Believed, plain: Model, unseen: Sequence[Answer]) -> tuple[Model, list[Finding]]:
    """The model and the findings without those that are not needed, the last first. One finding stays whatever it does.

    A finding is needed where some run on `unseen` inputs, or the weights that were read, are beyond their budgets
    without it; where they are so with it, too, it must leave less of the error; where they are not, a tenth of it.
    """
    model, found = read.model, list(read.found)
    firsts = [(model, found)]
    while len(firsts[-1][1]) > 1 and (less := _without(firsts[-1][0], plain, firsts[-1][1][-1])) is not None:
        firsts.append((less, firsts[-1][1][:-1]))
    # what was read last may be of no use at all
    model, found = min(firsts, key=lambda one: sum(rms(answer, one[0].predicted(answer)) for answer in unseen))
    for one in found[::-1]:
        without = _without(model, plain, one) if len(found) > 1 else None
        if without is not None and _fits(read, without, model):
            if not any(_needs(answer, [one], model, without, plain) for answer in unseen):
                model = without
                found = [other for other in found if other is not one]
    return model, found


def _fits(read: Believed, without: Model, model: Model) -> bool:
    """Whether the weights that were read are a model's without something as much as with it; no kernel is asked."""
    return model.kernel is not None or read.fits(without) or not read.fits(model)


def _needs(answer: Answer, some: Sequence[Finding], model: Model, without: Model, plain: Model) -> bool:
    """Whether a run is predicted with some findings and not without them."""
    made, less = model.predicted(answer), without.predicted(answer)
    left, more, error = rms(answer, made), rms(answer, less), rms(answer, answer.expected)
    if within(answer, less, plain):
        # wide budgets, as of kernels on codes, hide what is no rounding
        return any(one.reading != "cast" for one in some) and more > max(left / LEFT, SHOWN * error)
    return within(answer, made, plain) or more > MORE * left


def _without(model: Model, plain: Model, one: Finding) -> Model | None:
    """The model without a finding; None where that is no part of its own."""
    if one.reading in _OF_INPUTS:
        name = _OF_INPUTS[one.reading]
        kept = {key: x for key, x in getattr(plain, name).items() if key in one.data}
        rest = {key: x for key, x in getattr(model, name).items() if key not in one.data}
        return model.but(**{name: {**rest, **kept}})
    if one.reading in _PARTS:
        return model.but(**{name: getattr(plain, name) for name in _PARTS[one.reading]})
    if "piece" in one.data:  # which are one kernel together
        return None
    return model.but(moved=None) if model.kernel is None else model.but(kernel=None)
