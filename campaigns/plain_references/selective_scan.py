"""A selective scan: a diagonal state of [channel, N], steps by softplus, a skip by D."""

import torch
import torch.nn.functional as F


def selective_scan(x, dt, dt_bias, A, B, C, D):
    delta = F.softplus(dt + dt_bias)
    state = torch.zeros(A.shape, dtype=x.dtype)
    outs = []
    for t in range(x.shape[0]):
        decay = torch.exp(delta[t][:, None] * A)
        update = (delta[t] * x[t])[:, None] * B[t]
        state = decay * state + update
        y = state @ C[t]
        outs.append(y + D * x[t])
    out = torch.stack(outs)
    return out, state


def inputs(seed, dtype, T=32, channels=24, N=8):
    g, dtype = torch.Generator().manual_seed(seed), getattr(torch, dtype)
    x, dt = (torch.randn(T, channels, generator=g).to(dtype) for _ in range(2))
    bias = torch.randn(channels, generator=g) - (1.0, 0.0, 3.0)[seed % 3]
    A = -torch.arange(1, N + 1).float() * torch.rand(channels, 1, generator=g)
    B, C = (torch.randn(T, N, generator=g).to(dtype) for _ in range(2))
    return {"x": x, "dt": dt, "dt_bias": bias, "A": A, "B": B, "C": C, "D": torch.randn(channels, generator=g)}
