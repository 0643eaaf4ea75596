"""The smallest case that fails, in lines and as a document: what it shares with the start, and its boundaries."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from workbench.case.case import Case
from workbench.case.fields import name_of
from workbench.cuda.faults.catalogue import CATALOGUE
from workbench.expectation.observed import Observed
from workbench.explore.shrink.attempts import MAJORITY_OF, Outcome
from workbench.explore.shrink.boundary import Boundary
from workbench.explore.shrink.shrink import Shrunk
from workbench.explore.shrink.space import FEATURES, elements
from workbench.records import number
from workbench.refusal import Refusal
from workbench.report.command import diff_command
from workbench.trace.headline import headline
from workbench.work import ENDED

#: coordinates whose name is not that of a field of a case
_NAMES = {
    "group": "query heads per kv head",
    "window_left": "window to the left",
    "window_right": "window to the right",
}
#: length -> the tile that cuts it
_CUT_BY = {"seqlen_q": "block_q", "seqlen_k": "block_k"}
#: what a case has or has not, whose name is not that of a field
_FEATURES = {"alibi_slopes": "ALiBi", "dropout_p": "dropout", "page_size": "pages"}
#: coordinates that follow from head_dim where they are None
_USUAL = {"scale": "1/sqrt(head_dim)", "head_dim_v": "head_dim"}
_ENDED = {"done": "", "interrupt": "; interrupted", **ENDED}


def lines(found: Shrunk) -> list[str]:
    """All that was found, a line each."""
    size, before = elements(found.smallest), elements(found.start.trace.case)
    made = [
        f"start: {headline(found.start.trace)}",
        f"smallest: {headline(found.judged.trace)}",
        f"  {size} elements in q, k and v, down from {before}",
        *(f"  {line}" for line in _plain_inputs(found)),
        f"  {_same(found)}",
    ]
    if found.majority:
        many = f"each case ran up to {MAJORITY_OF} times, the majority decides"
        made.append(f"  failed in {found.failed} of {found.runs} runs on the same inputs; {many}")
    if found.boundaries:
        made += [
            "boundaries, changing one field of the smallest case at a time:",
            *(f"  {x}" for x in boundary_lines(found)),
        ]
    made.append(f"{found.evaluations} runs in {found.seconds:.1f} s{_ENDED[found.ended]}")
    if command := _command(found):
        made.append(f"repeat: {command}")
    return made


def boundary_lines(found: Shrunk) -> list[str]:
    """What is said of the boundaries, a line each; of what fails with all values together."""
    free = [one for one in found.boundaries if one.counts and {*one.tried.values()} == {Outcome.FAILS}]
    said = [_boundary(one, found.smallest) for one in found.boundaries if one not in free]
    if free:
        each = (f"{_named(one)} {_ranges(one.values(Outcome.FAILS))}" for one in free)
        said.append(f"fails with every tried value of: {'; '.join(each)}")
    return said


def document(found: Shrunk) -> dict[str, Any]:
    """The document `workbench.shrink/1`.

    - `start`, `smallest`: the given case, and the smallest with the same failure
    - `elements`: numbers in q, k and v of both
    - `inputs`: q, k and v of the smallest as numbers; `null` if its distribution draws them
    - `origin`, `kind`, `cause`: the first wrong stage, how it is wrong, and why
    - `failed`, `runs`, `majority`: how often the start failed; whether each case ran several times
    - `boundaries`: a record for each coordinate
    - `evaluations`: runs that were judged
    - `ended`, `complete`: `done`, `effort`, `seconds` or `interrupt`; whether all was tried
    - `command`, `test`: reproduce the smallest case: a command, and a file of pytest
    """
    trace = found.start.trace
    try:
        test: str | None = found.test()
    except Refusal:  # of a callable, which no file can name
        test = None
    return {
        "schema": "workbench.shrink/1",
        "target": trace.target,
        "faults": list(trace.faults),
        "backend": trace.backend,
        "start": number(trace.case.as_dict()),
        "smallest": number(found.smallest.as_dict()),
        "inputs": None if found.inputs is None else {name: x.tolist() for name, x in found.inputs.items()},
        "elements": {"start": elements(trace.case), "smallest": elements(found.smallest)},
        "origin": found.origin,
        "kind": found.kind,
        "cause": None if found.cause is None else number(found.cause.as_dict()),
        "failed": found.failed,
        "runs": found.runs,
        "majority": found.majority,
        "boundaries": [_boundary_document(one) for one in found.boundaries],
        "evaluations": found.evaluations,
        "seconds": found.seconds,
        "ended": found.ended,
        "complete": found.complete,
        "command": _command(found),
        "test": test,
    }


def _command(found: Shrunk) -> str:
    """The command that judges the smallest case again; empty where there is none, such as for a fault that it gives
    other options, since it shows best with these.
    """
    faults = [CATALOGUE[name] for name in found.start.trace.faults if name in CATALOGUE]
    needs = {name: value for fault in faults for name, value in fault.needs.items()}
    kept = all(getattr(found.smallest, name) == value for name, value in needs.items())
    drawn = Observed(replace(found.judged.trace, case=found.smallest))  # which fails on its own inputs, too
    return diff_command(replace(found.judged, run=drawn)) if kept else ""


def _boundary_document(one: Boundary) -> dict[str, Any]:
    """Each of `boundaries` of `workbench.shrink/1`.

    - `name`, `at`: the coordinate, and its smallest value
    - `fails`, `otherwise`, `passes`, `refused`: the values that were tried; `otherwise`: it fails differently
    - `monotone`: whether failures lie on one side
    """
    each = {outcome.name.lower(): [_plain(x) for x in one.values(outcome)] for outcome in Outcome}
    return {"name": one.name, "at": _plain(one.at), **each, "monotone": one.monotone}


def _plain(value: Any) -> Any:
    """A value of a coordinate for JSON."""
    return name_of(value) if callable(value) else value


def _same(found: Shrunk) -> str:
    """What the smallest case shares with the start."""
    if found.cause is None:
        of_start = found.of_start
        why = "no cause found" if of_start is None else f"cause of the initial case only: {of_start.text}"
        return f"both cases: first wrong stage {found.origin} ({found.kind}); {why}"
    some = "" if found.cause.stands else " (not confirmed on fresh cases)"
    return f"both cases: first wrong stage {found.origin}; cause: {found.cause.text}{some}"


def _plain_inputs(found: Shrunk) -> Iterator[str]:
    for name, x in (found.inputs or {}).items():
        yield f"{name} = {x.astype(int).tolist()}"


def _boundary(one: Boundary, smallest: Case) -> str:
    groups = [(outcome, values) for outcome in Outcome if (values := one.values(outcome))]
    if one.counts:
        said = "; ".join(f"{x.value} at {_ranges(values)}" for x, values in groups)
        tile = getattr(smallest, _CUT_BY.get(one.name, ""), None)
        cut = f", with {_CUT_BY[one.name]} {tile}" if tile else ""
        return f"{_named(one)}{cut}: {said}{'' if one.monotone else '; not monotone'}"
    if one.name not in FEATURES:
        return f"{one.name}: " + "; ".join(
            f"{x.value} with {', '.join(_USUAL[one.name] if v is None else str(v) for v in some)}" for x, some in groups
        )
    feature = _FEATURES.get(one.name, one.name)
    if len(groups) == 1:
        return f"{groups[0][0].value} with and without {feature}"
    return "; ".join(f"{x.value} {'with' if any(values) else 'without'} {feature}" for x, values in groups)


def _named(one: Boundary) -> str:
    return _NAMES.get(one.name, one.name)


def _ranges(values: Sequence[int]) -> str:
    """Numbers in order, three or more in a row as `1 to 16`.

    >>> _ranges([1, 2, 3, 5, 6, 9])
    '1 to 3, 5, 6, 9'
    """
    runs: list[list[int]] = []
    for value in values:
        if runs and value == runs[-1][-1] + 1:
            runs[-1].append(value)
        else:
            runs.append([value])
    each = ([f"{run[0]} to {run[-1]}"] if len(run) > 2 else [str(n) for n in run] for run in runs)
    return ", ".join(word for words in each for word in words)
