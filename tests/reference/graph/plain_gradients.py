"""Plain torch whose gradients are asked for, with inputs: softmax, norms, losses, gates, loops, decisions."""

import torch
import torch.nn.functional as F


def drawn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def attention(q, k, v):
    scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    scores = scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1), float("-inf"))
    weights = torch.exp(scores - scores.amax(-1, keepdim=True))
    out = weights / weights.sum(-1, keepdim=True) @ v
    return out


def softmax(q, k, v):
    probs = torch.softmax(q @ k.T * q.shape[-1] ** -0.5, -1)
    return probs @ v


def fused(q, k, v):
    return F.scaled_dot_product_attention(q[None, None], k[None, None], v[None, None], is_causal=True)[0, 0]


def online(q, k, v):
    largest = torch.full((q.shape[0], 1), float("-inf"))
    total, acc = torch.zeros(q.shape[0], 1), torch.zeros_like(q)
    for i in range(0, len(k), 8):
        scores = q @ k[i : i + 8].T * q.shape[-1] ** -0.5
        new = torch.maximum(largest, scores.max(-1, keepdim=True).values)
        weights, correction = torch.exp(scores - new), torch.exp(largest - new)
        total = total * correction + weights.sum(-1, keepdim=True)
        acc = acc * correction + weights @ v[i : i + 8]
        largest = new
    return acc / total


def rmsnorm(x, weight):
    x32 = x.float()
    normed = x32 * torch.rsqrt(x32.pow(2).mean(-1, keepdim=True) + 1e-6)
    return (normed * weight.float()).to(x.dtype)


def layernorm(x, weight, bias):
    return F.layer_norm(x, x.shape[-1:], weight, bias)


def by_hand(x, weight, bias):
    off = x - x.mean(-1, keepdim=True)
    return off * torch.rsqrt(off.pow(2).mean(-1, keepdim=True) + 1e-5) * weight + bias


def cross_entropy(x, target):
    return F.cross_entropy(x, target, label_smoothing=0.1)


def picked(x, target):
    return (x.logsumexp(-1) - x.gather(-1, target[:, None])[:, 0]).mean()


def swiglu(x, gate, up, down):
    return (F.silu(x @ gate) * (x @ up)) @ down


def linear_attention(q, k, v, g):
    state, out = torch.zeros(q.shape[-1], v.shape[-1]), torch.zeros_like(v)
    for t in range(len(q)):
        state.mul_(g[t].exp()).add_(k[t][:, None] * v[t][None])
        out[t] = (q[t][:, None] * state.clone()).sum(0)
    return out


def decisions(x, y):
    chosen = torch.where(x > y, x * y, x - y).clamp(-1, 1)
    return chosen.amax(-1) + torch.maximum(x, y).sum(-1) + F.relu(x - 0.3).max(-1).values


def causal_conv(x, weight, bias):
    return F.silu(F.conv1d(F.pad(x, (3, 0)), weight, bias, groups=x.shape[1]))


def routed(x, router, experts):
    probs = torch.softmax(x @ router, -1)
    top, places = probs.topk(2, -1)
    return torch.einsum("td,tkde,tk->te", x, experts[places], top / top.sum(-1, keepdim=True))


def embedded(table, places, weight):
    return F.embedding(places, table) @ weight


T, D = 16, 8
QKV = {"q": drawn(T, D), "k": drawn(T, D, seed=1), "v": drawn(T, D, seed=2)}
AFFINE = {"x": drawn(T, D), "weight": drawn(D, seed=1), "bias": drawn(D, seed=2)}
CLASSES = {"x": 3 * drawn(T, D), "target": torch.arange(T) % D}
#: name -> the function, and its inputs
PLAIN = {
    "attention": (attention, QKV), "softmax": (softmax, QKV), "fused": (fused, QKV), "online": (online, QKV),
    "rmsnorm": (rmsnorm, {"x": drawn(T, D), "weight": drawn(D, seed=1)}), "layernorm": (layernorm, AFFINE),
    "layernorm by hand": (by_hand, AFFINE), "cross_entropy": (cross_entropy, CLASSES), "picked": (picked, CLASSES),
    "swiglu": (swiglu, {"x": drawn(T, D), "gate": drawn(D, 12, seed=1), "up": drawn(D, 12, seed=2), "down": drawn(12, D)}),
    "linear_attention": (linear_attention, {name: x[:6, :4] for name, x in QKV.items()} | {"g": -drawn(6, 1).abs()}),
    "decisions": (decisions, {"x": drawn(T, D), "y": drawn(T, D, seed=1)}),
    "causal_conv": (causal_conv, {"x": drawn(2, 4, T), "weight": drawn(4, 1, 4), "bias": drawn(4)}),
    "routed": (routed, {"x": drawn(T, D), "router": drawn(D, 6, seed=1), "experts": drawn(6, D, 5)}),
    "embedded": (embedded, {"table": drawn(10, D), "places": torch.arange(T) % 7, "weight": drawn(D, 5, seed=1)}),
}  # fmt: skip
