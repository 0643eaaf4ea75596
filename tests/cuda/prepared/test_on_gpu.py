"""Kernels called with torch tensors on a GPU: the bits of a run, on every stream and in graphs."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from numba import types

from tests.refusals import refusal
from workbench import Case, run
from workbench.cuda import prepared
from workbench.cuda.build import build
from workbench.cuda.cubin import signature
from workbench.cuda.kernels import KERNELS
from workbench.cuda.plan import resolve

torch = pytest.importorskip("torch", reason="torch is not installed")

from tests.cuda.prepared.driver import FLOAT16, bits, filled, options_of  # noqa: E402 - needs torch

SHAPE = dict(batch=2, heads=4, kv_heads=2, seqlen_q=150, seqlen_k=200, head_dim=64)
ON_GPU = {
    "plain": dict(dtype="float16"),
    "bfloat16": dict(dtype="bfloat16"),
    "head_dim 128, causal": dict(dtype="float16", head_dim=128, causal=True),
    "padded head_dim, causal": dict(dtype="bfloat16", head_dim=72, causal=True),
    "rows without keys": dict(dtype="float16", causal=True, seqlen_q=200, seqlen_k=150),
    "window": dict(dtype="bfloat16", window=(30, 5)),
    "softcap, negative scale": dict(dtype="float16", softcap=3.0, scale=-0.3),
    "many blocks": dict(dtype="float16", heads=32, seqlen_q=1024, seqlen_k=1024),
}


@pytest.mark.gpu
@pytest.mark.parametrize("transposed", [False, True], ids=["b h s d", "b s h d"])
@pytest.mark.parametrize("name", ON_GPU)
def test_bits_are_those_of_a_run(name, transposed):
    case = Case(**SHAPE | ON_GPU[name])
    assert_like_a_run("flash_mma", case, filled(case, "cuda", transposed=transposed))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_flash_is_called_likewise(dtype):
    case = Case(**SHAPE, dtype=dtype, causal=True)
    assert_like_a_run("flash", case, filled(case, "cuda", transposed=True))


def assert_like_a_run(name, case, given):
    expected = run(name, case, probes="output", backend="cuda").stages
    attention = prepared.kernel(name)
    for _ in range(2):  # the second finds arguments written
        out, lse = attention(*given, **options_of(case))
        assert bits(out) == bits(expected["out"]) and bits(lse) == bits(expected["lse"])
    out, lse = torch.full_like(out, 7), torch.full_like(lse, 7)
    attention(*given, **options_of(case), out=out, lse=lse)
    assert bits(out) == bits(expected["out"]) and bits(lse) == bits(expected["lse"])


@pytest.mark.gpu
def test_the_code_takes_as_many_arguments_as_are_given():
    case = resolve(KERNELS["flash_mma"], Case(**SHAPE, dtype="float16", softcap=2.0, window=(3, 4)))
    (one,) = KERNELS["flash_mma"].launches(case)
    constants = KERNELS["flash_mma"].constants(case)
    torch.zeros(1, device="cuda")
    loaded = prepared._loaded("flash_mma", one.function, constants, "float16", "A", 0)
    made = build(KERNELS["flash_mma"].file, one.function, constants, (), ())
    arrays = [x.ndim for x in signature(made, "float16", "A").args if isinstance(x, types.Array)]
    assert loaded.kernel.num_arguments == len(made.parameters) - len(arrays) + sum(5 + 2 * dims for dims in arrays)


def two_inputs(**options):
    cases = [Case(**SHAPE | {"dtype": "float16", "causal": True} | options, seed=seed) for seed in (1, 2)]
    expected = [run("flash_mma", case, probes="output", backend="cuda").stages for case in cases]
    return [filled(case, "cuda") for case in cases], expected


@pytest.mark.gpu
def test_a_graph_that_recorded_a_call_runs_on_other_inputs():
    (first, second), expected = two_inputs()
    attention = prepared.kernel("flash_mma")
    given = [x.clone() for x in first]
    attention(*given, causal=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out, lse = attention(*given, causal=True)
    attention(*second, causal=True)  # writes other addresses into the same arguments
    for inputs, right in zip((first, second), expected, strict=True):
        for x, to in zip(inputs, given, strict=True):
            to.copy_(x)
        out.fill_(7)
        graph.replay()
        torch.cuda.synchronize()
        assert bits(out) == bits(right["out"]) and bits(lse) == bits(right["lse"])


@pytest.mark.gpu
def test_another_stream_is_waited_for_by_itself():
    """A call comes behind the work of its own stream: inputs that arrive there late are those that are read."""
    (first, second), (_, expected) = two_inputs()
    attention, stream = prepared.kernel("flash_mma"), torch.cuda.Stream()
    attention(*first, causal=True)
    given = [x.clone() for x in first]
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)  # cycles: some 30 ms
        for x, to in zip(second, given, strict=True):
            to.copy_(x)
        out, lse = attention(*given, causal=True)
    stream.synchronize()
    assert bits(out) == bits(expected["out"]) and bits(lse) == bits(expected["lse"])


@pytest.mark.gpu
def test_two_threads_each_with_a_stream():
    inputs, expected = two_inputs()
    attention = prepared.kernel("flash_mma")
    torch.cuda.synchronize()

    def call(i):
        with torch.cuda.stream(torch.cuda.Stream()):
            found = [attention(*inputs[i], causal=True) for _ in range(200)]
            torch.cuda.current_stream().synchronize()
        return {(bits(out), bits(lse)) for out, lse in found}

    with ThreadPoolExecutor(2) as pool:
        found = [*pool.map(call, range(2))]
    assert found == [{(bits(right["out"]), bits(right["lse"]))} for right in expected]


@pytest.mark.gpu
def test_a_new_thread_needs_no_work_before_its_first_call():
    """No context is current there, and nothing is asked of torch's that would make one."""
    (inputs, _), (expected, _) = two_inputs()
    attention = prepared.kernel("flash_mma")
    out, lse = attention(*inputs, causal=True)
    out.fill_(7)
    torch.cuda.synchronize()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(attention, *inputs, causal=True, out=out, lse=lse).result()
    torch.cuda.synchronize()
    assert bits(out) == bits(expected["out"]) and bits(lse) == bits(expected["lse"])


