"""Attention kernels in a test suite: assertions with derived budgets, strategies of hypothesis, a plugin of pytest.

>>> from workbench import Case
>>> from workbench.testing import assert_attention
>>> assert_attention("flash", Case(seqlen=20, head_dim=16, block_q=16, block_k=16, causal=True)).verdict
'rounding'
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from workbench.explore.strategies import awkward_values, cases, tensors
    from workbench.testing.arrays import assert_attention_close
    from workbench.testing.attention import AttentionError, assert_attention
    from workbench.testing.profiles import PROFILES

#: public name -> where it is; imported when first used, since every run of pytest imports this package
_HOMES = {
    "assert_attention": "testing.attention",
    "assert_attention_close": "testing.arrays",
    "AttentionError": "testing.attention",
    "cases": "explore.strategies",
    "tensors": "explore.strategies",
    "awkward_values": "explore.strategies",
    "PROFILES": "testing.profiles",
}
__all__ = [
    "PROFILES",
    "AttentionError",
    "assert_attention",
    "assert_attention_close",
    "awkward_values",
    "cases",
    "tensors",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'workbench.testing' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"workbench.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
