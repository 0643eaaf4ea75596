"""ATen's operations that are made of several primitives, each as the naive code that it stands for."""

from collections.abc import Callable, Mapping, Sequence
from math import pi, sqrt
from typing import Any

import numpy as np

from workbench.reference.graph import functions
from workbench.reference.graph.arrays import Traced, held
from workbench.reference.graph.contractions import matmul
from workbench.reference.graph.torch_elementwise import floating, noting, promoted, where
from workbench.reference.graph.torch_places import within
from workbench.reference.graph.torch_sums import logsumexp


def softmax(x: Traced, dim: int, half_to_float: bool = False) -> Traced:
    """exp of the distance to the largest, by its sum."""
    weights = np.exp(x - functions.max_(x, dim, keepdims=True))
    return noting(weights / functions.sum_(weights, dim, keepdims=True), _softened(x, half_to_float))


def log_softmax(x: Traced, dim: int, half_to_float: bool = False) -> Traced:
    """The distance to the largest, less the log of the sum of its exp."""
    off = x - functions.max_(x, dim, keepdims=True)
    made = off - np.log(functions.sum_(np.exp(off), dim, keepdims=True))
    return noting(made, _softened(x, half_to_float))


def _softened(x: Traced, half_to_float: bool) -> np.dtype:
    return np.dtype(np.float32) if half_to_float else x.dtype


def sigmoid(x: Traced) -> Traced:
    """1 / (1 + exp(-x))."""
    return noting(1.0 / (1.0 + np.exp(-x)), floating(x.dtype))


def softplus(x: Traced, beta: Any = 1, threshold: Any = 20) -> Traced:
    """log(1 + exp(beta x)) / beta; x itself where beta x is above the threshold."""
    scaled = x if beta == 1 else x * beta
    soft = np.logaddexp(scaled, 0.0)
    return noting(functions.where(scaled > threshold, x, soft if beta == 1 else soft / beta), x.dtype)


def gelu(x: Traced, *, approximate: str = "none") -> Traced:
    """x Phi(x), by erf or by tanh."""
    if approximate == "tanh":
        inner = sqrt(2 / pi) * (x + 0.044715 * (x * x * x))
        return noting(0.5 * x * (1.0 + np.tanh(inner)), x.dtype)
    return noting(0.5 * x * (1.0 + erf(x * sqrt(0.5))), x.dtype)


def erf(x: Traced) -> Traced:
    """The error function, which NumPy does not have."""
    from workbench.reference.graph.rules import RULES

    return x.made("erf", {}, RULES["erf"].value(x.value), floating(x.dtype))


def layer_norm(x: Traced, shape: Sequence[int], weight: Any, bias: Any, eps: float) -> tuple[Traced, Traced, Traced]:
    """(x - mean) / sqrt(variance + eps), then weight, then bias; mean and 1 / sqrt."""
    axes = tuple(range(x.ndim - len(shape), x.ndim))
    mean = functions.mean(x, axes, keepdims=True)
    off = x - mean
    squares: Any = np.square(off)
    root = np.reciprocal(np.sqrt(functions.mean(squares, axes, keepdims=True) + eps))
    return noting(_scaled(off * root, weight, bias), x.dtype), mean, root


def group_norm(
    x: Traced, weight: Any, bias: Any, n: int, channels: int, size: int, groups: int, eps: float
) -> tuple[Traced, Traced, Traced]:
    """A layer norm of the channels of a group."""
    parts = functions.reshape(x, (n, groups, -1))
    made, mean, root = layer_norm(parts, [parts.shape[-1]], None, None, eps)
    lined = (1, channels) + (1,) * (x.ndim - 2)
    weight, bias = (None if one is None else functions.reshape(one, lined) for one in (weight, bias))
    flat = (n, groups)
    return _scaled(functions.reshape(made, x.shape), weight, bias), mean.reshape(flat), root.reshape(flat)


def rms_norm(x: Traced, shape: Sequence[int], weight: Any, eps: float | None) -> tuple[Traced, Traced]:
    """x / sqrt(mean square + eps), then weight."""
    axes = tuple(range(x.ndim - len(shape), x.ndim))
    eps = float(np.finfo(np.float32).eps) if eps is None else eps
    squares: Any = np.square(x)
    root = np.reciprocal(np.sqrt(functions.mean(squares, axes, keepdims=True) + eps))
    return noting(_scaled(x * root, weight, None), x.dtype), root


def _scaled(x: Traced, weight: Any, bias: Any) -> Traced:
    x = x if weight is None else x * weight
    return x if bias is None else x + bias


