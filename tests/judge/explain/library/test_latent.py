"""Causes in values of another width than keys."""

import numpy as np
import pytest

from tests.judge.explain.fields import judged, named
from workbench import Case

CASE = Case(heads=4, kv_heads=1, seqlen_q=20, seqlen_k=37, head_dim=24, head_dim_v=16, shared_kv=True, scale=0.3)

FAULTS = {
    "v-last": {"v": lambda c, r, v: r["k"][..., c.head_dim - c.head_dim_v :]},
    "dot-of-v-width": {"k": lambda c, r, k: np.where(np.arange(c.head_dim) < c.head_dim_v, k, np.float32(0))},
    "scale-of-v": {"scale": lambda c, r, scale: c.head_dim_v**-0.5},
}


@pytest.mark.parametrize("dump", [True, False])
@pytest.mark.parametrize("wrong", FAULTS)
def test_a_fault_is_named(wrong, dump):
    assert f"latent.{wrong}" in named(CASE, FAULTS[wrong], dump=dump)


def test_the_scale_of_the_absorbed_head_dim_is_named_and_proved():
    """1/sqrt(576) for 1/sqrt(192)."""
    (cause,) = judged(CASE, {"scale": lambda c, r, scale: c.head_dim**-0.5}).explain().causes
    assert cause.id == "scale.usual" and cause.proved
