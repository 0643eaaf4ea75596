"""Two runs of one model, call by call: each call of both is held against float64 on its own inputs, so that what
differs is a bug of one side, what the inputs differed by already, or rounding, and of which kind.

With e a side's out less what float64 makes of its own inputs: own = e_a - e_b arises in the call, and the rest of
out_a - out_b was carried to it.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import numpy as np

from workbench.case.masks import spread, visible
from workbench.case.stages import INPUTS, OUT
from workbench.expectation.observed import Observed
from workbench.judge.against.runs import CallPair, Cause, OfCall, Runs
from workbench.judge.against.shares import Share, errors, shares
from workbench.judge.diff import Diff, diff
from workbench.reference.stage import reads
from workbench.refusal import Refusal
from workbench.trace.file import load
from workbench.trace.join import SUFFIX
from workbench.trace.trace import Trace

#: fields of a case that say what is computed, and not how large it is
ASKED = ("scale", "softcap")


def compare_runs(a: str | Path | Mapping[int, Trace], b: str | Path | Mapping[int, Trace]) -> Runs:
    """Two captured runs of one model held against each other, call by call.

    `a` and `b` are folders of `capture(..., keep="all")`, or traces by the number of their call (`load_dump`). Calls
    of one number are a pair.

    Refusal for a folder without calls, no call that both have, and calls of different shapes.
    """
    sides = [_calls(x) for x in (a, b)]
    names = [str(x) if isinstance(x, str | Path) else name for x, name in zip((a, b), "AB", strict=True)]
    both = [call for call in sides[0] if call in sides[1]]
    if not both:
        raise Refusal(
            f"{names[0]} and {names[1]} have no call in common: {_numbers(sides[0])} and {_numbers(sides[1])}; capture "
            "both with the same sample and seed"
        )
    pairs: list[CallPair] = []
    causes: dict[str, Cause] = {}
    for call in both:
        runs = [Observed(side[call]()) for side in sides]
        _check_alike(call, *runs)
        judged = [diff(run.trace) for run in runs]
        pair = _pair(call, *judged)
        for name, found in zip("AB", judged, strict=True):
            earlier = any(name in one.wrong for one in pairs)
            if name in pair.wrong and not earlier and (cause := _cause(found)) is not None:
                causes[name] = cause
        pairs.append(pair)
    alone = [
        f"{name} alone has {_numbers(only)}"
        for name, side in zip(names, sides, strict=True)
        if (only := [call for call in side if call not in both])
    ]
    folders = not any(isinstance(x, Mapping) for x in (a, b))
    return Runs(names[0], names[1], tuple(pairs), tuple(alone), causes, folders)


def _calls(given: str | Path | Mapping[int, Trace]) -> dict[int, Callable[[], Trace]]:
    """The calls of one side by number, in their order; each is read when it is wanted."""
    if isinstance(given, Mapping):
        return {call: lambda trace=trace: trace for call, trace in sorted(given.items())}  # type: ignore[misc]
    folder = Path(given)
    if not folder.is_dir():
        raise Refusal(f"{folder}: no such folder")
    files = sorted((folder / "calls").glob(f"*{SUFFIX}"))
    if not files:
        raise Refusal(f'{folder} has no calls/*{SUFFIX}: capture with keep="all" writes them')
    found = {}
    for path in files:
        if re.fullmatch(r"\d+", path.stem) is None:
            raise Refusal(f"{path}: a call is named by its number")
        found[int(path.stem)] = lambda path=path: load(path)
    return dict(sorted(found.items()))


def _numbers(calls: Iterable[int]) -> str:
    found = [*calls]
    more = f" and {len(found) - 5} more" if len(found) > 5 else ""
    return f"call{'s' * (len(found) > 1)} {', '.join(map(str, found[:5]))}{more}"


def _check_alike(call: int, a: Observed, b: Observed) -> None:
    """Refusal where two calls are of different shapes, or lack out."""
    for name, run in (("A", a), ("B", b)):
        if OUT not in run.whole:
            raise Refusal(f"call {call} of {name} holds no whole out, which both sides are compared by")
    shapes = [{x: run.trace.inputs[x].shape for x in INPUTS if x in run.trace.inputs} for run in (a, b)]
    if shapes[0] != shapes[1]:
        said = " and ".join(str({x: list(shape) for x, shape in one.items()}) for one in shapes)
        raise Refusal(
            f"call {call} has other shapes on both sides, {said}: the two runs are not of one model on the same tokens"
        )


def _pair(call: int, a: Diff, b: Diff) -> CallPair:
    outs = [found.run.dumped[OUT].astype(np.float64) for found in (a, b)]
    expected = [_expected(found) for found in (a, b)]
    difference = outs[0] - outs[1]
    carried = expected[0] - expected[1]
    sides = [_side(found) for found in (a, b)]
    found: tuple[Share, ...] = ()
    if sides[0].right and sides[1].right and np.any(difference - carried):
        of = [errors(one.run, made) for one, made in zip((a, b), expected, strict=True)]
        if of[0] is not None and of[1] is not None:
            found = tuple(shares(of[0], of[1]))
    return CallPair(
        call, sides[0], sides[1], _asked(a.run, b.run), float(abs(difference).max()),
        _rms(difference), _rms(carried), _rms(difference - carried), found,
    )  # fmt: skip


def _expected(found: Diff) -> np.ndarray:
    """Out in float64, of the inputs of a run alone."""
    of = found[OUT].propagated
    assert of is not None
    return np.asarray(of.expected)


def _side(found: Diff) -> OfCall:
    decisive = (stage.decisive for stage in found.stages)
    worst = (one.summary.worst for one in decisive if one is not None)
    over_budget = max((float(one.over_budget) for one in worst if one is not None), default=0.0)
    of_file = found.trace.called_with.trace if found.trace.called_with.mapping is None else None
    return OfCall(found.verdict, found.origin, over_budget, found.doubt, of_file or "")


def _asked(a: Observed, b: Observed) -> dict[str, tuple[str, str]]:
    """What the two calls asked otherwise."""
    found = {}
    for name in ASKED:
        values = [getattr(run.case, name) for run in (a, b)]
        if values[0] != values[1]:
            found[name] = tuple("none" if x is None else f"{x:.6g}" for x in values)
    seen = [spread(run.case, visible(run.case, run.trace.inputs)) for run in (a, b)]
    if not np.array_equal(seen[0], seen[1]):
        hidden = [f"{int(x.size - x.sum()):,} of {x.size:,} keys hidden" for x in seen]
        found["mask"] = (hidden[0], hidden[1])
    return found  # type: ignore[return-value]


def _cause(found: Diff) -> Cause | None:
    """What explains a wrong call best; None where nothing of the library does."""
    causes = found.explain().causes
    if not causes:
        return None
    changed = causes[0].members[0].stages
    return Cause(_stage(found, changed[0] if changed else causes[0].stage), causes[0].text, len(causes[0].rivals))


def _stage(found: Diff, name: str) -> str:
    """The stage `name`, or of a parameter, such as the scale, the first that reads it."""
    table = found.run.table
    readers = (one for one in table if table[one].dumped and name in reads(table[one].step))
    return name if name not in table or table[name].dumped else next(readers, name)


def _rms(x: np.ndarray) -> float:
    return float(np.sqrt(np.mean(x**2)))
