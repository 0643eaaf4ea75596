"""A trace runs its kernel again, on other cases and on inputs of somebody's own: what judges runs kernels in no other way."""

import numpy as np
import pytest

from workbench import Case, Trace, diff, run

CASE = Case(seqlen=24, heads=2, head_dim=16, block_q=16, block_k=16)


def attention(q, k, v, *, scale, causal):
    scores = q @ np.swapaxes(k, -1, -2) * np.float32(scale)
    probs = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return probs @ v / probs.sum(axis=-1, keepdims=True)


def made(kernel: str) -> Trace:
    if kernel == "box":
        return run("flash", CASE, backend="emulator", where="h=1")
    return run(attention, CASE) if kernel == "foreign" else run(kernel, CASE, backend="emulator")


@pytest.mark.parametrize("kernel", ["flash", "split_k", "foreign", "box"])
def test_on_another_case_and_on_other_inputs(kernel: str) -> None:
    trace = made(kernel)
    assert trace.rerun is not None
    other = trace.rerun(trace.case.but(seed=7))
    assert other.case.seed == 7 and not np.array_equal(other.inputs["q"], trace.inputs["q"])
    whole = trace.case_run
    inputs = {name: 2 * x for name, x in zip("qkv", whole.inputs(), strict=True)}
    again = trace.rerun(trace.case, inputs)
    np.testing.assert_array_equal(again.inputs["v"], 2 * trace.inputs["v"])
    assert again.box == trace.box and diff(again).verdict in ("exact", "rounding")


@pytest.mark.campaign
def test_a_kernel_on_codes_is_run_again_on_what_its_attention_read() -> None:
    from workbench.expectation.observed import Observed

    trace = run("fp8", CASE.but(codes="e4m3"), backend="emulator")
    read = Observed(trace).dequantised.trace
    assert read.algorithm == "flash" and read.rerun is not None
    again = read.rerun(read.case.but(seed=3))
    assert again.algorithm == "flash" and again.case.seed == 3 and "qk" in again.stages
