"""Random cases in which a fault can show."""

from typing import Any

import numpy as np

from workbench.case.case import Case
from workbench.cuda.faults.conditions import always
from workbench.cuda.faults.fault import Fault
from workbench.cuda.kernels import KERNELS
from workbench.cuda.plan import settle
from workbench.refusal import Refusal

#: the build of every fault, but for what it needs: one compile each
BUILD = {"block_q": 32, "block_k": 32, "head_dim": 32}
#: cases among which one that shows a fault is sought
TRIES = 1000


def showing(fault: Fault, random: np.random.Generator) -> Case:
    """A settled case of several tiles in which the fault can show."""
    for _ in range(TRIES):
        if fault.shows(case := _drawn(fault, random, shortest=65)):
            return case
    raise Refusal(f"in none of {TRIES} random cases can fault {fault.id} show")


def hiding(fault: Fault, random: np.random.Generator) -> Case | None:
    """A settled case with what the fault needs, in which it cannot show; None where none was found."""
    if fault.shows is always:
        return None
    cases = (_drawn(fault, random, shortest=1) for _ in range(TRIES))
    return next((case for case in cases if not fault.shows(case)), None)


def _drawn(fault: Fault, random: np.random.Generator, shortest: int) -> Case:
    """A settled case of any shape and mask, square in half of all, with what the fault needs."""
    kernel = KERNELS[fault.kernel]
    length, other = (int(n) for n in random.integers(shortest, 129, 2))
    kv_heads, square = int(random.integers(1, 3)), bool(random.integers(2))
    options: dict[str, Any] = {
        **BUILD,
        "batch": int(random.choice([1, 1, 2])),
        "heads": kv_heads * int(random.integers(1, 3)),
        "kv_heads": kv_heads,
        "seqlen_q": length,
        "seqlen_k": length if square else other,
        "causal": bool(random.integers(2)),
        "splits": int(random.integers(1 if shortest == 1 else 2, 5)) if kernel.splits else None,
        "seed": int(random.integers(2**32)),
        "distribution": str(random.choice(["normal", "uniform", "outlier-channels", "peaked"])),
    }
    if random.integers(4) == 0:
        options["scale"] = float(random.choice([0.125, 0.3, 1.0]))
    return settle(kernel, Case(**options | dict(fault.needs)))
