"""How often a capture keeps a right call: PyTorch's attention, its contract that of its adapter, called on small random
inputs by the thousand, each of which is judged.
"""

import tempfile
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from campaigns.foreign import BACKENDS
from campaigns.spread import spread
from workbench.bench.harness import gathered, torch_for
from workbench.explore.capturing.capture import capture

SCHEMA = "workbench.bench-capture/1"
#: calls of one capture, and so of one process's share
SHARE = 500
# seconds of a call, measured on 2 cores, for an estimate only
CALL_S = 0.012
DTYPES = ("float32", "float16", "bfloat16")
#: what a call is drawn from: lengths of decoding and of short prompts, scales of queries that are peaked and flat
ROWS, KEYS, DIMS, HEADS, STDS = (1, 2, 7, 16, 33), (1, 3, 16, 48, 65), (8, 16, 32), ((1, 1), (4, 2)), (0.1, 1.0, 4.0)


def measure(calls: int = 100_000, seed: int = 0, jobs: int = 1) -> dict[str, Any]:
    """The JSON document of one campaign on the CPU, the same for any number of `jobs` (processes).

    `rows`: for each dtype and backend how many `calls`, how many were `judged`, and how many `kept` (false alarms),
    `doubted` (within 7 standard deviations, but suspicious), and the largest x of budget; `kept`: what was kept;
    `unread`: why a call was not judged. Unavailable without torch.
    """
    torch = torch_for("PyTorch's attention")
    kinds = [(dtype, backend) for dtype in DTYPES for backend in BACKENDS["cpu"]]
    count = -(-calls // SHARE)
    shares = [(*kinds[i % len(kinds)], min(SHARE, calls - i * SHARE), (seed, i)) for i in range(count)]
    done = gathered(f"capture {calls} right calls", CALL_S * calls / jobs, spread(_watched, shares, jobs), _said)
    unread: Counter[str] = sum((Counter(row["unread"]) for row in done), Counter())
    return {
        "schema": SCHEMA,
        "seed": seed,
        "torch": torch.__version__,
        "rows": [*(_together(done, dtype, backend) for dtype, backend in kinds), _together(done)],
        "kept": [row["first"] for row in done if row["first"]],
        "unread": dict(unread),
    }


def tables(results: dict[str, Any]) -> list[list[dict[str, Any]]]:
    """The document as tables for a screen: rows of equal columns."""
    unread = [{"not judged": n, "why": why} for why, n in results["unread"].items()]
    return [rows for rows in (results["rows"], unread) if rows]


def _said(done: list[dict[str, Any]]) -> str:
    return f", {sum(row['kept'] for row in done)} kept"


def _together(done: list[dict[str, Any]], dtype: str = "all", backend: str = "") -> dict[str, Any]:
    of = [row for row in done if dtype == "all" or (row["dtype"], row["backend"]) == (dtype, backend)]
    counts = {key: sum(row[key] for row in of) for key in ("calls", "judged", "kept", "doubted")}
    return {"dtype": dtype, "backend": backend, **counts, "x of budget": max((row["x"] for row in of), default=0.0)}


def _watched(share: tuple[str, str, int, tuple[int, int]]) -> dict[str, Any]:
    """What a capture says of some calls."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    dtype, backend, calls, seed = share
    random, made = np.random.default_rng(seed), torch.Generator()
    made.manual_seed(int(random.integers(2**31)))
    kind = getattr(torch, dtype)

    def drawn(*shape: int) -> Any:
        return torch.randn(shape, generator=made)

    with (
        tempfile.TemporaryDirectory() as folder,
        warnings.catch_warnings(action="ignore"),
        sdpa_kernel([getattr(SDPBackend, backend), SDPBackend.MATH]),
        capture(torch.nn.functional.scaled_dot_product_attention, Path(folder)) as c,
    ):
        for _ in range(calls):
            rows, keys, dim = (x[random.integers(len(x))] for x in (ROWS, KEYS, DIMS))
            heads, kv_heads = HEADS[random.integers(len(HEADS))]
            std = STDS[random.integers(len(STDS))]
            q, k, v = drawn(1, heads, rows, dim) * std, drawn(1, kv_heads, keys, dim), drawn(1, kv_heads, keys, dim)
            how: dict[str, Any] = {"enable_gqa": heads != kv_heads}
            masked = random.integers(4)
            if masked == 0:
                how["is_causal"] = True
            elif masked == 1:
                how["attn_mask"] = torch.rand(rows, keys, generator=made) < 0.7
            elif masked == 2:
                how["attn_mask"] = drawn(1, heads, rows, keys).to(kind)
            torch.nn.functional.scaled_dot_product_attention(*(x.to(kind) for x in (q, k, v)), **how)
    found = c.report
    first = "" if found.kept is None else f"{dtype} {backend}, share {seed}: {found.kept}"
    return {
        "dtype": dtype, "backend": backend, "calls": found.calls, "judged": found.judged, "kept": found.wrong,
        "doubted": found.doubted, "x": 0.0 if found.worst is None else found.worst.over_budget, "first": first,
        "unread": dict(found.unread),
    }  # fmt: skip
