"""Numbers of our choice as codes: with which codes and scale a kernel is given them."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from workbench.case.formats import FORMATS, TILE_ROWS
from workbench.floats import to_float64
from workbench.reference.quantize import spread
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
    tile: int = 1  #: rows that share a scale

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
        if self.powers:
            found = [*np.exp2(np.round(np.log2(found[:-1]))), np.exp2(np.ceil(np.log2(found[-1])))]
        return [float(np.float32(scale)) for scale in found]

    @property
    def powers(self) -> bool:
        """Whether scales are powers of two."""
        return FORMATS[self.format].scale_dtype == "float8_e8m0fnu"

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

    def given(
        self, name: str, codes: np.ndarray, scale: float | np.ndarray, over: float | np.ndarray | None = None
    ) -> dict[str, np.ndarray]:
        """Inputs of a run by name; `scale`: one number, or float32 in the shape of its scales. Of a format whose
        tensors have a scale, `over`, any one number is that, and scales are 1.
        """
        tensor = FORMATS[self.format].tensor_scale
        if tensor and over is None:
            scale, over = np.ones(()), scale
        of_heads = np.broadcast_to(np.asarray(scale, np.float32), self.shape)
        found = {f"codes_{name}": codes, f"scale_{name}": np.ascontiguousarray(of_heads)}
        if tensor:
            of_tensor = np.broadcast_to(np.asarray(over, np.float32), codes.shape[1])
            found[f"global_{name}"] = np.ascontiguousarray(of_tensor)
        if FORMATS[self.format].zero:
            found[f"zero_{name}"] = np.full(self.shape, MIDDLE, np.float32)
        return found


def _as_it_is(x: np.ndarray) -> np.ndarray:
    return x


@dataclass(frozen=True, eq=False)
class Scale:
    """What codes of an input are multiplied by."""

    of: str  #: q, k or v: whose scale
    #: flat index of the scale of each element, as broadcasts against codes; -1 where it is multiplied by none
    index: np.ndarray
    over: str  #: whose scale of a tensor; "" for none
    made: Callable[[np.ndarray], np.ndarray] = _as_it_is  #: of a scale

    def __call__(self, run: Trace) -> np.ndarray:
        """A factor of each element, as broadcasts against codes."""
        own = self.made(to_float64(run.stages[f"scale_{self.of}"])).reshape(-1)
        found = np.where(self.index >= 0, own[np.maximum(self.index, 0)], 1.0)
        if self.over and FORMATS[str(run.case.codes)].tensor_scale:
            found = found * to_float64(run.stages[f"global_{self.over}"])[0]
        return found


def codebooks(trace: Trace) -> dict[str, Codebook]:
    """The codebook of each input that the function of a trace takes as codes; none where it takes numbers, or
    quantises them itself.
    """
    case = trace.case
    taken = [name for name in "qkv" if f"codes_{name}" in trace.put_in]
    if case.codes is None or not taken:
        return {}
    values, tile = right(case.codes), TILE_ROWS if case.scale_of == "tile" else 1
    shapes = {name: trace.stages[f"scale_{name}"].shape for name in taken}
    return {name: Codebook(case.codes, shapes[name], values, np.isfinite(values), tile) for name in taken}


def right(format_: str) -> np.ndarray:
    """What each code should stand for before its scale, float64, with the zero point of experiments."""
    form = FORMATS[format_]
    return form.values - MIDDLE * form.zero


def stood_for(trace: Trace, name: str, table: np.ndarray | None, scale: np.ndarray | None = None) -> np.ndarray:
    """What an input of a run on codes stands for, [batch, head, row, dim], float64.

    `table`: what each code is decoded to, the format's own where there is none; `scale`: a factor of each element in
    place of the run's scales.
    """
    codes, form, kind = trace.stages[f"codes_{name}"], FORMATS[str(trace.case.codes)], str(trace.case.codes)
    values, dims = form.values if table is None else table, codes.shape[-1]
    found = values[codes.astype(np.int64)]
    if form.zero:
        found = found - spread(to_float64(trace.stages[f"zero_{name}"]), dims, kind)
    if scale is not None:
        return np.asarray(found * scale)
    found = found * spread(to_float64(trace.stages[f"scale_{name}"]), dims, kind)
    return np.asarray(
        found * spread(to_float64(trace.stages[f"global_{name}"]), dims, kind) if form.tensor_scale else found
    )
