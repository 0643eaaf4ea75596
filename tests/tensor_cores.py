"""Products as the tensor cores of a generation make them: the emulator's step on bits, beside no other part of ours."""

from collections.abc import Callable
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
from numba import njit

from workbench.case.tensor_cores import GENERATIONS, Accumulation
from workbench.cuda.emulator.tensor import decoded, step

Array = Any


class Operand(NamedTuple):
    """A type of factors: as it lies in memory, and bits of fraction and of exponent."""

    dtype: np.dtype
    fraction: int
    exponent: int


#: of float8 what has no NaN and no infinity: e4m3 below 256
OPERANDS = {
    "float16": Operand(np.dtype(np.float16), 10, 5),
    "bfloat16": Operand(np.dtype(ml_dtypes.bfloat16), 7, 8),
    "tf32": Operand(np.dtype(np.float32), 10, 8),
    "float8": Operand(np.dtype(ml_dtypes.float8_e4m3fn), 3, 4),
}


@njit
def _added(a, b, c, fraction_bits, exponent_bits, block, extra_bits):
    """Bits of c [n, i, j] plus the products of a [n, i, k] and b [n, j, k], block by block."""
    significands, exponents = np.empty((2, block), np.int64), np.empty((2, block), np.int64)
    d = c.copy()
    for n, i, j in np.ndindex(c.shape):
        for first in range(0, a.shape[2], block):
            size = min(block, a.shape[2] - first)
            for k in range(size):
                significands[0, k], exponents[0, k] = decoded(a[n, i, first + k], fraction_bits, exponent_bits)
                significands[1, k], exponents[1, k] = decoded(b[n, j, first + k], fraction_bits, exponent_bits)
            parts = significands[0, :size], exponents[0, :size], significands[1, :size], exponents[1, :size]
            d[n, i, j] = step(*parts, 2 * fraction_bits, d[n, i, j], extra_bits)
    return d


def added(operands: str, core: Accumulation, a: Array, b: Array, c: Array) -> Array:
    """c [n, i, j] plus the products of a [n, i, k] and b [n, j, k], float32; of float32 factors the upper 19 bits."""
    kind = OPERANDS[operands]
    low = 8 * kind.dtype.itemsize - 1 - kind.fraction - kind.exponent
    bits = [np.ascontiguousarray(x).view(f"u{kind.dtype.itemsize}").astype(np.int64) >> low for x in (a, b)]
    start = np.ascontiguousarray(c, np.float32).view(np.uint32).astype(np.int64)
    return _added(*bits, start, kind.fraction, kind.exponent, *core).astype(np.uint32).view(np.float32)


def to_nearest(x: Array) -> Array:
    """float32 rounded to TF32, ties away from zero, as cvt.rna.tf32.f32 does."""
    return ((np.ascontiguousarray(x, np.float32).view(np.uint32) + np.uint32(0x1000)) & 0xFFFFE000).view(np.float32)


def on_tf32_of(generation: str, *, nearest: bool) -> Callable[[Array, Array], Array]:
    """a @ b of float32 arrays [b, h, q, k] and [b, h, k, n] on the tensor cores of a generation, whose factors are
    rounded to nearest before, or cut off by the core.
    """

    def multiply(a: Array, b: Array) -> Array:
        a, b = (np.asarray(x, np.float32) for x in (a, np.swapaxes(b, -1, -2)))
        shape = (*a.shape[:-1], b.shape[-2])
        a, b = (x.reshape(-1, *x.shape[-2:]) for x in ((to_nearest(a), to_nearest(b)) if nearest else (a, b)))
        core = GENERATIONS[generation]["tf32"]
        return added("tf32", core, a, b, np.zeros((len(a), *shape[-2:]), np.float32)).reshape(shape)

    return multiply
