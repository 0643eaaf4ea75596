"""Lazy attention: work that is left out, or done on less than it should read."""

import torch


def _expand(q, k, v):
    groups = q.shape[1] // k.shape[1]
    return k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)


def _keep(q, k, causal, window=(-1, -1), shift=0):
    i = torch.arange(q.shape[2], device=q.device)[:, None] + (k.shape[2] - q.shape[2])
    j = torch.arange(k.shape[2], device=q.device)[None]
    keep = j - i < 1 << 20
    if causal:
        keep = keep & (j <= i + shift)
    if window[0] >= 0:
        keep = keep & (j >= i - window[0])
    if window[1] >= 0:
        keep = keep & (j <= i + window[1])
    return keep


def _scores(q, k, scale, causal):
    scores = q.float() @ k.float().mT * scale
    return scores.masked_fill(~_keep(q, k, causal), float("-inf"))


def _soft(scores):
    top = scores.amax(-1, keepdim=True)
    probs = torch.exp(scores - top.masked_fill(top == float("-inf"), 0.0))
    total = probs.sum(-1, keepdim=True)
    return probs / total.masked_fill(total == 0, 1.0)


def _right(q, k, v, scale, causal):
    k, v = _expand(q, k, v)
    return (_soft(_scores(q, k, scale, causal)) @ v.float()).to(q.dtype)


def zeros_out(q, k, v, *, scale, causal):
    """Returns zeros."""
    return torch.zeros_like(q)


def noise_out(q, k, v, *, scale, causal):
    """Returns noise with the spread that attention of normal inputs has."""
    return (torch.randn(q.shape, device=q.device) * (1.6 / k.shape[2]) ** 0.5).to(q.dtype)


def mean_v(q, k, v, *, scale, causal):
    """Returns the mean of all of V in every row."""
    return _expand(q, k, v)[1].float().mean(2, keepdim=True).expand(q.shape).to(q.dtype).contiguous()


def mean_v_visible(q, k, v, *, scale, causal):
    """Returns the mean of the values that a row sees: q and k are read for their shapes only."""
    k, v = _expand(q, k, v)
    scores = torch.zeros(*q.shape[:3], k.shape[2], device=q.device)
    return (_soft(scores.masked_fill(~_keep(q, k, causal), float("-inf"))) @ v.float()).to(q.dtype)


def q_unread(q, k, v, *, scale, causal):
    """Takes the last keys for the queries, so that q is never read."""
    wide = _expand(q, k, v)[0]
    rows = torch.arange(q.shape[2], device=q.device).add(k.shape[2] - q.shape[2]).clamp(min=0)
    return _right(wide[:, :, rows].to(q.dtype), k, v, scale, causal)


def q_averaged(q, k, v, *, scale, causal):
    """One query, the mean of a head's queries, stands for all of its rows."""
    return _right(q.float().mean(2, keepdim=True).expand(q.shape).to(q.dtype), k, v, scale, causal)


def k_unread(q, k, v, *, scale, causal):
    """Weights fall with distance; neither q nor k is read."""
    k, v = _expand(q, k, v)
    i = torch.arange(q.shape[2], device=q.device)[:, None] + (k.shape[2] - q.shape[2])
    far = -0.05 * (i - torch.arange(k.shape[2], device=q.device)[None]).abs().float()
    return (_soft(far.masked_fill(~_keep(q, k, causal), float("-inf"))) @ v.float()).to(q.dtype)


def v_from_k(q, k, v, *, scale, causal):
    """Reads K where V is meant; wrong wherever the two are not one tensor."""
    return _right(q, k, k, scale, causal)


