"""What `accept` says of right and wrong kernels of five operations, by plain torch references, in one round."""

import json
import time
from collections import Counter
from functools import partial
from typing import Any

from campaigns.plain_references.judged import FOLDER, VISIBLE
from campaigns.plain_references.runs import OPERATIONS, load
from campaigns.spread import spread
from workbench.bench.harness import gathered
from workbench.explore.acceptance.caller import started
from workbench.explore.acceptance.reference_families import families_of, problem
from workbench.explore.acceptance.reference_judging import ReferenceJudge, asked
from workbench.explore.acceptance.reference_spec import ReferenceSpec
from workbench.explore.draw import Among, Between

SCHEMA = "workbench.accept-references/1"
#: seconds of a kernel, for the estimate
KERNEL_S = 6.0
#: sizes of the axes of an operation
AXES: dict[str, dict[str, Any]] = {
    "attention": {"T": Between(1, 70), "D": Among((16, 32)), "heads": 4, "groups": Among((1, 2, 4))},
    "gated_delta": {"T": Between(1, 36), "K": Among((8, 16)), "V": Among((8, 12, 24)), "heads": Among((1, 2))},
    "norm_glu": {"rows": Between(1, 40), "dim": Between(2, 130), "features": Between(1, 40)},
    "cross_entropy": {"tokens": Between(1, 40), "vocab": Between(2, 300)},
    "selective_scan": {"T": Between(1, 36), "channels": Between(1, 24), "N": Among((4, 8))},
}


def kernels() -> list[dict[str, Any]]:
    """Every right kernel and every fault, each in one of its dtypes, these in turn."""
    found = []
    for operation in OPERATIONS:
        for at, (function, (contract, dtypes, *forms)) in enumerate(load(f"{operation}_right.py").KERNELS.items()):
            dtype = dtypes[at % len(dtypes)]
            found.append({
                "operation": operation, "file": f"{operation}_right.py", "function": function, "dtype": dtype,
                "contract": contract.format(dtype=dtype), "also": [f"{operation}.py:{form}" for form in forms],
                "truth": "right", "size": "", "visible": False,
            })  # fmt: skip
    for at, told in enumerate(json.loads((FOLDER / "truths.json").read_text())):
        dtype = told["dtypes"][at % len(told["dtypes"])]
        same = {name: told[name] for name in ("operation", "file", "function", "also", "size")}
        visible = told["ratio"][dtype]["max"] > VISIBLE
        found.append({**same, "dtype": dtype, "contract": "", "truth": "wrong", "visible": visible})
    return found


def measure(jobs: int = 1, every: int = 1, seed: int = 11) -> dict[str, Any]:
    """The JSON document: a row for each kernel, or for one of every so many."""
    some = kernels()[::every]
    rows = gathered("accept kernels by plain references", KERNEL_S * len(some) / jobs,
                    spread(partial(row, seed=seed), some, jobs))  # fmt: skip
    return {"schema": SCHEMA, "seed": seed, "kernels": rows}


def row(one: dict[str, Any], seed: int) -> dict[str, Any]:
    """One kernel, on a problem of each family and three random ones."""
    began, operation = time.perf_counter(), one["operation"]
    also = one["also"] if one["dtype"] != "float32" else []
    spec = ReferenceSpec(
        tuple(f"{FOLDER / name}" for name in (f"{operation}.py:{operation}", *also)),
        f"{FOLDER / operation}.py:inputs",
        AXES[operation],
        one["dtype"],
        contract=one["contract"] or None,
    )
    names = families_of(spec, asked(spec, spec.usual).inputs)
    target, failure = f"{FOLDER / one['file']}:{one['function']}", None
    with started(target, arrays="", device=None, unsafe=False, memory_gb=8, plain=True) as caller:
        judge = ReferenceJudge(caller, spec)
        for index, name in enumerate(names):
            if name == "random" and index > 6:
                continue
            if (failure := judge.failure_at(problem(spec, names, seed, index), index)) is not None:
                break
    return {
        **{name: one[name] for name in ("operation", "function", "dtype", "truth", "size", "visible")},
        "fails": failure is not None,
        "family": "" if failure is None else failure.problem.family,
        "kind": "" if failure is None else failure.kind,
        "case": "" if failure is None else failure.problem.words,
        "cases": judge.judged_cases.total(),
        "untestable": judge.untestable.total(),
        "suspicious": judge.suspicious,
        "over_budget": judge.worst,
        "seconds": round(time.perf_counter() - began, 2),
    }


def tables(found: dict[str, Any]) -> list[list[dict[str, Any]]]:
    """Kernels that are not as the truth says, counts, and the families that showed faults."""
    rows = found["kernels"]
    shown = ("truth", "operation", "function", "dtype", "size", "family", "case", "suspicious", "over_budget")
    odd = [{name: one[name] for name in shown} for one in rows if one["fails"] != (one["truth"] == "wrong")]
    counts = [
        {
            "kernels": f"{truth} {size}".strip(), "n": len(some), "fail": sum(one["fails"] for one in some),
            "cases": sum(one["cases"] for one in some), "untestable": sum(one["untestable"] for one in some),
        }
        for truth, size in (("right", ""), ("wrong", "gross"), ("wrong", "fine"))
        if (some := [one for one in rows if (one["truth"], one["size"]) == (truth, size)])
    ]  # fmt: skip
    families = Counter(one["family"] for one in rows if one["fails"] and one["truth"] == "wrong")
    by = [{"family": name, "faults": n} for name, n in families.most_common()]
    return [table for table in (odd, counts, by) if table]


def as_true(one: dict[str, Any]) -> bool:
    """A right kernel passes; a wrong one whose error stands out fails."""
    return not one["fails"] if one["truth"] == "right" else one["fails"] or not one["visible"]
