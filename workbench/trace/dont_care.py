"""The don't-care mask: elements of a stage left undefined by skipped tiles or a finite mask sentinel.

A kernel that skips a tile leaves its elements as they were. One with a finite sentinel takes exp(sentinel - sentinel) =
1 for the weight of masked keys until the row sees its first key, whose correction exp(sentinel - max) = 0 wipes them
out.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from workbench.case.box import WHOLE, Present
from workbench.case.case import Case
from workbench.case.contract import Contract
from workbench.case.stages import Stage
from workbench.case.tiling import Tiling
from workbench.floats import array_namespace


@dataclass(frozen=True)
class DontCare:
    """The elements of some rows that hold nothing to judge."""

    contract: Contract
    tiling: Tiling
    see: Callable[[], np.ndarray]  #: which keys a row sees, bool [q, k] or [b, h, q, k]; asked where it matters
    present: Present | None = None  #: which queries and keys there are; None: all
    sinks: np.ndarray | None = None  #: logits with which a row's state begins, [1, h, 1]; None: it begins with nothing

    @cached_property
    def visible(self) -> np.ndarray:
        """Which keys a row sees."""
        return self.see()

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

    def mask(self, stage: Stage) -> np.ndarray | None:
        """The don't-care mask of a stage, bool that broadcasts to it: True is not judged; None for none."""
        found, lacks = self._undefined(stage), self._lacking(stage.axes)
        return found if lacks is None else lacks if found is None else found | lacks

    def _lacking(self, axes: str) -> np.ndarray | None:
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

    def _undefined(self, stage: Stage) -> np.ndarray | None:
        """Those that skipped tiles or a finite mask sentinel leave undefined."""
        sentinel = stage.of_exp and math.isfinite(self.contract.mask_sentinel)
        if stage.group == "tiles" and (sentinel or self.contract.skips_masked_tiles):
            # a row that has not seen a key does not see the tile either
            found = ~(self._sees if self.contract.skips_masked_tiles else self._seen)
            if "k" in stage.axes:
                return np.repeat(found, [keys.stop - keys.start for keys in self.tiling.keys], axis=-1)
            return found[..., None] if stage.axes.endswith("d") else found
        if not sentinel:
            return None
        found = self.hidden(stage)
        return found[..., None] if stage.axes.endswith("d") else found

    def hidden(self, stage: Stage) -> np.ndarray:
        """Which elements of a stage, but for its dims, are made of masked scores alone, bool that broadcasts to it: of
        a merge and of results those of rows without keys.
        """
        if stage.group == "tiles":
            return ~(self._seen if "t" in stage.axes else self.visible)
        if stage.group == "splits":
            nothing = np.zeros(self._seen.shape[:-1], bool)
            splits = [self._seen[..., own[-1]] if own else nothing for own in self.tiling.splits]
            return ~np.stack(splits, axis=-2)
        no_keys: np.ndarray = ~np.any(self.visible, axis=-1)
        return no_keys[..., None, :] if "s" in stage.axes else no_keys

    def skippable(self, stage: Stage) -> np.ndarray | None:
        """Mask of what a kernel that skips all that is masked, keys or whole tiles, leaves as it was in a stage; None
        for none.
        """
        if stage.group == "tiles" and "k" in stage.axes:
            return ~self.visible
        return replace(self, contract=replace(self.contract, skips_masked_tiles=True)).mask(stage)

    def filled(self, stage: Stage, value: np.ndarray, open_: np.ndarray, initial: float | None = None) -> np.ndarray:
        """A stage, float64, with what later stages should read where nothing is defined: a state (which is `initial`
        before a split's first tile, but for sinks) as it was before the tile, a correction of 1 for a row that has seen
        a key, what is masked elsewhere. `open_`: as of `mask`, where the stage is.
        """
        xp = array_namespace(value)
        if initial is None:
            seen = xp.asarray(self._seen, dtype=xp.float64, device=value.device) if stage.rescales else None
            return xp.where(open_, (stage.masked or 0.0) if seen is None else seen, value)
        found = value + 0.0
        by_tile, is_open = (xp.moveaxis(x, stage.axes.index("t"), 0) for x in (found, open_))
        for t, before in self.tiling.order:
            start = self._with_sinks(stage, initial) if t == self.tiling.order[0][0] else initial
            by_tile[t] = xp.where(is_open[t], start if before is None else by_tile[before], by_tile[t])
        return found

    def _with_sinks(self, stage: Stage, initial: float) -> np.ndarray | float:
        """A state before the first tile of the first split."""
        if self.sinks is None or "d" in stage.axes:
            return initial
        return self.sinks if stage.maximum else array_namespace(self.sinks).where(self.sinks == -np.inf, 0.0, 1.0)


def of_case(case: Case, contract: Contract, visible: np.ndarray) -> DontCare:
    """Those of all rows of a case; `visible`: which keys a row sees."""
    return DontCare(contract, contract.tiling(case.seqlen_k, case.splits), lambda: visible, WHOLE.present(case))
