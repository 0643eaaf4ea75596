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


def gla(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Gated linear attention and its last state, from the running sums of the gates."""
    total = g.cumsum(1)
    behind = (total[:, -1:] - total).exp()
    state = torch.einsum("bthk,bthv->bhkv", k * behind, v)
    return torch.einsum("btsh,bshv->bthv", scores(q * q.shape[-1] ** -0.5, k, total, total), v), state


def rwkv6(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, w: torch.Tensor, u: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """RWKV-6 without a scale: the state before the token, and the token itself with a bonus."""
    total = w.cumsum(1)
    state = torch.einsum("bthk,bthv->bhkv", k * (total[:, -1:] - total).exp(), v)
    seen = scores(q, k, total - w, total, before=1)
    own = (q * u * k).sum(-1, keepdim=True) * v
    return torch.einsum("btsh,bshv->bthv", seen, v) + own, state


def slots(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, s: torch.Tensor, g: torch.Tensor
) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
    """Gated slot attention and its two last states."""
    total = g.cumsum(1)
    behind = s * (total[:, -1:] - total).exp()
    keys, values = torch.einsum("bthk,bthm->bhkm", k, behind), torch.einsum("bthm,bthv->bhmv", behind, v)
    weights = decays(total, total) * s[:, None]
    plain = torch.einsum("bthk,bshk->btsh", q * q.shape[-1] ** -0.5, k)
    slot = (plain[..., None] * weights).sum(2).softmax(-1)
    seen = (slot[:, :, None] * weights).sum(-1)
    return torch.einsum("btsh,bshv->bthv", seen, v), (keys, values)


def scores(q: torch.Tensor, k: torch.Tensor, of_q: torch.Tensor, of_k: torch.Tensor, before: int = 0) -> torch.Tensor:
    """q k times their decays, [batch, query, key, head]."""
    return (q[:, :, None] * k[:, None] * decays(of_q, of_k, before)).sum(-1)


def decays(of_q: torch.Tensor, of_k: torch.Tensor, before: int = 0) -> torch.Tensor:
    """exp(of_q - of_k), [batch, query, key, head, dim], of keys at least `before` tokens before the query, else 0."""
    T = of_q.shape[1]
    seen = torch.ones(T, T, dtype=torch.bool, device=of_q.device).tril(-before)[..., None, None]
    return (of_q[:, :, None] - of_k[:, None]).masked_fill(~seen, -torch.inf).exp()
