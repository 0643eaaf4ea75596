"""The gated delta rule: a state of [K, V] a head, decayed by a scalar gate, corrected towards v by beta."""

import math

import torch


def gated_delta(q, k, v, g, beta):
    heads, T, K = q.shape
    state = torch.zeros(heads, K, v.shape[-1], dtype=v.dtype)
    outs = []
    for t in range(T):
        decayed = state * torch.exp(g[:, t])[:, None, None]
        pred = torch.einsum("hk,hkv->hv", k[:, t], decayed)
        delta = beta[:, t, None] * (v[:, t] - pred)
        state = decayed + k[:, t, :, None] * delta[:, None, :]
        outs.append(torch.einsum("hk,hkv->hv", q[:, t], state) / math.sqrt(K))
    out = torch.stack(outs, dim=1)
    return out, state


def gated_delta_chunked(q, k, v, g, beta):
    """The same in chunks of 8 tokens; `solve` is the inverse of eye + lower, whose eighth power is zero."""
    state, outs = torch.zeros(q.shape[0], q.shape[2], v.shape[2], dtype=v.dtype), []
    for at in range(0, q.shape[1], 8):
        qc, kc, vc, gc, bc = (x[:, at : at + 8] for x in (q, k, v, g, beta))
        G = gc.cumsum(1)
        grow = torch.exp(G)[:, :, None]
        left = torch.exp(G[:, -1:] - G)[:, :, None]
        between = torch.exp(torch.tril(G[:, :, None] - G[:, None, :])).tril()
        keys = bc[:, :, None] * kc
        lower = (between * (keys @ kc.transpose(1, 2))).tril(-1)
        eye, square = torch.eye(kc.shape[1], dtype=v.dtype), lower @ lower
        solve = (eye - lower) @ (eye + square) @ (eye + square @ square)
        fresh = solve @ (bc[:, :, None] * vc) - solve @ (keys * grow) @ state
        inside = between * (qc @ kc.transpose(1, 2))
        outs.append(((qc * grow) @ state + inside @ fresh) / math.sqrt(q.shape[2]))
        state = grow[:, -1:] * state + (kc * left).transpose(1, 2) @ fresh
    out = torch.cat(outs, dim=1)
    return out, state


def inputs(seed, dtype, T=32, K=16, V=24, heads=2):
    gen, dtype = torch.Generator().manual_seed(seed), getattr(torch, dtype)
    q, k = (torch.nn.functional.normalize(torch.randn(heads, T, K, generator=gen), dim=-1) for _ in range(2))
    v = torch.randn(heads, T, V, generator=gen)
    gate = -torch.nn.functional.softplus(torch.randn(heads, T, generator=gen) - (2.0, 0.0, 4.0)[seed % 3])
    beta = torch.sigmoid(torch.randn(heads, T, generator=gen))
    return {"q": (4 * q).to(dtype), "k": k.to(dtype), "v": v.to(dtype), "g": gate, "beta": beta.to(dtype)}
