"""What the workbench says of a run, as a row keeps it."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from campaigns.real.wrong import KINDS, Truth
from workbench.floats import to_float64
from workbench.judge.reference.causes.cause import Explained, Named
from workbench.judge.reference.contracts import judged as under
from workbench.judge.reference.diff import ReferenceDiff
from workbench.judge.reference.lines import code, short
from workbench.reference.graph import parse


def judged(found: ReferenceDiff) -> dict[str, Any]:
    """The verdict, what decided, and the worst element."""
    sizes = [stage.judged.summary for stage in found.stages if stage.decisive is not None]
    size = sum(x.size for x in sizes)
    return {
        "verdict": found.verdict,
        "doubt": found.doubt,
        "fails": found.fails,
        "origin": found.origin,
        "wrong_stages": [*found.origins, *found.victims],
        "line": found.definition(found.origin) if found.origin else "",
        "reference": found.reference,
        "contract": found.said,
        "over_budget": max((x.worst.over_budget for x in sizes if x.worst is not None), default=float("nan")),
        "judged": sum(x.judged for x in sizes) / size if size else 0.0,
        "stages": {one.name: one.verdict for one in found.stages},
        "reasons": [f"{one.name}: {one.reason}" for one in found.stages if one.reason],
        "gates": list(found.gates),
        "notes": list(found.notes),
    }


def declared(found: ReferenceDiff, words: str) -> ReferenceDiff:
    """The same run, judged under a contract in words."""
    contract = parse(words, found.dtype)
    again = under(found.graph, found.given, contract, found.dtype)
    return replace(found, contract=contract, stages=again.stages, declared=True, said=again.words, beyond_strict={})


def explained(found: Explained, truth: Truth) -> dict[str, Any]:
    """The causes in words, and whether they are the truth."""
    return {
        "cause": told(found, truth),
        "causes": [
            {
                "names": [f"{one.text} ({short(one.line)})" for one in cause.names],
                "line": code(cause.names[0].line),
                "family": cause.names[0].family,
                "elements": cause.elements,
                "proved": cause.proved,
            }
            for cause in found.causes
        ],
        "ended_by": found.ended_by,
    }


def told(found: Explained, truth: Truth) -> str:
    """none where nothing is named; else whether the first name of a cause is the truth (named), another name of one
    (among), or none is (false); behind "perhaps" where fewer wrong elements than a proof needs fit it.
    """
    if not found.causes:
        return "none"
    for sure in (True, False):
        causes = [cause for cause in found.causes if cause.proved == sure]
        perhaps = "" if sure else "perhaps "
        if any(is_truth(cause.names[0], truth) for cause in causes):
            return perhaps + "named"
        if any(is_truth(one, truth) for cause in causes for one in cause.names):
            return perhaps + "among"
    return "false" if any(cause.proved for cause in found.causes) else "perhaps false"


def is_truth(one: Named, truth: Truth) -> bool:
    """Whether a named cause is the true one: the same line of the reference, and the same kind of edit."""
    lines = filter(None, (truth.line, truth.also))
    return one.family in KINDS[truth.kind] and any(line in code(one.line) for line in lines)


def accuracy(found: ReferenceDiff, naive: Mapping[str, Any]) -> dict[str, Any]:
    """By result, the root mean square of the kernel's errors over that of the expected, and the naive reference's as
    torch runs it, where it has the result.
    """
    made = dict[str, Any]()
    for stage in found.stages:
        if (one := stage.decisive) is not None:
            other = naive.get(stage.name)
            made[stage.name] = {
                "kernel": _relative(to_float64(one.actual), one.expected),
                "torch": None if other is None else _relative(other.detach().double().cpu().numpy(), one.expected),
            }
    return made


def _relative(actual: np.ndarray, expected: np.ndarray) -> float:
    if actual.shape != expected.shape:
        return float("nan")
    with np.errstate(all="ignore"):
        size = float(np.sqrt(np.mean(np.square(expected))))
        return float(np.sqrt(np.mean(np.square(actual - expected)))) / size if size > 0 else float("nan")


def keep(found: ReferenceDiff, file: Path) -> None:
    """Writes what the kernel made and what was expected of it, by result."""
    kept = dict[str, np.ndarray]()
    for stage in found.stages:
        if (one := stage.decisive) is not None:
            kept |= {f"actual.{stage.name}": to_float64(one.actual), f"expected.{stage.name}": one.expected}
    np.savez(file, allow_pickle=False, **kept)


def apart(before: Path, after: Path, shows: tuple[str, ...]) -> dict[str, Any]:
    """How far the wrong half is from the right one, in errors of the right one: the most of the results that show it,
    or of all where none is called so. `times`: inf where it is not finite and the right one is. `extreme`: above 1,000.
    """
    with np.load(before) as old, np.load(after) as new:
        names = [key.partition(".")[2] for key in new if key.startswith("actual.") and f"actual{key[6:]}" in old]
        names = [name for name in names if name in shows] or names
        times = [_times(*(x[f"{of}.{name}"] for x in (old, new) for of in ("actual", "expected"))) for name in names]
    most = max(times, default=float("nan"))
    return {"times": most, "differs": most > 2, "extreme": most > 1000}


@np.errstate(all="ignore")
def _times(was: np.ndarray, should: np.ndarray, now: np.ndarray, expected: np.ndarray) -> float:
    """The largest difference of two errors, in the largest error of the right half. What was expected differs, too,
    where the reference is what was wrong.
    """
    if was.shape != now.shape:
        return float("inf")
    wrong = expected + (was - should)
    known = np.isfinite(now) & np.isfinite(expected)
    if not known.any():
        return float("nan")
    if not np.isfinite(wrong[known]).all():
        return float("inf")
    right, size = np.abs(now - expected)[known].max(), np.abs(expected)[known].max()
    least = max(np.finfo(np.float64).eps * size, np.finfo(np.float64).tiny)  # of a right half without an error
    return float(np.abs(wrong - now)[known].max() / max(right, least))
