"""Attention in NumPy's float32 with mistakes that real kernels have, each from `out` alone or with lse."""

from collections.abc import Callable
from typing import Any

import numpy as np

F32 = np.float32
Array = Any
Kernel = Callable[..., Any]


def softmax(q: Array, k: Array, v: Array, scale: float, causal: bool) -> tuple[Array, Array]:
    """out and lse of query heads [b, h, q, d] and kv heads [b, h // group, k, d]."""
    k, v = (np.repeat(x, q.shape[1] // x.shape[1], 1) for x in (k, v))
    scores = q @ k.swapaxes(-1, -2) * F32(scale)
    n, m = scores.shape[-2:]
    if causal:
        scores = np.where(np.tri(n, m, m - n, dtype=bool), scores, F32(-np.inf))
    top = scores.max(-1, keepdims=True)
    p = np.exp(scores - top)
    total = p.sum(-1, keepdims=True)
    return p @ v / total, (top + np.log(total))[..., 0]


def kernel(
    q: Kernel | None = None,
    k: Kernel | None = None,
    v: Kernel | None = None,
    out: Kernel | None = None,
    lse: Kernel | None = None,
    of: Callable[..., tuple[Array, Array]] = softmax,
) -> Callable[[bool], Kernel]:
    """A kernel that changes what it reads or stores so; of True it returns lse, too."""
    named = {"q": q, "k": k, "v": v, "out": out, "lse": lse}

    def changed(name: str, x: Array) -> Array:
        change = named[name]
        return x if change is None else change(x)

    def returning(with_lse: bool) -> Kernel:
        def attention(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Any:
            read = [changed(name, x.astype(F32)).astype(F32) for name, x in zip("qkv", (q, k, v), strict=True)]
            with np.errstate(all="ignore"):
                o, l = of(*read, scale, causal)
            o, l = changed("out", o).astype(q.dtype), changed("lse", l).astype(F32)
            return (o, l) if with_lse else o

        return attention

    return returning


def as_bshd(x: Array) -> Array:
    """[b, h, s, ...] of memory that is taken for [b, s, h, ...]."""
    b, h, s, *rest = x.shape
    return np.ascontiguousarray(x).reshape(b, s, h, *rest).swapaxes(1, 2)


def as_bhsd(x: Array) -> Array:
    """[b, h, s, ...] of memory that holds [b, s, h, ...]."""
    return np.ascontiguousarray(x.swapaxes(1, 2)).reshape(x.shape)


def over_heads(q: Array, k: Array, v: Array, scale: float, causal: bool) -> tuple[Array, Array]:
    """Attention that takes the axis of heads for that of rows."""
    out, lse = softmax(*(x.swapaxes(1, 2) for x in (q, k, v)), scale, causal)
    return out.swapaxes(1, 2), lse.swapaxes(1, 2)


def zeros_behind(size: int, pad: int) -> Kernel:
    """Tiles of `size` rows dim + `pad` apart, of which zeros are stored from element rows * dim on."""

    def change(x: Array) -> Array:
        x, d = x.copy(), x.shape[-1]
        for first in range(0, x.shape[2], size):
            rows = x[:, :, first : first + size]
            n = rows.shape[2]
            tile = np.zeros((*x.shape[:2], n, d + pad), F32)
            tile[..., :d] = rows
            tile.reshape(*x.shape[:2], -1)[..., n * d :] = 0
            x[:, :, first : first + size] = tile[..., :d]
        return x

    return change


def wide(multiple: int) -> Kernel:
    """Rows up to a multiple of dims, whose padding is what follows in memory, and 0 behind its end."""

    def change(x: Array) -> Array:
        d = x.shape[-1]
        n = -(-d // multiple) * multiple
        flat = np.concatenate([x.reshape(-1), np.zeros(n, F32)])
        return flat[np.arange(x.size // d)[:, None] * d + np.arange(n)].reshape(*x.shape[:3], n)

    return change


def only(dims: Callable[[Array, Array, int], Array]) -> Kernel:
    """Dims of rows alone, of dim, row and head_dim; the others as 0."""
    return lambda x: np.where(dims(np.arange(x.shape[-1]), np.arange(x.shape[2])[:, None], x.shape[-1]), x, 0)


def of_lanes(n: int, lane: Callable[[Array], Array]) -> Callable[..., tuple[Array, Array]]:
    """Attention of each lane by itself, for its own dims of q and of out; lane 0 stores lse."""

    def of(q: Array, k: Array, v: Array, scale: float, causal: bool) -> tuple[Array, Array]:
        mine = lane(np.arange(q.shape[-1]))
        parts = [softmax(q * (mine == i), k, v, scale, causal) for i in range(n)]
        return sum(o * (mine == i) for i, (o, _) in enumerate(parts)), parts[0][1]

    return of


def merged(
    splits: int, merge: Callable[[Array, Array, int], tuple[Array, Array]]
) -> Callable[..., tuple[Array, Array]]:
    """Splits of the keys, whose out [split, b, h, q, d] and lse `merge` puts together; and the group of q's heads."""

    def of(q: Array, k: Array, v: Array, scale: float, causal: bool) -> tuple[Array, Array]:
        group = q.shape[1] // k.shape[1]
        parts = [
            softmax(q, x, y, scale, False)
            for x, y in zip(np.array_split(k, splits, 2), np.array_split(v, splits, 2), strict=True)
        ]
        return merge(*(np.stack(x) for x in zip(*parts, strict=True)), group)

    return of


def by_exp(out: Array, lse: Array, group: int) -> tuple[Array, Array]:
    """Weights e^lse, from which no maximum is subtracted."""
    weight = np.exp(lse)
    total = weight.sum(0)
    return (weight[..., None] * out).sum(0) / total[..., None], np.log(total)


def by_lse_of(head: Callable[[Array, int], Array]) -> Callable[[Array, Array, int], tuple[Array, Array]]:
    """Weights of the lse of another head, of heads and the size of a group."""

    def merge(out: Array, lse: Array, group: int) -> tuple[Array, Array]:
        taken = lse[:, :, head(np.arange(lse.shape[2]), group)]
        top = taken.max(0)
        weight = np.exp(taken - top)
        total = weight.sum(0)
        return (weight[..., None] * out).sum(0) / total[..., None], top + np.log(total)

    return merge
