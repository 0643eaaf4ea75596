"""Attention, and what is around it, from the definition. All have time before heads: [batch, time, heads, dim]."""

import torch

FORCED = 8.0  #: stands for the infinite score of a block that is always selected; scores are sums of at most 6 shares


def pairs(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """Products of queries and keys [batch, heads, q, k], of which several query heads share one of keys."""
    group = q.shape[2] // k.shape[2]
    shared = k[:, :, :, None].expand(-1, -1, -1, group, -1).reshape(k.shape[0], k.shape[1], q.shape[2], k.shape[3])
    return torch.einsum("bqhd,bkhd->bhqk", q.float(), shared.float())


def mixed(probs: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Values weighted by [batch, heads, q, k]."""
    group = probs.shape[1] // v.shape[2]
    shared = v[:, :, :, None].expand(-1, -1, -1, group, -1).reshape(v.shape[0], v.shape[1], probs.shape[1], v.shape[3])
    return torch.einsum("bhqk,bkhd->bqhd", probs, shared.float())


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool = False) -> torch.Tensor:
    """Causal masks are aligned at the bottom right: the last query sees all keys."""
    scores = pairs(q, k) * q.shape[-1] ** -0.5
    if causal:
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).tril(k.shape[1] - q.shape[1])
        scores = scores.masked_fill(~seen, -torch.inf)
    probs = scores.softmax(-1)
    out = mixed(probs, v).to(q.dtype)
    return out


def alibi(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Keys lose 2^(-8 (head + 1) / heads) for each token between them and the query; causal."""
    heads, at = q.shape[2], torch.arange(q.shape[1], device=q.device)
    slope = torch.exp2(-8.0 * (torch.arange(heads, device=q.device) + 1) / heads)
    distance = at[:, None] - at[None, :]
    bias = -slope[:, None, None] * distance
    scores = pairs(q, k) * q.shape[-1] ** -0.5 + bias
    seen = distance >= 0
    probs = scores.masked_fill(~seen, -torch.inf).softmax(-1)
    out = mixed(probs, v).to(q.dtype)
    return out


def softcapped(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cap: float) -> torch.Tensor:
    """Scores are squashed into (-cap, cap)."""
    scores = pairs(q, k) * q.shape[-1] ** -0.5
    capped = cap * torch.tanh(scores / cap)
    probs = capped.softmax(-1)
    out = mixed(probs, v).to(q.dtype)
    return out


def neighbours(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, width: int, height: int, window: tuple[int, int],
    tile: tuple[int, int],
) -> torch.Tensor:  # fmt: skip
    """Neighbourhood attention on a canvas that is stored tile by tile: windows of (wide, high), which stay inside."""
    wide, high = window
    tile_wide, tile_high = tile
    token = torch.arange(width * height, device=q.device)
    of_tile, inside = token // (tile_wide * tile_high), token % (tile_wide * tile_high)
    x = of_tile % (width // tile_wide) * tile_wide + inside % tile_wide
    y = of_tile // (width // tile_wide) * tile_high + inside // tile_wide
    center_x = x.clamp(wide // 2, width - 1 - wide // 2)
    center_y = y.clamp(high // 2, height - 1 - high // 2)
    near_x = (center_x[:, None] - x[None, :]).abs() <= wide // 2
    near_y = (center_y[:, None] - y[None, :]).abs() <= high // 2
    scores = pairs(q, k) * q.shape[-1] ** -0.5
    masked = scores.masked_fill(~(near_x & near_y), -torch.inf)
    probs = masked.softmax(-1)
    out = mixed(probs, v).to(q.dtype)
    return out


def latent(
    q: torch.Tensor, q_rope: torch.Tensor, k: torch.Tensor, k_rope: torch.Tensor, v: torch.Tensor, scale: float
) -> torch.Tensor:
    """Keys of two parts, of which the rotated one has a single head; causal, aligned at the bottom right."""
    scores = (pairs(q, k) + pairs(q_rope, k_rope)) * scale
    seen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).tril(k.shape[1] - q.shape[1])
    probs = scores.masked_fill(~seen, -torch.inf).softmax(-1)
    out = mixed(probs, v).to(q.dtype)
    return out


def quantised(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, q_scale: torch.Tensor, k_scale: torch.Tensor,
    bias: torch.Tensor | None = None, rows: int = 128, columns: int = 64,
) -> torch.Tensor:  # fmt: skip
    """Whole numbers q and k with a scale [batch, heads, block] for `rows` queries or `columns` keys; base 2."""
    of_q = q_scale[..., None].expand(-1, -1, -1, rows).flatten(2)[:, :, : q.shape[1], None]
    of_k = k_scale[..., None].expand(-1, -1, -1, columns).flatten(2)[:, :, None, : k.shape[1]]
    scores = pairs(q, k) * (of_q * of_k)
    if bias is not None:
        scores = scores + bias.float()
    weights = torch.exp2(scores - scores.amax(-1, keepdim=True))
    out = (mixed(weights, v) / weights.sum(-1)[..., None].transpose(1, 2)).to(v.dtype)
    return out


def compressed(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, block: int, starts: tuple[int, ...]) -> torch.Tensor:
    """Attention to blocks of keys that end at the query or before it, for each sequence between two `starts`."""
    parts, first = [], 0
    for start, end in zip(starts, starts[1:], strict=False):
        blocks = -(-(end - start) // block)
        token, last = torch.arange(end - start), (torch.arange(blocks) + 1) * block - 1
        seen = (token[:, None] >= last[None, :]).to(q.device)
        scores = pairs(q[:, start:end], k[:, first : first + blocks]) * q.shape[-1] ** -0.5
        weights = torch.where(seen, torch.exp(scores - scores.amax(-1, keepdim=True)), 0.0)
        total = weights.sum(-1, keepdim=True)
        probs = weights / torch.where(seen.any(-1, keepdim=True), total, 1.0)
        parts.append(mixed(probs, v[:, first : first + blocks]))
        first += blocks
    out = torch.cat(parts, 1).to(q.dtype)
    return out


def shares(q: torch.Tensor, k: torch.Tensor, lse: torch.Tensor, size: int, stride: int) -> torch.Tensor:
    """What each compressed key, of `size` tokens every `stride`, gets of a query, summed over a group's heads. lse, of
    [heads, time], has base 2.
    """
    scores = pairs(q[None], k[None])[0] * q.shape[-1] ** -0.5
    token, last = (
        torch.arange(q.shape[0], device=q.device),
        torch.arange(k.shape[0], device=q.device) * stride + size - 1,
    )
    seen = token[:, None] >= last[None, :]
    probs = torch.where(seen, torch.exp2(scores * 1.4426950408889634 - lse[..., None]), 0.0)
    share = probs.reshape(k.shape[1], -1, q.shape[0], k.shape[0]).sum(1)
    return share


def block_scores(
    score: torch.Tensor, size: int, stride: int, block: int, first_blocks: int, last_blocks: int
) -> torch.Tensor:
    """Shares [heads, time, compressed keys] summed over each block of `block` tokens, a compressed key as often as a
    stride of it is in the block; the first blocks and the query's last are FORCED.
    """
    per, pad = block // stride, size // stride - 1
    blocks = -(-score.shape[1] // block)
    padded = torch.nn.functional.pad(score, (pad, pad + blocks * per))
    total = torch.zeros(score.shape[:2] + (blocks,), device=score.device)
    for offset in range(per + pad):
        times = sum(offset - i in range(size // stride) for i in range(per))
        total = total + times * padded[..., offset : offset + blocks * per : per]
    own, at = torch.arange(score.shape[1], device=score.device) // block, torch.arange(blocks, device=score.device)
    last = (own[:, None] >= at[None, :]) & (own[:, None] < at[None, :] + last_blocks)
    forced = last | (at[None, :] < first_blocks)
    found = torch.where(forced, FORCED, total)
    return found


def softmax(x: torch.Tensor) -> torch.Tensor:
    """Causal, of [batch, time, time]."""
    seen = torch.ones(x.shape[-2:], dtype=torch.bool, device=x.device).tril()
    return x.masked_fill(~seen, -torch.inf).softmax(-1)


def rope(x: torch.Tensor, base: float = 10000.0) -> torch.Tensor:
    """The first half of the dimensions rotates against the second; cosines and sines are in x's dtype."""
    half = x.shape[-1] // 2
    frequency = base ** (-torch.arange(half, device=x.device, dtype=torch.float32) / half)
    angle = torch.arange(x.shape[1], device=x.device, dtype=torch.float32)[:, None] * frequency
    cos, sin = torch.cos(angle).to(x.dtype)[:, None], torch.sin(angle).to(x.dtype)[:, None]
    left, right = x[..., :half].float(), x[..., half:].float()
    out = torch.cat([left * cos - right * sin, right * cos + left * sin], -1).to(x.dtype)
    return out


def rope_of_axes(
    q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, sections: tuple[int, ...]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rotations by angles of three axes: each of the `sections` of the dimensions takes those of the next axis. q and k
    have heads before time; cos and sin are [axis, 1, time, dim].
    """
    first = [sum(sections[:i]) for i in range(len(sections) + 1)]
    own_cos = torch.cat([cos[i % 3, :, :, first[i] : first[i + 1]] for i in range(len(sections))], -1)[:, None]
    own_sin = torch.cat([sin[i % 3, :, :, first[i] : first[i + 1]] for i in range(len(sections))], -1)[:, None]
    half = q.shape[-1] // 2
    turned_q = torch.cat([-q[..., half:], q[..., :half]], -1)
    turned_k = torch.cat([-k[..., half:], k[..., :half]], -1)
    q_out = q * own_cos + turned_q * own_sin
    k_out = k * own_cos + turned_k * own_sin
    return q_out, k_out


def selected(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, block_indices: torch.Tensor, block: int, starts: tuple[int, ...]
) -> torch.Tensor:
    """Causal attention to the blocks of keys [1, time, 1, block] that a query selects, -1 for none, for each sequence
    between two `starts`.
    """
    parts = []
    for start, end in zip(starts, starts[1:], strict=False):
        at = torch.arange(end - start, device=q.device)
        chosen = (block_indices[0, start:end, 0, :, None] == at[None, None, :] // block).any(1)
        seen = chosen & (at[:, None] >= at[None, :])
        scores = pairs(q[:, start:end], k[:, start:end]) * q.shape[-1] ** -0.5
        probs = scores.masked_fill(~seen, -torch.inf).softmax(-1)
        parts.append(mixed(probs, v[:, start:end]))
    out = torch.cat(parts, 1).to(q.dtype)
    return out


def windowed(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, window: int | None = None, dilation: int = 1, prefix: int = 0,
    causal: bool = True,
) -> torch.Tensor:  # fmt: skip
    """Keys at most `window` before the query, of which every `dilation`-th is seen, and the first `prefix` keys."""
    at = torch.arange(q.shape[1], device=q.device)
    distance = at[:, None] - at[None, :]
    seen = distance % dilation == 0
    if window is not None:
        seen = seen & (distance.abs() <= window)
    if causal:
        seen = seen & (distance >= 0)
    seen = seen | (at[None, :] < prefix)
    scores = pairs(q, k) * q.shape[-1] ** -0.5
    probs = scores.masked_fill(~seen, -torch.inf).softmax(-1)
    out = mixed(probs, v).to(q.dtype)
    return out


def cross_entropy(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The loss of each row."""
    loss = logits.float().logsumexp(-1) - logits.float().gather(-1, labels[:, None])[:, 0]
    return loss


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Over the last dimension."""
    rstd = torch.rsqrt(x.float().square().mean(-1, keepdim=True) + eps)
    out = (x.float() * rstd * weight.float()).to(x.dtype)
    return out


def gated(x: torch.Tensor) -> torch.Tensor:
    """SiLU of the first half of the dimensions times the second."""
    gate, up = x.float().chunk(2, -1)
    out = (gate * gate.sigmoid() * up).to(x.dtype)
    return out


def softmax_of_rows(x: torch.Tensor) -> torch.Tensor:
    """Of the last dimension."""
    out = x.float().softmax(-1).to(x.dtype)
    return out
