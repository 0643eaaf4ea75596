"""The library of hypotheses: what may be wrong in an attention kernel, family by family, the plainest first.

It is written from the definitions and from what is reported of kernels, and knows no kernel of ours.
"""

import re
from collections.abc import Sequence
from functools import cache
from itertools import chain

from workbench.judge.explain.hypothesis import Hypothesis
from workbench.judge.explain.library import (
    alibi,
    bias,
    codes,
    dropout,
    factor,
    fragments,
    lanes,
    latent,
    layout,
    mask,
    merge,
    mods,
    orders,
    output,
    packing,
    padding,
    pages,
    precision,
    ranks,
    scale,
    sequences,
    sinks,
    softmax,
)  # fmt: skip

#: families of what few cases have: of the others they are not tried
OF_FIELDS = {
    "sinks": sinks.hypotheses,
    "alibi": alibi.hypotheses,
    "bias": bias.hypotheses,
    "sequences": sequences.hypotheses,
    "pages": pages.hypotheses,
    "dropout": dropout.hypotheses,
    "mods": mods.hypotheses,
    "latent": latent.hypotheses,
    "packing": packing.hypotheses,
}
#: the families, the plainest first
FAMILIES = {
    **OF_FIELDS,
    "mask": mask.hypotheses,
    "scale": scale.hypotheses,
    "softmax": softmax.hypotheses,
    "merge": lambda: chain(merge.hypotheses(), ranks.hypotheses()),
    "output": output.hypotheses,
    "factor": factor.hypotheses,
    "layout": lambda: chain(
        layout.hypotheses(), orders.hypotheses(), padding.hypotheses(), fragments.hypotheses(), lanes.hypotheses()
    ),
    "precision": precision.hypotheses,
    "codes": codes.hypotheses,
}
#: ids of what is common in reports of bugs and costs little to try, from which every search begins: scales, edges of
#: masks, the heads and batches that are read, corrections and maxima, units of lse, scales of codes. Sweeps over maps
#: of rows and dims are most of the library, and take most of the time
COMMON = re.compile(
    r"scale\."
    r"|mask\.(none$|none-if|right-|left-|shift|no-|(window-)?top-left|(window-)?bottom-right|inverted|filled-[^n]*$|tail$)"
    r"|softmax\.(correction-(?!in-|row|below)|max-(stale|of-tile|zero)|subtracts-(stale|nothing|own)$)"
    r"|softmax\.((probs|exp)-(no-)?log2e|(row_sum|acc)-(uninitialised|twice|nothing|starts-1))"
    r"|output\.(un|divided|multiplied|out-strides|(lse-|both-)?(heads|batches)-|lse-(?!rows|sum-|max-|more|less|row))"
    r"|precision\.softmax-"
    r"|layout\.([qkv]-for|slot-|head-|batch-(zero|next)|as-b|over-heads)"
    r"|codes\.(unscaled|scaled-twice|scale-(inverted|of-))"
)


#: of these, those that some rows do not show as all do: they know how many queries there are, or mix these
_OF_ALL_ROWS = re.compile(
    r"mask\.(none-if|(left-|window-)?(top-left|bottom-right))|output\.(lse-(strides|first)|out-strides)|layout\.([qkv]-for|as-b|over-heads)"
)


def shows_in_rows(one: Hypothesis) -> bool:
    """Whether what a hypothesis predicts of some rows can be computed from these alone; of common ones."""
    return bool(COMMON.match(one.id)) and not _OF_ALL_ROWS.match(one.id)


def common(hypotheses: Sequence[Hypothesis]) -> tuple[Hypothesis, ...]:
    """Those of some that are common."""
    return tuple(one for one in hypotheses if COMMON.match(one.id))


@cache
def family(name: str) -> tuple[Hypothesis, ...]:
    """The hypotheses of one family."""
    return tuple(FAMILIES[name]())


def library(families: Sequence[str] = tuple(FAMILIES)) -> tuple[Hypothesis, ...]:
    """The hypotheses of some families, of all where none are named."""
    return tuple(one for name in families for one in family(name))
