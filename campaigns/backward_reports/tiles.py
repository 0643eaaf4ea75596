"""Reports of tiles that are padded, skipped or looked up in another's list."""

import numpy as np

from campaigns.backward_reports.record import (
    GRADIENTS,
    Array,
    Stages,
    dot,
    grouped,
    read,
    recomputed,
    report,
    through,
    tiles,
    visible,
    whole,
)

#: what an accumulator holds that nobody set; the report saw numbers of this size
UNSET = np.float32(1e11)


@report(
    "pytorch issue 196678",
    truth="the padded half of the last tile of 128 keys has scores of 0, not -inf: exp(0 - lse) is inf, times 0 NaN",
    stage="dq",
    shows="keys % 128 = 64, a mask, and a row whose lse is below -88.7",
    case={
        "axes": {"queries": 64, "keys": 64, "dim": 256, "dim_v": 32},
        "numbers": {"scale": 1.0},
        "optional": ("mask",),
    },
    by_values=True,
)
def padded_half_tile(
    q: Array,
    k: Array,
    v: Array,
    out: Array,
    lse: Array,
    dout: Array,
    *,
    scale: float,
    causal: bool,
    mask: Array | None = None,
    bug: bool,
) -> Stages:
    """Padded keys are 0, and dK and dV of them are not stored."""
    of, keys = read(q, k, v, out, dout), k.shape[2]
    made = whole(of, lse, visible(q.shape[2], keys, causal, mask=mask), scale)
    if bug and mask is not None and keys % 128 == 64:
        known = np.where(np.isfinite(lse), lse, np.float32(0))
        padded = np.exp(np.float32(0) - known) * (np.float32(0) - made["delta"])
        of_padded = np.einsum("bhq,d->bhqd", padded, np.zeros(q.shape[3], np.float32))
        made["dq"] = (made["dq"].astype(np.float32) + of_padded).astype(q.dtype)
    return made


@report(
    "flash-attention issue 2623",
    truth="which tiles of queries a tile of keys visits is read from the forward pass's list, not the transposed one",
    stage="probs",
    shows="a causal mask or a window of several tiles",
    case={"axes": {"queries": 96, "keys": 96}, "numbers": {"window_left": 40, "window_right": 0}},
)
def forward_list(
    q: Array,
    k: Array,
    v: Array,
    out: Array,
    lse: Array,
    dout: Array,
    *,
    scale: float,
    causal: bool,
    window_left: int = -1,
    window_right: int = -1,
    bug: bool,
) -> Stages:
    """Forward tiles are 32 queries by 16 keys, backward ones 16 queries by 32 keys."""
    rows, keys = q.shape[2], k.shape[2]
    seen = visible(rows, keys, causal, window_left, window_right)
    forward = [[seen[m, n].any() for n in tiles(keys, 16)] for m in tiles(rows, 32)]
    visited = np.zeros_like(seen)
    for i, n in enumerate(tiles(keys, 32)):
        for j, m in enumerate(tiles(rows, 16)):
            listed = i < len(forward) and j < len(forward[i]) and forward[i][j]
            visited[m, n] = listed if bug else seen[m, n].any()
    return whole(read(q, k, v, out, dout), lse, seen & visited, scale)


@report(
    "cudnn-frontend issue 385",
    truth="accumulators are set to 0 in the first tile alone, which is skipped where all of it is hidden",
    stage="dq",
    shows="a window that leaves the first tile: half of dQ, some rows of dK and dV",
    case={"axes": {"queries": 64, "keys": 160}, "numbers": {"window_left": 70, "window_right": 0}},
)
def unset_accumulators(
    q: Array,
    k: Array,
    v: Array,
    out: Array,
    lse: Array,
    dout: Array,
    *,
    scale: float,
    causal: bool,
    window_left: int = -1,
    window_right: int = -1,
    bug: bool,
) -> Stages:
    """Tiles are 32 by 32; sums go from tile to tile in float32."""
    of, rows, keys = read(q, k, v, out, dout), q.shape[2], k.shape[2]
    seen = visible(rows, keys, causal, window_left, window_right)
    made = whole(of, lse, seen, scale)
    ds, p = (made[name].astype(of.dtype).astype(np.float32) for name in ("dscores", "probs"))
    start = UNSET if bug else np.float32(0)
    dq, dk, dv = (np.full(x.shape, start, np.float32) for x in (of.q, of.k, of.v))
    for i, m in enumerate(tiles(rows, 32)):
        for j, n in enumerate(tiles(keys, 32)):
            if not seen[m, n].any():
                continue
            if j == 0:
                dq[:, :, m] = 0
            if i == 0:
                dk[:, :, n], dv[:, :, n] = 0, 0
            dq[:, :, m] += ds[:, :, m, n] @ of.k[:, :, n]
            dk[:, :, n] += dot(ds[:, :, m, n].swapaxes(-1, -2), of.q[:, :, m].swapaxes(-1, -2))
            dv[:, :, n] += dot(p[:, :, m, n].swapaxes(-1, -2), of.dout[:, :, m].swapaxes(-1, -2))
    sums = dq * np.float32(scale), grouped(of, dk) * np.float32(scale), grouped(of, dv)
    return made | {name: x.astype(of.dtype) for name, x in zip(GRADIENTS, sums, strict=True)}


