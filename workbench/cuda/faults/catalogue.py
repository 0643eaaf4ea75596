"""The faults that are known by name: bugs that real attention kernels had, and subtle ones.

The package has those that documents show and tests need; `campaigns/faults/` adds the others.
"""

from collections.abc import Sequence
from difflib import get_close_matches
from functools import cache
from importlib.resources import files

from workbench.cuda.faults import backward, codes, inputs, memory, results, scores, softmax, tensor_cores
from workbench.cuda.faults.benign import BENIGN
from workbench.cuda.faults.fault import Fault
from workbench.refusal import Refusal
from workbench.suggested import command

#: in data-flow order, those of codes last
FILES = (inputs, scores, softmax, results, memory, tensor_cores, codes)
CATALOGUE: dict[str, Fault] = {fault.id: fault for file in FILES for fault in file.FAULTS}
#: of kernels of operations beside attention, whose cases are not those of attention
OF_OPERATIONS: dict[str, Fault] = {fault.id: fault for fault in backward.FAULTS}


def add(faults: Sequence[Fault]) -> None:
    """Put faults into the catalogue, each under an id of its own; Refusal, and none is put, otherwise."""
    known = {*CATALOGUE, *OF_OPERATIONS, *BENIGN}
    for fault in faults:
        if fault.id in known:
            raise Refusal(f"fault id {fault.id} is already in the catalogue: choose another id")
        known.add(fault.id)
    for fault in faults:
        (OF_OPERATIONS if fault.kernel in backward.KERNELS else CATALOGUE)[fault.id] = fault


@cache
def elsewhere() -> tuple[str, ...]:
    """The ids of the faults that `campaigns/faults/` adds."""
    return tuple(files("workbench.cuda.faults").joinpath("elsewhere.txt").read_text().split())


def chosen(ids: Sequence[str], kernel: str) -> tuple[Fault, ...]:
    """The faults and benign changes named `ids`, each of which must belong to `kernel`; Refusal otherwise."""
    faults: list[Fault] = []
    for id in ids:
        fault = CATALOGUE.get(id) or OF_OPERATIONS.get(id) or BENIGN.get(id)
        if fault is None:
            raise Refusal(_unknown(id))
        if fault.kernel != kernel:
            every = (*CATALOGUE.values(), *OF_OPERATIONS.values())
            own = ", ".join(fault.id for fault in every if fault.kernel == kernel)
            raise Refusal(f"fault {id} belongs to kernel {fault.kernel}, not to {kernel}; faults of {kernel}: {own}")
        if fault in faults:
            raise Refusal(f"fault {id} is given twice")
        faults.append(fault)
    return tuple(faults)


def _unknown(id: str) -> str:
    if id in elsewhere():
        return (
            f"fault {id} is in the catalogue of campaigns, not in the package: run "
            "`python -m campaigns.faults` instead of `workbench`; in Python, import campaigns.faults first"
        )
    near = ", ".join(get_close_matches(id, [*CATALOGUE, *OF_OPERATIONS, *elsewhere()]))
    return f"unknown fault {id!r}; `{command('faults')}` lists them{near and f'; the nearest: {near}'}"
