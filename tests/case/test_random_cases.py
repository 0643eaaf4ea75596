"""No false alarm: correct kernels on random cases are never called wrong."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, event, example, given, settings, target
from hypothesis import strategies as st

from tests.builds import ONE_BUILD, draw_few_builds
from workbench import Case, diff, run
from workbench.case.distributions import FIXED
from workbench.explore.strategies import cases


@pytest.mark.campaign(but=1)
@pytest.mark.parametrize(
    ("kernel", "examples", "drawn"),
    [
        ("flash", 15, ONE_BUILD),
        *(pytest.param(kernel, 60, {}, marks=pytest.mark.campaign) for kernel in ("flash", "split_k")),
    ],
)
def test_correct_kernel_is_never_called_wrong(
    kernel: str, examples: int, drawn: Mapping[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    draw_few_builds(monkeypatch)

    @settings(max_examples=examples, deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
    @given(cases(kernel, scale=st.none() | st.floats(-2, 2, width=32), **drawn), st.booleans())
    @example(Case(seqlen=1, head_dim=1, scale=9.640933434554741e-43, block_q=16, block_k=16), False)
    @example(Case(seqlen=40, head_dim=8, input_std=1e-20, block_q=16, block_k=16), False)
    @example(Case(seqlen=40, head_dim=8, scale=0.0, block_q=16, block_k=16), False)
    @example(Case(seqlen_q=70, seqlen_k=5, causal=True, block_q=16, block_k=16, head_dim=32), False)
    def holds(case: Case, casts: bool) -> None:
        # needles have q and k as large as scores need to be: divided by such a scale q @ k overflows
        assume(case.distribution not in FIXED or not 0 < abs(case.scale) < 2.0**-100)
        case = case.but(probs_dtype=case.dtype) if casts else case
        judged = diff(run(kernel, case, backend="emulator"))
        event(judged.verdict)
        worst = [stage.worst(1)[0].over_budget for stage in judged if stage.worst(1)]
        target(float(np.log2(max(max(worst), 1e-9))), label="log2 of the worst x of budget")
        assert judged.verdict in ("exact", "rounding"), (judged.verdict, judged.origins, case)
        # a budget nobody can break proves nothing: some elements must have been judged in every stage
        assert all(stage.isolated is not None and stage.isolated.judged.any() for stage in judged)

    holds()