@report(
    "pytorch issues 158212 and 146377",
    truth="dK and dV of a tile of keys that no query sees are never stored",
    stage="dk",
    shows="a tile of the mask that is empty for all queries: a window, more keys than queries",
    case={"axes": {"queries": 32, "keys": 96}, "numbers": {"window_left": 16, "window_right": 0}},
)
def empty_tile(
    q: Array,
    k: Array,
    v: Array,
    out: Array,
    lse: Array,
    dout: Array,
    *,
    scale: float,
    causal: bool,
    window_left: int = -1,
    window_right: int = -1,
    bug: bool,
) -> Stages:
    """Tiles are 32 keys; memory that nobody wrote holds NaN."""
    seen = visible(q.shape[2], k.shape[2], causal, window_left, window_right)
    made = whole(read(q, k, v, out, dout), lse, seen, scale)
    for n in tiles(k.shape[2], 32):
        if bug and not seen[:, n].any():
            made["dk"][:, :, n], made["dv"][:, :, n] = np.nan, np.nan
    return made


@report(
    "flash-attention issues 334 and 443",
    truth="P of a row without keys is exp(-inf - -inf)",
    stage="probs",
    shows="a query that sees no key: causal, more queries than keys",
    case={"axes": {"queries": 76, "keys": 1}, "numbers": {"causal": 1}},
)
def row_without_keys(
    q: Array, k: Array, v: Array, out: Array, lse: Array, dout: Array, *, scale: float, causal: bool, bug: bool
) -> Stages:
    """Hidden scores are -inf, and lse of such a row is."""
    of, seen = read(q, k, v, out, dout), visible(q.shape[2], k.shape[2], causal)
    qk = dot(of.q, of.k)
    scores = qk * np.float32(scale)
    hidden = np.where(seen, scores, np.float32(-np.inf))
    probs = np.exp(hidden - lse[..., None]) if bug else recomputed(scores, lse, seen)
    return {"qk": qk, "scores": scores, **through(of, scale, probs)}


@report(
    "TransformerEngine issue 3528, flash-attention PR 2490",
    truth="-1, no window to the left, is read as a window of -1, which hides all keys: lse of the forward pass is -inf",
    stage="probs",
    shows="window_left = -1, window_right = 0",
    case={"axes": {"queries": 40, "keys": 56}, "numbers": {"window_left": -1, "window_right": 0}},
)
def no_window(
    q: Array,
    k: Array,
    v: Array,
    out: Array,
    lse: Array,
    dout: Array,
    *,
    scale: float,
    causal: bool,
    window_left: int = -1,
    window_right: int = -1,
    bug: bool,
) -> Stages:
    """Its own forward pass made the same of the window."""
    of, rows, keys = read(q, k, v, out, dout), q.shape[2], k.shape[2]
    qk = dot(of.q, of.k)
    scores = qk * np.float32(scale)
    seen = visible(rows, keys, causal, window_left, window_right)
    if bug:
        seen &= np.arange(keys) >= np.arange(rows)[:, None] + keys - rows - window_left
        hidden = np.where(seen, scores, np.float32(-np.inf))
        own_lse = np.where(seen.any(-1), lse, np.float32(-np.inf))
        probs = np.exp(hidden - own_lse[..., None])
    else:
        probs = recomputed(scores, lse, seen)
    return {"qk": qk, "scores": scores, **through(of, scale, probs)}
