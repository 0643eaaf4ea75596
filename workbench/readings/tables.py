"""Decode tables in words: which codes are decoded to other numbers, and by which rule."""

from collections.abc import Iterator

import numpy as np

from workbench.case.formats import FORMATS
from workbench.readings.finding import spans

#: how near a number of a table must be to a rule's, as a share of it: half of the distance of two codes of e4m3
NEAR = 1 / 32


def completed(
    format_: str, right: np.ndarray, got: np.ndarray, allowed: np.ndarray, wrong: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The table [code] and which codes are wrong there: beside wrong codes of one rule those that were not read, or
    could be its, are its, too. `got`: as read, NaN where not; `allowed`: how far each may be off.
    """
    table = np.where(wrong, got, right)
    for made, _ in _rules(format_, right, wrong):
        if not _fits(made, table, wrong):
            continue
        with np.errstate(invalid="ignore"):
            may = np.isfinite(right) & np.isfinite(made) & (np.isnan(got) | wrong | (abs(made - got) <= 2 * allowed))
        of_rule = np.zeros(len(right), bool)
        for run in np.split(np.arange(len(right)), np.flatnonzero(np.diff(may)) + 1):
            of_rule[run] = may[run[0]] and wrong[run].any()
        of_rule &= made != right
        return np.where(of_rule, made, right), of_rule
    return table, wrong


def _fits(made: np.ndarray, table: np.ndarray, wrong: np.ndarray) -> bool:
    with np.errstate(invalid="ignore"):
        near = abs(made[wrong] - table[wrong]) <= NEAR * abs(table[wrong])
    return bool(near.all() and np.isfinite(made[wrong]).all())


def in_words(format_: str, right: np.ndarray, table: np.ndarray, wrong: np.ndarray) -> str:
    """What a table [code] does in place of the right one; `wrong`: bool for each code."""
    sized = np.isfinite(right) & (right != 0)
    codes = spans(np.flatnonzero(wrong), write="0x{:02x}".format)
    where = "all codes" if wrong[sized].all() else f"code{'s' * int(wrong.sum() > 1)} {codes}"
    many = "are" if wrong.sum() > 1 else "is"
    for made, text in _rules(format_, right, wrong):
        if _fits(made, table, wrong):
            return f"{where} {many} {text}"
    if wrong.sum() == 1:
        return f"{where} is {table[wrong][0]:.5g}, not {right[wrong][0]:.5g}"
    ratio = table[wrong] / np.where(right[wrong] == 0, np.nan, right[wrong])
    if np.isfinite(ratio).all() and np.ptp(ratio) <= NEAR * abs(ratio[0]):
        return f"{where} {many} decoded as {np.median(ratio):.4g} times their value"
    apart = table[wrong] - right[wrong]
    if np.ptp(apart) <= NEAR * abs(apart).max():
        return f"{where} {many} decoded as their value {np.median(apart):+.4g}"
    some = np.flatnonzero(wrong)
    told = ", ".join(f"0x{c:02x} is {table[c]:.5g}, not {right[c]:.5g}" for c in some[:: max(1, len(some) // 3)][:3])
    return f"{where}: {told}"


def _rules(format_: str, right: np.ndarray, wrong: np.ndarray) -> Iterator[tuple[np.ndarray, str]]:
    """Tables that code gets in place of the right one, and what they do. Of one wrong code alone none that takes it for
    another: of 40 such rules one fits by chance.
    """
    yield np.zeros(len(right)), "0"
    yield -right, "decoded with the wrong sign"
    yield abs(right), "decoded without their sign"
    if wrong.sum() == 1:
        return
    for times, text in ((2.0, "twice"), (0.5, "half"), (4.0, "4 times"), (0.25, "a quarter of")):
        yield right * times, f"decoded as {text} their value"
    code = np.arange(len(right))
    # which hold of codes without the bit, too, where a shift of those with it does not
    for bit in (1, 2, 4, 8, 16, 32, 64, 128):
        if bit < len(right):
            yield right[code & ~bit], f"decoded without bit {bit.bit_length() - 1}"
    for shift in (1, -1, 2, -2, 8, -8, 16, -16):
        there = (code + shift >= 0) & (code + shift < len(right))
        made = np.where(there, right[np.clip(code + shift, 0, len(right) - 1)], np.nan)
        yield made, f"decoded as the code {abs(shift)} {'above' if shift > 0 else 'below'}"
    for name, form in FORMATS.items():
        if name != format_ and len(form.values) == len(right) and not form.zero:
            yield form.values, f"decoded as {name}"
