"""The faults that are known by name: bugs that real attention kernels had, and subtle ones."""

from collections.abc import Mapping, Sequence
from difflib import get_close_matches

from workbench.cuda.faults import (
    accumulator,
    added,
    blocks,
    codes,
    fp8,
    fp8_mma,
    inputs,
    masks,
    maximum,
    memory,
    merge,
    mma,
    mma_softmax,
    output,
    pages,
    partials,
    probs,
    quantiser,
    scores,
    sequences,
    sinks,
    split_mma,
    split_mma_merge,
    tensor,
    wgmma,
    wgmma_softmax,
)
from workbench.cuda.faults.benign import BENIGN
from workbench.cuda.faults.fault import Fault
from workbench.refusal import Refusal

#: in data-flow order, those of codes last
FILES = (
    *(inputs, scores, masks, maximum, probs, accumulator, partials, merge, output, memory),
    *(sequences, pages, added, sinks, tensor, mma, mma_softmax, split_mma, split_mma_merge, wgmma, wgmma_softmax),
    *(quantiser, codes, fp8, fp8_mma, blocks),
)
CATALOGUE: Mapping[str, Fault] = {fault.id: fault for file in FILES for fault in file.FAULTS}


def chosen(ids: Sequence[str], kernel: str) -> tuple[Fault, ...]:
    """The faults and benign changes named `ids`, each of which must belong to `kernel`; Refusal otherwise."""
    faults: list[Fault] = []
    for id in ids:
        fault = CATALOGUE.get(id) or BENIGN.get(id)
        if fault is None:
            near = ", ".join(get_close_matches(id, CATALOGUE))
            raise Refusal(f"unknown fault {id!r}; `workbench faults` lists them{near and f'; the nearest: {near}'}")
        if fault.kernel != kernel:
            own = ", ".join(fault.id for fault in CATALOGUE.values() if fault.kernel == kernel)
            raise Refusal(f"fault {id} belongs to kernel {fault.kernel}, not to {kernel}; faults of {kernel}: {own}")
        if fault in faults:
            raise Refusal(f"fault {id} is given twice; once is enough")
        faults.append(fault)
    return tuple(faults)
