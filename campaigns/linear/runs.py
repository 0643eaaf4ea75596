"""What a kernel does on a device, to be judged elsewhere: results of two calls, seconds, and what tolerances say."""

import pickle
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from campaigns.linear.asked import GRADIENTS, case_of, inputs_of
from campaigns.real import checkout
from campaigns.real.case import Case
from campaigns.real.others import others, tensors, tolerance
from campaigns.real.rows.fla import PROJECT
from workbench.arrays import as_torch
from workbench.foreign.plain import PlainRun, run_plain
from workbench.reference.graph import Gradients

#: calls of a kernel that are timed, after one that compiles it
TIMED = 3
#: the gradient of the first result, where it is an input
HEAD = "dresult"


@dataclass(frozen=True)
class Run:
    """One kernel on the inputs of its case."""

    what: str  #: FORWARD; GRADIENTS: its first result, and then the gradient of each float input
    inputs: Mapping[str, torch.Tensor]  #: on the CPU
    made: PlainRun
    seconds: Mapping[str, float]  #: of the kernel's first call and another one, and of the naive reference
    others: Mapping[str, Any]  #: what tolerances say


def save(asked: Mapping[str, Any], files: Mapping[str, Path]) -> None:
    """Runs a kernel, and pickles what is judged of it in the file of each part: a Run, or why there is none."""
    case, commit, of_references = case_of(asked)
    checkouts = Path(asked["checkouts"])
    checkout.use(PROJECT, checkouts / commit)
    for what, file in files.items():
        try:
            found: Run | str = run(case, asked, what, checkouts / of_references)
        except Exception as error:
            last = traceback.extract_tb(error.__traceback__)[-1]
            found = f"{type(error).__name__} at {Path(last.filename).name}:{last.lineno}: {str(error)[:400]}"
        replaced(file, pickle.dumps(found))


def replaced(file: Path, x: bytes) -> None:
    """Writes a file that is there whole, or not at all."""
    part = file.with_name(f"{file.name}.part")
    part.write_bytes(x)
    part.rename(file)


def run(case: Case, asked: Mapping[str, Any], what: str, references: Path) -> Run:
    """A kernel, beside the first naive reference as it is, on the device."""
    gradients, dtype = what == GRADIENTS, asked["dtype"]
    drawn = inputs_of(case, asked, gradients)
    inputs = {name: x.to(asked["device"]) for name, x in drawn.items()}
    own = [name for name in inputs if name != HEAD]
    of_kernel, of_naive = (one.first if gradients else one for one in (case.kernel, case.references[0]))
    root = Path(asked["checkouts"]) / case_of(asked)[1]
    kernel = of_kernel.of(checkout.kernel(root, of_kernel.path), own)
    naive = of_naive.of(checkout.reference(references, of_naive.path), own)

    def through(function: Callable[..., Any], given: Mapping[str, Any]) -> Any:
        return through_autograd(function, given, Gradients(asked["seed"], dtype)) if gradients else function(**given)

    compiled, first = timed(lambda: through(kernel, inputs))
    each, _ = timed(lambda: [through(kernel, inputs) for _ in range(TIMED)])
    reference, expected = timed(lambda: through(naive, inputs))
    made = run_plain(
        kernel, {name: inputs[name] for name in own}, name=kernel.__name__,
        beside={name: x for name, x in inputs.items() if name == HEAD}, through=lambda given: through(kernel, given),
    )  # fmt: skip
    seconds = {"compile": compiled, "kernel": each / TIMED, "reference": reference}
    skip = 1 if gradients else 0  # the result is a row of its own
    actual, naively = (dict(enumerate(tensors(x)[skip:])) for x in (first, expected))
    return Run(what, drawn, made, seconds, others(actual, naively, tolerance(PROJECT.tolerance, dtype)))


def through_autograd(function: Callable[..., Any], given: Mapping[str, Any], drawn: Gradients) -> list[torch.Tensor]:
    """The first result, and gradients of all float inputs; that of the result is given, or drawn as for a graph."""
    own = {name: x.detach() for name, x in given.items() if name != HEAD}
    leaves = [x.requires_grad_() for x in own.values() if x.is_floating_point()]
    made = tensors(function(**own))[0]
    head = given.get(HEAD)
    if head is None:
        head = as_torch(drawn.drawn(0, tuple(made.shape)), HEAD)
    found = torch.autograd.grad(made, leaves, head.to(made), allow_unused=True)
    return [made.detach(), *(torch.zeros_like(x) if g is None else g for x, g in zip(leaves, found, strict=True))]


def timed(f: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds of a call, which the device has ended, and what it returned."""
    wait = torch.cuda.synchronize if torch.cuda.is_available() else lambda: None
    wait()
    began = time.perf_counter()
    made = f()
    wait()
    return time.perf_counter() - began, made
