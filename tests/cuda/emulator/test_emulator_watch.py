"""Watched micro-kernels: each breaks one rule, or keeps it in a way that a simpler checker would report."""

import inspect

import numpy as np
import pytest
from numba import cuda, float32, float64, int32, uint16

from workbench.cuda import emulator, ptx

FULL = 0xFFFFFFFF


def found(kernel, grid, block, *args, outputs=(), once=(), steps=None, **schedule):
    """What a watched launch finds: (kind, array, line of the kernel from its def, other line, index, count).

    `outputs` are the places of arguments that the host has not written, `once` those written once only.
    """
    memory = emulator.Memory() if steps is None else emulator.Memory(steps=steps)
    for i in (*outputs, *once):
        memory.add(args[i], written=False, once=i in once)
    emulator.compile(emulator.source_of(kernel), watched=True)(grid, block, args, memory=memory, **schedule)
    first = inspect.getsourcelines(getattr(kernel, "py_func", kernel))[1]
    return [
        (f.kind, f.array, f.line - first, f.other_line and f.other_line - first, f.index, f.count)
        for f in memory.findings
    ]


def floats(*shape):
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


# ---- what is right is not reported


@cuda.jit(device=True)
def reversed_in(tile, i):
    return tile[tile.shape[0] - 1 - i]


def right(x, out, sums):
    s = cuda.shared.array(64, float32)
    pairs = cuda.shared.array((64, 2), float64)
    mine = cuda.local.array(3, float32)
    t = cuda.threadIdx.x
    s[t] = x[cuda.blockIdx.x, t]
    cuda.syncthreads()
    for i in range(3):
        mine[i] = reversed_in(s, (t + i) % 64)
    mine[1] += mine[0]
    row = pairs[t]
    row[0], row[1] = mine[1], mine[2]
    cuda.syncwarp()
    out[cuda.blockIdx.x, t] = pairs[t ^ 1, 0] + s[-1]
    cuda.syncthreads()
    s[t] = pairs[63 - t, 1]
    cuda.atomic.add(sums, t % 4, s[t])
    cuda.syncthreads()
    if t == 0:
        total = float32(0)
        i = 0
        while i < 64:
            total += s[i]
            i += 1
        out[cuda.blockIdx.x, 64] = total


@pytest.mark.parametrize("schedule", [{}, {"skew": True}, {"order": "descending"}, {"order": "shuffle", "seed": 3}])
def test_right_kernel_gives_nothing_and_the_bits_of_a_plain_run(schedule, emulate):
    x = floats(3, 64)
    out, sums = np.zeros((3, 65), np.float32), np.zeros(4, np.float32)
    plain_out, plain_sums = out.copy(), sums.copy()
    assert found(right, 3, 64, x, out, sums, once=[1], **schedule) == []
    emulate(right, 3, 64, x, plain_out, plain_sums, **schedule)
    assert (out.tobytes(), sums.tobytes()) == (plain_out.tobytes(), plain_sums.tobytes())
    assert np.all(out[:, 64] > 0)


# ---- uninitialised reads


def reads_unwritten(x, out):
    s = cuda.shared.array(32, float32)
    mine = cuda.local.array((2, 2), int32)
    t = cuda.threadIdx.x
    if t != 5:
        s[t] = x[t]
    mine[1, 1] = 1
    cuda.syncthreads()
    out[cuda.blockIdx.x, t] = s[t] + mine[1, 0]


def test_unwritten_shared_and_local_memory_of_every_block():
    assert found(reads_unwritten, 2, 32, floats(32), np.zeros((2, 32), np.float32)) == [
        ("uninitialised-read", "mine", 8, None, (1, 0), 64),
        ("uninitialised-read", "s", 8, None, (5,), 2),
    ]


def writes_half(out):
    t = cuda.threadIdx.x
    if t % 2 == 0:
        out[t] = t


def reads_all(x, out):
    out[cuda.threadIdx.x] = x[cuda.threadIdx.x]


