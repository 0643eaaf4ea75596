"""Two runs of one model, call by call: each call of both is held against float64 on its own inputs, so that what
differs is a bug of one side, what the inputs differed by already, or rounding, and of which kind.

With e a side's out less what float64 makes of its own inputs: own = e_a - e_b arises in the call, and the rest of
out_a - out_b was carried to it.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from workbench.case.stages import OUT
from workbench.floats import to_float64
from workbench.judge.against import passes
from workbench.judge.against.asked import apart_in_rows, asked_otherwise, in_one_form
from workbench.judge.against.departure import Departure, departure, distance, first_departure
from workbench.judge.against.held import CACHED, Held, changed, held, kept
from workbench.judge.against.question import Cut, Question, question
from workbench.judge.against.runs import CallPair, Cause, OfCall, Runs
from workbench.judge.against.shares import Share, errors, shares
from workbench.judge.diff import Diff, diff
from workbench.reference.stage import reads
from workbench.refusal import Refusal
from workbench.trace.file import load
from workbench.trace.join import SUFFIX
from workbench.trace.trace import Trace

#: number of a call -> reads its trace
Calls = Mapping[int, Callable[[], Trace]]


def compare_runs(a: str | Path | Mapping[int, Trace], b: str | Path | Mapping[int, Trace]) -> Runs:
    """Two captured runs of one model held against each other, call by call.

    `a` and `b` are folders of `capture(..., keep="all")`, or traces by the number of their call (`load_dump`). Calls
    of one number are a pair.

    Refusal for a folder without calls, no call that both have, and calls of different shapes.

    >>> import torch
    >>> from tempfile import TemporaryDirectory
    >>> from workbench import capture
    >>> def attend(q, k, v):
    ...     return torch.softmax(q @ k.mT / q.shape[-1] ** 0.5, -1) @ v
    >>> with TemporaryDirectory() as folder:
    ...     for size in (1, 2):
    ...         with capture(attend, f"{folder}/{size}", spec="sdpa", keep="all") as c:
    ...             _ = c.function(*torch.full((3, 1, 2, 16, 8), float(size)))
    ...     found = compare_runs(f"{folder}/1", f"{folder}/2")
    >>> found.first.call, found.verdict
    (0, 'differs')
    """
    sides, how = _in_passes(*map(_calls, (a, b)))
    names = [str(x) if isinstance(x, str | Path) else name for x, name in zip((a, b), "AB", strict=True)]
    both = [call for call in sides[0] if call in sides[1]]
    if not both:
        raise Refusal(
            f"{names[0]} and {names[1]} have no call in common: {_numbers(sides[0])} and {_numbers(sides[1])}; capture "
            "both with the same sample and seed"
        )
    pairs: list[CallPair] = []
    causes: dict[str, Cause] = {}
    elsewhere: dict[int, str] = {}
    caches: tuple[dict[int, Held], ...] = ({}, {})
    for call in both:
        judged = [diff(side[call]()) for side in sides]
        asked = _asked(call, judged[0], judged[1])
        if isinstance(asked, str):
            elsewhere[call] = asked
            continue
        pair = _pair(call, judged[0], judged[1], *asked)
        for cache, found, one in zip(caches, judged, asked, strict=True):
            cache[call] = held(found.run.dequantised, np.unique(one.places[one.read]))
        for name, found in zip("AB", judged, strict=True):
            earlier = any(name in one.wrong for one in pairs)
            if name in pair.wrong and not earlier and (cause := _cause(found)) is not None:
                causes[name] = cause
        pairs.append(pair)
    if elsewhere:
        first = f"{_numbers(elsewhere)}: the captured parts have no rows in common, {[*elsewhere.values()][0]}"
        if not pairs:
            raise Refusal(f"{first}; capture both with the same seed")
    departed = _departed(pairs, sides, caches)
    alone = (
        [
            f"{name} alone has {_numbers(only)}"
            for name, side in zip(names, sides, strict=True)
            if (only := [call for call in side if call not in both])
        ]
        + ([first] if elsewhere else [])
        + how
    )
    folders = not any(isinstance(x, Mapping) for x in (a, b))
    return Runs(names[0], names[1], tuple(pairs), tuple(alone), causes, departed, folders)


def _calls(given: str | Path | Mapping[int, Trace]) -> Calls:
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
            raise Refusal(f"{path}: the file name of a call must be its number")
        found[int(path.stem)] = lambda path=path: load(path)
    return dict(sorted(found.items()))


def _in_passes(a: Calls, b: Calls) -> tuple[list[Calls], list[str]]:
    """Both runs with the calls of each layer joined where their passes are of other lengths, and that in words."""
    if not a or not b or [a[next(iter(a))]().case.seqlen_q, len(a)] == [b[next(iter(b))]().case.seqlen_q, len(b)]:
        return [a, b], []
    runs = [{call: read() for call, read in side.items()} for side in (a, b)]
    if not passes.differ(*runs):
        return [a, b], []
    made = [passes.joined(run, side) for run, side in zip(runs, "AB", strict=True)]
    counts = [len(run) // len(one) for run, one in zip(runs, made, strict=True)]
    how_many = " and ".join(f"{n} in {name}" for name, n in zip("AB", counts, strict=True))
    said = f"passes over the tokens: {how_many}; the calls of each layer are joined"
    return [_calls(one) for one in made], [said]


def _numbers(calls: Iterable[int]) -> str:
    found = [*calls]
    more = f" and {len(found) - 5} more" if len(found) > 5 else ""
    return f"call{'s' * (len(found) > 1)} {', '.join(map(str, found[:5]))}{more}"


def _asked(call: int, a: Diff, b: Diff) -> tuple[Question, Question] | str:
    """What both ask, in one form; or, in words, the parts of the call that were captured, where these have no rows in
    common.
    """
    told = [passes.told(found.trace.notes)[1] for found in (a, b)]
    cuts: list[Cut | None] = [None, None]
    if told[0] != told[1]:
        parts = [_part(found, said) for found, said in zip((a, b), told, strict=True)]
        common = [np.intersect1d(x, y) for x, y in zip(*parts, strict=True)]
        if not all(len(x) for x in common):
            return " and ".join(told)
        cuts = [Cut(*(np.searchsorted(x, y) for x, y in zip(part, common, strict=True))) for part in parts]
    one, other = (question(found.run.dequantised, cut) for found, cut in zip((a, b), cuts, strict=True))
    return in_one_form(one, other, f"call {call}")


def _part(found: Diff, told: str) -> tuple[np.ndarray, ...]:
    """The batches, heads and queries of a call that were captured, as its notes tell; all where these tell no other."""
    case = found.run.case
    part = re.fullmatch(r"batch (\d+), heads? (\d+)(?: to \d+)?, queries (\d+) to \d+(?: in steps of (\d+))?", told)
    batch, head, first, step = (int(x or 1) for x in part.groups()) if part else (0, 0, 0, 1)
    return (
        batch + np.arange(case.batch),
        head + np.arange(case.heads),
        first + step * np.arange(case.seqlen_q),
    )


def _pair(call: int, a: Diff, b: Diff, one: Question, other: Question) -> CallPair:
    for name, run in (("A", a.run), ("B", b.run)):
        if OUT not in run.whole:
            raise Refusal(f"call {call} of {name} has no complete out to compare")
    used = (one.asked & other.asked)[..., None]

    def rows(x: np.ndarray, of: Question) -> np.ndarray:
        return np.where(used, of.rows(x), 0.0)

    outs = [rows(found.run.dumped[OUT], of) for found, of in ((a, one), (b, other))]
    expected = [rows(_expected(found), of) for found, of in ((a, one), (b, other))]
    difference = outs[0] - outs[1]
    carried = expected[0] - expected[1]
    sides = [_side(found) for found in (a, b)]
    found: tuple[Share, ...] = ()
    if sides[0].right and sides[1].right and np.any(difference - carried):
        of = [errors(one.run, _expected(one)) for one in (a, b)]
        if of[0] is not None and of[1] is not None:
            found = tuple(shares(of[0].as_rows(lambda x: rows(x, one)), of[1].as_rows(lambda x: rows(x, other))))
    apart = distance(one, other, outs)
    return CallPair(
        call, sides[0], sides[1], asked_otherwise(one, other, apart.rounding), float(abs(difference).max(initial=0.0)),
        _rms(difference), _rms(carried), _rms(difference - carried), found, apart, passes.told(a.trace.notes)[0],
        all(passes.told(one.trace.notes)[1] in ("", passes.WHOLE) for one in (a, b)),
    )  # fmt: skip


def _departed(
    pairs: Sequence[CallPair], sides: Sequence[Calls], caches: Sequence[Mapping[int, Held]]
) -> Departure | None:
    """Where inputs first differ by more than rounding makes of what came before, or a cache of one side no longer holds
    what it held. Calls behind one that is wrong, or asked otherwise, carry that, and are not looked at.
    """
    parted = (n for n, pair in enumerate(pairs) if pair.wrong or pair.asked)
    calls, until = [pair.call for pair in pairs], next(parted, len(pairs) - 1) + 1
    found = first_departure(calls, [pair.apart for pair in pairs], until)
    lost = next((
        (n, rows) for n, pair in enumerate(pairs[: until if found is None else found[0]])
        if (rows := _lost(pair, sides, caches))
    ), None)  # fmt: skip
    if found is None and lost is None:
        return None
    place, allowed = found if lost is None else (lost[0], 2 * pairs[lost[0]].apart.rounding)  # type: ignore[misc]
    call, behind = calls[place], calls[place - 1] if place else None
    new: bool | None = behind is None or pairs[place].apart.tokens != pairs[place - 1].apart.tokens
    if behind is not None and not (pairs[place].whole and pairs[place - 1].whole):
        behind = new = None  # what was right of another part tells nothing of this one
    asked = _asked(call, diff(sides[0][call]()), diff(sides[1][call]()))
    assert not isinstance(asked, str)
    of_sides = [partial(kept, cache, call) for cache in caches]
    return departure(
        (call, behind), new, *asked, allowed, of_sides, None if lost is None else lost[1], pairs[place].apart.out
    )


def _lost(pair: CallPair, sides: Sequence[Calls], caches: Sequence[Mapping[int, Held]]) -> dict[str, list[int]]:
    """The rows of k and v that one side alone holds otherwise than in an earlier call, by more than rounding."""
    found: dict[str, list[int]] = {}
    for name in CACHED:
        both = [one for cache in caches if (one := changed(cache, pair.call, name)) is not None]
        for side, one, other in zip(sides, both, both[::-1], strict=False) if len(both) == len(sides) else ():
            if places := sorted(one.places - other.places):
                x, y = (_rows_of(diff(side[call]()), name, places) for call in (one.since, pair.call))
                far = apart_in_rows(x, y, np.ones(x.shape[:2], bool)).max(0) > 2 * pair.apart.rounding
                found[name] = found.get(name, []) + [at for at, is_far in zip(places, far, strict=True) if is_far]
    return {name: rows for name, rows in found.items() if rows}


def _rows_of(found: Diff, name: str, places: Sequence[int]) -> np.ndarray:
    x = to_float64(found.run.dequantised.trace.inputs[name])
    return x.reshape(-1, *x.shape[2:])[:, places]


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
