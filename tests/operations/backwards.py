"""The backward pass of attention in NumPy, as FlashAttention-2 computes it in float32, right and with one fault."""

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.operations.mods import SLOPES
from workbench.case.mods import evaluated

#: fault -> the first stage that is wrong
FAULTS = {
    "lse of base 2": "probs",
    "scale twice in the scores": "scores",
    "mask left out": "probs",
    "delta of the next head": "delta",
    "delta of dout alone": "delta",
    "V transposed back": "dprobs",
    "delta added": "dscores",
    "delta left out": "dscores",
    "scale left out of dq": "dq",
    "scale twice in dk": "dk",
    "last tile of queries left out of dk": "dk",
    "heads of a group overwritten": "dk",
    "strides of out for dout": "delta",
    "P of the row before in dv": "dv",
    "delta of the first head": "delta",
}
#: of what a case may have: fault -> what it needs (numbers, optional inputs), and the first stage that is wrong
FAULTS_OF_MODS = {
    "score_mod left out": "probs",
    "derivative of the score_mod left out": "dmodded",
    "derivative of what the score_mod made": "dmodded",
}
FAULTS_OF: dict[str, tuple[dict[str, Any], tuple[str, ...], str]] = {
    "derivative of the softcap left out": ({"softcap": 2.0}, (), "dscaled"),
    "derivative of the softcap at the capped score": ({"softcap": 2.0}, (), "dscaled"),
    "left edge of the window off by one": ({"window_left": 5, "window_right": 0}, (), "probs"),
    "no window read as one of -1": ({"window_left": -1, "window_right": 2}, (), "probs"),
    "sink of one row alone": ({}, ("sinks",), "dsink"),
    "dsink with its sign turned": ({}, ("sinks",), "dsink"),
    "dlse left out": ({}, ("dlse",), "dscores"),
    "dlse left out of dsink": ({}, ("dlse", "sinks"), "dsink"),
    "bias left out": ({}, ("bias",), "probs"),
    "dbias of one batch": ({}, ("bias",), "dbias"),
    "slopes of the next head": ({}, ("alibi_slopes",), "alibi"),
    "dslopes of one batch": ({}, ("alibi_slopes",), "dslopes"),
    "dslopes of positive distances": ({}, ("alibi_slopes",), "dslopes"),
    "dropout left out of dP": ({"dropout_p": 0.25}, ("dropout_mask",), "dkept"),
    "dropout's factor left out of dv": ({"dropout_p": 0.25}, ("dropout_mask",), "dropped"),
    "dropout of another seed": ({"dropout_p": 0.25}, ("dropout_mask",), "dropped"),
    "dv left out of dkv": ({"shared_kv": True}, (), "dkv"),
    "dv added to the last dims": ({"shared_kv": True}, (), "dkv"),
    "lengths left out": ({}, ("seqlens_k",), "probs"),
    "mask transposed": ({}, ("mask",), "probs"),
}
TILE = 16


