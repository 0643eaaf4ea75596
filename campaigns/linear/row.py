"""What the workbench says of a run that was saved, beside what others say: one row. No kernel is needed, nor a device,
but for graphs that are too large for a core.
"""

import json
import pickle
import time
from collections.abc import Mapping
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from typing import Any

from campaigns.linear.asked import GRADIENTS, case_of, tokens
from campaigns.linear.runs import HEAD, Run, replaced
from campaigns.real import checkout, said
from campaigns.real.call import Call
from campaigns.real.case import Case
from campaigns.real.row import contract as declared
from campaigns.real.rows.fla import PROJECT
from workbench.foreign.plain import PlainRun, Returned
from workbench.judge.reference.diff import ReferenceDiff
from workbench.operations.reference.call import judged_run
from workbench.operations.reference.traced import traced
from workbench.reference.graph import Gradients, Graph, parse
from workbench.reference.graph.device import is_worth_it, on_device


def write(asked: Mapping[str, Any], what: str, saved: Path, file: Path) -> None:
    """Writes the row of a saved run to a file."""
    found: Run | str = pickle.loads(saved.read_bytes())
    row = heading(asked, what)
    try:
        row |= {"error": found} if isinstance(found, str) else judge(asked, found)
    except Exception as error:
        row |= {"error": f"{type(error).__name__}, judged: {str(error)[:400]}"}
    replaced(file, json.dumps(row).encode())


def heading(asked: Mapping[str, Any], what: str) -> dict[str, Any]:
    """What the row is of."""
    case, commit, _ = case_of(asked)
    said = {key: asked[key] for key in ("operation", "dtype", "wrong", "before", "fault")}
    return said | {"T": tokens(case, asked, what == GRADIENTS), "commit": commit, "what": what}


def judge(asked: Mapping[str, Any], run: Run) -> dict[str, Any]:
    """The verdict by the first reference under which the run is right, or the mildest, and seconds."""
    case, _, commit = case_of(asked)
    gradients, root = run.what == GRADIENTS, Path(asked["checkouts"]) / commit
    checkout.use(PROJECT, root)
    began, busy = time.perf_counter(), time.process_time()
    found = list[ReferenceDiff]()
    # a kernel token by token is the recurrence; the form by chunks, whose budgets are larger, is for its gate's dg
    by_tokens = case.operation.endswith("tokens")
    for one in case.references[:1] if by_tokens and not gradients else case.references:
        found.append(judged_by(case, one, asked, run, root))
        if found[-1].verdict not in ("suspicious", "untestable") and not found[-1].fails:
            break
    best = min(found, key=attrgetter("severity"))
    seconds = {**run.seconds, "judge": time.perf_counter() - began, "processor": time.process_time() - busy}
    return {
        **said.judged(best),
        "results": list(best.graph.results),
        "tried": [x.reference for x in found if x is not best],
        "declared": contract(case, case.references[0], asked, gradients),
        **run.others,
        "seconds": {name: round(x, 4) for name, x in seconds.items()},
    }


def judged_by(case: Case, reference: Call, asked: Mapping[str, Any], run: Run, root: Path) -> ReferenceDiff:
    """The judgement by one reference."""
    gradients, dtype, inputs = run.what == GRADIENTS, asked["dtype"], run.inputs
    own = [name for name in inputs if name != HEAD]
    call = reference.first if gradients else reference
    function = call.of(checkout.reference(root, call.path), own, staged=True)
    graph, name = traced(function, inputs, Gradients(asked["seed"], dtype) if gradients else None)
    graph = on_device(graph, asked["device"]) if asked["device"] != "cpu" and is_worth_it(graph) else graph
    words = contract(case, reference, asked, gradients)
    leaves = [name for name in own if inputs[name].is_floating_point()]
    made = by_name(run.made, graph, leaves) if gradients else run.made
    return judged_run(lambda _: made, [(graph, name)], parse(words, dtype), dtype)


def by_name(made: PlainRun, graph: Graph, leaves: list[str]) -> PlainRun:
    """A result and gradients of leaves in order, by the names of the graph, which may lack some."""
    result = next(key for key in graph.results if key not in graph.gradients.values())
    names = [graph.called(result), *(graph.gradients.get(leaf) for leaf in leaves)]

    def of(arrays: Any) -> dict[str, Any]:
        return {name: x for name, x in zip(names, arrays, strict=True) if name is not None}

    return replace(made, returned=tuple(Returned(of(one.arrays), of(one.unwritten)) for one in made.returned))


def contract(case: Case, reference: Call, asked: Mapping[str, Any], gradients: bool) -> str:
    """What the kernel declares, in words of --contract."""
    return declared(case, reference, asked["dtype"], asked["device"], gradients)
