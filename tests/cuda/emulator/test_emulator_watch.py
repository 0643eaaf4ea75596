"""Watched micro-kernels: right ones, of which nothing is reported, threads that never end or never meet, refusals."""

import inspect

import numpy as np
import pytest
from numba import cuda, float32, float64, int32

from workbench.cuda import emulator

FULL = 0xFFFFFFFF


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


@pytest.mark.campaign(but=1)
@pytest.mark.parametrize("schedule", [{}, {"skew": True}, {"order": "descending"}, {"order": "shuffle", "seed": 3}])
def test_right_kernel_gives_nothing_and_the_bits_of_a_plain_run(found, floats, schedule, emulate):
    x = floats(3, 64)
    out, sums = np.zeros((3, 65), np.float32), np.zeros(4, np.float32)
    plain_out, plain_sums = out.copy(), sums.copy()
    assert found(right, 3, 64, x, out, sums, once=[1], **schedule) == []
    emulate(right, 3, 64, x, plain_out, plain_sums, **schedule)
    assert (out.tobytes(), sums.tobytes()) == (plain_out.tobytes(), plain_sums.tobytes())
    assert np.all(out[:, 64] > 0)


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


@pytest.mark.campaign
def test_every_form_of_an_access_gives_what_a_plain_run_gives(found, floats, emulate):
    x, out, plain = floats(1, 3), np.zeros(1, np.float32), np.zeros(1, np.float32)
    assert found(forms, 1, 1, x, out, np.zeros(1, np.int32), outputs=[1]) == []
    emulate(forms, 1, 1, x, plain, np.zeros(1, np.int32))
    assert out[0] == plain[0] > 7000


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
def test_a_loop_without_an_end_is_found(found, kernel):
    (finding,) = found(kernel, 1, 32, np.zeros(2, np.float32), steps=1000)
    assert finding[0] == "runaway" and "while" in inspect.getsource(kernel).splitlines()[finding[2]]


def test_the_budget_of_steps_is_for_each_thread(found):
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
def test_barriers_that_do_not_meet(found, kernel, kind, line):
    ((found_kind, _, found_line, *_),) = found(kernel, 1, 64, np.zeros(64, np.float32))
    assert (found_kind, found_line) == (kind, line)


# ---- what cannot be watched


def stores_a_slice(out):
    out[1:3] = 0


def stores_a_row(out):
    out[0] = 0


def test_refusals(floats):
    memory = emulator.Memory()
    with pytest.raises(
        emulator.EmulatorError, match=r"does not support a store to a slice in a watched run: out\[1:3\]$"
    ):
        emulator.compile(emulator.source_of(stores_a_slice), watched=True)
    with pytest.raises(emulator.EmulatorError, match="a watched kernel cannot store to a slice"):
        emulator.compile(emulator.source_of(stores_a_row), watched=True)(1, 1, (floats(4, 2),), memory=memory)
    for watched, given in ((False, memory), (True, None)):
        with pytest.raises(
            emulator.EmulatorError, match=r"^kernels compiled with watched=True need memory, others take none"
        ):
            emulator.compile(emulator.source_of(lanes_missing), watched=watched)(1, 1, (floats(4),), memory=given)
