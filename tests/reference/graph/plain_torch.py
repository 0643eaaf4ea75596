"""Naive references in torch as libraries of linear attention have them: loops over tokens, chunks, casts, views."""

import torch
import torch.nn.functional as F


def delta_rule(q, k, v, beta):
    q, k, v, beta = (x.transpose(1, 2).contiguous().to(torch.float32) for x in (q, k, v, beta))
    b, h, length, d_k, d_v = *k.shape, v.shape[-1]
    o = torch.zeros_like(v)
    s = torch.zeros(b, h, d_k, d_v).to(v)
    q = q * (d_k**-0.5)
    for i in range(length):
        k_i, q_i, v_i, beta_i = k[:, :, i], q[:, :, i], v[:, :, i].clone(), beta[:, :, i]
        v_i = v_i - (s.clone() * k_i[..., None]).sum(-2)
        v_i = v_i * beta_i[..., None]
        s = s.clone() + k_i.unsqueeze(-1) * v_i.unsqueeze(-2)
        o[:, :, i] = torch.einsum("bhd,bhdm->bhm", q_i, s)
    return o.transpose(1, 2), s


def chunked_delta_rule(q, k, v, beta):
    size = 4
    q, k, v, beta = (x.transpose(1, 2).float() for x in (q, k, v, beta))
    b, h, length, d_k = q.shape
    pad = (size - length % size) % size
    q, k, v, beta = F.pad(q, (0, 0, 0, pad)), F.pad(k, (0, 0, 0, pad)), F.pad(v, (0, 0, 0, pad)), F.pad(beta, (0, pad))
    q = q * d_k**-0.5
    v, k_beta = v * beta[..., None], k * beta[..., None]
    mask = torch.triu(torch.ones(size, size, dtype=torch.bool, device=q.device), diagonal=0)
    q, k, v, k_beta = (x.unflatten(2, (-1, size)) for x in (q, k, v, k_beta))
    attn = -(k_beta @ k.transpose(-1, -2)).masked_fill(mask, 0)
    for i in range(1, size):
        attn[..., i, :i] = attn[..., i, :i] + (attn[..., i, :, None].clone() * attn[..., :, :i].clone()).sum(-2)
    attn = attn + torch.eye(size, dtype=torch.float, device=q.device)
    u, w = attn @ v, attn @ k_beta
    s = k.new_zeros(b, h, d_k, v.shape[-1])
    o = torch.zeros_like(v)
    strict = torch.triu(torch.ones(size, size, dtype=torch.bool), diagonal=1)
    for i in range(q.shape[2]):
        q_i, k_i = q[:, :, i], k[:, :, i]
        inside = (q_i @ k_i.transpose(-1, -2)).masked_fill_(strict, 0)
        fresh = u[:, :, i] - w[:, :, i] @ s
        o[:, :, i] = q_i @ s + inside @ fresh
        s = s + k_i.transpose(-1, -2) @ fresh
    o = o.reshape(b, h, -1, o.shape[-1])[:, :, :length]
    return o.transpose(1, 2), s


def gated_delta_rule(q, k, v, beta, g):
    q, k = F.normalize(q.float(), p=2, dim=-1), k / torch.sqrt(k.square().sum(-1, keepdim=True) + 1e-6)
    q, k, v, beta, g = (x.transpose(1, 2).contiguous().to(torch.float32) for x in (q, k, v, beta.sigmoid(), g))
    h = q.new_zeros(*q.shape[:2], q.shape[-1], v.shape[-1])
    outs = []
    for t in range(q.shape[2]):
        h = h.clone() * g[:, :, t].exp()[..., None, None]
        new = beta[:, :, t].unsqueeze(-1) * (v[:, :, t] - torch.einsum("bhk,bhkv->bhv", k[:, :, t], h))
        h += torch.einsum("bhk,bhv->bhkv", k[:, :, t], new)
        outs.append(torch.einsum("bhk,bhkv->bhv", q[:, :, t] * q.shape[-1] ** -0.5, h))
    return torch.stack(outs, 2).transpose(1, 2), h


