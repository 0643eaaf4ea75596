"""Kernels that numba's simulator can run, as a script with the argument emulator, gpu or, under its flag, simulator.

Prints name -> the arrays of each kernel after its launch, as JSON. Results are integers, or float64 that no order of
the threads changes.
"""

import json
import math
import sys

import numpy as np
from numba import cuda, float32, float64, int32, int64, uint8

import workbench.cuda  # noqa: F401  # puts back what numba-cuda asks NumPy for

WEIGHTS = np.array([[3, -1, 4], [1, -5, 9]])
SLOPES = np.array([0.5, -0.25, 2.0])
DEPTH, SCALE, FLAG = 4, np.float64(1.5), True
EXTENTS = (3, 5)


@cuda.jit(device=True)
def reverse(tile, n):
    t = cuda.threadIdx.x
    mine = tile[n - 1 - t]
    cuda.syncthreads()
    tile[t] = mine
    cuda.syncthreads()


@cuda.jit
def barriers(x, out, count):
    s = cuda.shared.array(16, int32)
    mine = cuda.local.array(2, int32)
    t = cuda.threadIdx.x
    x0, y0 = cuda.grid(2)
    s[t] = x[cuda.blockIdx.x, t]
    cuda.syncthreads()
    reverse(s, 16)
    mine[0], mine[1] = s[t], s[(t + 1) % 16]
    total = 0
    for i in range(2):
        if mine[i] % 3 == 0:
            continue
        total += mine[i] // 2 if mine[i] > 0 else -(mine[i] % 5)
    votes = cuda.syncthreads_count(int32(total > 3)) + 100 * cuda.syncthreads_or(int32(total == 7))
    votes += 1000 * cuda.syncthreads_and(int32(total < 20))
    cuda.atomic.add(count, t % 2, total)
    cuda.atomic.max(count, 2, total)
    out[x0] = total + 10000 * votes + y0


@cuda.jit
def coordinates(out):
    x, y, z = cuda.grid(3)
    width, height, depth = cuda.gridsize(3)
    flat = (z * height + y) * width + x
    out[flat, 0] = cuda.threadIdx.x + 100 * cuda.threadIdx.y + 10000 * cuda.threadIdx.z
    out[flat, 1] = cuda.blockIdx.x + 100 * cuda.blockIdx.y + 10000 * cuda.blockIdx.z
    out[flat, 2] = cuda.blockDim.x + 100 * cuda.blockDim.y + 10000 * cuda.blockDim.z
    out[flat, 3] = cuda.gridDim.x + 100 * cuda.gridDim.y + 10000 * cuda.gridDim.z
    out[flat, 4] = cuda.laneid + 100 * cuda.warpsize
    out[flat, 5] = cuda.grid(1) + 1000 * cuda.gridsize(1) + cuda.gridsize(2)[1] + depth


@cuda.jit
def dynamic(x, out):
    whole = cuda.shared.array(0, float64)
    octets = cuda.shared.array(0, uint8)
    n = x.shape[1]
    t = cuda.threadIdx.x
    first, second = whole[:n], whole[n:]
    first[t] = x[cuda.blockIdx.x, t]
    second[t] = -first[t]
    cuda.syncthreads()
    out[cuda.blockIdx.x, t] = first[n - 1 - t] + 1000 * second[t] + whole.size + octets.size


@cuda.jit
def constants(out):
    table = cuda.const.array_like(WEIGHTS)
    t = cuda.grid(1)
    out[t] = table[t % 2, t % 3] * SLOPES[t % 3] + table.shape[1] * SCALE + (1 if FLAG else 2)


@cuda.jit
def atomics(i4, u4, f8):
    t = cuda.grid(1)
    cuda.atomic.add(i4, 0, t)
    cuda.atomic.sub(i4, 1, t)
    cuda.atomic.max(i4, 2, (7 * t) % 31)
    cuda.atomic.min(i4, 3, -((7 * t) % 31))
    cuda.atomic.and_(i4, 4, ~(1 << t % 7))
    cuda.atomic.or_(i4, 5, 1 << t % 7)
    cuda.atomic.xor(i4, 6, t)
    i4[8 + t] = cuda.atomic.exch(i4, 40 + t, -t)
    i4[72 + t] = cuda.atomic.cas(i4, 104 + t, 3, 50 + t)
    cuda.atomic.compare_and_swap(i4[7:8], 0, 99)
    cuda.atomic.inc(u4, 0, 9)
    cuda.atomic.dec(u4, 1, 9)
    cuda.atomic.add(f8, (0, 0), 0.5 * t)
    cuda.atomic.sub(f8, (0, 1), 0.25)
    cuda.atomic.max(f8, (1, 0), 1.5 * t)
    cuda.atomic.min(f8, (1, 1), -1.5 * t)
    cuda.atomic.nanmax(f8, (2, 0), 2.5 * t)
    cuda.atomic.nanmin(f8, (2, 1), -2.5 * t)
    cuda.threadfence()
    cuda.threadfence_block()
    cuda.threadfence_system()


@cuda.jit
def bits(x, out):
    t = cuda.grid(1)
    out[t, 0] = cuda.popc(x[t])
    out[t, 1] = cuda.brev(x[t])
    out[t, 2] = cuda.clz(x[t])
    out[t, 3] = cuda.ffs(x[t])
    out[t, 4] = cuda.selp(x[t] > 100, 7, 9)
    out[t, 5] = int64(x[t]) << 3 ^ int64(x[t]) >> 5 | ~int64(x[t]) & 0xFF


