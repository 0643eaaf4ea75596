"""Operations as naive NumPy functions, as projects write them."""

import numpy as np


def rmsnorm(x, weight, *, eps=1e-6):
    mean = np.mean(x * x, axis=-1, keepdims=True)
    rstd = 1 / np.sqrt(mean + eps)
    out = x * rstd * weight
    return out


def rope(x, *, theta=10000.0):
    half = x.shape[-1] // 2
    inverse = 1.0 / theta ** (np.arange(half) / half)
    angles = np.arange(x.shape[-2])[:, None] * inverse
    cos, sin = np.cos(angles), np.sin(angles)
    first, second = x[..., :half], x[..., half:]
    return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


def cross_entropy(logits, labels, *, smoothing=0.1):
    top = logits.max(axis=-1, keepdims=True)
    lse = top + np.log(np.exp(logits - top).sum(axis=-1, keepdims=True))
    logs = logits - lse
    rows = np.arange(len(labels))
    loss = -(1 - smoothing) * logs[rows, labels] - smoothing * logs.mean(axis=-1)
    grad = np.exp(logs) - smoothing / logits.shape[-1]
    grad[rows, labels] -= 1 - smoothing
    return loss.mean(), grad / len(labels)


def layer_norm_backward(x, dy, weight, *, eps=1e-5):
    mean = x.mean(-1, keepdims=True)
    rstd = 1 / np.sqrt(((x - mean) ** 2).mean(-1, keepdims=True) + eps)
    normed = (x - mean) * rstd
    scaled = dy * weight
    dx = (scaled - scaled.mean(-1, keepdims=True) - normed * (scaled * normed).mean(-1, keepdims=True)) * rstd
    return dx, (dy * normed).sum(0), dy.sum(0)


def linear_attention(q, k, v, log_decay):
    heads, tokens, dim = q.shape
    state = np.zeros((heads, dim, v.shape[-1]), dtype=np.float32)
    out = np.zeros_like(v)
    for t in range(tokens):
        state = np.exp(log_decay[:, t])[:, :, None] * state + k[:, t, :, None] * v[:, t, None, :]
        out[:, t] = (q[:, t, :, None] * state).sum(-2)
    return out, state


def chunked_linear_attention(q, k, v, log_decay, *, chunk=16):
    heads, tokens, dim = q.shape
    state = np.zeros((heads, dim, v.shape[-1]))
    out = np.empty(v.shape)
    for first in range(0, tokens, chunk):
        at = slice(first, first + chunk)
        total = np.cumsum(log_decay[:, at], axis=1)
        queries, keys = q[:, at] * np.exp(total), k[:, at] * np.exp(-total)
        inside = np.tril(queries @ keys.swapaxes(-1, -2))
        out[:, at] = queries @ state + inside @ v[:, at]
        last = total[:, -1:]
        state = np.exp(last).swapaxes(-1, -2) * state + (k[:, at] * np.exp(last - total)).swapaxes(-1, -2) @ v[:, at]
    return out, state


def gated_delta_rule(q, k, v, gate, beta, state):
    outs = []
    for t in range(k.shape[1]):
        recalled = np.einsum("hd,hde->he", k[:, t], state)
        written = beta[:, t, None] * (v[:, t] - gate[:, t, None] * recalled)
        state = gate[:, t, None, None] * state + k[:, t, :, None] * written[:, None, :]
        outs.append(np.einsum("hd,hde->he", q[:, t], state))
    return np.stack(outs, axis=1), state


def experts(x, gate, *, k=2):
    logits = x @ gate
    chosen = np.argsort(-logits, axis=-1, kind="stable")[:, :k]
    best = np.take_along_axis(logits, chosen, axis=-1)
    weights = np.exp(best - best.max(axis=-1, keepdims=True))
    return chosen, weights / weights.sum(axis=-1, keepdims=True)


def scaled_gemm(a, b, *, block=32):
    blocks = a.reshape(a.shape[0], -1, block)
    scale = np.maximum(np.abs(blocks).max(axis=-1, keepdims=True), 1e-12) / 127.0
    codes = np.clip(np.round(blocks / scale), -127, 127).astype(np.int8)
    products = np.einsum("nkb,kbm->nkm", codes.astype(np.float32), b.reshape(-1, block, b.shape[1]))
    return codes, (products * scale).sum(axis=1)


def gelu(x, w):
    y = x @ w
    return 0.5 * y * (1 + np.tanh(np.sqrt(2 / np.pi) * (y + 0.044715 * y**3)))
