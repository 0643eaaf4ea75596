"""Numbers as all reports write them, so that text and pictures of one run agree to the digit."""

import math


def number(x: float | None) -> str:
    """Three significant digits; a dash for None, and for NaN: where nothing has an error that is a number."""
    return "-" if x is None or x != x else f"{x:.3g}"


def ratio(x: float | None) -> str:
    """error / budget: three significant digits, near 1 as many as tell it from 1; a dash for None."""
    if x is None:
        return "-"
    return next((text for digits in range(3, 10) if (text := f"{x:.{digits}g}") != "1"), "1")


def times(x: float | None) -> str:
    """How large an error is beside its budget, for a sentence."""
    return "not finite" if x is None or not math.isfinite(x) else f"{ratio(x)}x its budget"


def value(x: float) -> str:
    """A value with the digits that tell float32 numbers apart by eye."""
    return f"{x:.6g}"


def mismatches(count: int) -> str:
    """Elements that are NaN or infinite where a finite number belongs, or the reverse."""
    return f"{count} non-finite mismatch{'es' * (count != 1)}"
