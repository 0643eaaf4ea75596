"""Causes in rows of a tile that are queries of several heads."""

import numpy as np
import pytest

from tests.judge.explain.fields import named
from workbench import Case

CASE = Case(heads=6, kv_heads=2, seqlen_q=20, seqlen_k=37, head_dim=8, causal=True, pack_gqa=True)


def swapped(case, x):
    """Row r of a group is query r // group of head r % group."""
    group, (b, h, n) = case.heads // case.kv_heads, x.shape[:3]
    row = np.arange(group)[:, None] * n + np.arange(n)
    return x.reshape(b, h // group, group, n, *x.shape[3:])[:, :, row % group, row // group].reshape(x.shape)


def seen(case, read, right):
    return swapped(case, np.broadcast_to(right, (case.batch, case.heads, *right.shape[-2:])))


def next_head(case, read, q):
    group = case.heads // case.kv_heads
    return np.roll(q.reshape(case.batch, case.kv_heads, group, *q.shape[2:]), -1, 2).reshape(q.shape)


FAULTS = {
    "swapped-read": {"q": lambda c, r, q: swapped(c, q)},
    "swapped-masked": {"visible": seen},
    "swapped-stored": {x: lambda c, r, y: swapped(c, y) for x in ("out", "lse")},
    "swapped-stored-out": {"out": lambda c, r, y: swapped(c, y)},
    "swapped-read-and-masked": {"q": lambda c, r, q: swapped(c, q), "visible": seen},
    "head+1-read": {"q": next_head},
}


@pytest.mark.parametrize("wrong", FAULTS)
def test_a_fault_is_named_from_out_and_lse(wrong):
    assert f"packing.{wrong}" in named(CASE, FAULTS[wrong], dump=False)


@pytest.mark.parametrize("wrong", ["swapped-read", "swapped-masked", "swapped-stored"])
def test_a_fault_is_named(wrong):
    assert f"packing.{wrong}" in named(CASE, FAULTS[wrong])
