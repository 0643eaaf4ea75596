"""What two runs are held to: errors that are as large as their budgets, and slots that nobody judges."""

from typing import Any

import numpy as np

from tests.explore.laws.test_fields import PLAIN, RAGGED
from workbench.case.case import Case
from workbench.explore.laws.compare import NOTHING, within
from workbench.explore.laws.every import LAWS, held_to, subject
from workbench.explore.laws.law import Break
from workbench.explore.laws.run import Bounded, Rows

ROWS = Rows([0], [0], range(1))


def test_an_error_as_large_as_its_budget_is_no_break() -> None:
    right, stored = np.full((1, 1, 1), 0.1), np.full((1, 1, 1), 0.100006103515625)
    found = Bounded(stored, stored - right)  # a cast's own error
    for steps, broken in ((1, False), (1 << 8, True)):
        wanted = Bounded(right - steps * np.spacing(0.1), np.zeros(right.shape))
        assert isinstance(within("lse", wanted, found, ROWS), Break) is broken
    for nothing in (np.nan, np.inf):
        broke = within("lse", Bounded(np.full(right.shape, nothing), found.off), found, ROWS)
        assert isinstance(broke, Break) and broke.found == stored
    assert within("lse", Bounded(right, np.full(right.shape, np.nan)), found, ROWS) == NOTHING


def test_bits_of_slots_behind_the_end_of_a_sequence_are_not_compared() -> None:
    random = np.random.default_rng(0)

    def kernel(
        q: Any, k: Any, v: Any, *, scale: float, causal: bool, seqlens_q: Any = None, seqlens_k: Any = None
    ) -> Any:
        scores = random.normal(size=(*q.shape[:3], k.shape[2])).astype(np.float32)
        out = random.normal(size=q.shape).astype(np.float32)
        for b, (n, m) in enumerate(zip(RAGGED.lengths_q, RAGGED.lengths_k, strict=True)):
            scores[b, :, :n, :m] = out[b, :, :n] = 1
        return {"scores": scores, "out": out}

    assert held_to(LAWS["runs-repeat"], subject(kernel, RAGGED)).held is True
    found = held_to(LAWS["runs-repeat"], subject(kernel, Case(**PLAIN)))
    assert found.held is False and found.broke is not None and found.broke.stage == "scores"
