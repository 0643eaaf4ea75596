"""Laws of what stands beside a row: other heads, batches, queries and sequences, and the number of splits.

Any kernel gives the same within its budgets. The same bits are what batch-invariant kernels promise, on which it rests
that inference repeats, and that it is what was trained (He et al. 2025, Defeating nondeterminism in LLM inference):
asked where the kernel claims it, and answered with the first stage whose bits part.
"""

from functools import partial

import numpy as np

from workbench.explore.laws.codes import NO_CODES
from workbench.explore.laws.compare import alike, by_pairs, first
from workbench.explore.laws.law import Verdict
from workbench.explore.laws.part import Arrays, own, part_of, sequences, taken
from workbench.explore.laws.run import Rows
from workbench.explore.laws.subject import Subject

#: sequences of a batch in which those of the case are put, and where
_CROWD, _SEAT = 8, 5


def heads_alone(s: Subject) -> Verdict:
    """The query heads of a kv head give the same without the other heads.

    Preconditions: several kv heads.
    """
    case, group = s.case, s.case.heads // s.case.kv_heads
    if case.kv_heads == 1 or not s.read:
        return NO_CODES if not s.read else "there is only one kv head"
    found = []
    for g in (0, case.kv_heads - 1):
        heads = range(g * group, (g + 1) * group)
        alone = s.part(h=heads, g=[g])
        found.append(alike(s, (s.first, Rows.all(case)._replace(h=heads)), (alone, Rows.all(alone.trace.case))))
    return first(*found)


def batches_alone(s: Subject) -> Verdict:
    """A sequence gives the same without the rest of its batch.

    The first and the last of a batch, each of a ragged one. Preconditions: several sequences.
    """
    if s.case.batch == 1 or not s.read:
        return NO_CODES if not s.read else "there is only one sequence"
    found = []
    for b in range(s.case.batch) if s.case.ragged else (0, s.case.batch - 1):
        alone = s.part(b=[b])
        found.append(alike(s, (s.first, Rows.all(s.case)._replace(b=[b])), (alone, Rows.all(alone.trace.case))))
    return first(*found)


def place_in_batch(s: Subject) -> Verdict:
    """A sequence gives the same at another place in a batch of 8, next to other sequences.

    Preconditions: none.
    """
    if not s.read:
        return NO_CODES
    sequences = [b % s.case.batch for b in range(_CROWD)]
    sequences[_SEAT] = 0
    crowd = s.on(part_of(s.case, b=sequences), _others_negated(taken(s.read, b=sequences), _SEAT))
    seat = Rows.all(s.case)._replace(b=[0])
    return alike(s, (s.first, seat), (crowd, seat._replace(b=[_SEAT])))


def other_sequences_beside_it(s: Subject) -> Verdict:
    """A sequence of a ragged batch gives the same next to longer or shorter sequences with other numbers.

    Preconditions: a ragged batch of several sequences.
    """
    case = s.case
    if not case.ragged or case.batch == 1 or not s.read:
        return NO_CODES if not s.read else "the batch is not ragged, or has one sequence"
    found = []
    for seat in (0, case.batch - 1):
        other = case.but(**{
            name: tuple(n if b == seat else n + 1 if n < most else max(n - 1, 1) for b, n in enumerate(lengths))
            for name, most in (("seqlens_q", case.seqlen_q), ("seqlens_k", case.seqlen_k))
            if (lengths := getattr(case, name)) is not None
        })  # fmt: skip
        beside = s.on(other, _others_negated(s.read, seat))
        rows = Rows.all(case)._replace(b=[seat])
        found.append(alike(s, (s.first, rows), (beside, rows)))
    return first(*found)


def _others_negated(inputs: Arrays, seat: int) -> dict[str, np.ndarray]:
    """Inputs with other keys and values in all sequences but one."""
    found = {**inputs}
    for name in {"k", "v"} & {*inputs}:
        here = (np.arange(len(found[name])) == seat)[:, None, None, None]
        found[name] = np.where(here, found[name], -found[name])
    return found


def rows_alone(s: Subject) -> Verdict:
    """Queries give the same without the others: the last ones if the mask ends at the last key, else the first ones.

    Of a ragged batch those of each sequence. Preconditions: several queries.
    """
    case = s.case
    if case.seqlen_q == 1 or not s.read:
        return NO_CODES if not s.read else "there is only one query"
    last, whole = case.causal_alignment == "bottom-right", Rows.all(case)
    found = []
    for count in dict.fromkeys((1, (case.seqlen_q + 1) // 2)):
        some = [range(max(0, one.q - count), one.q) if last else range(min(count, one.q)) for one in sequences(case)]
        alone = s.part(q=own(case, some))
        pairs = [
            (whole._replace(b=one.b, q=q), whole._replace(b=one.b, q=range(len(q))))
            for one, q in zip(sequences(case), some, strict=True)
        ]
        found.append(by_pairs(partial(alike, s), s.first, alone, pairs))
    return first(*found)


def splits_change_nothing(s: Subject) -> Verdict:
    """Another number of splits gives the same.

    Preconditions: a kernel of ours that takes one.
    """
    if not s.ours or s.case.splits is None:
        return "the kernel takes no number of splits"
    if not s.read:
        return NO_CODES
    rows, found = Rows.all(s.case), []
    for splits in sorted({1, 3, s.case.splits + 1} - {s.case.splits}):
        found.append(alike(s, (s.first, rows), (s.part(s.case.but(splits=splits)), rows)))
    return first(*found)


def tiles_change_nothing(s: Subject) -> Verdict:
    """Other tiles give the same.

    Preconditions: a kernel of ours, whose tiles are options; claimed, since each is another build.
    """
    if not s.ours or not s.claimed:
        return "only for built-in kernels and with --invariant (other tiles are another build)"
    rows = Rows.all(s.case)
    other = s.case.but(block_k=16 if s.case.block_k != 16 else 32)
    return alike(s, (s.first, rows), (s.part(other), rows))
