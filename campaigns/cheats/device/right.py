"""Right attention of unusual style: each sums in float32 or better, and gives 0 where a row sees nothing."""

import math
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache

import torch

try:
    import triton
    import triton.language as tl
except ImportError:
    triton = None

INF = float("inf")


def _expand(q, k, v):
    groups = q.shape[1] // k.shape[1]
    return k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)


def _keep(q, k, causal):
    keep = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device)
    return keep.tril(k.shape[2] - q.shape[2]) if causal else keep


def _scores(q, k, scale, causal):
    scores = q.float() @ k.float().mT * scale
    return scores.masked_fill(~_keep(q, k, causal), -INF)


def _soft(scores):
    top = scores.amax(-1, keepdim=True)
    probs = torch.exp(scores - top.masked_fill(top == -INF, 0.0))
    total = probs.sum(-1, keepdim=True)
    return probs / total.masked_fill(total == 0, 1.0)


def _right(q, k, v, scale, causal):
    k, v = _expand(q, k, v)
    return (_soft(_scores(q, k, scale, causal)) @ v.float()).to(q.dtype)


def _merge(parts):
    """Merges (out, lse) of disjoint keys."""
    lse = torch.stack([p[1] for p in parts])
    weights = torch.exp(lse - lse.amax(0).clamp(min=-1e30))
    total = weights.sum(0)
    out = sum(w * p[0] for w, p in zip(weights, parts, strict=True))
    return out / total.clamp(min=1e-30), torch.log(total.clamp(min=1e-30)) + lse.amax(0)


def _part(scores, v):
    return _soft(scores) @ v.float(), torch.logsumexp(scores, -1, keepdim=True)


def online_odd_tiles(q, k, v, *, scale, causal):
    """Online softmax in tiles of 37 keys and 29 queries."""
    k, v = _expand(q, k, v)
    out = torch.empty(q.shape, dtype=torch.float32, device=q.device)
    every = _scores(q, k, scale, causal)
    for r in range(0, q.shape[2], 29):
        acc = total = 0.0
        top = torch.full((*q.shape[:2], min(29, q.shape[2] - r), 1), -1e30, device=q.device)
        for c in range(0, k.shape[2], 37):
            scores = every[:, :, r : r + 29, c : c + 37]
            new = torch.maximum(top, scores.amax(-1, keepdim=True))
            probs, fix, top = torch.exp(scores - new), torch.exp(top - new), new
            total, acc = total * fix + probs.sum(-1, keepdim=True), acc * fix + probs @ v[:, :, c : c + 37].float()
        out[:, :, r : r + 29] = acc / total.clamp(min=1e-30)
    return out.to(q.dtype)


def two_passes(q, k, v, *, scale, causal):
    """A pass for maximum and sum, and a second one for the output, in tiles of 50 keys."""
    k, v = _expand(q, k, v)
    tiles = _scores(q, k, scale, causal).split(50, -1)
    top = torch.stack([t.amax(-1, keepdim=True) for t in tiles]).amax(0).clamp(min=-1e30)
    total = sum(torch.exp(t - top).sum(-1, keepdim=True) for t in tiles).clamp(min=1e-30)
    out = sum(torch.exp(t - top) / total @ x.float() for t, x in zip(tiles, v.split(50, 2), strict=True))
    return out.to(q.dtype)


def log_space(q, k, v, *, scale, causal):
    """Weights are exp(score - lse)."""
    k, v = _expand(q, k, v)
    scores = _scores(q, k, scale, causal)
    lse = torch.logsumexp(scores, -1, keepdim=True)
    return (torch.exp(scores - lse.clamp(min=-1e30)) @ v.float()).to(q.dtype)


