"""Barriers in shared memory and copies of boxes on the emulator: what comes, when, and what is refused."""

import re

import numpy as np
import pytest
from numba import cuda, int16, uint64

from workbench.cuda import emulator, hopper

NO_INIT, SECOND_INIT, NO_COUNT, OTHER_PARITY, MANY_BYTES = range(1, 6)
TWO_ARRIVALS, OUTSIDE, MISPLACED, NEGATIVE, NAMED, NO_SUCH = range(6, 12)


def box(x, out, b, h, row, dim, fault):
    """A box of 16 rows of x, read before it was waited for and after."""
    tile = cuda.shared.array(16 * 64, int16, alignment=1024)
    bars = cuda.shared.array((1, 2), uint64)
    t = cuda.threadIdx.x
    for r in range(16):
        tile[r * 64 + t] = -1
    hopper.fence_async_shared()
    if t == 0:
        if fault != NO_INIT:
            hopper.mbarrier_init(bars, (0, 1), 0 if fault == NO_COUNT else 1)
        if fault == SECOND_INIT:
            hopper.mbarrier_init(bars, (0, 1), 1)
        hopper.fence_barrier_init()
    cuda.syncthreads()
    if t == 0:
        hopper.mbarrier_expect_tx(bars, (0, 1), -1 if fault == NEGATIVE else 4096 if fault == MANY_BYTES else 2048)
        if fault == TWO_ARRIVALS:
            hopper.mbarrier_arrive(bars, (0, 1))
        at = 64 if fault == MISPLACED else 0
        rows = 17 if fault == OUTSIDE else 16
        hopper.cp_async_bulk_tensor(tile, at, x, 0, (b, h, row, dim), rows, bars, (0, 1))
    for r in range(16):
        out[0, r, t] = tile[r * 64 + (t // 8 ^ r % 8) * 8 + t % 8]
    if fault == NO_SUCH:
        hopper.mbarrier_arrive(bars, (0, 2))
    if fault == NAMED:
        hopper.named_barrier(3, 96)
    hopper.mbarrier_wait(bars, (0, 1), 2 if fault == OTHER_PARITY else 0)
    for r in range(16):
        out[1, r, t] = tile[r * 64 + (t // 8 ^ r % 8) * 8 + t % 8]


@pytest.fixture(scope="module")
def launch():
    """launch(x, place, fault): what the box gave before and after the wait."""
    kernel = emulator.compile(emulator.source_of(box))

    def run(x, place, fault=0, **schedule):
        out = np.zeros((2, 16, 64), np.int16)
        kernel(1, 64, (x, out, *place, fault), **schedule)
        return out

    return run


X = np.arange(2 * 3 * 20 * 80, dtype=np.int16).reshape(2, 3, 20, 80)


@pytest.mark.campaign(every=3)
@pytest.mark.parametrize("order", ["ascending", "descending"])
@pytest.mark.parametrize(
    "place", [(0, 0, 0, 0), (1, 2, 3, 16), (1, 0, 10, 0), (0, 1, -5, 0), (0, 0, 4, 40), (0, 2, 4, -3), (2, 0, 0, 0)]
)
def test_a_box_comes_when_it_is_waited_for_and_is_zero_outside(launch, place, order):
    b, h, row, dim = place
    before, after = launch(X, place, order=order)
    assert np.all(before == -1)
    around = np.zeros((60, 200), np.int16)
    if b < 2:
        around[20:40, 60:140] = X[b, h]
    np.testing.assert_array_equal(after, around[20 + row : 36 + row, 60 + dim : 124 + dim])


def test_a_box_of_an_array_with_strides(launch):
    transposed = np.ascontiguousarray(X.transpose(0, 2, 1, 3)).transpose(0, 2, 1, 3)
    np.testing.assert_array_equal(launch(transposed, (1, 2, 2, 8)), launch(X, (1, 2, 2, 8)))


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (NO_INIT, "hopper.mbarrier_expect_tx: the barrier is not initialised; thread 0 in block (0, 0, 0)"),
        (SECOND_INIT, "hopper.mbarrier_init: the barrier is initialised twice; thread 0 in block (0, 0, 0)"),
        (NO_COUNT, "hopper.mbarrier_init: a barrier's arrival count must be 1 to 1048575; thread 0 in block (0, 0, 0)"),
        (
            NEGATIVE,
            "hopper.mbarrier_expect_tx: a barrier's byte count must be 0 to 1048575; thread 0 in block (0, 0, 0)",
        ),
        (OTHER_PARITY, "hopper.mbarrier_wait: parity must be 0 or 1; thread 0 in block (0, 0, 0)"),
        (TWO_ARRIVALS, "hopper.mbarrier_arrive: more arrivals than the phase expects; thread 0 in block (0, 0, 0)"),
        (
            OUTSIDE,
            "hopper.cp_async_bulk_tensor: a barrier, a tile or registers extend past their array; thread 0 in block (0, 0, 0)",
        ),
        (
            NO_SUCH,
            "hopper.mbarrier_arrive: a barrier, a tile or registers extend past their array; "
            "thread 0 in block (0, 0, 0)",
        ),
        (
            MISPLACED,
            "hopper.cp_async_bulk_tensor: a tile must start at a multiple of 1024 bytes in shared memory; "
            "thread 0 in block (0, 0, 0)",
        ),
        (
            MANY_BYTES,
            "box: deadlock in block (0, 0, 0)\n  hopper.mbarrier_wait reached by threads 0-63 for parity 0; phase 0 of "
            "bars[0, 1] lacks 0 of 1 arrivals and 2048 of 4096 bytes",
        ),
        (
            NAMED,
            "box: deadlock in block (0, 0, 0)\n  hopper.named_barrier reached by threads 0-63 where 64 of 96 threads have arrived",
        ),
    ],
)
def test_what_cannot_go_on_is_an_error(launch, fault, message):
    with pytest.raises(emulator.EmulatorError) as caught:
        launch(X, (0, 0, 0, 0), fault)
    assert re.sub(r"/\S*:\d+: ", "", str(caught.value)) == message


def test_rows_of_a_map_begin_at_multiples_of_16_bytes(launch):
    with pytest.raises(emulator.EmulatorError, match="rows of a tensor map must start at multiples of 16 bytes"):
        launch(np.zeros((1, 1, 16, 66), np.int16)[..., :64], (0, 0, 0, 0))
    with pytest.raises(emulator.EmulatorError, match="its last axis must be contiguous"):
        launch(np.zeros((1, 1, 16, 128), np.int16)[..., ::2], (0, 0, 0, 0))


def changing_count(n):
    hopper.named_barrier(1, n)


def no_barriers(x):
    hopper.mbarrier_arrive(x, 0)


def flat(x):
    tile = cuda.shared.array(64, int16, alignment=1024)
    bars = cuda.shared.array(1, uint64)
    hopper.cp_async_bulk_tensor(tile, 0, x, 0, (0, 0, 0, 0), 1, bars, 0)


def test_what_is_not_compiled(error_of):
    assert error_of(changing_count) == (
        "+1: the emulator does not support an operand that is negative or not constant: hopper.named_barrier(1, n)"
    )
    assert "barriers are uint64, not int64" in error_of(no_barriers, 1, 1, (np.zeros(1, np.int64),))
    assert "cp_async_bulk_tensor: x has 4 axes, of elements of 8 or 16 bits" in error_of(
        flat, 1, 1, (np.zeros(64, np.int16),)
    )
