"""Attention whose arithmetic is too coarse, or wrong on some values only."""

import math

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


def _weights(q, k, scale, causal, exp):
    """Weights by a function given for exp, normalised."""
    scores = _scores(q, k, scale, causal)
    top = scores.amax(-1, keepdim=True)
    probs = exp((scores - top.masked_fill(top == float("-inf"), 0.0)).clamp(min=-80)) * (scores > float("-inf"))
    total = probs.sum(-1, keepdim=True)
    return probs / total.masked_fill(total == 0, 1.0)


def _tiles(scores, size):
    return list(enumerate(scores.split(size, -1)))


def float8_kv(q, k, v, *, scale, causal):
    """K and V go through float8 (e4m3)."""
    k, v = (x.float().clamp(-448, 448).to(torch.float8_e4m3fn).to(q.dtype) for x in (k, v))
    return _right(q, k, v, scale, causal)


def float8_probs(q, k, v, *, scale, causal):
    """Weights go through float8 (e4m3)."""
    wide, v = _expand(q, k, v)
    probs = _soft(_scores(q, wide, scale, causal)) * 256
    return (probs.to(torch.float8_e4m3fn).float() / 256 @ v.float()).to(q.dtype)


def _codes(x, most):
    step = x.float().abs().amax((-1, -2), keepdim=True).clamp(min=1e-20) / most
    return (x.float() / step).round() * step


def int8_qk(q, k, v, *, scale, causal):
    """Q and K are rounded to int8 with a scale for each head."""
    return _right(_codes(q, 127), _codes(k, 127), v, scale, causal).to(q.dtype)


def int4_v(q, k, v, *, scale, causal):
    """V is rounded to int4 with a scale for each head."""
    return _right(q, k, _codes(v, 7).to(v.dtype), scale, causal)


def probs_of_4_bits(q, k, v, *, scale, causal):
    """Weights, relative to the row's largest, are rounded to sixteenths."""
    wide, v = _expand(q, k, v)
    probs = _weights(q, wide, scale, causal, lambda x: (16 * torch.exp(x)).round())
    return (probs @ v.float()).to(q.dtype)


def float16_running_sums(q, k, v, *, scale, causal):
    """The weighted values and the row sums are added up in float16, key by key."""
    wide, v = _expand(q, k, v)
    probs = _weights(q, wide, scale, causal, torch.exp)
    probs = (probs / probs.amax(-1, keepdim=True).clamp(min=1e-30)).half()
    out, total = torch.zeros(q.shape, dtype=torch.half, device=q.device), torch.zeros_like(probs[..., :1])
    for j in range(k.shape[2]):
        out += probs[..., j : j + 1] * v[:, :, j : j + 1].half()
        total += probs[..., j : j + 1]
    return (out.float() / total.float().clamp(min=1e-6)).to(q.dtype)


def bfloat16_sum_only(q, k, v, *, scale, causal):
    """Only the row sum is kept in bfloat16, key by key: it stalls in long rows."""
    wide, v = _expand(q, k, v)
    scores = _scores(q, wide, scale, causal)
    top = scores.amax(-1, keepdim=True)
    probs = torch.exp(scores - top.masked_fill(top == float("-inf"), 0.0))
    total = torch.zeros_like(top, dtype=torch.bfloat16)
    for j in range(k.shape[2]):
        total += probs[..., j : j + 1].bfloat16()
    return (probs @ v.float() / total.float().clamp(min=1e-30)).to(q.dtype)


def tf32_truncated(q, k, v, *, scale, causal):
    """float32 inputs lose their last 13 bits, as in TF32."""
    q, k, v = ((x.float().contiguous().view(torch.int32) & -8192).view(torch.float32).to(q.dtype) for x in (q, k, v))
    return _right(q, k, v, scale, causal)


def bfloat16_inside(q, k, v, *, scale, causal):
    """float32 inputs are rounded to bfloat16."""
    return _right(q.bfloat16(), k.bfloat16(), v.bfloat16(), scale, causal).to(q.dtype)


def float16_inside(q, k, v, *, scale, causal):
    """float32 inputs are rounded to float16."""
    return _right(q.half(), k.half(), v.half(), scale, causal).to(q.dtype)


def float16_probs_of_float32(q, k, v, *, scale, causal):
    """Weights of float32 inputs are rounded to float16."""
    wide, v = _expand(q, k, v)
    return (_soft(_scores(q, wide, scale, causal)).half().float() @ v.float()).to(q.dtype)


def bfloat16_result(q, k, v, *, scale, causal):
    """The result is rounded to bfloat16 on its way."""
    return _right(q, k, v, scale, causal).bfloat16().to(q.dtype)


