"""Ten references, each in NumPy and in torch: the same formulas, the same names, in the idiom of each library."""

import numpy as np
import torch
import torch.nn.functional as F


class OfNumpy:
    def attention(q, k, v):
        scores = np.einsum("hqd,hkd->hqk", q, k) * q.shape[-1] ** -0.5
        seen = np.tril(np.ones(scores.shape[-2:], bool))
        masked = np.where(seen, scores, -np.inf)
        weights = np.exp(masked - masked.max(-1, keepdims=True))
        probs = weights / weights.sum(-1, keepdims=True)
        out = probs @ v
        return out

    def softmax(x):
        weights = np.exp(x - np.max(x, axis=-1, keepdims=True))
        return weights / np.sum(weights, axis=-1, keepdims=True)

    def rmsnorm(x, weight):
        mean = np.mean(np.square(x), axis=-1, keepdims=True)
        scale = 1 / np.sqrt(mean + 1e-6)
        normed = x * scale
        return normed * weight

    def layernorm_backward(x, weight, dy):
        n = x.shape[-1]
        mean = x.sum(-1, keepdims=True) / n
        off = x - mean
        rstd = 1 / np.sqrt((off * off).sum(-1, keepdims=True) / n + 1e-5)
        normed = off * rstd
        dnormed = dy * weight
        inner = dnormed.mean(-1, keepdims=True)
        along = (dnormed * normed).mean(-1, keepdims=True)
        dx = rstd * (dnormed - inner - normed * along)
        dweight = np.sum(dy * normed, axis=0)
        dbias = np.sum(dy, axis=0)
        return dx, dweight, dbias

    def cross_entropy(logits, target):
        top = logits.max(-1, keepdims=True)
        off = logits - top
        lse = np.log(np.exp(off).sum(-1))
        picked = off[np.arange(len(target)), target]
        losses = lse - picked
        probs = np.exp(off - lse[:, None])
        grad = probs.copy()
        grad[np.arange(len(target)), target] -= 1.0
        grad /= len(target)
        return losses.mean(), grad

    def gated_delta_rule(q, k, v, g, beta):
        length, d = q.shape
        state = np.zeros((d, v.shape[-1]), np.float32)
        out = np.zeros_like(v)
        for t in range(length):
            state = state * np.exp(g[t])
            read = (state * k[t][:, None]).sum(0)
            fresh = (v[t] - read) * beta[t]
            state = state + k[t][:, None] * fresh[None, :]
            out[t] = (state * q[t][:, None]).sum(0)
        return out, state

    def chunked_gla(q, k, v, g):
        size = 4
        state = np.zeros((q.shape[-1], v.shape[-1]), np.float32)
        out = np.zeros(v.shape, v.dtype)
        seen = np.tril(np.ones((size, size), bool))
        for first in range(0, len(q), size):
            part = slice(first, first + size)
            decay = np.cumsum(g[part], axis=0)
            inside = q[part] * np.exp(decay)
            scores = np.where(seen, inside @ (k[part] * np.exp(-decay)).T, 0.0)
            out[part] = scores @ v[part] + inside @ state
            last = decay[-1]
            state = state * np.exp(last)[:, None] + (k[part] * np.exp(last - decay)).T @ v[part]
        return out, state

    def moe_gate(x, weight):
        logits = x @ weight.T
        weights = np.exp(logits - logits.max(-1, keepdims=True))
        probs = weights / weights.sum(-1, keepdims=True)
        places = np.argsort(-probs, axis=-1, kind="stable")[:, :2]
        values = np.take_along_axis(probs, places, axis=-1)
        gates = values / values.sum(-1, keepdims=True)
        return gates, places

    def rope(x):
        half = x.shape[-1] // 2
        inverse = 10000.0 ** (-np.arange(half) / half)
        angle = np.arange(x.shape[0])[:, None] * inverse
        cos, sin = np.cos(angle), np.sin(angle)
        a, b = x[:, :half], x[:, half:]
        return np.concatenate([a * cos - b * sin, a * sin + b * cos], axis=-1)

    def block_scaled(a, b, a_scale, b_scale):
        out = np.zeros((a.shape[0], b.shape[0]), np.float32)
        for i in range(a_scale.shape[1]):
            part = slice(4 * i, 4 * i + 4)
            block = a[:, part].astype(np.float32) @ b[:, part].astype(np.float32).T
            out += block * a_scale[:, i : i + 1] * b_scale[None, :, i]
        return out