def test_what_a_launch_left_unwritten_is_found_when_the_next_one_reads_it():
    memory, partial, out = emulator.Memory(), np.zeros(8, np.float32), np.zeros(8, np.float32)
    for array in (partial, out):
        memory.add(array, written=False)
    first = emulator.compile(emulator.source_of(writes_half), watched=True)
    first(1, 8, (partial,), memory=memory)
    assert memory.findings == []
    emulator.compile(emulator.source_of(reads_all), watched=True)(1, 8, (partial, out), memory=memory)
    assert [(f.kind, f.array, f.index, f.count) for f in memory.findings] == [("uninitialised-read", "x", (1,), 4)]
    unwritten = memory.unwritten(first.program, "out", partial)
    assert (unwritten.kind, unwritten.index, unwritten.count) == ("unwritten-output", (1,), 4)
    assert unwritten.line == inspect.getsourcelines(writes_half)[1] + 3
    assert memory.unwritten(first.program, "out", out) is None


def test_an_array_nobody_spoke_of_counts_as_written():
    assert found(reads_all, 1, 8, floats(8), np.zeros(8, np.float32)) == []


# ---- races


def write_read(x, out):
    s = cuda.shared.array(64, float32)
    t = cuda.threadIdx.x
    s[t] = x[t]
    out[t] = s[63 - t]


def test_read_and_write_without_a_barrier():
    kinds = found(write_read, 1, 64, floats(64), np.zeros(64, np.float32))
    assert ("race", "s", 4, 3, (31,), 32) in kinds  # read after write
    assert ("race", "s", 3, 4, (32,), 32) in kinds  # write after read
    assert ("uninitialised-read", "s", 4, None, (63,), 32) in kinds
    assert len(kinds) == 3


def all_write_one(out):
    s = cuda.shared.array(1, float32)
    s[0] = cuda.threadIdx.x
    cuda.syncthreads()
    out[cuda.threadIdx.x] = s[0]


def test_two_writes_of_one_element():
    assert found(all_write_one, 1, 4, np.zeros(4, np.float32)) == [("race", "s", 2, 2, (0,), 3)]


def blocks_share(out):
    out[cuda.threadIdx.x] += 1


def test_blocks_are_never_ordered_and_launches_always_are():
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


def test_block_writes_what_another_has_read():
    assert found(blocks_read_then_write, 2, 1, floats(2)) == [
        ("race", "x", 1, 3, (0,), 1),
        ("race", "x", 3, 1, (1,), 1),
    ]


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
def test_a_write_after_many_readers_conflicts_with_one_of_them(writer):
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


def test_a_shuffle_orders_no_memory_and_syncwarp_orders_one_warp():
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


@pytest.mark.parametrize("order", ["ascending", "descending"])
def test_partial_warp_barriers_order_their_lanes_and_what_those_knew(order):
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


def test_atomics_conflict_with_plain_accesses_only():
    assert found(atomics, 4, 64, np.zeros(2, np.int32), -1) == []
    assert found(atomics, 1, 64, np.zeros(2, np.int32), 7) == [
        ("race", "out", 2, 5, (0,), 1),
        ("race", "out", 3, 5, (1,), 1),
    ]


def test_atomic_on_memory_that_nobody_wrote():
    assert found(atomics, 1, 2, np.zeros(2, np.int32), -1, outputs=[0]) == [
        ("uninitialised-read", "out", 2, None, (0,), 1),
        ("uninitialised-read", "out", 3, None, (1,), 1),
    ]


# ---- bounds


def beyond(x, out, i):
    out[0] = x[i, 1] + 1


def writes_beyond(x, out, i):
    out[i] = x[0, 0]


def row_beyond(x, out, i):
    row = x[i]
    out[0] = row[0]


def adds_beyond(x, out, i):
    cuda.atomic.add(out, i, x[0, 0])


def shared_beyond(x, out, i):
    s = cuda.shared.array((2, 3), float32)
    t = cuda.shared.array((2, 3), float32)
    t[0, 0] = x[0, 0]
    s[1, i] = t[0, 0]


def test_indices_out_of_bounds_are_reported_and_not_touched():
    x, out = floats(2, 3), np.zeros(2, np.float32)
    assert found(beyond, 1, 1, x, out, 2) == [("out-of-bounds", "x", 1, None, (2, 1), 1)]
    assert out[0] == 1, "the read gives 0"
    assert found(beyond, 1, 1, x, out, -3) == [("out-of-bounds", "x", 1, None, (-3, 1), 1)]
    assert found(beyond, 1, 1, x, out, -1) == [], "counts from the end, on a GPU too"
    assert out[0] == x[1, 1] + 1
    assert found(writes_beyond, 1, 1, x, out[:1], 1) == [("out-of-bounds", "out", 1, None, (1,), 1)]
    assert out[1] == 0
    assert found(row_beyond, 1, 1, x, out, 5) == [("out-of-bounds", "x", 1, None, (5,), 1)]
    assert found(adds_beyond, 1, 1, x, out, 2) == [("out-of-bounds", "out", 1, None, (2,), 1)]
    assert found(shared_beyond, 1, 1, x, out, 3) == [("out-of-bounds", "s", 4, None, (1, 3), 1)]


