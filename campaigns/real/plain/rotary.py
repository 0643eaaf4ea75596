"""Rotary embeddings of [batch, heads, time, dim]; cos and sin are [batch, time, dim], and have no gradient."""

import torch


def rope(q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Pairs of the first and the second half of a head are rotated."""
    cos, sin = cos.detach()[:, None], sin.detach()[:, None]
    rotated_q = (q * cos + turned(q) * sin).to(q.dtype)
    rotated_k = (k * cos + turned(k) * sin).to(k.dtype)
    return rotated_q, rotated_k


def rope_over_heads(q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """The queries' rotations, summed over heads."""
    return rope(q, k, cos, sin)[0].sum(1)


def turned(x: torch.Tensor) -> torch.Tensor:
    """A quarter turn of each pair."""
    half = x.shape[-1] // 2
    return torch.cat([-x[..., half:], x[..., :half]], -1)