def gla(q, k, v, g):
    dtype = q.dtype
    q, k, v, g = map(lambda x: x.transpose(1, 2).float(), (q, k, v, g))
    o, h = torch.zeros_like(v), q.new_zeros(*q.shape[:2], q.shape[-1], v.shape[-1], dtype=torch.float32)
    for i in range(q.shape[2]):
        kv_i = k[:, :, i][..., None] * v[:, :, i][..., None, :]
        h = h * g[:, :, i].exp()[..., None] + kv_i
        o[:, :, i] = ((q[:, :, i] * q.shape[-1] ** -0.5)[..., None] * h).sum(-2)
    return o.transpose(1, 2).to(dtype), h


def linear_attention(q, k, v):
    q, k = F.elu(q) + 1, F.relu(k) ** 2
    kv = torch.zeros(q.shape[0], q.shape[2], q.shape[-1], v.shape[-1])
    z, o = torch.zeros_like(kv[..., 0]), torch.empty_like(v)
    for t in range(q.shape[1]):
        kv += k[:, t].unsqueeze(-1) * v[:, t].unsqueeze(-2)
        z.add_(k[:, t])
        o[:, t] = (q[:, t].unsqueeze(-2) @ kv).squeeze(-2) / ((q[:, t] * z).sum(-1, True) + 1e-10)
    return o


def rwkv(r, k, v, w, u):
    r, k, v, w = (x.transpose(1, 2) for x in (r, k, v, w))
    h = torch.zeros(*r.shape[:2], r.shape[-1], v.shape[-1], dtype=torch.float32, device=r.device)
    o = torch.zeros_like(v)
    for i in range(r.shape[-2]):
        q_i, k_i, v_i, w_i = r[:, :, i], k[:, :, i], v[:, :, i], (-F.softplus(-w[:, :, i]) - 0.5).exp().neg().exp()
        kv_i = k_i[..., None] * v_i[..., None, :]
        o_i = (h + u[None, ..., None] * kv_i) * q_i[..., None]
        o[:, :, i] = o_i.sum(-2)
        h = h * w_i[..., None] + kv_i
    return o, h


def kda(q, k, v, g, beta):
    size = 4
    q, k, v, g = (
        x.view(x.shape[0], -1, size, *x.shape[2:]).permute(0, 3, 1, 2, 4).to(torch.float) for x in (q, k, v, g)
    )
    beta = beta.view(beta.shape[0], -1, size, beta.shape[-1]).permute(0, 3, 1, 2).to(torch.float)
    g = g.cumsum(-2)
    a = torch.zeros(*q.shape[:-1], size, dtype=torch.float, device=q.device)
    for i in range(size):
        a[..., i] = torch.einsum("...cd,...d->...c", k * (g - g[..., i : i + 1, :]).exp(), k[..., i, :])
    a = a * beta[..., None]
    a = -a.masked_fill(torch.ones(size, size).bool().triu(0), 0)
    for i in range(1, size):
        a[..., i, :i] = a[..., i, :i].clone() + (a[..., i, :, None].clone() * a[..., :, :i].clone()).sum(-2)
    a = (a + torch.eye(size)) * beta[..., None, :]
    w, u = a @ (g.exp() * k), a @ v
    s = k.new_zeros(*q.shape[:2], q.shape[-1], v.shape[-1])
    o = torch.zeros_like(v)
    for i in range(q.shape[2]):
        inside = torch.zeros(*q.shape[:2], size, size)
        for j in range(size):
            inside[..., j] = torch.einsum(
                "bhcd,bhd->bhc", q[:, :, i] * (g[:, :, i] - g[:, :, i, j : j + 1]).exp(), k[:, :, i, j]
            )
        inside = inside.masked_fill(torch.triu(torch.ones(size, size, dtype=torch.bool), 1), 0)
        v_i = u[:, :, i] - w[:, :, i] @ s
        o[:, :, i] = (q[:, :, i] * g[:, :, i].exp()) @ s + inside @ v_i
        s = s * g[:, :, i, -1, :, None].exp()
        s += ((g[:, :, i, -1:] - g[:, :, i]).exp() * k[:, :, i]).transpose(-1, -2) @ v_i
    return o.flatten(2, 3).transpose(1, 2), s


