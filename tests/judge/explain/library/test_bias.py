"""Causes in a bias and a mask that are put in."""

import numpy as np
import pytest

from tests.judge.explain.fields import judged, named
from workbench import Case
from workbench.case import masks

CASE = Case(batch=3, heads=2, seqlen_q=24, seqlen_k=24, head_dim=8, scale=0.4)
CAUSAL = CASE.but(causal=True)

BIASES = {
    "none": lambda c, r, bias: 0 * bias,
    "twice": lambda c, r, bias: 2 * bias,
    "scaled": lambda c, r, bias: bias * np.float32(c.scale),
    "transposed": lambda c, r, bias: bias.swapaxes(-1, -2),
    "head-next": lambda c, r, bias: np.roll(bias, -1, 1),
    "batch-next": lambda c, r, bias: np.roll(bias, -1, 0),
}
MASKS = {
    "none": lambda seen: np.ones_like(seen),
    "inverted": lambda seen: ~seen,
    "transposed": lambda seen: seen.swapaxes(-1, -2),
    "head-next": lambda seen: np.roll(seen, -1, 1),
    "batch-next": lambda seen: np.roll(seen, -1, 0),
}


def inputs(**beside):
    return {**dict(zip("qkv", CASE.inputs(), strict=True)), **beside}


BIAS = inputs(bias=np.random.default_rng(0).standard_normal((3, 2, 24, 24)).astype(np.float32))
MASK = inputs(mask=np.random.default_rng(1).random((3, 2, 24, 24)) < 0.7)


@pytest.mark.parametrize("wrong", BIASES)
def test_another_bias_is_named(wrong):
    assert f"bias.{wrong}" in named(CASE, {"bias": BIASES[wrong]}, inputs=BIAS)


def test_another_bias_is_named_from_out_and_lse():
    assert "bias.transposed" in named(CASE, {"bias": BIASES["transposed"]}, dump=False, inputs=BIAS)


@pytest.mark.parametrize("wrong", MASKS)
def test_another_mask_is_named_beside_what_is_causal(wrong):
    def seen(case, read, right):
        return case.mask() & MASKS[wrong](masks.spread(case, read["mask"]))

    assert f"bias.mask-{wrong}" in named(CAUSAL, {"visible": seen}, inputs=MASK)


def test_the_whole_search_names_it_and_no_case_can_tell_more():
    (cause,) = judged(CASE, {"bias": BIASES["head-next"]}, inputs=BIAS).explain().causes
    # of two heads the next is the previous: the arrays are of this case alone, and nothing can be run again
    assert cause.id == "bias.head-next" and cause.trial is None and len(cause.rivals) == 2
