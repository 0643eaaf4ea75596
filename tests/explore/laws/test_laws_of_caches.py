"""Laws of kernels on a KV cache of codes, whose q has none and may be changed."""

from typing import Any

import numpy as np
import pytest

from workbench import Case
from workbench.explore.laws.every import LAWS, asked, laws, subject

CASE = Case(heads=2, seqlen=12, head_dim=32, dtype="float16", codes="int8", scale_of="token")


def attention(q: Any, k: Any, v: Any, *, scale_k: Any, scale_v: Any, scale: float, causal: bool) -> Any:
    wide = [x.view(np.int8).astype(np.float32) * s for x, s in ((k, scale_k), (v, scale_v))]
    dequant_k, dequant_v = (x.astype(np.float16) for x in wide)
    k, v = dequant_k.astype(np.float32), dequant_v.astype(np.float32)
    scores = q.astype(np.float32) @ k.swapaxes(-1, -2) * np.float32(scale)
    top = scores.max(-1, keepdims=True)
    probs = np.exp(scores - top)
    total = probs.sum(-1, keepdims=True)
    results = {"out": (probs @ v / total).astype(np.float16), "lse": (top + np.log(total))[..., 0]}
    return {"dequant_k": dequant_k, "dequant_v": dequant_v, **results}


def without_sign(q: Any, k: Any, v: Any, *, scale_k: Any, scale_v: Any, scale: float, causal: bool) -> Any:
    return attention(abs(q), k, v, scale_k=scale_k, scale_v=scale_v, scale=scale, causal=causal)


def test_a_right_kernel_keeps_all_laws() -> None:
    found = laws(attention, CASE)
    assert found.broken == () and sum(held is True for held in found.signature.values()) == 11


@pytest.mark.parametrize(("kernel", "holds"), [(attention, True), (without_sign, False)])
def test_the_opposite_q_is_asked_where_q_has_no_codes(kernel: Any, holds: bool) -> None:
    name = "q-and-k-times-power-of-two"
    assert asked(subject(kernel, CASE), [LAWS[name]]).signature == {name: holds}
