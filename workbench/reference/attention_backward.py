"""The backward pass of attention in plain code, as FlashAttention-2 computes it (Dao 2023, arXiv 2307.08691, algorithm
2): P again from lse, delta = rowsum(dO * O), dP = dO V^T, dS = P * (dP - delta), and from these dQ, dK and dV.
"""

from collections.abc import Callable, Collection
from typing import Any

import numpy as np

from workbench.floats import unit_roundoff
from workbench.reference.arithmetic import Arithmetic
from workbench.reference.graph import applied, may_lose, stage
from workbench.reference.losses import LOG_ULPS

Array = np.ndarray
Function = Callable[[Array], Array]

#: terms of a block at least, after which a sum may be rounded: torch's flash on a CPU takes 32, 64 or 256 queries
LEAST_BLOCK = 32
#: relative error of tanh.approx (PTX ISA)
OF_TANH = 2.0**-11


def attention_backward(
    q: Array, k: Array, v: Array, out: Array, lse: Array, dout: Array, *, scale: float, own: Collection[str] = (),
    causal: bool = False, window_left: int = -1, window_right: int = -1, seqlens_k: Array | None = None,
    mask: Array | None = None, shown: Array | None = None, dlse: Array | None = None, sinks: Array | None = None,
    bias: Array | None = None, alibi_slopes: Array | None = None, distances: Array | None = None,
    softcap: float = 0.0, score_mod: Function | None = None, mod_slope: Function | None = None,
    dropout_mask: Array | None = None, dropout_p: float = 0.0, shared_kv: bool = False, delta: str = "out",
    delta_dtype: str = "float32", qk_dtype: str = "float32", probs_dtype: str = "inputs",
    dprobs_dtype: str = "float32", dscores_of: str = "probs", dscores_dtype: str = "inputs",
    dk_sum_dtype: str = "float32", dv_sum_dtype: str = "float32", accumulation_dtype: str = "float32",
    dropped_dtype: str = "float32", parts_dtype: str = "float32", tanh: str = "float32", **_: Any,
) -> dict[str, Array]:  # fmt: skip
    """dq, dk and dv, or dkv where v is the first dims of k (`shared_kv`), and dsink, dbias and dslopes where there are
    sinks, a bias and slopes, each of the shape of its input and in the dtype of q.

    q: [batch, heads, queries, dim], k: [batch, kv_heads, keys, dim], v: [.., keys, dim_v], out and dout: [batch,
    heads, queries, dim_v], lse and dlse: [batch, heads, queries], of base e, -inf of a row without keys. causal and
    the windows (-1: none) are aligned bottom-right; seqlens_k: keys of each batch. mask: True where a key is visible,
    shown: where score_mod hides it not, bool [batch, heads, queries, keys]. bias: of that shape, or with axes of 1;
    distances: what the slopes [heads] multiply; dropout_mask: True where P is kept. own: which of `out` and `lse` a
    kernel makes itself, from the same scores; a right lse is given all the same.
    score_mod and mod_slope: what is made of scores, and its derivative.

    The rest says what a kernel may store in the dtype of q (`inputs`), or not (`float32`), how delta is computed (of
    `out` or of `probs`), from which P dS is (`probs`, `cast probs`), and whether tanh is `approximate`. All else is in
    float32, as kernels compute. Hidden keys have a P of 0, whatever stands there.
    """
    dtype, heads, group = q.dtype.name, q.shape[1], q.shape[1] // k.shape[1]
    whole, of_delta, of_tanh = (q.shape[0], heads, q.shape[2], k.shape[2]), delta, tanh
    # dS, and what is made of it, may be stored times the scale, as torch's operations do
    least = min(1.0, abs(scale) or 1.0)

    def cast(name: str, x: Array, told: str, factor: float = 1.0) -> Array:
        """x, stored in the dtype of q or not, times a factor: where that is told a stage."""
        if told == "float32" or dtype == "float32":
            return x
        relative, absolute = Arithmetic(dtype, factor=factor).cast()
        lost: Array = stage(name, may_lose(x, relative * abs(x) + absolute))
        return lost

    def summed(x: Array, a: Array, b: Array, group: int = 1, factor: float = 1.0) -> Array:
        """x = a @ b, rounded after each of its blocks where sums are told to be in the dtype of q: a partial sum is at
        most what the sizes of all terms add up to, of all heads of a group that share it.
        """
        if accumulation_dtype == "float32" or dtype == "float32":
            return x
        relative, absolute = Arithmetic(dtype, factor=factor).cast()
        size = abs(a) @ abs(b)
        size = np.repeat(size.reshape(x.shape[0], -1, group, *x.shape[2:]).sum(axis=2), group, axis=1)
        lost: Array = may_lose(x, relative * size + absolute, -(-a.shape[-1] // LEAST_BLOCK))
        return lost

    query, dout = q.astype(np.float32), dout.astype(np.float32)
    k_rows, v_rows = (np.repeat(x.astype(np.float32), group, axis=1) for x in (k, v))
    qk = query @ np.swapaxes(k_rows, -1, -2)
    scores = cast("qk_cast", qk, qk_dtype) * scale
    last = scores
    if softcap:
        tanh_ = np.tanh(scores / softcap)
        if of_tanh == "approximate":
            tanh_ = may_lose(tanh_, OF_TANH * abs(tanh_))
        tanh_ = stage("tanh", tanh_)
        capped = softcap * tanh_
        last = capped
    unmodded = last
    if score_mod is not None:
        modded = applied(score_mod, last)
        last = modded
    if bias is not None:
        wide_bias = np.broadcast_to(bias.astype(np.float32), whole)
        last = last + wide_bias
    if alibi_slopes is not None:
        alibi = np.broadcast_to(alibi_slopes[:, None, None] * distances, whole)
        last = last + alibi
    if bias is not None or alibi_slopes is not None:
        biased = last
        last = cast("biased_cast", biased, qk_dtype)

    keys, length = np.arange(k.shape[2]), k.shape[2] if seqlens_k is None else seqlens_k[:, None, None, None]
    diagonal = np.arange(q.shape[2])[:, None] + length - q.shape[2]
    masks = []
    if causal:
        until_diagonal = keys <= diagonal
        masks.append(until_diagonal)
    if window_left != -1:
        in_left_window = keys >= diagonal - window_left
        masks.append(in_left_window)
    if window_right != -1:
        in_right_window = keys <= diagonal + window_right
        masks.append(in_right_window)
    if seqlens_k is not None:
        within_length = keys < length
        masks.append(within_length)
    masks += [x for x in (mask, shown) if x is not None]

    def hide(x: Array) -> Array:
        for seen in masks:
            x = np.where(seen, x, -np.inf)
        return x

    if "lse" in own:
        terms = hide(last)
        if sinks is not None:
            of_sinks = np.broadcast_to(sinks[None, :, None, None], (*whole[:3], 1))
            terms = np.concatenate([terms, of_sinks], axis=-1)
        # a row's maximum cancels, and so does any other number, such as lse itself; the log of a sum has digits to lose
        shift = np.where(np.isfinite(lse), lse, 0.0)
        row_sum = np.sum(np.exp(terms - shift[..., None]), axis=-1)
        log_sum = may_lose(np.log(row_sum), 2 * LOG_ULPS * unit_roundoff("float32") * np.log(terms.shape[-1]))
        own_lse = np.where(row_sum > 0, shift + log_sum, -np.inf)
        lse = own_lse
    shifted = last - lse[..., None]
    masked = hide(shifted)
    probs = np.exp(masked)
    probs_last = cast("probs_cast", probs, probs_dtype)
    values = probs_last
    dprobs = dout @ np.swapaxes(v_rows, -1, -2)
    dprobs_last = cast("dprobs_cast", dprobs, dprobs_dtype)
    if dropout_mask is not None:
        factor, kept = 1 / (1 - dropout_p), dropout_mask.astype(np.float32)
        dropped = (probs_last if dropped_dtype == "inputs" else probs) * kept * factor
        values = cast("dropped_cast", dropped, probs_dtype)
        dkept = dprobs_last * kept * factor
        dprobs_last = cast("dkept_cast", dkept, dropped_dtype)

    weights = probs_last if dscores_of == "cast probs" else probs
    if of_delta == "probs":
        delta_ = np.sum(weights * dprobs_last, axis=-1)
    elif "out" in own:
        # of the weights of the forward pass, which met V in the dtype of probs, stored or not
        own_sum = values @ v_rows
        own_out = cast("own_out", own_sum, "inputs")
        delta_ = np.sum(dout * own_out, axis=-1)
    else:
        delta_ = np.sum(dout * out.astype(np.float32), axis=-1)
    offset = cast("delta_cast", stage("delta", delta_), delta_dtype)
    centred = dprobs_last - offset[..., None]
    if dlse is not None:
        centred = centred + dlse[..., None]
    dscores = weights * centred
    dscores_last = cast("dscores_cast", dscores, dscores_dtype, least)
    dscaled_last, through = dscores_last, dscores
    if mod_slope is not None:
        slope = stage("mod_slope", applied(mod_slope, unmodded, reads=False))
        dmodded = dscores * slope
        dscaled_last, through = cast("dmodded_cast", dmodded, dscores_dtype, least), dmodded
    if softcap:
        tanh_squared = np.square(tanh_)
        cap_slope = 1 - tanh_squared
        dscaled = through * cap_slope
        dscaled_last = cast("dscaled_cast", dscaled, dscores_dtype, least)

    columns = np.swapaxes(dscaled_last, -1, -2)
    dq_sum = dscaled_last @ k_rows
    dq = scale * summed(dq_sum, dscaled_last, k_rows, factor=least)
    dk_sum = columns @ query
    dk_rows = cast("dk_sum_cast", summed(dk_sum, columns, query, group, least), dk_sum_dtype, least)
    dk_group = dk_rows.reshape(k.shape[0], k.shape[1], group, *k.shape[2:]).sum(axis=2)
    dk = scale * dk_group
    columns = np.swapaxes(values, -1, -2)
    dv_sum = columns @ dout
    dv_rows = cast("dv_sum_cast", summed(dv_sum, columns, dout, group), dv_sum_dtype)
    dv = dv_rows.reshape(v.shape[0], v.shape[1], group, *v.shape[2:]).sum(axis=2)
    made = {"dq": dq, "dk": dk, "dv": dv}
    if shared_kv:
        parts, first = (cast("dk_cast", dk, parts_dtype), cast("dv_cast", dv, parts_dtype)), v.shape[3]
        dkv = np.concatenate([parts[0][..., :first] + parts[1], parts[0][..., first:]], axis=-1)
        made = {"dq": dq, "dkv": dkv}
    if sinks is not None:
        row_lse = np.where(np.isfinite(lse), lse, 0.0)
        sink_shifted = sinks[:, None] - row_lse
        sink_probs = np.exp(sink_shifted)
        delta_of_sink = offset if dlse is None else offset - dlse
        dsink_rows = -sink_probs * delta_of_sink
        dsink = np.sum(dsink_rows, axis=(0, 2))
        made["dsink"] = dsink
    if bias is not None:
        same = tuple(axis for axis, (n, m) in enumerate(zip(whole, bias.shape, strict=True)) if m == 1 < n)
        dbias = np.sum(dscores_last, axis=same, keepdims=True) if same else stage("dbias", dscores_last)
        made["dbias"] = dbias
    if alibi_slopes is not None:
        dslopes = np.sum(dscores_last * distances, axis=(0, 2, 3))
        made["dslopes"] = dslopes
    return {name: x.astype(q.dtype) for name, x in made.items()}
