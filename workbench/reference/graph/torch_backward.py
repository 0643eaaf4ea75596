"""ATen's operations that autograd alone asks for, as plain code. torch decomposes the others."""

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from workbench.reference.graph import functions
from workbench.reference.graph.arrays import Traced, held
from workbench.reference.graph.contractions import matmul
from workbench.reference.graph.torch_again import again
from workbench.reference.graph.torch_composites import attention_scores
from workbench.reference.graph.torch_delta import of_softmax
from workbench.reference.graph.torch_elementwise import noting
from workbench.reference.graph.torch_moves import clone
from workbench.reference.graph.torch_tensor import DTYPES


def softmax_backward(g: Traced, y: Traced, dim: int, dtype: Any) -> Traced:
    """y (g - sum of g y)."""
    total = functions.sum_(again(g) * y, dim, keepdims=True)
    return noting(y * (g - of_softmax(total, g, y)), DTYPES[dtype])


def log_softmax_backward(g: Traced, y: Traced, dim: int, dtype: Any) -> Traced:
    """g - exp(y) times the sum of g."""
    return noting(g - np.exp(y) * functions.sum_(g, dim, keepdims=True), DTYPES[dtype])


def attention_backward(
    g: Traced, q: Traced, k: Traced, v: Traced, out: Traced, lse: Traced, dropout: float, causal: bool, *,
    attn_mask: Any = None, scale: float | None = None,
) -> tuple[Traced, Traced, Traced]:  # fmt: skip
    """Of q, k and v, with weights exp(scores - lse), as flash attention does it; delta is the sum of g out."""
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    probs = np.exp(attention_scores(q, k, causal, attn_mask, scale) - functions.expand_dims(lse, -1))
    delta = functions.sum_(g * out, -1, keepdims=True)
    turned = functions.swapaxes
    back = probs * (matmul(g, turned(v, -1, -2)) - delta) * scale
    made = matmul(back, k), matmul(turned(back, -1, -2), q), matmul(turned(probs, -1, -2), g)
    return noting(made[0], q.dtype), noting(made[1], k.dtype), noting(made[2], v.dtype)


def masked_scatter(x: Traced, mask: Traced, source: Traced) -> Traced:
    """x, with the elements of source, one after the other, where the mask is: a decision."""
    made, there = clone(x), np.broadcast_to(mask._taken("a mask as an index"), x.shape)
    made[there] = functions.reshape(source, (-1,))[: int(there.sum())]
    return made


def diagonal_backward(g: Traced, shape: Sequence[int], offset: int, dim1: int, dim2: int) -> Traced:
    """0 of a shape, with g on a diagonal."""
    places = np.arange(prod(shape)).reshape(tuple(shape)).diagonal(offset, dim1, dim2)
    made = held(g.run, np.zeros(prod(shape)), g.dtype)
    made[places.reshape(-1)] = functions.reshape(g, (-1,))
    return functions.reshape(made, tuple(shape))


BACKWARD: Mapping[str, Callable[..., Any]] = {
    "_softmax_backward_data": softmax_backward,
    "_log_softmax_backward_data": log_softmax_backward,
    "_scaled_dot_product_flash_attention_for_cpu_backward": attention_backward,
    "masked_scatter": masked_scatter,
    "diagonal_backward": diagonal_backward,
}
