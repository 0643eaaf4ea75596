"""Random cases in which a fault can show."""

from collections.abc import Mapping
from typing import Any

import numpy as np

import campaigns.faults  # noqa: F401  (the whole catalogue)
from workbench.case.case import Case
from workbench.cuda.effect import effective
from workbench.cuda.faults.catalogue import CATALOGUE
from workbench.cuda.faults.conditions import always
from workbench.cuda.faults.fault import Fault
from workbench.cuda.kernels import KERNELS
from workbench.cuda.plan import resolve
from workbench.explore.draw import Among, Between
from workbench.explore.sample import sample
from workbench.refusal import Refusal

#: the faults that numbers show
FAULTS = tuple(fault.id for fault in CATALOGUE.values() if fault.stages)
#: what is drawn of a case of any fault, but for what it needs; one build, since each is a compile for every fault
RANGES_OF_FAULTS: Mapping[str, Any] = {
    "head_dim": 32,
    "batch": Among((1, 1, 2)),
    "group": Between(1, 2),
    "causal_alignment": "bottom-right",
    "scale": Among((*(None,) * 9, 0.125, 0.3, 1.0)),
    "distribution": Among(("normal", "uniform", "outlier-channels", "peaked")),
}
#: cases among which one that shows a fault is sought
TRIES = 1000


def showing(fault: Fault, random: np.random.Generator) -> Case:
    """A resolved case of several tiles in which the fault can show."""
    for _ in range(TRIES):
        if can_show(fault, case := _drawn(fault, random, shortest=65)):
            return case
    raise Refusal(f"fault {fault.id} cannot show in any of {TRIES} random cases")


def can_show(fault: Fault, case: Case) -> bool:
    """Whether a fault can show in a resolved case: there it is in what is built, too."""
    return fault.shows(case) and effective(fault, case)


def hiding(fault: Fault, random: np.random.Generator) -> Case | None:
    """A resolved case with what the fault needs, in which it changes what is built and cannot show; None where none was
    found.
    """
    if fault.shows is always:
        return None
    cases = (_drawn(fault, random, shortest=1) for _ in range(TRIES))
    return next((case for case in cases if not fault.shows(case) and effective(fault, case)), None)


def _drawn(fault: Fault, random: np.random.Generator, shortest: int) -> Case:
    """A resolved case of any shape and mask, square in half of all, with what the fault needs."""
    kernel, lengths = KERNELS[fault.kernel], Between(shortest, 128)
    square = random.integers(2) and not {"seqlen_q", "seqlen_k"} & {*fault.needs}
    given: dict[str, Any] = {
        **RANGES_OF_FAULTS,
        **dict.fromkeys(("block_q", "block_k"), max(32, kernel.least_block)),
        "dtype": kernel.dtypes[0],
        **({"seqlen": lengths} if square else {"seqlen_q": lengths, "seqlen_k": lengths}),
        "splits": Between(1 if shortest == 1 else 2, 4) if kernel.splits else None,
        **dict.fromkeys(("softcap", "window", "codes")),
        **fault.needs,
    }
    return resolve(kernel, sample(random, fault.kernel, **given))
