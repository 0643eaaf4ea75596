"""Laws of keys: their order, copies and parts."""

import numpy as np

from workbench.case.masks import visible
from workbench.explore.laws.compare import budgets, first, within
from workbench.explore.laws.invariant import NO_CODES
from workbench.explore.laws.law import Verdict
from workbench.explore.laws.run import Bounded, Rows, Run, smaller
from workbench.explore.laws.subject import Subject

MASKED = "the mask tells keys apart by their place"


def keys_permuted(s: Subject) -> Verdict:
    """Keys and values permuted together leave out and lse.

    Preconditions: no causal mask and no window; several keys.
    """
    if s.case.causal or s.case.window is not None:
        return MASKED
    if s.case.seqlen_k == 1:
        return "one key has no other order"
    rows = Rows.all(s.case)
    return first(
        budgets((s.first, rows), (s.whole(k=s.rng.permutation(s.case.seqlen_k)), rows)),
        budgets((s.first, rows), (s.whole(k=range(s.case.seqlen_k)[::-1]), rows)),
    )


def keys_repeated(s: Subject) -> Verdict:
    """Every key with its value twice leaves out, and adds log(2) to lse.

    Preconditions: no causal mask and no window.
    """
    if s.case.causal or s.case.window is not None:
        return MASKED
    if not s.read:
        return NO_CODES
    rows, keys = Rows.all(s.case), [*range(s.case.seqlen_k)]
    twice = s.part(k=[*keys, *keys])
    return budgets((s.first, rows), (twice, rows), {"lse": lambda x: x.plus(np.log(2))})


def prefix_alone(s: Subject) -> Verdict:
    """The first rows of a causal run are the causal run of the first keys with the queries that see no others.

    Preconditions: causal, and rows that do not see all keys.
    """
    found = cut(s)
    if isinstance(found, str):
        return found
    last_row, keys = found
    some = range(last_row)
    alone = s.part(q=some, k=range(keys))
    return budgets((s.first, Rows.all(s.case)._replace(q=some)), (alone, Rows.all(s.case)._replace(q=some)))


def halves_merged(s: Subject) -> Verdict:
    """Attention over the first keys and over the others, merged by lse, is attention over all.

    Merged in float64. Of a causal run, the rows that see all of the first keys: these without a mask, the others with
    theirs. Preconditions: lse is given; no window; several keys.
    """
    case = s.case
    if case.window is not None or "lse" not in s.first.stages or case.seqlen_k == 1 or not s.read:
        return "a window, one key, or no lse or codes: no two parts that could be merged"
    if not case.causal:
        keys, some = case.seqlen_k // 2, range(case.seqlen_q)
        parts = s.part(k=range(keys)), s.part(k=range(keys, case.seqlen_k))
    else:
        found = cut(s)
        if isinstance(found, str):
            return found
        row, keys = found
        # row + diagonal + 1 = keys: the queries from there on see all of the first keys, the others begin a square mask
        some = range(row, case.seqlen_q)
        parts = (
            s.part(case.but(causal=False), q=some, k=range(keys)),
            s.part(q=some, k=range(keys, case.seqlen_k)),
        )
    rows = smaller(Rows.all(case)._replace(q=some), s.first, *parts)
    if "out" not in s.first.stages:
        return "out was not given"
    own = rows._replace(q=range(rows.q.start - some.start, rows.q.stop - some.start))
    merged = _merged(parts, own)
    return first(*(within(name, merged[name], s.first.bounded(name, rows), rows) for name in ("out", "lse")))


def _merged(parts: tuple[Run, Run], rows: Rows) -> dict[str, Bounded]:
    """Out and lse of two parts of the keys together.

    With lse off by e1 and e2, at most b1 and b2, the weight w1 = 1 / (1 + exp(lse2 - lse1)) is off by at most
    w1 w2 (exp(b1 + b2) - 1), and so is w2 the other way; lse, a weighted mean of exponentials, by at most max(b1, b2).
    """
    (o1, o2), (l1, l2) = ([run.bounded(name, rows) for run in parts] for name in ("out", "lse"))
    w1 = (1 / (1 + np.exp(l2.value - l1.value)))[..., None]
    w2 = 1 - w1
    off = w1 * w2 * np.expm1(l1.off + l2.off)[..., None]
    out = Bounded(
        w1 * o1.value + w2 * o2.value,
        w1 * o1.off + w2 * o2.off + off * (abs(o1.value - o2.value) + o1.off + o2.off),
    )
    return {"out": out, "lse": Bounded(np.logaddexp(l1.value, l2.value), np.maximum(l1.off, l2.off))}


def cut(s: Subject) -> tuple[int, int] | str:
    """A row of a causal run, and the number of keys that the rows before it see, about half of both; why there is
    none.
    """
    case = s.case
    if not case.causal:
        return "the mask is not causal"
    seen = visible(case.but(window=None), {}).sum(-1)  # row by row one more, but for those that see none or all
    rows = [int(row) for row in range(1, case.seqlen_q) if 0 < seen[row - 1] < min(case.seqlen_k, seen[row])]
    if not rows or not s.read:
        return "no row sees a part of the keys" if s.read else NO_CODES
    row = rows[len(rows) // 2]
    return row, int(seen[row - 1])