class OfTorch:
    def attention(q, k, v):
        scores = torch.einsum("hqd,hkd->hqk", q, k) * q.shape[-1] ** -0.5
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).tril()
        masked = scores.masked_fill(~seen, float("-inf"))
        weights = (masked - masked.amax(-1, keepdim=True)).exp()
        probs = weights / weights.sum(-1, keepdim=True)
        out = torch.matmul(probs, v)
        return out

    def softmax(x):
        weights = torch.exp(x - x.max(dim=-1, keepdim=True).values)  # noqa: F841  # a stage, as in NumPy
        return F.softmax(x, dim=-1)

    def rmsnorm(x, weight):
        mean = x.pow(2).mean(-1, keepdim=True)
        scale = 1 / torch.sqrt(mean + 1e-6)
        normed = x * scale
        return normed * weight

    def layernorm_backward(x, weight, dy):
        n = x.size(-1)
        mean = x.sum(-1, keepdim=True).div(n)
        off = x.sub(mean)
        rstd = 1 / ((off * off).sum(dim=-1, keepdim=True) / n + 1e-5).sqrt()
        normed = off.mul(rstd)
        dnormed = dy * weight
        inner = dnormed.mean(dim=-1, keepdim=True)
        along = torch.mean(dnormed * normed, -1, True)
        dx = rstd * (dnormed - inner - normed * along)
        dweight = (dy * normed).sum(0)
        dbias = dy.sum(dim=0)
        return dx, dweight, dbias

    def cross_entropy(logits, target):
        top = logits.amax(dim=-1, keepdim=True)
        off = logits - top
        lse = off.exp().sum(-1).log()
        picked = off[torch.arange(len(target)), target]
        losses = lse - picked
        probs = (off - lse.unsqueeze(-1)).exp()
        grad = probs.clone()
        grad[torch.arange(len(target)), target] -= 1.0
        grad /= len(target)
        return losses.mean(), grad

    def gated_delta_rule(q, k, v, g, beta):
        length, d = q.shape
        state = torch.zeros(d, v.shape[-1], dtype=torch.float)
        out = torch.zeros_like(v)
        for t in range(length):
            state = state * g[t].exp()
            read = (state * k[t].unsqueeze(-1)).sum(0)
            fresh = (v[t] - read) * beta[t]
            state = state + k[t][..., None] * fresh[None]
            out[t] = (state * q[t].view(-1, 1)).sum(0)
        return out, state

    def chunked_gla(q, k, v, g):
        size = 4
        state = q.new_zeros(q.shape[-1], v.shape[-1])
        out = torch.zeros_like(v)
        seen = torch.tril(torch.ones(size, size)).bool()
        for first in range(0, len(q), size):
            part = slice(first, first + size)
            decay = g[part].cumsum(dim=0)
            inside = q[part] * decay.exp()
            scores = (inside @ (k[part] * (-decay).exp()).transpose(0, 1)).masked_fill(~seen, 0)
            out[part] = scores @ v[part] + inside @ state
            last = decay[-1]
            state = state * last.exp()[:, None] + (k[part] * (last - decay).exp()).t() @ v[part]
        return out, state

    def moe_gate(x, weight):
        logits = F.linear(x, weight)
        weights = torch.exp(logits - logits.max(-1, keepdim=True)[0])
        probs = weights / weights.sum(-1, keepdim=True)
        values, places = torch.topk(probs, 2, dim=-1)
        gates = values / values.sum(dim=-1, keepdim=True)
        return gates, places

    def rope(x):
        half = x.shape[-1] // 2
        inverse = 10000.0 ** (-torch.arange(half) / half)
        angle = torch.outer(torch.arange(x.shape[0]), inverse)
        cos, sin = angle.cos(), angle.sin()
        a, b = x.chunk(2, dim=-1)
        return torch.cat((a * cos - b * sin, a * sin + b * cos), dim=-1)

    def block_scaled(a, b, a_scale, b_scale):
        out = torch.zeros(a.shape[0], b.shape[0])
        for i in range(a_scale.shape[1]):
            part = slice(4 * i, 4 * i + 4)
            block = a[:, part].float() @ b[:, part].float().t()
            out += block * a_scale[:, i : i + 1] * b_scale[None, :, i]
        return out


def inputs(name: str) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(5)

    def normal(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape).astype(np.float32)

    def codes(*shape: int) -> np.ndarray:
        return rng.integers(-7, 8, shape).astype(np.int8)

    decays = -abs(normal(12, 6)) / 4
    made = {
        "attention": lambda: {"q": normal(2, 8, 6), "k": normal(2, 8, 6), "v": normal(2, 8, 5)},
        "softmax": lambda: {"x": normal(5, 9)},
        "rmsnorm": lambda: {"x": normal(5, 8), "weight": normal(8)},
        "layernorm_backward": lambda: {"x": normal(5, 8), "weight": normal(8), "dy": normal(5, 8)},
        "cross_entropy": lambda: {"logits": normal(6, 9), "target": rng.integers(0, 9, 6)},
        "gated_delta_rule": lambda: {"q": normal(7, 6), "k": normal(7, 6) / 4, "v": normal(7, 5), "g": decays[:7, 0],
                                     "beta": abs(normal(7))},
        "chunked_gla": lambda: {"q": normal(12, 6), "k": normal(12, 6), "v": normal(12, 5), "g": decays},
        "moe_gate": lambda: {"x": normal(7, 6), "weight": normal(8, 6)},
        "rope": lambda: {"x": normal(5, 8)},
        "block_scaled": lambda: {"a": codes(6, 12), "b": codes(5, 12), "a_scale": abs(normal(6, 3)),
                                 "b_scale": abs(normal(5, 3))},
    }  # fmt: skip
    return made[name]()


NAMES = [name for name in vars(OfNumpy) if not name.startswith("_")]
