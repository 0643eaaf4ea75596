"""The vocabulary: every intermediate of an attention kernel, its axes, what it is computed from, and its definition.

Reference, probes, budgets, diff, report and docs read this table; nothing else lists stages.
Axes: b batch, h head, q query, k key, d dim, t key tile (counted over the whole row), s split, c 8-bit code.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from workbench.refusal import Refusal

AXIS_NAMES = {"b": "batch", "h": "head", "q": "query", "k": "key", "d": "dim", "t": "tile", "s": "split", "c": "code"}
AXIS_PLURALS = {axis: f"{name}s" for axis, name in AXIS_NAMES.items()} | {"b": "batches", "q": "queries"}
CODES = 256  #: size of the axis c

#: axes of the inputs; h is the query head of q and the kv head of k and v
INPUT_AXES: Mapping[str, str] = {"q": "bhqd", "k": "bhkd", "v": "bhkd"}
INPUTS = tuple(INPUT_AXES)
#: inputs that a case does not draw: which keys are visible, and what is added to scaled scores
MASKS = ("mask", "bias")


@dataclass(frozen=True)
class Stage:
    """One named intermediate."""

    name: str
    axes: str  #: one letter an axis, outermost first
    reads: tuple[str, ...]  #: direct inputs; a state also reads its own previous tile
    definition: str  #: in float64, natural logarithm and exponent
    of_kv: bool = False  #: whether h is the kv head; else it is the query head


_TILES = (
    Stage("qk", "bhqk", ("q", "k"), "sum_d q k, before scale and mask"),
    Stage("scores", "bhqk", ("qk",), "qk * scale, -inf where masked"),
    Stage("row_max", "bhqt", ("scores", "row_max"), "running max after tile t"),
    Stage("correction", "bhqt", ("row_max",), "exp(previous row_max - row_max); 0 when the previous max is -inf"),
    Stage(
        "probs", "bhqk", ("scores", "row_max"), "exp(scores - row_max of the key's own tile); 0 where scores is -inf"
    ),
    Stage("probs_cast", "bhqk", ("probs",), "probs rounded as the contract declares"),
    Stage(
        "row_sum",
        "bhqt",
        ("correction", "row_sum", "probs"),
        "correction * previous row_sum + sum of this tile's probs",
    ),
    Stage("acc", "bhqtd", ("correction", "acc", "probs_cast", "v"), "correction * previous acc + probs_cast @ v"),
)

_FLASH = (
    *_TILES,
    Stage(
        "out",
        "bhqd",
        ("acc", "row_sum"),
        "acc / row_sum of the last tile, cast to the output dtype; 0 where row_sum is 0",
    ),
    Stage("lse", "bhq", ("row_max", "row_sum"), "row_max + log(row_sum) of the last tile; -inf where row_sum is 0"),
)

_SPLIT_K = (
    *_TILES,
    Stage("partial_max", "bhsq", ("row_max",), "row_max after the split's last tile; -inf for a split without tiles"),
    Stage("partial_sum", "bhsq", ("row_sum",), "row_sum after the split's last tile; 0 for a split without tiles"),
    Stage("partial_O", "bhsqd", ("acc",), "acc after the split's last tile, as stored; 0 for a split without tiles"),
    Stage("merge_max", "bhq", ("partial_max",), "max over splits"),
    Stage("merge_weight", "bhsq", ("partial_max", "merge_max"), "exp(partial_max - merge_max); 0 for an empty split"),
    Stage(
        "merge_sum",
        "bhq",
        ("partial_max", "merge_max", "partial_sum"),
        "sum_s exp(partial_max - merge_max) * partial_sum",
    ),
    Stage(
        "out",
        "bhqd",
        ("merge_weight", "partial_O", "merge_sum"),
        "sum_s merge_weight * partial_O / merge_sum, cast; 0 for an empty row",
    ),
    Stage("lse", "bhq", ("merge_max", "merge_sum"), "merge_max + log(merge_sum); -inf for an empty row"),
)

_SCALE = "max|x| of a head in all batches / largest value of a code, half of that where static; 1 for a zero head"
_CODES = "the code nearest to x / scale, saturated"

_FP8 = (
    Stage("scale_q", "h", ("q",), _SCALE),
    Stage("scale_k", "h", ("k",), _SCALE, of_kv=True),
    Stage("scale_v", "h", ("v",), _SCALE, of_kv=True),
    Stage("codes_q", "bhqd", ("q", "scale_q"), _CODES),
    Stage("codes_k", "bhkd", ("k", "scale_k"), _CODES, of_kv=True),
    Stage("codes_v", "bhkd", ("v", "scale_v"), _CODES, of_kv=True),
    Stage("lut_k", "hc", ("scale_k",), "value of the code * scale_k, float32", of_kv=True),
    Stage("lut_v", "hc", ("scale_v",), "value of the code * scale_v, float32", of_kv=True),
    Stage("dequant_q", "bhqd", ("codes_q", "scale_q"), "value of the code * scale_q, rounded to float16"),
    Stage(
        "dequant_k",
        "bhkd",
        ("codes_k", "lut_k"),
        "lut_k of the code, without a table its value * scale_k; rounded to float16",
        of_kv=True,
    ),
    Stage(
        "dequant_v",
        "bhkd",
        ("codes_v", "lut_v"),
        "lut_v of the code, without a table its value * scale_v; rounded to float16",
        of_kv=True,
    ),
    Stage("qk", "bhqk", ("dequant_q", "dequant_k"), "sum_d dequant_q dequant_k, before scale and mask"),
    *_TILES[1:-1],
    Stage(
        "acc",
        "bhqtd",
        ("correction", "acc", "probs_cast", "dequant_v"),
        "correction * previous acc + probs_cast @ dequant_v",
    ),
    *_FLASH[-2:],
)

#: stages of each algorithm, in data-flow order
ALGORITHMS: Mapping[str, Mapping[str, Stage]] = {
    "flash": {stage.name: stage for stage in _FLASH},
    "split_k": {stage.name: stage for stage in _SPLIT_K},
    "fp8": {stage.name: stage for stage in _FP8},
}

#: every stage by its name, which has the same axes in all algorithms
STAGES: Mapping[str, Stage] = {name: stage for stages in ALGORITHMS.values() for name, stage in stages.items()}

#: what a quantised kernel reads: from here on errors are the kernel's; what q, k and v lost before is the quantiser's
QUANTISED_INPUTS = ("scale_q", "scale_k", "scale_v", "codes_q", "codes_k", "codes_v")

#: stages that a kernel of each kind of `decode` does not have; what nobody told of a foreign one is None
ABSENT: Mapping[str | None, tuple[str, ...]] = {"direct": ("lut_k", "lut_v"), "table": (), None: ()}

_PARTIALS = ("partial_max", "partial_sum", "partial_O")
#: stages whose buffers the user asked for, by the name of the set; a quantised kernel's inputs are always among them
PROBE_SETS: Mapping[str, tuple[str, ...]] = {
    "all": tuple(STAGES),
    "lean": (*QUANTISED_INPUTS, "scores", "row_max", "row_sum", "acc", *_PARTIALS, "out", "lse"),
    "output": (*QUANTISED_INPUTS, "out", "lse"),
}


def algorithm_of(names: Iterable[str], *, codes: bool, splits: bool = False) -> str | None:
    """Whose stages all of `names` are, the first of ALGORITHMS; with `codes` none but those of 8-bit codes, with
    `splits`, of keys that are split, not flash. None where they are not of one algorithm.
    """
    ruled_out = {"flash", "split_k"} if codes else {"flash"} if splits else set()
    return next((key for key, known in ALGORITHMS.items() if {*names} <= {*known} and key not in ruled_out), None)


def definitions() -> dict[Stage, tuple[str, ...]]:
    """Every stage with the algorithms that have it so defined, in data-flow order."""
    found: dict[Stage, tuple[str, ...]] = {}
    for algorithm in ALGORITHMS:
        for stage in ALGORITHMS[algorithm].values():
            found[stage] = (*found.get(stage, ()), algorithm)
    return found


def stage_of(algorithm: str, name: str, target: str) -> Stage:
    """The stage `name` of a kernel `target`; Refusal where its algorithm has none of that name."""
    if name not in ALGORITHMS[algorithm]:
        raise Refusal(f"{target} has no stage {name!r}; its stages: {', '.join(ALGORITHMS[algorithm])}")
    return ALGORITHMS[algorithm][name]


def probe_set(algorithm: str, probes: str) -> tuple[str, ...]:
    """Stages that `probes` asks of `algorithm`, in data-flow order: a probe set, or stages separated by commas."""
    if probes in PROBE_SETS:
        return tuple(name for name in ALGORITHMS[algorithm] if name in PROBE_SETS[probes])
    asked = [name.strip() for name in probes.split(",")]
    if not set(asked) <= set(ALGORITHMS[algorithm]):
        known = ", ".join(ALGORITHMS[algorithm])
        raise Refusal(f"probes is one of {', '.join(PROBE_SETS)}, or some of the stages {known}; got {probes!r}")
    given = QUANTISED_INPUTS if algorithm == "fp8" else ()
    return tuple(name for name in ALGORITHMS[algorithm] if name in asked or name in given)


def axis_sizes(
    q: Sequence[int], k: Sequence[int], block_k: int | None = None, splits: int | None = None
) -> dict[str, int]:
    """Size of every stage axis, of t and s where tiles and splits are told; `h` is the query head, `kv_h` the number of
    kv heads. q is the shape [batch, heads, seqlen_q, head_dim], k [batch, kv_heads, seqlen_k, head_dim].
    """
    sizes = {"b": q[0], "h": q[1], "kv_h": k[1], "q": q[2], "k": k[2], "d": q[3], "c": CODES}
    if block_k is not None:
        sizes["t"] = -(-k[2] // block_k)
    if splits is not None:
        sizes["s"] = splits
    return sizes


def shape(stage: Stage, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """Array shape of `stage` for the axis sizes of a case (`Case.sizes`); kv heads are the size `kv_h`."""
    return tuple(sizes["kv_h" if axis == "h" and stage.of_kv else axis] for axis in stage.axes)


def nearest_dumped(algorithm: str, name: str, dumped: Iterable[str]) -> tuple[str, ...]:
    """The dumped stages from which `name` is judged, in data-flow order; q, k and v are left out.

    Where a direct input was not dumped, its own inputs take its place, and so on up to q, k and v.
    """
    stages, known = ALGORITHMS[algorithm], set(dumped)
    found: set[str] = set()
    seen: set[str] = set()
    queue = list(stages[name].reads)
    while queue:
        parent = queue.pop()
        if parent in seen or parent in INPUTS:
            continue
        seen.add(parent)
        if parent in known:
            found.add(parent)
        elif parent in stages:
            queue.extend(stages[parent].reads)
    return tuple(stage for stage in stages if stage in found)


def unseen_upstream(algorithm: str, name: str, dumped: Iterable[str]) -> tuple[str, ...]:
    """Stages between `name` and its nearest dumped ancestors that nobody saw, in data-flow order."""
    stages, known = ALGORITHMS[algorithm], set(dumped)
    seen: set[str] = set()
    queue = list(stages[name].reads)
    while queue:
        parent = queue.pop()
        if parent in seen or parent in INPUTS or parent in known or parent == name:
            continue
        seen.add(parent)
        queue.extend(stages[parent].reads)
    return tuple(stage for stage in stages if stage in seen)
