"""The library of hypotheses: what may be wrong in an attention kernel, family by family, the plainest first.

It is written from the definitions and from what is reported of kernels, and knows no kernel of ours.
"""

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
    output,
    packing,
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
    "layout": lambda: chain(layout.hypotheses(), fragments.hypotheses(), lanes.hypotheses()),
    "precision": precision.hypotheses,
    "codes": codes.hypotheses,
}


@cache
def family(name: str) -> tuple[Hypothesis, ...]:
    """The hypotheses of one family."""
    return tuple(FAMILIES[name]())


def library(families: Sequence[str] = tuple(FAMILIES)) -> tuple[Hypothesis, ...]:
    """The hypotheses of some families, of all where none are named."""
    return tuple(one for name in families for one in family(name))