def hgrn(x, g):
    h, o = torch.zeros_like(x[:, 0]), torch.zeros_like(x)
    for i in range(x.shape[1]):
        h = F.logsigmoid(g[:, i]).exp() * h + (1 - torch.sigmoid(g[:, i])) * F.silu(x[:, i])
        o[:, i] = h
    return o, h


def retention(q, k, v):
    s = (1 - q.new_tensor(2.0, dtype=torch.float).pow(-5.0 - q.new_tensor(range(q.shape[2]), dtype=torch.float))).log2()
    n = q.new_tensor(range(q.shape[1]), dtype=torch.float)
    n = torch.exp2((n.unsqueeze(-1) - n) * s.view(-1, 1, 1)) * n.unsqueeze(-1).ge(n)
    s = torch.einsum("bqhd,bkhd,hqk->bhqk", q * q.shape[-1] ** -0.5, k, n.to(q.dtype))
    return torch.einsum("bhqk,bkhd->bqhd", s, v)


def forgetting_attention(q, k, v, g):
    scores = torch.einsum("bqhd,bkhd->bhqk", q.float() * q.shape[-1] ** -0.5, k.float())
    decay = g.float().cumsum(1).transpose(1, 2)
    scores = scores + decay[..., None] - decay.unsqueeze(-2)
    mask = torch.ones(scores.shape[-2:], dtype=torch.bool).tril_()
    probs = scores.masked_fill(mask.logical_not(), torch.finfo(scores.dtype).min).softmax(-1)
    return torch.einsum("bhqk,bkhd->bqhd", probs.to(v.dtype), v)


def grouped_window_attention(q, k, v):
    k, v = (x.repeat_interleave(2, dim=2)[:, :, : q.shape[2]] for x in (k, v))
    i, j = torch.arange(q.shape[1])[:, None], torch.arange(k.shape[1])[None]
    seen = (i >= j) & (i - j < 3)
    bias = torch.zeros(seen.shape).masked_fill(~seen, float("-inf"))
    return F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), attn_mask=bias)


def rotary(q, k):
    half = q.shape[-1] // 2
    inv_freq = 1.0 / (10000 ** (torch.arange(0, 2 * half, 2, dtype=torch.float32) / (2 * half)))
    freqs = torch.outer(torch.arange(q.shape[1], dtype=torch.float32), inv_freq)
    cos, sin = (x.repeat(1, 2)[:, None] for x in (freqs.cos().to(q.dtype), freqs.sin().to(q.dtype)))

    def rotate(x):
        a, b = x.chunk(2, dim=-1)
        return torch.cat((-b, a), dim=-1)

    return q * cos + rotate(q) * sin, k * cos + rotate(k) * sin


def short_convolution(x, weight, bias):
    y = F.conv1d(x.transpose(1, 2), weight.unsqueeze(1), bias, padding=weight.shape[-1] - 1, groups=weight.shape[0])
    return F.silu(y[..., : x.shape[1]].transpose(1, 2))


def gated_norm(x, gate, weight, bias):
    dtype = x.dtype
    x = x.float()
    y = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * weight
    z = F.layer_norm(x, x.shape[-1:], weight, bias, eps=1e-5)
    return (y * gate.float() * torch.sigmoid(gate.float())).to(dtype) + z * F.gelu(gate)


def fused_linear_cross_entropy(x, weight, target):
    logits = (x @ weight.t()).float()
    logits = 15 * torch.tanh(logits / 15)
    lse = logits.logsumexp(-1)
    loss = F.cross_entropy(logits, target, reduction="none", label_smoothing=0.1)
    probs = logits.softmax(-1)
    probs.scatter_add_(1, target[:, None], -torch.ones_like(target[:, None], dtype=probs.dtype))
    return loss.mean() + 1e-4 * (lse**2).mean(), probs @ weight, F.one_hot(target, weight.shape[0]).to(x.dtype).t() @ x