def backward(fault: str = "", *, dumps: bool = True) -> Callable[..., Any]:
    """The function."""
    f32 = np.float32

    @np.errstate(over="ignore", invalid="ignore")  # of keys that a fault shows
    def function(
        q: Any,
        k: Any,
        v: Any,
        out: Any,
        lse: Any,
        dout: Any,
        *,
        scale: float,
        causal: bool,
        softcap: float | None = None,
        window_left: int = -1,
        window_right: int = -1,
        dropout_p: float = 0.0,
        alibi_column: bool = False,
        shared_kv: bool = False,
        dlse: Any = None,
        sinks: Any = None,
        bias: Any = None,
        alibi_slopes: Any = None,
        dropout_mask: Any = None,
        mask: Any = None,
        seqlens_k: Any = None,
        score_mod: Any = None,
    ) -> dict[str, np.ndarray] | tuple[np.ndarray, ...]:
        dtype, group = q.dtype, q.shape[1] // k.shape[1]
        q, k, v, out, dout = (x.astype(f32) for x in (q, k, v, out, dout))
        wide_k, wide_v = (np.repeat(x, group, 1) for x in (k, v))
        rows, keys = q.shape[2], k.shape[2]
        lengths = np.full(len(q), keys) if seqlens_k is None or fault == "lengths left out" else seqlens_k
        at = np.arange(rows)[:, None] + lengths[:, None, None, None] - rows
        column = np.arange(keys)
        visible = np.broadcast_to(column < lengths[:, None, None, None], (*q.shape[:3], keys))
        if causal:
            visible = visible & (column <= at)
        if window_left >= 0 or fault == "no window read as one of -1":
            visible = visible & (column >= at - window_left - (fault == "left edge of the window off by one"))
        if window_right >= 0:
            visible = visible & (column <= at + window_right)
        if mask is not None:
            visible = visible & (mask[:, ::-1] if fault == "mask transposed" else mask)
        if fault == "mask left out":
            visible = np.ones_like(visible)
        qk = q @ wide_k.swapaxes(-1, -2)
        scores = qk * f32(scale * scale if fault == "scale twice in the scores" else scale)
        made: dict[str, np.ndarray] = {}
        x = scores
        if softcap is not None:
            tanh = np.tanh(scores / f32(softcap))
            x = made["capped"] = tanh * f32(softcap)
            made["tanh"] = tanh
        if score_mod is not None:
            indices = np.ix_(*(np.arange(n) for n in x.shape))
            slope_of_mod = SLOPES[score_mod](x, *indices).astype(f32)
            if fault == "derivative of the score_mod left out":
                slope_of_mod = np.ones_like(x)
            modded = evaluated(score_mod, "score_mod", indices, x).astype(f32)
            if fault == "derivative of what the score_mod made":
                slope_of_mod = SLOPES[score_mod](modded, *indices).astype(f32)
            visible = visible & ~np.isinf(modded)
            if fault != "score_mod left out":
                x = made["modded"] = modded
        if bias is not None and fault != "bias left out":
            x = x + bias.astype(f32)
        if alibi_slopes is not None:
            slopes = np.roll(alibi_slopes, -1) if fault == "slopes of the next head" else alibi_slopes
            distance = np.broadcast_to(column, (rows, keys)) if alibi_column else -abs(column - at)
            made["alibi"] = np.broadcast_to(slopes[:, None, None] * distance.astype(f32), scores.shape)
            x = x + made["alibi"]
        known = np.where(np.isfinite(lse), lse, f32(0))[..., None]
        probs = np.exp(x - (known * f32(np.log(2)) if fault == "lse of base 2" else known))
        probs = np.where(visible, probs, f32(0))
        read = dout
        if fault == "strides of out for dout":
            read = dout.swapaxes(1, 2).reshape(dout.shape)
        delta = (read * out).sum(-1)
        if fault == "delta of the next head":
            delta = np.roll(delta, -1, 1)
        if fault == "delta of the first head":
            delta = np.broadcast_to(delta[:, :1], delta.shape)
        if fault == "delta of the first batch":
            delta = np.broadcast_to(delta[:1], delta.shape)
        if fault == "delta of dout alone":
            delta = dout.sum(-1)
        values = wide_v.swapaxes(-1, -2)
        if fault == "V transposed back":
            values = wide_v.reshape(*wide_v.shape[:2], wide_v.shape[3], wide_v.shape[2])
        dprobs = dout @ values
        kept = None
        if dropout_mask is not None:
            kept = np.roll(dropout_mask, 1, -1) if fault == "dropout of another seed" else dropout_mask
            kept = kept * f32(1 / (1 - dropout_p))
            made["dkept"] = dprobs if fault == "dropout left out of dP" else dprobs * kept
        used = {"delta added": -delta, "delta left out": 0 * delta}.get(fault, delta)
        of_lse = f32(0) if dlse is None or fault == "dlse left out" else dlse[..., None]
        dscores = probs * (made.get("dkept", dprobs) - used[..., None] + of_lse)
        through = dscores
        if score_mod is not None:
            through = made["dmodded"] = dscores * slope_of_mod
        if softcap is not None:
            slope = f32(1) - tanh * tanh
            if fault == "derivative of the softcap left out":
                slope = f32(1)
            if fault == "derivative of the softcap at the capped score":
                slope = f32(1) - np.tanh(made["capped"] / f32(softcap)) ** 2
            through = made["dscaled"] = through * slope
        dropped = probs
        if kept is not None:
            dropped = made["dropped"] = probs * (kept > 0 if fault == "dropout's factor left out of dv" else kept)
        stored_p, stored_ds = (x.astype(dtype).astype(f32) for x in (dropped, through))
        dq = (stored_ds @ wide_k) * f32(1 if fault == "scale left out of dq" else scale)
        some = slice(0, rows - rows % TILE or rows - TILE)
        of_rows = some if fault == "last tile of queries left out of dk" else slice(None)
        dk = stored_ds[:, :, of_rows].swapaxes(-1, -2) @ q[:, :, of_rows]
        dk = dk * f32(scale * scale if fault == "scale twice in dk" else scale)
        p = np.roll(stored_p, 1, 2) if fault == "P of the row before in dv" else stored_p
        dv = p.swapaxes(-1, -2) @ dout
        dk, dv = (x.reshape(x.shape[0], -1, group, *x.shape[2:]) for x in (dk, dv))
        dk = dk[:, :, -1] if fault == "heads of a group overwritten" else dk.sum(2)
        dv = dv.sum(2)
        results = {"dq": dq, "dk": dk, "dv": dv}
        if shared_kv:
            dims = slice(-dv.shape[-1], None) if fault == "dv added to the last dims" else slice(dv.shape[-1])
            dk[..., dims] += f32(fault != "dv left out of dkv") * dv
            results = {"dq": dq, "dkv": dk}
        results = {name: x.astype(dtype) for name, x in results.items()}
        beside = {}
        if sinks is not None:
            made["sink_probs"] = np.exp(sinks[None, :, None] - lse)
            of_rows = made["sink_probs"] * (delta if dlse is None or "dsink" in fault[9:] else delta - dlse)
            of_rows = of_rows[:, :, :1] if fault == "sink of one row alone" else of_rows
            beside["dsink"] = of_rows.sum((0, 2)) * f32(1 if fault == "dsink with its sign turned" else -1)
        if bias is not None:
            of_bias = dscores[:1] if fault == "dbias of one batch" else dscores
            summed = tuple(axis for axis in range(3) if bias.shape[axis] == 1)
            beside["dbias"] = of_bias.sum(summed, keepdims=True).astype(dtype)
        if alibi_slopes is not None:
            turned = f32(-1 if fault == "dslopes of positive distances" else 1)
            of_pairs = dscores * distance.astype(f32)
            of_pairs = of_pairs[:1] if fault == "dslopes of one batch" else of_pairs
            beside["dslopes"] = turned * of_pairs.sum((0, 2, 3))
        if not dumps:
            return (*results.values(), *beside.values())
        names = ("qk", "scores", "probs", "delta", "dprobs", "dscores")
        stages = dict(zip(names, (qk, scores, probs, delta, dprobs, dscores), strict=True))
        return {**stages, **results, **made, **beside}

    return function
