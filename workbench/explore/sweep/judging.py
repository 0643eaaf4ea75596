"""What a process of a sweep does with a case: run and judge it, explain it, or hold it to a cause of another case."""

import hashlib
import os
import platform
import traceback
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from workbench import cuda
from workbench.case.case import Case
from workbench.case.stages import OUT
from workbench.expectation.observed import Observed
from workbench.explore.sweep.ask import Answer, Ask, MachineLacks
from workbench.explore.sweep.row import DEFECT, RAISED, REFUSED, Named
from workbench.foreign.run import run_again
from workbench.judge.diff import Diff, diff
from workbench.judge.explain.cause import Cause
from workbench.judge.explain.coded import Coded
from workbench.judge.explain.hypothesis import Hypothesis, together
from workbench.judge.explain.library import family
from workbench.judge.explain.scene import Scene, Supposed
from workbench.judge.explain.trial import holds
from workbench.judge.fails import classed, failing
from workbench.refusal import Raised, Refusal, Unavailable
from workbench.trace.file import save
from workbench.trace.trace import Trace


def answer(ask: Ask, trace: Path) -> Answer:
    """What comes of a case; `trace` is where that of a failing one is left, where it is to be kept. MachineLacks where
    this machine lacks what the case needs.
    """
    try:
        os.chdir(ask.folder)
    except OSError as error:
        raise MachineLacks(
            f"cannot enter {ask.folder}, where the sweep runs, on {platform.node()}: {error.strerror}"
        ) from None
    try:
        judged = diff(run_again(ask.target, ask.case, **ask.given))
    except Unavailable as missing:
        raise MachineLacks(str(missing)) from None
    except Raised as raised:
        return Answer({"outcome": RAISED, "reason": str(raised)})
    except Refusal as refusal:
        return Answer({"outcome": REFUSED, "reason": str(refusal)})
    except MemoryError as error:
        said = str(error) or "an array could not be allocated"
        return Answer({"outcome": REFUSED, "reason": f"this machine has not enough memory for this case: {said}"})
    except Exception:
        return Answer({"outcome": DEFECT, "reason": traceback.format_exc()})
    fields = _fields(judged, ask.case)
    if ask.fits is not None:
        return Answer(fields, fits=ask.stage in judged.origins and _fits(judged.run, ask.fits))
    if ask.keep and fields["outcome"] in failing():
        save(judged.trace, trace)
    return Answer(fields, _causes(judged) if ask.explain else {})


def _fields(judged: Diff, asked: Case) -> dict[str, Any]:
    trace, settled = judged.trace, judged.trace.case_run
    chosen = {name: x for name in ("block_q", "block_k", "splits") if (x := getattr(settled, name)) is not None}
    missing = [f"{one.name}: {one.reason}" for one in judged.stages if one.verdict == "missing"]
    return {
        "outcome": classed(judged),
        "settled": {name: x for name, x in chosen.items() if x != getattr(asked, name)},
        "origins": judged.origins,
        "stages": {one.name: (one.verdict, _worst(judged, one.name)) for one in judged.stages},
        "bits": _bits(trace),
        "reason": "; ".join([*trace.gates, *missing]),
        "ran": _ran(trace),
    }


def _worst(judged: Diff, name: str) -> float | None:
    """The largest x of budget of a stage; None where none of its elements was judged."""
    stage = judged[name]
    return next((float(one.over_budget) for one in stage.worst(1)), None) if stage.decisive is not None else None


def _bits(trace: Trace) -> str | None:
    """The hash of the bytes of out, with its dtype and shape."""
    if OUT not in trace.stages:
        return None
    out = np.ascontiguousarray(trace.stages[OUT])
    return hashlib.sha256(f"{out.dtype} {out.shape}".encode() + out.tobytes()).hexdigest()


def _ran(trace: Trace) -> dict[str, Any]:
    """Where a case ran, and what code."""
    found = {"machine": platform.node(), "device": trace.backend, "versions": dict(trace.versions)}
    if (came := trace.provenance) is None:
        return {**found, "code": code_of_ours()}
    files = [(file.name, file.sha256) for file in came.files if file.loaded]
    code = hashlib.sha256(repr(sorted(files)).encode()).hexdigest()
    return {**found, "device": came.device, "versions": dict(came.versions), "code": code}


@cache
def code_of_ours() -> str:
    """The hash of the sources of all kernels of ours."""
    folder = Path(cuda.__file__ or "").parent
    return hashlib.sha256(b"".join(path.read_bytes() for path in sorted(folder.rglob("*.py")))).hexdigest()


def _causes(judged: Diff) -> dict[str, Named | None]:
    """Wrong stage -> what reproduces it, as a report of the case names it; where that names nothing, or several, as
    `workbench explain` does. What that withdraws, since fresh cases do not have it, may be a fault of some cases: the
    others of the sweep tell.
    """
    # of what is measured the words are of one case, and a name of the library, if there is one, is of all
    quick = [one for one in judged.explained.causes if not one.rivals and not one.measured]
    found = _named(judged.origins, quick)
    if None in found.values():
        whole = judged.explain()
        more = _named(judged.origins, whole.causes), _named(judged.origins, whole.withdrawn)
        found = {stage: cause or more[0][stage] or more[1][stage] for stage, cause in found.items()}
    return found


def _named(origins: Sequence[str], causes: Sequence[Cause]) -> dict[str, Named | None]:
    """Wrong stage -> the first of some causes that reproduces it."""
    found: dict[str, Named | None] = dict.fromkeys(origins)
    for cause in reversed(causes):
        cut = None if cause.supposed is None else (cause.supposed.block_k, cause.supposed.splits)
        one = Named(cause.id, cause.text, cut, searched=True, stands=cause.stands)
        found |= {stage: one for stage in cause.fit.stages if stage in found}
    return found


def _fits(run: Observed, cause: Named) -> bool:
    """Whether a run is as the cause of another one predicts."""
    hypothesis = _hypothesis(cause.id)
    if hypothesis is None:
        return False
    if {*hypothesis.stages} & {*run.before_attention} and run.case.codes is not None:
        return holds(Coded.of(run), hypothesis, elsewhere=True) is True
    if cause.cut is None:
        return holds(Scene.of(run), hypothesis, elsewhere=True) is True
    supposed = Supposed(*cause.cut)
    return holds(Scene(supposed.of(run), supposed=supposed), hypothesis, elsewhere=True) is True


@cache
def _hypothesis(id: str) -> Hypothesis | None:
    """The hypothesis, or the pair of them, of an id; None for one that the library lacks, such as of words of ranks."""
    found = []
    for part in id.split(" + "):
        of_family = family(part.split(".")[0])
        found += [one for one in of_family if one.id == part][:1]
    return together(*found) if len(found) == len(id.split(" + ")) else None
