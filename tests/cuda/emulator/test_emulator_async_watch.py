"""Watched kernels with copies, barriers in shared memory and products: right ones, of which nothing is reported, and what
is found in each that breaks a rule, with its line. The situations are those of Pallas' race detector for GPUs.
"""

import functools
import linecache
import re

import numpy as np
import pytest
from numba import cuda, float32, int16, uint32, uint64

from workbench.cuda import emulator, hopper, ptx

RIGHT = 0
SCHEDULES = [{}, {"order": "descending"}, {"skew": True}, {"order": "shuffle", "seed": 1, "skew": True}]


@functools.cache
def watched(kernel):
    return emulator.compile(emulator.source_of(kernel), watched=True)


def found(kernel, threads, *args, **schedule):
    """(kind, array, source of the line, source of the other line) of each finding."""
    memory = emulator.Memory()
    watched(kernel)(1, threads, args, memory=memory, **schedule)
    return [(f.kind, f.array, text_of(f.file, f.line), text_of(f.other_file, f.other_line)) for f in memory.findings]


def text_of(file, line):
    return linecache.getline(file, line).partition("#")[0].strip() if file else None


# ---- a ring of tiles: a thread asks for copies, two warps read

NO_INIT_FENCE, NO_BLOCK_BARRIER, NO_FULL_WAIT, OTHER_PARITY, NO_EMPTY_WAIT, EARLY_RELEASE = range(1, 7)
LANES_NOT_MET, READ_AFTER_RELEASE, TWO_ARRIVALS, NO_ARRIVAL, FEW_BYTES, MANY_BYTES, BYTES_TWICE = range(7, 14)
STORED_WHILE_COPIED, ZEROED, ZEROED_AND_FENCED, COPY_LEFT, NO_INIT, SECOND_INIT, OUTSIDE, MISPLACED = range(14, 22)


