"""How a table is computed: in float64 by the definition; or as a control, in plain float32, which errors are held
against where a bound is too wide.

What structured data do to rounding errors (terms that are nearly equal share one, a large sum absorbs small terms) they
do to the control's as well.
"""

import hashlib
from dataclasses import dataclass
from threading import Lock

import numpy as np

from workbench.case.contract import Contract
from workbench.case.tensor_cores import Accumulation
from workbench.floats import round_to, ulp

#: the last sums of products, by a hash of their operands; the least recently used go first. The twelve controls
#: of a 16-bit kernel share most of their sums, each of which takes 0.03 to 0.4 s at 4096 keys
_MADE: dict[tuple, np.ndarray] = {}
_TURN = Lock()  # for threads of a user's that judge at once
KEPT_BYTES = 2**26
#: bytes of products that are accumulated at once: of 1 to 16 MB the fastest at 4096 and 16384 keys, up to 5 times as
#: fast as whole blocks
TERMS_BYTES = 2**22


@dataclass(frozen=True)
class Mode:
    """How what the contract leaves open is computed."""

    #: whether products are accumulated in aligned, truncated blocks instead of one after the other
    tensor_core: bool = False
    #: whether exp, log and division lose all that they may, always to the same side, instead of half an ulp; and casts
    #: that may truncate do
    biased: bool = False
    method: str = "control"  #: of a step: its value in float64, or its float32 control
    float32_range: bool = False  #: whether what float32 cannot hold becomes infinite, or 0, where it is made

    def add_products(self, start: np.ndarray | None, a: np.ndarray, b: np.ndarray, contract: Contract) -> np.ndarray:
        """start + a @ b over the last axis of a, float32; a [b, h, q, n], b [b, h, n, m]."""
        core = (contract.mma_block, contract.mma_extra_bits) if self.tensor_core else ()
        key = (*core, *map(_digest, (start, a, b)))
        with _TURN:
            made = _MADE.get(key)
        if made is None:
            made = _aligned(start, a, b, contract) if self.tensor_core else _one_by_one(start, a, b)
        with _TURN:
            _MADE.pop(key, None)
            _MADE[key] = made  # the last that goes
            while len(_MADE) > 1 and sum(x.nbytes for x in _MADE.values()) > KEPT_BYTES:
                del _MADE[next(iter(_MADE))]
        return made.copy()


#: float64, by the definition
VALUE = Mode(method="value")
#: the same with float32's range: what a faulty kernel makes may be large enough to overflow, and small enough for 0
FLOAT32_RANGE = Mode(method="value", float32_range=True)
#: float32, one product after the other, in the order of dims, keys or splits: of all orders this absorbs the most
PLAIN = Mode()


def _digest(x: np.ndarray | None) -> tuple | None:
    """What tells arrays apart; a transposed one is read as it lies in memory, its strides tell that it is."""
    if x is None:
        return None
    lying = x if x.flags.c_contiguous else x.swapaxes(-1, -2)
    return x.shape, x.strides, hashlib.sha256(np.ascontiguousarray(lying).data).digest()


def _one_by_one(start: np.ndarray | None, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    total = np.zeros((*a.shape[:-1], b.shape[-1]), np.float32) if start is None else start
    product = np.empty_like(total)
    for i, row in enumerate(np.moveaxis(b, -2, 0)):
        np.multiply(a[..., i, None], row[:, :, None, :], out=product)
        total = total + product if i == 0 else np.add(total, product, out=total)
    return total


def _aligned(start: np.ndarray | None, a: np.ndarray, b: np.ndarray, contract: Contract) -> np.ndarray:
    """As tensor cores add (`case/tensor_cores.py`), but that a product's exponent is that of its value."""
    core = Accumulation(contract.mma_block, contract.mma_extra_bits)
    total = np.zeros((*a.shape[:-1], b.shape[-1])) if start is None else start.astype(np.float64)
    a, b = a.astype(np.float64), b.astype(np.float64)
    columns = max(1, TERMS_BYTES // (8 * core.block * max(1, a[..., 0].size)))
    for left in range(0, b.shape[-1], columns):
        some = slice(left, left + columns)
        total[..., some] = _in_blocks(total[..., some], a, b[..., some], core)
    return total.astype(np.float32)


def _in_blocks(total: np.ndarray, a: np.ndarray, b: np.ndarray, core: Accumulation) -> np.ndarray:
    """total + a @ b, block after block, in two arrays of a block's products that stay in the cache."""
    room = np.empty((2, *a.shape[:-1], core.block, b.shape[-1]))
    for first in range(0, a.shape[-1], core.block):
        block = slice(first, first + core.block)
        terms, sizes = room[..., : a[..., block].shape[-1], :]
        np.multiply(a[..., block, None], b[:, :, None, block, :], out=terms)
        largest = np.maximum(abs(total), np.abs(terms, out=sizes).max(axis=-2))
        quantum = ulp(largest, "float32") * 2.0**-core.extra_bits
        np.trunc(np.divide(terms, quantum[..., None, :], out=terms), out=terms)
        sums = (terms.sum(axis=-2) + np.trunc(total / quantum)) * quantum
        kept = ulp(sums, "float32") * 2.0 ** (23 - core.fraction_bits)
        total = round_to(np.trunc(sums / kept) * kept, "float32", toward_zero=True)
    return total
