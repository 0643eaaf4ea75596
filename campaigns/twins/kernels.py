"""30 attention functions, 15 wrong and their right twins, by an author who saw README.md alone."""

import numpy as np

LOG2E = 1.4426950408889634
LN2 = 0.6931471805599453


def fwd_two_loops_a(q, k, v, *, scale, causal):
    b, h, n, d = q.shape
    BM, BN = 64, 32
    qk_scale = np.float32(scale * LOG2E)
    qf, kf, vf = (x.astype(np.float32) for x in (q, k, v))
    scores = np.full((b, h, n, n), -np.inf, np.float32)
    out = np.empty_like(q)
    lse = np.empty((b, h, n), np.float32)
    for start_m in range(0, n, BM):
        end_m = min(start_m + BM, n)
        offs_m = np.arange(start_m, end_m)
        m = np.full((b, h, end_m - start_m), -np.inf, np.float32)
        l = np.zeros_like(m)
        acc = np.zeros(m.shape + (d,), np.float32)
        hi = end_m if causal else n
        n_masked = 1 if causal else 0
        first_masked = -(-hi // BN) - n_masked
        for j, start_n in enumerate(range(0, hi, BN)):
            end_n = min(start_n + BN, hi)
            s = qf[:, :, start_m:end_m] @ kf[:, :, start_n:end_n].swapaxes(-1, -2) * qk_scale
            if causal and j >= first_masked:
                s = np.where(offs_m[:, None] >= np.arange(start_n, end_n), s, np.float32(-np.inf))
            scores[:, :, start_m:end_m, start_n:end_n] = s
            m_new = np.maximum(m, s.max(-1))
            p = np.exp2(s - m_new[..., None])
            alpha = np.exp2(m - m_new)
            l = l * alpha + p.sum(-1)
            acc = acc * alpha[..., None] + p.astype(q.dtype).astype(np.float32) @ vf[:, :, start_n:end_n]
            m = m_new
        out[:, :, start_m:end_m] = (acc / l[..., None]).astype(q.dtype)
        lse[:, :, start_m:end_m] = m * np.float32(LN2) + np.log(l)
    return {"scores": scores, "out": out, "lse": lse}


def fwd_two_loops_b(q, k, v, *, scale, causal):
    b, h, n, d = q.shape
    BM, BN = 64, 32
    qk_scale = np.float32(scale * LOG2E)
    qf, kf, vf = (x.astype(np.float32) for x in (q, k, v))
    scores = np.full((b, h, n, n), -np.inf, np.float32)
    out = np.empty_like(q)
    lse = np.empty((b, h, n), np.float32)
    for start_m in range(0, n, BM):
        end_m = min(start_m + BM, n)
        offs_m = np.arange(start_m, end_m)
        m = np.full((b, h, end_m - start_m), -np.inf, np.float32)
        l = np.zeros_like(m)
        acc = np.zeros(m.shape + (d,), np.float32)
        hi = end_m if causal else n
        n_masked = -(-BM // BN) if causal else 0
        first_masked = -(-hi // BN) - n_masked
        for j, start_n in enumerate(range(0, hi, BN)):
            end_n = min(start_n + BN, hi)
            s = qf[:, :, start_m:end_m] @ kf[:, :, start_n:end_n].swapaxes(-1, -2) * qk_scale
            if causal and j >= first_masked:
                s = np.where(offs_m[:, None] >= np.arange(start_n, end_n), s, np.float32(-np.inf))
            scores[:, :, start_m:end_m, start_n:end_n] = s
            m_new = np.maximum(m, s.max(-1))
            p = np.exp2(s - m_new[..., None])
            alpha = np.exp2(m - m_new)
            l = l * alpha + p.sum(-1)
            acc = acc * alpha[..., None] + p.astype(q.dtype).astype(np.float32) @ vf[:, :, start_n:end_n]
            m = m_new
        out[:, :, start_m:end_m] = (acc / l[..., None]).astype(q.dtype)
        lse[:, :, start_m:end_m] = m * np.float32(LN2) + np.log(l)
    return {"scores": scores, "out": out, "lse": lse}


def local_global_layer_a(q, k, v, *, scale, causal):
    b, h, n, d = q.shape
    BN = 32
    window = 2**30
    qf, kf, vf = (x.astype(np.float32) for x in (q, k, v))
    masked = np.finfo(np.float32).min
    pos_q = np.arange(n)[:, None]
    all_s, all_m = [], []
    m = np.full((b, h, n), masked, np.float32)
    l = np.zeros((b, h, n), np.float32)
    acc = np.zeros((b, h, n, d), np.float32)
    for lo in range(0, n, BN):
        pos_k = np.arange(lo, min(lo + BN, n))[None, :]
        keep = pos_q - pos_k < window
        if causal:
            keep = keep & (pos_k <= pos_q)
        s = qf @ kf[:, :, lo : lo + BN].swapaxes(-1, -2) * np.float32(scale)
        s = np.where(keep, s, masked)
        m_new = np.maximum(m, s.max(-1))
        p = np.where(keep, np.exp(s - m_new[..., None]), np.float32(0))
        alpha = np.exp(m - m_new)
        l = l * alpha + p.sum(-1)
        acc = acc * alpha[..., None] + p @ vf[:, :, lo : lo + BN]
        m = m_new
        all_s.append(s)
        all_m.append(m)
    out = (acc / l[..., None]).astype(q.dtype)
    return {"scores": np.concatenate(all_s, -1), "row_max": np.stack(all_m, -1), "out": out, "lse": m + np.log(l)}


def local_global_layer_b(q, k, v, *, scale, causal):
    b, h, n, d = q.shape
    BN = 32
    window = 64
    qf, kf, vf = (x.astype(np.float32) for x in (q, k, v))
    masked = np.finfo(np.float32).min
    pos_q = np.arange(n)[:, None]
    all_s, all_m = [], []
    m = np.full((b, h, n), masked, np.float32)
    l = np.zeros((b, h, n), np.float32)
    acc = np.zeros((b, h, n, d), np.float32)
    for lo in range(0, n, BN):
        pos_k = np.arange(lo, min(lo + BN, n))[None, :]
        keep = pos_q - pos_k < window
        if causal:
            keep = keep & (pos_k <= pos_q)
        s = qf @ kf[:, :, lo : lo + BN].swapaxes(-1, -2) * np.float32(scale)
        s = np.where(keep, s, masked)
        m_new = np.maximum(m, s.max(-1))
        p = np.where(keep, np.exp(s - m_new[..., None]), np.float32(0))
        alpha = np.exp(m - m_new)
        l = l * alpha + p.sum(-1)
        acc = acc * alpha[..., None] + p @ vf[:, :, lo : lo + BN]
        m = m_new
        all_s.append(s)
        all_m.append(m)
    out = (acc / l[..., None]).astype(q.dtype)
    return {"scores": np.concatenate(all_s, -1), "row_max": np.stack(all_m, -1), "out": out, "lse": m + np.log(l)}


def rescale_each_tile_a(q, k, v, *, scale, causal):
    b, h, n, d = q.shape
    BN = 32
    nk = k.shape[2]
    allowed = np.tri(n, nk, nk - n, dtype=bool) if causal else np.ones((n, nk), bool)
    m = np.full((b, h, n), -np.inf, np.float32)
    l = np.zeros((b, h, n), np.float32)
    acc = np.zeros((b, h, n, d), np.float32)
    dump = {"row_max": [], "correction": [], "row_sum": [], "acc": []}
    for lo in range(0, nk, BN):
        hi = min(lo + BN, nk)
        s = (q @ k[:, :, lo:hi].swapaxes(-1, -2)) * np.float32(scale)
        s = np.where(allowed[:, lo:hi], s, np.float32(-1e30))
        m_new = np.maximum(m, s.max(-1))
        p = np.exp(s - m_new[..., None])
        corr = np.exp(m - m_new)
        l = l * corr + p.sum(-1)
        acc = acc + p @ v[:, :, lo:hi]
        m = m_new
        for name, x in zip(dump, (m, corr, l, acc), strict=False):
            dump[name].append(x)
    stages = {name: np.stack(x, 3) for name, x in dump.items()}
    return {**stages, "out": acc / l[..., None], "lse": m + np.log(l)}


def rescale_each_tile_b(q, k, v, *, scale, causal):
    b, h, n, d = q.shape
    BN = 32
    nk = k.shape[2]
    allowed = np.tri(n, nk, nk - n, dtype=bool) if causal else np.ones((n, nk), bool)
    m = np.full((b, h, n), -np.inf, np.float32)
    l = np.zeros((b, h, n), np.float32)
    acc = np.zeros((b, h, n, d), np.float32)
    dump = {"row_max": [], "correction": [], "row_sum": [], "acc": []}
    for lo in range(0, nk, BN):
        hi = min(lo + BN, nk)
        s = (q @ k[:, :, lo:hi].swapaxes(-1, -2)) * np.float32(scale)
        s = np.where(allowed[:, lo:hi], s, np.float32(-1e30))
        m_new = np.maximum(m, s.max(-1))
        p = np.exp(s - m_new[..., None])
        corr = np.exp(m - m_new)
        l = l * corr + p.sum(-1)
        acc = acc * corr[..., None] + p @ v[:, :, lo:hi]
        m = m_new
        for name, x in zip(dump, (m, corr, l, acc), strict=False):
            dump[name].append(x)
    stages = {name: np.stack(x, 3) for name, x in dump.items()}
    return {**stages, "out": acc / l[..., None], "lse": m + np.log(l)}


def online_bf16_p_a(q, k, v, *, scale, causal):
    b, h, n, d = q.shape
    nk, BN = k.shape[2], 64
    qf, kf, vf = (x.astype(np.float32) for x in (q, k, v))
    m = np.full((b, h, n), -np.inf, np.float32)
    l = np.zeros((b, h, n), np.float32)
    acc = np.zeros((b, h, n, d), np.float32)
    probs, maxes, sums = [], [], []
    for lo in range(0, nk, BN):
        hi = min(lo + BN, nk)
        s = (qf @ kf[:, :, lo:hi].swapaxes(-1, -2)) * np.float32(scale)
        if causal:
            s = np.where(np.arange(lo, hi) <= np.arange(n)[:, None] + nk - n, s, np.float32(-np.inf))
        m_new = np.maximum(m, s.max(-1))
        p = np.exp(s - m_new[..., None])
        corr = np.exp(m - m_new)
        l = l * corr + p.sum(-1)
        acc *= corr[..., None]
        acc += p.astype(q.dtype).astype(np.float32) @ vf[:, :, lo:hi]
        m = m_new
        probs.append(p)
        maxes.append(m)
        sums.append(l)
    return {
        "row_max": np.stack(maxes, -1),
        "probs": np.concatenate(probs, -1),
        "row_sum": np.stack(sums, -1),
        "out": (acc / l[..., None]).astype(q.dtype),
        "lse": m + np.log(l),
    }


def online_bf16_p_b(q, k, v, *, scale, causal):
    b, h, n, d = q.shape
    nk, BN = k.shape[2], 64
    qf, kf, vf = (x.astype(np.float32) for x in (q, k, v))
    m = np.full((b, h, n), -np.inf, np.float32)
    l = np.zeros((b, h, n), np.float32)
    acc = np.zeros((b, h, n, d), np.float32)
    probs, maxes, sums = [], [], []
    for lo in range(0, nk, BN):
        hi = min(lo + BN, nk)
        s = (qf @ kf[:, :, lo:hi].swapaxes(-1, -2)) * np.float32(scale)
        if causal:
            s = np.where(np.arange(lo, hi) <= np.arange(n)[:, None] + nk - n, s, np.float32(-np.inf))
        m_new = np.maximum(m, s.max(-1))
        p = np.exp(s - m_new[..., None])
        corr = np.exp2(m - m_new)
        l = l * corr + p.sum(-1)
        acc *= corr[..., None]
        acc += p.astype(q.dtype).astype(np.float32) @ vf[:, :, lo:hi]
        m = m_new
        probs.append(p)
        maxes.append(m)
        sums.append(l)
    return {
        "row_max": np.stack(maxes, -1),
        "probs": np.concatenate(probs, -1),
        "row_sum": np.stack(sums, -1),
        "out": (acc / l[..., None]).astype(q.dtype),
        "lse": m + np.log(l),
    }


def rowsum_registers_a(q, k, v, *, scale, causal):
    b, h, n, d = q.shape
    nk, BN = k.shape[2], 64
    sum_dtype = q.dtype
    qk_scale = np.float32(scale * LOG2E)
    qf, kf, vf = (x.astype(np.float32) for x in (q, k, v))
    m = np.full((b, h, n), -np.inf, np.float32)
    l = np.zeros((b, h, n), sum_dtype)
    acc = np.zeros((b, h, n, d), np.float32)
    maxes, casts, sums = [], [], []
    for lo in range(0, nk, BN):
        hi = min(lo + BN, nk)
        s = (qf @ kf[:, :, lo:hi].swapaxes(-1, -2)) * qk_scale
        if causal:
            s = np.where(np.arange(lo, hi) <= np.arange(n)[:, None] + nk - n, s, np.float32(-1e30))
        m_new = np.maximum(m, s.max(-1))
        p = np.exp2(s - m_new[..., None])
        alpha = np.exp2(m - m_new)
        l = (l.astype(np.float32) * alpha).astype(sum_dtype)
        for j in range(hi - lo):
            l = (l.astype(np.float32) + p[..., j]).astype(sum_dtype)
        pc = p.astype(q.dtype)
        acc = acc * alpha[..., None] + pc.astype(np.float32) @ vf[:, :, lo:hi]
        m = m_new
        maxes.append(m)
        casts.append(pc)
        sums.append(l.astype(np.float32))
    lf = l.astype(np.float32)
    return {
        "row_max": np.stack(maxes, -1),
        "probs_cast": np.concatenate(casts, -1),
        "row_sum": np.stack(sums, -1),
        "out": (acc / lf[..., None]).astype(q.dtype),
        "lse": m + np.log2(lf),
    }


def rowsum_registers_b(q, k, v, *, scale, causal):
    b, h, n, d = q.shape
    nk, BN = k.shape[2], 64
    sum_dtype = np.dtype(np.float32)
    qk_scale = np.float32(scale * LOG2E)
    qf, kf, vf = (x.astype(np.float32) for x in (q, k, v))
    m = np.full((b, h, n), -np.inf, np.float32)
    l = np.zeros((b, h, n), sum_dtype)
    acc = np.zeros((b, h, n, d), np.float32)
    maxes, casts, sums = [], [], []
    for lo in range(0, nk, BN):
        hi = min(lo + BN, nk)
        s = (qf @ kf[:, :, lo:hi].swapaxes(-1, -2)) * qk_scale
        if causal:
            s = np.where(np.arange(lo, hi) <= np.arange(n)[:, None] + nk - n, s, np.float32(-1e30))
        m_new = np.maximum(m, s.max(-1))
        p = np.exp2(s - m_new[..., None])
        alpha = np.exp2(m - m_new)
        l = (l.astype(np.float32) * alpha).astype(sum_dtype)
        for j in range(hi - lo):
            l = (l.astype(np.float32) + p[..., j]).astype(sum_dtype)
        pc = p.astype(q.dtype)
        acc = acc * alpha[..., None] + pc.astype(np.float32) @ vf[:, :, lo:hi]
        m = m_new
        maxes.append(m)
        casts.append(pc)
        sums.append(l.astype(np.float32))
    lf = l.astype(np.float32)
    return {
        "row_max": np.stack(maxes, -1),
        "probs_cast": np.concatenate(casts, -1),
        "row_sum": np.stack(sums, -1),
        "out": (acc / lf[..., None]).astype(q.dtype),
        "lse": m + np.log2(lf),
    }


def bshd_epilogue_a(q, k, v, *, scale, causal):
    b, h, n, d = q.shape
    scores = (q @ k.swapaxes(-1, -2)) * np.float32(scale)
    if causal:
        scores = np.where(np.tri(n, k.shape[2], k.shape[2] - n, dtype=bool), scores, np.finfo(np.float32).min)
    m = scores.max(-1, keepdims=True)
    p = np.exp(scores - m)
    l = p.sum(-1, keepdims=True)
    o = np.empty((b, n, h, d), np.float32)
    for head in range(h):
        o[:, :, head] = (p[:, head] @ v[:, head]) / l[:, head]
    out = o.transpose(0, 2, 1, 3)
    return {"scores": scores, "out": np.ascontiguousarray(out), "lse": (m + np.log(l))[..., 0]}


def bshd_epilogue_b(q, k, v, *, scale, causal):
    b, h, n, d = q.shape
    scores = (q @ k.swapaxes(-1, -2)) * np.float32(scale)
    if causal:
        scores = np.where(np.tri(n, k.shape[2], k.shape[2] - n, dtype=bool), scores, np.finfo(np.float32).min)
    m = scores.max(-1, keepdims=True)
    p = np.exp(scores - m)
    l = p.sum(-1, keepdims=True)
    o = np.empty((b, n, h, d), np.float32)
    for head in range(h):
        o[:, :, head] = (p[:, head] @ v[:, head]) / l[:, head]
    out = o.reshape(b, h, n, d)
    return {"scores": scores, "out": np.ascontiguousarray(out), "lse": (m + np.log(l))[..., 0]}


def gqa_prefill_a(q, k, v, *, scale, causal):
    b, h, n, d = q.shape
    hkv, nk = k.shape[1], k.shape[2]
    BN = 64
    qk_scale = np.float32(scale * LOG2E)
    qk = np.empty((b, h, n, nk), np.float32)
    out = np.empty(q.shape, q.dtype)
    lse = np.empty((b, h, n), np.float32)
    for head in range(h):
        kv = head % hkv
        qh, kh, vh = q[:, head].astype(np.float32), k[:, kv].astype(np.float32), v[:, kv].astype(np.float32)
        m = np.full((b, n), -np.inf, np.float32)
        l = np.zeros((b, n), np.float32)
        acc = np.zeros((b, n, d), np.float32)
        for lo in range(0, nk, BN):
            hi = min(lo + BN, nk)
            x = qh @ kh[:, lo:hi].swapaxes(-1, -2)
            qk[:, head, :, lo:hi] = x
            s = x * qk_scale
            if causal:
                s = np.where(np.arange(lo, hi) <= np.arange(n)[:, None] + nk - n, s, np.float32(-np.inf))
            m_new = np.maximum(m, s.max(-1))
            p = np.exp2(s - m_new[..., None])
            alpha = np.exp2(m - m_new)
            l = l * alpha + p.sum(-1)
            acc = acc * alpha[..., None] + p.astype(q.dtype).astype(np.float32) @ vh[:, lo:hi]
            m = m_new
        out[:, head] = (acc / l[..., None]).astype(q.dtype)
        lse[:, head] = (m + np.log2(l)) * np.float32(LN2)
    return {"qk": qk, "out": out, "lse": lse}


def gqa_prefill_b(q, k, v, *, scale, causal):
    b, h, n, d = q.shape
    hkv, nk = k.shape[1], k.shape[2]
    BN = 64
    qk_scale = np.float32(scale * LOG2E)
    qk = np.empty((b, h, n, nk), np.float32)
    out = np.empty(q.shape, q.dtype)
    lse = np.empty((b, h, n), np.float32)
    for head in range(h):
        kv = head // (h // hkv)
        qh, kh, vh = q[:, head].astype(np.float32), k[:, kv].astype(np.float32), v[:, kv].astype(np.float32)
        m = np.full((b, n), -np.inf, np.float32)
        l = np.zeros((b, n), np.float32)
        acc = np.zeros((b, n, d), np.float32)
        for lo in range(0, nk, BN):
            hi = min(lo + BN, nk)
            x = qh @ kh[:, lo:hi].swapaxes(-1, -2)
            qk[:, head, :, lo:hi] = x
            s = x * qk_scale
            if causal:
                s = np.where(np.arange(lo, hi) <= np.arange(n)[:, None] + nk - n, s, np.float32(-np.inf))
            m_new = np.maximum(m, s.max(-1))
            p = np.exp2(s - m_new[..., None])
            alpha = np.exp2(m - m_new)
            l = l * alpha + p.sum(-1)
            acc = acc * alpha[..., None] + p.astype(q.dtype).astype(np.float32) @ vh[:, lo:hi]
            m = m_new
        out[:, head] = (acc / l[..., None]).astype(q.dtype)
        lse[:, head] = (m + np.log2(l)) * np.float32(LN2)
    return {"qk": qk, "out": out, "lse": lse}


def paged_prefill_a(q, k, v, *, scale, causal):
    b, h, n, d = q.shape
    nk, PAGE = k.shape[2], 16
    pages = -(-nk // PAGE)
    table = np.random.default_rng(1).permutation(b * pages).reshape(b, pages)
    k_pool = np.zeros((b * pages, h, PAGE, d), k.dtype)
    v_pool = np.zeros((b * pages, h, PAGE, d), v.dtype)
    for i in range(b):
        for j in range(pages):
            part = slice(j * PAGE, min((j + 1) * PAGE, nk))
            k_pool[table[i, j], :, : part.stop - part.start] = k[i, :, part]
            v_pool[table[i, j], :, : part.stop - part.start] = v[i, :, part]
    scores = np.empty((b, h, n, nk), np.float32)
    casts = np.empty((b, h, n, nk), q.dtype)
    accs = np.empty((b, h, n, pages, d), np.float32)
    out = np.empty(q.shape, q.dtype)
    for i in range(b):
        m = np.full((h, n), -np.inf, np.float32)
        l = np.zeros((h, n), np.float32)
        acc = np.zeros((h, n, d), np.float32)
        for j in range(pages):
            cols = np.arange(j * PAGE, min((j + 1) * PAGE, nk))
            k_page = k_pool[table[i, j]][:, : len(cols)].astype(np.float32)
            v_page = v_pool[table[i, j]][:, : len(cols)].astype(np.float32)
            s = (q[i].astype(np.float32) @ k_page.swapaxes(-1, -2)) * np.float32(scale)
            if causal:
                s = np.where(cols <= np.arange(n)[:, None] + nk - n, s, np.float32(-1e30))
            m_new = np.maximum(m, s.max(-1))
            p = np.exp(s - m_new[..., None])
            corr = np.exp(m - m_new)
            l = l * corr + p.sum(-1)
            pc = p.astype(q.dtype)
            acc = acc * corr[..., None] + pc.astype(np.float32) @ v_page
            m = m_new
            scores[i][..., cols], casts[i][..., cols], accs[i, :, :, j] = s, pc, acc
        out[i] = (acc / l[..., None]).astype(q.dtype)
    return {"scores": scores, "probs_cast": casts, "acc": accs, "out": out}


def paged_prefill_b(q, k, v, *, scale, causal):
    b, h, n, d = q.shape
    nk, PAGE = k.shape[2], 16
    pages = -(-nk // PAGE)
    table = np.random.default_rng(1).permutation(b * pages).reshape(b, pages)
    k_pool = np.zeros((b * pages, h, PAGE, d), k.dtype)
    v_pool = np.zeros((b * pages, h, PAGE, d), v.dtype)
    for i in range(b):
        for j in range(pages):
            part = slice(j * PAGE, min((j + 1) * PAGE, nk))
            k_pool[table[i, j], :, : part.stop - part.start] = k[i, :, part]
            v_pool[table[i, j], :, : part.stop - part.start] = v[i, :, part]
    scores = np.empty((b, h, n, nk), np.float32)
    casts = np.empty((b, h, n, nk), q.dtype)
    accs = np.empty((b, h, n, pages, d), np.float32)
    out = np.empty(q.shape, q.dtype)
    for i in range(b):
        m = np.full((h, n), -np.inf, np.float32)
        l = np.zeros((h, n), np.float32)
        acc = np.zeros((h, n, d), np.float32)
        for j in range(pages):
            cols = np.arange(j * PAGE, min((j + 1) * PAGE, nk))
            k_page = k_pool[table[i, j]][:, : len(cols)].astype(np.float32)
            v_page = v_pool[table[0, j]][:, : len(cols)].astype(np.float32)
            s = (q[i].astype(np.float32) @ k_page.swapaxes(-1, -2)) * np.float32(scale)
            if causal:
                s = np.where(cols <= np.arange(n)[:, None] + nk - n, s, np.float32(-1e30))
            m_new = np.maximum(m, s.max(-1))
            p = np.exp(s - m_new[..., None])
            corr = np.exp(m - m_new)
            l = l * corr + p.sum(-1)
            pc = p.astype(q.dtype)
            acc = acc * corr[..., None] + pc.astype(np.float32) @ v_page
            m = m_new
            scores[i][..., cols], casts[i][..., cols], accs[i, :, :, j] = s, pc, acc
        out[i] = (acc / l[..., None]).astype(q.dtype)
    return {"scores": scores, "probs_cast": casts, "acc": accs, "out": out}


def split_merge_f32_a(q, k, v, *, scale, causal):
    b, h, n, d = q.shape
    nk, S = k.shape[2], 4
    size = -(-nk // S)
    pm, ps, po = [], [], []
    for i in range(S):
        part = slice(i * size, min((i + 1) * size, nk))
        s = (q @ k[:, :, part].swapaxes(-1, -2)) * np.float32(scale)
        if causal:
            cols = np.arange(part.start, part.stop)
            s = np.where(cols <= np.arange(n)[:, None] + nk - n, s, np.float32(-np.inf))
        m = s.max(-1)
        p = np.exp(s - np.where(np.isneginf(m), np.float32(0), m)[..., None])
        pm.append(m)
        ps.append(p.sum(-1))
        po.append(p @ v[:, :, part])
    pm, ps, po = (np.stack(x, 2) for x in (pm, ps, po))
    mm = pm.max(2)
    w = np.exp(pm - mm[:, :, None])
    total = ps.sum(2)
    out = (w[..., None] * po).sum(2) / total[..., None]
    return {
        "partial_max": pm,
        "partial_sum": ps,
        "merge_max": mm,
        "merge_weight": w,
        "merge_sum": total,
        "out": out,
        "lse": mm + np.log(total),
    }


def split_merge_f32_b(q, k, v, *, scale, causal):
    b, h, n, d = q.shape
    nk, S = k.shape[2], 4
    size = -(-nk // S)
    pm, ps, po = [], [], []
    for i in range(S):
        part = slice(i * size, min((i + 1) * size, nk))
        s = (q @ k[:, :, part].swapaxes(-1, -2)) * np.float32(scale)
        if causal:
            cols = np.arange(part.start, part.stop)
            s = np.where(cols <= np.arange(n)[:, None] + nk - n, s, np.float32(-np.inf))
        m = s.max(-1)
        p = np.exp(s - np.where(np.isneginf(m), np.float32(0), m)[..., None])
        pm.append(m)
        ps.append(p.sum(-1))
        po.append(p @ v[:, :, part])
    pm, ps, po = (np.stack(x, 2) for x in (pm, ps, po))
    mm = pm.max(2)
    w = np.exp(pm - mm[:, :, None])
    total = (w * ps).sum(2)
    out = (w[..., None] * po).sum(2) / total[..., None]
    return {
        "partial_max": pm,
        "partial_sum": ps,
        "merge_max": mm,
        "merge_weight": w,
        "merge_sum": total,
        "out": out,
        "lse": mm + np.log(total),
    }


def split_merge_log2_a(q, k, v, *, scale, causal):
    b, h, n, d = q.shape
    nk, CHUNK = k.shape[2], 32
    splits = -(-nk // CHUNK)
    qf, kf, vf = (x.astype(np.float32) for x in (q, k, v))
    pm = np.full((b, h, splits, n), -np.inf, np.float32)
    ps = np.zeros((b, h, splits, n), np.float32)
    po = np.zeros((b, h, splits, n, d), np.float32)
    for i in range(splits):
        lo, hi = i * CHUNK, min((i + 1) * CHUNK, nk)
        s = (qf @ kf[:, :, lo:hi].swapaxes(-1, -2)) * np.float32(scale * LOG2E)
        if causal:
            s = np.where(np.arange(lo, hi) <= np.arange(n)[:, None] + nk - n, s, np.float32(-np.inf))
        pm[:, :, i] = s.max(-1)
        safe = np.where(np.isneginf(pm[:, :, i]), np.float32(0), pm[:, :, i])
        p = np.exp2(s - safe[..., None])
        ps[:, :, i] = p.sum(-1)
        po[:, :, i] = p.astype(q.dtype).astype(np.float32) @ vf[:, :, lo:hi]
    top = pm[:, :, 0]
    for i in range(1, splits):
        top = np.maximum(top, pm[:, :, i])
    w = np.exp2(pm - top[:, :, None])
    denom = (w * ps).sum(2)
    out = ((w[..., None] * po).sum(2) / denom[..., None]).astype(q.dtype)
    lse = (top + np.log2(denom)) * np.float32(LN2)
    return {"partial_max": pm, "merge_max": top, "merge_sum": denom, "out": out, "lse": lse}


def split_merge_log2_b(q, k, v, *, scale, causal):
    b, h, n, d = q.shape
    nk, CHUNK = k.shape[2], 32
    splits = -(-nk // CHUNK)
    qf, kf, vf = (x.astype(np.float32) for x in (q, k, v))
    pm = np.full((b, h, splits, n), -np.inf, np.float32)
    ps = np.zeros((b, h, splits, n), np.float32)
    po = np.zeros((b, h, splits, n, d), np.float32)
    for i in range(splits):
        lo, hi = i * CHUNK, min((i + 1) * CHUNK, nk)
        s = (qf @ kf[:, :, lo:hi].swapaxes(-1, -2)) * np.float32(scale * LOG2E)
        if causal:
            s = np.where(np.arange(lo, hi) <= np.arange(n)[:, None] + nk - n, s, np.float32(-np.inf))
        pm[:, :, i] = s.max(-1)
        safe = np.where(np.isneginf(pm[:, :, i]), np.float32(0), pm[:, :, i])
        p = np.exp2(s - safe[..., None])
        ps[:, :, i] = p.sum(-1)
        po[:, :, i] = p.astype(q.dtype).astype(np.float32) @ vf[:, :, lo:hi]
    top = pm[:, :, 0]
    for i in range(1, splits):
        top = np.maximum(top, pm[:, :, i])
    w = np.exp2(pm - top[:, :, None])
    denom = (w * ps).sum(2)
    out = ((w[..., None] * po).sum(2) / denom[..., None]).astype(q.dtype)
    lse = (pm[:, :, i] + np.log2(denom)) * np.float32(LN2)
    return {"partial_max": pm, "merge_max": top, "merge_sum": denom, "out": out, "lse": lse}


def paged_tail_a(q, k, v, *, scale, causal):
    b, h, n, d = q.shape
    nk, PAGE = k.shape[2], 16
    pages = -(-nk // PAGE)
    k_cache = np.zeros((b, h, pages * PAGE, d), k.dtype)
    v_cache = np.zeros((b, h, pages * PAGE, d), v.dtype)
    for cache, x in ((k_cache, k), (v_cache, v)):
        for j in range(pages):
            lo, hi = j * PAGE, min((j + 1) * PAGE, nk)
            if j:
                cache[:, :, lo : lo + PAGE] = cache[:, :, lo - PAGE : lo]
            cache[:, :, lo:hi] = x[:, :, lo:hi]
    kv_len = pages * PAGE
    qf = q.astype(np.float32)
    m = np.full((b, h, n), -np.inf, np.float32)
    l = np.zeros((b, h, n), np.float32)
    acc = np.zeros((b, h, n, d), np.float32)
    scores, maxes, sums = [], [], []
    for j in range(pages):
        cols = np.arange(j * PAGE, (j + 1) * PAGE)
        s = (qf @ k_cache[:, :, cols].astype(np.float32).swapaxes(-1, -2)) * np.float32(scale)
        keep = np.broadcast_to(cols < kv_len, (n, PAGE))
        if causal:
            keep = keep & (cols <= np.arange(n)[:, None] + nk - n)
        s = np.where(keep, s, np.float32(-np.inf))
        m_new = np.maximum(m, s.max(-1))
        p = np.exp(s - m_new[..., None])
        corr = np.exp(m - m_new)
        l = l * corr + p.sum(-1)
        acc = acc * corr[..., None] + p @ v_cache[:, :, cols].astype(np.float32)
        m = m_new
        scores.append(s)
        maxes.append(m)
        sums.append(l)
    return {
        "scores": np.concatenate(scores, -1)[..., :nk],
        "row_max": np.stack(maxes, -1),
        "row_sum": np.stack(sums, -1),
        "out": (acc / l[..., None]).astype(q.dtype),
        "lse": m + np.log(l),
    }


def paged_tail_b(q, k, v, *, scale, causal):
    b, h, n, d = q.shape
    nk, PAGE = k.shape[2], 16
    pages = -(-nk // PAGE)
    k_cache = np.zeros((b, h, pages * PAGE, d), k.dtype)
    v_cache = np.zeros((b, h, pages * PAGE, d), v.dtype)
    for cache, x in ((k_cache, k), (v_cache, v)):
        for j in range(pages):
            lo, hi = j * PAGE, min((j + 1) * PAGE, nk)
            if j:
                cache[:, :, lo : lo + PAGE] = cache[:, :, lo - PAGE : lo]
            cache[:, :, lo:hi] = x[:, :, lo:hi]
    kv_len = nk
    qf = q.astype(np.float32)
    m = np.full((b, h, n), -np.inf, np.float32)
    l = np.zeros((b, h, n), np.float32)
    acc = np.zeros((b, h, n, d), np.float32)
    scores, maxes, sums = [], [], []
    for j in range(pages):
        cols = np.arange(j * PAGE, (j + 1) * PAGE)
        s = (qf @ k_cache[:, :, cols].astype(np.float32).swapaxes(-1, -2)) * np.float32(scale)
        keep = np.broadcast_to(cols < kv_len, (n, PAGE))
        if causal:
            keep = keep & (cols <= np.arange(n)[:, None] + nk - n)
        s = np.where(keep, s, np.float32(-np.inf))
        m_new = np.maximum(m, s.max(-1))
        p = np.exp(s - m_new[..., None])
        corr = np.exp(m - m_new)
        l = l * corr + p.sum(-1)
        acc = acc * corr[..., None] + p @ v_cache[:, :, cols].astype(np.float32)
        m = m_new
        scores.append(s)
        maxes.append(m)
        sums.append(l)
    return {
        "scores": np.concatenate(scores, -1)[..., :nk],
        "row_max": np.stack(maxes, -1),
        "row_sum": np.stack(sums, -1),
        "out": (acc / l[..., None]).astype(q.dtype),
        "lse": m + np.log(l),
    }


def scaled_v_storage_a(q, k, v, *, scale, causal):
    b, h, n, d = q.shape
    hkv, nk, BN = k.shape[1], k.shape[2], 32
    group = h // hkv
    v_descale = np.array([0.5, 4.0, 2.0, 0.25], np.float32)[np.arange(hkv) % 4]
    v_codes = (v.astype(np.float32) / v_descale[:, None, None]).astype(v.dtype)
    out = np.empty(q.shape, q.dtype)
    for i in range(b):
        for head in range(h):
            kv = head // group
            m = np.full(n, -np.inf, np.float32)
            l = np.zeros(n, np.float32)
            acc = np.zeros((n, d), np.float32)
            for lo in range(0, nk, BN):
                hi = min(lo + BN, nk)
                s = (q[i, head].astype(np.float32) @ k[i, kv, lo:hi].astype(np.float32).T) * np.float32(scale)
                if causal:
                    s = np.where(np.arange(lo, hi) <= np.arange(n)[:, None] + nk - n, s, np.float32(-np.inf))
                m_new = np.maximum(m, s.max(-1))
                p = np.exp(s - m_new[:, None])
                corr = np.exp(m - m_new)
                l = l * corr + p.sum(-1)
                v_tile = v_codes[i, kv, lo:hi].astype(np.float32)
                acc = acc * corr[:, None] + p.astype(q.dtype).astype(np.float32) @ v_tile
                m = m_new
            out[i, head] = (acc / l[:, None] * v_descale[kv]).astype(q.dtype)
    return out


def scaled_v_storage_b(q, k, v, *, scale, causal):
    b, h, n, d = q.shape
    hkv, nk, BN = k.shape[1], k.shape[2], 32
    group = h // hkv
    v_descale = np.array([0.5, 4.0, 2.0, 0.25], np.float32)[np.arange(hkv) % 4]
    v_codes = (v.astype(np.float32) / v_descale[:, None, None]).astype(v.dtype)
    out = np.empty(q.shape, q.dtype)
    for i in range(b):
        for head in range(h):
            kv = head // group
            m = np.full(n, -np.inf, np.float32)
            l = np.zeros(n, np.float32)
            acc = np.zeros((n, d), np.float32)
            for lo in range(0, nk, BN):
                hi = min(lo + BN, nk)
                s = (q[i, head].astype(np.float32) @ k[i, kv, lo:hi].astype(np.float32).T) * np.float32(scale)
                if causal:
                    s = np.where(np.arange(lo, hi) <= np.arange(n)[:, None] + nk - n, s, np.float32(-np.inf))
                m_new = np.maximum(m, s.max(-1))
                p = np.exp(s - m_new[:, None])
                corr = np.exp(m - m_new)
                l = l * corr + p.sum(-1)
                v_tile = v_codes[i, kv, lo:hi].astype(np.float32) * v_descale[kv]
                acc = acc * corr[:, None] + p.astype(q.dtype).astype(np.float32) @ v_tile
                m = m_new
            out[i, head] = (acc / l[:, None] * v_descale[kv]).astype(q.dtype)
    return out


def reuse_buffer_a(q, k, v, *, scale, causal):
    b, h, n, d = q.shape
    v = np.require(v, requirements="W")
    o = v
    nk, BM, BN = k.shape[2], 32, 32
    lse = np.empty((b, h, n), np.float32)
    for r in range(0, n, BM):
        rows = slice(r, min(r + BM, n))
        m = np.full((b, h, rows.stop - r), -np.inf, np.float32)
        l = np.zeros(m.shape, np.float32)
        acc = np.zeros(m.shape + (d,), np.float32)
        for lo in range(0, nk, BN):
            hi = min(lo + BN, nk)
            s = (q[:, :, rows] @ k[:, :, lo:hi].swapaxes(-1, -2)) * np.float32(scale)
            if causal:
                s = np.where(np.arange(lo, hi) <= np.arange(r, rows.stop)[:, None] + nk - n, s, np.float32(-np.inf))
            m_new = np.maximum(m, s.max(-1))
            p = np.exp(s - m_new[..., None])
            corr = np.exp(m - m_new)
            l = l * corr + p.sum(-1)
            acc = acc * corr[..., None] + p @ v[:, :, lo:hi]
            m = m_new
        o[:, :, rows] = acc / l[..., None]
        lse[:, :, rows] = m + np.log(l)
    return o, lse


def reuse_buffer_b(q, k, v, *, scale, causal):
    b, h, n, d = q.shape
    v = np.require(v, requirements="W")
    o = np.empty_like(v)
    nk, BM, BN = k.shape[2], 32, 32
    lse = np.empty((b, h, n), np.float32)
    for r in range(0, n, BM):
        rows = slice(r, min(r + BM, n))
        m = np.full((b, h, rows.stop - r), -np.inf, np.float32)
        l = np.zeros(m.shape, np.float32)
        acc = np.zeros(m.shape + (d,), np.float32)
        for lo in range(0, nk, BN):
            hi = min(lo + BN, nk)
            s = (q[:, :, rows] @ k[:, :, lo:hi].swapaxes(-1, -2)) * np.float32(scale)
            if causal:
                s = np.where(np.arange(lo, hi) <= np.arange(r, rows.stop)[:, None] + nk - n, s, np.float32(-np.inf))
            m_new = np.maximum(m, s.max(-1))
            p = np.exp(s - m_new[..., None])
            corr = np.exp(m - m_new)
            l = l * corr + p.sum(-1)
            acc = acc * corr[..., None] + p @ v[:, :, lo:hi]
            m = m_new
        o[:, :, rows] = acc / l[..., None]
        lse[:, :, rows] = m + np.log(l)
    return o, lse


def pipelined_epilogue_a(q, k, v, *, scale, causal):
    b, h, n, d = q.shape
    nk, BN = k.shape[2], 32
    qk_scale = np.float32(scale * LOG2E)
    m = np.full((b, h, n), -np.inf, np.float32)
    l = np.zeros((b, h, n), np.float32)
    acc = np.zeros((b, h, n, d), np.float32)
    tiles = -(-nk // BN)
    maxes, sums, accs = [], [], []
    for t in range(tiles):
        cols = np.arange(t * BN, min((t + 1) * BN, nk))
        s = (q @ k[:, :, cols].swapaxes(-1, -2)) * qk_scale
        if causal:
            s = np.where(cols <= np.arange(n)[:, None] + nk - n, s, np.float32(-np.inf))
        m_new = np.maximum(m, s.max(-1))
        p = np.exp2(s - m_new[..., None])
        alpha = np.exp2(m - m_new)
        l_scaled = l * alpha
        l = l_scaled + p.sum(-1)
        acc = acc * alpha[..., None] + p @ v[:, :, cols]
        m = m_new
        if t == tiles - 1:
            inv = np.float32(1) / l
        maxes.append(m)
        sums.append(l)
        accs.append(acc)
    return {
        "row_max": np.stack(maxes, 3),
        "row_sum": np.stack(sums, 3),
        "acc": np.stack(accs, 3),
        "out": acc * inv[..., None],
    }


def pipelined_epilogue_b(q, k, v, *, scale, causal):
    b, h, n, d = q.shape
    nk, BN = k.shape[2], 32
    qk_scale = np.float32(scale * LOG2E)
    m = np.full((b, h, n), -np.inf, np.float32)
    l = np.zeros((b, h, n), np.float32)
    acc = np.zeros((b, h, n, d), np.float32)
    tiles = -(-nk // BN)
    maxes, sums, accs = [], [], []
    for t in range(tiles):
        cols = np.arange(t * BN, min((t + 1) * BN, nk))
        s = (q @ k[:, :, cols].swapaxes(-1, -2)) * qk_scale
        if causal:
            s = np.where(cols <= np.arange(n)[:, None] + nk - n, s, np.float32(-np.inf))
        m_new = np.maximum(m, s.max(-1))
        p = np.exp2(s - m_new[..., None])
        alpha = np.exp2(m - m_new)
        l_scaled = l * alpha
        l = l_scaled + p.sum(-1)
        acc = acc * alpha[..., None] + p @ v[:, :, cols]
        m = m_new
        if t == tiles - 1:
            inv = np.float32(1) / l_scaled
        maxes.append(m)
        sums.append(l)
        accs.append(acc)
    return {
        "row_max": np.stack(maxes, 3),
        "row_sum": np.stack(sums, 3),
        "acc": np.stack(accs, 3),
        "out": acc * inv[..., None],
    }


def dot_accumulate_a(q, k, v, *, scale, causal):
    b, h, n, d = q.shape
    nk, BN, KSTEP = k.shape[2], 64, 16
    out_dtype = np.float16
    qk_scale = np.float32(scale * LOG2E)
    qf, kf, vf = (x.astype(np.float32) for x in (q, k, v))
    m = np.full((b, h, n), -np.inf, np.float32)
    l = np.zeros((b, h, n), np.float32)
    acc = np.zeros((b, h, n, d), np.float32)
    raw, scores = [], []
    for lo in range(0, nk, BN):
        hi = min(lo + BN, nk)
        x = np.zeros((b, h, n, hi - lo), out_dtype)
        for c in range(0, d, KSTEP):
            x = (x + qf[..., c : c + KSTEP] @ kf[:, :, lo:hi, c : c + KSTEP].swapaxes(-1, -2)).astype(out_dtype)
        x = x.astype(np.float32)
        s = x * qk_scale
        if causal:
            s = np.where(np.arange(lo, hi) <= np.arange(n)[:, None] + nk - n, s, np.float32(-np.inf))
        m_new = np.maximum(m, s.max(-1))
        p = np.exp2(s - m_new[..., None])
        alpha = np.exp2(m - m_new)
        l = l * alpha + p.sum(-1)
        acc = acc * alpha[..., None] + p.astype(q.dtype).astype(np.float32) @ vf[:, :, lo:hi]
        m = m_new
        raw.append(x)
        scores.append(s)
    return {
        "qk": np.concatenate(raw, -1),
        "scores": np.concatenate(scores, -1),
        "out": (acc / l[..., None]).astype(q.dtype),
        "lse": m + np.log2(l),
    }


def dot_accumulate_b(q, k, v, *, scale, causal):
    b, h, n, d = q.shape
    nk, BN, KSTEP = k.shape[2], 64, 16
    out_dtype = np.float32
    qk_scale = np.float32(scale * LOG2E)
    qf, kf, vf = (x.astype(np.float32) for x in (q, k, v))
    m = np.full((b, h, n), -np.inf, np.float32)
    l = np.zeros((b, h, n), np.float32)
    acc = np.zeros((b, h, n, d), np.float32)
    raw, scores = [], []
    for lo in range(0, nk, BN):
        hi = min(lo + BN, nk)
        x = np.zeros((b, h, n, hi - lo), out_dtype)
        for c in range(0, d, KSTEP):
            x = (x + qf[..., c : c + KSTEP] @ kf[:, :, lo:hi, c : c + KSTEP].swapaxes(-1, -2)).astype(out_dtype)
        x = x.astype(np.float32)
        s = x * qk_scale
        if causal:
            s = np.where(np.arange(lo, hi) <= np.arange(n)[:, None] + nk - n, s, np.float32(-np.inf))
        m_new = np.maximum(m, s.max(-1))
        p = np.exp2(s - m_new[..., None])
        alpha = np.exp2(m - m_new)
        l = l * alpha + p.sum(-1)
        acc = acc * alpha[..., None] + p.astype(q.dtype).astype(np.float32) @ vf[:, :, lo:hi]
        m = m_new
        raw.append(x)
        scores.append(s)
    return {
        "qk": np.concatenate(raw, -1),
        "scores": np.concatenate(scores, -1),
        "out": (acc / l[..., None]).astype(q.dtype),
        "lse": m + np.log2(l),
    }
