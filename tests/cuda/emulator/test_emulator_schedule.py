import math

import numpy as np
import pytest
from numba import cuda, float32

from workbench.cuda import emulator

BLOCK_Q, BLOCK_K, HEAD_DIM, LANES = 16, 16, 32, 4
THREADS = BLOCK_Q * LANES
DIMS = HEAD_DIM // LANES
NEG_INF = np.float32(-np.inf)
FULL = 0xFFFFFFFF


@cuda.jit(device=True)
def load_float16(x):
    return float32(x)


LOAD = load_float16


@cuda.jit(device=True)
def load_tile(tile, x, head, first, rows):
    for i in range(cuda.threadIdx.x, tile.shape[0] * HEAD_DIM, THREADS):
        row = first + i // HEAD_DIM
        tile[i // HEAD_DIM, i % HEAD_DIM] = LOAD(x[head, row, i % HEAD_DIM]) if row < rows else float32(0)


@cuda.jit(device=True)
def row_max(x):
    offset = LANES // 2
    while offset > 0:
        x = max(x, cuda.shfl_xor_sync(FULL, x, offset))
        offset //= 2
    return x


@cuda.jit(device=True)
def row_sum(x):
    offset = LANES // 2
    while offset > 0:
        x = x + cuda.shfl_xor_sync(FULL, x, offset)
        offset //= 2
    return x


@cuda.jit
def flash(q, k, v, out, scale, causal, scores):
    """Attention of one head and query tile, online softmax over key tiles; `scores` is a dump."""
    s_q = cuda.shared.array((BLOCK_Q, HEAD_DIM), float32)
    s_kv = cuda.shared.array((BLOCK_K, HEAD_DIM), float32)
    s_p = cuda.shared.array((BLOCK_Q, BLOCK_K), float32)
    acc = cuda.local.array(DIMS, float32)
    head, r, lane = cuda.blockIdx.y, cuda.threadIdx.x // LANES, cuda.threadIdx.x % LANES
    row = cuda.blockIdx.x * BLOCK_Q + r
    rows, keys = q.shape[1], k.shape[1]

    load_tile(s_q, q, head, cuda.blockIdx.x * BLOCK_Q, rows)
    m, l = NEG_INF, float32(0)
    for i in range(DIMS):
        acc[i] = float32(0)
    for first in range(0, keys, BLOCK_K):
        cuda.syncthreads()
        load_tile(s_kv, k, head, first, keys)
        cuda.syncthreads()
        tile_max = NEG_INF
        for c in range(lane, BLOCK_K, LANES):
            dot = float32(0)
            for d in range(HEAD_DIM):
                dot += s_q[r, d] * s_kv[c, d]
            s = dot * scale
            if first + c >= keys or (causal and first + c > row):
                s = NEG_INF
            s_p[r, c] = s
            tile_max = max(tile_max, s)
            if row < rows and first + c < keys:
                scores[head, row, first + c] = s
        m_prev = m
        m = max(m, row_max(tile_max))
        correction = math.exp(m_prev - m)
        tile_sum = float32(0)
        for c in range(lane, BLOCK_K, LANES):
            s_p[r, c] = math.exp(s_p[r, c] - m)
            tile_sum += s_p[r, c]
        l = l * correction + row_sum(tile_sum)
        cuda.syncthreads()
        load_tile(s_kv, v, head, first, keys)
        cuda.syncthreads()
        for i in range(DIMS):
            acc[i] *= correction
            for c in range(BLOCK_K):
                acc[i] += s_p[r, c] * s_kv[c, lane + i * LANES]
    if row < rows:
        for i in range(DIMS):
            out[head, row, lane + i * LANES] = acc[i] / l


def attention(schedule, causal=True, kernel=flash):
    random = np.random.default_rng(0)
    q, k, v = random.standard_normal((3, 2, 40, HEAD_DIM)).astype(np.float16)
    out, scores = np.full((2, 40, HEAD_DIM), np.nan, np.float32), np.full((2, 40, 40), np.nan, np.float32)
    scale = np.float32(HEAD_DIM**-0.5)
    emulated = emulator.compile(emulator.source_of(kernel))
    emulated((3, 2), THREADS, (q, k, v, out, scale, causal, scores), **schedule)
    return (q, k, v), out, scores


SCHEDULES = [
    {"order": order, "seed": seed, "skew": skew, "workers": workers}
    for order, seed, workers in [("ascending", 0, 1), ("descending", 0, 2), ("shuffle", 1, 1), ("shuffle", 2, 3)]
    for skew in (False, True)
]


@pytest.fixture(scope="module")
def first():
    return attention({})


@pytest.mark.campaign(but=2)
@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_a_correct_kernel_gives_the_same_bits_under_every_schedule(first, schedule):
    _, out, scores = attention(schedule)
    assert not np.isnan(out).any() and not np.isnan(scores).any()
    np.testing.assert_array_equal(out, first[1])
    np.testing.assert_array_equal(scores, first[2])


def test_attention_is_attention(first):
    (q, k, v), out, scores = first
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    expected = np.where(np.tril(np.ones((40, 40), bool)), q @ k.transpose(0, 2, 1) * HEAD_DIM**-0.5, -np.inf)
    np.testing.assert_allclose(scores, expected, rtol=0, atol=1e-5)
    probs = np.exp(expected - expected.max(axis=-1, keepdims=True))
    np.testing.assert_allclose(out, probs / probs.sum(axis=-1, keepdims=True) @ v, rtol=0, atol=2e-6)


def exchange_without_barrier(x, out):
    s = cuda.shared.array(64, float32)
    t = cuda.threadIdx.x
    s[t] = x[t]
    out[t] = s[63 - t]


def test_a_missing_barrier_shows_as_poison_that_depends_on_the_order(emulate):
    x = np.arange(64, dtype=np.float32)
    outs = {}
    for order in ("ascending", "descending"):
        outs[order] = np.zeros(64, np.float32)
        emulate(exchange_without_barrier, 1, 64, x, outs[order], order=order)
    np.testing.assert_array_equal(np.isnan(outs["ascending"]), np.arange(64) < 32)
    np.testing.assert_array_equal(np.isnan(outs["descending"]), np.arange(64) >= 32)


def relay(out):
    s = cuda.shared.array(2, float32)
    warp, lane = cuda.threadIdx.x // 32, cuda.threadIdx.x % 32
    s[warp] = float32(0)
    cuda.syncwarp()
    if lane == 0:
        s[warp] = float32(1)
    cuda.syncwarp()
    if lane == 1:
        out[warp] = s[1 - warp]


def test_skew_runs_one_warp_to_the_block_barrier_before_the_next(emulate):
    results = {}
    for order in ("ascending", "descending"):
        for skew in (False, True):
            out = np.full(2, -1, np.float32)
            emulate(relay, 1, 64, out, order=order, skew=skew)
            results[order, skew] = out.tolist()
    nan = pytest.approx(math.nan, nan_ok=True)
    assert results == {
        ("ascending", False): [1, 1],
        ("descending", False): [1, 1],
        ("ascending", True): [nan, 1],  # warp 0 has finished before warp 1 starts
        ("descending", True): [1, nan],
    }


def arrivals(out):
    out[cuda.blockIdx.x] = cuda.atomic.add(out, 8, 1)


def test_blocks_run_in_the_chosen_order(emulate):
    seen = {}
    for order in ("ascending", "descending", "shuffle"):
        out = np.zeros(9, np.int64)
        emulate(arrivals, 8, 1, out, order=order, seed=1)
        seen[order] = out[:8].tolist()
    assert seen["ascending"] == list(range(8))
    assert seen["descending"] == list(range(8))[::-1]
    assert sorted(seen["shuffle"]) == list(range(8)) and seen["shuffle"] not in (seen["ascending"], seen["descending"])
