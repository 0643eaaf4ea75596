"""Norms over the last dimension, from their definitions."""

import torch


def layer_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float) -> torch.Tensor:
    """Of mean 0 and variance 1, times the weight, plus the bias."""
    wide = x.float()
    centered = wide - wide.mean(-1, keepdim=True)
    normed = centered * torch.rsqrt((centered * centered).mean(-1, keepdim=True) + eps)
    return (normed * weight.float() + bias.float()).to(x.dtype)


def frozen_layer_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float) -> torch.Tensor:
    """A layer norm whose weight and bias have no gradient."""
    wide = x.float()
    centered = wide - wide.mean(-1, keepdim=True)
    normed = centered * torch.rsqrt((centered * centered).mean(-1, keepdim=True) + eps)
    return (normed * weight.detach().float() + bias.detach().float()).to(x.dtype)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float, offset: float = 0.0) -> torch.Tensor:
    """x / RMS(x), times the weight plus the offset."""
    wide = x.float()
    normed = wide * torch.rsqrt((wide * wide).mean(-1, keepdim=True) + eps)
    return (normed * (weight.float() + offset)).to(x.dtype)


def frozen_rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float, offset: float = 0.0) -> torch.Tensor:
    """An RMS norm whose weight has no gradient."""
    wide = x.float()
    normed = wide * torch.rsqrt((wide * wide).mean(-1, keepdim=True) + eps)
    return (normed * (weight.detach().float() + offset)).to(x.dtype)


def weight_norm(v: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
    """g v / |v|, row by row; v is [rows, columns], g [rows, 1]."""
    wide = v.float()
    norm = (wide * wide).sum(-1, keepdim=True).sqrt()
    return (wide * (g.float() / norm)).to(v.dtype)


def group_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, groups: int, eps: float) -> torch.Tensor:
    """Of mean 0 and variance 1 within groups of channels, x is [batch, channels, places]."""
    wide = x.float().reshape(x.shape[0], groups, -1)
    centered = wide - wide.mean(-1, keepdim=True)
    normed = centered * torch.rsqrt((centered * centered).mean(-1, keepdim=True) + eps)
    return (normed.reshape(x.shape) * weight.float()[:, None] + bias.float()[:, None]).to(x.dtype)


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """The RMS norm of a sum, and the sum."""
    total = x + residual
    wide = total.float()
    normed = wide * torch.rsqrt((wide * wide).mean(-1, keepdim=True) + eps)
    return (normed * weight.float()).to(x.dtype), total


def poly_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float) -> torch.Tensor:
    """Weights times x cubed, squared and as it is, each over its RMS, plus the bias."""
    wide = x.float()
    powers = [wide**3, wide**2, wide]
    normed = [u * torch.rsqrt((u * u).mean(-1, keepdim=True) + eps) for u in powers]
    return (weight[0] * normed[0] + weight[1] * normed[1] + weight[2] * normed[2] + bias).to(x.dtype)


def gated_rms_norm(x: torch.Tensor, weight: torch.Tensor, z: torch.Tensor, eps: float) -> torch.Tensor:
    """The RMS norm of x z sigmoid(z)."""
    wide = x.float() * torch.nn.functional.silu(z.float())
    normed = wide * torch.rsqrt((wide * wide).mean(-1, keepdim=True) + eps)
    return (normed * weight.float()).to(x.dtype)