def coarse_result(q, k, v, *, scale, causal):
    """The result is rounded to multiples of 1/1024, coarse for long rows."""
    return ((_right(q, k, v, scale, causal).float() * 1024).round() / 1024).to(q.dtype)


def float16_scores(q, k, v, *, scale, causal):
    """Scores are rounded to float16, coarse where they are large."""
    wide, v = _expand(q, k, v)
    return (_soft(_scores(q, wide, scale, causal).half().float()) @ v.float()).to(q.dtype)


def float16_products_overflow(q, k, v, *, scale, causal):
    """Products of q and k are kept in float16 before they are scaled, and overflow."""
    wide, v = _expand(q, k, v)
    scores = (q.float() @ wide.float().mT).half().float() * scale
    return (_soft(scores.masked_fill(~_keep(q, k, causal), float("-inf"))) @ v.float()).to(q.dtype)


def exp_by_limit(q, k, v, *, scale, causal):
    """exp(x) is (1 + x / 64) ** 64."""
    wide, v = _expand(q, k, v)
    return (_weights(q, wide, scale, causal, lambda x: (1 + x.clamp(min=-64) / 64) ** 64) @ v.float()).to(q.dtype)


def exp_by_taylor(q, k, v, *, scale, causal):
    """2 ** fraction is a polynomial of degree 2 about 0."""
    wide, v = _expand(q, k, v)

    def exp(x):
        x = x * math.log2(math.e)
        f = x - x.floor()
        return (1 + f * (0.6931472 + f * 0.2402265)) * torch.exp2(x.floor())

    return (_weights(q, wide, scale, causal, exp) @ v.float()).to(q.dtype)


def exp_by_bits(q, k, v, *, scale, causal):
    """Schraudolph's exp: the number is written into the exponent's bits."""
    wide, v = _expand(q, k, v)

    def exp(x):
        return (x * 12102203.2 + 1064866805).to(torch.int32).view(torch.float32)

    return (_weights(q, wide, scale, causal, exp) @ v.float()).to(q.dtype)


def exp_cut_at_minus_8(q, k, v, *, scale, causal):
    """exp(x) is 0 below -8; shows where a value of small weight is large."""
    wide, v = _expand(q, k, v)
    return (_weights(q, wide, scale, causal, lambda x: torch.exp(x) * (x > -8)) @ v.float()).to(q.dtype)


def no_max(q, k, v, *, scale, causal):
    """No maximum is subtracted: overflows beyond scores of 88."""
    wide, v = _expand(q, k, v)
    probs = torch.exp(_scores(q, wide, scale, causal))
    return (probs @ v.float() / probs.sum(-1, keepdim=True).clamp(min=1e-38)).to(q.dtype)


def no_max_nan_hidden(q, k, v, *, scale, causal):
    """No maximum is subtracted, and NaN is replaced by 0."""
    return torch.nan_to_num(no_max(q, k, v, scale=scale, causal=causal), 0.0, 0.0, 0.0)


def max_of_head(q, k, v, *, scale, causal):
    """One maximum for all rows of a head is subtracted: rows far below it underflow."""
    wide, v = _expand(q, k, v)
    scores = _scores(q, wide, scale, causal)
    top = scores.amax((-1, -2), keepdim=True)
    probs = torch.exp(scores - top.masked_fill(top == float("-inf"), 0.0))
    return (probs @ v.float() / probs.sum(-1, keepdim=True).clamp(min=1e-38)).to(q.dtype)


def scores_clamped(q, k, v, *, scale, causal):
    """Scores are clamped to +-20."""
    wide, v = _expand(q, k, v)
    scores = (q.float() @ wide.float().mT * scale).clamp(-20, 20)
    return (_soft(scores.masked_fill(~_keep(q, k, causal), float("-inf"))) @ v.float()).to(q.dtype)


def tiny_scores_equal(q, k, v, *, scale, causal):
    """If all scores are within +-0.25, rows are taken as uniform."""
    if (q.float() @ _expand(q, k, v)[0].float().mT * scale).abs().max() < 0.25:
        q = torch.zeros_like(q)
    return _right(q, k, v, scale, causal)


def outliers_clipped(q, k, v, *, scale, causal):
    """Values of V are clipped to +-6."""
    return _right(q, k, v.clamp(-6, 6), scale, causal)


def equal_scores_once(q, k, v, *, scale, causal):
    """Of keys with equal scores in a row only the first counts."""
    wide, v = _expand(q, k, v)
    scores = _scores(q, wide, scale, causal)
    again = (scores[..., None] == scores[..., None, :]).tril(-1).any(-1)
    return (_soft(scores.masked_fill(again, float("-inf"))) @ v.float()).to(q.dtype)


