"""Dumped stages by the names of a plain function's, turn by turn."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from campaigns.plain.sayable import Said
from workbench.reference.graph import Graph
from workbench.refusal import Refusal
from workbench.trace.trace import Trace

RESULTS = ("out", "lse")
#: stages whose turns are parts of the keys, of which the slot of a tile is a part of one axis, and those of splits
OF_KEYS, OF_TILES, OF_SPLITS = (
    ("qk", "scores", "probs", "probs_cast"),
    {"row_max": -1, "correction": -1, "row_sum": -1, "acc": -2},
    ("partial_max", "partial_sum", "partial_O", "merge_weight"),
)


def dumped(trace: Trace, found: Said, graph: Graph) -> dict[str, Any]:
    """The stages of a trace by the names of a plain function's, a turn each. Stages that are stored hold what was."""
    tiling, stages, made = found.tiling, dict(trace.stages), dict[str, Any]()
    if tiling is None:
        return {}
    if "tiles.probs" in found.alone.stored:  # both sums read what is cast
        stages.pop("probs", None)
        if "probs_cast" in stages:
            stages["probs"] = stages.pop("probs_cast")
    splits = [split for split in tiling.splits if split]
    order = [t for split in splits for t in split]
    for name in OF_KEYS:
        full = "probs_cast" if name == "probs_cast" else f"tiles.{name}"
        if name in stages:
            made |= _turned(graph, full, [stages[name][..., tiling.keys[t]] for t in order])
    for name, axis in OF_TILES.items():
        if name in stages:
            turns: list[Any] = []
            for split in splits:  # a state has one turn before its first tile
                turns += ([] if name == "correction" else [None]) + [np.take(stages[name], t, axis) for t in split]
            made |= _turned(graph, f"tiles.{name}", turns)
    for name in OF_SPLITS:
        if name in stages and name in graph.stages:
            kept = [i for i, split in enumerate(tiling.splits) if split]
            made |= _turned(graph, name, [stages[name][:, :, i] for i in kept])
    made |= {name: stages[name] for name in ("merge_max", "merge_sum", *RESULTS) if name in stages}
    return made


def _turned(graph: Graph, name: str, turns: Sequence[Any]) -> dict[str, Any]:
    there = len(graph.stages.get(name, ()))
    if there != len(turns):
        raise Refusal(f"stage {name} of the plain function has {there} turns; the trace has {len(turns)}")
    if len(turns) == 1:
        return {name: turns[0]}
    return {f"{name}[{k}]": x for k, x in enumerate(x for x in turns if x is not None)}
