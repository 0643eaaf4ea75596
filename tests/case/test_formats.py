"""The formats of 8-bit codes; `tests/cuda/test_quantize.py` holds their values against gfloat."""

from workbench.case.fields import QUANTISED
from workbench.case.formats import BY_DTYPE, FLOAT8, FORMATS


def test_a_case_chooses_among_all_formats() -> None:
    assert (*FORMATS,) == QUANTISED["codes"]


def test_formats() -> None:
    assert {name: one.largest for name, one in FORMATS.items()} == {"simulated": 448.0, "e4m3": 448.0, "e5m2": 57344.0}
    assert FLOAT8 == {"e4m3": "float8_e4m3fn", "e5m2": "float8_e5m2"}
    assert {dtype.name: name for dtype, name in BY_DTYPE.items()} == {x: name for name, x in FLOAT8.items()}
    assert all(one.values.shape == (256,) and one.values.dtype == "float64" for one in FORMATS.values())
