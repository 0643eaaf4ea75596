"""What a trace of a plain reference costs, beside its plain float64 run: naive attention, 64 dims, one thread.

`python -m campaigns.graph_cost`: processor time and peak memory of a trace with forward budgets, of one with the budget
of one element in reverse mode, and of 16 samples of a graph that is there, each in a process of its own. Promised: 40
times the plain run at 128 queries and keys, 15 times at 2,048; 6 times its memory, 12 in reverse; of K samples 6 (K+1)
times, and at 2,048, where they go one by one, 3 times its memory. With `--device cuda`: what torch costs on a GPU
(`graph_cost_on_device`).
"""

import json
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from workbench.reference.graph import Contract, Graph, budget_at, budgets, trace
from workbench.reference.graph.drawn import drawn

SIZES = (128, 512, 2048)
PROMISED = {128: 40, 2048: 15}
SAMPLES = 16
REPEATS = {128: 15, 512: 5, 2048: 3}
Inputs = Mapping[str, Any]


def naive_attention(q, k, v, *, scale, mask):  # type: ignore[no-untyped-def]  # as a project would write it
    """Softmax attention from its definition: out and lse."""
    scores = np.where(mask, (q @ np.swapaxes(k, -1, -2)) * scale, -np.inf)
    row_max = np.max(scores, axis=-1)
    probs = np.exp(scores - row_max[..., None])
    row_sum = np.sum(probs, axis=-1)
    out = probs @ v / row_sum[..., None]
    lse = row_max + np.log(row_sum)
    return out, lse


def inputs(n: int) -> dict[str, Any]:
    """Normal float32 q, k and v, causal."""
    rng = np.random.default_rng(0)
    drawn = {x: rng.standard_normal((1, 1, n, 64)).astype(np.float32) for x in "qkv"}
    return {**drawn, "scale": 0.125, "mask": np.tri(n, dtype=bool)[None, None]}


def plain(given: Inputs) -> Any:
    """The plain float64 run."""
    wide = {name: x.astype(np.float64) if name in "qkv" else x for name, x in given.items()}
    return naive_attention(**wide)


def traced(given: Inputs) -> Any:
    """A trace with all forward budgets."""
    return budgets(_graph(given), Contract())


def reverse(given: Inputs) -> Any:
    """One element of out in reverse mode."""
    return budget_at(_graph(given), Contract(), "out", [(0, 0, len(given["mask"][0, 0]) // 2, 3)])


def drawn_(given: Inputs) -> Callable[[Inputs], Any]:
    """out and lse of SAMPLES samples, of a graph that is there."""
    graph = _graph(given)
    asked = {graph.places()[name] for name in ("out", "lse")}
    return lambda _: drawn(graph, Contract(), asked, {}, SAMPLES)


def _graph(given: Inputs) -> Graph:
    return trace(naive_attention, given)


WAYS: Mapping[str, Callable[[Inputs], Any]] = {"plain": plain, "traced": traced, "reverse": reverse}
#: whose graph is made before the time is taken
MADE: Mapping[str, Callable[[Inputs], Callable[[Inputs], Any]]] = {"drawn": drawn_}


def measure() -> list[dict[str, Any]]:
    """One row a size: processor seconds and peak bytes of each way, and their ratios to the plain run's."""
    rows = []
    for n in SIZES:
        found = {way: json.loads(_child(way, n)) for way in (*WAYS, *MADE)}
        row: dict[str, Any] = {"queries": n} | {f"plain_{unit}": x for unit, x in found["plain"].items()}
        for way in ("traced", "reverse", "drawn"):
            row[f"{way}_times"] = found[way]["seconds"] / found["plain"]["seconds"]
            row[f"{way}_memory_times"] = found[way]["bytes"] / found["plain"]["bytes"]
        rows.append(row)
    return rows


def _child(way: str, n: int) -> str:
    command = [sys.executable, "-m", "campaigns.graph_cost", way, str(n)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def _one(way: str, n: int) -> dict[str, float]:
    """The fewest processor seconds of some runs, and the most bytes that NumPy held in one more."""
    given = inputs(n)
    run = MADE[way](given) if way in MADE else WAYS[way]
    with np.errstate(all="ignore"):
        run(given)
        seconds = []
        for _ in range(1 if way in MADE else REPEATS[n]):
            before = time.process_time()
            run(given)
            seconds.append(time.process_time() - before)
        tracemalloc.start()
        run(given)
    return {"seconds": min(seconds), "bytes": tracemalloc.get_traced_memory()[1]}


def main() -> None:
    """Prints the table, or measures one row as the process that does it."""
    if sys.argv[1:2] == ["--device"]:
        from campaigns import graph_cost_on_device

        graph_cost_on_device.main(sys.argv[2])
        return
    if len(sys.argv) == 3:
        print(json.dumps(_one(sys.argv[1], int(sys.argv[2]))))
        return
    for row in measure():
        promised = PROMISED.get(row["queries"])
        beside = f" (promised {promised})" if promised else ""
        print(
            f"{row['queries']:5} queries: plain {1e3 * row['plain_seconds']:.2f} ms, {row['plain_bytes'] / 1e6:.1f} MB;"
            f" traced {row['traced_times']:.1f} times{beside}, memory {row['traced_memory_times']:.1f} times;"
            f" one element in reverse {row['reverse_times']:.1f} times, memory {row['reverse_memory_times']:.1f} times;"
            f" {SAMPLES} samples {row['drawn_times']:.1f} times, {row['drawn_times'] / (SAMPLES + 1):.2f} (K + 1),"
            f" memory {row['drawn_memory_times']:.1f} times"
        )


if __name__ == "__main__":
    main()
