"""A call replayed from a CUDA graph: the same bits as called, and a function that a graph makes wrong."""

from typing import Any

import pytest

from workbench import Case
from workbench.explore.laws.every import LAWS, held_to, subject

torch = pytest.importorskip("torch", reason="torch is not installed")
pytestmark = pytest.mark.gpu
CASE = Case(heads=4, seqlen=128, head_dim=64, dtype="bfloat16")
GPU: dict[str, Any] = {"arrays": "torch", "device": "cuda", "invariant": True}


def test_a_replay_is_the_call_bit_for_bit() -> None:
    found = held_to(LAWS["graph-replay-is-eager"], subject("torch:scaled_dot_product_attention", CASE, **GPU))
    assert found.held is True, found.lacking


def test_a_function_that_counts_its_calls_is_not() -> None:
    calls = iter(range(10**6))

    def mine(q: Any, k: Any, v: Any, *, scale: float, causal: bool) -> Any:
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, scale=scale * (1 + next(calls)))

    assert held_to(LAWS["graph-replay-is-eager"], subject(mine, CASE, **GPU)).held is False
