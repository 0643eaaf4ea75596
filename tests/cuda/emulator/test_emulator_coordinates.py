import numpy as np
from numba import cuda


def coordinates(out):
    x, y, z = cuda.grid(3)
    flat = (z * cuda.gridsize(3)[1] + y) * cuda.gridsize(3)[0] + x
    out[flat, 0] = cuda.threadIdx.x + 100 * cuda.threadIdx.y + 10000 * cuda.threadIdx.z
    out[flat, 1] = cuda.blockIdx.x + 100 * cuda.blockIdx.y + 10000 * cuda.blockIdx.z
    out[flat, 2] = cuda.blockDim.x + 100 * cuda.blockDim.y + 10000 * cuda.blockDim.z
    out[flat, 3] = cuda.gridDim.x + 100 * cuda.gridDim.y + 10000 * cuda.gridDim.z
    out[flat, 4] = cuda.laneid
    out[flat, 5] = cuda.warpsize


def test_every_thread_of_a_three_dimensional_grid_knows_its_place(emulate):
    grid, block = (2, 3, 4), (5, 3, 4)
    width, height, depth = (g * b for g, b in zip(grid, block, strict=True))
    out = np.full((width * height * depth, 6), -1)
    emulate(coordinates, grid, block, out)

    z, y, x = np.indices((depth, height, width)).reshape(3, -1)
    thread = x % 5 + 100 * (y % 3) + 10000 * (z % 4)
    lane = (x % 5 + 5 * (y % 3) + 15 * (z % 4)) % 32
    expected = [thread, x // 5 + 100 * (y // 3) + 10000 * (z // 4), 40305 + 0 * x, 40302 + 0 * x, lane, 32 + 0 * x]
    np.testing.assert_array_equal(out, np.stack(expected, axis=1), strict=True)


AXES = 2


def grids(one, two):
    i = cuda.grid(1)
    one[i] = i + 1000 * cuda.gridsize(1)
    x, y = cuda.grid(AXES)
    width, height = cuda.gridsize(2)
    two[y, x] = x + 10 * y + 100 * width + 1000 * height


def test_grid_counts_along_one_and_two_axes(emulate):
    one, two = np.zeros(12, np.int64), np.zeros((1, 12), np.int64)
    emulate(grids, 3, 4, one, two)
    np.testing.assert_array_equal(one, np.arange(12) + 12000)
    np.testing.assert_array_equal(two[0], np.arange(12) + 2200)
