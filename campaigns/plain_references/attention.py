"""Causal softmax attention; several heads of q share a head of k and v."""

import math

import torch


def attention(q, k, v):
    heads, T, D = q.shape
    shared = heads // k.shape[0]
    keys = k.repeat_interleave(shared, dim=0)
    values = v.repeat_interleave(shared, dim=0)
    causal = torch.ones(T, T, dtype=torch.bool).tril()
    scores = q @ keys.transpose(-1, -2) / math.sqrt(D)
    scores = scores.masked_fill(~causal, float("-inf"))
    row_max = scores.max(-1, keepdim=True).values
    weights = torch.exp(scores - row_max)
    row_sum = weights.sum(-1, keepdim=True)
    probs = weights / row_sum
    out = probs @ values
    lse = (row_max + torch.log(row_sum)).squeeze(-1)
    return out, lse


def attention_unnormalised(q, k, v):
    """The same in the form of a kernel that divides by the sum after weights @ v."""
    heads, T, D = q.shape
    shared = heads // k.shape[0]
    keys = k.repeat_interleave(shared, dim=0)
    values = v.repeat_interleave(shared, dim=0)
    causal = torch.ones(T, T, dtype=torch.bool).tril()
    scores = q @ keys.transpose(-1, -2) / math.sqrt(D)
    scores = scores.masked_fill(~causal, float("-inf"))
    row_max = scores.max(-1, keepdim=True).values
    weights = torch.exp(scores - row_max)
    row_sum = weights.sum(-1, keepdim=True)
    out = weights @ values / row_sum
    lse = (row_max + torch.log(row_sum)).squeeze(-1)
    return out, lse


def inputs(seed, dtype, T=64, D=32, heads=4, groups=2):
    g, dtype = torch.Generator().manual_seed(seed), getattr(torch, dtype)
    peak = (1.0, 3.0, 0.3)[seed % 3]
    q = (peak * torch.randn(heads, T, D, generator=g)).to(dtype)
    k, v = (torch.randn(groups, T, D, generator=g).to(dtype) for _ in range(2))
    return {"q": q, "k": k, "v": v}
