"""Tiles of products and sums on tensor cores: bits in, bits out, whatever the fragments of an operation are."""

import functools
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
from numba import cuda

from workbench.cuda import ptx
from workbench.cuda.calibrate.backends import Launch, Machine

FORMATS = {
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "e4m3": np.dtype(ml_dtypes.float8_e4m3fn),
    "e5m2": np.dtype(ml_dtypes.float8_e5m2),
}

#: bits of a [n, 16, k], b transposed [n, 8, k] and c [n, 16, 8] -> bits of a b + c, all int64, for an operation's name
Multiply = Callable[[str, np.ndarray, np.ndarray, np.ndarray], np.ndarray]


def multiply_on(machine: Machine) -> Multiply:
    """What a machine gives: one warp for each tile, whose lanes load the fragments of `fragments`."""

    @functools.cache
    def launcher(name: str) -> Launch:
        operation = ptx.OPERATIONS[name]

        def kernel(a: Any, b: Any, c: Any) -> None:
            i, t = cuda.blockIdx.x, cuda.threadIdx.x
            ptx.st_v4_f32(
                c,
                (i, t, 0),
                operation(ptx.ld_v4_u32(a, (i, t, 0)), ptx.ld_v2_u32(b, (i, t, 0)), ptx.ld_v4_f32(c, (i, t, 0))),
            )

        return machine(kernel)

    def multiply(name: str, a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
        registers = fragments(a, b, c)
        launcher(name)(len(a), 32, registers)
        d = np.empty_like(c)
        row, column = _owned_by_lane()
        d[:, row, column] = registers[2].view(np.uint32)
        return d

    return multiply


def _owned_by_lane() -> tuple[np.ndarray, np.ndarray]:
    lane, register = np.arange(32)[:, None], np.arange(4)
    return lane // 4 + register // 2 * 8, lane % 4 * 2 + register % 2


def fragments(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The registers of each lane: uint32 [n, 32, 4] and [n, 32, 2], float32 [n, 32, 4]."""
    packed = a.shape[2] // 8  # factors in a register: neighbours along k, from `packed * t` on and `4 * packed` later
    word = np.dtype(f"u{4 // packed}")
    g, t = np.arange(32) // 4, np.arange(32) % 4
    rows_a, rows_b = (np.ascontiguousarray(x.astype(word)).view(np.uint32) for x in (a, b))
    left = [rows_a[:, g + 8 * (register % 2), t + 4 * (register // 2)] for register in range(4)]
    right = [rows_b[:, g, t + 4 * register] for register in range(2)]
    start = np.ascontiguousarray(c[:, *_owned_by_lane()].astype(np.uint32)).view(np.float32)
    return np.ascontiguousarray(np.stack(left, -1)), np.ascontiguousarray(np.stack(right, -1)), start


def bits_of(values: np.ndarray, kind: str) -> np.ndarray:
    """The bits, int64, of values rounded to a type of factors ("f16", "bf16", "e4m3", "e5m2")."""
    narrow = values.astype(FORMATS[kind])
    return narrow.view(f"u{narrow.itemsize}").astype(np.int64)
