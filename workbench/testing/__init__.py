"""Attention kernels in a test suite: assertions with derived budgets, strategies of hypothesis, a plugin of pytest.

>>> from workbench import Case
>>> from workbench.testing import assert_attention
>>> assert_attention("flash", Case(seqlen=20, head_dim=16, block_q=16, block_k=16, causal=True)).verdict
'rounding'

The public names are those of the stub `__init__.pyi`.
"""

from workbench.lazy import public

__getattr__, __dir__ = public(__name__, __file__)
