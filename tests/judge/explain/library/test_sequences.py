"""Causes in sequences of several lengths."""

import numpy as np
import pytest

from tests.judge.explain.fields import BLOCK, judged, named
from workbench import Case
from workbench.case.memory import cu_seqlens, packed, padded, poison_of
from workbench.judge.explain.patterns import patterns

CASE = Case(heads=2, seqlens_q=(5, 24, 1, 17), seqlens_k=(9, 37, 20, 30), head_dim=8, scale=0.4)
CAUSAL = CASE.but(causal=True)


def seen(case, diagonals=None, lengths=None):
    diagonals = (case.diagonals if diagonals is None else diagonals)[:, None, None, None]
    lengths = (case.lengths_k if lengths is None else lengths)[:, None, None, None]
    keys, rows = np.arange(case.seqlen_k), np.arange(case.seqlen_q)[:, None]
    there = (keys < lengths) & (rows < case.lengths_q[:, None, None, None])
    return there & (keys <= rows + diagonals) if case.causal else there


def starts(case):
    return cu_seqlens(case.lengths_k)[:-1]


def from_packed(case, x, begins):
    """Keys of each sequence from somewhere in packed memory, which begins anew behind its end."""
    memory = packed(x, case.lengths_k)
    places = (begins[:, None] + np.arange(case.seqlen_k)) % len(memory)
    return np.moveaxis(memory[places], 2, 1)


def aligned(diagonals):
    return {"visible": lambda c, r, right: seen(c, diagonals(c))}


def of_lengths(lengths, memory="packed", diagonals=None):
    """Of a kernel that takes other lengths, and reads what memory holds behind the end of a sequence."""

    def taken(case):
        return np.clip(lengths(case), 0, case.seqlen_k)

    def rows(x):
        def read(case, inputs, own):
            if memory == "zeros":
                return own
            if memory == "poisoned":
                behind = padded(inputs[x], case.lengths_k, poison_of(case), case.seed)
            else:
                behind = from_packed(case, inputs[x], starts(case))
            # behind the last sequence lies nothing
            left = case.lengths_k.sum() - starts(case) if memory == "packed" else case.seqlen_k
            inside = np.arange(case.seqlen_k) < np.minimum(taken(case), left)[:, None]
            return np.where(inside[:, None, :, None], behind, own)

        return read

    def visible(case, inputs, right):
        return seen(case, None if diagonals is None else diagonals(case, taken(case)), taken(case))

    return {"visible": visible, "k": rows("k"), "v": rows("v")}


def begun(begins):
    return {x: lambda c, r, own, x=x: from_packed(c, r[x], begins(c)) for x in "kv"}


def queries_from_keys(case, read, own):
    """Queries from where the keys of their sequence begin; behind memory lies nothing."""
    memory = packed(read["q"], case.lengths_q)
    places = starts(case)[:, None] + np.arange(case.seqlen_q)
    inside = places < len(memory)
    rows = np.moveaxis(memory[np.where(inside, places, 0)], 2, 1)
    return np.where(inside[:, None, :, None], rows, np.float32(0))


def followed(case, lengths):
    return lengths - case.lengths_q


def corner(case, lengths):
    return 0 * lengths + case.seqlen_k - case.seqlen_q


FAULTS = {
    "top-left": (CAUSAL, aligned(lambda c: 0 * c.diagonals)),
    "largest": (CAUSAL, aligned(lambda c: 0 * c.diagonals + c.seqlen_k - c.seqlen_q)),
    "length-largest-zeros": (CASE, of_lengths(lambda c: 0 * c.lengths_k + c.seqlen_k, "zeros")),
    "length-largest-zeros-corner": (CAUSAL, of_lengths(lambda c: 0 * c.lengths_k + c.seqlen_k, "zeros", corner)),
    "length-largest-poisoned": (CASE.but(seed=2), of_lengths(lambda c: 0 * c.lengths_k + c.seqlen_k, "poisoned")),
    "length+1-packed": (CASE, of_lengths(lambda c: c.lengths_k + 1)),
    "length+1-packed-followed": (CAUSAL, of_lengths(lambda c: c.lengths_k + 1, diagonals=followed)),
    "length-1-packed": (CASE, of_lengths(lambda c: c.lengths_k - 1)),
    "length-next-packed": (CASE, of_lengths(lambda c: np.roll(c.lengths_k, -1))),
    "length-previous-packed": (CASE, of_lengths(lambda c: np.roll(c.lengths_k, 1))),
    "length-of-queries-packed": (CASE, of_lengths(lambda c: c.lengths_q)),
    "start-1-kv-around": (CASE, begun(lambda c: starts(c) - 1)),
    "start+1-kv-around": (CASE, begun(lambda c: starts(c) + 1)),
    "start-of-keys": (CASE, {"q": queries_from_keys}),
    "length-of-tiles-zeros": (CASE, of_lengths(lambda c: -(-c.lengths_k // BLOCK) * BLOCK, "zeros")),
    "start-next-kv-around": (CASE, begun(lambda c: np.roll(starts(c), -1))),
}


@pytest.mark.campaign(but=2)
@pytest.mark.parametrize("wrong", FAULTS)
def test_a_fault_is_named(wrong):
    assert f"sequences.{wrong}" in named(*FAULTS[wrong])


@pytest.mark.campaign(but=1)
@pytest.mark.parametrize("wrong", ["largest", "length+1-packed-followed", "length-largest-poisoned"])
def test_a_fault_is_named_from_out_and_lse(wrong):
    assert f"sequences.{wrong}" in named(*FAULTS[wrong], dump=False)


@pytest.mark.campaign
def test_the_cause_is_proved_on_fresh_cases():
    (cause,) = judged(CASE, FAULTS["start-1-kv-around"][1]).explain().causes
    assert cause.id == "sequences.start-1-kv-around" and cause.proved and cause.trial.held
    assert len(cause.trial.case.seqlens_k) == cause.trial.case.batch


def test_what_is_in_no_family_has_its_pattern_though_each_sequence_has_its_own_diagonal():
    def odd(case, read, right):
        return np.where(np.arange(case.seqlen_k) % 2 == 1, right + np.float32(1), right)

    d = judged(CAUSAL, {"scores": odd})
    first, *_ = patterns(d.run, d["scores"])
    assert d.origins == ("scores",) and "keys with k % 2 == 1" in first.text
