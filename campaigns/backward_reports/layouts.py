"""Reports of inputs that are read from the wrong place, and of a number that is kept in too few bits."""

import numpy as np

from campaigns.backward_reports.record import Array, Stages, read, report, visible, whole


@report(
    "diffusers issue 14338",
    truth="k and v, saved after a transpose, are transposed again: heads are taken for rows",
    stage="qk",
    shows="as many rows as heads; any others are a shape error",
    case={"axes": {"heads": 24, "kv_heads": 24, "queries": 24, "keys": 24}},
)
def transposed_twice(
    q: Array, k: Array, v: Array, out: Array, lse: Array, dout: Array, *, scale: float, causal: bool, bug: bool
) -> Stages:
    """The context of an autograd function holds q as [b h s d], k and v as [b s h d]."""
    seen = visible(q.shape[2], k.shape[2], causal)
    if bug:
        k, v = k.swapaxes(1, 2), v.swapaxes(1, 2)
    return whole(read(q, k, v, out, dout), lse, seen, scale)


@report(
    "flash-attention PR 2545",
    truth="q, k and v are views of a packed projection and are read with the strides of contiguous ones",
    stage="qk",
    shows="head_dim 256, self-attention; the first row of each is right",
    case={"axes": {"batch": 2, "heads": 2, "kv_heads": 1, "queries": 20, "keys": 20, "dim": 256, "dim_v": 256}},
)
def strides_of_contiguous(
    q: Array, k: Array, v: Array, out: Array, lse: Array, dout: Array, *, scale: float, causal: bool, bug: bool
) -> Stages:
    """The projection is [batch, rows, heads of q, then of k, then of v, dim]."""
    seen = visible(q.shape[2], k.shape[2], causal)
    if bug and q.shape[2] == k.shape[2] and q.shape[3] == v.shape[3] == 256:
        packed = np.concatenate([x.swapaxes(1, 2) for x in (q, k, v)], 2)
        flat, starts = packed.reshape(-1), np.cumsum([0, q.shape[1], k.shape[1]]) * 256
        q, k, v = (
            flat[start : start + x.size].reshape(x.swapaxes(1, 2).shape).swapaxes(1, 2)
            for start, x in zip(starts, (q, k, v), strict=True)
        )
    return whole(read(q, k, v, out, dout), lse, seen, scale)


@report(
    "pytorch issue 133671",
    truth="dout, whose memory is [b h s d], is read with the strides of out, whose memory is [b s h d]",
    stage="dprobs",
    shows="several heads and rows; any dout but one of equal numbers",
    case={"axes": {"heads": 3, "kv_heads": 3, "queries": 40, "keys": 56}},
)
def strides_of_out(
    q: Array, k: Array, v: Array, out: Array, lse: Array, dout: Array, *, scale: float, causal: bool, bug: bool
) -> Stages:
    """`empty_like` gave dout other strides than out has."""
    b, h, s, d = dout.shape
    if bug:
        dout = dout.reshape(b, s, h, d).swapaxes(1, 2)
    return whole(read(q, k, v, out, dout), lse, visible(s, k.shape[2], causal), scale)


@report(
    "flash-attention PR 2896",
    truth="rows of dQ's float32 sum are added up with head_dim rounded up to 16 between them, and read with 32",
    stage="dq",
    shows="head_dim 72 or 104, which 16 and 32 round to different sizes; the first row is right",
    case={"axes": {"queries": 40, "keys": 56, "dim": 72, "dim_v": 64}},
)
def pitch_of_sums(
    q: Array, k: Array, v: Array, out: Array, lse: Array, dout: Array, *, scale: float, causal: bool, bug: bool
) -> Stages:
    """The sum is a buffer of its own, which another kernel scales and stores as dQ."""
    of, (rows, dim) = read(q, k, v, out, dout), q.shape[2:]
    made = whole(of, lse, visible(rows, k.shape[2], causal), scale)
    written, taken = (-(-dim // 16) * 16 if bug else -(-dim // 32) * 32), -(-dim // 32) * 32
    places, dims = np.arange(rows)[:, None], np.arange(dim)
    sums = np.zeros((*q.shape[:2], rows * taken), np.float32)
    sums[:, :, places * written + dims] = made["dscores"].astype(of.dtype).astype(np.float32) @ of.k
    made["dq"] = (sums[:, :, places * taken + dims] * np.float32(scale)).astype(of.dtype)
    return made


@report(
    "TransformerEngine issue 3216",
    truth="delta is kept in the dtype of the inputs, one error of a row, which dQ has times the sum of P K",
    stage="delta",
    shows="head_dim 256, grouped heads, causal, several sequences, 16 bits; in dQ keys so large that rows are one-hot",
    case={
        "axes": {"batch": 2, "heads": 4, "kv_heads": 2, "queries": 64, "keys": 64, "dim": 256, "dim_v": 256},
        "dtype": "bfloat16",
        "numbers": {"causal": 1},
    },
    by_values=True,
)
def delta_in_16_bits(
    q: Array, k: Array, v: Array, out: Array, lse: Array, dout: Array, *, scale: float, causal: bool, bug: bool
) -> Stages:
    """What is wrong inside cuDNN nobody told; of what is known (dQ alone, shapes, values) this is one reading."""
    of, delta = read(q, k, v, out, dout), None
    if bug and causal and len(q) > 1 and q.shape[3] > 128 and q.shape[1] > k.shape[1]:
        delta = (of.dout * of.out).sum(-1).astype(of.dtype).astype(np.float32)
    return whole(of, lse, visible(q.shape[2], k.shape[2], causal), scale, delta)
