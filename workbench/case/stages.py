"""The vocabulary: every intermediate of an attention kernel, and its axes.

What a stage is made of, its value, bounds and definition are its step in `reference/attention.py`, which has the same
stages. Axes: b batch, h head, q query, k key, d dim, t key tile (counted over the whole row), s split, c code, g
block of dims that share a scale.
"""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from workbench.refusal import Refusal

AXIS_NAMES = {
    **{"b": "batch", "h": "head", "q": "query", "k": "key", "d": "dim", "t": "tile", "s": "split", "c": "code"},
    "g": "block",  # of dims that share a scale
}
AXIS_PLURALS = {axis: f"{name}s" for axis, name in AXIS_NAMES.items()} | {"b": "batches", "q": "queries"}
CODES = 256  #: size of the axis c
#: what has scales of its own, a row of them for each token (`Case.scale_of`), alike for those of a tile
BLOCKS = ("token", "block", "tile")

#: axes of the inputs; h is the query head of q and the kv head of k and v
INPUT_AXES: Mapping[str, str] = {"q": "bhqd", "k": "bhkd", "v": "bhkd"}
INPUTS = tuple(INPUT_AXES)
#: inputs beside these, [b, h, q, k]: which keys are visible, what is added to scaled scores, which probs are kept
MASKS = ("mask", "bias", "dropout_mask")
#: and fields of a case that are a number for each query head
OF_HEADS = ("alibi_slopes", "sinks")


@dataclass(frozen=True)
class Stage:
    """One named intermediate, and what is asked of it beside its value (`reference/attention.py`)."""

    name: str
    axes: str  #: one letter an axis, outermost first
    group: str = ""  #: which part of a kernel makes it: codes, tiles, splits, merge or results
    of_kv: bool = False  #: whether h is the kv head; else it is the query head
    due: str = ""  #: the number of a case (`Case.numbers`) without which a kernel has no such stage
    by_tile: bool = False  #: whether it depends on where key tiles begin
    #: scores: as the contract has scores, in base 2 or raw; statistic: or an lse in their place; logarithm: in its base
    unit: str = ""
    maximum: bool = False  #: whether it is a maximum
    rescales: bool = False  #: whether it is what running states are multiplied with at each tile
    #: whether it is made of exp(scores - a maximum): its size depends on that maximum, and where masked scores are a
    #: finite sentinel it means nothing until a key was seen
    of_exp: bool = False
    masked: float | None = None  #: what it is where every score that it is made of is masked
    empty: str = ""  #: the field of a contract that says what it is in a row without keys
    in_lse: bool = False  #: whether an lse in the place of a maximum stands for it, too (`Contract.stores_lse`)
    divided: bool = False  #: whether a contract may have it divided by its sum (`Contract.partials`)
    sums: bool = False  #: whether it adds up terms, which may cancel
    #: whether its errors are tested for bias: it evaluates no exp, log or tanh, and is no maximum
    bias_tested: bool = True
    accumulation: str = ""  #: the property of a contract that says how it adds up
    rounding: str = ""  #: the field of a contract that says how it is rounded when it is stored
    dtype: str = ""  #: and to which dtype
    #: whether it is made of probs that were cast, and not normalised before
    of_cast: bool = False
    #: which offset of a contract it has: of probs where exp (exp) or the cast (cast) adds it, or of their sum (sum)
    offset: str = ""

    @property
    def result(self) -> bool:
        """Whether a kernel returns it."""
        return self.group == "results"


def _named(*stages: Stage) -> dict[str, Stage]:
    return {stage.name: stage for stage in stages}


def _of_codes(axes: Mapping[str, str]) -> dict[str, Stage]:
    """Stages before attention; of k and v by the kv head."""
    return _named(*(Stage(name, letters, "codes", of_kv=name[-1] in "kv") for name, letters in axes.items()))


