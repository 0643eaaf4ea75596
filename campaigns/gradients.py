"""Gradients of torch's own attention on a CPU, in which nothing is wrong: what they are called, beside assert_close."""

from collections import Counter
from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

import numpy as np

from workbench.floats import DTYPES
from workbench.operations.attention_backward import ATTENTION_BACKWARD
from workbench.operations.call import diff_operation
from workbench.operations.judge import OperationDiff
from workbench.progress import step
from workbench.refusal import Refusal

SCHEMA = "workbench.bench-gradients/1"
RUNS = 540
#: what each backend takes of the domain
_OF_SDPA = ("window_left", "window_right", "bias", "alibi_slopes", "mask", "seqlens_k")
TAKES = {"sdpa math": _OF_SDPA, "sdpa flash": _OF_SDPA, "flex": (*_OF_SDPA, "softcap", "dlse")}


def measure(runs: int = RUNS, seed: int = 0) -> dict[str, Any]:
    """The JSON document of one campaign: of `runs` random cases of each backend's turn, in three dtypes and all
    distributions, `verdicts`, the runs of which torch.testing.assert_close rejects a gradient (`assert_close`), and
    `not_right`, the cases of those not called right; `refused`: reason -> cases.
    """
    rows = {name: _row() for name in TAKES}
    with step(f"judge {runs} gradients") as tick:
        for n in range(runs):
            tick(f"{n} of {runs} done")
            backend = [*TAKES][n % len(TAKES)]
            _count(rows[backend], backend, np.random.default_rng([seed, n]), n)
    return {"schema": SCHEMA, "runs": runs, "seed": seed, "backends": rows}


def tables(results: dict[str, Any]) -> list[list[dict[str, Any]]]:
    """A row for each backend."""
    rows = [
        {"backend": name, "runs": row["runs"], **row["verdicts"], "assert_close rejects": row["assert_close"],
         "largest x of budget": f"{row['largest']:.2g}"}
        for name, row in results["backends"].items()
    ]  # fmt: skip
    return [rows]


def _row() -> dict[str, Any]:
    verdicts = dict.fromkeys(("exact", "rounding", "suspicious", "untestable", "bug"), 0)
    return {"runs": 0, "verdicts": verdicts, "assert_close": 0, "largest": 0.0, "not_right": [], "refused": Counter()}


def _count(row: dict[str, Any], backend: str, rng: np.random.Generator, n: int) -> None:
    while True:
        case = drawn(backend, rng, n)
        try:
            with _running(backend):
                found = diff_operation(_target(backend), "attention_backward", gradients=True, arrays="torch", **case)
        except Refusal as refusal:
            row["refused"][str(refusal).strip().splitlines()[-1]] += 1
            continue
        break
    row["runs"] += 1
    row["verdicts"][found.verdict] += 1
    row["assert_close"] += rejected(found)
    with np.errstate(invalid="ignore"):
        overs = [one.isolated.elements.over_budget for one in found.stages if one.isolated is not None]
    row["largest"] = max([row["largest"], *(float(np.nanmax(x, initial=0.0)) for x in overs)])
    if found.verdict not in ("exact", "rounding"):
        row["not_right"].append(f"{found.verdict} of {', '.join(found.origins) or 'all'}: {found.run.case}")


def drawn(backend: str, rng: np.random.Generator, n: int) -> dict[str, Any]:
    """Arguments of `diff_operation`: a random case that the backend takes."""
    group, kv_heads = int(rng.integers(1, 4)), int(rng.integers(1, 3))
    axes = {"batch": int(rng.integers(1, 3)), "heads": group * kv_heads, "kv_heads": kv_heads}
    axes |= {name: int(rng.choice([1, 7, 33, 64, 100, 150])) for name in ("queries", "keys")}
    axes |= dict.fromkeys(("dim", "dim_v"), int(rng.choice([8, 16, 32, 64])))
    some = [name for name in TAKES[backend] if rng.random() < 0.2]
    numbers: dict[str, float] = {"causal": bool(rng.integers(2))}
    numbers |= {name: int(rng.integers(0, 40)) for name in some if name.startswith("window")}
    numbers |= {"softcap": float(rng.choice([1.0, 20.0]))} if "softcap" in some else {}
    optional = tuple(name for name in ATTENTION_BACKWARD.optional if name in some)
    if "bias" in optional:
        axes |= {"bias_batch": int(rng.choice([1, axes["batch"]])), "bias_heads": int(rng.choice([1, axes["heads"]]))}
    dtypes, distributions = [*DTYPES], [*ATTENTION_BACKWARD.distributions]
    return {
        "axes": axes, "numbers": numbers, "optional": optional, "seed": n,
        "dtype": dtypes[n // len(TAKES) % len(dtypes)],
        "distribution": distributions[n // (len(TAKES) * len(dtypes)) % len(distributions)],
    }  # fmt: skip


def rejected(found: OperationDiff) -> bool:
    """Whether torch.testing.assert_close rejects a gradient, beside float64 rounded to its dtype."""
    import torch

    def tensor(x: np.ndarray) -> Any:
        return torch.from_numpy(x.astype(np.float32))  # which holds 16 bits

    for one in found.stages:
        assert one.propagated is not None
        actual, expected = one.propagated.actual, one.propagated.expected.astype(one.propagated.actual.dtype)
        dtype = {name: getattr(torch, name) for name in DTYPES}[found.run.case.dtype]
        try:
            torch.testing.assert_close(tensor(actual).to(dtype), tensor(expected).to(dtype))
        except AssertionError:
            return True
    return False


def _target(backend: str) -> str:
    return "torch:flex_attention" if backend == "flex" else "torch:scaled_dot_product_attention"


def _running(backend: str) -> AbstractContextManager[Any]:
    """With this backend of torch; flex has a backward pass on a CPU, which it refuses to run."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    if backend == "flex":
        return patch("torch.nn.attention.flex_attention._validate_device", lambda *_: None)
    return sdpa_kernel(SDPBackend.MATH if backend == "sdpa math" else SDPBackend.FLASH_ATTENTION)
