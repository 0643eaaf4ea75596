"""Causes in a score_mod."""

import numpy as np
import pytest

from tests.judge.explain.fields import named
from workbench import Case
from workbench.case import masks


def steered(score, b, h, q_idx, kv_idx):
    return 2 * np.tanh(score / 2) + 0.05 * (kv_idx - q_idx)


CASE = Case(heads=4, kv_heads=2, seqlen_q=20, seqlen_k=37, head_dim=8, scale=0.4, causal=True, score_mod=steered)


def scaled(case, read, scale):
    k = np.repeat(read["k"], case.heads // case.kv_heads, 1)
    return read["q"] @ k.swapaxes(-1, -2) * np.float32(scale)


def made(case, scores):
    return masks.modified(case, scores).astype(np.float32)


FAULTS = {
    "none": {"modified": lambda c, r, x: scaled(c, r, c.scale)},
    "twice": {"modified": lambda c, r, x: made(c, x)},
    "before-scale": {"modified": lambda c, r, x: made(c, scaled(c, r, 1)) * np.float32(c.scale)},
    "after-mask": {"scores": lambda c, r, x: np.where(c.mask(), x, made(c, np.full_like(x, -np.inf)))},
}


@pytest.mark.parametrize("dump", [True, False])
@pytest.mark.parametrize("wrong", FAULTS)
def test_a_fault_is_named(wrong, dump):
    assert f"mods.{wrong}" in named(CASE, FAULTS[wrong], dump=dump)
