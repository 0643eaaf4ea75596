"""How many calls it takes until a capture has caught a fault that shows in one call of a thousand, at random.

Each call is wrong with a probability w, and judged with a probability p, independently: the first that is both is
caught, after n calls or fewer with 1 - (1 - p w)^n, so that 95 % of captures take log(0.05) / log(1 - p w) at most.
Of the calls that a capture samples the wrong ones alone are judged here: right ones take 5 ms each, and are the
business of `campaigns.capture`.
"""

import math
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from campaigns.spread import spread
from workbench.bench.harness import gathered, torch_for
from workbench.explore.capturing.capture import capture

SCHEMA = "workbench.bench-rare/1"
#: share of wrong calls
WRONG = 1e-3
#: calls between two looks at what was caught
STEP = 200
# seconds that 100,000 watched calls take on one core, for an estimate only
CAPTURE_S = 1.0


def needed(sample: float, share: float = 0.95) -> int:
    """Calls within which that share of captures have caught the fault."""
    return math.ceil(math.log(1 - share) / math.log1p(-sample * WRONG))


def measure(tries: int = 100, sample: float = 0.01, seed: int = 0, jobs: int = 1) -> dict[str, Any]:
    """The JSON document of one campaign: of `tries` captures the `calls` that each took (to the next STEP), how many
    `within` the calls that 95 % need, and how many `missed` a wrong call that they judged. A capture that has not
    caught it within four times as many is at an end.
    """
    torch_for("PyTorch's attention")
    each = [(sample, (seed, i)) for i in range(tries)]
    estimate = tries * CAPTURE_S * 0.01 / sample / jobs
    done = gathered(f"capture {tries} rare faults", estimate, spread(_caught, each, jobs), lambda _: "")
    limit = needed(sample)
    calls = [one["calls"] for one in done]
    return {
        "schema": SCHEMA, "seed": seed, "sample": sample, "wrong": WRONG, "needed": limit,
        "calls": calls, "within": sum(n <= limit for n in calls), 
        "sampled": sum(one["sampled"] for one in done), "missed": sum(one["missed"] for one in done),
    }  # fmt: skip


def tables(results: dict[str, Any]) -> list[list[dict[str, Any]]]:
    """The document as tables for a screen: rows of equal columns."""
    calls = results["calls"]
    return [
        [
            {
                "sample": results["sample"], "captures": len(calls), "sampled calls": results["sampled"],
                "median calls": int(np.median(calls)), "most": max(calls), "95 % need": results["needed"],
                "within": results["within"], "missed": results["missed"],
            }
        ]
    ]  # fmt: skip


def _caught(one: tuple[float, tuple[int, int]]) -> dict[str, Any]:
    """Calls until a capture has caught a fault."""
    import torch

    sample, seed = one
    wrong = np.random.default_rng((*seed, 1))
    given = [torch.randn(1, 1, 4, 8, generator=torch.Generator().manual_seed(seed[1])) for _ in "qkv"]
    sdpa, bad, number = torch.nn.functional.scaled_dot_product_attention, set(), iter(range(10**9))

    def attend(q: Any, k: Any, v: Any) -> Any:
        call = next(number)
        if wrong.random() >= WRONG:
            return sdpa(q, k, v)
        bad.add(call)
        return sdpa(q, k, v, scale=0.5)

    told = lambda q, k, v: {"q": q, "k": k, "v": v}  # noqa: E731
    calls, most = 0, 4 * needed(sample)
    with tempfile.TemporaryDirectory() as folder, capture(
        attend, Path(folder), spec=told, sample=sample, seed=int(wrong.integers(2**32))
    ) as c:  # fmt: skip
        judging: Any = c._judging
        judge = judging.submit
        judging.submit = lambda one, *_: judge(one) if one.call in bad else None  # not asked: calls are counted
        while c.report.kept is None and calls < most:
            for _ in range(STEP):
                c.function(*given)
            calls += STEP
    found = c.report
    return {
        "calls": calls if found.kept is not None else 10 * most, "sampled": found.sampled,
        "missed": found.judged - found.wrong,
    }  # fmt: skip
