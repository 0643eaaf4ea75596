"""What a mask is made of: a band of keys around the diagonal, causal or a window, and padding, which no row sees."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from workbench.case.case import Case


class Band(NamedTuple):
    """A mask told apart."""

    fields: dict[str, Any]  #: of a case: causal, causal_alignment and window; empty where the case has them already
    mask: np.ndarray | None  #: what else is hidden, bool [b, h, 1, k]; None: nothing


def band(case: Case, mask: np.ndarray) -> Band | None:
    """The band and the padding that `mask` and the case hide together, where they are exactly that: each row sees the
    keys of a band, but for those that no row of its sequence sees. A case that has a band keeps it. None where the mask
    is something else, or padding alone.
    """
    if case.ragged or case.mask_mod is not None or mask.ndim < 2:
        return None
    mask = mask[(None,) * (4 - mask.ndim)]
    seen = mask & case.mask()
    there = seen.any(axis=(0, 1))
    if mask.shape[2] == 1 or not there.any():
        return None
    padding = seen.any(axis=2, keepdims=True)
    own = case.causal or case.window is not None
    for fields in ({},) if own else _bands(case, there):
        within = case.but(**fields).mask()
        if np.array_equal(seen, within & padding) and not np.array_equal(seen, np.broadcast_to(padding, seen.shape)):
            reached = within.any(axis=0)
            return Band(dict(fields), None if (padding | ~reached).all() else padding)
    return None


def _bands(case: Case, seen: np.ndarray) -> Iterator[dict[str, Any]]:
    """Bands that the rows of a mask, [q, k], may be of, the plainest first: causal, a window behind it, a window."""
    for alignment, diagonal in (("bottom-right", case.seqlen_k - case.seqlen_q), ("top-left", 0)):
        rows, keys = np.nonzero(seen)
        off = keys - rows - diagonal
        left, right = int(-off.min()), int(off.max())
        if right == 0:
            causal = {"causal": True, "causal_alignment": alignment}
            yield causal
            if left >= 0:
                yield causal | {"window": (left, 0)}
        elif left >= 0 and right > 0:
            for window in ((-1, right), (left, -1), (left, right)):
                yield {"causal_alignment": alignment, "window": window}
