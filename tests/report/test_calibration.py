"""The table of a calibration: what it says, and that it marks a machine that is worse than assumed."""

import math
from dataclasses import replace

import pytest

from workbench.cuda.calibrate.casts import CONVERSIONS
from workbench.cuda.calibrate.record import EXPONENTIALS, LOGARITHMS, Calibration, Cast, Errors, TensorCore
from workbench.cuda.ptx import MMA_TYPES
from workbench.report.calibration import COLUMNS, headline, rows

ERRORS = Errors(1000, 0.75, 0.0, 0.75, -12.5, True, False, 0.9)
CORE = TensorCore(16, 2, "toward-zero", "toward-zero", None)
MEASURED = Calibration(
    backend="emulator",
    device="emulator",
    compute_capability=None,
    driver=None,
    versions={},
    functions=dict.fromkeys((*EXPONENTIALS, *LOGARITHMS), ERRORS),
    tensor_cores=dict.fromkeys(MMA_TYPES, CORE),
    casts={name: Cast("nearest-even", False, one.overflow, one.overflow, "nan") for name, one in CONVERSIONS.items()},
)


def row(part: str, name: str, **changes) -> tuple[str, ...]:
    """The row of one entry, with some of its fields changed."""
    entries = dict(getattr(MEASURED, part))
    entries[name] = replace(entries[name], **changes)
    found = rows(replace(MEASURED, **{part: entries}))
    return tuple(found[[*MEASURED.functions, *MEASURED.tensor_cores, *MEASURED.casts].index(name)].values())


def test_a_row_for_each_measurement_and_no_remark_where_all_is_as_assumed() -> None:
    found = rows(MEASURED)
    assert len(found) == 7 + 6 + 6 and all(tuple(one) == COLUMNS for one in found)
    assert {one["remark"] for one in found} == {""}


def test_headlines() -> None:
    assert headline(MEASURED) == "emulator: 7e+03 function results, all neighbours of each cast target"
    gpu = replace(MEASURED, device="NVIDIA H200", compute_capability=(9, 0), driver="13.0")
    assert headline(gpu).startswith("NVIDIA H200, compute capability 9.0, driver for CUDA 13.0: ")


@pytest.mark.parametrize(
    ("name", "changes", "expected"),
    [
        ("exp", {}, ("math.exp", "0.75 ulp, subnormals are kept", "2 ulp, or 0 for subnormals", "")),
        ("exp", {"ulps": 2.01}, ("math.exp", "2.01 ulp, subnormals are kept", "2 ulp, or 0 for subnormals", "<- worse")),
        ("exp", {"ulps": math.inf}, ("math.exp", "inf ulp, subnormals are kept", "2 ulp, or 0 for subnormals", "<- worse")),
        ("exp", {"exact": False, "flushes": True}, ("math.exp", "0.75 ulp, subnormals are 0", "2 ulp, or 0 for subnormals", "<- not exact at 0, -inf or log(1)")),
        ("fast_exp", {"ulps": 2.0, "ulps_per_x": 1.1571}, ("libdevice.fast_expf", "2 + 1.157 |x| ulp, subnormals are kept", "3 + 1.173 |x| ulp, or 0 for subnormals", "")),
        ("fast_exp", {"ulps": 2.0, "ulps_per_x": 1.2}, ("libdevice.fast_expf", "2 + 1.2 |x| ulp, subnormals are kept", "3 + 1.173 |x| ulp, or 0 for subnormals", "<- worse")),
        ("fast_log_near_1", {"flushes": None}, ("libdevice.fast_logf, from 0.5 to 2", "0.75 x 2^-22", "1.51 x 2^-22", "")),
    ],
)  # fmt: skip
def test_rows_of_functions(name: str, changes: dict, expected: tuple[str, ...]) -> None:
    assert row("functions", name, **changes) == expected


@pytest.mark.parametrize(
    ("changes", "measured", "remark"),
    [
        ({}, "16 products a step, 2 extra bits, toward-zero", ""),
        ({"extra_bits": 3}, "16 products a step, 3 extra bits, toward-zero", ""),
        ({"extra_bits": -10}, "16 products a step, -10 extra bits, toward-zero", "<- worse"),
        ({"block": 4}, "4 products a step, 2 extra bits, toward-zero", "<- worse"),
        ({"sum_rounding": "nearest-even"}, "16 products a step, 2 extra bits, toward-zero and nearest-even", ""),
        ({"addend_rounding": "other"}, "16 products a step, 2 extra bits, other and toward-zero", "<- worse"),
        ({"c_rounding": "nearest-even"}, "16 products a step, 2 extra bits, toward-zero, c last, nearest-even", ""),
    ],
)  # fmt: skip
def test_rows_of_tensor_cores(changes: dict, measured: str, remark: str) -> None:
    expected = ("mma_m16n8k16_f16", measured, "16 products a step, 2 extra bits", remark)
    assert row("tensor_cores", "mma_m16n8k16_f16", **changes) == expected


@pytest.mark.parametrize(
    ("changes", "measured", "remark"),
    [
        ({}, "nearest-even, overflow gives largest", ""),
        ({"rounding": "toward-zero"}, "toward-zero, overflow gives largest", "<- differs"),
        ({"flushes": True}, "nearest-even, subnormals are 0, overflow gives largest", "<- differs"),
        ({"infinity": "nan"}, "nearest-even, overflow gives largest/nan", "<- differs"),
        ({"nan": "other"}, "nearest-even, overflow gives largest, NaN: other", "<- differs"),
    ],
)
def test_rows_of_casts(changes: dict, measured: str, remark: str) -> None:
    expected = ("cvt_e4m3x2_f32", measured, "nearest-even, overflow gives largest", remark)
    assert row("casts", "cvt_e4m3x2_f32", **changes) == expected
