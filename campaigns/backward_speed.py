"""How fast `backward_mma` is beside the backward pass of PyTorch's flash backend, on one GPU."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from workbench.bench import latency
from workbench.bench.harness import gathered
from workbench.bench.kernel import torch_on_gpu
from workbench.floats import DTYPES

SCHEMA = "workbench.bench-backward-speed/1"
NAME = "backward_mma"
RESULTS = ("dq", "dk", "dv")
BATCH, HEADS, SEQLEN, DTYPE = 2, 16, 4096, "bfloat16"
#: (dim, causal)
CASES = tuple((dim, causal) for dim in (64, 128) for causal in (False, True))
CASE_S = 15  #: measured on an H100, for estimates only


def measure(cases: Sequence[tuple[int, bool]] = CASES) -> dict[str, Any]:
    """The JSON document of one run of the benchmark: bfloat16, 2 x 16 heads at seqlen 4096.

    A row has the medians `us` and `torch_us` of a whole backward pass by CUDA events, calls of both in turns: of ours
    all launches, and the zeros that dQ is added to. `ratio` is torch's time over ours: above 1 is faster. `tflops` are
    those of five products at the pairs that the mask leaves. `error` and `torch_error` have, for dq, dk and dv of the
    first head, the norm of the difference from float64 over the norm of that.

    Unavailable without torch and without a GPU.
    """
    torch = torch_on_gpu(NAME, ours=True, on_gpu=True)
    rows = (_row(torch, dim, causal) for dim, causal in cases)
    return {
        "schema": SCHEMA,
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "rows": gathered(f"time {NAME} on {len(cases)} cases", CASE_S * len(cases), rows),
    }


def tables(results: Mapping[str, Any]) -> list[list[dict[str, Any]]]:
    """The document as a table for a screen."""

    def cells(row: Mapping[str, Any]) -> dict[str, Any]:
        errors = {f"{what} of {x}": f"{row[what][x]:.1e}" for x in RESULTS for what in ("error", "torch_error")}
        numbers = {name: float(f"{row[name]:.3g}") for name in ("us", "torch_us", "ratio", "tflops")}
        return {"dim": row["dim"], "causal": row["causal"], **numbers, **errors}

    return [[cells(row) for row in results["rows"]]]


def _row(torch: Any, dim: int, causal: bool) -> dict[str, Any]:
    """A row of the document."""
    torch.manual_seed(dim + causal)
    sizes = BATCH, HEADS, SEQLEN, dim
    q, k, v, dout = (torch.randn(sizes, device="cuda", dtype=getattr(torch, DTYPE)) for _ in range(4))
    aten, scale = torch.ops.aten, dim**-0.5
    out, lse, *state = aten._scaled_dot_product_flash_attention(q, k, v, 0.0, causal, scale=scale)
    cum_q, cum_k, max_q, max_k, seed, offset = state[:6]

    def theirs() -> Any:
        return aten._scaled_dot_product_flash_attention_backward(
            dout, q, k, v, out, lse, cum_q, cum_k, max_q, max_k, 0.0, causal, seed, offset, scale=scale
        )

    inputs = {"q": q, "k": k, "v": v, "out": out, "lse": lse, "dout": dout}
    ours, results = _sent({name: _host(torch, x) for name, x in inputs.items()}, {"scale": scale, "causal": causal})
    ours()
    torch.cuda.synchronize()
    expected = _in_float64(torch, [x[0, 0].double() for x in (q, k, v, dout)], scale, causal)

    def error(made: Any) -> dict[str, float]:
        pairs = ((name, x[0, 0].to("cuda").double(), expected[name]) for name, x in made.items())
        return {name: float((x - right).norm() / right.norm()) for name, x, right in pairs}

    errors = {"error": error(results()), "torch_error": error(dict(zip(RESULTS, theirs(), strict=True)))}
    timed = latency.in_turns([_timer(torch, run) for run in (ours, theirs)])
    us, torch_us = (float(np.median(sample)) for sample in timed)
    pairs = SEQLEN * (SEQLEN + 1) // 2 if causal else SEQLEN**2
    tflops = 10e-6 * BATCH * HEADS * pairs * dim / us
    times = {"us": us, "torch_us": torch_us, "ratio": torch_us / us, "tflops": tflops}
    return {"dim": dim, "causal": causal, **times, **errors}


def _sent(
    inputs: Mapping[str, np.ndarray], numbers: Mapping[str, Any]
) -> tuple[Callable[[], None], Callable[[], dict[str, Any]]]:
    """All launches of the kernel, on torch's current stream, and what fetches its results."""
    import torch
    from cuda.bindings import driver

    from workbench.cuda.build import build
    from workbench.cuda.kernels import OF_OPERATIONS
    from workbench.cuda.launch import bound, loader
    from workbench.cuda.run import Memory

    kernel = OF_OPERATIONS[NAME]
    work = kernel.work(inputs, numbers, ())
    arrays = Memory("cuda", work.arrays, {}, work.filled, 0).arguments
    launches = []
    for function, grid, _ in work.launches:
        dynamic = kernel.dynamic_bytes(work.constants, function)
        built = build(kernel.functions[function], function, work.constants, (), ())
        given = tuple({**work.scalars, **arrays}[name] for name in built.parameters)
        loaded = loader(built, work.constants, dynamic)(given)
        launches.append((bound(built, loaded, dynamic, grid, work.constants.threads, given), given))
    zeroed = arrays["dq_sum"].device_ctypes_pointer.value, 0, work.arrays["dq_sum"].nbytes

    def run() -> None:
        stream = torch.cuda.current_stream().cuda_stream
        (status,) = driver.cuMemsetD8Async(*zeroed, stream)
        assert not status, status.name
        for launch, _ in launches:
            launch(stream)

    def results() -> dict[str, Any]:
        return {name: torch.from_numpy(arrays[name].copy_to_host()).view(torch.bfloat16) for name in RESULTS}

    return run, results


def _host(torch: Any, x: Any) -> np.ndarray:
    bits = x.view(torch.uint16).cpu().numpy().view(DTYPES[DTYPE]) if x.dtype == torch.bfloat16 else x.cpu().numpy()
    return np.ascontiguousarray(bits)


def _in_float64(torch: Any, given: Sequence[Any], scale: float, causal: bool) -> dict[str, Any]:
    """The gradients of one head, by autograd; of q, k, v and dout."""
    q, k, v = (x.requires_grad_() for x in given[:3])
    scores = scale * q @ k.T
    if causal:
        scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), -np.inf)
    return dict(zip(RESULTS, torch.autograd.grad(scores.softmax(-1) @ v, (q, k, v), given[3]), strict=True))


def _timer(torch: Any, run: Callable[[], Any]) -> Callable[[], float]:
    before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def timed() -> float:
        before.record()
        run()
        after.record()
        after.synchronize()
        return 1e3 * float(before.elapsed_time(after))

    return timed
