"""What may be wrong in RMSNorm, beside what any table has: where eps stands, and what the mean is over."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from workbench.judge.explain.hypothesis import Hypothesis, altered
from workbench.operations.operation import Setting

#: multiples to which a width may be padded
PADS = (8, 16, 32, 64, 128, 256, 512, 1024)


def hypotheses(of: Setting) -> Iterator[Hypothesis]:
    """All of them."""
    dim, eps = of.sizes["d"], of.numbers["eps"]

    def rstd(id: str, text: str, function: Callable[[Any], Any]) -> Hypothesis:
        change = altered("rstd", lambda at, x: np.asarray(function(at("squares"))), "squares")
        return Hypothesis(f"rmsnorm.{id}", text, (change,))

    def over(width: int) -> Callable[[Any], Any]:
        return lambda s: 1 / np.sqrt(s / width + eps)

    yield rstd("eps-outside", "eps is added outside the square root", lambda s: 1 / (np.sqrt(s / dim) + eps))
    yield rstd("eps-left-out", "eps is left out", lambda s: 1 / np.sqrt(s / dim))
    yield rstd("sum", "the sum of squares is used in place of their mean", over(1))
    widths: dict[int, int] = {}
    for pad in PADS:
        widths.setdefault(-(-dim // pad) * pad, pad)
    for width, pad in widths.items():
        if width != dim:
            said = f"the mean is over {width}, the width padded to a multiple of {pad}"
            yield rstd(f"padded-{pad}", said, over(width))
