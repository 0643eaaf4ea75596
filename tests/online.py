"""Online softmax in NumPy's float32, with everything that a case may ask for: a kernel that no code of ours takes part
in, whose stages are judged. What is behind the end of a sequence is NaN in them.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from workbench.case import contract
from workbench.case.case import Case
from workbench.case.inputs import by_name
from workbench.case.stages import ALGORITHMS, shape
from workbench.floats import DTYPES
from workbench.judge.diff import Diff, diff
from workbench.trace.trace import Trace, check

Arrays = dict[str, np.ndarray]
#: changes of the kernel, by name: what it does in the place of one thing
Changes = Mapping[str, Callable[..., Any]]
F, NOTHING = np.float32, np.float32(-np.inf)


def scores_of(case: Case, inputs: Mapping[str, np.ndarray], changes: Changes) -> Arrays:
    """qk, capped and scores."""
    q, k = (inputs[x].astype(F) for x in "qk")
    qk = q @ np.repeat(k, case.heads // case.kv_heads, 1).swapaxes(-1, -2)
    found, s = {"qk": qk}, qk * F(case.scale)
    if case.softcap is not None:
        s = found["capped"] = F(case.softcap) * np.tanh(s / F(case.softcap))
    b, h, i, j = np.ix_(*(np.arange(n) for n in s.shape))
    if case.score_mod is not None:
        s = case.score_mod(s, b, h, i, j).astype(F)  # type: ignore[operator]
    if "bias" in inputs:
        s = s + inputs["bias"].astype(F)
    n_q, n_k = (np.array(x)[b] for x in (case.lengths_q, case.lengths_k))
    diagonal = (n_k - n_q) * (case.causal_alignment == "bottom-right")
    if case.slopes is not None:
        distance = j if case.alibi_form == "column" else -abs(j - i - diagonal)
        slopes = changes.get("slopes", lambda x: x)(case.slopes)
        s = s + slopes[h] * changes.get("distance", lambda x: x)(distance).astype(F)
    left, right = case.window or (-1, -1)
    seen = (i < n_q) & (j < n_k)
    seen = seen & ((left == -1) | (j >= i + diagonal - left)) & ((right == -1) | (j <= i + diagonal + right))
    seen = seen & (not case.causal or j <= i + diagonal)
    seen = seen & inputs.get("mask", True)
    found["scores"] = np.where(changes.get("seen", lambda x: x)(seen), s, NOTHING).astype(F)
    return found


@np.errstate(all="ignore")
def online(
    case: Case, inputs: Mapping[str, np.ndarray], block: int = 16, splits: int = 1, enter: str = "first", **changes: Any
) -> Arrays:
    """Every stage; sinks `enter` first or last, in split 0; some things otherwise, as `changes` say."""
    found = scores_of(case, inputs, changes)
    sizes = case.but(block_k=block, splits=splits).sizes
    for name, stage in ALGORITHMS["split_k"].items():
        if name not in found:
            found[name] = np.full(shape(stage, sizes), np.nan, F)
    v = np.repeat(inputs["v"].astype(F), case.heads // case.kv_heads, 1)
    rows, sinks = found["qk"].shape[:3], case.sink_logits
    if sinks is not None:
        sinks = changes.get("sinks", lambda x: x)(sinks)[None, :, None]
    per, larger = -(-sizes["t"] // splits), changes.get("larger", np.maximum)
    for split in range(splits):
        m, l, acc = np.full(rows, NOTHING), np.zeros(rows, F), np.zeros((*rows, case.head_dim_v), F)
        if sinks is not None and enter == "first" and split in changes.get("sink_in", (0,)):
            m, l = np.broadcast_to(sinks, rows).astype(F), np.ones(rows, F)
        for t in range(split * per, min((split + 1) * per, sizes["t"])):
            keys = slice(t * block, (t + 1) * block)
            x, before = found["scores"][..., keys], m
            m = larger(before, larger.reduce(x, -1))
            safe = np.where(m == NOTHING, F(0), m)
            correction, probs = np.exp(before - safe), np.exp(x - safe[..., None])
            kept = probs
            if case.dropout_p is not None:
                there = np.broadcast_to(inputs["dropout_mask"], found["qk"].shape)[..., keys]
                kept = np.where(changes.get("kept", lambda x: x)(there), probs / F(1 - case.dropout_p), F(0))
            cast = kept.astype(DTYPES[case.dtype]).astype(F)
            l = l * correction + probs.sum(-1)
            acc = acc * correction[..., None] + cast @ v[:, :, keys]
            for name, value in (("row_max", m), ("correction", correction), ("row_sum", l)):
                found[name][..., t] = value
            found["acc"][..., t, :], found["probs"][..., keys], found["probs_cast"][..., keys] = acc, probs, cast
        found["partial_max"][:, :, split], found["partial_sum"][:, :, split] = m, l
        found["partial_O"][:, :, split] = acc
    m = found["merge_max"] = larger.reduce(found["partial_max"], 2)
    safe = np.where(m == NOTHING, F(0), m)
    w = found["merge_weight"] = np.exp(found["partial_max"] - safe[:, :, None])
    l = found["merge_sum"] = (w * found["partial_sum"]).sum(2)
    acc = (w[..., None] * found["partial_O"]).sum(2)
    if sinks is not None and enter == "last":
        top = np.maximum(m, sinks)
        scale = np.exp(m - top)
        m, l, acc = top, l * scale + np.exp(sinks - top), acc * scale[..., None]
    found["lse"] = np.where(l == 0, NOTHING, m + np.log(l)).astype(F)
    found["out"] = np.where(l[..., None] == 0, 0, acc / l[..., None]).astype(DTYPES[case.dtype])
    return without_absent(case, found, block)


def without_absent(case: Case, found: Arrays, block: int) -> Arrays:
    """NaN where there is no query, no key, or no tile of a ragged batch."""
    if not case.ragged:
        return found
    rows = np.arange(case.seqlen_q) >= case.lengths_q[:, None]
    for name, x in found.items():
        axes = ALGORITHMS["split_k"][name].axes
        for b, n in enumerate(case.lengths_k):
            if "k" in axes:
                x[b, :, :, n:] = np.nan
            if "t" in axes:
                x[b, :, :, -(-n // block) :] = np.nan
            np.moveaxis(x[b], axes.index("q") - 1, 0)[rows[b]] = np.nan
    return found


def promise(case: Case, block: int = 16, splits: int = 1, enter: str = "first") -> dict[str, Any]:
    """The contract of `online`."""
    said = {"block_k": block, "row_sum_of_cast": False, "probs_normalised": False, "normalisation": "division"}
    said |= {"scores_dtype": "float32", "partials_dtype": "float32", "probs_dtype": case.dtype, "fast_math": False}
    said |= {"probs_rounding": "nearest", "accumulation": "nearest", "exp_argument": "difference"}
    said |= {"splits": splits} if splits > 1 else {}
    return said | ({"sinks": enter} if case.sinks is not None else {})


def judged(
    case: Case,
    only: tuple[str, ...] = (),
    declared: Mapping[str, Any] | None = None,
    inputs: Mapping[str, np.ndarray] | None = None,
    splits: int = 1,
    enter: str = "first",
    **changes: Any,
) -> Diff:
    """The judgement of `online`, of all its stages or of `only` some, with its own contract unless `declared` says."""
    read = by_name(case, inputs)
    algorithm = "split_k" if splits > 1 else "flash"
    stages = online(case, read, splits=splits, enter=enter, **changes)
    stages = {name: x for name, x in stages.items() if name in (only or ALGORITHMS[algorithm])}
    if case.softcap is None:
        stages.pop("capped", None)
    said = contract.of_foreign(promise(case, splits=splits, enter=enter) if declared is None else declared, case)
    trace = Trace("online", algorithm, case, said, read, stages, requested=())
    return diff(check(trace, "online"))
