"""Correct kernels of group lse: weights are exp(score - lse), or exp(lse - lse), and nothing is divided at the end."""

import numpy as np

from campaigns.styles import pieces
from campaigns.styles.pieces import F32, INF, LN2, LOG2E
from campaigns.styles.style import ALL, CAST, IEEE, Array, Stages, Style, input_dtype

State = tuple[Array, Array]


def _chunk(x: Array, v: Array, cast: object) -> State:
    """A chunk's normalised output and its lse."""
    m = x.max(-1)
    p = pieces.by_exp(x, m[..., None])
    l = p.sum(-1)
    return pieces.quotient(pieces.nearest(p, cast) @ v, l), pieces.lse_of(m, l)


def _chunks(q: Array, k: Array, v: Array, scale: float, causal: bool, block: int) -> tuple[Array, list[State]]:
    x, v32 = pieces.masked_scores(q, k, v, causal, F32(scale))
    return x, [_chunk(x[..., lo:hi], v32[:, :, lo:hi], q.dtype) for _, lo, hi in pieces.tiles(k.shape[2], block)]


def flash_decoding(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """4 splits of tiles of 32, each with a normalised output and an lse; weights exp(lse of the split - lse)."""
    x, v32 = pieces.masked_scores(q, k, v, causal, F32(scale))
    dumps = pieces.slots(x, v.shape[3], -(-k.shape[2] // 32))
    states = [pieces.online(x, v32, some, dumps, cast=q.dtype) for some in pieces.in_splits(k.shape[2], 32, 4)]
    part_lse = np.stack([pieces.lse_of(m, l) for m, l, _ in states], axis=2)
    part_out = np.stack([pieces.quotient(o, l) for _, l, o in states], axis=2)
    top = part_lse.max(2)
    lse = pieces.finite(top) + pieces.log(pieces.by_exp(part_lse, top[:, :, None]).sum(2))
    weight = pieces.by_exp(part_lse, lse[:, :, None])
    parts = {name: a for name, a in pieces.partials(states).items() if name != "partial_O"}
    out = (weight[..., None] * part_out).sum(2).astype(q.dtype)
    return {"scores": x, **dumps, **parts, "out": out, "lse": lse}


def flash_decoding_16(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """16 splits of tiles of 16 in base 2, their outputs stored in the dtype of q; dumps lse and out alone."""
    x, v32 = pieces.masked_scores(q, k, v, causal, F32(scale) * LOG2E)
    dumps = pieces.slots(x, v.shape[3], -(-k.shape[2] // 16))
    states = [
        pieces.online(x, v32, some, dumps, cast=q.dtype, weigh=pieces.by_exp2)
        for some in pieces.in_splits(k.shape[2], 16, 16)
    ]
    part_lse = np.stack([pieces.lse_of_base2(m, l) for m, l, _ in states], axis=2)
    part_out = [pieces.nearest(pieces.quotient(o, l), q.dtype) for _, l, o in states]
    top = part_lse.max(2)
    lse = pieces.finite(top) + pieces.log(pieces.by_exp(part_lse, top[:, :, None]).sum(2))
    out = np.zeros_like(part_out[0])
    for s, part in enumerate(part_out):
        out += pieces.by_exp(part_lse[:, :, s], lse)[..., None] * part
    return {"scores": x, "out": out.astype(q.dtype), "lse": lse}


def two_pass_softmax(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """lse first, then exp(score - lse) @ v."""
    q32, k32, v32 = pieces.widened(q, k, v)
    qk = pieces.product(q32, k32)
    x = pieces.masked(qk * F32(scale), pieces.visible(q, k, causal))
    m = x.max(-1)
    lse = pieces.lse_of(m, pieces.by_exp(x, m[..., None]).sum(-1))
    out = pieces.nearest(pieces.by_exp(x, lse[..., None]), q.dtype) @ v32
    return {"qk": qk, "scores": x, "row_max": m[..., None], "out": out.astype(q.dtype), "lse": lse}


def two_pass_online(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """The first pass keeps a running lse in base 2 by tiles of 32, the second needs no maximum."""
    x, v32 = pieces.masked_scores(q, k, v, causal, F32(scale) * LOG2E)
    running = np.full(q.shape[:3], -INF)
    for _, lo, hi in pieces.tiles(k.shape[2], 32):
        top = np.maximum(running, x[..., lo:hi].max(-1))
        total = pieces.by_exp2(running, top) + pieces.by_exp2(x[..., lo:hi], top[..., None]).sum(-1)
        running = pieces.finite(top) + pieces.log2(total)
    o = np.zeros(q.shape[:3] + v.shape[3:], F32)
    for _, lo, hi in pieces.tiles(k.shape[2], 32):
        o += pieces.by_exp2(x[..., lo:hi], running[..., None]) @ v32[:, :, lo:hi]
    return {"scores": x, "out": o.astype(q.dtype), "lse": running * LN2}


def _logaddexp(a: Array, b: Array) -> Array:
    """log(exp(a) + exp(b)); -inf where both are."""
    top = np.maximum(a, b)
    return pieces.finite(top) + pieces.log(pieces.by_exp(a, top) + pieces.by_exp(b, top))


def _joined(a: State, b: State) -> State:
    lse = _logaddexp(a[1], b[1])
    return pieces.by_exp(a[1], lse)[..., None] * a[0] + pieces.by_exp(b[1], lse)[..., None] * b[0], lse


def chunks_by_logaddexp(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """Chunks of 48 keys merged one after the other."""
    x, states = _chunks(q, k, v, scale, causal, 48)
    out, lse = states[0]
    for state in states[1:]:
        out, lse = _joined((out, lse), state)
    return {"scores": x, "out": out.astype(q.dtype), "lse": lse}


def tree_of_chunks(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """Chunks of 16 keys merged in pairs, and these in pairs."""
    x, states = _chunks(q, k, v, scale, causal, 16)
    while len(states) > 1:
        pairs = [_joined(a, b) for a, b in zip(states[::2], states[1::2], strict=False)]
        states = pairs + states[len(pairs) * 2 :]
    return {"scores": x, "out": states[0][0].astype(q.dtype), "lse": states[0][1]}


def logsumexp_of_stack(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """Chunks of 100 keys, one logsumexp over their lse, one weighted sum, as an all-gather has them."""
    x, states = _chunks(q, k, v, scale, causal, 100)
    lses = np.stack([lse for _, lse in states])
    lse = np.logaddexp.reduce(lses, axis=0)
    out = sum(pieces.by_exp(part_lse, lse)[..., None] * part for part, part_lse in states)
    return {"scores": x, "out": np.asarray(out).astype(q.dtype), "lse": lse}


def _sigmoid(x: Array) -> Array:
    with np.errstate(over="ignore"):
        return F32(1) / (F32(1) + np.exp(-x))


def _log_sigmoid(x: Array) -> Array:
    return np.minimum(x, F32(0)) - np.log1p(np.exp(-np.abs(x)))


def _ring(states: list[State]) -> State:
    """Ring attention's merge; a chunk that sees nothing changes nothing, the first that sees a key is taken whole."""
    out, lse = states[0]
    for block_out, block_lse in states[1:]:
        new, old = block_lse != -INF, lse != -INF
        gap = np.where(new & old, pieces.finite(block_lse) - pieces.finite(lse), F32(0))
        step = out - _sigmoid(gap)[..., None] * (out - block_out)
        out = np.where((new & old)[..., None], step, np.where(new[..., None], block_out, out))
        lse = np.where(new & old, pieces.finite(lse) - _log_sigmoid(-gap), np.where(new, block_lse, lse))
    return out, lse


def ring_sigmoid(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """Chunks of 64 keys: out -= sigmoid(block_lse - lse) * (out - block_out); lse -= logsigmoid(lse - block_lse)."""
    x, states = _chunks(q, k, v, scale, causal, 64)
    out, lse = _ring(states)
    return {"scores": x, "out": out.astype(q.dtype), "lse": lse}


def ring_rotated(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """Chunks of 32 keys from the middle rank on and around the ring; what a rank sends is in the dtype of q."""
    x, states = _chunks(q, k, v, scale, causal, 32)
    at = len(states) // 2
    out, lse = _ring([(pieces.nearest(part, q.dtype), part_lse) for part, part_lse in states[at:] + states[:at]])
    return {"scores": x, "out": out.astype(q.dtype), "lse": lse}


def ring_zigzag(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """Chunks of 20 keys, first and last, second and last but one, ..., merged by sigmoids."""
    x, states = _chunks(q, k, v, scale, causal, 20)
    order = [i // 2 if i % 2 == 0 else len(states) - 1 - i // 2 for i in range(len(states))]
    out, lse = _ring([states[i] for i in order])
    return {"scores": x, "out": out.astype(q.dtype), "lse": lse}


def merge_state_base2(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """Cascade of a prefix and a suffix, whose (v, s) pairs with s in units of log2 are merged with a division."""
    x, v32 = pieces.masked_scores(q, k, v, causal, F32(scale) * LOG2E)
    ends = [0, (k.shape[2] + 1) // 2, k.shape[2]]
    pairs = []
    for lo, hi in zip(ends, ends[1:], strict=False):
        if hi > lo:
            m = x[..., lo:hi].max(-1)
            p = pieces.by_exp2(x[..., lo:hi], m[..., None])
            l = p.sum(-1)
            pairs.append(
                (pieces.quotient(pieces.nearest(p, q.dtype) @ v32[:, :, lo:hi], l), pieces.finite(m) + pieces.log2(l))
            )
    top = np.max([s for _, s in pairs], axis=0)
    weights = [pieces.by_exp2(s, top) for _, s in pairs]
    total = np.sum(weights, axis=0)
    o = sum(w[..., None] * part for w, (part, _) in zip(weights, pairs, strict=True))
    return {
        "scores": x,
        "out": pieces.quotient(np.asarray(o), total).astype(q.dtype),
        "lse": pieces.lse_of_base2(top, total),
    }


_BY_LSE = {"normalisation": "lse"}

STYLES = tuple(
    Style(function, "lse", ALL, units, {**arithmetic, **_BY_LSE}, why)
    for function, units, arithmetic, why in (
        (flash_decoding, {"block_k": 32, "splits": 4}, CAST, "FlashDecoding's combine by lse (mha_fwd_splitkv)."),
        (
            flash_decoding_16,
            {"block_k": 16, "splits": 16, "base2": True},
            {**CAST, "partials_dtype": input_dtype},
            "vLLM's Triton decode attention with 16 KV splits, whose partial outputs are stored in 16 bits.",
        ),
        (two_pass_softmax, {"block_k": 512}, CAST, "exp(s - lse), as backward passes recompute probs."),
        (
            two_pass_online,
            {"base2": True},
            IEEE,
            "Milakov and Gimelshein's online normaliser, then a second pass over K.",
        ),
        (chunks_by_logaddexp, {}, CAST, "Chunked prefill merged with logaddexp, as vLLM's merge_attn_states does."),
        (tree_of_chunks, {}, CAST, "Tree Attention reduces (out, lse) pairs over a tree of devices."),
        (logsumexp_of_stack, {}, CAST, "Context parallel decoding gathers all lse and takes one logsumexp."),
        (ring_sigmoid, {}, CAST, "ring-flash-attention's _update_out_and_lse with a sigmoid."),
        (
            ring_rotated,
            {},
            {**CAST, "partials_dtype": input_dtype},
            "Ring attention on a rank in the middle, blocks' outputs sent in the dtype of q.",
        ),
        (
            ring_zigzag,
            {},
            CAST,
            "zigzag ring attention and striped attention visit both ends of the sequence by turns.",
        ),
        (
            merge_state_base2,
            {"base2": True},
            CAST,
            "FlashInfer's merge_state of cascade inference, s in units of log2.",
        ),
    )
)