def ring(x, out, fault):
    tiles = cuda.shared.array((2, 512), int16, alignment=1024)
    full = cuda.shared.array(2, uint64)
    empty = cuda.shared.array(2, uint64)
    t, rounds = cuda.threadIdx.x, x.shape[2] // 8
    if t == 0:
        for stage in range(2):
            if fault != NO_INIT or stage == 0:
                hopper.mbarrier_init(full, stage, 1)
            hopper.mbarrier_init(empty, stage, 2)
        if fault == SECOND_INIT:
            hopper.mbarrier_init(empty, 1, 2)  # again
        if fault != NO_INIT_FENCE:
            hopper.fence_barrier_init()
    if fault == ZEROED or fault == ZEROED_AND_FENCED:
        tiles[0, t] = 0
        if fault == ZEROED_AND_FENCED:
            hopper.fence_async_shared()
    if fault != NO_BLOCK_BARRIER:
        cuda.syncthreads()
    if t == 0:
        for i in range(rounds):
            stage, turn = i % 2, i // 2
            if fault != NO_EMPTY_WAIT:
                hopper.mbarrier_wait(empty, stage, (turn & 1) ^ 1)
            size = 512 if fault == FEW_BYTES else 2048 if fault == MANY_BYTES else 1024
            hopper.mbarrier_expect_tx(full, stage, size)
            if fault == BYTES_TWICE:
                hopper.mbarrier_expect_tx(full, stage, size)  # again
            at = 8 if fault == MISPLACED else 0
            rows = 16 if fault == OUTSIDE and stage == 1 else 8
            hopper.cp_async_bulk_tensor(tiles, (stage, at), x, 0, (0, 0, 8 * i, 0), rows, full, stage)
            if fault == STORED_WHILE_COPIED:
                tiles[stage, 0] = 1
        if fault == COPY_LEFT:
            hopper.mbarrier_wait(empty, 0, 0)
            hopper.mbarrier_expect_tx(full, 0, 1024)
            hopper.cp_async_bulk_tensor(tiles, (0, 0), x, 0, (0, 0, 0, 0), 8, full, 0)  # one more
    elif t >= 32:
        c = t - 32
        for i in range(rounds):
            stage, turn = i % 2, i // 2
            if fault == OTHER_PARITY:
                hopper.mbarrier_wait(full, stage, (turn & 1) ^ 1)  # other
            elif fault != NO_FULL_WAIT:
                hopper.mbarrier_wait(full, stage, turn & 1)
            if fault == EARLY_RELEASE and c % 32 == 0:
                hopper.mbarrier_arrive(empty, stage)
            for r in range(8):
                out[8 * i + r, c] = tiles[stage, r * 64 + (c // 8 ^ r) * 8 + c % 8]
            if fault != LANES_NOT_MET:
                cuda.syncwarp()
            if c % 32 == 0 and fault != EARLY_RELEASE and not (fault == NO_ARRIVAL and c == 32):
                hopper.mbarrier_arrive(empty, stage)
                if fault == TWO_ARRIVALS and c == 0:
                    hopper.mbarrier_arrive(empty, stage)
            if fault == READ_AFTER_RELEASE:
                out[8 * i, c] = tiles[stage, c]  # late


COPY = "hopper.cp_async_bulk_tensor(tiles, (stage, at), x, 0, (0, 0, 8 * i, 0), rows, full, stage)"
READ = "out[8 * i + r, c] = tiles[stage, r * 64 + (c // 8 ^ r) * 8 + c % 8]"
EMPTY_WAIT = "hopper.mbarrier_wait(empty, stage, (turn & 1) ^ 1)"
FULL_WAIT = "hopper.mbarrier_wait(full, stage, turn & 1)"
INIT, INIT_EMPTY = "hopper.mbarrier_init(full, stage, 1)", "hopper.mbarrier_init(empty, stage, 2)"
LAST_COPY = "hopper.cp_async_bulk_tensor(tiles, (0, 0), x, 0, (0, 0, 0, 0), 8, full, 0)"
EXPECT = "hopper.mbarrier_expect_tx(full, stage, size)"


@pytest.fixture
def turned():
    """The ring's kernel, its input and a place for its output."""
    return ring, 96, np.arange(40 * 64, dtype=np.int16).reshape(1, 1, 40, 64), np.zeros((40, 64), np.int16)


@pytest.mark.campaign
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("fault", [RIGHT, ZEROED_AND_FENCED])
def test_a_right_ring_gives_nothing_and_all_tiles(turned, fault, schedule):
    *_, x, out = turned
    assert found(*turned, fault, **schedule) == []
    np.testing.assert_array_equal(out, x[0, 0])


@pytest.mark.campaign(every=3)
@pytest.mark.parametrize(
    ("fault", "finding"),
    [
        (NO_INIT_FENCE, ("missing-fence", "full", COPY, INIT)),
        (NO_BLOCK_BARRIER, ("uninitialised-barrier", "full", FULL_WAIT, INIT)),
        (NO_FULL_WAIT, ("early-read", "tiles", READ, COPY)),
        (OTHER_PARITY, ("wrong-phase", "tiles", EMPTY_WAIT.replace("empty", "full"), READ)),
        (NO_EMPTY_WAIT, ("early-write", "tiles", COPY, COPY)),
        (EARLY_RELEASE, ("early-write", "tiles", COPY, READ)),
        (LANES_NOT_MET, ("early-write", "tiles", COPY, READ)),
        (READ_AFTER_RELEASE, ("early-write", "tiles", COPY, "out[8 * i, c] = tiles[stage, c]")),
        (TWO_ARRIVALS, ("early-write", "tiles", COPY, READ)),
        (NO_ARRIVAL, ("deadlock", "", EMPTY_WAIT, FULL_WAIT)),
        (FEW_BYTES, ("byte-count", "full", EXPECT, COPY)),
        (MANY_BYTES, ("deadlock", "", EMPTY_WAIT, FULL_WAIT)),
        (BYTES_TWICE, ("arrival-count", "full", EXPECT, None)),
        (STORED_WHILE_COPIED, ("early-write", "tiles", "tiles[stage, 0] = 1", COPY)),
        (ZEROED, ("missing-fence", "tiles", COPY, "tiles[0, t] = 0")),
        (COPY_LEFT, ("unfinished", "tiles", LAST_COPY, None)),
        (NO_INIT, ("uninitialised-barrier", "full", EXPECT, None)),
        (SECOND_INIT, ("reinitialised-barrier", "empty", "hopper.mbarrier_init(empty, 1, 2)", None)),
        (OUTSIDE, ("out-of-bounds", "tiles", COPY, None)),
        (MISPLACED, ("misaligned", "tiles", COPY, None)),
    ],
)
def test_what_is_wrong_with_a_ring(turned, fault, finding):
    assert finding in found(*turned, fault)
    for schedule in SCHEDULES[1:3]:
        kinds = {kind for kind, *_ in found(*turned, fault, **schedule)}
        assert finding[0] in kinds or (fault in (NO_FULL_WAIT, OTHER_PARITY) and "uninitialised-read" in kinds)


def test_findings_in_words(turned):
    """What a phase lacks, of which the thread has waited, and what was announced."""
    memory = emulator.Memory()
    for fault in (NO_ARRIVAL, NO_FULL_WAIT, FEW_BYTES):
        watched(ring)(1, 96, (*turned[2:], fault), memory=memory)
    texts = [re.sub(r"/\S*:\d+", "ring", finding.text) for finding in memory.findings]
    assert texts[0] == (
        "ring: deadlock in block (0, 0, 0)\n"
        "  ring: hopper.mbarrier_wait reached by thread 0 for parity 0; phase 0 of empty[0] lacks 1 of 2 arrivals\n"
        "  ring: hopper.mbarrier_wait reached by threads 32-95 for parity 1; phase 1 of full[0] lacks 1 of 1 arrivals\n"
        "  exited: threads 1-31"
    )
    assert texts[2] == (
        "tiles[0, 0] is read before its copy has arrived: the copy completes phase 0 of a barrier; this thread has waited for no phase"
    )
    assert texts[-2] == (
        "phase 0 of full[0] completes while its copies are in flight: 512 bytes were announced, the copies transfer more"
    )


# ---- a product of a warp group

NO_FENCE, FENCE_BEHIND_BARRIER, NO_BARRIER, NO_REGISTER_FENCE, REGISTER_AFTER_FENCE, NO_COMMIT = range(1, 7)
NO_WAIT, WAIT_FOR_LESS, OTHER_REGISTERS, READ_TOO_EARLY, OVER_B, OVER_A, OVER_SUMS = range(7, 14)
SUMS_UNWRITTEN, SUMS_READ_BETWEEN, HALF_A_GROUP = range(14, 17)


def multiply(y, out, fault):
    """Twice the product of ones and y [64 columns, 16]."""
    b = cuda.shared.array(64 * 64, int16, alignment=1024)
    a = cuda.local.array(4, uint32)
    acc = cuda.local.array(32, float32)
    others = cuda.local.array(32, float32)
    t = cuda.threadIdx.x
    if t < 64:
        for k in range(16):
            b[t * 64 + (k // 8 ^ t % 8) * 8 + k % 8] = y[t, k]
        if fault != NO_FENCE and fault != FENCE_BEHIND_BARRIER:
            hopper.fence_async_shared()
    if fault != NO_BARRIER:
        cuda.syncthreads()
    if fault == FENCE_BEHIND_BARRIER:
        hopper.fence_async_shared()
    for i in range(4):
        a[i] = 0x3C003C00
    for i in range(32):
        if fault != SUMS_UNWRITTEN:
            acc[i] = 0
    if fault != NO_REGISTER_FENCE:
        hopper.wgmma_fence(acc, 32)
    if fault == REGISTER_AFTER_FENCE:
        a[0] = 0x3C003C00  # late
    hopper.wgmma_m64n64k16_f16_rs(acc, a, 0, b, 0, 1)
    if fault == SUMS_READ_BETWEEN:
        hopper.wgmma_commit()
        hopper.wgmma_wait(0, acc, 32)
        out[t, 0] = acc[0]
    hopper.wgmma_m64n64k16_f16_rs(acc, a, 0, b, 0, 1)  # second
    if fault != NO_COMMIT:
        hopper.wgmma_commit()
    if fault == READ_TOO_EARLY:
        out[t, 0] = acc[0]  # early
    if fault == OVER_B and t < 64:
        b[t * 64] = 0  # over
    if fault == OVER_A:
        a[1] = 0
    if fault == OVER_SUMS:
        acc[0] = 1
    if fault == WAIT_FOR_LESS:
        hopper.wgmma_wait(1, acc, 32)
    elif fault == OTHER_REGISTERS:
        hopper.wgmma_wait(0, others, 32)
    elif fault != NO_WAIT and not (fault == HALF_A_GROUP and t < 64):
        hopper.wgmma_wait(0, acc, 32)
    for i in range(32):
        out[t, i] = acc[i]


STORE = "b[t * 64 + (k // 8 ^ t % 8) * 8 + k % 8] = y[t, k]"
PRODUCT = "hopper.wgmma_m64n64k16_f16_rs(acc, a, 0, b, 0, 1)"
SUMS = "out[t, i] = acc[i]"


@pytest.fixture
def factors():
    """The product's kernel, y as bits of float16, a place for the sums."""
    y = np.arange(1024, dtype=np.float16).reshape(64, 16) / 16
    return multiply, 128, y.view(np.int16), np.zeros((128, 32), np.float32)


@pytest.mark.campaign
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("fault", [RIGHT, FENCE_BEHIND_BARRIER])
def test_a_right_product_gives_nothing(factors, fault, schedule):
    *_, y, out = factors
    assert found(*factors, fault, **schedule) == []
    columns = 8 * (np.arange(32) // 4) + 2 * (np.arange(128)[:, None] % 4) + np.arange(32) % 2
    np.testing.assert_array_equal(out, 2 * y.view(np.float16).astype(np.float32).sum(axis=1)[columns])


@pytest.mark.parametrize(
    ("fault", "finding"),
    [
        (NO_FENCE, ("missing-fence", "b", PRODUCT, STORE)),
        (NO_BARRIER, ("race", "b", PRODUCT, STORE)),
        (NO_REGISTER_FENCE, ("missing-fence", "acc", PRODUCT, None)),
        (REGISTER_AFTER_FENCE, ("missing-fence", "a", PRODUCT, None)),
        (SUMS_UNWRITTEN, ("uninitialised-read", "acc", PRODUCT, None)),
        (SUMS_READ_BETWEEN, ("missing-fence", "acc", PRODUCT, None)),
        (NO_COMMIT, ("early-read", "acc", SUMS, PRODUCT)),
        (NO_WAIT, ("early-read", "acc", SUMS, PRODUCT)),
        (NO_WAIT, ("unfinished", "acc", PRODUCT, None)),
        (WAIT_FOR_LESS, ("early-read", "acc", SUMS, PRODUCT)),
        (OTHER_REGISTERS, ("early-read", "acc", SUMS, PRODUCT)),
        (READ_TOO_EARLY, ("early-read", "acc", "out[t, 0] = acc[0]", PRODUCT)),
        (OVER_B, ("early-write", "b", "b[t * 64] = 0", PRODUCT)),
        (OVER_A, ("early-write", "a", "a[1] = 0", PRODUCT)),
        (OVER_SUMS, ("early-write", "acc", "acc[0] = 1", PRODUCT)),
        (HALF_A_GROUP, ("deadlock", "", "hopper.wgmma_wait(0, acc, 32)", None)),
    ],
)
def test_what_is_wrong_with_a_product(factors, fault, finding):
    assert finding in found(*factors, fault)
    assert finding[0] in {kind for kind, *_ in found(*factors, fault, order="descending", skew=True)}


# ---- threads that wait for some others

NOT_RELAYED, NO_LAST_WAIT, NOT_AWAITED, NOBODY_COMES, NO_COPY_WAIT = range(1, 6)


def relay(x, scratch, out, fault):
    """Warp 0 writes, warp 1 tells warp 2, which reads; then warp 0 writes again."""
    s = cuda.shared.array(32, float32, alignment=16)
    bars = cuda.shared.array(2, uint64)
    t, lane = cuda.threadIdx.x, cuda.laneid
    if t < 2:
        hopper.mbarrier_init(bars, t, 32)
    cuda.syncthreads()
    if t < 32:
        ptx.cp_async_4(s, lane, x, lane)
        if fault != NO_COPY_WAIT:
            ptx.cp_async_wait_all()
        scratch[lane] = x[lane]
        hopper.mbarrier_arrive(bars, 0)
        if fault != NOT_AWAITED:
            hopper.named_barrier(1, 64)
        s[lane] = 0
    elif t < 64:
        if fault != NOT_RELAYED:
            hopper.mbarrier_wait(bars, 0, 0)
        hopper.mbarrier_arrive(bars, 1)
    else:
        if fault != NO_LAST_WAIT:
            hopper.mbarrier_wait(bars, 1, 0)
        out[lane] = s[31 - lane] + scratch[31 - lane]
        if fault != NOBODY_COMES:
            hopper.named_barrier_arrive(1, 64)


@pytest.fixture
def runners():
    """The relay's kernel, its input, and places for what it writes."""
    return relay, 96, np.arange(32, dtype=np.float32), np.zeros(32, np.float32), np.zeros(32, np.float32)


@pytest.mark.campaign
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_who_waits_for_one_that_waited_for_another_knows_what_both_did(runners, schedule):
    *_, x, _, out = runners
    assert found(*runners, RIGHT, **schedule) == []
    np.testing.assert_array_equal(out, 2 * x[::-1])


READ_BOTH = "out[lane] = s[31 - lane] + scratch[31 - lane]"


@pytest.mark.parametrize(
    ("fault", "finding"),
    [
        (NOT_RELAYED, ("race", "scratch", READ_BOTH, "scratch[lane] = x[lane]")),
        (NO_LAST_WAIT, ("race", "s", READ_BOTH, "ptx.cp_async_wait_all()")),
        (NOT_AWAITED, ("race", "s", READ_BOTH, "s[lane] = 0")),
        (NOBODY_COMES, ("deadlock", "", "hopper.named_barrier(1, 64)", None)),
        (NO_COPY_WAIT, ("uninitialised-read", "s", READ_BOTH, None)),
    ],
)
def test_what_is_wrong_with_a_relay(runners, fault, finding):
    assert finding in found(*runners, fault)
    assert found(*runners, fault, order="descending")
