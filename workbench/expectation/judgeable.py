"""What can be judged of a trace: which of its stages are whole and of known keys, and what that depends on."""

import numpy as np

from workbench.case.ranks import spoken
from workbench.case.stages import ALGORITHMS, MEASURED, before_attention
from workbench.case.tiling import Tiling
from workbench.floats import array_namespace
from workbench.reference import tables
from workbench.reference.stage import Table
from workbench.trace.trace import Trace

_PARTIALS = ("partial_max", "partial_sum", "partial_O")
#: stages whose size depends on the maximum that was subtracted
_OF_MAXIMUM = ("correction", "probs", "probs_cast", "row_sum", "acc", "partial_sum", "partial_O")
#: stages that depend on where key tiles begin
BY_TILE = ("row_max", "correction", "probs", "probs_cast", "row_sum", "acc")


def definition(trace: Trace, name: str) -> str:
    """What a stage of a run is, in float64 and natural units."""
    if name in MEASURED:
        return "out with columns of the identity in place of v: exp(scores - maximum), corrections, merge and 1 / sum"
    return spoken(tables.definition(table(trace), name), trace.ranks)


def table(trace: Trace) -> Table:
    """The steps of the stages of a trace."""
    return tables.table_of(
        trace.algorithm,
        numbers=frozenset(trace.case.numbers),
        row_sum_of_cast=trace.contract.row_sum_of_cast,
        row_max=trace.contract.row_max,
        partials=trace.contract.partials,
        stores_lse=trace.contract.stores_lse,
        shares=trace.contract.normalisation == "lse" and "merge_weight" in trace.stages,
        sinks="" if trace.case.sinks is None else trace.contract.sinks,
        lse_includes_sink=trace.contract.lse_includes_sink,
        score_mod=trace.case.score_mod is not None,
        decode_table=trace.case.decode != "direct" or not {"lut_k", "lut_v"}.isdisjoint(trace.stages),
        codes=trace.case.codes,
        scale_of=trace.case.scale_of,
        coded=trace.case.coded,
    )


def readable(trace: Trace) -> dict[str, np.ndarray]:
    """The dumped stages that are whole and whose keys are known, so that other stages can be computed from them; as
    dumped. Stages of splits of unknown keys are read together: none could be made that fits the others.
    """
    known = {*trace.put_in, *(name for name in trace.stages if name.startswith(("scale_", "global_")))}
    if _reads_partials(trace):
        known |= {*_merged(trace)}
    whole = {name: stage for name, stage in trace.stages.items() if name not in trace.sparse}
    return {name: stage for name, stage in whole.items() if name in known or not unjudgeable(trace, name)}


def unjudgeable(trace: Trace, name: str) -> str:
    """Why a stage cannot be judged however it looks; empty where it can."""
    if name in trace.put_in:
        return "it was put in"
    if trace.box is not None and _of_more_than_a_part(trace, name):
        return "it is made of more than this part of the run holds"
    codes = name in before_attention(trace.algorithm) and not name.startswith("dequant")
    if codes and trace.case.codes is None:
        return "nobody told the format of the quantised codes (--codes)"
    if name in BY_TILE and trace.contract.block_k is None:
        return "the contract does not tell block_k, so its key tiles are unknown"
    if name == "partial_sum" and trace.contract.stores_lse:
        return f"a split has one number beside partial_O, partial_stats={trace.contract.partial_stats}, in partial_max"
    of_maximum = name in _OF_MAXIMUM and not (name == "partial_O" and trace.contract.partials == "normalised")
    if of_maximum and trace.contract.row_max != "running" and "row_max" not in trace.stages:
        if name not in _PARTIALS or "partial_max" not in trace.stages:
            return "the contract does not bind row_max to the running maximum, and row_max was not given"
    if name in _PARTIALS and not split_keys_known(trace):
        return "the contract does not tell block_k and splits, so the keys of a split are unknown"
    if name == "merge_weight" and not _reads_partials(trace):
        return f"the contract does not tell block_k and splits, and not all of {', '.join(_merged(trace))} were given"
    return ""


def _of_more_than_a_part(trace: Trace, name: str) -> bool:
    """Whether a stage is a scale of all batches and rows, or of a tile of queries, of which a part may hold some; keys
    are whole in every part.
    """
    if not name.startswith(("scale_", "global_")):
        return False
    return ALGORITHMS[trace.algorithm][name].axes == "h" or (name == "scale_q" and trace.case.scale_of == "tile")


def free_maxima(trace: Trace) -> list[str]:
    """Dumped maxima that the contract does not bind to the stages before them, so that later ones are computed from
    them: row_max, and partial_max where that is not what was dumped of row_max, and a maximum.
    """
    if trace.contract.row_max == "running":
        return []
    maxima = ("row_max",) if trace.contract.stores_lse else ("row_max", "partial_max")
    found = [name for name in maxima if name in trace.stages and name not in trace.sparse]
    return [name for name in found if not unjudgeable(trace, name)][:1]


def hides_maxima(trace: Trace) -> bool:
    """Whether the only maxima that are known of a kernel that was free to choose them are those of its splits. What it
    subtracted before a split's last tile cancels but for roundings: it may as well have been the last one throughout.
    """
    return free_maxima(trace) == ["partial_max"]


def by_tile(partial_max: np.ndarray, tiles: Tiling) -> np.ndarray:
    """The maximum of each split [b, h, s, q] at all of its tiles, [b, h, q, t]."""
    split_of = {t: s for s, own in enumerate(tiles.splits) for t in own}
    order = [split_of[t] for t in range(len(tiles.keys))]
    return array_namespace(partial_max).moveaxis(partial_max[:, :, order], 2, -1)


def split_keys_known(trace: Trace) -> bool:
    """Whether the contract tells which keys each split has."""
    promise = trace.contract
    return promise.split_bounds is not None or (promise.block_k is not None and promise.splits is not None)


def _merged(trace: Trace) -> tuple[str, ...]:
    """What a merge reads of each split."""
    return ("partial_max", "partial_O") if trace.contract.stores_lse else _PARTIALS


def _reads_partials(trace: Trace) -> bool:
    """Whether stages can be computed from partial results: of known keys, or from all that a merge reads."""
    return split_keys_known(trace) or set(_merged(trace)) <= set(trace.stages) - set(trace.sparse)


def splits(trace: Trace) -> int:
    """Splits of the kernel: declared, else as many as its partial results have."""
    if trace.contract.splits is not None:
        return trace.contract.splits
    known = ALGORITHMS[trace.algorithm]
    sizes = {
        stage.shape[known[name].axes.index("s")] for name, stage in trace.stages.items() if "s" in known[name].axes
    }
    return next(iter(sizes), 1)


def tiling_of(trace: Trace) -> Tiling:
    """The key tiles of a row and of its splits, as far as they are known: all keys in one where they are not."""
    return trace.contract.tiling(trace.case.seqlen_k, splits(trace))


def sizes_of(trace: Trace) -> dict[str, int]:
    """Size of every stage axis, of tiles and splits as far as they are known."""
    tiles = tiling_of(trace)
    return trace.case.sizes | {"t": len(tiles.keys), "s": len(tiles.splits)}