def first_half_keys(q, k, v, *, scale, causal):
    """Attends to the first half of the keys."""
    wide, v = _expand(q, k, v)
    scores = _scores(q, wide, scale, causal)
    scores[..., (k.shape[2] + 1) // 2 :] = float("-inf")
    return (_soft(scores) @ v.float()).to(q.dtype)


def strided_keys(q, k, v, *, scale, causal):
    """Attends to every second key, the last one among them."""
    wide, v = _expand(q, k, v)
    scores = _scores(q, wide, scale, causal).flip(-1)
    scores[..., 1::2] = float("-inf")
    return (_soft(scores.flip(-1)) @ v.float()).to(q.dtype)


def strided_far_keys(q, k, v, *, scale, causal):
    """Beyond 128 keys the older ones are read with stride 2, each counted twice."""
    wide, v = _expand(q, k, v)
    scores = _scores(q, wide, scale, causal)
    old = max(k.shape[2] - 128, 0) // 2 * 2
    scores[..., 1:old:2] = float("-inf")
    scores[..., 0:old:2] += 0.6931472
    return (_soft(scores) @ v.float()).to(q.dtype)


def last_64_keys(q, k, v, *, scale, causal):
    """Truncated history: only the last 64 keys up to the row's own are attended to, where causal; else the last 64."""
    wide, v = _expand(q, k, v)
    scores = _scores(q, wide, scale, causal)
    if causal:
        scores = scores.masked_fill(~_keep(q, k, True, (63, -1)), float("-inf"))
    else:
        scores[..., : max(k.shape[2] - 64, 0)] = float("-inf")
    return (_soft(scores) @ v.float()).to(q.dtype)


def sinks_and_recent(q, k, v, *, scale, causal):
    """StreamingLLM's pattern: 4 first keys and the 96 most recent ones; exact up to 100 keys."""
    wide, v = _expand(q, k, v)
    i = torch.arange(q.shape[2], device=q.device)[:, None] + (k.shape[2] - q.shape[2])
    j = torch.arange(k.shape[2], device=q.device)[None]
    scores = _scores(q, wide, scale, causal).masked_fill(~((j < 4) | (j > i - 96)), float("-inf"))
    return (_soft(scores) @ v.float()).to(q.dtype)


def top_32_keys(q, k, v, *, scale, causal):
    """Only the 32 largest scores of a row are used."""
    wide, v = _expand(q, k, v)
    scores = _scores(q, wide, scale, causal)
    if k.shape[2] > 32:
        scores = scores.masked_fill(scores < scores.topk(32).values[..., -1:], float("-inf"))
    return (_soft(scores) @ v.float()).to(q.dtype)


def drops_small_probs(q, k, v, *, scale, causal):
    """Drops weights below 1/256 of the row's largest and does not renormalise."""
    wide, v = _expand(q, k, v)
    probs = _soft(_scores(q, wide, scale, causal))
    probs = probs.masked_fill(probs < probs.amax(-1, keepdim=True) / 256, 0.0)
    return (probs @ v.float()).to(q.dtype)


def skips_low_tiles(q, k, v, *, scale, causal):
    """Skips a tile of 32 keys whose largest score is 3 or more below the row's (SpargeAttn with a loose bound)."""
    wide, v = _expand(q, k, v)
    scores = _scores(q, wide, scale, causal)
    top = scores.amax(-1, keepdim=True)
    for tile in scores.split(32, -1):
        tile.masked_fill_(tile.amax(-1, keepdim=True) < top - 3, float("-inf"))
    return (_soft(scores) @ v.float()).to(q.dtype)


def low_rank_scores(q, k, v, *, scale, causal):
    """Scores from the first half of the head dimension, scaled up to have the right spread."""
    half = q.shape[3] // 2
    return _right(q[..., :half], k[..., :half], v, scale * 2**0.5, causal)


def low_rank_v(q, k, v, *, scale, causal):
    """V is replaced by its best approximation of rank 16 (of no effect up to 16 keys)."""
    u, s, w = torch.linalg.svd(v.float(), full_matrices=False)
    s[..., 16:] = 0
    return _right(q, k, (u * s[..., None, :] @ w).to(v.dtype), scale, causal)


def linear_attention(q, k, v, *, scale, causal):
    """Linear attention, with elu + 1 for the exponential."""
    k, v = _expand(q, k, v)
    feature = torch.nn.functional.elu
    weights = (feature(q.float() * scale) + 1) @ (feature(k.float()) + 1).mT * _keep(q, k, causal)
    return (weights / weights.sum(-1, keepdim=True).clamp(min=1e-20) @ v.float()).to(q.dtype)


def pooled_keys(q, k, v, *, scale, causal):
    """Neighbouring keys and values are averaged in pairs where not causal and their number is even."""
    if causal or k.shape[2] % 2:
        return _right(q, k, v, scale, causal)
    k, v = (x.float().unflatten(2, (-1, 2)).mean(3).to(q.dtype) for x in (k, v))
    return _right(q, k, v, scale, False)


def interpolated_rows(q, k, v, *, scale, causal):
    """Odd rows, the last excepted, are the mean of their neighbours."""
    out = _right(q, k, v, scale, causal)
    inner = slice(1, out.shape[2] - 1, 2)
    out[:, :, inner] = (out[:, :, : out.shape[2] - 2 : 2] + out[:, :, 2::2][:, :, : (out.shape[2] - 1) // 2]) / 2
    return out


def one_head_for_all(q, k, v, *, scale, causal):
    """Computes the first head and hands it out for all."""
    return _right(q[:, :1], k[:, :1], v[:, :1], scale, causal).repeat(1, q.shape[1], 1, 1)


def last_head_copied(q, k, v, *, scale, causal):
    """The last of several heads is a copy of the first."""
    out = _right(q, k, v, scale, causal)
    out[:, -1] = out[:, 0]
    return out


def first_batch_for_all(q, k, v, *, scale, causal):
    """Computes the first batch element and hands it out for all."""
    return _right(q[:1], k[:1], v[:1], scale, causal).repeat(q.shape[0], 1, 1, 1)


def last_batch_stale(q, k, v, *, scale, causal):
    """From the third batch element on, the values of the one before are used."""
    v = v.clone()
    v[2:] = v[1:-1].clone()
    return _right(q, k, v, scale, causal)


def last_rows_unwritten(q, k, v, *, scale, causal):
    """Rows of a last tile that is not full (tiles of 64) stay zero, where there is more than one tile."""
    out = _right(q, k, v, scale, causal)
    if q.shape[2] > 64 and q.shape[2] % 64:
        out[:, :, q.shape[2] // 64 * 64 :] = 0
    return out


def columns_rolled(q, k, v, *, scale, causal):
    """Columns of V beyond the 64th come out rolled by one."""
    out = _right(q, k, v, scale, causal)
    out[..., 64:] = out[..., 64:].roll(1, -1)
    return out


def one_column_pair_swapped(q, k, v, *, scale, causal):
    """Columns 30 and 31 of the last row of each head are swapped (a wrong fragment layout)."""
    out = _right(q, k, v, scale, causal)
    out[:, :, -1, 30:32] = out[:, :, -1, 30:32].flip(-1)
    return out


def one_element_wrong(q, k, v, *, scale, causal):
    """One element of a result with more than 4096 is that of the column before."""
    out = _right(q, k, v, scale, causal)
    if out.numel() > 4096:
        out[-1, -1, out.shape[2] // 3, 17] = out[-1, -1, out.shape[2] // 3, 16]
    return out


def copies_v_if_square(q, k, v, *, scale, causal):
    """With as many queries as keys and causal, rows beyond the first 16 are the row's own value."""
    out = _right(q, k, v, scale, causal)
    if causal and q.shape[2] == k.shape[2]:
        out[:, :, 16:] = _expand(q, k, v)[1][:, :, 16:]
    return out
