"""How far the causes that `explain` names can be trusted: every fault at random cases, with all that is known and less.

Whether a name is right is not looked up: it is, where the named fault of the library reproduces the faulty kernel on
fresh cases that the search has not seen. So a formula that is the same under another name counts as right, and nothing
has to say which hypothesis belongs to which fault.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import zip_longest
from typing import Any

import numpy as np

import campaigns.faults  # noqa: F401  (the whole catalogue)
from campaigns.independent import catalogue as independent
from campaigns.known import reduced, unknown
from campaigns.showing import FAULTS, showing
from campaigns.spread import spread
from campaigns.styles.style import drawn
from workbench.bench.harness import gathered
from workbench.case.case import Case
from workbench.case.fields import ARITHMETIC, TILES, of_role
from workbench.case.stages import before_attention
from workbench.cuda.faults.benign import BENIGN
from workbench.cuda.faults.catalogue import CATALOGUE
from workbench.cuda.faults.fault import Fault
from workbench.expectation.observed import Observed
from workbench.foreign.run import run
from workbench.judge.diff import diff
from workbench.judge.explain.cause import Cause
from workbench.judge.explain.coded import Coded
from workbench.judge.explain.scene import Scene, Supposed
from workbench.judge.explain.trial import holds
from workbench.judge.stage import ORIGIN_VERDICTS
from workbench.trace.trace import Trace

SCHEMA = "workbench.score/1"
#: what is known of a run -> the trace as it would be then
KNOWN: Mapping[str, Callable[[Trace], Trace]] = {
    "full": lambda trace: trace,
    "lean": lambda trace: reduced(trace, "lean"),
    "out and lse": lambda trace: reduced(trace, "output"),
    "out alone": lambda trace: _alone(trace),
}
#: dtypes of kernels in NumPy
SIXTEEN_OR_MORE = ("float16", "float32")
#: fresh cases on which a name must hold
FRESH = 2
#: names of a class that are read, at most
NAMES = 8
COUNTS = ("runs", "effective", "visible", "detected", "origin", "named", "right", "wrong", "unknown")
# seconds of a run with its search, measured on 2 cores, for an estimate only
RUN_S, BUILD_S = 8.0, 5.0


def measure(
    per_fault: int = 5,
    seed: int = 0,
    jobs: int = 1,
    kernels: Sequence[str] = (),
    known: Sequence[str] = (),
    *,
    faults: Sequence[str] = FAULTS,
) -> dict[str, Any]:
    """The JSON document of one campaign on the emulator, the same for any number of `jobs` (processes) where no search
    runs out of time. `kernels`: whose faults, `known`: with what known; all where none are named.

    `faults`: a row for each with, by what is known (KNOWN), of so many `runs`: `effective`, in which a dumped bit
    differs from the clean kernel's; `visible`, those whose error is twice the clean kernel's; `detected`; `origin`, at
    the fault's own stage; `named`; `right` and `wrong`, whether the name holds on fresh cases; `unknown`; and the
    `seconds` of the longest search. `benign` and `correct`: runs, and those that were explained.
    """
    estimate_s = (BUILD_S + RUN_S * per_fault) / jobs
    faults = [one for one in faults if not kernels or CATALOGUE[one].kernel in kernels]
    changes = [one for one in BENIGN if not kernels or BENIGN[one].kernel in kernels]
    rows = spread(partial(fault_row, runs=per_fault, seed=seed, known=known), faults, jobs)
    found = gathered(f"explain {per_fault} runs of each of {len(faults)} faults", estimate_s * len(faults), rows, _said)
    right = [*changes, *(kernels or ("flash", "split_k", "fp8"))]
    quiet = spread(partial(_quiet_row, runs=per_fault, seed=seed, known=known), right, jobs)
    benign = gathered("explain what is right", estimate_s * len(right), quiet)
    return {"schema": SCHEMA, "seed": seed, "faults": found, "all_faults": _total(found), "right": benign}


def measure_independent(per_fault: int = 5, seed: int = 0, jobs: int = 1) -> dict[str, Any]:
    """As `measure`, of faults that were written as functions in NumPy from reports alone (`independent.catalogue`)."""
    names = list(independent.FAULTS)
    rows = spread(partial(independent_row, runs=per_fault, seed=seed), names, jobs)
    estimate_s = RUN_S * per_fault * len(names) / jobs
    found = gathered(f"explain {per_fault} runs of each of {len(names)} faults", estimate_s, rows)
    return {"schema": SCHEMA, "seed": seed, "faults": found, "all_faults": _total(found), "right": []}


def independent_row(name: str, *, runs: int, seed: int) -> dict[str, Any]:
    """A row of `measure_independent`."""
    fault = independent.FAULTS[name]
    cases = _other_cases(fault.shows, runs + FRESH, seed)
    faulty, clean = ([run(function, case) for case in cases] for function in (fault.function, fault.correct))
    known = {}
    for one in ("full", "out and lse"):
        wrong, right = ([KNOWN[one](trace) for trace in some] for some in (faulty, clean))
        known[one] = counted(one, wrong[:runs], right[:runs], wrong[runs:], fault.stages)
    return {"fault": name, "kernel": fault.function.__name__, "known": known}


def _other_cases(shows: Callable[[Mapping[str, Any]], bool], count: int, seed: int) -> list[Case]:
    """Cases that show a fault, half with a scale of their own, and some with a head_dim that is no power of two."""

    def other(options: Mapping[str, Any]) -> dict[str, Any]:
        head_dim = 40 if options["seed"] % 5 == 0 else options["head_dim"]
        return {**options, "head_dim": head_dim, "scale": (1.7 if options["seed"] % 2 else 1) * head_dim**-0.5}

    found = drawn(SIXTEEN_OR_MORE, lambda options: shows(other(options)), count, seed)
    return [Case(**other(options)) for options in found]


def tables(results: dict[str, Any]) -> list[list[dict[str, Any]]]:
    """The document as tables for a screen: rows of equal columns."""
    total = [{"known": known, **_shares(counts)} for known, counts in results["all_faults"].items()]
    poor = [
        {
            "fault": row["fault"],
            "known": known,
            **{key: counts[key] for key in COUNTS},
            "names": "; ".join(counts["names"]),
        }
        for row in results["faults"]
        for known, counts in row["known"].items()
        if counts["right"] < counts["detected"] or counts["origin"] < counts["detected"]
    ]
    quiet = [{"of": row["of"], "runs": row["runs"], "explained": row["explained"]} for row in results["right"]]
    return [table for table in (total, poor, quiet) if table]


def _shares(counts: Mapping[str, Any]) -> dict[str, Any]:
    def share(a: str, b: str) -> str:
        return f"{counts[a]}/{counts[b]} ({counts[a] / max(counts[b], 1):.1%})"

    return {
        "runs": counts["runs"],
        "effective": counts["effective"],
        "detected": share("detected", "effective"),
        "of visible": share("detected_visible", "visible"),
        "origin": share("origin", "detected"),
        "right": share("right", "detected"),
        "wrong names": share("wrong", "detected"),
        "unknown": share("unknown", "detected"),
        "seconds": f"{counts['seconds']:.1f}",
    }


def _said(rows: Sequence[dict[str, Any]]) -> str:
    found = [counts for row in rows for counts in row["known"].values()]
    return f", {sum(x['right'] for x in found)} of {sum(x['detected'] for x in found)} named right"


def _total(rows: Sequence[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    keys = (*COUNTS, "detected_visible")
    return {
        known: {key: sum(row["known"][known][key] for row in rows) for key in keys}
        | {"seconds": max((row["known"][known]["seconds"] for row in rows), default=0.0)}
        for known in (rows[0]["known"] if rows else KNOWN)
    }


def fault_row(fault_id: str, *, runs: int, seed: int, known: Sequence[str] = ()) -> dict[str, Any]:
    """A row of `faults`."""
    fault, random = CATALOGUE[fault_id], np.random.default_rng(seed)
    cases = [showing(fault, random) for _ in range(runs + FRESH)]
    faulty = [run(fault.kernel, case, faults=[fault.id], backend="emulator") for case in cases]
    clean = [run(fault.kernel, case, backend="emulator") for case in cases[:runs]]
    counts = {
        name: counted(
            name,
            [view(x) for x in faulty[:runs]],
            [view(x) for x in clean],
            [view(x) for x in faulty[runs:]],
            _origins(fault),
            [Supposed(x.case.block_k or x.case.seqlen_k, x.case.splits or 1) for x in faulty[runs:]],
        )
        for name, view in _views(known).items()
    }
    return {"fault": fault.id, "kernel": fault.kernel, "known": counts}


def _views(known: Sequence[str]) -> Mapping[str, Callable[[Trace], Trace]]:
    """Those of KNOWN with these names; all where there are none."""
    return {name: view for name, view in KNOWN.items() if not known or name in known}


def _origins(fault: Fault) -> tuple[str, ...]:
    return (*fault.stages, *fault.biased)


def counted(
    known: str,
    faulty: Sequence[Trace],
    clean: Sequence[Trace],
    fresh: Sequence[Trace],
    stages: Sequence[str],
    cuts: Sequence[Supposed] = (),
) -> dict[str, Any]:
    """What is counted of the runs of one fault with as much `known`; `fresh`: runs on which a name must hold, and
    `cuts`: how their kernels cut the keys, where a trace may not tell.
    """
    counts: dict[str, Any] = dict.fromkeys((*COUNTS, "detected_visible"), 0) | {"names": [], "seconds": 0.0}
    for one, sound in zip(faulty, clean, strict=True):
        counts["runs"] += 1
        if all(
            stage.tobytes() == sound.stages[name].tobytes()
            for name, stage in one.stages.items()
            if name in sound.stages
        ):
            continue
        counts["effective"] += 1
        visible = _visible(one, sound)
        counts["visible"] += visible
        judged = diff(one)
        if judged.verdict not in ORIGIN_VERDICTS:
            continue
        counts["detected"] += 1
        counts["detected_visible"] += visible
        counts["origin"] += known != "full" or judged.origin in stages
        found = judged.explain()
        counts["seconds"] = max(counts["seconds"], found.seconds)
        if not found.causes:
            counts["unknown"] += 1
            continue
        counts["named"] += 1
        right = all(is_right(cause, fresh, cuts) for cause in found.causes)
        counts["right" if right else "wrong"] += 1
        name = " + ".join(cause.id for cause in found.causes)
        if not right and name not in counts["names"]:
            counts["names"].append(name)
    return counts


def is_right(cause: Cause, fresh: Sequence[Trace], cuts: Sequence[Supposed] = ()) -> bool:
    """Whether a cause, by one of the names that it has, reproduces a kernel on runs that the search has not seen. A cut
    that it supposes may be one that its own run does not tell from the kernel's: here the kernel's counts.
    """
    scenes: list[Scene | Coded] = []
    for trace, cut in zip_longest(fresh, cuts):
        if cause.stage in before_attention(trace.algorithm):
            scenes.append(Coded.of(Observed(trace)))
        elif cause.supposed is not None:
            scenes.append(Scene.of((cut or cause.supposed).of(Observed(trace))))
        else:
            scenes.append(Scene.of(Observed(trace)))
    return any(all(holds(scene, one, elsewhere=True) is not False for scene in scenes) for one in cause.members[:NAMES])


def _visible(one: Trace, sound: Trace) -> bool:
    """Whether a fault moves out or lse by more than twice what the clean kernel is off by itself, or at all where
    something is no number.
    """
    expectation = Scene.of(Observed(sound).only(["out", "lse"]))
    for name in ("out", "lse"):
        if name not in one.stages or name not in sound.stages:
            continue
        actual, right = one.stages[name].astype(np.float64), sound.stages[name].astype(np.float64)
        own = np.nanmax(abs(np.nan_to_num(right - expectation.expected[name], posinf=0.0, neginf=0.0)), initial=0.0)
        both = np.isfinite(actual) & np.isfinite(right)
        if np.any(np.isfinite(actual) != np.isfinite(right)) or abs(actual - right)[both].max(initial=0.0) > 2 * own:
            return True
    return False


def _alone(trace: Trace) -> Trace:
    """out alone, of a kernel that tells nothing."""
    again, found = trace.rerun, unknown(trace, ("out",))
    if again is None:
        return found
    cut = {name: getattr(trace.case, name) for name in of_role(TILES, ARITHMETIC)}
    return replace(found, rerun=lambda case, inputs=None: _alone(again(case.but(**cut), inputs)))


def _quiet_row(name: str, *, runs: int, seed: int, known: Sequence[str]) -> dict[str, Any]:
    """Runs of a benign change, or of a clean kernel, and those that were explained."""
    random = np.random.default_rng(seed)
    change = BENIGN[name] if name in BENIGN else None
    like = change or next(fault for fault in CATALOGUE.values() if fault.kernel == name and not fault.needs)
    explained, views = 0, _views(known)
    for _ in range(runs):
        case = showing(like, random)
        trace = run(like.kernel, case, faults=[name] if change else [], backend="emulator")
        for view in views.values():
            judged = diff(view(trace))
            explained += bool(judged.explain(0.1).causes)
    return {"of": name, "runs": runs * len(views), "explained": explained}
