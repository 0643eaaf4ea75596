"""Functions with one fault each that no chosen input shows by itself: it is read off the user's own run."""

from collections.abc import Callable

import numpy as np

Array = np.ndarray


def _softmax(s: Array) -> Array:
    p = np.exp(s - s.max(-1, keepdims=True))
    return p / p.sum(-1, keepdims=True)


def _amax(x: Array, axes: tuple[int, ...] | int) -> Array:
    return abs(x).max(axes, keepdims=True)


def _page_scales(q: Array, k: Array, v: Array, scale: float) -> Array:
    sizes = _amax(k, 3)
    first = sizes[:, :, np.arange(k.shape[2]) // 16 * 16]
    return _softmax(q @ (k / sizes * first).swapaxes(2, 3) * scale) @ v


def _value_scales(q: Array, k: Array, v: Array, scale: float) -> Array:
    return _softmax(q @ k.swapaxes(2, 3) * scale) @ (v / _amax(v, (2, 3)) * _amax(v, (2, 3))[:, :1])


def _head_numbers(q: Array, k: Array, v: Array, scale: float) -> Array:
    of_v, of_k = np.array([[1, 0.25], [3, 1]], np.float32)[..., None, None]
    return _softmax(q @ (k * of_k).swapaxes(2, 3) * scale) @ (v * of_v)


def _uncapped_tiles(q: Array, k: Array, v: Array, scale: float) -> Array:
    s = q @ k.swapaxes(2, 3) * np.float32(scale)
    return _softmax(np.where(np.arange(k.shape[2]) >= 32, s, 2 * np.tanh(s / 2))) @ v


def _dims(q: Array, k: Array, v: Array, scale: float) -> Array:
    times = np.where(np.arange(q.shape[3]) < 24, scale, 1.0).astype(np.float32)
    return _softmax((q * times) @ k.swapaxes(2, 3)) @ v


def _half_lanes(q: Array, k: Array, v: Array, scale: float) -> Array:
    s = q @ k.swapaxes(2, 3) * scale
    p = np.exp(s - s.max(-1, keepdims=True))
    low = np.arange(k.shape[2]) % 8 < 4
    sums = np.stack([p[..., ~low].sum(-1), p[..., low].sum(-1)], -1)
    return (p @ v) / sums[..., (np.arange(v.shape[3]) % 8 < 4).astype(int)]


def _mean_added(q: Array, k: Array, v: Array, scale: float) -> Array:
    return _softmax(q @ k.swapaxes(2, 3) * scale) @ v - np.float32(0.25) * v.mean(2, keepdims=True)


def _tile_means(q: Array, k: Array, v: Array, scale: float) -> Array:
    tiles = k.reshape(*k.shape[:2], -1, 16, k.shape[3])
    return _softmax(q @ (tiles - tiles.mean(3, keepdims=True)).reshape(k.shape).swapaxes(2, 3) * scale) @ v


def _one_buffer(q: Array, k: Array, v: Array, scale: float) -> Array:
    b, h, n, d = k.shape
    packed = np.stack([k, v], 3).transpose(0, 2, 1, 3, 4)  # batch, token, head, K or V
    read = packed.reshape(b, n, 2, h, d)  # batch, token, K or V, head
    k, v = (read[:, :, x].swapaxes(1, 2) for x in (0, 1))
    return _softmax(q @ k.swapaxes(2, 3) * scale) @ v


def _prefix_lse(q: Array, k: Array, v: Array, scale: float, *, of_query: bool = False) -> Array:
    """Merged of keys 0-31 and the others; the lse of the former is that of their first half."""
    s = q @ k.swapaxes(2, 3) * scale
    lse = [np.log(np.exp(x).sum(-1)) for x in (s[..., :32], s[..., 32:])]
    outs = [_softmax(s[..., :32]) @ v[:, :, :32], _softmax(s[..., 32:]) @ v[:, :, 32:]]
    b, h, rows = lse[0].shape
    lse[0] = lse[0].swapaxes(1, 2).reshape(b, h, rows) if of_query else np.log(np.exp(s[..., :16]).sum(-1))
    share = _softmax(np.stack(lse, -1))
    return share[..., :1] * outs[0] + share[..., 1:] * outs[1]


def _power(q: Array, k: Array, v: Array, scale: float) -> Array:
    s = q @ k.swapaxes(2, 3) * scale
    return _softmax(s) @ v * np.exp(np.float32(0.5) * s.max(-1, keepdims=True))


def _even(q: Array, k: Array, v: Array, scale: float) -> Array:
    s = q @ k.swapaxes(2, 3) * np.float32(scale)
    return _softmax(s * np.tanh(s)) @ v


def _online(q: Array, k: Array, v: Array, scale: float, *, kept: bool) -> Array:
    """Tiles of 16 keys, and of 16 queries whose states go on; or each upper half corrected as the lower half."""
    s = q @ k.swapaxes(2, 3) * np.float32(scale)
    rows, outs = s.shape[2], []
    state = (
        np.full((*s.shape[:2], 16, 1), -np.inf, np.float32),
        *(np.zeros((*s.shape[:2], 16, d), np.float32) for d in (1, v.shape[3])),
    )
    for i in range(0, rows, 16):
        top, total, acc = state
        if not kept:
            top, total, acc = np.full_like(top, -np.inf), 0 * total, 0 * acc
        for j in range(0, s.shape[3], 16):
            part = s[:, :, i : i + 16, j : j + 16]
            new = np.maximum(top, part.max(-1, keepdims=True))
            p, alpha = np.exp(part - new), np.exp(top - new)
            of_acc = alpha if kept else alpha[:, :, np.arange(16) % 8]
            total, acc, top = total * alpha + p.sum(-1, keepdims=True), acc * of_acc + p @ v[:, :, j : j + 16], new
        state = top, total, acc
        outs.append(acc / total)
    return np.concatenate(outs, 2)


#: fault -> the function, the reading that finds it, the stage, and what its words hold
FAULTS: dict[str, tuple[Callable[..., Array], str, str, str]] = {
    "scales of pages": (
        _page_scales, "rescaled", "scores",
        "K is divided by the amax of each key of K but multiplied by that of the first key of each 16",
    ),
    "scales of head 0": (
        _value_scales, "rescaled", "out",
        "V is divided by the amax of a head of V but multiplied by that of head 0",
    ),
    "numbers of heads": (_head_numbers, "rescaled", "scores", "K is multiplied by a factor per head: 3, 1"),
    "tiles without a cap": (_uncapped_tiles, "tiles", "scores", "scores of keys 32-47 in rows 0-31 are not capped"),
    "dims without scale": (_dims, "dims", "scores", "dims 24-31 of q.k are multiplied by 5.6569"),
    "half a reduction": (_half_lanes, "lanes", "row_sum", "reduced by the step lane ^ 1 alone"),
    "a mean too little": (_mean_added, "added", "out", "out has an extra -0.25 times the mean of V over the keys"),
    "means of tiles": (_tile_means, "smoothed", "scores", (
        "the mean of each tile of 16 keys is subtracted from K but "
        "not added back to the scores"
    )),
    "one buffer": (_one_buffer, "pool", "scores", "[batch, token, head, K or V, dim] but read as [batch, token, K"),
    "lse of a half": (_prefix_lse, "shares", "merge_weight", "keys 0-31 are merged with the lse of keys 0-15"),
    "lse by query": (
        lambda *x: _prefix_lse(*x, of_query=True), "shares", "merge_weight",
        "keys 0-31 are merged with the lse of other rows: stored as [query, head]",
    ),
    "an even curve": (_even, "response", "scores", "a score x is replaced by g(x)"),
    "states that go on": (
        lambda *x: _online(*x, kept=True), "kept", "acc",
        "maxima, sums and accumulators are not reset between tiles of 16 queries",
    ),
    "corrected as others": (
        lambda *x: _online(*x, kept=False), "correctedas", "correction",
        "the accumulator of row i is rescaled with the correction of row i - 8, in the upper half of each 16 rows (tiles of 16",
    ),
    "power of a maximum": (_power, "denominator", "row_sum", "the denominator is multiplied by e^(-0.5 times the row's maximum)"),
}  # fmt: skip


def kernel(fault: str) -> Callable[..., Array]:
    """The function, of as many heads of K as of Q."""
    function = FAULTS[fault][0]

    def attention(q: Array, k: Array, v: Array, *, scale: float, causal: bool, softcap: float = 0.0) -> Array:
        return function(q, k, v, scale).astype(q.dtype)

    return attention
