"""The formats of codes; `tests/cuda/test_quantize.py` holds their values against gfloat."""

from workbench.case.fields import QUANTISED
from workbench.case.formats import BY_DTYPE, FLOAT8, FORMATS, blocks_of


def test_a_case_chooses_among_all_formats() -> None:
    assert (*FORMATS,) == QUANTISED["codes"]


def test_formats() -> None:
    floats = {"simulated": 448.0, "e4m3": 448.0, "e5m2": 57344.0, "mxfp8-e4m3": 448.0, "mxfp8-e5m2": 57344.0}
    largest = {name: one.largest for name, one in FORMATS.items()}
    assert largest == floats | {"nvfp4": 6.0, "int8": 127.0, "int4": 15.0}
    assert FLOAT8 == {"e4m3": "float8_e4m3fn", "e5m2": "float8_e5m2"}
    by_dtype = {x: name for name, x in FLOAT8.items()} | {"float4_e2m1fn": "nvfp4", "int8": "int8"}
    assert {dtype.name: name for dtype, name in BY_DTYPE.items()} == by_dtype
    assert all(one.values.shape == (16 if one.four_bits else 256,) for one in FORMATS.values())
    assert all(one.values.dtype == "float64" for one in FORMATS.values())
    assert [name for name, one in FORMATS.items() if one.four_bits] == ["nvfp4", "int4"]


def test_values_of_four_and_eight_bits_by_hand() -> None:
    """OCP MX 1.0, table 6; two's complement."""
    positive = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
    assert FORMATS["nvfp4"].values.tolist() == [*positive, *(-x for x in positive)]
    assert FORMATS["int4"].values.tolist() == list(range(16))
    assert FORMATS["int8"].values[[0, 1, 127, 128, 255]].tolist() == [0, 1, 127, -128, -1]


def test_how_many_scales_a_row_has() -> None:
    found = {name: blocks_of(name, one.scales[0], 80) for name, one in FORMATS.items()}
    assert found == {name: 1 for name in FORMATS} | {"mxfp8-e4m3": 3, "mxfp8-e5m2": 3, "nvfp4": 5, "int4": 2}
    assert (blocks_of("e4m3", "block", 576), blocks_of("e4m3", "token", 576)) == (5, 1)
