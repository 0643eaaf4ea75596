"""Which plain function a kernel does, by what it declares, and its arithmetic in the words of the graph's contract."""

from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields, replace
from functools import partial
from typing import Any

import numpy as np

from campaigns.plain import functions as plain
from campaigns.plain.functions import LOG2E, Units
from workbench.case.case import Case
from workbench.case.contract import Contract as Declared
from workbench.case.tiling import Tiling
from workbench.reference.graph import Contract
from workbench.reference.graph.contract import ADDITIONS, BITS
from workbench.trace.trace import Trace

#: what a plain function or the graph's contract has no word for, unless the field says this
_UNSAID: Mapping[str, tuple[Any, ...]] = {
    "normalisation": ("division",),
    "partials": ("unnormalised",),
    "exp_floor": (None,),
    "exp_polynomial": (None,),
    "row_max": ("running",),
    "fast_math": (False,),
    "probs_offset": (0,),
    "row_sum_of_cast": (False, True),
    "input_precision": ("ieee", "tf32"),
    "operands_dtype": ("float32",),
    "lse_base2": (False,),
    "probs_rounding": ("nearest",),
    "partials_rounding": ("nearest",),
    "out_rounding": ("nearest",),
}
#: cast -> the rounding that counts only where there is a cast
_ROUNDED = {"probs_rounding": "probs_dtype", "partials_rounding": "partials_dtype", "out_rounding": "out_dtype"}
_USUAL: Mapping[str, Any] = {one.name: one.default for one in fields(Declared) if one.default is not MISSING}


#: plain functions that go over tiles
TILED = (plain.flash, plain.split_k)


@dataclass(frozen=True)
class Said:
    """What a kernel does, in words of the graph."""

    f: Callable[..., Any]  #: one of `functions`
    how: Mapping[str, Any]  #: what it takes beside q, k and v
    contract: Contract
    alone: Contract  #: of stages that are judged each alone
    tiling: Tiling | None  #: of its stages; None where they are not those of the plain function

    @property
    def prefix(self) -> str:
        """Of names of stages of a tile."""
        return "tiles." if self.f in TILED else ""


def said(trace: Trace) -> Said | str:
    """What `trace`'s kernel declares; or the name of the first field that says what neither a plain function nor the
    graph's contract can. Fields that nobody declared are as usual: what only the weakest choice excuses is not right.
    """
    d, case = trace.contract, trace.case
    for name, sayable in _UNSAID.items():
        value = _field(d, name)
        wide = name in _ROUNDED and getattr(d, _ROUNDED[name]) == "float32"
        if value not in sayable and not wide:
            return name
    if _field(d, "tanh") != "exact" and case.softcap is not None:
        return "tanh"
    units = _units(d, case)
    if isinstance(units, str):
        return units
    # a narrow accumulator is rounded once a product at most, rescaled or not: whole rows have as many
    narrow = d.accumulator_dtype != "float32"
    found = (plain.naive, {}) if narrow else _function(d, case)
    if isinstance(found, str):
        return found
    f, how = found
    contract = _arithmetic(trace, f)
    if isinstance(contract, str):
        return contract
    own = f in TILED and d.mask_sentinel == -np.inf and not _field(d, "skips_masked_tiles")
    own = own and (d.exp_argument == "difference" or not d.scores_scaled)  # else dumped scores are not what exp is of
    slopes = {} if case.slopes is None else {"slopes": case.slopes, "distance": _distance(case)}
    given = {"mask": case.mask(), "units": units, **slopes, **how}
    alone = contract
    if contract.operands == d.probs_dtype and "probs_cast" in trace.stages:  # what products read is one number
        alone = replace(contract, operands="float32", stored={**contract.stored, "probs_cast": d.probs_dtype})
    return Said(f, given, contract, alone, d.tiling(case.seqlen_k) if own else None)


