"""Watched micro-kernels with races, or without one that a simpler checker would report."""

import numpy as np
import pytest
from numba import cuda, float32

from workbench.cuda import emulator

FULL = 0xFFFFFFFF


# ---- races


def write_read(x, out):
    s = cuda.shared.array(64, float32)
    t = cuda.threadIdx.x
    s[t] = x[t]
    out[t] = s[63 - t]


def test_read_and_write_without_a_barrier(found, floats):
    kinds = found(write_read, 1, 64, floats(64), np.zeros(64, np.float32))
    # of 64 races, 32 are reads after a write and 32 the other way round: two lines, which are named once
    assert kinds == [("uninitialised-read", "s", 4, None, (63,), 32), ("race", "s", 3, 4, (32,), 64)]


def all_write_one(out):
    s = cuda.shared.array(1, float32)
    s[0] = cuda.threadIdx.x
    cuda.syncthreads()
    out[cuda.threadIdx.x] = s[0]


def test_two_writes_of_one_element(found):
    assert found(all_write_one, 1, 4, np.zeros(4, np.float32)) == [("race", "s", 2, 2, (0,), 3)]


def blocks_share(out):
    out[cuda.threadIdx.x] += 1


def test_blocks_are_never_ordered_and_launches_always_are(found):
    out = np.zeros(2, np.float32)
    assert found(blocks_share, 2, 2, out) == [("race", "out", 1, 1, (0,), 4)]
    memory = emulator.Memory()
    kernel = emulator.compile(emulator.source_of(blocks_share), watched=True)
    for _ in range(3):
        kernel(1, 2, (out,), memory=memory)
    assert memory.findings == []


def blocks_read_then_write(x):
    first = x[(cuda.blockIdx.x + 1) % 2]
    cuda.syncthreads()
    x[cuda.blockIdx.x] = first


def test_block_writes_what_another_has_read(found, floats):
    assert found(blocks_read_then_write, 2, 1, floats(2)) == [("race", "x", 1, 3, (0,), 2)]


def broadcast_then_write(x, out, writer):
    s = cuda.shared.array(1, float32)
    t = cuda.threadIdx.x
    if t == 0:
        s[0] = x[0]
    cuda.syncthreads()
    out[t] = s[0]
    if t == writer:
        s[0] = 1


@pytest.mark.parametrize("writer", [0, 31, 32, 40, 127])
def test_a_write_after_many_readers_conflicts_with_one_of_them(found, floats, writer):
    out = np.zeros(128, np.float32)
    assert found(broadcast_then_write, 1, 128, floats(1), out, writer)[0][:4] in [
        ("race", "s", 8, 6),
        ("race", "s", 6, 8),
    ]


def shuffles_between(x, out):
    s = cuda.shared.array(32, float32)
    t = cuda.threadIdx.x
    s[t] = x[t]
    y = cuda.shfl_xor_sync(FULL, x[t], 1)
    out[t] = s[t ^ 1] + y


def warp_barrier_between(x, out):
    s = cuda.shared.array(32, float32)
    t = cuda.threadIdx.x
    s[t] = x[t]
    cuda.syncwarp()
    out[t] = s[t ^ 1]


def warp_barrier_between_warps(x, out):
    s = cuda.shared.array(64, float32)
    t = cuda.threadIdx.x
    s[t] = x[t]
    cuda.syncwarp()
    out[t] = s[t ^ 32]


@pytest.mark.campaign
def test_a_shuffle_orders_no_memory_and_syncwarp_orders_one_warp(found, floats):
    x, out = floats(64), np.zeros(64, np.float32)
    assert [f[:4] for f in found(shuffles_between, 1, 32, x, out)] == [("race", "s", 5, 3)]
    assert found(warp_barrier_between, 1, 32, x, out) == []
    assert {f[0] for f in found(warp_barrier_between_warps, 1, 64, x, out)} == {"race"}


def halves_meet(x, out):
    s = cuda.shared.array(32, float32)
    t = cuda.threadIdx.x
    half = 0xFFFF if t < 16 else 0xFFFF0000
    s[t] = x[t]
    cuda.syncwarp(half)
    out[t] = s[t ^ 1]
    cuda.syncwarp(half)
    s[t ^ 1] = 0


def halves_read_each_other(x, out):
    s = cuda.shared.array(32, float32)
    t = cuda.threadIdx.x
    half = 0xFFFF if t < 16 else 0xFFFF0000
    s[t] = x[t]
    cuda.syncwarp(half)
    out[t] = s[t ^ 16]


def met_through_a_third(x, out):
    s = cuda.shared.array(32, float32)
    t = cuda.threadIdx.x
    if t == 0:
        s[0] = x[0]
    if t < 2:
        cuda.syncwarp(0b011)
    if 1 <= t < 3:
        cuda.syncwarp(0b110)
    if t == 2:
        out[0] = s[0]


def meets_too_late(x, out):
    s = cuda.shared.array(32, float32)
    t = cuda.threadIdx.x
    if 1 <= t < 3:
        cuda.syncwarp(0b110)
    if t == 0:
        s[0] = x[0]
    if t < 2:
        cuda.syncwarp(0b011)
    if t == 2:
        out[0] = s[0]


@pytest.mark.campaign
@pytest.mark.parametrize("order", ["ascending", "descending"])
def test_partial_warp_barriers_order_their_lanes_and_what_those_knew(found, floats, order):
    x, out = floats(32), np.zeros(32, np.float32)
    assert found(halves_meet, 1, 32, x, out, order=order) == []
    assert "race" in {f[0] for f in found(halves_read_each_other, 1, 32, x, out, order=order)}
    assert found(met_through_a_third, 1, 32, x, out, order=order) == []
    late = found(meets_too_late, 1, 32, x, out, order=order)
    assert late and {f[1] for f in late} == {"s"}, "lanes 1 and 2 met before lane 0 wrote"


# ---- atomics


def atomics(out, plain):
    t = cuda.threadIdx.x
    cuda.atomic.add(out, 0, 1)
    cuda.atomic.max(out, 1, t)
    if t == plain:
        out[0] = out[1]


def test_atomics_conflict_with_plain_accesses_only(found):
    assert found(atomics, 4, 64, np.zeros(2, np.int32), -1) == []
    assert found(atomics, 1, 64, np.zeros(2, np.int32), 7) == [
        ("race", "out", 2, 5, (0,), 1),
        ("race", "out", 3, 5, (1,), 1),
    ]


def test_atomic_on_memory_that_nobody_wrote(found):
    assert found(atomics, 1, 2, np.zeros(2, np.int32), -1, outputs=[0]) == [
        ("uninitialised-read", "out", 2, None, (0,), 1),
        ("uninitialised-read", "out", 3, None, (1,), 1),
    ]
