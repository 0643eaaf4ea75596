import numpy as np
import pytest
from numba import cuda, float32, float64, int32, int64, uint32

FULL = 0xFFFFFFFF


def shuffles(x4, x8, i4, i8, out):
    t = cuda.threadIdx.x
    out[0, t] = cuda.shfl_sync(FULL, x4[t], 5)
    out[1, t] = cuda.shfl_up_sync(FULL, x8[t], 3)
    out[2, t] = cuda.shfl_down_sync(FULL, i4[t], 3)
    out[3, t] = cuda.shfl_xor_sync(FULL, i8[t], 9)
    out[4, t] = cuda.shfl_sync(FULL, int32(t), (t + 1) % 32)
    out[5, t] = cuda.shfl_xor_sync(0xF << (t // 4 * 4) % 32, float64(t), 2)
    out[6, t] = cuda.shfl_down_sync(FULL, t, 35)  # 5 bits of the distance count


def test_shuffles_of_four_types(emulate):
    lane = np.arange(64)
    x = np.random.default_rng(0).standard_normal(64)
    i8 = np.random.default_rng(1).integers(-(2**52), 2**52, 64)
    out = np.zeros((7, 64))
    emulate(shuffles, 1, 64, x.astype(np.float32), x, (100 * x).astype(np.int32), i8, out)
    warp = lane // 32 * 32
    up, down = np.where(lane % 32 < 3, lane, lane - 3), np.where(lane % 32 > 28, lane, lane + 3)
    np.testing.assert_array_equal(out[0], x.astype(np.float32)[warp + 5])
    np.testing.assert_array_equal(out[1], x[up])
    np.testing.assert_array_equal(out[2], (100 * x).astype(np.int32)[down])
    np.testing.assert_array_equal(out[3], i8[lane ^ 9])
    np.testing.assert_array_equal(out[4], warp + (lane + 1) % 32)
    np.testing.assert_array_equal(out[5], lane ^ 2)
    np.testing.assert_array_equal(out[6], down)


def unsigned(out):
    t = cuda.threadIdx.x
    out[t] = cuda.shfl_xor_sync(FULL, uint32(t), 1)


def test_a_type_that_no_gpu_shuffles_is_an_error(error_of):
    text = error_of(unsigned, 1, 32, (np.zeros(32, np.uint32),))
    assert "shuffles take int32, int64, float32 and float64, not uint32" in text


def votes(x, out):
    t = cuda.threadIdx.x
    half = 0xFFFF if t % 32 < 16 else 0xFFFF0000
    out[0, t] = cuda.all_sync(FULL, x[t] >= 0)
    out[1, t] = cuda.all_sync(half, x[t] > 0)
    out[2, t] = cuda.any_sync(half, x[t] == 5)
    out[3, t] = cuda.ballot_sync(FULL, x[t] % 2)
    out[4, t] = cuda.eq_sync(half, x[t] // 16) + 2 * cuda.eq_sync(half, x[t])
    if t % 3 == 0:
        out[5, t] = cuda.activemask()
    if t % 32 < 2:
        return
    out[6, t] = cuda.activemask()


@pytest.mark.parametrize("order", ["ascending", "descending"])
def test_votes_of_whole_warps_and_halves(emulate, order):
    x = np.arange(64, dtype=np.int32)
    out = np.full((7, 64), -1)
    emulate(votes, 1, 64, x, out, order=order)
    np.testing.assert_array_equal(out[0], 1)
    np.testing.assert_array_equal(out[1], x >= 16)
    np.testing.assert_array_equal(out[2], x < 16)
    np.testing.assert_array_equal(out[3], np.int32(0xAAAAAAAA - 2**32))  # an int32 in numba.cuda
    np.testing.assert_array_equal(out[4], np.where(x < 16, 1, 3))  # a 0 among others differs, 1 and 2 are both true
    thirds = [sum(1 << lane for lane in range(32) if (32 * warp + lane) % 3 == 0) for warp in (0, 1)]
    np.testing.assert_array_equal(out[5], np.where(x % 3 == 0, np.repeat(thirds, 32), -1))
    np.testing.assert_array_equal(out[6], np.where(x % 32 < 2, -1, 0xFFFFFFFC))


def matches(i4, i8, f4, out):
    t = cuda.threadIdx.x
    half = 0xFFFF if t % 32 < 16 else 0xFFFF0000
    out[0, t] = cuda.match_any_sync(FULL, i4[t])
    out[1, t] = cuda.match_any_sync(half, i8[t])
    out[2, t] = cuda.match_any_sync(FULL, f4[t])
    mask, alike = cuda.match_all_sync(half, i4[t] // 16)
    out[3, t] = mask if alike else 7
    mask, alike = cuda.match_all_sync(FULL, i8[t])
    out[4, t] = mask if alike else 7
    out[5, t] = cuda.lanemask_lt()


def test_matches_compare_bits(emulate):
    lane = np.arange(64)
    i4, i8 = (lane % 32).astype(np.int32), np.where(lane < 32, lane % 3, 2**40 + lane % 5)
    f4 = np.array([0.0, -0.0, np.nan, 1.5], np.float32)[lane % 4]
    f4[4] = -np.nan
    out = np.zeros((6, 64), np.int64)
    emulate(matches, 1, 64, i4, i8, f4, out)

    def masks(values, group=32):
        rows = values.reshape(-1, group)
        same = (rows[:, :, None] == rows[:, None, :]) @ (1 << np.arange(group)).astype(np.int64)
        return (same << (lane.reshape(-1, group) % 32 // group * group)).astype(np.uint32).astype(np.int32).ravel()

    np.testing.assert_array_equal(out[0], masks(i4))
    np.testing.assert_array_equal(out[1], masks(i8, 16))
    np.testing.assert_array_equal(out[2], masks(f4.view(np.uint32)))
    np.testing.assert_array_equal(out[3], np.where(lane % 32 < 16, 0xFFFF, -0x10000))
    np.testing.assert_array_equal(out[4], 7)
    np.testing.assert_array_equal(out[5], (1 << lane % 32) - 1)


@pytest.mark.gpu
def test_a_gpu_matches_and_votes_alike(emulate, launch_on_gpu):
    lane = np.arange(64)
    i4, i8 = (lane % 32).astype(np.int32), np.where(lane < 32, lane % 3, 2**40 + lane % 5)
    f4 = np.array([0.0, -0.0, np.nan, 1.5], np.float32)[lane % 4]
    for kernel, arrays in ((matches, (i4, i8, f4)), (votes, (lane.astype(np.int32),))):
        rows = 6 if kernel is matches else 5  # activemask may name fewer lanes on a GPU
        here, there = np.full((7, 64), -1), np.full((7, 64), -1)
        emulate(kernel, 1, 64, *arrays, here)
        launch_on_gpu(kernel, 1, 64, *arrays, there)
        np.testing.assert_array_equal(here[:rows], there[:rows])


def sorted_places(digit, place, counts):
    lane = cuda.laneid
    peers = cuda.match_any_sync(FULL, digit[lane])
    place[lane] = cuda.popc(peers & cuda.lanemask_lt())
    leader = cuda.ffs(peers) - 1
    counts[lane] = cuda.shfl_sync(FULL, cuda.popc(peers), leader)


def test_peers_count_themselves(emulate):
    digit = np.random.default_rng(0).integers(0, 5, 32).astype(np.int32)
    place, counts = np.zeros(32, np.int64), np.zeros(32, np.int64)
    emulate(sorted_places, 1, 32, digit, place, counts)
    np.testing.assert_array_equal(place, [np.count_nonzero(digit[:i] == digit[i]) for i in range(32)])
    np.testing.assert_array_equal(counts, np.bincount(digit)[digit])


def match_of_a_half(out):
    t = cuda.threadIdx.x
    if t < 16:
        out[t] = cuda.match_any_sync(FULL, t)


def test_lanes_missing_at_a_match_are_an_error(error_of):
    assert error_of(match_of_a_half, 1, 32, (np.zeros(32),)) == (
        "match_of_a_half: lanes of the mask are missing in block (0, 0, 0)\n"
        "  +3: cuda.match_any_sync reached by threads 0-15 with mask 0xffffffff, without threads 16-31\n"
        "  exited: threads 16-31"
    )


def sleepy(out):
    t = cuda.threadIdx.x
    out[t] = t
    cuda.nanosleep(100)
    cuda.threadfence_block()
    cuda.threadfence()
    cuda.threadfence_system()


def test_sleep_and_fences_change_nothing(emulate):
    out = np.full(4, -1)
    emulate(sleepy, 1, 4, out)
    np.testing.assert_array_equal(out, np.arange(4))


def neighbours(out):
    s = cuda.shared.array(32, float32)
    t = cuda.threadIdx.x
    pair = 3 << (t // 2 * 2)
    s[t] = t
    cuda.syncwarp(pair)
    out[t] = s[t ^ 1]
    cuda.syncwarp()


@pytest.mark.parametrize("order", ["ascending", "descending", "shuffle"])
def test_syncwarp_of_pairs_orders_their_memory(emulate, order):
    out = np.zeros(32, np.float32)
    emulate(neighbours, 1, 32, out, order=order)
    np.testing.assert_array_equal(out, np.arange(32) ^ 1)


@cuda.jit(device=True)
def warp_sum(x):
    offset = 16
    while offset > 0:
        x = x + cuda.shfl_xor_sync(FULL, x, offset)
        offset //= 2
    return x


@cuda.jit(device=True)
def twice_warp_sum(x):
    return warp_sum(x) + warp_sum(x)


def reductions(x, out):
    t = cuda.threadIdx.x
    out[t] = twice_warp_sum(x[t]) * warp_sum(int64(1))


def test_shuffles_in_nested_device_functions_and_expressions(emulate):
    x = np.arange(64, dtype=np.float32)
    out = np.zeros(64, np.float32)
    emulate(reductions, 1, 64, x, out)
    np.testing.assert_array_equal(out, np.repeat([64 * 496, 64 * 1520], 32))


def lanes_that_do_not_exist(out):
    t = cuda.threadIdx.x
    out[t] = cuda.shfl_down_sync(FULL, float32(t), 8)


def test_a_lane_beyond_the_block_gives_poison(emulate):
    out = np.zeros(16, np.float32)
    emulate(lanes_that_do_not_exist, 1, 16, out)
    np.testing.assert_array_equal(out[:8], np.arange(8, 16))
    np.testing.assert_array_equal(out[8:].view(np.uint32), 0x7FC0DEAD)


def half_a_warp(out):
    t = cuda.threadIdx.x
    if t < 40:
        out[t] = cuda.shfl_xor_sync(FULL, float32(t), 1)


def test_missing_lanes_are_an_error(error_of):
    assert error_of(half_a_warp, 1, 64, (np.zeros(64),)) == (
        "half_a_warp: lanes of the mask are missing in block (0, 0, 0)\n"
        "  +3: cuda.shfl_xor_sync reached by threads 32-39 with mask 0xffffffff, without threads 40-63\n"
        "  exited: threads 0-31, 40-63"
    )


def mask_without_me(out):
    out[cuda.threadIdx.x] = cuda.any_sync(0xFFFF, 1)


def test_a_mask_must_name_the_calling_lane(error_of):
    assert error_of(mask_without_me, 1, 32, (np.zeros(32),)) == (
        "mask_without_me: lanes of the mask are missing in block (0, 0, 0)\n"
        "  +1: cuda.any_sync reached by threads 0-31 with mask 0xffff, which does not include them all"
    )


def different_operations(out):
    t = cuda.threadIdx.x
    if t % 2:
        out[t] = cuda.shfl_xor_sync(FULL, t, 1)
    else:
        out[t] = cuda.shfl_down_sync(FULL, t, 1)


def test_lanes_at_different_operations_are_missing(error_of):
    text = error_of(different_operations, 1, 4, (np.zeros(4),))
    assert text == (
        "different_operations: lanes of the mask are missing in block (0, 0, 0)\n"
        "  +3: cuda.shfl_xor_sync reached by threads 1, 3 with mask 0xffffffff, without threads 0, 2\n"
        "  +5: cuda.shfl_down_sync reached by threads 0, 2 with mask 0xffffffff, without threads 1, 3"
    )


def survivors(out):
    s = cuda.shared.array(32, float32)
    t = cuda.threadIdx.x
    s[t] = t
    if t >= 20:
        return
    cuda.syncwarp()
    out[t] = s[31 - t]


def test_exited_lanes_take_no_part_in_syncwarp(emulate):
    out = np.zeros(32, np.float32)
    emulate(survivors, 1, 32, out)
    np.testing.assert_array_equal(out, np.where(np.arange(32) < 20, 31 - np.arange(32), 0))
