"""Narrow formats, by the bits of float32."""

import numpy as np

from campaigns.independent.shape import Array

BFLOAT16 = 7
"""Mantissa bits that bfloat16 stores."""


def rounded(x: Array, bits: int) -> Array:
    """Nearest value of so many mantissa bits, ties to even."""
    word, dropped = np.ascontiguousarray(x, np.float32).view(np.uint32), np.uint32(23 - bits)
    odd = (word >> dropped) & np.uint32(1)
    return chopped((word + ((np.uint32(1) << (dropped - np.uint32(1))) - np.uint32(1) + odd)).view(np.float32), bits)


def chopped(x: Array, bits: int) -> Array:
    """The value without its lower mantissa bits, which leaves so many."""
    mask = np.uint32(0xFFFFFFFF << (23 - bits) & 0xFFFFFFFF)
    return (np.ascontiguousarray(x, np.float32).view(np.uint32) & mask).view(np.float32)


def e4m3(x: Array) -> Array:
    """Nearest value of the 8-bit format, saturated at 448."""
    fine = np.rint(x * np.float32(512)) / np.float32(512)
    return np.clip(np.where(np.abs(x) < 2**-6, fine, rounded(x, 3)), np.float32(-448), np.float32(448))


def toward_zero(x: Array) -> Array:
    """float16 of the largest magnitude that is not above that of x."""
    near = x.astype(np.float16)
    return np.where(np.abs(near.astype(np.float32)) > np.abs(x), np.nextafter(near, np.float16(0)), near)
