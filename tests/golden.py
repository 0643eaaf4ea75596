"""A proof that nothing changed: every expected value and every bound of many traces, hashed in one tree and compared
with those of another.

    python -m tests.golden draw FOLDER [--count 300]    traces from seeds, into FOLDER (`golden_traces`)
    python -m tests.golden hash FOLDER OUT.json         judges each, and hashes all that was computed
    python -m tests.golden compare OLD.json NEW.json    what differs; exit code 1 if anything does
    python -m tests.golden arrays TRACE OUT.npz         the arrays of one trace themselves
    python -m tests.golden apart OLD.npz NEW.npz        how far two such files are apart

The tree is the one that PYTHONPATH names; run all on one machine with one thread of BLAS, whose sums differ between
machines. Runs in trees before and after modules moved: what is not public is found by `module`.
"""

import importlib
import json
import os
import platform
import sys
from collections.abc import Callable, Iterator
from contextlib import chdir
from pathlib import Path
from typing import Any

import numpy as np

from tests.golden_compare import apart, compared, hashed
from workbench import Case, diff, load
from workbench.trace.narrow import narrowed
from workbench.trace.printed import load_log

#: arrays of a comparison -> the words by which a difference is told
COMPARED = {
    "expected": "value",
    "budget": "bound",
    "statistical": "statistical",
    "over_budget": "x of budget",
    "state": "state",
}
#: options of a trace that its file does not hold
OPTIONS = ".options.json"


def module(*paths: str) -> Any:
    """The first of some modules that this tree has."""
    for path in paths:
        try:
            return importlib.import_module(path)
        except ModuleNotFoundError as error:
            if error.name is None or not path.startswith(error.name):
                raise
    raise ModuleNotFoundError(f"none of {', '.join(paths)}")


# ------------------------------------------------------------------------------------------------------------- the table


def everything(trace: Any) -> dict[str, dict[str, dict[str, Any]]]:
    """Mode -> stage of the table, dumped or not -> "value", "bound", "statistical", "size", arrays of float64.

    Modes: isolated (from what was dumped) and propagated (from q, k, v, or from codes and scales), each with
    statistical bounds and without. Stages before the attention of a kernel on codes have "low" and "high" in the place
    of a bound where that is what is computed. "judgeable" is whether a dump of the stage would be judged.
    """
    try:
        old = hasattr(module("workbench.reference.budget", "workbench.budget"), "budgets")
    except ModuleNotFoundError:
        old = False
    return _everything_old(trace) if old else _everything_new(trace)


def _everything_new(trace: Any) -> dict[str, dict[str, dict[str, Any]]]:
    """As `everything`, of a tree whose budgets are a walk over a table of stages."""
    try:
        run = module("workbench.expectation.observed").Observed(trace)
    except ModuleNotFoundError:
        run = _Unobserved(trace)
    expectation = module("workbench.expectation.expectation")
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for mode in ("isolated", "propagated"):
        of = run.right_attention if mode == "propagated" else run.dequantised
        dumped = of.readable if mode == "isolated" else {}
        for statistics in (True, False):
            one = expectation.Expectation(getattr(of, "expected_of", of), dumped, statistics=statistics)
            names = [name for name in of.known if name in one.computed]
            bounds = one.budgets(names)
            found[mode if statistics else f"{mode} without statistics"] = {
                name: {
                    "value": one.computed[name],
                    "bound": bounds[name].bound,
                    "statistical": bounds[name].statistical,
                    "size": np.broadcast_to(bounds[name].size, bounds[name].bound.shape),
                    "judgeable": name not in of.unjudgeable,
                }
                for name in names
            }
        if run.before_attention:
            by_table = mode == "isolated"
            stage = {
                name: {**made, "judgeable": name not in run.unjudgeable}
                for name in run.before_attention
                if (made := _before_attention_new(run, name, by_table=by_table)) is not None
            }
            found[f"{mode} before attention"] = stage
    return found


class _Unobserved:
    """A trace of a tree without `Observed`, with as much of it as is asked here."""

    def __init__(self, trace: Any) -> None:
        self.trace = self.expected_of = trace
        self._decoding = module("workbench.expectation.decoding", "workbench.judge.codes.decoding")
        self._judgeable = module("workbench.expectation.judgeable")
        stages = module("workbench.case.stages")
        self.known, self.before_attention = stages.ALGORITHMS[trace.algorithm], stages.before_attention(trace.algorithm)

    attention = property(lambda self: _Unobserved(self._decoding.attention_of(self.trace)))
    right_attention = property(lambda self: _Unobserved(self._decoding.attention_of(self.trace, from_codes=True)))
    readable = property(lambda self: self._judgeable.readable(self.trace))
    unjudgeable = property(lambda self: {name for name in self.known if self._judgeable.unjudgeable(self.trace, name)})
    by_scale = property(lambda self: self._decoding.by_scale(self.trace))

    def decoding(self) -> Any:
        return self._decoding.decoding(self.trace)


