"""What is measured of one case in one dtype: a row for its results, and one for its gradients."""

import json
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

import workbench
from campaigns.real import checkout
from campaigns.real.call import Call
from campaigns.real.cases import NARROW, RIGHT, Case, named
from campaigns.real.wrong import WRONG
from workbench.judge.reference.diff import ReferenceDiff

#: the relative root mean square up to which the project's own tests let a kernel pass
OWN_TEST = 0.005
#: calls of a kernel that are timed, after one that compiles it
TIMED = 3
#: the gradient of the first result, where it is an input
HEAD = "dresult"


def case_of(asked: Mapping[str, Any]) -> tuple[Case, str, str, tuple[str, ...]]:
    """The case, the commit of its kernel, that of its references, and what is run: of a bug what it is in."""
    if asked["wrong"] is None:
        case = named(asked["operation"])
        return case, RIGHT, RIGHT, ("forward", "gradients") if case.gradients else ("forward",)
    one = WRONG[asked["wrong"]]
    commit = one.before if asked["before"] else one.after
    kernel, references = (RIGHT, commit) if one.of_reference else (commit, RIGHT)
    return one.case, kernel, references, one.wrong_in


def rows(asked: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """A row for the results, and one for the gradients."""
    case, commit, of_references, parts = case_of(asked)
    checkouts, device = Path(asked["checkouts"]), asked["device"]
    checkout.use(checkouts / commit)
    for what in parts:
        T = asked["T"] or (case.back if what == "gradients" else case.T)
        row = {"operation": case.operation, "dtype": asked["dtype"], "T": T, "commit": commit, "what": what}
        row |= {key: asked[key] for key in ("wrong", "before")}
        try:
            made = case.inputs(asked["seed"], getattr(torch, asked["dtype"]), T)
            inputs = {name: x.to(device) for name, x in made.items()}
            found = run(case, inputs, asked["dtype"], checkouts / of_references, gradients=what == "gradients")
        except Exception as error:
            last = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{Path(last.filename).name}:{last.lineno}"
            found = {"error": f"{type(error).__name__} at {where}: {str(error)[:400]}"}
        yield row | found


def run(case: Case, inputs: Mapping[str, Any], dtype: str, references: Path, gradients: bool) -> dict[str, Any]:
    """What the workbench says of a kernel's results, or gradients, what others say, and seconds."""
    calls = [one.first if gradients else one for one in (case.kernel, *case.references)]
    taken = [name for name in inputs if not name.startswith("d")]
    kernel = calls[0].of(checkout.kernel(calls[0].path), taken)
    functions = [one.of(checkout.reference(references, one.path), taken, staged=True) for one in calls[1:]]
    if not gradients:
        inputs = {name: inputs[name] for name in taken}
    plain = through_autograd if gradients else called
    compiled, first = timed(lambda: plain(kernel, inputs))
    each, _ = timed(lambda: [plain(kernel, inputs) for _ in range(TIMED)])
    reference, naive = timed(lambda: plain(functions[0], inputs))
    began, found, words = time.perf_counter(), list[ReferenceDiff](), ""
    for one, function in zip(calls[1:], functions, strict=True):
        words = contract(case, one, dtype, next(iter(inputs.values())).device.type, gradients)
        found.append(workbench.diff(kernel, reference=function, inputs=inputs, contract=words, gradients=gradients))
        if found[-1].verdict not in ("suspicious", "untestable") and not found[-1].fails:
            break
    best = min(found, key=lambda x: (*x.severity, sum(not s.is_right for s in x.stages)))
    warm = each / TIMED
    judge = time.perf_counter() - began - 2 * len(found) * warm
    seconds = {"compile": compiled, "kernel": warm, "reference": reference, "judge": max(judge, 0.0)}
    return {
        **judged(best),
        "tried": [x.reference for x in found if x is not best],
        "declared": words,
        **others(first, naive),
        "seconds": {name: round(x, 4) for name, x in seconds.items()},
    }


def contract(case: Case, reference: Call, dtype: str, device: str, gradients: bool) -> str:
    """What the kernel declares, in words of --contract; a CPU has no TF32."""
    stored = "+".join(f"{stage}:{dtype}" for stage in reference.stored) if dtype in NARROW else ""
    words = case.contract[dtype] + f",stored={stored}" * bool(stored)
    words += f",round=saved:{dtype}" * (case.saved and gradients and dtype in NARROW)
    return words if device != "cpu" else words.replace("scaled-tf32", "float32").replace("tf32", "float32")


def called(function: Callable[..., Any], inputs: Mapping[str, Any]) -> list[torch.Tensor]:
    """Its results in order."""
    return tensors(function(**inputs))


def through_autograd(function: Callable[..., Any], inputs: Mapping[str, Any]) -> list[torch.Tensor]:
    """Gradients of the inputs, where the gradient of the first result is drawn or given."""
    head = inputs.get(HEAD)
    own = {name: x.detach() for name, x in inputs.items() if name != HEAD}
    leaves = [x.requires_grad_() for x in own.values() if x.is_floating_point()]
    made = tensors(function(**own))[0]
    if head is None:
        generator = torch.Generator().manual_seed(0)
        head = torch.randn(made.shape, generator=generator).to(made)
    found = torch.autograd.grad(made, leaves, head.to(made.dtype), allow_unused=True)
    return [torch.zeros_like(x) if g is None else g for x, g in zip(leaves, found, strict=True)]


def judged(found: ReferenceDiff) -> dict[str, Any]:
    """The verdict, what decided, and the worst element."""
    sizes = [stage.judged.summary for stage in found.stages if stage.decisive is not None]
    size = sum(x.size for x in sizes)
    return {
        "verdict": found.verdict,
        "doubt": found.doubt,
        "fails": found.fails,
        "origin": found.origin,
        "line": found.definition(found.origin) if found.origin else "",
        "reference": found.reference,
        "results": list(found.graph.results),
        "contract": found.said,
        "over_budget": max((x.worst.over_budget for x in sizes if x.worst is not None), default=float("nan")),
        "judged": sum(x.judged for x in sizes) / size if size else 0.0,
        "stages": {one.name: one.verdict for one in found.stages},
        "reasons": [f"{one.name}: {one.reason}" for one in found.stages if one.reason],
        "gates": list(found.gates),
        "notes": list(found.notes),
    }


def others(actual: Any, naive: Any) -> dict[str, Any]:
    """What `assert_close` and the project's own tests say of results beside those of the naive reference, which runs
    as it is, in float32.
    """
    pairs = [(x, y) for x, y in zip(tensors(actual), tensors(naive), strict=False) if x.shape == y.shape]
    if not pairs:
        return {"assert_close": None, "rms": None, "own_test": None}
    rms = [relative(x, y) for x, y in pairs]
    worst = max(rms, key=lambda x: (x != x, x))
    return {
        "assert_close": all(close(x, y) for x, y in pairs),
        "rms": worst,
        "own_test": all(x < OWN_TEST for x in rms),
    }


def tensors(x: Any) -> list[torch.Tensor]:
    """In order."""
    if isinstance(x, torch.Tensor):
        return [x]
    some = x.values() if isinstance(x, Mapping) else x if isinstance(x, tuple | list) else ()
    return [y for one in some for y in tensors(one)]


def relative(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """Root mean square of the errors over that of the expected."""
    off, size = ((x.double().square().mean().sqrt()) for x in (actual.double() - expected.double(), expected))
    return float(off / (size + 1e-8))


def close(actual: torch.Tensor, expected: torch.Tensor) -> bool:
    """With the tolerances of the kernel's dtype."""
    try:
        torch.testing.assert_close(actual, expected.to(actual.dtype))
    except AssertionError:
        return False
    return True


def timed(f: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds of a call, which the device has ended, and what it returned."""
    wait = torch.cuda.synchronize if torch.cuda.is_available() else lambda: None
    wait()
    began = time.perf_counter()
    made = f()
    wait()
    return time.perf_counter() - began, made


def write(asked: Mapping[str, Any], file: Path) -> None:
    """Adds the rows to the file, one after the other."""
    with file.open("a") as out:
        for row in rows(asked):
            out.write(json.dumps(row) + "\n")
            out.flush()
