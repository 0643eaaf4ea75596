"""Laws of a merge whose numbers leave the normal range of float32: bits are asked where none does, budgets elsewhere."""

from typing import Any

import numpy as np
import pytest

from tests.explore.laws.kernels import merge, partials
from workbench import run
from workbench.case.case import Case
from workbench.case.inputs import by_name
from workbench.explore.laws.every import LAWS, held_to
from workbench.explore.laws.law import Finding
from workbench.explore.laws.subject import Subject

CASE = Case(seqlen_q=8, seqlen_k=32, head_dim=16)


def doubled(v: np.ndarray, added: float = 0.0) -> Finding:
    """What a merge of partial results of some V, with a number added to sums, makes of the law of those twice as large."""
    given = {**by_name(CASE, None), "v": v.astype(np.float32)}

    def merging(partial_O: Any, partial_max: Any, partial_sum: Any, *, scale: float, causal: bool) -> Any:
        found = merge(partial_O, partial_max, partial_sum, scale=scale, causal=causal)
        total = partial_sum.sum(2)[..., None]
        return {**found, "out": found["out"] * (total / (total + np.float32(added)))}

    def attend(case: Case, inputs: Any = None) -> Any:
        return run(partials, case, inputs=given if inputs is None else inputs)

    def feed(case: Case, stages: Any) -> Any:
        return run(merging, case.but(splits=2, block_k=16), feed=stages, inputs=given)

    return held_to(LAWS["partials-doubled"], Subject(attend, CASE, given, feed=feed))


@pytest.mark.parametrize("size", [2.0**-140, 2.0**-130, 2.0**-80, 1.0, 2.0**124])
def test_products_that_leave_the_normal_range_are_held_by_budgets(size: float) -> None:
    found = doubled(by_name(CASE, None)["v"] * size)
    assert found.held is True, found.broke and found.broke.words


@pytest.mark.parametrize("size", [2.0**-60, 1.0])
def test_a_wrong_merge_breaks_the_law_whatever_the_size(size: float) -> None:
    assert doubled(by_name(CASE, None)["v"] * size, added=1e-4).held is False


def test_bits_are_asked_of_elements_beside_those_that_are_not_normal() -> None:
    v = by_name(CASE, None)["v"].copy()
    v[..., 1:] *= 2.0**-140
    assert doubled(v).held is True
    found = doubled(v, added=1e-4).broke
    assert found is not None and found.place["d"] == 0 and found.allowed == 0
