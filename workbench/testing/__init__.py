"""Attention kernels in a test suite: assertions with derived budgets, strategies of hypothesis, a plugin of pytest.

>>> from workbench import Case
>>> from workbench.testing import assert_attention
>>> assert_attention("flash", Case(seqlen=20, head_dim=16, block_q=16, block_k=16, causal=True)).verdict
'rounding'
"""

from typing import TYPE_CHECKING, Any

from workbench.lazy import attribute

if TYPE_CHECKING:
    from workbench.explore.strategies import awkward_values, cases, tensors
    from workbench.testing.arrays import assert_attention_close
    from workbench.testing.attention import AttentionError, AttentionWarning, assert_attention
    from workbench.testing.gradients import GradientWarning
    from workbench.testing.operation import assert_operation
    from workbench.testing.profiles import PROFILES

#: public name -> where it is; imported when first used, since every run of pytest imports this package
_HOMES = {
    "assert_attention": "testing.attention.assert_attention",
    "assert_attention_close": "testing.arrays.assert_attention_close",
    "assert_operation": "testing.operation.assert_operation",
    "GradientWarning": "testing.gradients.GradientWarning",
    "AttentionError": "testing.attention.AttentionError",
    "AttentionWarning": "testing.attention.AttentionWarning",
    "cases": "explore.strategies.cases",
    "tensors": "explore.strategies.tensors",
    "awkward_values": "explore.strategies.awkward_values",
    "PROFILES": "testing.profiles.PROFILES",
}
__all__ = [
    "PROFILES",
    "AttentionError",
    "AttentionWarning",
    "GradientWarning",
    "assert_attention",
    "assert_attention_close",
    "assert_operation",
    "awkward_values",
    "cases",
    "tensors",
]


def __getattr__(name: str) -> Any:
    return attribute(__name__, _HOMES, name)