@pytest.mark.gpu
def test_a_refused_address_leaves_the_gpu_as_it_was():
    flat = torch.zeros(1 * 1 * 64 * 64 + 4, dtype=FLOAT16, device="cuda")
    x, good = flat[4:].view(1, 1, 64, 64), flat[:-4].view(1, 1, 64, 64)
    attention = prepared.kernel("flash_mma")
    assert refusal(attention, good, x, good).startswith(
        "flash_mma copies 16 bytes at once, so k must be aligned to 16 bytes; got "
    )
    out, _ = attention(good, good, good)
    assert torch.all(out == 0).item()


DECODING = dict(batch=3, heads=16, kv_heads=4, seqlen_q=1, seqlen_k=1500, head_dim=128, dtype="float16")


def as_split(case):
    """The case in as many splits as a call has on this GPU."""
    kernel = KERNELS["split_mma"]
    gpu = torch.cuda.get_device_properties(0)
    count, shared_bytes = gpu.multi_processor_count, gpu.shared_memory_per_multiprocessor
    return case.but(splits=kernel.fills(resolve(kernel, case), count, shared_bytes))


@pytest.mark.gpu
@pytest.mark.parametrize("transposed", [False, True], ids=["b h s d", "b s h d"])
@pytest.mark.parametrize(
    "options",
    [
        dict(),
        dict(dtype="bfloat16", head_dim=64, seqlen_q=3, causal=True),
        dict(head_dim=72, seqlen_q=20, window=(300, 0), softcap=3.0),
        dict(batch=64, heads=32, kv_heads=32, seqlen_k=70, scale=-0.3),
    ],
    ids=str,
)
def test_split_mma_is_called_likewise(options, transposed):
    case = as_split(Case(**DECODING | options))
    assert_like_a_run("split_mma", case, filled(case, "cuda", transposed=transposed))


@pytest.mark.gpu
def test_graphs_and_streams_have_partial_results_of_their_own():
    """Two graphs, recorded of one shape, that run at the same time on two streams."""
    cases = [as_split(Case(**DECODING, seed=seed)) for seed in (1, 2)]
    expected = [run("split_mma", case, probes="output", backend="cuda").stages for case in cases]
    attention, found = prepared.kernel("split_mma"), []
    for case in cases:
        inputs = filled(case, "cuda")
        attention(*inputs)
        graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
        with torch.cuda.graph(graph):
            results = [attention(*inputs) for _ in range(20)]
        found.append((graph, stream, results, inputs))
    torch.cuda.synchronize()
    for _ in range(10):
        for graph, stream, _, _ in found:
            with torch.cuda.stream(stream):
                graph.replay()
    torch.cuda.synchronize()
    for (_, _, results, _), right in zip(found, expected, strict=True):
        assert {(bits(out), bits(lse)) for out, lse in results} == {(bits(right["out"]), bits(right["lse"]))}
