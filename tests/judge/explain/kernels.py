"""FlashAttention in NumPy's float32, with bugs by name."""

from typing import Any

import numpy as np

F32 = np.float32
BLOCK = 16


def attention(bugs: tuple[str, ...] = (), dump: bool = True) -> Any:
    """A kernel with `bugs`, that gives all its stages or out and lse alone."""

    def kernel(q: Any, k: Any, v: Any, *, scale: float, causal: bool) -> dict[str, Any]:
        with np.errstate(all="ignore"):
            return _run(q.astype(F32), k.astype(F32), v.astype(F32), F32(scale), causal, bugs, dump)

    kernel.__name__ = "_".join(("kernel", *bugs)).replace("-", "_")
    return kernel


def _run(q: Any, k: Any, v: Any, scale: Any, causal: bool, bugs: tuple[str, ...], dump: bool) -> dict[str, Any]:
    b, h, m, d = q.shape
    n = k.shape[2]
    heads = np.arange(h) % k.shape[1] if "head-modulo" in bugs else np.arange(h) // (h // k.shape[1])
    k, v = k[:, heads], v[:, heads]
    if "scale-twice" in bugs or ("scale-at-64" in bugs and n == 64):
        scale = scale * scale
    seen = np.arange(n) <= np.arange(m)[:, None] + n - m - ("causal-off" in bugs) if causal else np.ones((m, n), bool)
    qk = np.einsum("bhqd,bhkd->bhqk", q, k)
    s = np.where(seen, qk * scale, F32(-np.inf))
    tiles = -(-n // BLOCK)
    top, corrections, sums = (np.zeros((b, h, m, tiles), F32) for _ in range(3))
    accs, probs = np.zeros((b, h, m, tiles, d), F32), np.zeros_like(s)
    before, total, acc = np.full((b, h, m), -np.inf, F32), np.zeros((b, h, m), F32), np.zeros((b, h, m, d), F32)
    for t in range(tiles):
        keys = slice(t * BLOCK, (t + 1) * BLOCK)
        new = np.maximum(before, s[..., keys].max(-1))
        safe = np.where(new == -np.inf, F32(0), new)
        stale = np.where(before == -np.inf, safe, before) if "stale-max" in bugs else safe
        p = np.exp(s[..., keys] - stale[..., None])
        c = np.where(before == -np.inf, F32(0), np.exp(before - safe))
        tile_sum = p.sum(-1, dtype=F32)
        if "neighbour" in bugs:  # in no list of mistakes: half of what the next row has is added
            tile_sum = tile_sum + F32(0.5) * np.roll(tile_sum, -1, axis=-1)
        total = (total if "sum-not-rescaled" in bugs else total * c) + tile_sum
        acc = acc * c[..., None] + p @ v[:, :, keys]
        before = new
        probs[..., keys], top[..., t], corrections[..., t], sums[..., t], accs[..., t, :] = p, new, c, total, acc
    out = np.where(total[..., None] > 0, acc / total[..., None], F32(0))
    if "wave" in bugs:  # in no list of mistakes
        out = out * (1 + F32(0.25) * np.sin(np.arange(d, dtype=F32) ** 2))
    lse = np.where(total > 0, before + np.log(total), F32(-np.inf))
    if "lse-base-2" in bugs:
        lse = lse * F32(np.log2(np.e))
    contract = {"block_k": BLOCK, "probs_dtype": "float32", "scores_dtype": "float32", "normalisation": "division"}
    ends = {"out": out.astype(F32), "lse": lse.astype(F32), "contract": contract}
    if not dump:
        return ends
    return ends | {
        "qk": qk, "scores": s, "row_max": top, "correction": corrections, "probs": probs, "row_sum": sums, "acc": accs
    }  # fmt: skip
