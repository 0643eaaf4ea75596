"""Errors of right kernels and of faults against the references in float64: `python measure.py right`, `python
measure.py faults`.

`faults` writes truths.json. An effect is the median and the maximum of |kernel - exact| over all elements of all
results.
"""

import collections
import json
import sys

import torch
from runs import HERE, OPERATIONS, load, runs

RESULTS = {
    "attention": ("out", "lse"),
    "gated_delta": ("out", "state"),
    "norm_glu": ("out",),
    "cross_entropy": ("loss",),
    "selective_scan": ("out", "state"),
}


def results(operation, value):
    """Results by name of what a kernel or a reference returned."""
    if isinstance(value, dict):
        return {name: value[name] for name in RESULTS[operation]}
    return dict(zip(RESULTS[operation], value if isinstance(value, tuple) else (value,), strict=True))


def exact(operation, module, arguments):
    wide = {name: x.double() if x.is_floating_point() else x for name, x in arguments.items()}
    return results(operation, getattr(module, operation)(**wide))


def errors(operation, value, truth):
    got = results(operation, value)
    return torch.cat([(got[name].double() - truth[name]).abs().nan_to_num(nan=torch.inf).flatten() for name in truth])


def relative(operation, value, truth):
    """The largest error of a result over the result's root mean square, over all results."""
    got = results(operation, value)
    return max(((got[n].double() - truth[n]).abs().max() / truth[n].pow(2).mean().sqrt()).item() for n in truth)


def right():
    worst, count = collections.defaultdict(list), 0
    for run in runs():
        operation = run["operation"]
        module, kernels = load(f"{operation}.py"), load(run["file"])
        arguments = module.inputs(run["seed"], run["dtype"], **run["axes"])
        value = getattr(kernels, run["function"])(**arguments)
        before = {name: x.clone() for name, x in module.inputs(run["seed"], run["dtype"], **run["axes"]).items()}
        again = results(operation, getattr(kernels, run["function"])(**arguments))
        assert all(torch.equal(x, arguments[name]) for name, x in before.items()), run
        assert all(torch.equal(x, again[name]) for name, x in results(operation, value).items()), run
        wide = {name: x.double() if x.is_floating_point() else x for name, x in arguments.items()}
        for form in run["also"]:
            other = results(operation, getattr(module, form.split(":")[1])(**wide))
            assert relative(operation, other, exact(operation, module, arguments)) < 1e-11, run
        worst[operation, run["function"], run["dtype"], run["contract"]].append(
            relative(operation, value, exact(operation, module, arguments))
        )
        count += 1
    for key, each in sorted(worst.items()):
        print(*key[:3], f"{max(each):.2e}", f"runs={len(each)}", key[3])
    print(count, "runs")


def differs(a, b):
    return not torch.equal(a.float(), b.float())


def faults():
    rows = []
    for operation in OPERATIONS:
        module, wrong = load(f"{operation}.py"), load(f"{operation}_faults.py")
        source = (HERE / f"{operation}.py").read_text()
        for name, fault in wrong.FAULTS.items():
            assert fault["line"] in source, (name, fault["line"])
            row = {
                "operation": operation,
                "reference": f"{operation}.py:{operation}",
                "inputs": f"{operation}.py:inputs",
            }
            row |= {
                "file": f"{operation}_faults.py",
                "function": name,
                "twin": fault["twin"],
                "dtypes": list(fault["dtypes"]),
            }
            row |= {key: fault[key] for key in ("axes", "seed", "size", "what", "kind", "line")}
            forms = ["attention.py:attention_unnormalised"] if operation == "attention" else []
            row |= {"also": forms, "first_wrong": None, "stages": [], "effect": {}, "effect_right": {}, "ratio": {}}
            for dtype in fault["dtypes"]:
                arguments = module.inputs(fault["seed"], dtype, **fault["axes"])
                truth = exact(operation, module, arguments)
                bad, good = getattr(wrong, name)(**arguments), getattr(wrong, fault["twin"])(**arguments)
                if isinstance(bad, dict):
                    first = next((stage for stage in bad if differs(bad[stage], good[stage])), None)
                    assert row["first_wrong"] in (None, first), (name, dtype, row["first_wrong"], first)
                    row["first_wrong"], row["stages"] = first, list(bad)
                for key, value in (("effect", bad), ("effect_right", good)):
                    e = errors(operation, value, truth)
                    row[key][dtype] = {"median": float(f"{e.median():.3g}"), "max": float(f"{e.max():.3g}")}
                pairs = ((m, row["effect"][dtype][m], row["effect_right"][dtype][m]) for m in ("median", "max"))
                row["ratio"][dtype] = {m: float(f"{b / g:.3g}") if g else None for m, b, g in pairs}
                changed = any(
                    differs(a, b) for a, b in zip(*(results(operation, v).values() for v in (bad, good)), strict=True)
                )
                print(
                    f"{operation:15}{name:28}{dtype:9}{fault['size']:6}",
                    row["effect"][dtype],
                    row["ratio"][dtype],
                    row["first_wrong"] or "",
                    "" if changed else "SAME",
                )
            rows.append(row)
    (HERE / "truths.json").write_text("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n")
    stages = sum(bool(row["stages"]) for row in rows)
    print(len(rows), "faults;", sum(row["size"] == "fine" for row in rows), "fine;", stages, "return stages")


if __name__ == "__main__":
    {"right": right, "faults": faults}[sys.argv[1]]()
