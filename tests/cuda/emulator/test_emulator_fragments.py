"""Matrices over the lanes of a warp: every owner of an element is told by a product that a plain one must equal."""

import ml_dtypes
import numpy as np
import pytest
from numba import cuda, float32, uint16, uint32

from workbench.cuda import ptx

FORMATS = {
    "f16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "e4m3": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2,
}


def warp_product(mma):
    """A kernel for one warp: D = A B + C of one tile; rows of `a` and of `b_transposed` are read as uint32."""

    def kernel(a, b_transposed, c, d):
        lane = cuda.laneid
        g, t = lane // 4, lane % 4
        left = (a[g, t], a[g + 8, t], a[g, t + 4], a[g + 8, t + 4])
        right = (b_transposed[g, t], b_transposed[g, t + 4])
        tile = (c[g, 2 * t], c[g, 2 * t + 1], c[g + 8, 2 * t], c[g + 8, 2 * t + 1])
        tile = mma(left, right, tile)
        d[g, 2 * t] = tile[0]
        d[g, 2 * t + 1] = tile[1]
        d[g + 8, 2 * t] = tile[2]
        d[g + 8, 2 * t + 1] = tile[3]

    return kernel


@pytest.mark.parametrize(("name", "shape"), [(name, shape) for name, shape in ptx.MMA_TYPES.items()], ids=ptx.MMA_TYPES)
def test_mma_is_the_product_of_the_matrices(emulate, name, shape):
    """Small integers, so that every sum is exact; each element has a value that its neighbours have not."""
    tile, a_type, b_type = shape
    k = int(tile.rpartition("k")[2])
    random = np.random.default_rng(0)
    a, b = random.integers(-4, 5, (16, k)), random.integers(-4, 5, (k, 8))
    c = 1000.0 * np.arange(128, dtype=np.float32).reshape(16, 8)
    d = np.zeros((16, 8), np.float32)
    factors = [np.ascontiguousarray(x.astype(FORMATS[t])).view(np.uint32) for x, t in ((a, a_type), (b.T, b_type))]
    emulate(warp_product(ptx.OPERATIONS[name]), 1, 32, *factors, c, d)
    np.testing.assert_array_equal(d, a @ b + c)


def matrices_by_rows(x, out):
    s = cuda.shared.array((32, 24), uint16, alignment=16)
    t = cuda.threadIdx.x
    for i in range(8):
        s[t, 8 + i] = x[t, i]
    cuda.syncwarp()
    four = ptx.ldmatrix_x4(s, (t, 8))
    two = ptx.ldmatrix_x2(s, (t % 16, 8))
    (one,) = ptx.ldmatrix_x1(s, (t % 8, 8))
    for i in range(4):
        out[i, t] = four[i]
    out[4, t], out[5, t] = two
    out[6, t] = one


def matrices_transposed(x, out):
    s = cuda.shared.array((32, 24), uint16, alignment=16)
    t = cuda.threadIdx.x
    for i in range(8):
        s[t, 8 + i] = x[t, i]
    cuda.syncwarp()
    four = ptx.ldmatrix_x4_trans(s, (t, 8))
    two = ptx.ldmatrix_x2_trans(s, (t % 16, 8))
    (one,) = ptx.ldmatrix_x1_trans(s, (t % 8, 8))
    for i in range(4):
        out[i, t] = four[i]
    out[4, t], out[5, t] = two
    out[6, t] = one


@pytest.mark.campaign(but=1)
@pytest.mark.parametrize("transposed", [False, True], ids=["rows", "trans"])
def test_ldmatrix_gives_each_lane_its_pair(emulate, transposed):
    """Lane 4 g + t gets elements 2 t and 2 t + 1 of row g, or of column g, of each matrix."""
    x = np.arange(256, dtype=np.uint16).reshape(32, 8)
    out = np.zeros((7, 32), np.uint32)
    emulate(matrices_transposed if transposed else matrices_by_rows, 1, 32, x, out)
    lane = np.arange(32)
    g, t = lane // 4, lane % 4
    expected = []
    for matrix in x.reshape(4, 8, 8):
        matrix = matrix.T if transposed else matrix
        expected.append(matrix[g, 2 * t] + (matrix[g, 2 * t + 1].astype(np.uint32) << 16))
    np.testing.assert_array_equal(out, [*expected, *expected[:2], expected[0]])


