"""Functions whose parameters are others than what they are called with."""

from typing import Any

import pytest

from tests.refusals import MISSING_KEYWORD, refusal
from workbench import Case, run

CASE = Case(seqlen=4, head_dim=8)


def of_flash_attn(q: Any, k: Any, v: Any, *, softmax_scale: float, causal: bool) -> Any: ...
def of_torch(q: Any, k: Any, v: Any, attn_mask: Any = None, *, is_causal: bool = False, scale: float = 1.0) -> Any: ...
def of_three(q: Any, k: Any, v: Any) -> Any: ...
def of_masks(q: Any, k: Any, v: Any, mask: Any, *, scale: float, causal: bool) -> Any: ...
def of_reduce(partial_O: Any, partial_sum: Any, *, scale: float) -> Any: ...


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (
            of_flash_attn,
            "of_flash_attn(q: Any, k: Any, v: Any, *, softmax_scale: float, causal: bool) -> Any is called with q, k, v and "
            f"the keywords scale, causal: {MISSING_KEYWORD}: 'softmax_scale'; wrap a function that takes "
            "others:\n  def attention(q, k, v, *, scale, causal):\n"
            "      return of_flash_attn(q, k, v, softmax_scale=scale, causal=causal)",
        ),
        (
            of_torch,
            "of_torch(q: Any, k: Any, v: Any, attn_mask: Any = None, *, is_causal: bool = False, scale: float = 1.0) -> Any "
            "is called with q, k, v and the keywords scale, causal: got an unexpected keyword argument 'causal'; wrap a "
            "function that takes others:\n  def attention(q, k, v, *, scale, causal):\n"
            "      return of_torch(q, k, v, scale=scale, is_causal=causal)",
        ),
        (
            of_three,
            "of_three(q: Any, k: Any, v: Any) -> Any is called with q, k, v and the keywords scale, causal: got an "
            "unexpected keyword argument 'scale'; wrap a function that takes others:\n"
            "  def attention(q, k, v, *, scale, causal):\n      return of_three(q, k, v)",
        ),
        (
            of_masks,
            "of_masks needs mask, which the inputs do not hold: pass it with --inputs FILE, or give it a default",
        ),
        (
            of_reduce,
            "of_reduce(partial_O: Any, partial_sum: Any, *, scale: float) -> Any is called with partial_O, partial_sum and "
            "the keywords scale, causal: got an unexpected keyword argument 'causal'; wrap a function that takes "
            "others:\n  def attention(*, partial_O, partial_sum, scale, causal):\n"
            "      return of_reduce(partial_O=partial_O, partial_sum=partial_sum, scale=scale)",
        ),
    ],
)
def test_they_are_refused_before_they_are_called(function: Any, message: str) -> None:
    assert refusal(run, function, CASE) == message