_OF_CODES = ("scale", "zero", "global", "codes", "lut", "dequant")
#: from q, k and v to what attention reads of them, by way of codes
_DECODING = _of_codes(
    {f"scale_{x}": "h" for x in INPUTS}
    | {f"codes_{x}": INPUT_AXES[x] for x in INPUTS}
    | {f"lut_{x}": "hc" for x in "kv"}
    | {f"dequant_{x}": INPUT_AXES[x] for x in INPUTS}
)
#: the same where a token or a block of its dims has a scale, and as some formats have it a zero point; global: what
#: scales are multiplied with, one a tensor, which stands for each of its heads
_BLOCK_DECODING = _of_codes(
    {f"global_{x}": "h" for x in INPUTS}
    | {f"{kind}_{x}": f"{INPUT_AXES[x][:3]}g" for kind in ("scale", "zero") for x in INPUTS}
    | {name: stage.axes for name, stage in _DECODING.items() if name.startswith(("codes", "dequant"))}
)
_TILES = _named(
    Stage("qk", "bhqk", "tiles", masked=0.0, sums=True, accumulation="accumulation"),
    Stage("capped", "bhqk", "tiles", due="softcap", masked=0.0, bias_tested=False),
    Stage("scores", "bhqk", "tiles", unit="scores", masked=-math.inf, dtype="scores_dtype"),
    Stage("row_max", "bhqt", "tiles", by_tile=True, unit="scores", maximum=True, bias_tested=False),
    Stage("correction", "bhqt", "tiles", by_tile=True, rescales=True, of_exp=True, bias_tested=False),
    Stage("probs", "bhqk", "tiles", by_tile=True, of_exp=True, masked=0.0, bias_tested=False, offset="exp"),
    Stage(
        "probs_cast",
        "bhqk",
        "tiles",
        by_tile=True,
        of_exp=True,
        masked=0.0,
        dtype="probs_dtype",
        of_cast=True,
        offset="cast",
    ),
    Stage("row_sum", "bhqt", "tiles", by_tile=True, of_exp=True, sums=True, offset="sum"),
    Stage(
        "acc",
        "bhqtd",
        "tiles",
        by_tile=True,
        of_exp=True,
        of_cast=True,
        sums=True,
        accumulation="accumulation_of_acc",
        offset="cast",
    ),
)
#: what a split leaves
PARTIALS: Mapping[str, Stage] = _named(
    Stage("partial_max", "bhsq", "splits", unit="statistic", maximum=True, bias_tested=False),
    Stage("partial_sum", "bhsq", "splits", of_exp=True, in_lse=True, offset="sum"),
    Stage(
        "partial_O",
        "bhsqd",
        "splits",
        of_exp=True,
        of_cast=True,
        divided=True,
        rounding="partials_rounding",
        dtype="partials_dtype",
        offset="cast",
    ),
)
#: what a merge makes of it on the way to results
MERGED: Mapping[str, Stage] = _named(
    Stage("merge_max", "bhq", "merge", unit="statistic", maximum=True, bias_tested=False),
    Stage("merge_weight", "bhsq", "merge", of_exp=True, bias_tested=False),
    Stage("merge_sum", "bhq", "merge", of_exp=True, sums=True, bias_tested=False, offset="sum"),
)
#: what a kernel returns
RESULTS: Mapping[str, Stage] = _named(
    Stage(
        "out", "bhqd", "results", masked=0.0, empty="empty_out", sums=True, rounding="out_rounding", dtype="out_dtype"
    ),
    Stage("lse", "bhq", "results", unit="logarithm", masked=-math.inf, empty="empty_lse", bias_tested=False),
)
#: their names: the mean of the values, and the logarithm of what it was divided by
OUT, LSE = RESULTS
#: of those before them, which have conventions of their own (`judge.understood`)
SCORES, PROBS, ROW_SUM = "scores", "probs", "row_sum"
_FLASH, _SPLIT_K = {**_TILES, **RESULTS}, {**_TILES, **PARTIALS, **MERGED, **RESULTS}

#: stages of each algorithm, in data-flow order
ALGORITHMS: Mapping[str, Mapping[str, Stage]] = {
    "flash": _FLASH,
    "split_k": _SPLIT_K,
    "fp8": _DECODING | _FLASH,
    "fp8_split_k": _DECODING | _SPLIT_K,
    "block_scaled": _BLOCK_DECODING | _FLASH,
    "block_scaled_split_k": _BLOCK_DECODING | _SPLIT_K,
}

#: every stage by its name, which has the same axes in all algorithms (scales those of a head), in data-flow order
STAGES: Mapping[str, Stage] = {
    **{name: stage for name, stage in _BLOCK_DECODING.items() if not name.startswith("dequant")},
    **_DECODING,
    **_SPLIT_K,
}

#: what no kernel dumps, and what is read off out by chosen inputs (`readings`)
MEASURED: Mapping[str, Stage] = _named(Stage("weights", "bhqk"))


def quantised_inputs(coded: str = "qkv") -> tuple[str, ...]:
    """What a quantised kernel reads of the inputs that have codes (`Case.coded`): from here on errors are the kernel's;
    what q, k and v lost before is the quantiser's.
    """
    return tuple(f"{what}_{x}" for what in ("scale", "codes") for x in coded)


QUANTISED_INPUTS = quantised_inputs()
#: the same with what some formats have beside scales
OF_QUANTISER = (*QUANTISED_INPUTS, *(f"{kind}_{x}" for kind in ("zero", "global") for x in INPUTS))

#: stages whose buffers the user asked for, by the name of the set; a quantised kernel's inputs are always among them
PROBE_SETS: Mapping[str, tuple[str, ...]] = {
    "all": tuple(STAGES),
    "lean": (*OF_QUANTISER, "scores", "row_max", "row_sum", "acc", *PARTIALS, *RESULTS),
    "output": (*OF_QUANTISER, *RESULTS),
}