def three_splits_merged(q, k, v, *, scale, causal):
    """Three splits of the keys, merged by their lse."""
    k, v = _expand(q, k, v)
    size = -(-k.shape[2] // 3)
    splits = zip(_scores(q, k, scale, causal).split(size, -1), v.split(size, 2), strict=True)
    return _merge([_part(*s) for s in splits])[0].to(q.dtype)


def tree_of_halves(q, k, v, *, scale, causal):
    """Keys are halved recursively down to 16 and merged in a tree."""
    k, v = _expand(q, k, v)

    def tree(scores, v):
        half = v.shape[2] // 2
        if half < 8:
            return _part(scores, v)
        return _merge([tree(scores[..., :half], v[:, :, :half]), tree(scores[..., half:], v[:, :, half:])])

    return tree(_scores(q, k, scale, causal), v)[0].to(q.dtype)


def library_with_mask(q, k, v, *, scale, causal):
    """PyTorch's attention in float32 with a boolean mask."""
    keep = _keep(q, k, causal)
    k, v = _expand(q, k, v)
    sdpa = torch.nn.functional.scaled_dot_product_attention
    out = sdpa(q.float(), k.float(), v.float(), attn_mask=keep | ~keep.any(-1, keepdim=True), scale=scale)
    return (out * keep.any(-1)[:, None]).to(q.dtype)


def einsum_grouped(q, k, v, *, scale, causal):
    """Grouped heads by einsum over five dimensions, nothing expanded; division comes last."""
    grouped = q.float().unflatten(1, (k.shape[1], -1))
    scores = torch.einsum("bngid,bnjd->bjngi", grouped * scale, k.float())
    keep = _keep(q, k, causal).T[:, None, None]
    scores = torch.where(keep, scores, -INF)
    probs = torch.exp(scores - scores.amax(1, keepdim=True).clamp(min=-1e30))
    out = torch.einsum("bjngi,bnjd->bngid", probs, v.float()) / probs.sum(1).clamp(min=1e-30)[..., None]
    return out.flatten(1, 2).to(q.dtype)


def head_by_head(q, k, v, *, scale, causal):
    """A loop over batch and heads."""
    out, groups = torch.zeros_like(q), q.shape[1] // k.shape[1]
    for b in range(q.shape[0]):
        for h in range(q.shape[1]):
            one = (slice(b, b + 1), slice(h // groups, h // groups + 1))
            out[b, h] = _right(q[b, h][None, None], k[one], v[one], scale, causal)[0, 0]
    return out


def row_by_row_backwards(q, k, v, *, scale, causal):
    """Each row by itself as in decoding, from the last to the first, over the keys that it sees."""
    k, v = _expand(q, k, v)
    out = torch.zeros(q.shape, dtype=q.dtype, device=q.device)
    for i in reversed(range(q.shape[2])):
        seen = k.shape[2] - q.shape[2] + i + 1 if causal else k.shape[2]
        if seen > 0:
            scores = (k[:, :, :seen].float() @ q[:, :, i, :, None].float() * scale).mT
            out[:, :, i] = (_soft(scores) @ v[:, :, :seen].float())[:, :, 0].to(q.dtype)
    return out


def compensated(q, k, v, *, scale, causal):
    """Sums over keys with Kahan's compensation."""
    k, v = _expand(q, k, v)
    scores = _scores(q, k, scale, causal)
    probs = torch.exp(scores - scores.amax(-1, keepdim=True).clamp(min=-1e30))
    v = torch.cat([v.float(), torch.ones_like(v[..., :1], dtype=torch.float32)], -1)
    total = torch.zeros(*q.shape[:3], v.shape[3], device=q.device)
    lost = torch.zeros_like(total)
    for j in range(k.shape[2]):
        term = probs[..., j : j + 1] * v[:, :, j : j + 1] - lost
        new = total + term
        total, lost = new, (new - total) - term
    return (total[..., :-1] / total[..., -1:].clamp(min=1e-30)).to(q.dtype)


def base_2(q, k, v, *, scale, causal):
    """Exponentials in base 2, log2(e) being in the scale of q."""
    k, v = _expand(q, k, v)
    scores = _scores(q.float() * (scale * math.log2(math.e)), k, 1.0, causal)
    probs = torch.exp2(scores - scores.amax(-1, keepdim=True).clamp(min=-1e30))
    return (probs @ v.float() / probs.sum(-1, keepdim=True).clamp(min=1e-30)).to(q.dtype)


def transposed(q, k, v, *, scale, causal):
    """Keys by queries, and the output transposed; returned as a view that is not contiguous."""
    k, v = _expand(q, k, v)
    scores = (k.float() @ q.float().mT * scale).masked_fill(~_keep(q, k, causal).T, -INF)
    return (v.float().mT @ _soft(scores.mT).mT).to(q.dtype).mT


def all_float64(q, k, v, *, scale, causal):
    """float64 inside."""
    k, v = _expand(q, k, v)
    scores = (q.double() @ k.double().mT * scale).masked_fill(~_keep(q, k, causal), -INF)
    return (torch.nan_to_num(torch.softmax(scores, -1), 0.0) @ v.double()).to(q.dtype)


def vmapped(q, k, v, *, scale, causal):
    """One head's function, mapped over heads and batch by torch.vmap."""
    keep = _keep(q, k, causal)
    k, v = _expand(q, k, v)

    def one(q, k, v):
        return _soft((q @ k.T * scale).masked_fill(~keep, -INF)) @ v

    return torch.vmap(torch.vmap(one))(q.float(), k.float(), v.float()).to(q.dtype)


def score_function(q, k, v, *, scale, causal, softcap, window_size=(-1, -1)):
    """Cap, window and causal mask by a function of score and indices, as in flex_attention."""
    k, v = _expand(q, k, v)
    shift, (left, right) = k.shape[2] - q.shape[2], (n if n >= 0 else 1 << 20 for n in window_size)

    def modify(score, i, j):
        score = softcap * torch.tanh(score / softcap) if softcap else score
        seen = (j >= i + shift - left) & (j <= i + shift + (0 if causal else right))
        return torch.where(seen, score, -INF)

    i, j = (torch.arange(x.shape[2], device=q.device) for x in (q, k))
    return (_soft(modify(q.float() @ k.float().mT * scale, i[:, None], j[None])) @ v.float()).to(q.dtype)


def keys_permuted(q, k, v, *, scale, causal):
    """Keys in a shuffled order, another one in each call."""
    k, v = _expand(q, k, v)
    order = torch.randperm(k.shape[2], device=q.device)
    return (_soft(_scores(q, k, scale, causal)[..., order]) @ v[:, :, order].float()).to(q.dtype)


def probs_cast(q, k, v, *, scale, causal):
    """Weights are cast to the inputs' dtype before they meet V, as in FlashAttention."""
    k, v = _expand(q, k, v)
    scores = _scores(q, k, scale, causal)
    probs = torch.exp(scores - scores.amax(-1, keepdim=True).clamp(min=-1e30))
    return (probs.to(q.dtype).float() @ v.float() / probs.sum(-1, keepdim=True).clamp(min=1e-30)).to(q.dtype)


def keys_centred(q, k, v, *, scale, causal):
    """The mean of the keys is taken off them (SageAttention's smoothing), which moves a row's scores alike."""
    return _right(q.float(), k.float() - k.float().mean(2, keepdim=True), v, scale, causal).to(q.dtype)


def gradient_of_lse(q, k, v, *, scale, causal):
    """Weights are the gradient of the lse, by autograd."""
    k, v = _expand(q, k, v)
    scores = _scores(q, k, scale, causal)
    with torch.inference_mode(False), torch.enable_grad():
        scores = scores.detach().clone().masked_fill(scores == -INF, -1e30).requires_grad_()
        (probs,) = torch.autograd.grad(torch.logsumexp(scores, -1).sum(), scores)
    return (probs.detach() * _keep(q, k, causal) @ v.detach().float()).to(q.dtype)


def ones_column(q, k, v, *, scale, causal):
    """The row sum comes from a column of ones beside V; the output has strides of [batch, seqlen, heads, dim]."""
    k, v = _expand(q, k, v)
    scores = _scores(q, k, scale, causal)
    probs = torch.exp(scores - scores.amax(-1, keepdim=True).clamp(min=-1e30))
    both = probs @ torch.nn.functional.pad(v.float(), (0, 1), value=1.0)
    out = both[..., :-1] / both[..., -1:].clamp(min=1e-30)
    return out.to(q.dtype).transpose(1, 2).contiguous().transpose(1, 2)


@lru_cache(32)
def _kept_mask(rows, cols, causal, device):
    with torch.inference_mode(False):
        mask = torch.ones(rows, cols, dtype=torch.bool, device=device)
        return mask.tril(cols - rows) if causal else mask


def mask_cached_threads(q, k, v, *, scale, causal):
    """Masks are kept by shape (which is right), and batch elements are done by threads that are waited for."""
    wide, v = _expand(q, k, v)
    scores = q.float() @ wide.float().mT * scale
    scores = torch.where(_kept_mask(q.shape[2], k.shape[2], causal, q.device), scores, -INF)
    with ThreadPoolExecutor(2) as pool:
        parts = list(pool.map(lambda b: _soft(scores[b]) @ v[b].float(), range(q.shape[0])))
    return torch.stack(parts).to(q.dtype)


_GRAPHS = {}


def gpu_graph_with_copies(q, k, v, *, scale, causal):
    """A CUDA graph for each shape, whose inputs are copied in and whose output is copied out."""
    key = (q.shape, k.shape, q.dtype, scale, causal)
    if key not in _GRAPHS:
        own = [torch.empty(x.shape, dtype=x.dtype, device=x.device).copy_(x) for x in (q, k, v)]
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            _right(*own, scale, causal)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = _right(*own, scale, causal)
        _GRAPHS[key] = graph, own, out
    torch._foreach_copy_(_GRAPHS[key][1], [q, k, v])
    _GRAPHS[key][0].replay()
    return _GRAPHS[key][2].clone()


if triton is not None:

    @triton.jit
    def _split(
        q_at, k_at, v_at, o_at, l_at, scale, qb, qh, qs, qd, kb, kh, ks, kd, vb, vh, vs, vd, heads, groups, rows_q,
        rows_k, size, causal: tl.constexpr, dim: tl.constexpr, tile_m: tl.constexpr, tile_n: tl.constexpr,
    ):  # fmt: skip
        b, h, split = tl.program_id(1) // heads, tl.program_id(1) % heads, tl.program_id(2)
        i, j, d = tl.program_id(0) * tile_m + tl.arange(0, tile_m), tl.arange(0, tile_n), tl.arange(0, dim)
        rows = (i < rows_q)[:, None]
        q = tl.load(q_at + b * qb + h * qh + i[:, None] * qs + d[None] * qd, mask=rows, other=0.0)
        top = tl.full([tile_m], float("-inf"), tl.float32)
        total = tl.zeros([tile_m], tl.float32)
        acc = tl.zeros([tile_m, dim], tl.float32)
        for first in range(split * size, min(split * size + size, rows_k), tile_n):
            at = first + j
            cols = at < min(split * size + size, rows_k)
            base = b * kb + (h // groups) * kh
            k = tl.load(k_at + base + at[None] * ks + d[:, None] * kd, mask=cols[None], other=0.0)
            base = b * vb + (h // groups) * vh
            v = tl.load(v_at + base + at[:, None] * vs + d[None] * vd, mask=cols[:, None], other=0.0)
            keep = cols[None] & (i[:, None] >= 0)
            if causal:
                keep = keep & (at[None] <= i[:, None] + rows_k - rows_q)
            scores = tl.where(keep, tl.dot(q, k, input_precision="ieee") * scale, float("-inf"))
            new = tl.maximum(top, tl.max(scores, 1))
            safe = tl.where(new == float("-inf"), 0.0, new)
            probs, fix = tl.exp(scores - safe[:, None]), tl.exp(top - safe)
            total, top = total * fix + tl.sum(probs, 1), new
            acc = acc * fix[:, None] + tl.dot(probs.to(v.dtype), v, input_precision="ieee")
        at_row = (split * tl.num_programs(1) + tl.program_id(1)) * rows_q + i
        tl.store(o_at + at_row[:, None] * dim + d[None], acc / tl.where(total == 0, 1.0, total)[:, None], mask=rows)
        tl.store(l_at + at_row, tl.where(total == 0, float("-inf"), top + tl.log(total)), mask=i < rows_q)


def _triton(q, k, v, scale, causal, splits, tile_m, tile_n):
    batch, heads, rows, dim = q.shape
    out = torch.empty(splits, *q.shape, device=q.device)
    lse = torch.empty(splits, *q.shape[:3], 1, device=q.device)
    sizes = (heads, heads // k.shape[1], rows, k.shape[2], -(-k.shape[2] // splits), causal, dim, tile_m, tile_n)
    grid = (triton.cdiv(rows, tile_m), batch * heads, splits)
    _split[grid](q, k, v, out, lse, scale, *q.stride(), *k.stride(), *v.stride(), *sizes)
    return _merge(list(zip(out, lse, strict=True)))[0].to(q.dtype)


def triton_flash(q, k, v, *, scale, causal):
    """Triton: online softmax in tiles of 32 by 64, one split."""
    return _triton(q, k, v, scale, causal, 1, 32, 64)


def triton_three_splits(q, k, v, *, scale, causal):
    """Triton: three splits of the keys, at any key, in tiles of 16 by 32, merged by torch."""
    return _triton(q, k, v, scale, causal, 3, 16, 32)