# ---- second writes


def writes_twice(out, n):
    for i in range(n):
        out[0] = i


def test_second_write_where_one_is_allowed():
    out = np.zeros(1, np.float32)
    assert found(writes_twice, 1, 1, out, 1, once=[0]) == []
    assert found(writes_twice, 1, 1, out, 3, once=[0]) == [("second-write", "out", 2, 2, (0,), 2)]
    assert found(writes_twice, 1, 1, out, 3) == []


# ---- threads that never end, and barriers that do not meet


def runs_away(out):
    i = 0
    while out[0] == 0:
        i += 1
    out[1] = i


def runs_away_in_a_range(out, n):
    total = 0
    for i in range(n):
        total += out[i % 2]
    out[1] = total


def waits_in_a_loop(out):
    while out[0] == 0:
        cuda.syncthreads()


@pytest.mark.parametrize("kernel", [runs_away, waits_in_a_loop])
def test_a_loop_without_an_end_is_found(kernel):
    (finding,) = found(kernel, 1, 32, np.zeros(2, np.float32), steps=1000)
    assert finding[0] == "runaway" and "while" in inspect.getsource(kernel).splitlines()[finding[2]]


def test_the_budget_of_steps_is_for_each_thread():
    out = np.zeros(2, np.float32)
    assert found(runs_away_in_a_range, 1, 1, out, 999, steps=1000) == []
    assert [f[:3] for f in found(runs_away_in_a_range, 1, 1, out, 1001, steps=1000)] == [("runaway", "", 2)]


def barrier_in_a_branch(out):
    t = cuda.threadIdx.x
    if t < 40:
        cuda.syncthreads()
    out[t] = 1
    cuda.syncthreads()


def barrier_after_a_return(out):
    t = cuda.threadIdx.x
    if t < 40:
        cuda.syncthreads()
        return
    for _ in range(2):
        cuda.syncthreads()


def lanes_missing(out):
    t = cuda.threadIdx.x
    if t < 16:
        out[t] = cuda.shfl_xor_sync(FULL, t, 1)
    cuda.syncthreads()


def two_shuffles_of_one_mask(out):
    t = cuda.threadIdx.x
    if t < 16:
        out[t] = cuda.shfl_xor_sync(FULL, t, 1)
    else:
        out[t] = cuda.shfl_xor_sync(FULL, t, 2)


def reads_a_lane_outside(out):
    t = cuda.threadIdx.x
    if t < 16:
        out[t] = cuda.shfl_sync(0xFFFF, t, 20)


@pytest.mark.parametrize(
    ("kernel", "kind", "line"),
    [
        (barrier_in_a_branch, "divergent-barrier", 3),
        (barrier_after_a_return, "divergent-barrier", 3),
        (lanes_missing, "missing-lanes", 3),
        (two_shuffles_of_one_mask, "missing-lanes", 3),
        (reads_a_lane_outside, "missing-lanes", 3),
    ],
)
def test_barriers_that_do_not_meet(kernel, kind, line):
    ((found_kind, _, found_line, *_),) = found(kernel, 1, 64, np.zeros(64, np.float32))
    assert (found_kind, found_line) == (kind, line)


# ---- what cannot be watched


def stores_a_slice(out):
    out[1:3] = 0


def stores_a_row(out):
    out[0] = 0


def test_refusals():
    memory = emulator.Memory()
    with pytest.raises(
        emulator.EmulatorError, match=r"does not support a store to a part of an array in a watched run: out\[1:3\]$"
    ):
        emulator.compile(emulator.source_of(stores_a_slice), watched=True)
    with pytest.raises(emulator.EmulatorError, match="a watched kernel cannot store to a part of an array at once"):
        emulator.compile(emulator.source_of(stores_a_row), watched=True)(1, 1, (floats(4, 2),), memory=memory)
    for watched, given in ((False, memory), (True, None)):
        with pytest.raises(emulator.EmulatorError, match=r"^memory is for kernels compiled with watched=True"):
            emulator.compile(emulator.source_of(blocks_share), watched=watched)(1, 1, (floats(4),), memory=given)


