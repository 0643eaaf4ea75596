"""Numbers of our choice as codes: with which codes and scale a kernel is given them."""

from dataclasses import dataclass

import numpy as np

from workbench.case.formats import FORMATS
from workbench.floats import to_float64
from workbench.reference.quantize import spread
from workbench.refusal import Refusal
from workbench.trace.trace import Trace

#: whole numbers that a format has with a scale of 1 / step
STEPS = {"simulated": 448 / 127}
#: how far a number may be from what its code stands for, as a share: what float32 makes of a scale
EXACT = 2.0**-22
#: the zero point of every experiment on a format that has one: as many codes below it as above
MIDDLE = 8.0


@dataclass(frozen=True, eq=False)
class Codebook:
    """The codes of an input, and those that are known to be decoded right."""

    format: str
    shape: tuple[int, ...]  #: of its scale
    #: what the function decodes each code to, before its scale, as far as that was read: else what it should
    values: np.ndarray
    usable: np.ndarray  #: bool for each code: that numbers are made of

    def encoded(self, x: np.ndarray) -> tuple[np.ndarray, float]:
        """The codes [..] of `x`, and their scale, of codes that are usable.

        Numbers of one size, 0 among them, are exact: their size goes into the scale. So are whole numbers and powers of
        two that the format has. Of others each becomes the nearest.
        """
        x = np.asarray(x, np.float64)
        sizes = np.unique(abs(x))
        codes, values = np.flatnonzero(self.usable), self.values[self.usable]
        order = np.argsort(values, kind="stable")
        codes, values = codes[order], values[order]
        for scale in self._scales(float(sizes[-1]), len(sizes) <= 1 + int(sizes[0] == 0)):
            at = np.clip(np.searchsorted(values, x / scale), 1, len(values) - 1)
            at -= x / scale - values[at - 1] < values[at] - x / scale
            if np.all(abs(values[at] * scale - x) <= EXACT * abs(x)):
                break
        return codes[at].astype(np.uint8), scale

    def _scales(self, largest: float, one_size: bool) -> list[float]:
        """Scales that are tried until all numbers are exact: that of one size, of whole numbers, of powers of two; the
        last has the largest number at the largest value.
        """
        if not largest:
            return [1.0]
        step, values = STEPS.get(self.format, 1.0), self.values[self.usable]
        top = float(min(values.max(), -values.min()))
        power = step * 2.0 ** np.floor(np.log2(top / step))
        found = [largest / self.one] * one_size + [1 / step, largest / power, largest / top]
        return [float(np.float32(scale)) for scale in found]

    @property
    def opposites(self) -> np.ndarray:
        """The positive values of codes whose opposite a code has, too, in ascending order."""
        values = self.values[self.usable]
        near = np.sort(-values)
        at = np.clip(np.searchsorted(near, values), 1, len(near) - 1) if len(near) > 1 else np.zeros(0, int)
        off = np.minimum(abs(near[at] - values), abs(near[at - 1] - values)) if len(at) else np.ones(len(values))
        return np.sort(values[(values > 0) & (off <= EXACT * abs(values))])

    @property
    def one(self) -> float:
        """The value that stands for 1: of those that have an opposite, one in the middle."""
        return float(self.opposites[len(self.opposites) // 2])

    def decoded(self, codes: np.ndarray, scale: float) -> np.ndarray:
        """What codes and a scale of `encoded` stand for."""
        return self.values[codes] * scale

    def holds(self, numbers: np.ndarray) -> bool:
        """Whether whole numbers are exact."""
        return bool(np.isin(numbers * STEPS.get(self.format, 1.0), self.values[self.usable]).all())

    def given(self, name: str, codes: np.ndarray, scale: float | np.ndarray) -> dict[str, np.ndarray]:
        """Inputs of a run by name; `scale`: one number, or one for each head, float32 in the shape of its scales."""
        of_heads = np.broadcast_to(np.asarray(scale, np.float32), self.shape[0] if len(self.shape) == 1 else self.shape)
        found = {f"codes_{name}": codes, f"scale_{name}": np.ascontiguousarray(of_heads)}
        if FORMATS[self.format].zero:
            found[f"zero_{name}"] = np.full(self.shape, MIDDLE, np.float32)
        return found


@dataclass(frozen=True)
class Scale:
    """What codes of an input are multiplied by."""

    of: str  #: q, k or v: whose scale; "" for 1
    heads: tuple[int, ...]  #: of that scale, for each head of the input
    squared: bool = False  #: multiplied twice

    def __call__(self, run: Trace) -> np.ndarray:
        """In the shape of the scale of the run."""
        if not self.of:
            return np.ones(len(self.heads))
        own = to_float64(run.stages[f"scale_{self.of}"])
        found: np.ndarray = own[list(self.heads)] if own.ndim == 1 else own[:, list(self.heads)]
        return found**2 if self.squared else found


def codebooks(trace: Trace) -> dict[str, Codebook]:
    """The codebook of each input that the function of a trace takes as codes; none where it takes numbers, or
    quantises them itself. Refusal for formats whose scales are rounded.
    """
    case = trace.case
    taken = [name for name in "qkv" if f"codes_{name}" in trace.put_in]
    if case.codes is None or not taken:
        return {}
    form = FORMATS[case.codes]
    if form.scale_dtype != "float32" or form.tensor_scale:
        raise Refusal(f"{trace.target} cannot be measured: scales of {case.codes} are not float32, and no number is 1")
    values = right(case.codes)
    shapes = {name: trace.stages[f"scale_{name}"].shape for name in taken}
    return {name: Codebook(case.codes, shapes[name], values, np.isfinite(values)) for name in taken}


def right(format_: str) -> np.ndarray:
    """What each code should stand for before its scale, float64, with the zero point of experiments."""
    form = FORMATS[format_]
    return form.values - MIDDLE * form.zero


def stood_for(trace: Trace, name: str, table: np.ndarray | None, scale: np.ndarray | None = None) -> np.ndarray:
    """What an input of a run on codes stands for, [batch, head, row, dim], float64.

    `table`: what each code is decoded to, the format's own where there is none; `scale`: as the run's, in place of it.
    """
    codes, form = trace.stages[f"codes_{name}"], FORMATS[str(trace.case.codes)]
    values, dims = form.values if table is None else table, codes.shape[-1]
    found = values[codes.astype(np.int64)]
    if form.zero:
        zero = to_float64(trace.stages[f"zero_{name}"])
        found = found - spread(zero, dims, str(trace.case.codes))
    by = to_float64(trace.stages[f"scale_{name}"]) if scale is None else scale
    return np.asarray(found * spread(by, dims, str(trace.case.codes)))
