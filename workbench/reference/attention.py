"""The algorithms as tables: each stage with the step that makes it.

FlashAttention-2: Dao 2023 (arXiv 2307.08691), section 3.1, algorithm 1. Split-K: the same on every split of the keys,
then one merge of (max, sum, numerator) triples: Milakov & Gimelshein 2018 (arXiv 1805.02867), section 3.1; as
"Flash-Decoding" in Dao et al. 2023. Names and axes of what kernels dump are those of `stages.py`.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from workbench.case.formats import FORMATS
from workbench.case.stages import ALGORITHMS, INPUT_AXES, RESULTS, merges
from workbench.reference.dataflow import direct
from workbench.reference.from_scores import Softmax
from workbench.reference.stage import Same, Stage, Step, Table
from workbench.reference.steps.cast import Cast, Either, Last
from workbench.reference.steps.codes import (
    Coarsest,
    Decode,
    DecodeTable,
    Encode,
    QuantiserScale,
    TensorScale,
    ZeroPoint,
)
from workbench.reference.steps.dot import Dot
from workbench.reference.steps.dropout import Dropped
from workbench.reference.steps.maximum import MaxOver, RunningMax
from workbench.reference.steps.output import LogSum, Quotient
from workbench.reference.steps.parameters import Number, Rows, Visible
from workbench.reference.steps.partials import Normalised, OfSplit, OneWhereFinite, Scaled, SplitLse
from workbench.reference.steps.scores import Modified, Scores, SoftCap
from workbench.reference.steps.share import One, Share
from workbench.reference.steps.sinks import LogSumSink, Unit, WithSink
from workbench.reference.steps.sums import RunningSum, WeightedSum
from workbench.reference.steps.weight import Weight
from workbench.reference.tables import definition, edited, inserted, made_by, parameter

_TILES: Table = {
    "q_rows": parameter("bhqd", Rows("q")),
    "k_rows": parameter("bhkd", Rows("k")),
    "v_rows": parameter("bhkd", Rows("v")),
    "scale": parameter("", Number("scale")),
    "visible": parameter("bhqk", Visible("mask")),
    "qk": Stage("bhqk", Dot("q_rows", "k_rows")),
    "scores": Stage("bhqk", Scores("qk", "scale", "visible")),
    "row_max": Stage("bhqt", RunningMax("-row_max", "scores"), initial=-np.inf),
    "subtracted": parameter("bhqt", Same("row_max")),  # what probs subtract
    "correction": Stage("bhqt", Weight("-row_max", "row_max", scores="scores")),
    "probs": Stage("bhqk", Weight("scores", "subtracted", axis=-1)),
    "probs_cast": Stage("bhqk", Cast("probs", site="probs")),
    "summed": parameter("bhqk", Same("probs")),  # what row_sum adds
    "row_sum": Stage("bhqt", RunningSum("correction", "-row_sum", "summed", "scores", "row_max"), initial=0.0),
    "acc": Stage("bhqtd", RunningSum("correction", "-acc", "probs_cast", "scores", "row_max", "v_rows"), initial=0.0),
}


def _results(numerator: str, top: str, total: str) -> Table:
    """What a kernel returns, of the last state of a row."""
    by_tile = total in _TILES
    steps: dict[str, Step] = {
        "out": Quotient(numerator, total, "scores", "lse", by_tile=by_tile),
        "lse": LogSum(top, total, "scores", by_tile),
    }
    fused = {name: Softmax("scores", "v_rows", name, *steps) for name in steps}
    return {name: Stage(RESULTS[name].axes, step, fused=fused[name]) for name, step in steps.items()}


FLASH: Table = _TILES | _results("acc", "row_max", "row_sum")

SPLIT_K: Table = {
    **_TILES,
    "partial_max": Stage("bhsq", Last("row_max", -np.inf)),
    "partial_sum": Stage("bhsq", Last("row_sum", 0.0)),
    "partial_O": Stage("bhsqd", Last("acc", 0.0, stored=True)),
    "merge_max": Stage("bhq", MaxOver("partial_max")),
    "merge_weight": Stage("bhsq", Weight("partial_max", "merge_max", axis=-2)),
    # it makes its own weights, as kernels that merge in one pass do
    "merge_sum": Stage("bhq", WeightedSum("partial_max", "partial_sum", top="merge_max")),
    "numerator": parameter("bhqd", WeightedSum("merge_weight", "partial_O")),
    **_results("numerator", "merge_max", "merge_sum"),
}


def _of_split(table: Table, of: str) -> Stage:
    """A state after the last tile of each split, which nobody stores."""
    state = table[of]
    assert state.initial is not None
    return parameter("bhsqd" if "d" in state.axes else "bhsq", OfSplit(of, state.initial))


def _normalised(table: Table, lse: bool) -> Table:
    """With partial_O divided by the sum of its split; with its lse in the place of maximum and sum, or beside both."""
    numerator = {"split_acc": _of_split(table, "acc")}
    if not lse:
        table = inserted(table, "partial_sum", numerator)
        table = made_by(table, partial_O=Normalised("split_acc", "partial_sum", "scores", "lse"))
        table = inserted(table, "merge_sum", {"unnormalised": parameter("bhsqd", Scaled("partial_O", "partial_sum"))})
        return edited(table, "numerator", of="unnormalised")
    states = {"split_max": _of_split(table, "row_max"), "split_sum": _of_split(table, "row_sum")} | numerator
    table = inserted(table, "acc", states)
    table = made_by(
        table,
        partial_max=SplitLse("split_max", "split_sum", "scores", lse="lse"),
        partial_O=Normalised("split_acc", "split_sum", "scores", "lse"),
    )
    table = inserted(table, "partial_max", {"split_one": parameter("bhsq", OneWhereFinite("partial_max"))})
    return edited(table, "merge_sum", of="split_one")


def _with_dropout(table: Table) -> Table:
    """With probs that are dropped before their cast."""
    dropped = {
        "dropout_p": parameter("", Number("dropout_p")),
        "dropped": parameter("bhqk", Dropped("probs", "dropout_mask", "dropout_p")),
    }
    return inserted(edited(table, "probs_cast", of="dropped"), "probs", dropped)


def _with_sinks(table: Table, enter: str, of_lse: bool) -> Table:
    """With the sink of each head in the state before the first tile, or in the sum that out and lse are made of."""
    if enter == "first":
        begins = {"row_max": "sinks", "row_sum": "sink_unit"}
        table = {key: replace(stage, begins=begins.get(key, "")) for key, stage in table.items()}
        return inserted(table, "visible", {"sink_unit": parameter("bhq", Unit("sinks"))})
    log: Any = table["lse"].step
    table = inserted(table, log.total, {"with_sink": parameter("bhq", WithSink(log.total, log.top, "sinks"))})
    table = edited(table, "out", over="with_sink", by_tile=False)
    return made_by(table, lse=LogSumSink(log.top, log.total, "sinks")) if of_lse else table


def _with_shares(table: Table) -> Table:
    """With weights of a merge that are normalised themselves, behind which nothing is divided."""
    table = made_by(table, merge_weight=Share("partial_max", "merge_max", "merge_sum"))
    return edited(inserted(table, "numerator", {"shared": parameter("bhq", One("merge_sum"))}), "out", over="shared")


def _decoding(algorithm: str, table: bool, codes: str | None, scale_of: str | None, coded: str) -> Table:
    """The stages before attention of a kernel on codes of a format, None: of an unknown one; `scale_of`: what has a
    scale of its own, where that is no head; `coded`: the inputs that have codes.
    """
    axes = {x: ALGORITHMS[algorithm][f"scale_{x}"].axes for x in coded}
    kinds = () if codes is None else FORMATS[codes].kinds
    shared_by = "head" if axes["k"] == "h" else scale_of or "block"
    over = {x: f"global_{x}" if "global" in kinds else "" for x in coded}
    zero = {x: f"zero_{x}" if "zero" in kinds else "" for x in coded}
    found: Table = {over[x]: Stage("h", TensorScale(x)) for x in coded if over[x]}
    found |= {f"scale_{x}": Stage(axes[x], QuantiserScale(x, over[x], shared_by)) for x in coded}
    found |= {zero[x]: Stage(axes[x], ZeroPoint(x, f"scale_{x}", shared_by)) for x in coded if zero[x]}
    found |= {f"codes_{x}": Stage(INPUT_AXES[x], Encode(x, f"scale_{x}", zero[x], over[x])) for x in coded}
    if table and shared_by == "head":
        found |= {f"lut_{x}": Stage("hc", DecodeTable(f"scale_{x}")) for x in "kv"}
    by = {x: f"lut_{x}" if f"lut_{x}" in found else f"scale_{x}" for x in coded}
    decoded = {x: Decode(f"codes_{x}", by[x], f"scale_{x}", x, zero[x], over[x]) for x in coded}
    return found | {f"dequant_{x}": Stage(INPUT_AXES[x], Coarsest(x) if codes is None else decoded[x]) for x in coded}


#: how the stages from qk on are made
_ATTENTION: Mapping[str, Table] = {name: SPLIT_K if merges(name) else FLASH for name in ALGORITHMS}


@cache
def table_of(
    algorithm: str,
    *,
    numbers: frozenset[str] = frozenset(),
    row_sum_of_cast: bool | None = False,
    row_max: str = "running",
    partials: str = "unnormalised",
    stores_lse: bool = False,
    shares: bool = False,
    sinks: str = "",
    lse_includes_sink: bool = True,
    score_mod: bool = False,
    decode_table: bool = True,
    codes: str | None = "simulated",
    scale_of: str | None = None,
    coded: str = "qkv",
) -> Table:
    """The table of one of `stages.ALGORITHMS`: with the stages that the `numbers` of a case add, with what a contract
    says of the steps, and of a kernel on codes that has a decode table or none, a format that is known or
    not, and codes of all inputs or of some (`Case.coded`); with partial results of either kind, with sinks that enter
    first or last, and a score_mod.
    """
    table = _ATTENTION[algorithm]
    if partials == "normalised" and merges(algorithm):
        table = _normalised(table, stores_lse)
    if "softcap" in numbers:
        capped = {"cap": parameter("", Number("softcap")), "capped": Stage("bhqk", SoftCap("qk", "scale", "cap"))}
        table = inserted(edited(table, "scores", of="capped", scale=""), "qk", capped)
    if score_mod:
        scores: Any = table["scores"].step
        modified = {"modified": parameter("bhqk", Modified(scores.of, scores.scale))}
        table = inserted(edited(table, "scores", of="modified", scale=""), scores.of, modified)
    if "dropout_p" in numbers:
        table = _with_dropout(table)
    if sinks:
        table = _with_sinks(table, sinks, lse_includes_sink)
    if row_sum_of_cast is not False:
        summed = Same("probs_cast") if row_sum_of_cast else Either("probs", "probs_cast")
        table = {**edited(table, "row_sum", cast=True), "summed": parameter("bhqk", summed)}
    if row_max != "running":
        table = edited(table, "row_max", chosen=True)
    if shares and merges(algorithm) and not sinks:
        table = _with_shares(table)
    if attention_of(algorithm) == algorithm:
        return table
    for x in coded:
        table = edited(table, f"{x}_rows", of=f"dequant_{x}")
    return _decoding(algorithm, decode_table, codes, scale_of, coded) | table


def attention_of(algorithm: str) -> str:
    """The algorithm of what a kernel on codes does with the decoded rows; of any other its own."""
    return next(name for name in ("flash", "split_k") if _ATTENTION[name] is _ATTENTION[algorithm])


def definitions() -> dict[tuple[str, str, tuple[str, ...], str], tuple[str, ...]]:
    """Every stage as (name, axes, what it reads, definition), with the algorithms that have it so, in data-flow order;
    the scores as without a softcap, scales and codes as of formats without a zero point and a scale of the tensor.
    """
    some = {"numbers": frozenset({"softcap"})}, {"codes": "nvfp4"}, {"codes": "int4"}
    found: dict[tuple[str, str, tuple[str, ...], str], tuple[str, ...]] = {}
    for algorithm in ALGORITHMS:
        tables = [table_of(algorithm), *(table_of(algorithm, **options) for options in some)]
        for name in ALGORITHMS[algorithm]:
            table = next(table for table in tables if name in table)
            row = name, table[name].axes, direct(table, name), definition(table, name)
            found[row] = (*found.get(row, ()), algorithm)
    return found