# ---- every form of an access


def forms(x, out, n):
    t = cuda.threadIdx.x
    a = cuda.local.array(4, float32)
    b = cuda.local.array(4, int32)
    for i in range(4):
        a[i] = b[i] = i
    a[0], (a[1], b[2]) = x[0, 0], (x[0, 1], 7)
    a[cuda.atomic.add(n, 0, 1) + 2] *= 3
    b[3] //= 2
    b[3] <<= 3
    shape = x.shape
    pair = (a[0], 5)
    out[t] = a[0] + 10 * a[1] + 100 * a[2] + 1000 * b[2] + b[3] + shape[1] + pair[1] + x[0][2] + len(x[t])
    for value in (a[3], a[1]):
        out[t] += value


def test_every_form_of_an_access_gives_what_a_plain_run_gives(emulate):
    x, out, plain = floats(1, 3), np.zeros(1, np.float32), np.zeros(1, np.float32)
    assert found(forms, 1, 1, x, out, np.zeros(1, np.int32), outputs=[1]) == []
    emulate(forms, 1, 1, x, plain, np.zeros(1, np.int32))
    assert out[0] == plain[0] > 7000


# ---- operations of workbench.cuda.ptx


def matrix_rows(x, out, rows):
    s = cuda.shared.array((8, 8), uint16, alignment=16)
    lane = cuda.threadIdx.x
    if lane < rows:
        for i in range(8):
            s[lane, i] = x[lane, i]
    cuda.syncwarp()
    out[lane] = ptx.ldmatrix_x1(s, (lane % 8, 0))[0]


def test_ldmatrix_reads_its_rows():
    x, out = np.arange(64, dtype=np.uint16).reshape(8, 8), np.zeros(32, np.uint32)
    assert found(matrix_rows, 1, 32, x, out, 8) == []
    assert found(matrix_rows, 1, 32, x, out, 7) == [("uninitialised-read", "s", 7, None, (7, 0), 8)]


def wide(x, out, i):
    t = cuda.threadIdx.x
    ptx.st_v4_f32(out, (t, 0), ptx.ld_v4_f32(x, (t, i)))


def test_wide_loads_and_stores_touch_all_their_elements():
    x, out = floats(4, 8), np.zeros((4, 4), np.float32)
    assert found(wide, 1, 4, x, out, 4, once=[1]) == []
    np.testing.assert_array_equal(out, x[:, 4:])
    assert found(wide, 2, 4, x, out, 0)[0][:4] == ("race", "out", 2, 2)
    assert [f[:2] for f in found(wide, 1, 4, floats(3, 8), out, 0)] == [("out-of-bounds", "x")]
    assert [f[:2] for f in found(wide, 1, 4, floats(8, 6), out, 0)] == [("misaligned", "x")]


def copied(x, out, early):
    s = cuda.shared.array((2, 32, 4), float32, alignment=16)
    t = cuda.threadIdx.x
    ptx.cp_async_16(s, (0, t, 0), x, (0, t, 0))
    ptx.cp_async_commit()
    ptx.cp_async_16(s, (1, t, 0), x, (1, t, 0))
    ptx.cp_async_commit()
    ptx.cp_async_wait_group(1)
    cuda.syncthreads()
    out[0, t] = s[early, 31 - t, 0]
    ptx.cp_async_wait_all()
    cuda.syncthreads()
    out[1, t] = s[1, 31 - t, 3]


def copied_without_a_barrier(x, out):
    s = cuda.shared.array((32, 4), float32, alignment=16)
    t = cuda.threadIdx.x
    ptx.cp_async_16(s, (t, 0), x, (0, t, 0))
    ptx.cp_async_wait_all()
    out[0, t] = s[31 - t, 0]


def test_a_copy_is_there_once_it_was_waited_for():
    x, out = floats(2, 32, 4), np.zeros((2, 32), np.float32)
    assert found(copied, 1, 32, x, out, 0) == []
    np.testing.assert_array_equal(out, [x[0, ::-1, 0], x[1, ::-1, 3]])
    early = found(copied, 1, 32, x, out, 1)  # until other threads of the first half have waited in their turn
    assert early[0] == ("uninitialised-read", "s", 9, None, (1, 31, 0), 16)
    assert [f[:4] for f in early[1:]] == [("race", "s", 9, 10), ("race", "s", 10, 9)]
    assert "race" in {f[0] for f in found(copied_without_a_barrier, 1, 32, x, out)}