def product_through_shared_memory(a, b, d):
    s_a = cuda.shared.array((16, 24), uint16, alignment=16)
    s_b = cuda.shared.array((16, 8), uint16, alignment=16)
    t = cuda.threadIdx.x
    for i in range(8):
        s_a[t // 2, t % 2 * 8 + i] = a[t // 2, t % 2 * 8 + i]
    for i in range(4):
        s_b[t // 2, t % 2 * 4 + i] = b[t // 2, t % 2 * 4 + i]
    cuda.syncwarp()
    left = ptx.ldmatrix_x4(s_a, (t % 16, t // 16 * 8))
    right = ptx.ldmatrix_x2_trans(s_b, (t % 16, 0))
    zero = float32(0)
    x, y, z, w = ptx.mma_m16n8k16_f16(left, right, (zero, zero, zero, zero))
    ptx.st_v2_f32(d, (t // 4, t % 4 * 2), (x, y))
    ptx.st_v2_f32(d, (t // 4 + 8, t % 4 * 2), (z, w))


@pytest.mark.parametrize("order", ["ascending", "descending", "shuffle"])
def test_ldmatrix_loads_what_mma_takes(emulate, order):
    random = np.random.default_rng(0)
    a, b = (random.integers(-4, 5, shape).astype(np.float16) for shape in ((16, 16), (16, 8)))
    d = np.zeros((16, 8), np.float32)
    emulate(product_through_shared_memory, 1, 32, a.view(np.uint16), b.view(np.uint16), d, order=order)
    np.testing.assert_array_equal(d, a.astype(np.float32) @ b.astype(np.float32))


def half_a_warp(out):
    s = cuda.shared.array((32, 8), uint16, alignment=16)
    t = cuda.threadIdx.x
    if t >= 40:
        out[t] = ptx.ldmatrix_x1(s, (t % 32, 0))[0]


def test_missing_lanes_are_an_error(error_of):
    assert error_of(half_a_warp, 1, 64, (np.zeros(64, np.uint32),)) == (
        "half_a_warp: lanes of the mask are missing in block (0, 0, 0)\n"
        "  +4: ptx.ldmatrix_x1 reached by threads 40-63 with mask 0xffffffff, without threads 32-39\n"
        "  exited: threads 0-39"
    )


def test_a_block_of_less_than_a_warp_is_an_error(error_of):
    """A shuffle may name lanes that the block does not have."""
    assert error_of(half_a_warp, 1, 48, (np.zeros(64, np.uint32),)) == (
        "half_a_warp: lanes of the mask are missing in block (0, 0, 0)\n"
        "  +4: ptx.ldmatrix_x1 reached by threads 40-47 with mask 0xffffffff, without threads 32-39\n"
        "  exited: threads 0-39"
    )
    assert error_of(matrices_by_rows, 1, 16, (np.zeros((16, 8), np.uint16), np.zeros((7, 16), np.uint32))) == (
        "matrices_by_rows: lanes of the mask are missing in block (0, 0, 0)\n"
        "  +6: ptx.ldmatrix_x4 reached by threads 0-15 with mask 0xffffffff, in a warp of 16 threads"
    )


def one_instruction_each(out):
    s = cuda.shared.array((32, 8), uint16, alignment=16)
    t = cuda.threadIdx.x
    if t % 2:
        out[t] = ptx.ldmatrix_x1(s, (t, 0))[0]
    else:
        out[t] = ptx.ldmatrix_x1(s, (t, 0))[0]


def test_the_same_operation_elsewhere_is_another_instruction(error_of):
    text = error_of(one_instruction_each, 1, 32, (np.zeros(32, np.uint32),))
    assert text.startswith("one_instruction_each: lanes of the mask are missing in block (0, 0, 0)\n")
    assert "+4: ptx.ldmatrix_x1 reached by thread" in text and "+6: ptx.ldmatrix_x1 reached by thread" in text


def misaligned_row(out):
    s = cuda.shared.array((32, 12), uint16, alignment=16)
    t = cuda.threadIdx.x
    out[t] = ptx.ldmatrix_x4(s, (t, 0))[0]


def test_a_misaligned_row_is_an_error(error_of):
    assert error_of(misaligned_row, 1, 32, (np.zeros(32, np.uint32),)) == (
        "+0: misaligned_row raised an exception in block (0, 0, 0)"
    )


def wide_registers(out):
    t = cuda.threadIdx.x
    a = (t, t, t, t)
    zero = float32(0)
    out[t] = ptx.mma_m16n8k16_f16(a, (uint32(0), uint32(0)), (zero, zero, zero, zero))[0]


def test_operands_are_never_converted(error_of):
    text = error_of(wide_registers, 1, 32, (np.zeros(32, np.float32),))
    assert "a must be UniTuple(uint32 x 4), not UniTuple(int32 x 4)" in text
