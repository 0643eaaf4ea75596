"""Codes that do not saturate: what formats have in the place of numbers that are too large."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from workbench.judge.explain.hypothesis import Unfit
from workbench.judge.explain.library import family

CHANGE = {one.id: one for one in family("codes")}["codes.unsaturated-q"].edits[0]


def codes(kind: str, x: float) -> float:
    """The code of a number in a head whose scale is 1, by a quantiser that does not saturate."""
    stages: dict[str, Any] = {"q": np.full((1, 1, 1, 1), x), "scale_q": np.ones(1)}
    at = SimpleNamespace(p=SimpleNamespace(codes=SimpleNamespace(format=kind)), whole=stages.__getitem__)
    step = CHANGE.change(SimpleNamespace(value=lambda at: np.zeros(1)))
    return float(step.value(at).item())


@pytest.mark.parametrize(("kind", "x", "code"), [("e4m3", 1000.0, 127), ("e4m3", -1000.0, 255), ("e5m2", 1e6, 124)])
def test_what_is_too_large_becomes_nan_or_infinite(kind: str, x: float, code: int) -> None:
    assert codes(kind, x) == code and codes(kind, 1.0) not in (code, 0)


def test_a_format_without_nan_and_infinity_has_none() -> None:
    """Signed bytes wrap or saturate: the fault cannot be there, and the search goes on."""
    with pytest.raises(Unfit):
        codes("int8", 1000.0)
