"""Right attention kernels of unusual style. `f(q, k, v, *, scale, causal)`, NumPy only.

right_probs_16bit rounds unnormalised probabilities (largest 1) to q's dtype, as flash-attention does.
"""

import numpy as np

F = np.float32


def _up(q, k, v, t=F):
    g = q.shape[1] // k.shape[1]
    return q.astype(t), np.repeat(k.astype(t), g, axis=1), np.repeat(v.astype(t), g, axis=1)


def _seen(sq, sk, causal, i0=0, i1=None, j0=0, j1=None):
    i = np.arange(i0, sq if i1 is None else i1)[:, None] + (sk - sq)
    j = np.arange(j0, sk if j1 is None else j1)[None]
    return (j <= i) if causal else np.ones((i.size, j.size), bool)


def _online(q, k, v, scale, causal, order, *, width, base2=False, cast=None):
    """Online softmax over tiles of keys, in the order of tiles that `order` gives."""
    a, b, c = _up(q, k, v)
    sq, sk = q.shape[2], k.shape[2]
    m = np.full(q.shape[:3], -np.inf, F)
    n = np.zeros(q.shape[:3], F)
    acc = np.zeros((*q.shape[:3], v.shape[3]), F)
    f, exp = (F(scale * np.log2(np.e)), np.exp2) if base2 else (F(scale), np.exp)
    for t in order(-(-sk // width)):
        j0, j1 = t * width, min(t * width + width, sk)
        s = a @ b[:, :, j0:j1].swapaxes(-1, -2) * f
        s = np.where(_seen(sq, sk, causal, j0=j0, j1=j1), s, F(-np.inf))
        new = np.maximum(m, s.max(-1))
        safe = np.where(np.isfinite(new), new, F(0))
        p, r = exp(s - safe[..., None]), exp(m - safe)
        n = n * r + p.sum(-1)
        if cast is not None:
            p = p.astype(cast).astype(F)
        acc = acc * r[..., None] + p @ c[:, :, j0:j1]
        m = new
    return (acc / np.where(n == 0, F(1), n)[..., None]).astype(q.dtype)


def right_online_tiles(q, k, v, *, scale, causal):
    return _online(q, k, v, scale, causal, range, width=48)


def right_backwards_tiles(q, k, v, *, scale, causal):
    return _online(q, k, v, scale, causal, lambda n: range(n - 1, -1, -1), width=32)


def right_exp2_folded(q, k, v, *, scale, causal):
    return _online(q, k, v, scale, causal, range, width=64, base2=True)


def right_shuffled_tiles(q, k, v, *, scale, causal):
    return _online(q, k, v, scale, causal, lambda n: np.random.default_rng(n).permutation(n), width=16, base2=True)


def right_probs_16bit(q, k, v, *, scale, causal):
    return _online(q, k, v, scale, causal, range, width=128, cast=q.dtype)


def right_split_merge(q, k, v, *, scale, causal):
    """Five splits of the keys, each normalised, merged by their log-sum-exp."""
    a, b, c = _up(q, k, v)
    sq, sk = q.shape[2], k.shape[2]
    outs, lses = [], []
    for part in np.array_split(np.arange(sk), min(5, sk)):
        j0, j1 = part[0], part[-1] + 1
        s = np.where(_seen(sq, sk, causal, j0=j0, j1=j1), a @ b[:, :, j0:j1].swapaxes(-1, -2) * F(scale), F(-np.inf))
        m = s.max(-1, keepdims=True)
        p = np.exp(s - np.where(np.isfinite(m), m, F(0)))
        n = p.sum(-1, keepdims=True)
        outs.append(p @ c[:, :, j0:j1] / np.where(n == 0, F(1), n))
        lses.append((m, n))
    top = np.max([m for m, _ in lses], 0)
    top = np.where(np.isfinite(top), top, F(0))
    w = [np.exp(m - top) * n for m, n in lses]
    total = sum(w)
    out = sum(o * x for o, x in zip(outs, w, strict=True)) / np.where(total == 0, F(1), total)
    return out.astype(q.dtype)


def right_row_blocks(q, k, v, *, scale, causal):
    """Blocks of 40 query rows from the bottom up; keys that no row of a block sees are not touched."""
    a, b, c = _up(q, k, v)
    sq, sk = q.shape[2], k.shape[2]
    out = np.zeros((*q.shape[:3], v.shape[3]), q.dtype)
    for i0 in reversed(range(0, sq, 40)):
        i1 = min(i0 + 40, sq)
        j1 = min(sk, i1 + sk - sq) if causal else sk
        if j1 <= 0:
            continue
        s = (a[:, :, i0:i1] * F(scale)) @ b[:, :, :j1].swapaxes(-1, -2)
        s = np.where(_seen(sq, sk, causal, i0, i1, 0, j1), s, F(-np.inf))
        m = s.max(-1, keepdims=True)
        p = np.exp(s - np.where(np.isfinite(m), m, F(0)))
        n = p.sum(-1, keepdims=True)
        out[:, :, i0:i1] = (p @ c[:, :, :j1] / np.where(n == 0, F(1), n)).astype(q.dtype)
    return out


def right_grouped_einsum(q, k, v, *, scale, causal):
    """No repeat of K and V: the heads of a group are an axis of their own; float64 inside."""
    b, h, sq, d = q.shape
    hk, sk = k.shape[1:3]
    a = q.astype(np.float64).reshape(b, hk, h // hk, sq, d)
    s = np.matmul(a, k.astype(np.float64)[:, :, None].swapaxes(-1, -2)) * scale
    s = np.where(_seen(sq, sk, causal), s, -np.inf)
    m = np.maximum(s.max(-1, keepdims=True), -1e300)
    p = np.exp(s - m)
    p /= np.maximum(p.sum(-1, keepdims=True), 1e-300)
    return np.matmul(p, v.astype(np.float64)[:, :, None]).reshape(b, h, sq, -1).astype(q.dtype)


def right_transposed(q, k, v, *, scale, causal):
    """S^T = K Q^T, softmax down the columns, O^T = V^T P^T (as on Blackwell); keys in reversed order."""
    a, b, c = _up(q, k, v)
    b, c = b[:, :, ::-1], c[:, :, ::-1]
    ok = _seen(q.shape[2], k.shape[2], causal).T[::-1]
    s = np.where(ok, (b @ a.swapaxes(-1, -2)) * F(scale), F(-np.inf))
    m = s.max(-2, keepdims=True)
    p = np.exp(s - np.where(np.isfinite(m), m, F(0)))
    n = p.sum(-2, keepdims=True)
    o = (c.swapaxes(-1, -2) @ p) / np.where(n == 0, F(1), n)
    return np.ascontiguousarray(o.swapaxes(-1, -2)).astype(q.dtype)


def right_log_domain(q, k, v, *, scale, causal):
    """lse first (pairwise logaddexp tree in float64), then exp(s - lse) @ V in one pass."""
    a, b, c = _up(q, k, v, np.float64)
    s = np.where(_seen(q.shape[2], k.shape[2], causal), a @ b.swapaxes(-1, -2) * scale, -np.inf)
    lse = np.logaddexp.reduce(s, axis=-1, keepdims=True)
    return (np.exp(s - np.where(np.isfinite(lse), lse, 0)) @ c).astype(q.dtype)


def right_padded_sentinel(q, k, v, *, scale, causal):
    """Pads to multiples of 64 with garbage keys that are masked, finite -3e38 for -inf, rows cut off after."""
    a, b, c = _up(q, k, v)
    sq, sk = q.shape[2], k.shape[2]
    pad = -sk % 64
    b, c = (np.pad(x, ((0, 0), (0, 0), (0, pad), (0, 0)), constant_values=7) for x in (b, c))
    ok = np.pad(_seen(sq, sk, causal), ((0, 0), (0, pad)))
    s = np.where(ok, a @ b.swapaxes(-1, -2) * F(scale), F(-3e38))
    p = np.where(ok, np.exp(s - s.max(-1, keepdims=True)), F(0))
    n = p.sum(-1, keepdims=True)
    return (p @ c / np.maximum(n, F(1e-37))).astype(q.dtype)


def right_heads_one_by_one(q, k, v, *, scale, causal):
    """A loop over batch and head; sqrt(scale) into both factors; output buffer in Fortran order."""
    r = F(np.sqrt(abs(scale)))
    out = np.zeros(q.shape, q.dtype, order="F")
    ok = _seen(q.shape[2], k.shape[2], causal)
    g = q.shape[1] // k.shape[1]
    for i in np.ndindex(*q.shape[:2]):
        j = (i[0], i[1] // g)
        s = (q[i].astype(F) * (r * F(np.sign(scale)))) @ (k[j].astype(F) * r).T
        s = np.where(ok, s, F(-np.inf))
        m = s.max(-1, keepdims=True)
        p = np.exp(s - np.where(np.isfinite(m), m, F(0)))
        n = p.sum(-1, keepdims=True)
        out[i] = (p / np.where(n == 0, F(1), n) @ v[j].astype(F)).astype(q.dtype)
    return out