@cuda.jit(device=True)
def extremes(values, low, high=20):
    """Return a pair, from inside a loop."""
    for i in range(len(values)):
        if values[i] > high:
            return i, True
        if values[i] < low:
            return -i, False
    return len(values), False


@cuda.jit
def control(x, out):
    t = cuda.grid(1)
    row = x[t]
    place, above = extremes(row[1:], -40)
    total, steps = 0, 0
    while True:
        steps += 1
        if steps > 10 or total > 40:
            break
        for i in range(DEPTH - 1, -1, -1):
            if row[i] == 0:
                continue
            if row[i] % 7 == 0:
                break
            total += abs(row[i])
        else:
            total += 1000
    pairs = (place, steps)
    a, (b, c) = total, (pairs[0], pairs[1])
    b, c = c, b
    below = not above and -5 <= row[0] < 5 or row[1] > 3
    out[t, 0], out[t, 1], out[t, 2], out[t, 3] = a, b, c, int64(below)
    out[t, 4] = max(row[0], row[1], 3) * 100 + min(row[2], row[3])
    out[t, 5] = row[-1] // 3 * 1000 + row[-1] % 3 + (-7) // 2 + 2**3
    quotient, rest = divmod(row[0], 4)
    out[t, 6] = quotient * 100 + rest
    out[t, 7] = row.size + x.ndim + x.shape[0] + EXTENTS[1]


@cuda.jit
def grid_stride(x, out):
    tile = cuda.shared.array(EXTENTS, float64)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    tile[tx, ty] = 0.0
    cuda.syncthreads()
    first, _ = cuda.grid(2)
    step, _ = cuda.gridsize(2)
    for i in range(first, x.shape[0], step):
        for j in range(ty, x.shape[1], cuda.blockDim.y):
            tile[tx, ty] += x[i, j] / 4
    cuda.syncthreads()
    if tx == 0 and ty == 0:
        total = 0.0
        for i in range(tile.shape[0]):
            for j in range(tile.shape[1]):
                total += tile[i, j]
        out[cuda.blockIdx.x] = total


@cuda.jit
def numbers(x, out):
    t = cuda.grid(1)
    a = x[t]
    out[t, 0] = math.floor(a) + 10 * math.ceil(a) + 100 * math.trunc(a) + 1000 * round(a)
    out[t, 1] = int(a) + int32(a) * 10 + float32(2.5)
    out[t, 2] = math.sqrt(a * a) + math.fabs(a) + abs(a) + math.copysign(1.0, a)
    out[t, 3] = math.isnan(a) + 2 * math.isinf(a) + 4 * math.isfinite(a)
    out[t, 4] = cuda.fma(a, 4.0, 0.5)
    out[t, 5] = math.fmod(a, 0.75) + math.pow(a, 2.0) + math.ldexp(a, 3)
    out[t, 6] = math.inf if a > 2 else -math.pi


def cases():
    """Return name -> (kernel, grid, block, arrays, bytes of dynamic shared memory)."""
    random = np.random.default_rng(0)
    integers = random.integers(-50, 50, (3, 16)).astype(np.int32)
    words = random.integers(0, 2**32, 16, dtype=np.uint64).astype(np.uint32)
    i4 = np.concatenate([np.array([0, 0, 0, 0, 127, 0, 0, 0]), np.arange(128) % 5]).astype(np.int32)
    f8 = np.array([[0.0, 0.0], [3.0, -3.0], [math.nan, math.nan]])
    halves = random.integers(-40, 40, 12) / 8
    return {
        "barriers": (barriers, 3, 16, [integers, np.zeros(48, np.int64), np.zeros(3, np.int32)], 0),
        "coordinates": (coordinates, (2, 1, 2), (5, 3, 3), [np.full((180, 6), -1)], 0),
        "dynamic": (dynamic, 2, 8, [random.integers(0, 9, (2, 8)).astype(float), np.zeros((2, 8))], 128),
        "constants": (constants, 2, 6, [np.zeros(12)], 0),
        "atomics": (atomics, 2, 16, [i4, np.zeros(2, np.uint32), f8], 0),
        "bits": (bits, 1, 18, [np.concatenate([words, np.uint32([0, 1])]), np.zeros((18, 6), np.int64)], 0),
        "control": (control, 1, 12, [integers.reshape(12, 4).astype(np.int64), np.zeros((12, 8), np.int64)], 0),
        "grid_stride": (grid_stride, (2, 1), EXTENTS, [random.integers(0, 99, (17, 13)).astype(float), np.zeros(2)], 0),
        "numbers": (numbers, 1, 12, [halves, np.zeros((12, 7))], 0),
    }


def main(where):
    for name, (kernel, grid, block, arrays, size) in cases().items():
        if where == "emulator":
            from workbench.cuda import emulator

            emulator.compile(emulator.source_of(kernel))(grid, block, arrays, dynamic_shared_bytes=size)
        else:
            kernel[grid, block, 0, size](*arrays)
        print(json.dumps({name: [array.tolist() for array in arrays]}))


if __name__ == "__main__":
    main(sys.argv[1])
