"""Recurrences and convolutions over time, as sums over all tokens before."""

import torch
from torch.nn import functional as F


def ssd(x: torch.Tensor, step: torch.Tensor, A: torch.Tensor, B: torch.Tensor, C: torch.Tensor) -> torch.Tensor:
    """Mamba-2's state space model of one group: state' = exp(step A) state + step x B, out = state C.

    x [batch, time, heads, dim], step [batch, time, heads], A [heads], B and C [batch, time, 1, state].
    """
    total = (step * A).cumsum(1)
    decay = (total[:, :, None] - total[:, None]).masked_fill(~before(x)[..., None], -torch.inf).exp()
    scores = torch.einsum("btgn,bsgn->bts", C, B)[..., None] * decay * step[:, None]
    return torch.einsum("btsh,bshp->bthp", scores, x)


def ssd_softplus(
    x: torch.Tensor, step: torch.Tensor, A: torch.Tensor, B: torch.Tensor, C: torch.Tensor
) -> torch.Tensor:
    """The same, of a step size that is a softplus."""
    size = F.softplus(step)
    total = (size * A).cumsum(1)
    decay = (total[:, :, None] - total[:, None]).masked_fill(~before(x)[..., None], -torch.inf).exp()
    scores = torch.einsum("btgn,bsgn->bts", C, B)[..., None] * decay * size[:, None]
    return torch.einsum("btsh,bshp->bthp", scores, x)


def ssd_packed(
    x: torch.Tensor, step: torch.Tensor, A: torch.Tensor, B: torch.Tensor, C: torch.Tensor, sequence: torch.Tensor
) -> torch.Tensor:
    """The same of several sequences in one row; a token sees those of its own sequence, [batch, time]."""
    total = (step * A).cumsum(1)
    seen = before(x) & (sequence[:, :, None] == sequence[:, None])
    decay = (total[:, :, None] - total[:, None]).masked_fill(~seen[..., None], -torch.inf).exp()
    scores = torch.einsum("btgn,bsgn->bts", C, B)[..., None] * decay * step[:, None]
    return torch.einsum("btsh,bshp->bthp", scores, x)


def before(x: torch.Tensor) -> torch.Tensor:
    """Which tokens s are not behind a token t, [1, t, s]."""
    return torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).tril()[None]


def state_update(
    state: torch.Tensor, x: torch.Tensor, step: torch.Tensor, A: torch.Tensor, B: torch.Tensor, C: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """One token of Mamba: what it gives, and the state behind it, [batch, dim, state]."""
    size = F.softplus(step.float())[..., None]
    last = state * (size * A).exp() + size * B[:, None] * x[..., None]
    out = (last * C[:, None]).sum(-1)
    return out, last


def rwkv4(w: torch.Tensor, u: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """RWKV-4: a softmax over tokens of k, less exp(w) for each token between, plus u for the current one."""
    T = k.shape[1]
    time = torch.arange(T, device=k.device)
    between = (time[:, None] - time - 1)[None, :, :, None]
    logits = torch.where(between < 0, u, -torch.exp(w) * between) + k[:, None]
    weights = logits.masked_fill(between < -1, -torch.inf).softmax(2)
    return (weights * v[:, None]).sum(2)


def convolution(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
    """A short causal convolution of each channel behind a state of W tokens, the oldest unused, and its SiLU.

    x [batch, time, channels], weight [channels, W], state [batch, channels, W].
    """
    W = weight.shape[1]
    seen = torch.cat([state[:, :, 1:].transpose(1, 2), x], 1)
    out = sum(seen[:, i : i + x.shape[1]] * weight[:, i] for i in range(W)) + bias
    return F.silu(out)


def convolution_state(x: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
    """The last W tokens of the state and x."""
    return torch.cat([state, x.transpose(1, 2)], -1)[..., -state.shape[-1] :]
