"""RMSNorm, then a linear layer gated by SiLU."""

import torch


def norm_glu(x, weight, w_gate, w_up):
    mean_square = x.pow(2).mean(-1, keepdim=True)
    rstd = torch.rsqrt(mean_square + 1e-6)
    unit = x * rstd
    normed = unit * weight
    gate = normed @ w_gate.T
    up = normed @ w_up.T
    hidden = torch.nn.functional.silu(gate)
    out = hidden * up
    return out.to(x.dtype)


def norm_glu_late(x, weight, w_gate, w_up):
    """The same in the form of a kernel that multiplies by rstd after the products."""
    rstd = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)
    scaled = x * weight
    gate = scaled @ w_gate.T * rstd
    up = scaled @ w_up.T * rstd
    out = torch.nn.functional.silu(gate) * up
    return out.to(x.dtype)


def inputs(seed, dtype, rows=24, dim=96, features=40):
    g, dtype = torch.Generator().manual_seed(seed), getattr(torch, dtype)
    x = torch.randn(rows, dim, generator=g)
    x[::4] *= 2e-3  # small enough for eps to matter
    weight = 1 + 0.2 * torch.randn(dim, generator=g)
    w_gate, w_up = (torch.randn(features, dim, generator=g) * (1.5 / dim**0.5) for _ in range(2))
    return {name: value.to(dtype) for name, value in (("x", x), ("weight", weight), ("w_gate", w_gate), ("w_up", w_up))}
