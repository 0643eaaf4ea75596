"""RoPE as an operation: right functions of both forms are right, and each fault is found at its stage."""

from typing import Any

import numpy as np
import pytest

from tests.operations.ropes import FAULTS, partner_of, rope, spread
from workbench import Refusal
from workbench.operations.call import diff_operation
from workbench.operations.rope import ROPE

NARROW = {"table_dtype": "inputs", "product_dtype": "inputs"}
FORMS = ROPE.conventions["pairs"]


@pytest.mark.campaign(every=5)
@pytest.mark.parametrize("pairs", FORMS)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("distribution", ROPE.distributions)
@pytest.mark.parametrize("narrow", [{}, NARROW], ids=["wide", "narrow"])
def test_right_functions_of_both_forms(pairs: str, dtype: str, distribution: str, narrow: dict[str, str]) -> None:
    told = {"pairs": pairs, **narrow}
    for dumps in (True, False):
        got = diff_operation(rope(dumps=dumps, **told), "rope", contract=told, dtype=dtype,
                             distribution=distribution, axes={"tokens": 33, "dim": 48}, seed=5)  # fmt: skip
        assert got.verdict in ("exact", "rounding"), str(got)


@pytest.mark.parametrize("made", ["power", "exp2", "float64"])
@pytest.mark.parametrize("base", [100.0, 10000.0, 5e5])
def test_frequencies_however_they_are_made(made: str, base: float) -> None:
    def function(x: np.ndarray, positions: np.ndarray, *, base: float) -> Any:
        half = x.shape[-1] // 2
        pair = np.arange(half, dtype=np.float32)
        if made == "power":
            frequencies = 1 / np.float32(base) ** (pair / np.float32(half))
        elif made == "exp2":
            frequencies = np.exp2(pair * np.float32(-np.log2(base) / half))
        else:
            frequencies = (base ** (-pair.astype(np.float64) / half)).astype(np.float32)
        inv_freq = spread(frequencies, "halves")
        angles = (positions[..., None] * inv_freq)[:, None]
        return {"inv_freq": inv_freq, "out": x * np.cos(angles) + partner_of(x, "halves") * np.sin(angles)}

    got = diff_operation(function, "rope", numbers={"base": base}, distribution="far", axes={"dim": 96})
    assert got.verdict == "rounding", str(got)


@pytest.mark.parametrize("pairs", FORMS)
@pytest.mark.parametrize("fault", FAULTS)
def test_faults_of_rope(fault: str, pairs: str) -> None:
    told = {"pairs": pairs}
    got = diff_operation(rope(fault, pairs=pairs), "rope", contract=told)
    assert got.origin == FAULTS[fault] and got.verdict == "bug"
    assert diff_operation(rope(fault, dumps=False, pairs=pairs), "rope", contract=told).origin == "out"


@pytest.mark.parametrize("stored", NARROW)
def test_what_is_stored_in_16_bits_is_told(stored: str) -> None:
    told = {stored: "inputs"}
    function = rope(dumps=False, **told)
    assert diff_operation(function, "rope", dtype="bfloat16", contract=told).verdict == "rounding"
    assert diff_operation(function, "rope", dtype="bfloat16").origin == "out"


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"axes": {"dim": 63}}, "rope: dim must be even (dims are rotated in pairs); got 63"),
        ({"numbers": {"base": 0.0}}, "rope: base must be above 0; got 0"),
    ],
    ids=["odd", "base"],
)
def test_cases_of_rope_that_are_refused(asked: dict[str, Any], said: str) -> None:
    with pytest.raises(Refusal) as refused:
        diff_operation(rope(), "rope", **asked)
    assert str(refused.value) == said
