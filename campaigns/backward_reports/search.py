"""A wrong backward pass found from its gradients alone, by random cases of the operation's own distributions, and the
small case that fails in the same way: nothing is known of the bug.
"""

import inspect
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from campaigns.backward_reports.record import Report
from workbench.floats import DTYPES
from workbench.operations.attention_backward import ATTENTION_BACKWARD
from workbench.operations.call import diff_operation
from workbench.refusal import Refusal

#: lengths of queries and keys: one, odd ones, whole tiles and halves of 128
LENGTHS = (1, 17, 64, 100, 128, 192)
DIMS = (16, 64, 128, 256)
AXES = ("batch", "heads", "kv_heads", "queries", "keys", "dim", "dim_v")


@dataclass(frozen=True)
class Search:
    """What random cases made of a function."""

    tried: int  #: cases until it was called wrong
    normal: int  #: of these, normal inputs, all called right
    case: Mapping[str, Any] | None  #: the first that is called wrong; None where none is


def search(report: Report, cases: int, seed: int = 0) -> Search:
    """The first of so many random cases whose dq, dk or dv are called wrong."""
    kernel, seen = report.kernel(dumps=False), Counter[str]()
    for n in range(cases):
        case = drawn(report, np.random.default_rng([seed, n]))
        if origin(kernel, case):
            return Search(n + 1, seen["normal"], case)
        seen[case["distribution"]] += 1
    return Search(cases, seen["normal"], None)


def drawn(report: Report, rng: np.random.Generator) -> dict[str, Any]:
    """A random case as arguments of `diff_operation`, with or without each optional input that the function takes; the
    scale is dim^-0.5 or, as in T5, 1.
    """
    kv_heads, dim = int(rng.integers(1, 3)), int(rng.choice(DIMS))
    axes = {"batch": int(rng.integers(1, 3)), "heads": kv_heads * int(rng.integers(1, 4)), "kv_heads": kv_heads}
    axes |= {name: int(rng.choice(LENGTHS)) for name in ("queries", "keys")} | {"dim": dim, "dim_v": dim}
    numbers: dict[str, float] = {"causal": bool(rng.integers(2))} | ({"scale": 1.0} if rng.integers(2) else {})
    takes = [name for name in ATTENTION_BACKWARD.optional if name in inspect.signature(report.function).parameters]
    return {
        "axes": axes,
        "numbers": numbers,
        "optional": tuple(name for name in takes if rng.integers(2)),
        "dtype": str(rng.choice([*DTYPES])),
        "distribution": str(rng.choice([*ATTENTION_BACKWARD.distributions])),
        "seed": int(rng.integers(2**31)),
    }


def origin(kernel: Any, case: Mapping[str, Any]) -> str | None:
    """The first wrong stage; None of a right run and of a case that there is not."""
    try:
        return diff_operation(kernel, ATTENTION_BACKWARD, **case).origin
    except Refusal:
        return None


def shrunk(report: Report, case: Mapping[str, Any]) -> dict[str, Any]:
    """The case with each axis halved, and less beside, as long as the same gradient is the first that is wrong."""
    kernel, best = report.kernel(dumps=False), dict(case)
    wanted = origin(kernel, case)
    while smaller := next((one for one in _smaller(best) if origin(kernel, one) == wanted), None):
        best = smaller
    return best


def _smaller(case: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Each with one thing less: half an axis, a number or an optional input, 16 bits, a distribution, a seed."""
    axes = case["axes"]
    halves = [{**axes, name: axes[name] // 2} for name in AXES if axes[name] > 1]
    less: list[dict[str, Any]] = [{"axes": one} for one in halves]
    less += [{"numbers": {key: x for key, x in case["numbers"].items() if key != name}} for name in case["numbers"]]
    less += [{"optional": tuple(x for x in case["optional"] if x != name)} for name in case["optional"]]
    less += [{"dtype": "float32"}] * (case["dtype"] != "float32")
    less += [{"distribution": "normal"}] * (case["distribution"] != "normal")
    less += [{"seed": 0}] * (case["seed"] != 0)
    return [{**case, **one} for one in less]