def _function(d: Declared, case: Case) -> tuple[Callable[..., Any], dict[str, Any]] | str:
    """The plain function of these tiles and splits."""
    tiling, normalised = d.tiling(case.seqlen_k), d.probs_normalised
    runs = [[tiling.keys[t] for t in split] for split in tiling.splits if split]
    if d.splits is not None:
        return "probs_normalised" if normalised else (plain.split_k, {"splits": runs})
    if d.block_k is not None and (normalised is False or (normalised is None and len(tiling.keys) > 1)):
        return plain.flash, {"visits": runs[0]}
    if len(tiling.keys) > 1:
        return "probs_normalised"
    # weights that may be divided first are smaller, and lose more where they are stored
    return (plain.naive if normalised is False else plain.softmax), {}


def _arithmetic(trace: Trace, f: Callable[..., Any]) -> Contract | str:
    """Casts of stages, and of the operands of products."""
    d, case = trace.contract, trace.case
    prefix = "tiles." if f in TILED else ""
    stored: dict[str, str] = {}
    if d.scores_dtype != "float32":
        # a kernel that scales sums as they are never stores qk
        some = [name for name in ("qk", "scores") if name in trace.stages]
        if "scores" not in some:
            return "scores_dtype"
        stored |= {f"{prefix}{name}": d.scores_dtype for name in some}
    operands = "tf32" if d.input_precision == "tf32" else "float32"
    if d.scaled_q_dtype != "float32":
        stored["operands.scaled_q"] = d.scaled_q_dtype
    if d.probs_dtype != "float32":
        # operands are of both products: q and k have to be held by the dtype of probs
        held = BITS.get(d.probs_dtype, 0) >= BITS[case.dtype] and (d.scale_in == "scores")
        if d.row_sum_of_cast:
            if f is plain.softmax:
                return "row_sum_of_cast"
            stored[f"{prefix}probs"] = d.probs_dtype
        elif held:
            operands = d.probs_dtype
        else:
            stored["probs_cast"] = d.probs_dtype
    if f is plain.split_k and d.partials_dtype != "float32":
        stored["partial_O"] = d.partials_dtype
    if d.out_dtype != "float32":
        stored["out"] = d.out_dtype
    narrow = d.accumulator_dtype != "float32"
    if (d.accumulation, d.accumulation_of_acc) != ("nearest", "nearest"):
        return "accumulation"
    if narrow and d.accumulator_dtype not in ADDITIONS:
        return "accumulator_dtype"
    return Contract(operands, d.accumulator_dtype, stored, exp_ulps=d.exp_ulps)


def _field(d: Declared, name: str) -> Any:
    """A field, as usual where nobody declared it: what nobody knows of normalised probs may be either."""
    return _USUAL[name] if name in d.assumed and name in _USUAL and name != "probs_normalised" else getattr(d, name)


def _distance(case: Case) -> np.ndarray:
    keys, queries = np.arange(case.seqlen_k), np.arange(case.seqlen_q)
    if case.alibi_form == "column":
        return np.broadcast_to(keys, (case.seqlen_q, case.seqlen_k)).copy()
    return -abs(keys - queries[:, None] - case.diagonal)


def _units(d: Declared, case: Case) -> Units | str:
    """Natural scores, those of base 2, or raw products whose scale meets exp. exp_ulps_per_x is for the product with
    log2(e) and the constant, u of the argument each, which a plain function in base 2 has of itself: 2 at most.
    """
    if d.exp_ulps_per_x > 2:
        return "exp_ulps_per_x"
    scale = float(case.scale)
    in_q = d.scale_in == "q" or d.scaled_q_dtype != "float32"
    root = (float(np.sqrt(scale)),) if d.scale_in == "both" else ()
    if d.scale_in in ("k", "any"):
        return "scale_in"
    if not d.scores_scaled:
        if scale < 0:  # which turns the -inf of a mask around
            return "scores_scaled"
        return Units(weigh=partial(plain.raw, scale=scale), lse=partial(plain.lse_raw, scale=scale))
    factors = (scale, LOG2E) if d.base2 else (scale,)
    of_q, of_k, of_scores = (root, root, ()) if root else ((factors, (), ()) if in_q else ((), (), factors))
    given: dict[str, Any] = {"of_q": of_q, "of_k": of_k, "of_scores": of_scores, "softcap": case.softcap}
    if d.base2:
        return Units(**given, weigh=plain.base2, lse=plain.lse_base2)
    return Units(**given, weigh=plain.product) if d.exp_ulps_per_x else Units(**given)
