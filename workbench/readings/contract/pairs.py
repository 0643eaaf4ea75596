"""Pairs of keys of one score that a larger maximum treats otherwise, or does not.

Keys of one score weigh the same, to the last bit, but where a key w with a larger score was met between them: what was
there before has the old maximum in its exp, and is rescaled; what comes with w or after it has the new one. Two keys of
opposite values add up to 0 or not: nothing has to be near anything.
"""

from dataclasses import dataclass

import numpy as np

from workbench.readings.contract.subject import Subject

#: calls that may be spent
CALLS = 240
#: how often a pair that is treated otherwise may seem alike by chance
CHANCE = 1e-4
#: scores of w above the others', beyond what lazy rescaling forgives (8 ln 2)
RISES = (6.5, 6.75, 7.0, 7.25, 7.5)
#: and such as any maximum that does not lag follows
SMALL_RISES = (0.25, 0.5, 0.75)
SEED = 5
#: times the difference that a pair has without w
NOISE = 64.0


@dataclass(frozen=True, eq=False)
class Pairs:
    """Whether key b was treated otherwise than the reference key when w was the maximum, [w, b]."""

    differ: np.ndarray
    alike: np.ndarray  #: seen, and never otherwise; neither: not seen
    reference: int


def plan(subject: Subject) -> tuple[int, int] | str:
    """How many w a call has, and how many rounds there may be; or why there are none."""
    rows, keys = len(subject.whole), subject.keys
    if keys < 4 or subject.depth < 2 or subject.width < 2:
        return f"{keys} keys and {subject.depth} dims are too few"
    if rows < 2:
        return f"only {rows} rows see all keys; at least 2 must"
    count = min(subject.depth - 1, rows - 1, keys - 1)
    each = -(-keys // (subject.width - 1)) * -(-keys // count)
    if each * 2 > CALLS:
        return f"{rows} rows that see all {keys} keys would take {2 * each:,} calls or more: use more queries"
    return count, CALLS // each


def looked(subject: Subject, count: int, rounds: int, rises: tuple[float, ...] = RISES) -> Pairs | None:
    """All pairs of a key w and another, `count` w at once, until what is seen by chance only is hardly missed; None
    where so many rounds do not suffice. `rises`: by which w is above the others; of small ones that it is seen at all
    is enough.
    """
    keys, reference = subject.keys, 1
    hits, looks = np.zeros((keys, keys), int), np.zeros((keys, keys), int)
    rng = np.random.default_rng(SEED)
    for one in range(rounds):
        others = rng.permutation(np.delete(np.arange(keys), reference))
        tops = np.zeros(keys, bool)
        tops[others[: (keys + 1) // 3]] = True
        tops[[0, keys - 1]] = True
        for first in range(0, len(others), count):
            _look(subject, others[first : first + count], tops, rng, (hits, looks, reference), rises)
            if rises != RISES and hits.any():
                break
        differ = hits > 0
        few = float(np.quantile(looks[looks > 0], 0.1)) if looks.any() else 0.0
        rate = hits[differ].sum() / looks[differ].sum() if differ.any() else 0.5
        if rises != RISES and differ.any():
            return Pairs(differ, (looks > 0) & ~differ, reference)
        if one and (1 - rate) ** few <= CHANCE:
            return Pairs(differ, (looks > 0) & ~differ, reference)
    return None


def _look(
    subject: Subject,
    ws: np.ndarray,
    tops: np.ndarray,
    rng: np.random.Generator,
    into: tuple[np.ndarray, np.ndarray, int],
    rises: tuple[float, ...],
) -> None:
    """One call for each block of keys that V has room for."""
    hits, looks, reference = into
    rows, keys = len(subject.whole), subject.keys
    high = tops.copy()
    high[ws] = True
    k = np.zeros((keys, subject.depth))
    k[~high, 0] = -1.0
    k[ws, 1 + np.arange(len(ws))] = rng.choice(rises, len(ws))
    q = np.zeros((subject.rows, subject.depth))
    which = rng.permutation(np.arange(rows) % (len(ws) + 1)) - 1  # -1: no w
    q[subject.whole, 0] = rng.integers(16, 65, rows) / 64.0
    some = np.flatnonzero(which >= 0)
    q[subject.whole[some], 1 + which[some]] = 1.0
    read = np.flatnonzero(~high & (np.arange(keys) != reference))
    width = subject.width - 1
    for first in range(0, len(read), width):
        part = read[first : first + width]
        v = np.zeros((keys, subject.width))
        v[reference, : len(part)] = 2.0**14
        v[part, np.arange(len(part))] = -(2.0**14)
        out = abs(subject.ask(q, k, v).out[subject.whole][:, : len(part)])
        if not np.isfinite(out).all():
            continue
        # where a pair is not alike without w, as little can be told of it with w
        noise = NOISE * out[which < 0].max(initial=0.0) * np.exp(-min(rises))
        for at, w in enumerate(ws):
            mine = out[which == at]
            hits[w, part] += (mine > noise).sum(0)
            looks[w, part] += len(mine)
