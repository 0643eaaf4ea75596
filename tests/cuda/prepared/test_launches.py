"""Kernels called with torch tensors: what the driver is given, without one, and run by the emulator."""

import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from workbench import Case, run
from workbench.cuda import prepared

torch = pytest.importorskip("torch", reason="torch is not installed")

from tests.cuda.prepared.driver import FLOAT32, bits, emulated, filled, given, options_of, tensor, tensors  # noqa: E402 - needs torch

CASES = {
    "flash_mma": dict(
        batch=2, heads=4, kv_heads=2, seqlen_q=37, seqlen_k=50, head_dim=64, dtype="bfloat16", causal=True
    ),
    "flash": dict(heads=2, seqlen_q=20, seqlen_k=17, head_dim=30, scale=0.3, window=(5, 2)),
    "split_mma": dict(heads=8, kv_heads=2, batch=2, seqlen_q=1, seqlen_k=330, head_dim=64, dtype="float16"),
}


@pytest.mark.campaign(but=1)
@pytest.mark.parametrize(
    ("name", "transposed"),
    [
        ("flash", False),
        ("flash", True),
        pytest.param("flash_mma", False, marks=pytest.mark.campaign),
        pytest.param("flash_mma", True, marks=pytest.mark.campaign),
    ],
)
def test_what_the_driver_is_given_runs_on_the_emulator(name, transposed, driver):
    """Every address, shape, stride and scalar is used."""
    case = Case(**CASES[name])
    expected = run(name, case, probes="output", backend="emulator").stages
    q, k, v = filled(case, transposed=transposed)
    out, lse = prepared.kernel(name)(q, k, v, **options_of(case))
    assert out.stride() == q.stride() and lse.is_contiguous() and lse.dtype == FLOAT32
    (launch,) = driver.launches
    assert {x.layout for x in launch.code.typed.args[:4]} == {"A" if transposed else "C"}
    emulated(launch)
    assert bits(out) == bits(expected["out"]) and bits(lse) == bits(expected["lse"])


@pytest.mark.campaign
def test_two_launches_of_a_call_share_what_the_first_leaves(driver):
    """Where the second finds it, in a room of the call's own; in as many splits as fill 4 multiprocessors."""
    case = Case(**CASES["split_mma"])
    expected = run("split_mma", case.but(splits=2), probes="output", backend="emulator").stages
    attention, inputs = prepared.kernel("split_mma"), filled(case)
    driver.runs = True
    for _ in range(2):
        out, lse = attention(*inputs)
        assert bits(out) == bits(expected["out"]) and bits(lse) == bits(expected["lse"])
    first, second, *_ = driver.launches
    assert first.size == (2, 2, 2, 128, 1, 1) and second.size == (1, 8, 2, 128, 1, 1)
    assert (first.shared, second.shared) == (2 * (16 + 4 * 64) * 64, 0) and len(driver.codes) == 2
    for name in ("partial_O", "partial_max", "partial_sum"):
        assert given(first)[name] == given(second)[name]
    start = given(first)["partial_O"][4]
    assert given(first)["partial_max"][4] - start == 4 * 2 * 8 * 2 * 64
    assert given(first)["partial_sum"][4] - start == 4 * 2 * 8 * 2 * (64 + 1)


def test_no_later_launch_of_a_call_that_failed(driver):
    driver.status = SimpleNamespace(name="CUDA_ERROR_INVALID_VALUE")
    with pytest.raises(RuntimeError, match="^split_mma: the driver returned CUDA_ERROR_INVALID_VALUE for "):
        prepared.kernel("split_mma")(*tensors())
    assert len(driver.launches) == 1


def test_arguments_are_those_of_numba_cuda(driver):
    """Of an array: no meminfo and no parent, elements, bytes of one, address, shape, strides in bytes."""
    q, k, v = tensors()
    attention = prepared.kernel("flash_mma")
    out, lse = attention(q, k.transpose(1, 2).contiguous().transpose(1, 2), v, window=(3, -1), softcap=2.5, scale=-0.5)
    found = given(driver.launches[0])
    assert found["q"] == [0, 0, 2560, 2, q.data_ptr(), 2, 4, 5, 64, 2560, 640, 128, 2]
    assert found["k"][5:] == [2, 2, 7, 64, 1792, 128, 256, 2] and found["v"][5:] == [2, 2, 7, 64, 1792, 896, 128, 2]
    assert found["out"] == [*found["q"][:4], out.data_ptr(), *found["q"][5:]]
    assert found["lse"] == [0, 0, 40, 4, lse.data_ptr(), 2, 4, 5, 80, 20, 4]
    scalars = {name: found[name] for name in ("scale", "softcap", "diagonal", "left", "right")}
    assert scalars == {"scale": -0.5, "softcap": 2.5, "diagonal": 2, "left": 3, "right": 12}
    attention(q, k[:, :, :4].contiguous(), v[:, :, :4].contiguous(), window=(3, 0))
    assert given(driver.launches[1])["diagonal"] == -1


