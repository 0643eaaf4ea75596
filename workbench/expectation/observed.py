"""A run that is understood once: the table of its operation, its tiles, its units, and what of it can be judged."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from workbench.arrays import in_float64
from workbench.case.case import Case
from workbench.case.contract import Contract
from workbench.case.promises import BY_LSE
from workbench.case.ranks import spoken
from workbench.case.stages import ALGORITHMS, MEASURED, Stage, before_attention
from workbench.case.tiling import Tiling
from workbench.expectation import decoding
from workbench.floats import array_namespace
from workbench.reference import attention
from workbench.reference.problem import Arrays, Problem
from workbench.reference.stage import Table
from workbench.reference.tables import definition
from workbench.trace.trace import Trace


@dataclass(frozen=True, eq=False)
class Observed:
    """A trace with all that follows from it before anything is computed; each fact is worked out once."""

    trace: Trace

    @property
    def case(self) -> Case:
        """The trace's own case: of a part of a run that of the part."""
        return self.trace.case

    @property
    def contract(self) -> Contract:
        """What the kernel promises of its arithmetic."""
        return self.trace.contract

    @property
    def dumped(self) -> Arrays:
        """The stages as the kernel gave them."""
        return self.trace.stages

    @cached_property
    def whole(self) -> Arrays:
        """Those of them of which all elements were given."""
        return {name: stage for name, stage in self.dumped.items() if name not in self.trace.sparse}

    @property
    def known(self) -> Mapping[str, Stage]:
        """The stages of its algorithm, in data-flow order."""
        return ALGORITHMS[self.trace.algorithm]

    @property
    def before_attention(self) -> tuple[str, ...]:
        """Those of them before qk, of a kernel on codes; none of others."""
        return before_attention(self.trace.algorithm)

    def axes(self, name: str) -> str:
        """Axis letters of a stage."""
        return self.known[name].axes

    @cached_property
    def table(self) -> Table:
        """The steps of its stages."""
        case, contract = self.case, self.contract
        of_dumped = [self.known[name] for name in self.dumped]
        return attention.table_of(
            self.trace.algorithm,
            numbers=frozenset(case.numbers),
            row_sum_of_cast=contract.row_sum_of_cast,
            row_max=contract.row_max,
            partials=contract.partials,
            stores_lse=contract.stores_lse,
            shares=contract.normalisation == BY_LSE and any(x.group == "merge" and "s" in x.axes for x in of_dumped),
            sinks="" if case.sinks is None else contract.sinks,
            lse_includes_sink=contract.lse_includes_sink,
            score_mod=case.score_mod is not None,
            decode_table=case.decode != "direct" or any(name.startswith("lut") for name in self.dumped),
            codes=case.codes,
            scale_of=case.scale_of,
            coded=case.coded,
        )

    def definition(self, name: str) -> str:
        """What a stage is, in float64 and natural units."""
        if name in MEASURED:
            return (
                "out with columns of the identity in place of v: exp(scores - maximum), corrections, merge and 1 / sum"
            )
        return spoken(definition(self.table, name), self.trace.ranks)

    @cached_property
    def splits(self) -> int:
        """Splits of the kernel: declared, else as many as its partial results have."""
        if self.contract.splits is not None:
            return self.contract.splits
        of_splits = (name for name in self.dumped if "s" in self.axes(name))
        return next((self.dumped[name].shape[self.axes(name).index("s")] for name in of_splits), 1)

    @cached_property
    def tiling(self) -> Tiling:
        """The key tiles of a row and of its splits, as far as they are known: all keys in one where they are not."""
        return self.contract.tiling(self.case.seqlen_k, self.splits)

    @cached_property
    def sizes(self) -> dict[str, int]:
        """Size of every stage axis, of tiles and splits as far as they are known."""
        return self.case.sizes | {"t": len(self.tiling.keys), "s": len(self.tiling.splits)}

    @property
    def split_keys_known(self) -> bool:
        """Whether the contract tells which keys each split has."""
        promise = self.contract
        return promise.split_bounds is not None or (promise.block_k is not None and promise.splits is not None)

    @cached_property
    def _merged(self) -> list[str]:
        """What a merge reads of each split."""
        lse = self.contract.stores_lse
        return [x.name for x in self.known.values() if x.group == "splits" and not (lse and x.in_lse)]

    @property
    def _reads_partials(self) -> bool:
        """Whether stages can be computed from partial results: of known keys, or from all that a merge reads."""
        return self.split_keys_known or {*self._merged} <= {*self.whole}

    @cached_property
    def unjudgeable(self) -> dict[str, str]:
        """Stage that cannot be judged, however it looks -> why."""
        return {name: why for name, stage in self.known.items() if (why := self._why_not(stage))}

    def _why_not(self, stage: Stage) -> str:
        name, case, contract = stage.name, self.case, self.contract
        if name in self.trace.put_in:
            return "it was fed into the run"
        # scales of all batches and rows, or of a tile of queries; keys are whole in every part
        of_scale = name.startswith(("scale_", "global_"))
        of_tile = case.scale_of == "tile" and not stage.of_kv
        if self.trace.box is not None and of_scale and (stage.axes == "h" or of_tile):
            return "it depends on data outside this part of the run"
        if stage.group == "codes" and not name.startswith("dequant") and case.codes is None:
            return "the format of the quantised codes is not declared (--codes)"
        if stage.by_tile and contract.block_k is None:
            return "the contract does not declare block_k, so its key tiles are unknown"
        if stage.in_lse and contract.stores_lse:
            return f"with partial_stats={contract.partial_stats} a split stores one statistic, in partial_max"
        # a merge is held against the maxima that it was given
        of_maximum = stage.of_exp and stage.group != "merge"
        of_maximum = of_maximum and not (stage.divided and contract.partials == "normalised")
        if of_maximum and contract.row_max != "running":
            seen = {x.group for x in self.known.values() if x.maximum and x.name in self.dumped}
            if not seen & ({"tiles", "splits"} if stage.group == "splits" else {"tiles"}):
                return "the contract does not declare row_max=running, and row_max was not given"
        if stage.group == "splits" and not self.split_keys_known:
            return "the contract does not declare block_k and splits, so the keys of a split are unknown"
        if stage.group == "merge" and "s" in stage.axes and not self._reads_partials:
            partials = ", ".join(self._merged)
            return f"the contract does not declare block_k and splits, and not all of {partials} were given"
        return ""

    @cached_property
    def readable(self) -> dict[str, np.ndarray]:
        """The dumped stages that are whole and whose keys are known, so that other stages can be computed from them; as
        dumped. Stages of splits of unknown keys are read together: none could be made that fits the others.
        """
        known = {*self.trace.put_in, *(name for name in self.dumped if name.startswith(("scale_", "global_")))}
        if self._reads_partials:
            known |= {*self._merged}
        return {name: stage for name, stage in self.whole.items() if name in known or name not in self.unjudgeable}

    @cached_property
    def free_maxima(self) -> list[str]:
        """The dumped maximum that the contract does not bind to the stages before it, so that later ones are computed
        from it: row_max, or partial_max where that is not what was dumped of row_max, and a maximum; [] for none.
        """
        if self.contract.row_max == "running":
            return []
        groups = ("tiles",) if self.contract.stores_lse else ("tiles", "splits")
        free = [name for name, stage in self.known.items() if stage.maximum and stage.group in groups]
        return [name for name in free if name in self.whole and name not in self.unjudgeable][:1]

    @property
    def hides_maxima(self) -> bool:
        """Whether the only maxima that are known of a kernel that was free to choose them are those of its splits. What
        it subtracted before a split's last tile cancels but for roundings: it may as well have been the last one
        throughout.
        """
        return any(self.known[name].group == "splits" for name in self.free_maxima)

    def unit(self, name: str) -> float:
        """What the kernel's scores and maxima are of natural ones: log2(e) times in base 2, without the scale where
        they are raw; of an lse, there or in the place of a maximum, log2(e) times where that is of base 2;
        2^probs_offset times of what has it; 1 for any other stage.
        """
        of, contract = self.known[name].unit, self.contract
        if not of:
            return 2.0 ** self._offset(self.known[name]) if contract.probs_offset else 1.0
        if of == "logarithm":
            return math.log2(math.e) if contract.lse_base2 else 1.0
        if of == "statistic" and contract.stores_lse:
            return math.log2(math.e) if contract.partial_stats == "lse2" else 1.0
        if not contract.scores_scaled:
            return 1 / self.case.scale
        return math.log2(math.e) if contract.base2 else 1.0

    def _offset(self, stage: Stage) -> int:
        """The power of two by which what the kernel stores is larger."""
        contract = self.contract
        if stage.offset == "sum":
            return contract.offset_of_row_sum
        has = {"exp": contract.offset_in == "exp", "cast": not stage.divided or contract.partials == "unnormalised"}
        return contract.probs_offset if has.get(stage.offset, False) else 0

    def natural(self, name: str, stage: np.ndarray, device: str = "cpu") -> np.ndarray:
        """A dumped stage in float64, scores and maxima in natural units and -inf where the kernel has a sentinel."""
        value, factor = self.in_stored_units(name, stage, device), self.unit(name)
        return value if factor == 1 else value / factor

    def in_stored_units(self, name: str, stage: np.ndarray, device: str) -> np.ndarray:
        """A dumped stage in float64, in the kernel's own units, but -inf where it has a sentinel."""
        value, sentinel = in_float64(stage, device), self.contract.mask_sentinel
        if self.known[name].unit and np.isfinite(sentinel):
            # a mask that adds the sentinel leaves a score of it
            value = array_namespace(value).where(value <= sentinel / 2, -np.inf, value)
        return value

    def under(self, contract: Contract) -> "Observed":
        """The same run, of a kernel with another contract."""
        return self if contract == self.contract else Observed(replace(self.trace, contract=contract))

    def only(self, names: Iterable[str]) -> "Observed":
        """The same run, as if its kernel had dumped these stages alone; what was put in stays."""
        kept = {*names, *self.trace.put_in}
        stages = {name: stage for name, stage in self.dumped.items() if name in kept}
        return Observed(replace(self.trace, stages=stages, requested=()))

    def decoding(self, given: Iterable[str] | None = None) -> Problem:
        """As `decoding.decoding`: what its stages before attention are computed from."""
        return decoding.decoding(self.trace, self.table, self.tiling, given)

    @property
    def by_scale(self) -> Problem:
        """As `decoding`, of tables that are not believed."""
        return self.decoding([name for name in self.before_attention if not name.startswith("lut")])

    @property
    def dequantised(self) -> "Observed":
        """For quantised kernels the same run as plain attention on dequantised q, k and v; else the run itself."""
        return self._as_dumped if self.before_attention else self

    @property
    def right_attention(self) -> "Observed":
        """The same, whose inputs are what a kernel that decodes its codes and scales right may have read."""
        return self._from_codes if self.before_attention else self

    @cached_property
    def _as_dumped(self) -> "Observed":
        return Observed(self._decoded(from_codes=False))

    @cached_property
    def _from_codes(self) -> "Observed":
        return Observed(self._decoded(from_codes=True))

    def _decoded(self, *, from_codes: bool) -> Trace:
        trace, rerun = self.trace, self.trace.rerun

        def again(case: Case, inputs: Arrays | None = None) -> Trace:
            assert rerun is not None
            made = rerun(trace.case.but(seed=case.seed, distribution=case.distribution), inputs)
            return Observed(made)._decoded(from_codes=from_codes)

        found = decoding.decoded(trace, self.by_scale, from_codes=from_codes)
        return replace(found, rerun=None if rerun is None else again)
