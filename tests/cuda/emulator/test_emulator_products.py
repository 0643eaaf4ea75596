"""Products of a warp group on the emulator: each variant of wgmma is the product of the matrices, and adds as its tensor
core does; nothing is made before it is waited for.
"""

import ml_dtypes
import numpy as np
import pytest
from numba import cuda, float32, int16, uint8, uint32, uint64

from tests.tensor_cores import added
from workbench.case.tensor_cores import GENERATIONS
from workbench.cuda import emulator, hopper


def products(x, x_pairs, y, v, x8, y8, out, trans_out, out8, early):
    """Of float16: x y^T by x in shared memory and in registers, x v; of float8: x8 y8^T."""
    tile = cuda.shared.array(2 * 64 * 64 + 2 * 16 * 64, int16, alignment=1024)
    tile8 = cuda.shared.array(2 * 64 * 128, uint8, alignment=1024)
    bars = cuda.shared.array(1, uint64)
    registers = cuda.local.array(16, uint32)
    acc = cuda.local.array(32, float32)
    acc_rs = cuda.local.array(32, float32)
    acc_trans = cuda.local.array(64, float32)
    acc8 = cuda.local.array(32, float32)
    thread = cuda.threadIdx.x
    if thread == 0:
        hopper.mbarrier_init(bars, 0, 1)
        hopper.fence_barrier_init()
    cuda.syncthreads()
    if thread == 0:
        hopper.mbarrier_expect_tx(bars, 0, (4 * 64 + 2 * 16) * 128)
        hopper.cp_async_bulk_tensor(tile, 0, x, 0, (0, 0, 0, 0), 64, bars, 0)
        hopper.cp_async_bulk_tensor(tile, 4096, y, 1, (0, 0, 0, 0), 64, bars, 0)
        hopper.cp_async_bulk_tensor(tile, 8192, v, 2, (0, 0, 0, 0), 16, bars, 0)
        hopper.cp_async_bulk_tensor(tile, 9216, v, 2, (0, 0, 0, 64), 16, bars, 0)
        hopper.cp_async_bulk_tensor(tile8, 0, x8, 3, (0, 0, 0, 0), 64, bars, 0)
        hopper.cp_async_bulk_tensor(tile8, 8192, y8, 4, (0, 0, 0, 0), 64, bars, 0)
    hopper.mbarrier_wait(bars, 0, 0)
    g, t, warp = thread % 32 // 4, thread % 4, thread // 32
    for k in range(4):
        for j in range(4):
            registers[4 * k + j] = x_pairs[16 * warp + g + j % 2 * 8, 8 * k + t + j // 2 * 4]
    for i in range(32):
        acc_rs[i] = 1000
    hopper.wgmma_fence(acc, 32)
    for k in range(4):
        hopper.wgmma_m64n64k16_f16(acc, tile, 16 * k, tile, 4096 + 16 * k, k)
        hopper.wgmma_m64n64k16_f16_rs(acc_rs, registers, 4 * k, tile, 4096 + 16 * k, 1)
        hopper.wgmma_m64n64k32_e4m3(acc8, tile8, 32 * k, tile8, 8192 + 32 * k, k)
    hopper.wgmma_m64n128k16_f16_rs_trans(acc_trans, registers, 0, tile, 8192, 2048, 0)
    hopper.wgmma_commit()
    if early:
        out[1, 0, 0] = acc_rs[0]
    hopper.wgmma_wait(0, acc, 32)
    hopper.wgmma_wait(0, acc_rs, 32)
    hopper.wgmma_wait(0, acc8, 32)
    hopper.wgmma_wait(0, acc_trans, 64)
    for i in range(64):
        row, column = 16 * warp + g + i % 4 // 2 * 8, i // 4 * 8 + 2 * t + i % 2
        trans_out[row, column] = acc_trans[i]
        if i < 32:
            out8[row, column] = acc8[i]
            if not early:
                out[0, row, column] = acc[i]
                out[1, row, column] = acc_rs[i]


@pytest.fixture(scope="module")
def multiplied():
    """multiplied(draw, early): inputs drawn from a generator, and the sums of all products of them."""
    kernel = emulator.compile(emulator.source_of(products))

    def launch(draw, early=0):
        random = np.random.default_rng(0)
        x, y, v = (draw(random, shape).astype(np.float16) for shape in ((64, 64), (64, 64), (16, 128)))
        x8, y8 = (draw(random, shape).astype(ml_dtypes.float8_e4m3fn) for shape in ((64, 128), (64, 128)))
        out, trans_out, out8 = (np.zeros(shape, np.float32) for shape in ((2, 64, 64), (64, 128), (64, 64)))
        boxes = [array[None, None] for array in (x, y, v, x8.view(np.uint8), y8.view(np.uint8))]
        kernel(1, 128, (boxes[0], x.view(np.uint32), *boxes[1:], out, trans_out, out8, early))
        return (x, y, v, x8, y8), (out, trans_out, out8)

    return launch


def test_products_are_those_of_the_matrices(multiplied):
    """Small integers, so that every sum is exact."""
    inputs, (out, trans_out, out8) = multiplied(lambda random, shape: random.integers(-4, 5, shape))
    x, y, v, x8, y8 = (array.astype(np.float32) for array in inputs)
    np.testing.assert_array_equal(out, [x @ y.T, x @ y.T + 1000])
    np.testing.assert_array_equal(trans_out, x[:, :16] @ v)
    np.testing.assert_array_equal(out8, x8 @ y8.T)


def test_sums_are_cut_off_as_in_the_tensor_core(multiplied):
    (x, y, _, x8, y8), (out, _, out8) = multiplied(lambda random, shape: random.standard_normal(shape))
    core = GENERATIONS["hopper"]
    c = np.zeros((1, 64, 64), np.float32)
    np.testing.assert_array_equal(out[0], added("float16", core["float16"], x[None], y[None], c)[0])
    np.testing.assert_array_equal(out8, added("float8", core["float8"], x8[None], y8[None], c)[0])
    assert np.any(out[0] != x.astype(np.float32) @ y.astype(np.float32).T)
    assert np.any(out8 != x8.astype(np.float32) @ y8.astype(np.float32).T)


def test_sums_that_are_read_before_the_wait_are_those_before(multiplied):
    _, (out, _, _) = multiplied(lambda random, shape: random.integers(-4, 5, shape), 1)
    assert out[1, 0, 0] == 1000
