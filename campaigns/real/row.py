"""What is measured of one case in one dtype: a row for its results, and one for its gradients."""

import json
import re
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

import workbench
from campaigns.real import checkout
from campaigns.real.call import Call
from campaigns.real.case import NARROW, Case
from campaigns.real.others import others, tensors, tolerance
from campaigns.real.rows import CASES, PROJECTS, WRONG
from campaigns.real.said import accuracy, declared, explained, judged, keep
from campaigns.real.wrong import Truth
from workbench.arrays import as_torch
from workbench.judge.reference.diff import ReferenceDiff
from workbench.operations.reference.gradients import cotangents
from workbench.refusal import Raised


def case_of(asked: Mapping[str, Any]) -> tuple[Case, str, str, tuple[str, ...]]:
    """The case, the commit of its kernel, that of its references, and what is run: of a bug what it is in."""
    newest = PROJECTS[asked["project"]].newest
    if asked["wrong"] is None:
        case = next(one for one in CASES[asked["project"]] if one.operation == asked["operation"])
        return case, newest, newest, ("forward", "gradients") if case.gradients else ("forward",)
    one = WRONG[asked["wrong"]]
    commit = one.before if asked["before"] else one.after
    kernel, references = (newest, commit) if one.of_reference else (commit, newest)
    return one.case, kernel, references, one.wrong_in


def rows(asked: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """A row for the results, and one for the gradients; with an error where one could not be judged. A wrong one comes
    twice: with causes of a short search, as a report has them, then of a longer one.
    """
    case, commit, _, parts = case_of(asked)
    checkout.use(PROJECTS[asked["project"]], Path(asked["trees"][commit]))
    for what in parts:
        row = {key: asked[key] for key in ("project", "operation", "wrong", "before", "dtype")}
        row |= {"T": case.back if what == "gradients" else case.T, "commit": commit, "what": what}
        try:
            for found in run(asked, what):
                yield row | found
        except Exception as error:
            yield row | {"error": _error(error)}


def _error(error: Exception) -> str:
    """What was raised and where: of a kernel the last line of its traceback, which names the class."""
    said = str(error).strip()
    if isinstance(error, Raised):
        return next((x for x in reversed(said.splitlines()) if re.match(r"([\w.]+\.)?[A-Z]\w+(:|$)", x)), said)
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__} at {Path(last.filename).name}:{last.lineno}: {said[:400]}"


def run(asked: Mapping[str, Any], what: str) -> Iterator[dict[str, Any]]:
    """What the workbench says of a kernel's results, or gradients: as its contract declares it and with nothing
    declared; what others say; seconds; causes of a wrong one, then those of a longer search.
    """
    case, commit, of_references, _ = case_of(asked)
    project, gradients = PROJECTS[asked["project"]], what == "gradients"
    calls = [one.first if gradients else one for one in (case.kernel, *case.references)]
    T = case.back if gradients else case.T

    def inputs(seed: int, dtype: str) -> dict[str, Any]:
        drawn = case.inputs(seed, getattr(torch, dtype), T)
        heads = [name for name in drawn if gradients and name.startswith("d")]  # dout, of no input of the case
        return {name: x.to(asked["device"]) for name, x in drawn.items() if name in (*taken, *heads)}

    every = case.inputs(asked["seed"], getattr(torch, asked["dtype"]), T)
    taken = [name for name in every if any(name in one.takes.values() for one in calls)]
    given = inputs(asked["seed"], asked["dtype"])
    kernel = calls[0].of(checkout.kernel(Path(asked["trees"][commit]), calls[0].path), taken)
    root = Path(asked["trees"][of_references])
    functions = [one.of(checkout.reference(root, one.path), taken, staged=True) for one in calls[1:]]
    began = time.perf_counter()
    found, audit = list[tuple[ReferenceDiff, ReferenceDiff, str]](), asked["wrong"] is None
    for one, function in zip(calls[1:], functions, strict=True):
        words = contract(case, one, asked["dtype"], asked["device"], gradients)
        bare = workbench.diff(kernel, reference=function, inputs=inputs, dtype=asked["dtype"], seed=asked["seed"],
                              gradients=gradients)  # fmt: skip
        said = declared(bare, words)
        found.append((bare, said, words) if audit else (said, bare, words))
        if all(x.verdict not in ("suspicious", "untestable") and not x.fails for x in found[-1][:2]):
            break
    best, other, words = min(found, key=lambda x: (*x[0].severity, sum(not s.is_right for s in x[0].stages)))
    seconds = {"judge": time.perf_counter() - began}
    floats = [f"d{name}" for name in taken if given[name].is_floating_point()]
    names = floats if gradients else [best.graph.called(name) for name in best.graph.results]
    head = next(iter(cotangents(best.graph, given).values())) if gradients else None
    naive = dict(zip(names, made(functions[0], {name: given[name] for name in taken}, head), strict=False))
    actual = {one.name: as_torch(one.x, one.name) for one in best.given if len(one.places) == 1}
    if asked["arrays"] is not None:
        keep(best, Path(f"{asked['arrays']}.{what}.npz"))
    row = {
        **judged(best),
        ("declared" if audit else "bare"): judged(other),
        "words": words,
        "tried": [x[0].reference for x in found if x[0] is not best],
        **others(actual, naive, tolerance(case.tolerance or project.tolerance, asked["dtype"])),
        "accuracy": accuracy(best, naive),
        "seconds": {name: round(x, 2) for name, x in seconds.items()},
    }
    if best.origin is None:
        yield row
        return
    truth = Truth("", "no edit") if audit else WRONG[asked["wrong"]].truth
    yield row | explained(best.explained, truth)
    began = time.perf_counter()
    longer = explained(best.explain(), truth)
    row["seconds"]["causes"] = round(time.perf_counter() - began, 2)
    yield row | longer


def contract(case: Case, reference: Call, dtype: str, device: str, gradients: bool) -> str:
    """What the kernel declares, in words of --contract; a CPU has no TF32."""
    stored = "+".join(f"{stage}:{dtype}" for stage in reference.stored) if dtype in NARROW else ""
    words = case.contract[dtype] + f",stored={stored}" * bool(stored)
    words += f",round={case.rounds}:{dtype}" * bool(case.rounds and gradients and dtype in NARROW)
    return words if device != "cpu" else words.replace("scaled-tf32", "float32").replace("tf32", "float32")


def made(function: Callable[..., Any], inputs: Mapping[str, Any], head: torch.Tensor | None) -> list[torch.Tensor]:
    """Its results in order; with the gradient of the first one, those of the inputs."""
    if head is None:
        return tensors(function(**inputs))
    own = {name: x.detach() for name, x in inputs.items()}
    leaves = [x.requires_grad_() for x in own.values() if x.is_floating_point()]
    result = tensors(function(**own))[0]
    found = torch.autograd.grad(result, leaves, head.to(result), allow_unused=True)
    return [torch.zeros_like(x) if g is None else g for x, g in zip(leaves, found, strict=True)]


def write(asked: Mapping[str, Any], file: Path) -> None:
    """Adds the rows to the file, one after the other."""
    with file.open("a") as out:
        for row in rows(asked):
            out.write(json.dumps(row) + "\n")
            out.flush()
