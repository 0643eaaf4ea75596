"""No false alarm: correct kernels on random cases are never called wrong."""

import numpy as np
import pytest
from hypothesis import HealthCheck, event, example, given, settings, target
from hypothesis import strategies as st

from tests.builds import FEW_BUILDS
from workbench import Case, diff, run
from workbench.case.distributions import DISTRIBUTIONS
from workbench.refusal import Refusal


@st.composite
def cases(draw: st.DrawFn, kernel: str) -> Case:
    """A case of any shape, distribution, mask and scale, on one of the few builds."""
    block_q, block_k, low, high, dtype = draw(st.sampled_from(FEW_BUILDS))
    kv_heads = draw(st.integers(1, 2))
    options = {
        "batch": draw(st.integers(1, 2)),
        "heads": kv_heads * draw(st.integers(1, 3)),
        "kv_heads": kv_heads,
        "seqlen_q": draw(st.integers(1, 70)),
        "seqlen_k": draw(st.integers(1, 100)),
        "head_dim": draw(st.integers(low, high)),
        "dtype": dtype,
        "causal": draw(st.booleans()),
        "causal_alignment": draw(st.sampled_from(["bottom-right", "top-left"])),
        "scale": draw(st.none() | st.floats(-2, 2, width=32)),
        "probs_dtype": draw(st.sampled_from([None, dtype])),
        "block_q": block_q,
        "block_k": block_k,
        "seed": draw(st.integers(0, 2**32)),
        "distribution": draw(st.sampled_from(sorted(DISTRIBUTIONS))),
    }
    if kernel == "split_k":
        options["splits"] = draw(st.integers(1, 5))
    try:
        return Case(**options)
    except Refusal:  # index-coded with too few dims for its keys
        return Case(**options | {"distribution": "normal"})


@pytest.mark.parametrize("kernel", ["flash", "split_k"])
def test_correct_kernel_is_never_called_wrong(kernel: str) -> None:
    @settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
    @given(cases(kernel))
    @example(Case(seqlen=1, head_dim=1, scale=9.640933434554741e-43, block_q=16, block_k=16))
    @example(Case(seqlen=40, head_dim=8, input_std=1e-20, block_q=16, block_k=16))
    @example(Case(seqlen=40, head_dim=8, scale=0.0, block_q=16, block_k=16))
    @example(Case(seqlen_q=70, seqlen_k=5, causal=True, block_q=16, block_k=16, head_dim=32))
    def holds(case: Case) -> None:
        judged = diff(run(kernel, case, backend="emulator"))
        event(judged.verdict)
        worst = [stage.worst(1)[0].over_budget for stage in judged if stage.worst(1)]
        target(float(np.log2(max(max(worst), 1e-9))), label="log2 of the worst x of budget")
        assert judged.verdict in ("exact", "rounding"), (judged.verdict, judged.origins, case)
        # a budget nobody can break proves nothing: some elements must have been judged in every stage
        assert all(stage.isolated is not None and stage.isolated.judged.any() for stage in judged)

    holds()
