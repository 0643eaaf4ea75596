"""Shapes: what broadcasting spread, and how it is summed again."""

from typing import Any

from array_api_compat import device

from workbench.floats import array_namespace


def to_shape(g: Any, shape: tuple[int, ...]) -> Any:
    """g summed over what broadcasting from `shape` spread."""
    xp = array_namespace(g)
    if g.ndim > len(shape):
        g = xp.sum(g, axis=tuple(range(g.ndim - len(shape))))
    spread = tuple(i for i, n in enumerate(shape) if n == 1 and g.shape[i] != 1)
    return xp.sum(g, axis=spread, keepdims=True) if spread else g


def spread(e: Any, like: Any) -> Any:
    """e, an array or a float, in the shape of `like`."""
    if getattr(e, "shape", None) == like.shape:
        return e
    xp = array_namespace(like)
    return xp.broadcast_to(xp.asarray(e, dtype=xp.float64, device=device(like)), like.shape)
