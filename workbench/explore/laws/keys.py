"""Laws of keys: their order, copies and parts."""

import numpy as np

from workbench.case.case import Case
from workbench.explore.laws.codes import IN_TILES, NO_CODES
from workbench.explore.laws.compare import Change, budgets, by_pairs, first, within
from workbench.explore.laws.law import Verdict
from workbench.explore.laws.part import Alike, each, own, sequences
from workbench.explore.laws.run import Rows, Run, smaller, together
from workbench.explore.laws.sinks import merged, moved, off_by, without
from workbench.explore.laws.subject import Subject

PLACED = "the mask or ALiBi tells keys apart by their place"


def keys_permuted(s: Subject) -> Verdict:
    """Keys and values permuted together leave out and lse.

    Those of each sequence of a ragged batch. Preconditions: no causal mask, no window, no ALiBi; several keys; no codes
    with scales of tiles.
    """
    case = s.case
    if _placed(case):
        return PLACED
    if case.seqlen_k == 1:
        return "one key has no other order"
    if s.in_tiles:
        return IN_TILES
    rows = Rows.all(case)
    return first(
        budgets((s.first, rows), (s.whole(k=each(case, "k", s.rng.permutation)), rows)),
        budgets((s.first, rows), (s.whole(k=each(case, "k", lambda n: range(n)[::-1])), rows)),
    )


def keys_repeated(s: Subject) -> Verdict:
    """Every key with its value twice leaves out, and adds log(2) to lse, where that is added to sinks, too.

    Preconditions: no causal mask, no window, no ALiBi.
    """
    if _placed(s.case):
        return PLACED
    if not s.read:
        return NO_CODES
    rows = Rows.all(s.case)
    case, off = moved(s, np.log(2))
    twice = s.part(case, k=each(case, "k", lambda n: [*range(n), *range(n)]))
    changes: dict[str, Change] = {
        "out": lambda x: off_by("out", x, off, rows),
        "lse": lambda x: off_by("lse", x.plus(np.log(2)), off, rows),
    }
    return budgets((s.first, rows), (twice, rows), changes)


def _placed(case: Case) -> bool:
    return case.causal or case.window is not None or case.alibi_slopes is not None


def prefix_alone(s: Subject) -> Verdict:
    """The first rows of a causal run are the causal run of the first keys with the queries that see no others.

    Preconditions: causal, and rows that do not see all keys.
    """
    cuts = cut(s)
    if isinstance(cuts, str):
        return cuts
    case, whole = s.case, Rows.all(s.case)
    alone = s.part(q=own(case, [range(row) for row, _ in cuts]), k=own(case, [range(keys) for _, keys in cuts]))
    found = [whole._replace(b=one.b, q=range(row)) for one, (row, _) in zip(sequences(case), cuts, strict=True)]
    return by_pairs(budgets, s.first, alone, [(rows, rows) for rows in found])


def halves_merged(s: Subject) -> Verdict:
    """Attention over the first keys and over the others, merged by lse, is attention over all.

    Merged in float64, and with the sinks, which the parts are run without. Of a causal run, the rows that see all of
    the first keys: these without a mask, the others with theirs. Preconditions: out and lse are given; no window, no
    ALiBi; several keys.
    """
    case = s.case
    if case.window is not None or case.alibi_slopes is not None or case.seqlen_k == 1 or not s.read:
        return "a window, ALiBi, one key, or no quantised codes: no two parts that could be merged"
    if not {"out", "lse"} <= {*s.first.stages}:
        return "out or lse was not given"
    alone = without(s)
    if isinstance(alone, str):
        return alone
    groups = sequences(case)
    if not case.causal:
        cuts = [(0, one.k // 2) for one in groups]
        parts = (
            s.part(alone, k=own(case, [range(keys) for _, keys in cuts])),
            s.part(alone, k=own(case, [range(keys, one.k) for one, (_, keys) in zip(groups, cuts, strict=True)])),
        )
    else:
        found = cut(s)
        if isinstance(found, str):
            return found
        cuts = found
        # row + diagonal + 1 = keys: the queries from there on see all of the first keys, the others begin a square mask
        rows = own(case, [range(row, one.q if keys else row) for one, (row, keys) in zip(groups, cuts, strict=True)])
        rest = [range(keys, one.k if keys else 0) for one, (_, keys) in zip(groups, cuts, strict=True)]
        parts = (
            s.part(alone.but(causal=False), q=rows, k=own(case, [range(keys) for _, keys in cuts])),
            s.part(alone, q=rows, k=own(case, rest)),
        )
    whole = Rows.all(case)
    return first(
        *(
            _merged(s, parts, whole._replace(b=one.b, q=range(row, one.q)), row)
            for one, (row, keys) in zip(groups, cuts, strict=True)
            if keys
        )
    )


def _merged(s: Subject, parts: tuple[Run, Run], rows: Rows, row: int) -> Verdict:
    """Whether rows, of which `row` is the first of the parts, are what the parts of the keys make together."""
    rows = smaller(rows, s.first, *parts)
    inner = rows._replace(q=range(rows.q.start - row, rows.q.stop - row))
    one, other = ({name: run.bounded(name, inner) for name in ("out", "lse")} for run in parts)
    wanted = merged(s, together(one, other), rows)
    return first(*(within(name, wanted[name], s.first.bounded(name, rows), rows) for name in wanted))


def cut(s: Subject) -> list[tuple[int, int]] | str:
    """Of each of `sequences` a row of a causal run, and the number of keys that the rows before it see, about half of
    both, zeros where there are none; why that is so of all.
    """
    case = s.case
    if not case.causal:
        return "the mask is not causal"
    found = [_cut(one, case.causal_alignment == "bottom-right") for one in sequences(case)]
    if not any(keys for _, keys in found) or not s.read:
        return "no row sees a part of the keys" if s.read else NO_CODES
    return found


def _cut(one: Alike, bottom_right: bool) -> tuple[int, int]:
    seen = np.clip(np.arange(one.q) + 1 + (one.k - one.q) * bottom_right, 0, one.k)  # by row
    rows = [row for row in range(1, one.q) if 0 < seen[row - 1] < min(one.k, seen[row])]
    row = rows[len(rows) // 2] if rows else 0
    return row, int(seen[row - 1]) if rows else 0