def test_a_second_call_changes_addresses_alone(driver):
    attention = prepared.kernel("flash")
    first, second = tensors(dtype=FLOAT32), tensors(dtype=FLOAT32)
    out, lse = tensor(2, 4, 5, 64, dtype=FLOAT32), tensor(2, 4, 5, dtype=FLOAT32)
    attention(*first, causal=True)
    got = attention(*second, causal=True, out=out, lse=lse)
    assert got[0] is out and got[1] is lse and len(driver.codes) == 1
    one, two = map(given, driver.launches)
    for name, x in zip(("q", "k", "v", "out", "lse"), (*second, *got), strict=True):
        assert two[name][4] == x.data_ptr() and two[name][:4] + two[name][5:] == one[name][:4] + one[name][5:]
    assert driver.launches[0].size == driver.launches[1].size


def test_the_grid_is_that_of_a_run(driver):
    prepared.kernel("flash_mma")(*tensors(seqlen_q=130))
    one = driver.launches[0]
    assert one.size == (9, 4, 2, 32, 1, 1)  # 16 query rows a block, few as they are
    assert one.shared == 2 * (16 + 2 * 128) * 64


def test_other_shapes_share_the_code(driver):
    attention = prepared.kernel("flash_mma")
    for seqlen_k in (7, 8, 9):
        attention(*tensors(seqlen_k=seqlen_k))
    assert len(driver.codes) == 1 and [given(one)["k"][7] for one in driver.launches] == [7, 8, 9]
    attention(*tensors(), causal=True)
    prepared.kernel("flash_mma")(*tensors(), causal=True)
    assert len(driver.codes) == 2


def test_arguments_that_are_kept_are_limited(driver, monkeypatch):
    monkeypatch.setattr(prepared, "KEPT", 2)
    kept = prepared._Mine()
    for key in range(5):
        kept.keep(key, key)
    assert {*kept.by_key} == {4}


def test_it_is_launched_on_the_current_stream(driver):
    attention = prepared.kernel("flash_mma")
    for stream in (0, 1234):
        driver.stream_of = lambda stream=stream: stream
        attention(*tensors())
    assert [one.stream for one in driver.launches] == [0, 1234]


def test_another_gpu_than_the_current_one(driver):
    """The default stream has one handle for all GPUs, and code is loaded for each."""
    attention = prepared.kernel("flash_mma")
    for gpu in (0, 1):
        q, k, v = (tensor(1, 1, 8, 64, gpu=gpu) for _ in "qkv")
        out, lse = tensor(1, 1, 8, 64, gpu=gpu), tensor(1, 1, 8, dtype=FLOAT32, gpu=gpu)
        attention(q, k, v, out=out, lse=lse)
        driver.entered.append("between")
        attention(q, k, v, out=out, lse=lse)
        driver.entered.append("end")
    assert driver.entered == [0, "between", "end", 1, 1, "between", 1, "end"]
    assert [code.cc for code in driver.codes] == [(9, 0), (9, 1)] and [gpu for gpu, _ in driver.contexts] == [0, 1]


def test_threads_write_into_arguments_of_their_own(driver):
    """All of them write addresses before any of them launches: the stream is asked for between."""
    attention, both = prepared.kernel("flash_mma"), threading.Barrier(2)

    def stream():
        both.wait(10)
        return threading.get_ident()

    driver.stream_of = stream

    def call(_):
        q, k, v = tensors()
        for _ in range(5):
            attention(q, k, v)
        return threading.get_ident(), q

    with ThreadPoolExecutor(2) as pool:
        given_to = dict(pool.map(call, range(2)))
    assert len(given_to) == 2 and len(driver.launches) == 10
    assert all(given(one)["q"][4] == given_to[one.stream].data_ptr() for one in driver.launches)
    assert {thread for _, thread in driver.contexts} == {*given_to}  # a new thread has no context of the GPU


def test_a_status_of_the_driver_is_raised(driver):
    driver.status = SimpleNamespace(name="CUDA_ERROR_INVALID_VALUE")
    with pytest.raises(RuntimeError, match="^flash_mma: the driver returned CUDA_ERROR_INVALID_VALUE for .*seqlen_q=5"):
        prepared.kernel("flash_mma")(*tensors())
