"""Tensor maps: what a copy of a box by Hopper's copy engine (TMA) knows of the array that it copies from.

A kernel names the array, the number of its map and the rows of a box where it copies; from there its maps are read. On
a GPU each is a parameter of its own behind all others, 128 bytes that begin at a multiple of 64 ("CUDA Driver API",
tensor map object management).
"""

import ast
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

#: bytes of a row of a box, which the 128-byte swizzle wants; of a tensor map
ROW_BYTES, MAP_BYTES = 128, 128


class TensorMap(NamedTuple):
    """The map of one number."""

    array: str  #: argument of the kernel
    rows: int  #: of a box


def tensor_map_name(number: int) -> str:
    """The parameter of a kernel that is the map of a number."""
    return f"tensor_map_{number}"


def tensor_maps(tree: ast.AST, bound: Mapping[str, Any]) -> tuple[TensorMap, ...]:
    """The maps of a kernel by number, from its calls of ``hopper.cp_async_bulk_tensor``; `bound`: what
    capitals are. No two calls may give one number to different maps.
    """
    found: dict[int, TensorMap] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "cp_async_bulk_tensor":
            array, number, rows = (ast.unparse(node.args[i]) for i in (2, 3, 5))
            one = TensorMap(array, bound[rows])
            if found.setdefault(int(number), one) != one:
                raise ValueError(f"tensor map {number} is used for both {found[int(number)]} and {one}")
    return tuple(found[number] for number in range(len(found)))


def encoded(address: int, shape: Sequence[int], strides: Sequence[int], size: int, rows: int) -> Any:
    """A driver's tensor map of an array [b, h, rows, d] at an address, with strides in bytes and elements of `size`
    bytes: boxes of so many rows of 128 bytes, swizzled, zeros outside of the array.
    """
    from cuda.bindings import driver

    kinds = driver.CUtensorMapDataType
    kind = {1: kinds.CU_TENSOR_MAP_DATA_TYPE_UINT8, 2: kinds.CU_TENSOR_MAP_DATA_TYPE_UINT16}[size]
    u64, u32 = driver.cuuint64_t, driver.cuuint32_t
    # along an axis of one element nothing moves, whatever its stride is said to be
    strides = [stride if count > 1 else 16 for count, stride in zip(shape, strides, strict=True)]
    status, made = driver.cuTensorMapEncodeTiled(
        kind,
        4,
        address,
        [u64(x) for x in reversed(shape)],
        [u64(x) for x in reversed(strides[:-1])],
        [u32(ROW_BYTES // size), u32(rows), u32(1), u32(1)],
        [u32(1)] * 4,
        driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
        driver.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_128B,
        driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
        driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
    )
    if status:
        raise RuntimeError(f"the driver returned {status.name} for a tensor map of {[*shape]}, strides {[*strides]}")
    return made
