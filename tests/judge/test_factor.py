"""A factor of out is told from roundings, however many are alike."""

import numpy as np
import pytest

from workbench import Case, run
from workbench.expectation.observed import Observed
from workbench.judge.factor import factor


def attention(q, k, v, *, scale, causal, times=1.0, cut=False):
    dtype = q.dtype
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    scores = q @ k.swapaxes(-1, -2) * scale
    probs = np.exp(scores - scores.max(-1, keepdims=True))
    out = (times * probs @ v / probs.sum(-1, keepdims=True)).astype(np.float32)
    if cut:  # toward zero, to bfloat16
        out = (out.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
    return out.astype(dtype)


def of(case, **options):
    return factor(Observed(run(lambda q, k, v, **asked: attention(q, k, v, **asked, **options), case)))


@pytest.mark.parametrize("distribution", ["normal", "comb", "needle", "peaked", "constant-v"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_a_right_kernel_has_none_and_a_wrong_one_has_it(dtype, distribution):
    case = Case(seqlen_q=24, seqlen_k=48, head_dim=16, dtype=dtype, distribution=distribution)
    assert of(case) is None
    found = of(case, times=1.03)
    assert found is not None and found.value == pytest.approx(1.03, abs=3e-3) and found.rows == 24
    assert of(case.but(seqlen_q=7), times=1.03) is None  # too few rows to tell


def test_a_cast_that_cuts_off_has_none():
    assert of(Case(seqlen=64, head_dim=32, dtype="bfloat16"), cut=True) is None
