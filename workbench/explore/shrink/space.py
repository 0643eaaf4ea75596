"""What of a case may become smaller or plainer: its coordinates, and the values of each, the plainest first."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from workbench.case.case import Case
from workbench.case.distributions import DISTRIBUTIONS, shapes
from workbench.case.fields import ALIGNMENTS

#: coordinates that are counts, at least 1; heads are kv_heads * group, so that each may shrink without the other
COUNTS = ("batch", "group", "kv_heads", "seqlen_q", "seqlen_k", "head_dim", "splits")
#: coordinates that are counts, at least 0
SIDES = ("window_left", "window_right")
#: the plainest distributions, the plainest first
PLAIN = ("constant-v", "one-hot", "index-coded", "uniform", "normal")
#: seeds that are tried where an outcome may be an accident of the draw: a fault that needs one of 17 keys to have the
#: largest score meets it in 1 - (16/17)^16 = 62% of such tries
SEEDS = range(16)


def coordinates(case: Case) -> dict[str, Any]:
    """What a case may be changed in, by name. `scale` is None where it is 1 / sqrt(head_dim); sides of a window that
    hide nothing are no coordinates, nor is the number of splits where nothing splits the keys.
    """
    left, right = case.window or (-1, -1)
    found = {
        **{"batch": case.batch, "group": case.heads // case.kv_heads, "kv_heads": case.kv_heads},
        **{"seqlen_q": case.seqlen_q, "seqlen_k": case.seqlen_k, "head_dim": case.head_dim, "splits": case.splits},
        **{"causal": case.causal, "causal_alignment": case.causal_alignment},
        **{"window": case.window is not None, "window_left": left, "window_right": right},
        **{"softcap": case.softcap, "scale": None if case.scale == _usual_scale(case.head_dim) else case.scale},
        **{"seed": case.seed, "input_std": case.input_std, "distribution": case.distribution},
    }
    absent = [name for name in SIDES if found[name] == -1] + ["splits"] * (case.splits is None)
    return {name: value for name, value in found.items() if name not in absent}


def changed(case: Case, **changes: Any) -> Case:
    """The case with other values of some coordinates, tiles (block_q, block_k) among them; Refusal where there is no
    such case.
    """
    at = coordinates(case) | changes
    sides = at.pop("window_left", -1), at.pop("window_right", -1)
    at["heads"] = at["kv_heads"] * at.pop("group")
    at["window"] = sides if at["window"] else None
    if at["scale"] is None:
        at["scale"] = at["head_dim"] ** -0.5
    return case.but(**at)


def axes(start: Case, tiled: bool) -> dict[str, Sequence[Any]]:
    """The values that each coordinate may take on the way down from `start`, the plainest first and its own last; no
    coordinate that has its plainest value already. `tiled`: the number of splits is a choice of the case.
    """
    at = coordinates(start)
    order = (*PLAIN, *(name for name in DISTRIBUTIONS if name not in PLAIN))
    plainest: dict[str, Any] = {"causal": False, "causal_alignment": ALIGNMENTS[0], "window": False, "softcap": None}
    plainest |= {"scale": None, "seed": 0, "input_std": 1.0}
    found: dict[str, Sequence[Any]] = {}
    for name, value in at.items():
        if name in COUNTS:
            found[name] = range(1, value + 1)
        elif name in SIDES:
            found[name] = range(value + 1)
        elif name == "distribution":
            found[name] = order[: order.index(value) + 1]
        else:
            found[name] = tuple(dict.fromkeys((plainest[name], value)))
    return {name: some for name, some in found.items() if len(some) > 1 and (tiled or name != "splits")}


def seeds(case: Case) -> range:
    """Seeds that may tell more of a case; none where its inputs are no matter of chance."""
    other = case.but(seed=case.seed + 1)
    alike = all(np.array_equal(x, y) for x, y in zip(case.inputs(), other.inputs(), strict=True))
    return range(0) if alike else SEEDS


def elements(case: Case) -> int:
    """Elements of q, k and v."""
    return sum(math.prod(shape) for shape in shapes(case))


def _usual_scale(head_dim: int) -> float:
    return float(np.float32(head_dim**-0.5))
