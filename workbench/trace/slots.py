"""Slots of a stage that hold nothing to judge: of tiles that a row skips, and of rows that have seen no key so far.

A kernel that skips a tile leaves its slots as they were. One with a finite sentinel takes exp(sentinel - sentinel) = 1
for the weight of masked keys until the row sees its first key, whose correction exp(sentinel - max) = 0 wipes them out.
"""

import math
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from workbench.case.box import WHOLE, Present
from workbench.case.case import Case
from workbench.case.contract import Contract
from workbench.case.tiling import Tiling
from workbench.floats import array_namespace

#: running states and what they are before a row's first key
_STATES = {"row_max": -np.inf, "row_sum": 0.0, "acc": 0.0}
_OF_TILES = ("row_max", "correction", "row_sum", "acc")
_OF_KEYS = {"qk": 0.0, "capped": 0.0, "scores": -np.inf, "probs": 0.0, "probs_cast": 0.0}
#: what exp makes of a finite sentinel means nothing, and what adds it up
_OF_SENTINEL = ("probs", "probs_cast", "correction", "row_sum", "acc")


@dataclass(frozen=True)
class Slots:
    """The slots of some rows that hold nothing to judge."""

    contract: Contract
    tiling: Tiling
    visible: np.ndarray  #: which keys a row sees, bool [q, k] or [b, h, q, k]
    present: Present | None = None  #: which queries and keys there are; None: all
    sinks: np.ndarray | None = None  #: logits with which a row's state begins, [1, h, 1]; None: it begins with nothing

    @cached_property
    def _sees(self) -> np.ndarray:
        """Whether a row sees a key of a tile, bool [..., q, t]."""
        return np.stack([self.visible[..., keys].any(axis=-1) for keys in self.tiling.keys], axis=-1)

    @cached_property
    def _seen(self) -> np.ndarray:
        """Whether a row has seen a key of its split after a tile, bool [..., q, t]."""
        seen = self._sees.copy()
        for t, before in self.tiling.order:
            if before is not None:
                seen[..., t] |= seen[..., before]
        return seen

    def open(self, name: str, axes: str) -> np.ndarray | None:
        """Which slots of a stage with these axes are not judged, bool that broadcasts to it; None for none."""
        found, lacks = self._open(name, axes), self._lacking(name, axes)
        return found if lacks is None else lacks if found is None else found | lacks

    def _lacking(self, name: str, axes: str) -> np.ndarray | None:
        """Those of queries, keys and whole tiles that do not exist."""
        if self.present is None or "q" not in axes:
            return None
        rows, keys = self.present
        if "t" in axes:
            of_tiles = np.stack([keys[..., own].any(axis=-1) for own in self.tiling.keys], axis=-1)
            there = rows[..., None] & of_tiles[..., None, :]
        elif "k" in axes:
            there = rows[..., None] & keys[..., None, :]
        else:
            there = rows[..., None, :] if "s" in axes else rows
        return ~there[..., None] if axes.endswith("d") else ~there

    def _open(self, name: str, axes: str) -> np.ndarray | None:
        """Those of what the kernel skips or makes of its sentinel."""
        if not self.contract.skips_masked_tiles and not math.isfinite(self.contract.mask_sentinel):
            return None
        sentinel = math.isfinite(self.contract.mask_sentinel)
        if name in _OF_TILES or name in _OF_KEYS:
            found = np.zeros_like(self._sees)
            if self.contract.skips_masked_tiles:
                found |= ~self._sees
            if sentinel and name in _OF_SENTINEL:
                found |= ~self._seen
            if name in _OF_KEYS:
                sizes = [keys.stop - keys.start for keys in self.tiling.keys]
                return np.repeat(found, sizes, axis=-1)
            return found[..., None] if axes.endswith("d") else found
        if not sentinel:
            return None
        if name in ("partial_sum", "partial_O"):
            nothing = np.zeros(self._seen.shape[:-1], bool)
            splits = [self._seen[..., own[-1]] if own else nothing for own in self.tiling.splits]
            found = ~np.stack(splits, axis=-2)
            return found[..., None] if axes.endswith("d") else found
        no_keys: np.ndarray = ~np.any(self.visible, axis=-1)
        if name == "merge_weight":
            return no_keys[..., None, :]
        return no_keys if name == "merge_sum" else None

    def skippable(self, name: str, axes: str) -> np.ndarray | None:
        """Which slots of a stage a kernel that skips all that is masked, keys or whole tiles, leaves as they were; None
        for none.
        """
        if name in _OF_KEYS:
            return ~self.visible
        return replace(self, contract=replace(self.contract, skips_masked_tiles=True)).open(name, axes)

    def filled(self, name: str, axes: str, stage: np.ndarray, open_: np.ndarray) -> np.ndarray:
        """The stage, float64, with what later stages should read in its open slots: a state as it was before the tile,
        a correction of 1 for a row that has seen a key, -inf or 0 elsewhere. `open_`: as of `open`, where the stage is.
        """
        xp = array_namespace(stage)
        if name not in _STATES:
            value: np.ndarray | float = _OF_KEYS.get(name, 0.0)
            if name == "correction":
                value = xp.asarray(self._seen, dtype=xp.float64, device=stage.device)
            return xp.where(open_, value, stage)
        found = stage + 0.0
        by_tile, is_open = (xp.moveaxis(x, axes.index("t"), 0) for x in (found, open_))
        for t, before in self.tiling.order:
            previous = self._start(name, t) if before is None else by_tile[before]
            by_tile[t] = xp.where(is_open[t], previous, by_tile[t])
        return found

    def _start(self, name: str, tile: int) -> np.ndarray | float:
        """A state before the first tile of a split."""
        if self.sinks is None or name == "acc" or tile != self.tiling.order[0][0]:
            return _STATES[name]
        xp = array_namespace(self.sinks)
        return self.sinks if name == "row_max" else xp.where(self.sinks == -np.inf, 0.0, 1.0)


def of_case(case: Case, contract: Contract, visible: np.ndarray) -> Slots:
    """Those of all rows of a case; `visible` as of `Slots`."""
    return Slots(contract, contract.tiling(case.seqlen_k, case.splits), visible, WHOLE.present(case))