def mixture_of_experts(x, gate, w1, w2):
    probs = F.softmax(x @ gate.t(), dim=-1, dtype=torch.float)
    weights, chosen = torch.topk(probs, 2, dim=-1)
    weights = weights / weights.sum(dim=-1, keepdim=True)
    mask = F.one_hot(chosen, gate.shape[0]).permute(2, 1, 0)
    out = torch.zeros_like(x)
    for e in range(gate.shape[0]):
        slot, token = torch.where(mask[e])
        if token.shape[0] == 0:
            continue
        y = F.linear(F.silu(F.linear(x[token], w1[e])), w2[e])
        out.index_add_(0, token, y * weights[token, slot, None])
    return out


def layer_norm_backward(x, weight, dy):
    mean, var = x.mean(-1, keepdim=True), x.var(-1, keepdim=True, unbiased=False)
    rstd = (var + 1e-5).rsqrt()
    x_hat = (x - mean).mul_(rstd)
    wdy = weight * dy
    c1, c2 = (x_hat * wdy).sum(-1, keepdim=True).div(x.shape[-1]), wdy.mean(-1, keepdim=True)
    return (wdy - (x_hat * c1 + c2)) * rstd, (dy * x_hat).sum(0), dy.sum(0)


def quantised(x, w):
    scale = x.abs().view(x.shape[0], -1, 4).amax(2).clamp(1e-4)
    codes = (x.view(x.shape[0], -1, 4) * (448.0 / scale.unsqueeze(2))).to(torch.float8_e4m3fn)
    ints = torch.clamp(torch.round(w / (w.abs().amax(-1, keepdim=True) / 127)), -128, 127).to(torch.int8)
    back = codes.to(torch.float32) * (scale / 448.0).unsqueeze(2)
    return back.view_as(x) @ ints.float().t()


def inputs(f):
    gen = torch.Generator().manual_seed(7)

    def normal(*shape):
        return torch.randn(*shape, generator=gen)

    b, t, h, d, e = 2, 8, 2, 6, 4
    named = {
        "q": lambda: normal(b, t, h, d), "k": lambda: normal(b, t, h, d) / 3, "v": lambda: normal(b, t, h, e),
        "r": lambda: normal(b, t, h, d), "w": lambda: normal(b, t, h, d), "u": lambda: normal(h, d),
        "beta": lambda: torch.rand(b, t, h, generator=gen), "g": lambda: -normal(b, t, h, d).abs() / 4,
    }  # fmt: skip
    own = {
        gated_delta_rule: {"g": lambda: -normal(b, t, h).abs() / 4}, forgetting_attention: {"g": lambda: -normal(b, t, h).abs()},
        hgrn: {"x": lambda: normal(b, t, d), "g": lambda: normal(b, t, d)},
        short_convolution: {"x": lambda: normal(b, t, d), "weight": lambda: normal(d, 4), "bias": lambda: normal(d)},
        gated_norm: {"x": lambda: normal(t, d), "gate": lambda: normal(t, d), "weight": lambda: normal(d), "bias": lambda: normal(d)},
        fused_linear_cross_entropy: {"x": lambda: normal(t, d), "weight": lambda: normal(10, d), "target": lambda: torch.arange(t) % 5},
        mixture_of_experts: {"x": lambda: normal(t, d), "gate": lambda: normal(3, d), "w1": lambda: normal(3, 8, d), "w2": lambda: normal(3, d, 8)},
        layer_norm_backward: {"x": lambda: normal(t, d), "weight": lambda: normal(d), "dy": lambda: normal(t, d)},
        quantised: {"x": lambda: normal(t, 8), "w": lambda: normal(d, 8)},
    }  # fmt: skip
    names = f.__code__.co_varnames[: f.__code__.co_argcount]
    return {name: own.get(f, {}).get(name, named.get(name))() for name in names}


REFERENCES = [
    delta_rule, chunked_delta_rule, gated_delta_rule, gla, linear_attention, rwkv, kda, hgrn, retention,
    forgetting_attention, grouped_window_attention, rotary, short_convolution, gated_norm, fused_linear_cross_entropy,
    mixture_of_experts, layer_norm_backward, quantised,
]  # fmt: skip
