"""What samples and a judgement cost on a GPU: naive attention in torch, beside its plain float64 run there.

`python -m campaigns.graph_cost --device cuda`: seconds and peak memory of SAMPLES samples over those of the plain run,
and seconds of whole judgements of torch's attention at 16 heads, 4,096 queries and keys, 128 dims. Promised: 6 times
the plain run a sample, 3 times its memory, and 5 seconds.
"""

import time
from collections.abc import Callable, Mapping
from typing import Any

import torch

import workbench
from workbench.reference.graph import Contract, budgets, trace
from workbench.reference.graph.contract import usual
from workbench.reference.graph.drawn import drawn

SHAPES = ((1, 1, 2048, 64), (1, 16, 2048, 128), (1, 16, 4096, 128))
SAMPLES, REPEATS = 16, 3
DTYPES = ("float32", "bfloat16")


def naive_attention(q, k, v, scale):  # type: ignore[no-untyped-def]  # as a project would write it
    """Causal softmax attention from its definition."""
    scores = (q @ k.transpose(-1, -2)) * scale
    mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).tril()
    probs = torch.softmax(scores.masked_fill(~mask, float("-inf")), -1)
    out = probs @ v
    return out


def kernel(q, k, v, scale):  # type: ignore[no-untyped-def]
    """torch's own."""
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, scale=scale, is_causal=True)


def inputs(shape: tuple[int, ...], dtype: str, device: str) -> dict[str, Any]:
    """Normal q, k and v."""
    g = torch.Generator(device).manual_seed(0)
    made = {x: torch.randn(shape, generator=g, device=device).to(getattr(torch, dtype)) for x in "qkv"}
    return {**made, "scale": shape[-1] ** -0.5}


def measured(run: Callable[[], Any], repeats: int = REPEATS) -> tuple[float, float]:
    """The fewest seconds of some runs after one, and the most bytes on the device; NaN where the CPU is the device."""
    cuda = torch.cuda.is_available()
    run()
    seconds = []
    if cuda:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    for _ in range(repeats):
        before = time.perf_counter()
        run()
        if cuda:
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - before)
    return min(seconds), torch.cuda.max_memory_allocated() if cuda else float("nan")


def samples(shape: tuple[int, ...], dtype: str, device: str, contract: Contract) -> Mapping[str, float]:
    """Seconds and bytes of the plain run, of forward budgets and of samples."""
    given = inputs(shape, dtype, device)
    found = {"plain": _plain(given)}
    started = time.perf_counter()
    graph = trace(naive_attention, given, device=device)
    traced = time.perf_counter() - started
    asked = set(graph.results.values())
    found["bounds"] = measured(lambda: budgets(graph, contract, {}, list(graph.results)), 1)
    found["drawn"] = measured(lambda: drawn(graph, contract, asked, {}, SAMPLES), 1)
    made = {
        f"{way}_{unit}": x for way, pair in found.items() for unit, x in zip(("seconds", "bytes"), pair, strict=True)
    }
    return {**made, "trace_seconds": traced}


def _plain(given: Mapping[str, Any]) -> tuple[float, float]:
    wide = {name: x.double() if name in "qkv" else x for name, x in given.items()}
    return measured(lambda: naive_attention(**wide))


def judged(shape: tuple[int, ...], dtype: str, device: str) -> tuple[float, float, Any]:
    """Seconds and bytes of a judgement, and the judgement."""
    given, found = inputs(shape, dtype, device), list[Any]()
    seconds, most = measured(lambda: found.append(workbench.diff(kernel, reference=naive_attention, inputs=given)), 1)
    return seconds, most, found[-1]


def main(device: str, shapes: tuple[tuple[int, ...], ...] = SHAPES) -> None:
    """Prints both tables."""
    name = torch.cuda.get_device_name() if torch.cuda.is_available() else "the CPU"
    print(f"on {name}, torch {torch.__version__}")
    for shape in shapes:
        for dtype, contract in (("float32", Contract()), ("bfloat16", usual("bfloat16"))):
            row = samples(shape, dtype, device, contract)
            over = row["drawn_seconds"] / row["plain_seconds"]
            print(
                f"{shape} {dtype}: plain {1e3 * row['plain_seconds']:.2f} ms, {row['plain_bytes'] / 1e9:.2f} GB;"
                f" trace {1e3 * row['trace_seconds']:.0f} ms; bounds {1e3 * row['bounds_seconds']:.0f} ms, memory"
                f" {row['bounds_bytes'] / row['plain_bytes']:.1f} times; {SAMPLES} samples"
                f" {1e3 * row['drawn_seconds']:.0f} ms, {over:.1f} times, {over / (SAMPLES + 1):.2f} (K + 1) (promised"
                f" 6), memory {row['drawn_bytes'] / row['plain_bytes']:.2f} times (promised 3)",
                flush=True,
            )
    for dtype in DTYPES:
        seconds, most, found = judged(shapes[-1], dtype, device)
        print(f"{shapes[-1]} {dtype}: judged in {seconds:.2f} s (promised 5), {most / 1e9:.1f} GB: {found.verdict}"
              f" ({found.said or 'strict'})", flush=True)  # fmt: skip