def _before_attention_new(run: Any, name: str, *, by_table: bool) -> dict[str, Any] | None:
    """A stage before attention; None where the trace does not tell it."""
    walk, trace = module("workbench.reference.walk"), run.trace
    x, kind = name[-1], trace.case.codes
    if kind is None and not name.startswith("dequant"):
        return None
    if kind is not None and name.startswith("lut") and trace.case.decode == "direct":
        return None
    lacks = {f"scale_{x}", f"codes_{x}"} - {*trace.stages} if x not in trace.inputs else set()
    if kind is not None and (lacks or (x not in trace.inputs and name.startswith(("scale", "codes")))):
        return None
    p = run.decoding() if by_table else run.by_scale
    if name not in p.table:
        return None
    computed = walk.values(p, [name])
    if name.startswith(("codes", "dequant")):
        _, low, high = walk.intervals(p, [name])[name]
        return {"value": computed[name], "low": low, "high": high}
    return {"value": computed[name], "bound": walk.budgets(p, computed, [name])[name].bound}


def _everything_old(trace: Any) -> dict[str, dict[str, dict[str, Any]]]:
    """As `everything`, of a tree that has expectation.py and budget/, wherever they lie."""
    expectation = module("workbench.expectation.expectation", "workbench.expectation.expectation")
    decoding = module("workbench.judge.codes.stages", "workbench.judge.codes.decoding")
    budget = module("workbench.reference.budget", "workbench.budget")
    quantisation = module("workbench.judge.codes.loss", "workbench.judge.codes.loss")
    known = module("workbench.case.stages", "workbench.case.stages").ALGORITHMS
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for mode in ("isolated", "propagated"):
        codes = trace.algorithm == "fp8"
        of = quantisation.attention(trace, from_codes=mode == "propagated") if codes else trace
        dumped = expectation.readable(of) if mode == "isolated" else {}
        for statistics in (True, False):
            one = expectation.Expectation(of, dumped, statistics=statistics)
            names = [name for name in known[of.algorithm] if name in one.computed]
            bounds = budget.budgets(one.solved, names)
            found[mode if statistics else f"{mode} without statistics"] = {
                name: {
                    "value": one.computed[name],
                    "bound": bounds[name].bound,
                    "statistical": bounds[name].statistical,
                    "size": np.broadcast_to(bounds[name].size, bounds[name].bound.shape),
                    "judgeable": not expectation.unjudgeable(of, name),
                }
                for name in names
            }
        if codes:
            before = {}
            for name in decoding.BEFORE_ATTENTION:
                judgeable = not expectation.unjudgeable(trace, name)
                if (made := _before_attention_old(trace, name, by_table=mode == "isolated")) is not None:
                    before[name] = {**made, "judgeable": judgeable}
            found[f"{mode} before attention"] = before
    return found


def _before_attention_old(trace: Any, name: str, *, by_table: bool) -> dict[str, Any] | None:
    """A stage before attention, as `decoding._comparison` has it; None where the trace does not tell it."""
    decoded = module("workbench.judge.codes.decoded", "workbench.decoded")
    budget = module("workbench.reference.budget.quantised", "workbench.budget.quantised")
    quantize = module("workbench.reference.quantize")
    x, kind = name[-1], trace.case.codes
    if kind is None:
        if not name.startswith("dequant"):
            return None
        value, low, high = decoded.coarsest(trace.inputs[x])
        return {"value": value, "low": low, "high": high}
    if name in module("workbench.case.stages", "workbench.case.stages").ABSENT[trace.case.decode]:
        return None
    lacks = {f"scale_{x}", f"codes_{x}"} - {*trace.stages} if x not in trace.inputs else set()
    if lacks or (x not in trace.inputs and name.startswith(("scale", "codes"))):
        return None
    with np.errstate(all="ignore"):
        if name.startswith("scale"):
            value = decoded.computed_scale(trace, x)
            return {"value": value, "bound": value * decoded.slack(trace)}
        if name.startswith("codes"):
            low, high = decoded.codes_of(trace, x)
            value = quantize.codes(trace.inputs[x].astype(np.float64), decoded.scale_of(trace, x), kind)
            return {"value": value, "low": low, "high": high}
        if name.startswith("lut"):
            value = quantize.table(decoded.scale_of(trace, x), kind)
            return {"value": value, "bound": budget.decoding_error(value, kind, decoded.scale_error(trace, x))}
        value, low, high = decoded.decoded(trace, x, by_table=by_table)
        return {"value": value, "low": low, "high": high}


