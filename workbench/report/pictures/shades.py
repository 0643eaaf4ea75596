"""The colours of errors: each element becomes a shade, an integer that grows with importance, so that reducing a large
map is a block maximum.
"""

import numpy as np

from workbench.expectation.elements import State

CELLS = 512  #: most cells drawn in a direction; the map is 522 pixels wide at 110 dpi, so that each cell keeps a pixel

LOW, HIGH = -3, 6  #: decades of the colour scale; smaller and larger errors have the colours of its ends
RAMP = 240  #: shades on either side of the budget
EXACT, WITHIN = 0, 1
NOT_JUDGED = WITHIN + RAMP
POISONED = NOT_JUDGED + 1
SUSPICIOUS = POISONED + 1
OVER = SUSPICIOUS + 1
NAN = OVER + RAMP
UNWRITTEN = NAN + 1

#: shade -> colour and words, for the shades that are no size of an error
NAMED = {
    EXACT: ("#ffffff", "exact, error 0"),
    NOT_JUDGED: ("#e9dfc3", "not judged"),
    POISONED: ("#9aa0a6", "poisoned: inputs NaN"),
    SUSPICIOUS: ("#159a8c", "suspicious"),  # neither blue nor on the way from yellow to red
    NAN: ("#4a0d66", "NaN or wrong class"),
    UNWRITTEN: ("#000000", "unwritten"),
}
CALM_RAMP = ("#e1eef9", "#a9cfe9", "#5ba3d4", "#1f6fb0")
HOT_RAMP = ("#ffd23f", "#fb9a29", "#e8541e", "#b5121b", "#7d0012")


def shade(over_budget: np.ndarray, state: np.ndarray) -> np.ndarray:
    """A shade for each element, int16, that grows with importance.

    exact < within budget, by size < not judged < poisoned < suspicious < over budget, by size < NaN < unwritten
    """
    with np.errstate(divide="ignore"):
        decades = np.log10(over_budget)
    calm = np.clip((decades - LOW) / -LOW * (RAMP - 1), 0, RAMP - 1)
    hot = np.clip(decades / HIGH * (RAMP - 1), 0, RAMP - 1)
    conditions = [
        state == State.UNWRITTEN,
        state == State.NAN,
        state == State.POISONED,
        (state == State.VACUOUS) | np.isnan(over_budget),
        over_budget > 1,
        state == State.SUSPICIOUS,
        over_budget == 0,
    ]
    shades = [UNWRITTEN, NAN, POISONED, NOT_JUDGED, OVER + hot, SUSPICIOUS, EXACT]
    return np.select(conditions, shades, WITHIN + calm).astype(np.int16)


def reduced(shades: np.ndarray, limit: int = CELLS) -> tuple[np.ndarray, tuple[int, int]]:
    """The largest shade of each block, at most `limit` blocks in a direction, and the rows and columns of a block."""
    rows, columns = (-(-size // limit) for size in shades.shape)
    shades = np.maximum.reduceat(shades, np.arange(0, shades.shape[0], rows), axis=0)
    return np.maximum.reduceat(shades, np.arange(0, shades.shape[1], columns), axis=1), (rows, columns)


def colours(shades: np.ndarray) -> np.ndarray:
    """RGB of each shade, uint8 [..., 3]."""
    table = np.zeros((UNWRITTEN + 1, 3))
    table[WITHIN:NOT_JUDGED] = _ramp(CALM_RAMP)
    table[OVER:NAN] = _ramp(HOT_RAMP)
    for name, (colour, _) in NAMED.items():
        table[name] = _rgb(colour)
    return np.round(table).astype(np.uint8)[shades]


def _rgb(colour: str) -> list[int]:
    return [int(colour[i : i + 2], 16) for i in (1, 3, 5)]


def _ramp(anchors: tuple[str, ...]) -> np.ndarray:
    known = np.array([_rgb(anchor) for anchor in anchors])
    places = np.linspace(0, len(anchors) - 1, RAMP)
    return np.stack([np.interp(places, np.arange(len(anchors)), channel) for channel in known.T], axis=1)
