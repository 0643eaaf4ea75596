"""Keys that an added number hides: -inf, or a finite number so low that their weight is 0 whatever a kernel rounds.

transformers adds finfo.min, BERT -1e4, others -1e9, in place of a boolean mask. Such a number is no bias: it asks which
keys are seen, and nothing else.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from workbench.case.case import Case
from workbench.floats import to_float64

Arrays = Mapping[str, np.ndarray]

#: the largest number that is taken for a stand-in of -inf wherever it stands: BERT's
HUGE = -1e4
#: share of it by which numbers may differ to which a bias was added
NEAR = 0.1
#: exp of less is 0 in float64
NOTHING = -746.0
#: what rounding takes of the largest sum of a score and a bias, in 16 bits
ROUNDED = 2.0**-7


class Hiding(NamedTuple):
    """A bias that hides keys, read as what it asks."""

    inputs: dict[str, np.ndarray]  #: q, k, v and the others, with a mask, and with what is left of the bias
    largest: float  #: of the numbers that hide
    keys: int  #: (row, key) pairs that finite numbers hide
    rows: int  #: rows that finite numbers leave no key


def hiding(case: Case, inputs: Arrays) -> Hiding | None:
    """The keys that numbers of a bias hide, in the mask of the inputs, and the bias without them; None where it hides
    none, or where what hides cannot be told from what is added.

    A finite number hides a key where it is so far below the largest one of its row that no rounding of scores gives the
    key a weight, and where it is HUGE or lower or all that hide so are alike; of a row that has such numbers alone
    every key is hidden. -inf counts as they do where nothing else is left of the bias.
    """
    if "bias" not in inputs or case.score_mod is not None:
        return None
    if float(inputs["bias"].min()) > NOTHING:
        return None
    bias = inputs["bias"].astype(np.float32)  # as it is, in the largest of its dtypes
    seen = case.mask() & inputs["mask"] if "mask" in inputs else case.mask()
    seen, bias = np.broadcast_arrays(seen, bias)
    finite = bias > -np.inf
    top = bias.max(axis=-1, keepdims=True, initial=-np.inf, where=seen & finite)
    least = top.astype(np.float64)  # below it by NOTHING, by what scores may differ, and by what both may be rounded
    with np.errstate(invalid="ignore"):
        least = (least - ROUNDED * abs(least) + NOTHING - 2 * _reach(case, inputs)) / (1 - ROUNDED)
    far = finite & (bias < least)
    limit = (1 - NEAR) * HUGE
    if (numbers := bias[far]).size and numbers.max() > limit:
        if numbers.max() > (1 - NEAR) * numbers.min():
            far &= bias <= limit  # numbers of all sizes are a bias, as ALiBi's
        else:
            limit = (1 - NEAR) * numbers.max()
    rows = (seen & finite).any(axis=-1, keepdims=True) & (top <= limit)
    if (finite & ~far & (bias <= limit) & (top > limit)).any():  # scores here are too large for what else would hide
        rows = np.zeros_like(rows)
    far |= finite & rows & (seen | (bias <= limit))
    left = (finite & ~far & (bias != 0)).any()
    gone = far if left else far | ~finite
    if not gone.any():
        return None
    found = {name: x for name, x in inputs.items() if name not in ("mask", "bias")}
    found["mask"] = inputs["mask"] & ~gone if "mask" in inputs else ~gone
    if left:
        found["bias"] = np.where(gone, 0.0, bias).astype(inputs["bias"].dtype)
    largest = float(bias.max(initial=-np.inf, where=far))
    return Hiding(found, largest, int((far & seen).sum()), int(rows.sum()))


def restored(changed: Arrays, given: Arrays, largest: float) -> dict[str, np.ndarray]:
    """Inputs as a function takes them that was `given` numbers which hide, the largest of them `largest`: a mask, which
    may be another by now, as numbers of the bias again.
    """
    if "mask" not in changed:
        return dict(changed)
    bias, rest = given["bias"], changed.get("bias", np.zeros((), given["bias"].dtype))
    shape = np.broadcast_shapes(changed["mask"].shape, rest.shape)
    fits = all(size in (1, whole) for size, whole in zip(bias.shape[::-1], shape[::-1], strict=False))
    low = np.minimum(bias.astype(np.float64), largest) if fits else np.full((), largest)
    made = np.where(changed["mask"], rest.astype(np.float64), low).astype(bias.dtype)
    own = {"mask": given["mask"]} if "mask" in given and fits else {}
    return {name: x for name, x in changed.items() if name not in ("mask", "bias")} | own | {"bias": made}


def _reach(case: Case, inputs: Arrays) -> float:
    """The largest |score| before anything is added, as norms bound it; a softcap caps it."""
    q, k = (np.sqrt((to_float64(inputs[x]) ** 2).sum(-1)).max(initial=0.0) for x in ("q", "k"))
    reach = abs(case.scale) * float(q) * float(k)
    reach = min(reach, case.softcap) if case.softcap is not None else reach
    if (slopes := case.slopes) is not None:
        reach += float(abs(slopes).max()) * (case.seqlen_k + case.seqlen_q)
    return reach if np.isfinite(reach) else np.inf
