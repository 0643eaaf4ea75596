"""What stages should be from q, k and v alone: as the whole reference has it, whatever part of it is asked for."""

import numpy as np
import pytest

from tests.stored import stored
from workbench import Case, Refusal, diff, run
from workbench.case.stages import stages_of
from workbench.expectation.observed import Observed
from workbench.judge.expected import truth

CASE = Case(seqlen_q=20, seqlen_k=37, heads=4, kv_heads=2, head_dim=8, block_q=16, block_k=16, causal=True)


@pytest.mark.parametrize("kernel", ["flash", "split_k"])
def test_every_stage_is_what_the_propagated_comparison_expects(kernel: str) -> None:
    judged = diff(run(kernel, CASE, backend="emulator"))
    for name, stage in stages_of(kernel).items():
        found = judged[name].propagated
        assert found is not None and np.array_equal(
            truth(Observed(judged.trace), name).expected, found.expected, equal_nan=True
        )
        for index in ({"h": slice(1, 3), "q": slice(None, None, -7)}, {"h": -1, "q": 3}):
            part = truth(Observed(judged.trace), name, index)
            where = tuple(slice(None) if axis not in index else index[axis] for axis in stage.axes)
            wanted = found.expected[where]
            assert part.expected is not None and np.allclose(part.expected.ravel(), wanted.ravel(), rtol=1e-12)
            assert part.actual is None and part.size == wanted.size > 0


def test_stages_of_a_quantised_kernel() -> None:
    judged = diff(stored("fp8", Case(seqlen=20, heads=2)))
    for name in stages_of("fp8"):
        stage = judged[name].propagated
        assert stage is not None
        found, wanted = truth(Observed(judged.trace), name).expected, stage.expected
        if name.startswith("codes"):  # of two codes at a tie either is right
            assert found is not None and np.all(np.abs(found - wanted) <= 1)
        else:
            assert np.allclose(found, wanted, rtol=1e-12, equal_nan=True), name


def test_a_stage_that_nobody_dumped_and_what_is_refused() -> None:
    def kernel(q: np.ndarray, k: np.ndarray, v: np.ndarray, *, scale: float, causal: bool) -> np.ndarray:
        return np.zeros_like(q)

    trace = run(kernel, Case(seqlen=4, head_dim=8))
    q, k, _ = (x.astype(np.float64) for x in trace.case.inputs())
    assert np.allclose(
        truth(Observed(trace), "qk", (0, 0, 1, slice(1, 3))).expected, q[:, :, 1:2] @ k[:, :, 1:3].swapaxes(-1, -2)
    )
    for name, message in (
        ("row_max", "stage row_max of kernel: the contract does not declare block_k, so its key tiles are unknown"),
        ("merge_sum", f"kernel has no stage 'merge_sum'; its stages: {', '.join(stages_of('flash'))}"),
    ):
        with pytest.raises(Refusal) as refused:
            truth(Observed(trace), name)
        assert str(refused.value) == message