def absent(
    *,
    decode: str | None = None,
    numbers: Collection[str] = (),
    kinds: Collection[str] = ("zero", "global"),
    coded: str = "qkv",
) -> frozenset[str]:
    """Stages that a kernel does not have: tables where it decodes without (`decode` direct; None: nobody told of a
    foreign one), those due to numbers that its case (`Case.numbers`) does not have, zero points and scales of
    tensors where they are not among the `kinds` of its format (`formats.Format`), and those on the way of an input by
    codes where it is not `coded` (`Case.coded`).
    """
    tables = [name for name in STAGES if name.startswith("lut")] if decode == "direct" else []
    tables += [name for name in STAGES if name.startswith(("zero", "global")) and name.partition("_")[0] not in kinds]
    tables += [f"{what}_{x}" for what in _OF_CODES for x in INPUTS if x not in coded]
    return frozenset([*tables, *(name for name, stage in STAGES.items() if stage.due and stage.due not in numbers)])


def stages_of(
    algorithm: str, numbers: Collection[str] = (), coded: str = "qkv", kinds: Collection[str] = ("zero", "global")
) -> dict[str, Stage]:
    """The stages that a kernel may have on a case with these `numbers`, `coded` inputs and `kinds` of its format, as of
    `absent`, in data-flow order.
    """
    lacks = absent(numbers=numbers, coded=coded, kinds=kinds)
    return {name: stage for name, stage in ALGORITHMS[algorithm].items() if name not in lacks}


def before_attention(algorithm: str) -> tuple[str, ...]:
    """The stages of a kernel on codes before qk, in data-flow order; none of others."""
    return tuple(name for name in ALGORITHMS[algorithm] if STAGES[name].group == "codes")


def merges(algorithm: str) -> bool:
    """Whether kernels of an algorithm split the keys, and merge what splits leave."""
    return MERGED.keys() <= ALGORITHMS[algorithm].keys()


def algorithm_of(names: Iterable[str], *, codes: bool, splits: bool = False, scale_of: str | None = None) -> str:
    """Whose stages all of `names` are, which are STAGES: the first of ALGORITHMS; with `codes` none but those of
    codes, with `splits`, of keys that are split, none but those that merge; with a `scale_of` (`Case.scale_of`) those
    that have scales for it.
    """
    ruled_out = {name for name in ALGORITHMS if (codes and not before_attention(name)) or (splits and not merges(name))}
    ruled_out |= {"fp8", "fp8_split_k"} if codes and scale_of in BLOCKS else set()
    return next(key for key, known in ALGORITHMS.items() if {*names} <= {*known} and key not in ruled_out)


def scaled(algorithm: str, scale_of: str | None) -> str:
    """An algorithm on codes with a scale a head, or that with the scales that `scale_of` says."""
    return algorithm.replace("fp8", "block_scaled") if scale_of in BLOCKS else algorithm


def stage_of(algorithm: str, name: str, target: str, numbers: Collection[str] = ()) -> Stage:
    """The stage `name` of a kernel `target`; Refusal where it can have none of that name."""
    if name in MEASURED:
        raise Refusal(f"{target} cannot dump {name}: measure them with --measure, or diff(trace, measure=True)")
    if name not in (known := stages_of(algorithm, numbers)):
        raise Refusal(f"{target} has no stage {name!r}; its stages: {', '.join(known)}")
    return known[name]


def probe_set(algorithm: str, probes: str, numbers: Collection[str] = ()) -> tuple[str, ...]:
    """Stages that `probes` asks of `algorithm`, in data-flow order: a probe set, or stages separated by commas."""
    stages = stages_of(algorithm, numbers)
    if probes in PROBE_SETS:
        return tuple(name for name in stages if name in PROBE_SETS[probes])
    asked = [name.strip() for name in probes.split(",")]
    if not set(asked) <= set(stages):
        known = ", ".join(stages)
        raise Refusal(f"probes must be one of {', '.join(PROBE_SETS)}, or some of the stages {known}; got {probes!r}")
    given = OF_QUANTISER if before_attention(algorithm) else ()
    return tuple(name for name in stages if name in asked or name in given)


def axis_sizes(
    q: Sequence[int],
    k: Sequence[int],
    v: Sequence[int],
    block_k: int | None = None,
    splits: int | None = None,
) -> dict[str, int]:
    """Size of every stage axis, of t and s where tiles and splits are told; `h` is the query head, `kv_h` the number of
    kv heads, d a dim of v and of what is made of it. q is the shape [batch, heads, seqlen_q, head_dim], k [batch,
    kv_heads, seqlen_k, head_dim], v [batch, kv_heads, seqlen_k, head_dim_v].
    """
    sizes = {"b": q[0], "h": q[1], "kv_h": k[1], "q": q[2], "k": k[2], "d": v[3], "c": CODES}
    if block_k is not None:
        sizes["t"] = -(-k[2] // block_k)
    if splits is not None:
        sizes["s"] = splits
    return sizes


def shape(stage: Stage, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """Array shape of `stage` for the axis sizes of a case (`Case.sizes`); kv heads are the size `kv_h`."""
    return tuple(sizes["kv_h" if axis == "h" and stage.of_kv else axis] for axis in stage.axes)
