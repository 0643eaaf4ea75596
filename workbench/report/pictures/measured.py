"""The weights that were read off a function: ln(P / expected) over queries and keys."""

from typing import TYPE_CHECKING

import numpy as np

from workbench.readings.reader import Measured
from workbench.report.pictures.style import INK, LABEL, SMALL, headline, page, signed

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WIDTH, HEIGHT, LEFT, BOTTOM, MAP = 7.6, 6.2, 0.75, 0.6, 4.6  #: inches
#: ln(P / expected) at which colours end: a factor of 3
END = np.log(3.0)


def measured(found: Measured) -> "Figure":
    """The head whose weights are farthest off; grey: hidden keys, black: keys that should weigh and do not."""
    with np.errstate(all="ignore"):
        ratio = np.log(found.weights / found.expected_weights)
    off = np.where(np.isfinite(ratio), abs(ratio), 0.0).sum((2, 3)) + np.isinf(ratio).sum((2, 3))
    b, h = np.unravel_index(int(off.argmax()), off.shape)
    shown = ratio[b, h]
    figure = page(WIDTH, HEIGHT)
    first = found.findings[0].text if found.findings else "weights are within budget"
    headline(figure, f"ln(P / expected), batch {b}, head {h}", first)
    axes = figure.add_axes((LEFT / WIDTH, BOTTOM / HEIGHT, MAP / WIDTH, MAP / HEIGHT))
    colours = {"cmap": "RdBu_r", "vmin": -END, "vmax": END, "interpolation": "nearest", "aspect": "auto"}
    axes.set_facecolor("#e1e4e8")
    image = axes.imshow(np.where(np.isfinite(shown), shown, np.nan), **colours)
    lost = np.ma.masked_where(~np.isneginf(shown), np.ones_like(shown))
    axes.imshow(lost, cmap="gray", vmin=1, vmax=2, interpolation="nearest", aspect="auto")
    axes.set_xlabel("key", fontsize=LABEL, color=INK)
    axes.set_ylabel("query", fontsize=LABEL, color=INK)
    axes.tick_params(labelsize=SMALL, labelcolor=INK)
    bar = figure.add_axes(((LEFT + MAP + 0.3) / WIDTH, BOTTOM / HEIGHT, 0.2 / WIDTH, MAP / HEIGHT))
    figure.colorbar(image, cax=bar).set_label("ln(P / expected)", fontsize=SMALL, color=INK)
    bar.tick_params(labelsize=SMALL, labelcolor=INK)
    return signed(figure, f"{found.target.trace.target}, {found.calls} calls")