def nll_loss(
    x: Traced, target: Traced, weight: Traced | None, reduction: int, ignore: int
) -> tuple[Traced, Traced]:  # fmt: skip
    """-x at the target, by class weights; 0 where the target is to be ignored. reduction: 0 none, 1 mean, 2 sum."""
    seen = target != ignore
    at = functions.where(seen, target, 0)
    lined = within(functions.reshape(at, (*at.shape, 1)), x.shape[-1])
    loss = -functions.reshape(functions.take_along_axis(x, lined, -1), at.shape)
    each = functions.where(seen, 1.0 if weight is None else functions.take(weight, at), 0.0)
    if weight is not None:
        loss = loss * each
    elif not seen.value.all() or not seen.fixed:
        loss = functions.where(seen, loss, 0.0)
    total = each.sum()
    if reduction == 1:
        by = float(total.value) if total.fixed and weight is None else total
        return noting(loss.sum() / by, x.dtype), noting(total, x.dtype)
    return noting(loss.sum() if reduction == 2 else loss, x.dtype), noting(total, x.dtype)


def _reduced(loss: Traced, reduction: int) -> Traced:
    return loss.sum() / loss.size if reduction == 1 else loss.sum() if reduction == 2 else loss


def mse_loss(x: Traced, target: Traced, reduction: int = 1) -> Traced:
    """The square of the distance."""
    return noting(_reduced(np.square(x - target), reduction), promoted(x, target))


def bce_with_logits(
    x: Traced, target: Traced, weight: Any = None, pos_weight: Any = None, reduction: int = 1
) -> Traced:
    """(1 - t) x + w log(1 + exp(-x))."""
    soft = np.logaddexp(-x, 0.0)
    soft = soft if pos_weight is None else soft * (1 + (pos_weight - 1) * target)
    loss = (1 - target) * x + soft
    return noting(_reduced(loss if weight is None else loss * weight, reduction), promoted(x, target))


def attention(
    q: Traced, k: Traced, v: Traced, dropout: float = 0.0, causal: bool = False, *, attn_mask: Any = None,
    scale: float | None = None,
) -> tuple[Traced, Traced]:  # fmt: skip
    """softmax(q k^T scale + mask) v, and the logsumexp of the scores."""
    if dropout:
        q.run.refuse("no rule for attention with dropout")
    groups = q.shape[-3] // k.shape[-3] if q.ndim > 2 else 1
    if groups > 1:
        k, v = (functions.METHODS["repeat"](one, groups, axis=-3) for one in (k, v))
    scores = attention_scores(q, k, causal, attn_mask, q.shape[-1] ** -0.5 if scale is None else scale)
    return noting(matmul(softmax(scores, -1), v), q.dtype), logsumexp(scores, -1)


def attention_scores(q: Traced, k: Traced, causal: bool, mask: Any, scale: float) -> Traced:
    """q k^T scale, with a mask that is added, or -inf where it is False."""
    scores = matmul(q, functions.swapaxes(k, -1, -2)) * scale
    if causal:
        seen = np.tril(np.ones(scores.shape[-2:], bool))
        scores = functions.where(held(q.run, seen, seen.dtype), scores, -np.inf)
    if mask is not None:
        scores = where(mask, scores, -np.inf) if mask.dtype == bool else scores + mask
    return scores


COMPOSITES: Mapping[str, Callable[..., Any]] = {
    "_softmax": softmax, "_log_softmax": log_softmax, "sigmoid": sigmoid, "softplus": softplus, "gelu": gelu,
    "silu": lambda x: noting(x * sigmoid(x), x.dtype),
    "log_sigmoid_forward": lambda x: (noting(-np.logaddexp(-x, 0.0), x.dtype), np.exp(-np.abs(x))),
    "erf": erf,
    "leaky_relu": lambda x, slope=0.01: where(x > 0, x, x * slope),
    "elu": lambda x, alpha=1, scale=1, by=1: noting(functions.where(x > 0, x * scale, alpha * scale * np.expm1(x * by)),
                                                   x.dtype),
    "native_layer_norm": layer_norm, "native_group_norm": group_norm, "_fused_rms_norm": rms_norm,
    "nll_loss_forward": nll_loss, "mse_loss": mse_loss, "binary_cross_entropy_with_logits": bce_with_logits,
    "_scaled_dot_product_flash_attention_for_cpu": attention,
    "l1_loss": lambda x, target, reduction=1: noting(_reduced(np.abs(x - target), reduction), promoted(x, target)),
}  # fmt: skip
