"""Correct kernels of group workspace: they return the same arrays at each call of a shape, overwritten in place."""

import numpy as np

from campaigns.styles import pieces
from campaigns.styles.pieces import F32, LOG2E
from campaigns.styles.style import ALL, CAST, IEEE, Array, Stages, Style

_buffers: dict[tuple[object, ...], Stages] = {}


def _key(name: str, q: Array, k: Array) -> tuple[object, ...]:
    return name, q.shape, k.shape, q.dtype.name


def workspace_flash(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """An online softmax in tiles of 64; out, lse and every stage are the arrays of the call before."""
    x, v32 = pieces.masked_scores(q, k, v, causal, F32(scale))
    visits = pieces.tiles(k.shape[2], 64)
    key = _key("flash", q, k)
    if key not in _buffers:
        ends = {"out": np.empty_like(q), "lse": np.empty(q.shape[:3], F32), "scores": np.empty_like(x)}
        _buffers[key] = {**pieces.slots(x, v.shape[3], len(visits), np.nan), **ends}
    own = _buffers[key]
    m, l, o = pieces.online(x, v32, visits, own, cast=q.dtype)
    own["scores"][...], own["out"][...], own["lse"][...] = x, pieces.quotient(o, l).astype(q.dtype), pieces.lse_of(m, l)
    return dict(own)


def workspace_split_kv(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """The partials of 4 splits of tiles of 32 are views of one flat workspace; out is new, what was merged is not."""
    x, v32 = pieces.masked_scores(q, k, v, causal, F32(scale) * LOG2E)
    visits = pieces.in_splits(k.shape[2], 32, 4)
    b, h, rows, dim = q.shape
    shape, key = (b, h, len(visits), rows), _key("split_kv", q, k)
    count = int(np.prod(shape))
    if key not in _buffers:
        _buffers[key] = {"flat": np.empty(count * (dim + 2), F32), "lse": np.empty((b, h, rows), F32)}
    flat = _buffers[key]["flat"]
    own = {
        "partial_O": flat[: count * dim].reshape(*shape, dim),
        "partial_max": flat[count * dim : count * (dim + 1)].reshape(shape),
        "partial_sum": flat[count * (dim + 1) :].reshape(shape),
    }
    dumps = pieces.slots(x, dim, -(-k.shape[2] // 32))
    for name, a in pieces.partials(
        [pieces.online(x, v32, some, dumps, cast=q.dtype, weigh=pieces.by_exp2) for some in visits]
    ).items():
        own[name][...] = a
    merge, o, total = pieces.merged(own, pieces.by_exp2)
    _buffers[key]["lse"][...] = pieces.lse_of_base2(merge["merge_max"], total)
    return {**own, **merge, "out": pieces.quotient(o, total).astype(q.dtype), "lse": _buffers[key]["lse"]}


def workspace_bshd(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """out is a transposed view of a kept [batch, query, head, dim] buffer; the scores' buffer is reused for probs."""
    q32, k32, v32 = pieces.widened(q, k, v)
    key = _key("bshd", q, k)
    if key not in _buffers:
        b, h, rows, dim = q.shape
        _buffers[key] = {
            "out": np.empty((b, rows, h, dim), q.dtype),
            "both": np.empty((b, h, rows, k.shape[2]), F32),
            "lse": np.empty((b, h, rows), F32),
        }
    own = _buffers[key]
    own["both"][...] = pieces.masked(pieces.product(q32, k32) * F32(scale), pieces.visible(q, k, causal))
    m = own["both"].max(-1)
    own["both"] -= np.where(np.isinf(m), F32(0), m)[..., None]
    np.exp(own["both"], out=own["both"])
    l = own["both"].sum(-1)
    own["lse"][...] = pieces.lse_of(m, l)
    out = np.swapaxes(own["out"], 1, 2)
    out[...] = pieces.quotient(own["both"] @ v32, l).astype(q.dtype)
    return {"row_max": m[..., None], "probs": own["both"], "out": out, "lse": own["lse"]}


def workspace_stale_tiles(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """Blocks of 32 rows stop at their last visible tile of 32; the slots beyond keep what the last call left there."""
    q32, k32, v32 = pieces.widened(q, k, v)
    seen = pieces.visible(q, k, causal)
    visits = pieces.tiles(k.shape[2], 32)
    x = pieces.masked(pieces.product(q32, k32) * F32(scale), seen)
    key = _key("stale", q, k)
    if key not in _buffers:
        _buffers[key] = {**pieces.slots(x, v.shape[3], len(visits), np.nan), "out": np.empty_like(q)}
        _buffers[key]["lse"] = np.empty(q.shape[:3], F32)
    own = _buffers[key]
    for first in range(0, q.shape[2], 32):
        some = slice(first, first + 32)
        near = [t for t in visits if seen[some, t[1] : t[2]].any()]
        views = {name: own[name][:, :, some] for name in own}
        m, l, o = pieces.online(x[:, :, some], v32, near, views, cast=q.dtype)
        views["out"][...], views["lse"][...] = pieces.quotient(o, l).astype(q.dtype), pieces.lse_of(m, l)
    return {name: a for name, a in own.items() if name != "probs_cast"}


STYLES = tuple(
    Style(function, "workspace", ALL, units, arithmetic, why)
    for function, units, arithmetic, why in (
        (
            workspace_flash,
            {"block_k": 64},
            CAST,
            "CUDA graphs: outputs live in static buffers that a replay overwrites.",
        ),
        (
            workspace_split_kv,
            {"block_k": 32, "splits": 4, "base2": True},
            CAST,
            "FlashInfer's float workspace buffer, allocated once and cut into partial outputs and their lse.",
        ),
        (workspace_bshd, {"block_k": 512}, IEEE, "out= arguments, as flash_attn_with_kvcache and vLLM pass them."),
        (
            workspace_stale_tiles,
            {"block_k": 32, "skips_masked_tiles": True},
            CAST,
            "Static buffers together with a causal kernel that does not visit masked tiles.",
        ),
    )
)
