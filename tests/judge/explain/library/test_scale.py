"""Causes in what scores are multiplied with and what is added to them."""

import numpy as np
import pytest

from workbench import Case, diff, run


@pytest.mark.parametrize("keys", [8, 24])
@pytest.mark.parametrize("wrong", ["transposed", "twice"])
def test_a_bias_that_is_added_wrong_is_named_with_as_many_keys_as_queries_or_more(keys, wrong):
    case = Case(seqlen_q=8, seqlen_k=keys, head_dim=8, heads=2)
    arrays = dict(zip("qkv", case.inputs(), strict=True))
    arrays["bias"] = np.random.default_rng(0).normal(size=(1, 2, 8, keys)).astype(np.float32)

    def attention(q, k, v, *, scale, causal, bias):
        square = bias.shape[-1] == bias.shape[-2]
        added = bias.swapaxes(-1, -2) if wrong == "transposed" and square else 2 * bias
        scores = (q @ np.swapaxes(k, -1, -2) * np.float32(scale) + added).astype(np.float32)
        probs = np.exp(scores - scores.max(-1, keepdims=True))
        return {"scores": scores, "out": probs @ v / probs.sum(-1, keepdims=True)}

    (cause,) = diff(run(attention, case, inputs=arrays)).explained.causes
    assert cause.text == f"the bias is added {wrong if keys == 8 else 'twice'}"