def subnormals_flushed(q, k, v, *, scale, causal):
    """Values below 2 ** -14 in size are taken as 0."""
    return _right(q, k, v.masked_fill(v.abs() < 2.0**-14, 0.0), scale, causal)


def pad_rows_leak_nan(q, k, v, *, scale, causal):
    """V is padded to a multiple of 32 keys with NaN (memory that nobody wrote), whose weights are 0."""
    wide, v = _expand(q, k, v)
    pad = -k.shape[2] % 32
    probs = torch.nn.functional.pad(_soft(_scores(q, wide, scale, causal)), (0, pad))
    return (probs @ torch.nn.functional.pad(v.float(), (0, 0, 0, pad), value=float("nan"))).to(q.dtype)


def _online(q, k, v, scale, causal, fault):
    wide, v = _expand(q, k, v)
    out, total = torch.zeros(q.shape, device=q.device), torch.zeros(*q.shape[:3], 1, device=q.device)
    top = torch.full_like(total, -1e30)
    for t, scores in _tiles(_scores(q, wide, scale, causal), 32):
        new = torch.maximum(top, scores.amax(-1, keepdim=True))
        fix, probs = torch.exp(top - new), torch.exp(scores - new)
        total = total * (1 if fault == "sum" else fix) + probs.sum(-1, keepdim=True)
        out = out * (1 if fault == "out" or (fault == "third" and t == 2) else fix)
        out, top = out + probs @ v[:, :, 32 * t : 32 * t + 32].float(), new
    return (out / total.clamp(min=1e-30)).to(q.dtype)


def tiles_not_rescaled(q, k, v, *, scale, causal):
    """Online softmax whose output is not rescaled when the maximum grows."""
    return _online(q, k, v, scale, causal, "out")


def sum_not_rescaled(q, k, v, *, scale, causal):
    """Online softmax whose row sum is not rescaled."""
    return _online(q, k, v, scale, causal, "sum")


def third_tile_not_rescaled(q, k, v, *, scale, causal):
    """Online softmax that skips the rescaling at its third tile only (beyond 64 keys)."""
    return _online(q, k, v, scale, causal, "third")


def _split(q, k, v, scale, causal, weigh):
    wide, v = _expand(q, k, v)
    out, total = 0, 0
    for t, scores in _tiles(_scores(q, wide, scale, causal), 64):
        weight = weigh(torch.logsumexp(scores, -1, keepdim=True))
        out = out + weight * (_soft(scores) @ v[:, :, 64 * t : 64 * t + 64].float())
        total = total + weight
    return (out / total.clamp(min=1e-30)).to(q.dtype)


def splits_averaged(q, k, v, *, scale, causal):
    """Splits of 64 keys are averaged, each with the same weight unless it is empty."""
    return _split(q, k, v, scale, causal, lambda lse: (lse > float("-inf")).float())


def splits_merged_base_2(q, k, v, *, scale, causal):
    """Splits of 64 keys are merged by 2 ** lse, though lse is a natural logarithm."""
    return _split(q, k, v, scale, causal, torch.exp2)


def base_2_without_factor(q, k, v, *, scale, causal):
    """2 ** x is used for exp(x)."""
    return _right(q, k, v, scale * math.log(2), causal)


def scaled_twice(q, k, v, *, scale, causal):
    """The scale is applied to q and again to the scores."""
    return _right(q, k, v, scale * scale, causal)


def sum_starts_at_one(q, k, v, *, scale, causal):
    """The row sum starts at 1 (a sink with score 0)."""
    wide, v = _expand(q, k, v)
    probs = torch.exp(_scores(q, wide, scale, causal).clamp(max=60))
    return (probs @ v.float() / (1 + probs.sum(-1, keepdim=True))).to(q.dtype)


def sum_plus_epsilon(q, k, v, *, scale, causal):
    """0.02 is added to the row sum, against division by 0."""
    wide, v = _expand(q, k, v)
    scores = _scores(q, wide, scale, causal)
    probs = torch.exp(scores - scores.amax(-1, keepdim=True).clamp(min=-1e30))
    return (probs @ v.float() / (probs.sum(-1, keepdim=True) + 0.02)).to(q.dtype)


def mean_of_v_lost(q, k, v, *, scale, causal):
    """The mean over keys is taken off V and not added again."""
    return _right(q, k, (v.float() - v.float().mean(2, keepdim=True)).to(v.dtype), scale, causal)
