"""Random merges of ranks: right ones are right, and each fault is named with its cause."""

import pytest

from campaigns.merges.faulty import FAULTS, Fault
from campaigns.merges.measure import judged, of_fault


@pytest.mark.parametrize("seed", range(16))
def test_correct_merges_are_right(seed: int) -> None:
    found = judged(seed)
    assert found.verdict in ("exact", "rounding") and not found.victims, (found.trace.case, found.origins)
    assert "out" in [stage.name for stage in found if stage.judged.judged.any()]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_each_fault_is_named_with_its_cause(fault: Fault) -> None:
    found = of_fault(fault, 1)
    assert (found.verdict, found.origin) == ("bug", fault.origin)
    assert any(fault.cause in cause.text for cause in found.explained.causes)
