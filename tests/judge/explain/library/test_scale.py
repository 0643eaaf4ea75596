"""Causes in what scores are multiplied with and capped at."""

import numpy as np

from tests.judge.explain.fields import judged
from workbench import Case


def test_a_cap_in_units_of_log2_is_named_and_proved():
    case = Case(heads=2, seqlen_q=20, seqlen_k=37, head_dim=8, scale=0.4, softcap=3.0)

    def base_2(case, read, right):
        k = np.repeat(read["k"], case.heads // case.kv_heads, 1)
        x = read["q"] @ k.swapaxes(-1, -2) * np.float32(case.scale * np.log2(np.e))
        return (case.softcap * np.tanh(x / case.softcap) * np.log(2)).astype(np.float32)

    (cause,) = judged(case, {"capped": base_2}).explain().causes
    assert cause.id == "scale.cap-base-2" and cause.proved
