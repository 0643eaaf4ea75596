"""RoPE in plain code: pairs of dims turned by their frequency times the token's position (Su et al. 2021, arXiv
2104.09864).
"""

import numpy as np

Array = np.ndarray


def rope(
    x: Array, positions: Array, *, base: float = 10000.0, pairs: str = "halves", table_dtype: str = "float32",
    product_dtype: str = "float32",
) -> Array:  # fmt: skip
    """x turned, of its shape and dtype.

    x: [batch, heads, tokens, dim], dim even; positions: [batch, tokens], whole numbers. base: of the frequencies
    base^(-2 pair / dim). pairs: `halves`, dim i with dim i + dim / 2, or `interleaved`, neighbours. table_dtype and
    product_dtype, in which cos and sin, and what they are multiplied with, are stored: `float32`, or `inputs`, that of
    x. All else is in float32, as kernels compute.

    NaN and infinities stay in their pair. An infinite position makes NaN of its token.
    """
    wide, dim = x.astype(np.float32), x.shape[-1]
    exponent = (np.log(base) * 2 * pair_of(dim, pairs) / dim).astype(np.float32)
    inv_freq = np.exp(-exponent)
    angles = positions.astype(np.float32)[..., None] * inv_freq
    cos, sin = np.cos(angles), np.sin(angles)
    partner = partner_of(wide, pairs)

    stored = x.dtype if table_dtype == "inputs" else np.float32
    cos_cast, sin_cast = cos.astype(stored), sin.astype(stored)
    kept = wide * cos_cast[..., None, :, :]
    turned = partner * sin_cast[..., None, :, :]
    stored = x.dtype if product_dtype == "inputs" else np.float32
    kept_cast, turned_cast = kept.astype(stored), turned.astype(stored)
    out = kept_cast.astype(np.float32) + turned_cast.astype(np.float32)
    return out.astype(x.dtype)


def pair_of(dim: int, pairs: str) -> Array:
    """The pair that each dim belongs to, [dim]."""
    dims = np.arange(dim)
    return dims // 2 if pairs == "interleaved" else dims % (dim // 2)


def partner_of(x: Array, pairs: str) -> Array:
    """What the sine multiplies: the other dim of the pair, of the first one's with a minus."""
    if pairs == "interleaved":
        return np.stack([-x[..., 1::2], x[..., ::2]], axis=-1).reshape(x.shape)
    half = x.shape[-1] // 2
    return np.concatenate([-x[..., half:], x[..., :half]], axis=-1)
