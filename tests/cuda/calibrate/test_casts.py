"""Roundings of casts, on casts written in NumPy: each direction and each defect must be told."""

import ml_dtypes
import numpy as np
import pytest

from workbench.cuda.calibrate import casts
from workbench.cuda.calibrate.backends import on_emulator
from workbench.cuda.calibrate.record import Cast
from workbench.floats import round_to

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
RIGHT = Cast("nearest-even", flushes=False, overflow="infinity", infinity="infinity", nan="nan")


@pytest.mark.campaign(but=2)
@pytest.mark.parametrize("name", casts.CONVERSIONS)
def test_the_emulators_casts_do_what_they_promise(name):
    conversion = casts.CONVERSIONS[name]
    promised = "largest" if "e4m3" in name or "e5m2" in name else "infinity"
    assert conversion.overflow == promised
    found = casts.measure(casts.cast_on(on_emulator, conversion))
    assert found == Cast("nearest-even", False, overflow=promised, infinity=promised, nan="nan")


@pytest.mark.parametrize(
    ("dtype", "finite"),
    [(np.float16, 0x7C00), (BFLOAT16, 0x7F80), (ml_dtypes.float8_e4m3fn, 0x7F), (ml_dtypes.float8_e5m2, 0x7C)],
    ids=str,
)
def test_arguments_lie_where_they_are_said_to(dtype, finite):
    """Eight between any two neighbours, none like another; `floats.round_to` rounds them as their positions."""
    x, positions = casts.arguments(dtype)
    assert x.dtype == np.float32 and x.size == positions.size == 2 * (8 * (finite - 1) + 1)
    assert np.unique(np.abs(x)).size == x.size // 2
    rounded = round_to(x, dtype).astype(dtype)
    bits = np.abs(rounded).view(f"u{rounded.itemsize}").astype(np.int64)
    np.testing.assert_array_equal(np.copysign(bits, x), np.rint(positions))


def of_bits(change):
    """A cast to bfloat16 by what `change` makes of the bits without the sign; NaN stays."""

    def cast(x):
        bits = x.view(np.uint32).astype(np.int64)
        sign, size = bits >> 31, bits & 0x7FFFFFFF
        upper = np.where(np.isnan(x), 0x7FC0, change(size, sign))
        return (sign << 15 | upper).astype(np.uint16).view(BFLOAT16)

    return cast


def nearest_even(size, sign):
    return size + 0x7FFF + (size >> 16 & 1) >> 16


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (nearest_even, RIGHT),
        (lambda size, sign: size + 0x8000 >> 16, Cast("nearest-away", False, "infinity", "infinity", "nan")),
        (lambda size, sign: size >> 16, Cast("toward-zero", False, "largest", "infinity", "nan")),
        (lambda size, sign: size + 0xFFFF >> 16, Cast("away-from-zero", False, "infinity", "infinity", "nan")),
        (lambda size, sign: size + 0xFFFF * (1 - sign) >> 16, Cast("up", False, "other", "infinity", "nan")),
        (lambda size, sign: size + 0xFFFF * sign >> 16, Cast("down", False, "other", "infinity", "nan")),
        (
            lambda size, sign: np.minimum(nearest_even(size, sign), 0x7F7F),
            Cast("nearest-even", False, "largest", "largest", "nan"),
        ),
        (
            lambda size, sign: np.where(nearest_even(size, sign) > 0x7F7F, 0x7FC0, nearest_even(size, sign)),
            Cast("nearest-even", False, "nan", "nan", "nan"),
        ),
        (
            lambda size, sign: np.where(size < 0x800000, 0, nearest_even(size, sign)),
            Cast("nearest-even", True, "infinity", "infinity", "nan"),
        ),
        (
            lambda size, sign: np.where(size == 0x3F808000, 0x3F81, nearest_even(size, sign)),
            Cast("other", False, "infinity", "infinity", "nan"),
        ),
    ],
    ids=["right", "away at ties", "cut off", "away", "up", "down", "saturates", "NaN", "flushes", "one tie wrong"],
)  # fmt: skip
def test_directions_and_defects_are_told(change, expected):
    assert casts.measure(of_bits(change)) == expected


def test_a_cast_that_loses_nan_is_told():
    def cast(x):
        return np.nan_to_num(
            of_bits(nearest_even)(x).astype(np.float32), nan=1.0, posinf=np.inf, neginf=-np.inf
        ).astype(BFLOAT16)

    assert casts.measure(cast).nan == "other"


def test_nothing_tried_has_no_rounding():
    assert casts.rounding_of(np.zeros(0), np.zeros(0)) == "other"