# ------------------------------------------------------------------------------------------------------------- a record


def names_of(folder: Path) -> list[str]:
    """The traces in a folder, in order."""
    return sorted(path.name for path in folder.iterdir() if path.suffix in (".safetensors", ".log"))


def loaded(name: str) -> Any:
    """A trace of the current folder: its paths are in what is reported."""
    path = Path(name)
    beside = path.with_name(path.stem + OPTIONS)
    options = json.loads(beside.read_text()) if beside.exists() else {}
    if path.suffix == ".log":
        trace = load_log(path, Case(**options["case"]), options["promises"])
    else:
        trace = load(path)
    return narrowed(trace, options["where"]) if "where" in options else trace


def record(trace: Any) -> dict[str, Any]:
    """All that is computed of a trace: (kind, stage) as "kind/stage" -> an array, or a plain value."""
    judged = _tried(lambda: diff(trace))
    if isinstance(judged, str):
        return {"verdict/": judged}
    found: dict[str, Any] = {"verdict/": judged.verdict, "origins/": judged.origins, "victims/": judged.victims}
    for stage in (*judged.stages, *judged.not_judged):
        found[f"stage verdict/{stage.name}"] = [stage.verdict, stage.role, stage.reason]
        for mode in ("isolated", "propagated"):
            if (one := getattr(stage, mode)) is not None:
                for field, kind in COMPARED.items():
                    found[f"{mode} {kind}/{stage.name}"] = getattr(one, field)
        found[f"truth/{stage.name}"] = _tried(lambda name=stage.name: judged.truth(name).expected)
    bits = _tried(lambda: judged.bits_lost)
    found |= {"bits lost/": bits} if isinstance(bits, str) else {f"bits lost/{name}": x for name, x in bits.items()}
    for mode, stages in everything(trace).items():
        for name, one in stages.items():
            doubt = "" if one["judgeable"] else " (never judged)"
            found |= {f"table: {mode} {key}{doubt}/{name}": x for key, x in one.items() if key != "judgeable"}
    found["text/"] = _tried(lambda: str(judged))
    found["text in full/"] = _tried(lambda: module("workbench.report.text").in_full(judged))
    found |= {f"document: {path}/{name}": x for path, name, x in _leaves(_tried(judged.as_dict))}
    return found


def _tried(what: Callable[[], Any]) -> Any:
    """What comes of it, else what it raised: a defect stays the same, too, or is told."""
    try:
        return what()
    except Exception as error:
        return f"raised {type(error).__name__}: {error}"


def _leaves(document: Any, path: str = "", stage: str = "") -> Iterator[tuple[str, str, Any]]:
    """Path, stage and value of all that is in a JSON document; entries with a name are told apart by it."""
    if isinstance(document, dict):
        for key, value in document.items():
            yield from _leaves(value, f"{path}.{key}".strip("."), stage)
    elif isinstance(document, list) and document and all(isinstance(x, dict) and "name" in x for x in document):
        for value in document:
            yield from _leaves(value, path, f"{stage}.{value['name']}".strip("."))
    else:
        yield path, stage, document


def records(folder: Path) -> dict[str, Any]:
    """The records of all traces of a folder, hashed."""
    found: dict[str, Any] = {}
    with chdir(folder):
        for name in names_of(Path()):
            trace = loaded(name)
            values = {key: hashed(x) for key, x in record(trace).items()}
            found[name] = {"algorithm": trace.algorithm, "values": values}
            print(f"\r{len(found)} {name:60}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    made = {"python": platform.python_version(), "numpy": np.__version__, "machine": platform.machine()}
    made |= {key: os.environ.get(key, "") for key in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")}
    return {"made with": made, "tree": str(Path(module("workbench").__file__).parent.parent), "traces": found}


def main(arguments: list[str]) -> int:
    """The program; its exit code."""
    match arguments:
        case ["draw", folder, *count] if len(count) in (0, 2) and count[:1] in ([], ["--count"]):
            module("tests.golden_traces").draw(Path(folder), int(count[1]) if count else 300)
        case ["hash", folder, out]:
            Path(out).write_text(json.dumps(records(Path(folder)), indent=0))
        case ["compare", old, new]:
            return 0 if compared(*(json.loads(Path(path).read_text()) for path in (old, new))) else 1
        case ["arrays", path, out]:
            with chdir(Path(path).parent):
                found = record(loaded(Path(path).name))
            np.savez(out, **{key: x for key, x in found.items() if isinstance(x, np.ndarray)})
        case ["apart", old, new]:
            return 0 if apart(np.load(old), np.load(new)) else 1
        case _:
            print(__doc__, file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
