"""References where the project has none: what its tests write out, and the kernels' own form of a recurrence.

A kernel's gradient of a gate is a reversed running sum of q dq - k dk, which cancels. Of a recurrence the gradient is
no such sum; of running sums of the gates, as here and in the project's chunked forms, it is.
"""

import torch
from torch.nn import functional as F


def rms_norm_swish_gate_linear(
    x: torch.Tensor, g: torch.Tensor, weight: torch.Tensor, linear: torch.Tensor, eps: float
) -> torch.Tensor:
    """x / RMS(x) weight, times g sigmoid(g), through a linear layer."""
    normed = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight
    gated = normed * F.silu(g)
    return F.linear(gated, linear)


def cumsum(s: torch.Tensor, reverse: bool = False) -> torch.Tensor:
    """Running sums over time, from the last token on where they are reversed."""
    return s.flip(1).cumsum(1).flip(1) if reverse else s.cumsum(1)


def simple_gla(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
    """Gated linear attention with a gate for each head."""
    total = g.cumsum(1)[..., None]
    return attended(q * q.shape[-1] ** -0.5, k, v, total, total)


def gla(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Gated linear attention and its last state, from the running sums of the gates."""
    total = g.cumsum(1)
    state = torch.einsum("bthk,bthv->bhkv", k * (total[:, -1:] - total).exp(), v)
    return attended(q * q.shape[-1] ** -0.5, k, v, total, total), state


def rwkv6(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, w: torch.Tensor, u: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """RWKV-6 without a scale: the state before the token, and the token itself with a bonus."""
    total = w.cumsum(1)
    state = torch.einsum("bthk,bthv->bhkv", k * (total[:, -1:] - total).exp(), v)
    own = (q * u * k).sum(-1, keepdim=True) * v
    return attended(q, k, v, total - w, total, before=1) + own, state


def slots(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, s: torch.Tensor, g: torch.Tensor
) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
    """Gated slot attention and its two last states."""
    total = g.cumsum(1)
    behind = s * (total[:, -1:] - total).exp()
    keys, values = torch.einsum("bthk,bthm->bhkm", k, behind), torch.einsum("bthm,bthv->bhmv", behind, v)
    scores = causal(torch.einsum("bthk,bshk->bhts", q * q.shape[-1] ** -0.5, k))
    slot = (torch.einsum("bhts,bshm->bthm", scores, s * (-total).exp()) * total.exp()).softmax(-1)
    return attended(slot, s, v, total, total), (keys, values)


def attended(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, of_q: torch.Tensor, of_k: torch.Tensor, before: int = 0
) -> torch.Tensor:
    """Values times q k exp(of_q - of_k). Queries and keys are multiplied by their part of it before their product: so
    the gradient of a running sum is q dq - k dk, whose parts are rounded each by itself, as in a kernel.
    """
    scores = torch.einsum("bthk,bshk->bhts", q * of_q.exp(), k * (-of_k).exp())
    return torch.einsum("bhts,bshv->bthv", causal(scores, before), v)


def causal(scores: torch.Tensor, before: int = 0) -> torch.Tensor:
    """Scores of keys at least `before` tokens before the query, else 0."""
    T = scores.shape[-1]
    seen = torch.ones(T, T, dtype=torch.bool, device=scores.device).tril(-before)
    return scores.masked_fill(~seen, 0.0)
