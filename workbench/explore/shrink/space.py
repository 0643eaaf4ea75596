"""What of a case may become smaller or plainer: its coordinates, and the values of each, the plainest first."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from workbench.case.case import Case
from workbench.case.distributions import DISTRIBUTIONS, shapes
from workbench.case.fields import ALIGNMENTS
from workbench.case.stages import OF_HEADS

#: coordinates that are counts, at least 1; heads are kv_heads * group, so that each may shrink without the other
COUNTS = ("batch", "group", "kv_heads", "seqlen_q", "seqlen_k", "head_dim", "splits")
#: coordinates that are counts, at least 0
SIDES = ("window_left", "window_right")
#: coordinates that are the lengths of the sequences of a ragged batch, which are as many as there are
LENGTHS = ("seqlens_q", "seqlens_k")
#: masks and caps, which are tried one by one: a failure often needs them
MASKS: Mapping[str, Any] = {"causal": False, "window": False, "softcap": None}
#: what a case has beside plain attention, or has not -> as it is without
FEATURES: Mapping[str, Any] = {
    **MASKS,
    "alibi_slopes": None,
    "sinks": None,
    "dropout_p": None,
    "score_mod": None,
    "mask_mod": None,
    "page_size": None,
    "shared_kv": False,
    "pack_gqa": False,
    **dict.fromkeys(LENGTHS),
}
#: other coordinates, of whose values one is the plainest
_PLAINEST: Mapping[str, Any] = {
    **FEATURES,
    "causal_alignment": ALIGNMENTS[0],
    "alibi_form": "distance",
    "kv_layout": "NHD",
    "head_dim_v": None,
    "scale": None,
    "seed": 0,
    "input_std": 1.0,
}
#: the plainest distributions, the plainest first
PLAIN = ("constant-v", "one-hot", "index-coded", "comb", "needle", "uniform", "normal")
#: seeds that are tried where an outcome may be an accident of the draw: a fault that needs one of 17 keys to have the
#: largest score meets it in 1 - (16/17)^16 = 62% of such tries
SEEDS = range(16)


def coordinates(case: Case) -> dict[str, Any]:
    """What a case may be changed in, by name. `scale` is None where it is 1 / sqrt(head_dim), `head_dim_v` where it is
    head_dim; sides of a window that hide nothing are no coordinates, nor is the number of splits where nothing splits
    the keys, nor sizes that the lengths of sequences tell.
    """
    left, right = case.window or (-1, -1)
    found = {
        **{"batch": case.batch, "group": case.heads // case.kv_heads, "kv_heads": case.kv_heads},
        **{"seqlen_q": case.seqlen_q, "seqlen_k": case.seqlen_k, "head_dim": case.head_dim, "splits": case.splits},
        **{name: getattr(case, name) for name in (*_PLAINEST, "distribution")},
        **{"window": case.window is not None, "window_left": left, "window_right": right},
        "head_dim_v": None if case.head_dim_v == case.head_dim else case.head_dim_v,
        "scale": None if case.scale == _usual_scale(case.head_dim) else case.scale,
    }
    absent = [name for name in SIDES if found[name] == -1] + ["splits"] * (case.splits is None)
    absent += ["batch"] * case.ragged + [name.replace("lens", "len") for name in LENGTHS if found[name] is not None]
    return {name: value for name, value in found.items() if name not in absent}


def changed(case: Case, **changes: Any) -> Case:
    """The case with other values of some coordinates, tiles (block_q, block_k) among them; Refusal where there is no
    such case. Fewer heads keep the first of what there is for each, a shorter box of sequences their longest.
    """
    at = coordinates(case) | changes
    sides = at.pop("window_left", -1), at.pop("window_right", -1)
    at["heads"] = at["kv_heads"] * at.pop("group")
    at["window"] = sides if at["window"] else None
    if at["scale"] is None:
        at["scale"] = at["head_dim"] ** -0.5
    if at["head_dim_v"] is None:
        at["head_dim_v"] = at["head_dim"]
    for name in OF_HEADS:
        if isinstance(at[name], tuple):
            at[name] = (at[name] * at["heads"])[: at["heads"]]
    for name in LENGTHS:
        if at[name] is not None and at[name] != getattr(case, name):
            at |= {name.replace("lens", "len"): max(*at[name], 1), "batch": len(at[name])}
    return case.but(**at)


def axes(start: Case, tiled: bool) -> dict[str, Sequence[Any]]:
    """The values that each coordinate may take on the way down from `start`, the plainest first and its own last; no
    coordinate that has its plainest value already. `tiled`: the number of splits is a choice of the case.
    """
    at = coordinates(start)
    order = (*PLAIN, *(name for name in DISTRIBUTIONS if name not in PLAIN))
    found: dict[str, Sequence[Any]] = {}
    for name, value in at.items():
        if name in COUNTS:
            found[name] = range(1, value + 1)
        elif name in SIDES:
            found[name] = range(value + 1)
        elif name == "distribution":
            found[name] = order[: order.index(value) + 1]
        elif name == "head_dim_v" and value is not None:
            found[name] = (None, *(2**n for n in range(int(value).bit_length()) if 2**n < value), value)
        else:
            found[name] = tuple(dict.fromkeys((_PLAINEST[name], value)))
    return {name: some for name, some in found.items() if len(some) > 1 and (tiled or name != "splits")}


def seeds(case: Case) -> range:
    """Seeds that may tell more of a case; none where its inputs are no matter of chance."""
    other = case.but(seed=case.seed + 1)
    alike = all(np.array_equal(x, y) for x, y in zip(case.inputs(), other.inputs(), strict=True))
    return range(0) if alike else SEEDS


def elements(case: Case) -> int:
    """Elements of q, k and v: none behind the end of a sequence, and none of v where it is a part of k."""
    rows = case.lengths_q.sum(), case.lengths_k.sum(), 0 if case.shared_kv else case.lengths_k.sum()
    return int(sum(n * x[1] * x[3] for n, x in zip(rows, shapes(case), strict=True)))


def _usual_scale(head_dim: int) -> float:
    return float(np.float32(head_dim**-0.5))
