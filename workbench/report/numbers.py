"""Numbers as all reports write them, so that text and pictures of one run agree to the digit."""


def number(x: float | None) -> str:
    """Three significant digits; a dash for None, and for NaN: where nothing has an error that is a number."""
    return "-" if x is None or x != x else f"{x:.3g}"


def ratio(x: float | None) -> str:
    """x of budget: three significant digits, near 1 as many as tell it from 1; a dash for None."""
    if x is None:
        return "-"
    return next((text for digits in range(3, 10) if (text := f"{x:.{digits}g}") != "1"), "1")


def value(x: float) -> str:
    """A value with the digits that tell float32 numbers apart by eye."""
    return f"{x:.6g}"
