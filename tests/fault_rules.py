"""What every fault keeps to, told of many at once: it changes one place of a source, and what it says of itself exists."""

import ast
from collections.abc import Iterable, Iterator
from functools import cache

from workbench import Case, Refusal
from workbench.case.stages import ALGORITHMS, scaled
from workbench.cuda.effect import effective, stands
from workbench.cuda.faults.benign import BENIGN
from workbench.cuda.faults.fault import Fault, applied
from workbench.cuda.kernels import KERNELS, OF_OPERATIONS
from workbench.cuda.plan import resolve
from workbench.cuda.quantised import QUANTISER
from workbench.operations.every import OPERATIONS
from workbench.operations.ours import case_for

BASE = dict(seqlen_q=20, seqlen_k=40, head_dim=32)


def broken_rules(faults: Iterable[Fault]) -> list[str]:
    """What is wrong with each, by id."""
    return [f"{fault.id}: {wrong}" for fault in faults for wrong in _of_one(fault)]


def _of_one(fault: Fault) -> Iterator[str]:
    if fault.kernel in OF_OPERATIONS:
        yield from _of_operation(fault)
        return
    if fault.kernel not in KERNELS:
        yield f"there is no kernel {fault.kernel}"
        return
    kernel = KERNELS[fault.kernel]
    files = {file.name: file for file in (kernel.file, *kernel.functions.values(), QUANTISER)}
    if (file := files.get(fault.file or kernel.file.name)) is None:
        yield f"there is no source {fault.file} of {kernel.name}"
        return
    try:
        if tree(applied(file.read_text(), [fault], file.name)) == tree(file.read_text()):
            yield "it changes comments alone"
        case = resolve(kernel, Case(**BASE | {"dtype": kernel.dtypes[0]} | dict(fault.needs)))
    except Refusal as refused:
        yield str(refused)
        return
    if not effective(fault, case):
        yield "what it changes is not in what is built of the case that it needs"
    if unknown := {*fault.stages, *fault.biased} - {*ALGORITHMS[scaled(kernel.algorithm, case.scale_of)]}:
        yield f"{kernel.name} has no stages {', '.join(sorted(unknown))}"
    benign = fault.id in BENIGN
    if bool(fault.stages or fault.biased or fault.finding) == benign:
        yield "of a fault somebody must be able to see something, and of a benign change nobody"
    if not fault.summary or not (fault.source or benign):
        yield "it has a summary and a source"


def _of_operation(fault: Fault) -> Iterator[str]:
    kernel = OF_OPERATIONS[fault.kernel]
    operation = OPERATIONS[kernel.operation]
    file = next(file for file in kernel.functions.values() if kernel.faults_of(file, [fault]))
    try:
        if tree(applied(file.read_text(), [fault], file.name)) == tree(file.read_text()):
            yield "it changes comments alone"
        case = case_for(kernel.name, operation, [fault.id], {}, None, "", 0, {})
    except Refusal as refused:
        yield str(refused)
        return
    work = kernel.work(case.inputs(), case.numbers, ())
    functions = [one.function for one in work.launches if kernel.functions[one.function] == file]
    if not any(stands(file, one, fault, work.constants) for one in functions):
        yield "what it changes is not in what is built of the case that it needs"
    if unknown := {*fault.stages} - {*kernel.stages, *operation.results}:
        yield f"{kernel.name} has no stages {', '.join(sorted(unknown))}"
    if not (fault.stages or fault.finding):
        yield "of a fault somebody must be able to see something"
    if not fault.summary or not fault.source:
        yield "it has a summary and a source"


@cache
def tree(text: str) -> str:
    """A source without its comments."""
    return ast.dump(ast.parse(text))
