"""One run of several ranks: a file that each leaves in a folder, and the run that these are together.

Every rank writes what it holds (its queries, its keys) and what it got: for each rank whose keys it saw the partial out
and lse of its own queries, and what its merge made of them. Together they are one attention whose splits are the keys
of the ranks: it is judged as one, so that a rank that read other keys than their owner has is wrong there.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from workbench.arrays import as_numpy
from workbench.case.case import Case
from workbench.case.contract import numbers, of_foreign
from workbench.case.fields import GIVEN
from workbench.case.presets import fields_of
from workbench.case.promises import COUNT, INDEX
from workbench.case.ranks import ORDERS, Rank, dealt, indices
from workbench.case.stages import INPUTS, STAGES
from workbench.files import write_atomically
from workbench.records import number, one_of
from workbench.refusal import Refusal
from workbench.trace.manifest import KEY, Fields, checked, fields_of_case, list_of, of_type, schema_of, text_of
from workbench.trace.merged import OF_MERGE, Partials, contract_of
from workbench.trace.seen import promise_of
from workbench.trace.trace import Trace, check

SCHEMA = "workbench.rank/1"
_PARTIALS = ("outs", "lses")
#: of its manifest, every one of which must be given
_FIELDS: Fields = {
    "target": (..., of_type(str, "a text")),
    "case": (..., of_type(dict, "an object of fields of a case")),
    "contract": (..., of_type(dict, "an object of fields of a contract")),
    "ranks": (..., COUNT),
    "order": (..., one_of(ORDERS)),
    "results": (..., list_of(f"a list of some of {', '.join(OF_MERGE)}", OF_MERGE)),
    "rank": (..., INDEX),
}
_LSE = "partial_max is the lse of each rank; where it is wrong, partial_sum, the sum of exp(score - lse), is not 1"
_BY_RANK = "keys are stored rank by rank; the case's mask is passed as an explicit mask"
#: results -> the axis of queries
_QUERIES = {"q": 2, "outs": 3, "lses": 3} | {name: 2 + ("s" in STAGES[name].axes) for name in OF_MERGE}
#: fields of a case of which a mask tells nothing where keys are not in their order, or of which ranks know nothing
_WHOLE = ("alibi_slopes", "sinks", "dropout_p", "score_mod", "mask_mod", "codes", "seqlens_q", "seqlens_k")


@dataclass(frozen=True)
class _Left:
    """What one rank left."""

    told: Mapping[str, Any]  #: the same in the files of all ranks
    case: Case
    rank: int
    arrays: Mapping[str, np.ndarray]


def save_rank(
    folder: str | Path,
    case: Case,
    rank: int,
    ranks: int,
    *,
    inputs: Mapping[str, Any],
    outs: Sequence[Any],
    lses: Sequence[Any],
    results: Mapping[str, Any],
    order: str = "contiguous",
    contract: str | Mapping[str, Any] | None = None,
    target: str = "ranks",
) -> None:
    """Leave what `rank` of `ranks` holds and got in a folder, as rankN.safetensors; `load` puts these together.
    The folder is to hold one run.

    `case` is that of the whole sequence; `order` how that is dealt (`ranks.ORDERS`), of queries and keys alike.
    `inputs`: q, k and v that the rank holds, [batch, heads, its queries or keys, dim], in the case's dtype. outs and
    lses have an entry for each rank whose keys they are of, in the order of ranks: [batch, heads, its queries,
    head_dim_v], normalised, and [batch, heads, its queries]; None where the rank left these keys out. `results`: out,
    lse, merge_max, merge_sum, [batch, heads, its queries, ...], and merge_weight [ranks, batch, heads, its queries], as
    far as there are any. Arrays are of any library that speaks DLPack. `contract`: what a kernel promises, as of `run`:
    base2 says that lses are of base 2, empty_lse what stands for the lse of a row without keys.

    Refusal for a rank that there is not, and for arrays that do not fit the case.
    """
    from safetensors.numpy import save as serialised

    where = f"rank {rank}"
    if not 0 <= rank < ranks:
        raise Refusal(f"rank must be 0 to {ranks - 1} of {ranks} ranks; got {rank}")
    if unknown := [name for name in results if name not in OF_MERGE]:
        raise Refusal(f"{where}: results must be {', '.join(OF_MERGE)}; got {', '.join(unknown)}")
    said = {} if contract is None else fields_of(contract, case)
    shapes = _shapes(case, rank, ranks, order)
    arrays = {name: as_numpy(x, f"{where}: {name}") for name, x in {**inputs, **results}.items()}
    empty = of_foreign(said, case).lse_of_nothing
    for name, given, nothing in (("outs", outs, 0.0), ("lses", lses, empty)):
        arrays[name] = _stacked(f"{where}: {name}", given, shapes[name], nothing)
    for name in (*INPUTS, *results):
        if name not in arrays or arrays[name].shape != shapes[name]:
            got = "none" if name not in arrays else [*arrays[name].shape]
            raise Refusal(f"{where}: {name} must have shape {[*shapes[name]]} for this case; got {got}")
    manifest = {
        "schema": SCHEMA, "target": target, "case": case.as_dict(), "contract": number(said), "ranks": ranks,
        "order": order, "results": [name for name in OF_MERGE if name in results], "rank": rank,
    }  # fmt: skip
    whole = {name: np.ascontiguousarray(arrays[name]) for name in (*INPUTS, *_PARTIALS, *results)}
    write_atomically(Path(folder) / f"rank{rank}.safetensors", serialised(whole, {KEY: json.dumps(manifest)}))


def _shapes(case: Case, rank: int, ranks: int, order: str) -> dict[str, tuple[int, ...]]:
    """The shape of every array that a rank leaves."""
    queries, keys = (len(indices(dealt(n, ranks, order)[rank])) for n in (case.seqlen_q, case.seqlen_k))
    rows, of_keys = (case.batch, case.heads, queries), (case.batch, case.kv_heads, keys)
    out = (*rows, case.head_dim_v)
    own = {"q": (*rows, case.head_dim), "k": (*of_keys, case.head_dim), "v": (*of_keys, case.head_dim_v), "out": out}
    of_ranks = {"outs": (ranks, *out), "lses": (ranks, *rows), "merge_weight": (ranks, *rows)}
    return dict.fromkeys(OF_MERGE, rows) | own | of_ranks


def _stacked(what: str, given: Sequence[Any], shape: tuple[int, ...], nothing: float) -> np.ndarray:
    """Partial results of all ranks, `nothing` where there are none."""
    if len(given) != shape[0]:
        raise Refusal(f"{what} must have one entry for each of {shape[0]} ranks; got {len(given)}")
    each = {i: as_numpy(x, f"{what}[{i}]") for i, x in enumerate(given) if x is not None}
    dtypes = {x.dtype for x in each.values()} or {np.dtype(np.float32)}
    if len(dtypes) > 1:
        raise Refusal(f"{what} must have one dtype; got {', '.join(sorted(map(str, dtypes)))}")
    stacked = np.full(shape, nothing, dtypes.pop())
    for i, x in each.items():
        if x.shape != shape[1:]:
            raise Refusal(f"{what}[{i}] must have shape {[*shape[1:]]} for this case; got {[*x.shape]}")
        stacked[i] = x
    return stacked


def of_ranks(file: Path) -> bool:
    """Whether a file is what a rank left."""
    return schema_of(file) == SCHEMA


def concatenated(files: Sequence[Path]) -> Trace:
    """The run of which each rank left its part in a file (`save_rank`). Keys that do not lie in order, as of zig-zag
    ranks, are put rank by rank, and what is visible is then a mask. Refusal where the file of a rank is missing, and
    for files that are not of one run.
    """
    left = {str(file): _load(file) for file in files}
    first, told_by = next(iter(left.values())), next(iter(left))
    by_rank: dict[int, _Left] = {}
    for file, one in left.items():
        if different := [name for name, x in first.told.items() if one.told.get(name) != x]:
            raise Refusal(f"{told_by} and {file} are not of one run: {', '.join(different)} differs")
        by_rank[one.rank] = one
    ranks, name = first.told["ranks"], first.told["target"]
    if lacking := [str(rank) for rank in range(ranks) if rank not in by_rank]:
        raise Refusal(f"no file of rank {', '.join(lacking)} of {ranks} next to {told_by}")
    case, order = first.case.but(splits=ranks), first.told["order"]
    held = [
        Rank(keys, queries)
        for keys, queries in zip(*(dealt(n, ranks, order) for n in (case.seqlen_k, case.seqlen_q)), strict=True)
    ]
    whole = {x: _by_query(by_rank, held, x) for x in ("q", *_PARTIALS, *first.told["results"])}
    inputs = {"q": whole["q"]} | {x: np.concatenate([by_rank[r].arrays[x] for r in range(ranks)], 2) for x in "kv"}
    case, inputs = _seen(case, inputs, np.concatenate([indices(one.keys) for one in held]), name)
    said = numbers(first.told["contract"]) | contract_of(held)
    promise = of_foreign(said, case)
    lses = np.where(whole["lses"] == np.float32(promise.lse_of_nothing), -np.inf, whole["lses"]).astype(
        whole["lses"].dtype
    )
    partials = Partials(whole["outs"], lses, promise)
    merged = partials.merged({x: whole[x] for x in first.told["results"]}, range(ranks), name)
    stages = partials.stages | merged
    declared = {"normalisation": partials.normalisation(merged)} | said
    made = Trace(
        target=name,
        algorithm="split_k",
        case=case,
        contract=promise_of(declared, stages, inputs, case),
        inputs=inputs,
        stages={x: stages[x] for x in (*partials.stages, *OF_MERGE) if x in stages},
        requested=(),
        notes=(_LSE, *([_BY_RANK] if "mask" in inputs else [])),
        ranks=tuple(held),
    )
    return check(made, ", ".join(left))


def _load(file: Path) -> _Left:
    from safetensors.numpy import load_file

    try:
        manifest = checked(text_of(file) or "null", SCHEMA, _FIELDS)
        case = Case(**fields_of_case(manifest))
    except Refusal as refusal:
        raise Refusal(f"{file}: not a file of a rank: {refusal}") from None
    shared = {name: x for name, x in manifest.items() if name != "rank"}
    return _Left(shared, case, manifest["rank"], load_file(file))


def _by_query(by_rank: Mapping[int, _Left], held: Sequence[Rank], name: str) -> np.ndarray:
    """An array of all queries, in the order of the sequence."""
    axis = _QUERIES[name]
    arrays = [by_rank[rank].arrays[name] for rank in range(len(held))]
    dtypes = {x.dtype for x in arrays}
    if len(dtypes) > 1:
        raise Refusal(f"ranks are not of one run: {name} is {' and '.join(sorted(map(str, dtypes)))}")
    places = np.argsort(np.concatenate([indices(one.queries) for one in held]))
    return np.concatenate(arrays, axis).take(places, axis)


def _seen(case: Case, inputs: dict[str, np.ndarray], keys: np.ndarray, name: str) -> tuple[Case, dict[str, np.ndarray]]:
    """The case and the inputs with keys in the order in which ranks hold them."""
    if odd := [field for field in _WHOLE if getattr(case, field, None) is not None]:
        raise Refusal(f"{name}: files of ranks cannot be judged for a case with {', '.join(odd)}")
    places = np.argsort(keys)
    if case.distribution != GIVEN:
        in_place = [inputs["q"], *(inputs[x][:, :, places] for x in "kv")]
        if not all(np.array_equal(x, y) for x, y in zip(case.inputs(), in_place, strict=True)):
            case = case.but(distribution=GIVEN)
    if np.array_equal(keys, np.arange(len(keys))):
        return case, inputs
    if case.causal or case.window is not None:
        inputs = {**inputs, "mask": case.mask()[..., keys]}
    return case.but(causal=False, window=None), inputs
