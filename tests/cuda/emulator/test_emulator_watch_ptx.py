"""Watched micro-kernels with operations of workbench.cuda.ptx, which touch several elements at once."""

import numpy as np
from numba import cuda, float32, uint16

from workbench.cuda import ptx


def matrix_rows(x, out, rows):
    s = cuda.shared.array((8, 8), uint16, alignment=16)
    lane = cuda.threadIdx.x
    if lane < rows:
        for i in range(8):
            s[lane, i] = x[lane, i]
    cuda.syncwarp()
    out[lane] = ptx.ldmatrix_x1(s, (lane % 8, 0))[0]


def test_ldmatrix_reads_its_rows(found):
    x, out = np.arange(64, dtype=np.uint16).reshape(8, 8), np.zeros(32, np.uint32)
    assert found(matrix_rows, 1, 32, x, out, 8) == []
    assert found(matrix_rows, 1, 32, x, out, 7) == [("uninitialised-read", "s", 7, None, (7, 0), 8)]


def wide(x, out, i):
    t = cuda.threadIdx.x
    ptx.st_v4_f32(out, (t, 0), ptx.ld_v4_f32(x, (t, i)))


def test_wide_loads_and_stores_touch_all_their_elements(found, floats):
    x, out = floats(4, 8), np.zeros((4, 4), np.float32)
    assert found(wide, 1, 4, x, out, 4, once=[1]) == []
    np.testing.assert_array_equal(out, x[:, 4:])
    assert found(wide, 2, 4, x, out, 0)[0][:4] == ("race", "out", 2, 2)
    assert [f[:2] for f in found(wide, 1, 4, floats(3, 8), out, 0)] == [("out-of-bounds", "x")]
    assert [f[:2] for f in found(wide, 1, 4, floats(8, 6), out, 0)] == [("misaligned", "x")]


def streamed(out, i):
    t = cuda.threadIdx.x
    ptx.st_cs_v2_f32(out, (t, i), (float32(t), float32(1)))


def test_a_streamed_store_touches_both_its_elements(found):
    out = np.zeros((4, 4), np.float32)
    assert found(streamed, 1, 4, out, 2, once=[0]) == []
    np.testing.assert_array_equal(out[:, 2:], [[t, 1] for t in range(4)])
    assert found(streamed, 2, 4, out, 2)[0][:4] == ("race", "out", 2, 2)
    assert [f[:2] for f in found(streamed, 1, 5, out, 2)] == [("out-of-bounds", "out")]
    assert [f[:2] for f in found(streamed, 1, 4, out, 1)] == [("misaligned", "out")]


def added(out, i, plain):
    t = cuda.threadIdx.x
    ptx.red_add_v4_f32(out, i, (float32(t), float32(1), float32(2), float32(3)))
    if t == plain:
        out[i + 3] = float32(0)


def test_a_wide_atomic_sum_conflicts_with_plain_accesses_to_each_of_its_elements_only(found):
    out = np.zeros(8, np.float32)
    assert found(added, 2, 4, out, 4, -1) == []
    np.testing.assert_array_equal(out, [0, 0, 0, 0, 12, 8, 16, 24])
    assert found(added, 1, 4, out, 4, 2) == [("race", "out", 2, 4, (7,), 1)]
    assert [f[:2] for f in found(added, 1, 4, out, 8, -1)] == [("out-of-bounds", "out")]
    assert [f[:2] for f in found(added, 1, 4, out, 2, -1)] == [("misaligned", "out")]
    unwritten = found(added, 1, 1, out, 0, -1, outputs=[0])
    assert unwritten == [("uninitialised-read", "out", 2, None, (0,), 4)]


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


def test_a_copy_is_there_once_it_was_waited_for(found, floats):
    x, out = floats(2, 32, 4), np.zeros((2, 32), np.float32)
    assert found(copied, 1, 32, x, out, 0) == []
    np.testing.assert_array_equal(out, [x[0, ::-1, 0], x[1, ::-1, 3]])
    early = found(copied, 1, 32, x, out, 1)  # until other threads of the first half have waited in their turn
    assert early[0] == ("uninitialised-read", "s", 9, None, (1, 31, 0), 16)
    assert [f[:4] for f in early[1:]] == [("race", "s", 9, 10)]  # whichever came first
    assert "race" in {f[0] for f in found(copied_without_a_barrier, 1, 32, x, out)}
