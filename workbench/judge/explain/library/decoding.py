"""What an input is dequantised from (codes, code values, scales, zero points), so that hypotheses can change each."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from workbench.case.formats import FORMATS
from workbench.judge.explain.hypothesis import Unfit
from workbench.reference import quantize


@dataclass(frozen=True)
class Decoding:
    """What codes of one input stand for: (value of the code - zero point) * scale * scale of the tensor."""

    at: Any
    of: str  #: the input
    kind: str  #: its format
    codes: np.ndarray  #: [batch, head, row, dim]
    values: np.ndarray  #: of each code before its scale
    scale: np.ndarray  #: [head]; [batch, head, row, dim], as the others, of each token or block as often as it has dims
    zero: np.ndarray | float = 0.0
    over: np.ndarray | float = 1.0

    @staticmethod
    def of_input(at: Any, of: str, *, blocks: bool) -> "Decoding":
        """From the dumped codes and scales. Unfit where the input has no codes, or its scales are per head although
        `blocks` (scales per token or block) are asked for, or the reverse.
        """
        if at.p.codes is None or of not in at.p.codes.coded or (at.whole(f"scale_{of}").ndim > 1) != blocks:
            raise Unfit
        kind, codes, scale = at.p.codes.format, at.whole(f"codes_{of}"), at.whole(f"scale_{of}")
        form = FORMATS[kind]
        if not blocks:
            return Decoding(at, of, kind, codes, form.values, scale)
        whole = Decoding(at, of, kind, codes, form.values, scale)
        return replace(
            whole,
            scale=whole.spread(scale),
            zero=whole.spread(at.whole(f"zero_{of}")) if form.zero else 0.0,
            over=whole.spread(at.whole(f"global_{of}")) if form.tensor_scale else 1.0,
        )

    def spread(self, scales: np.ndarray) -> np.ndarray:
        """Scales or zero points [batch, head, row, block] repeated over the dims of their blocks."""
        dims = self.codes.shape[-1]
        return np.broadcast_to(quantize.spread(scales, dims, self.kind), (*self.codes.shape[:-1], dims))

    @property
    def blocks(self) -> int:
        """How many scales a row has."""
        return int(self.at.whole(f"scale_{self.of}").shape[-1])

    @property
    def block(self) -> int:
        """Dims that share a scale."""
        return FORMATS[self.kind].block if self.blocks > 1 else int(self.codes.shape[-1])

    @property
    def table(self) -> np.ndarray:
        """Decoded value of each code, [head, code]; for one scale a head."""
        return self.scale[:, None] * self.values

    def decoded(self) -> np.ndarray:
        """The dequantised input, [batch, head, row, dim]."""
        if self.scale.ndim == 1:
            return quantize.decoded(self.codes, self.table)
        index = np.clip(np.nan_to_num(self.codes), 0, len(self.values) - 1).astype(np.int64)
        found: np.ndarray = (self.values[index] - self.zero) * self.scale * self.over
        return found

    def other(self, ref: str) -> np.ndarray:
        """The scale or zero point `ref` of another input in this one's shape: its first rows and heads, repeated over
        the group where it has fewer heads. Unfit where shapes do not allow it or the input has no codes.
        """
        if ref[-1] not in self.at.p.codes.coded:
            raise Unfit
        found, wanted = self.at.whole(ref), self.at.whole(f"scale_{self.of}").shape
        if found.ndim != len(wanted):
            raise Unfit
        if found.ndim == 1:
            return fitting(found, len(self.scale))
        if any(n < m for n, m in zip(found.shape, wanted, strict=True)):
            raise Unfit
        return self.spread(found[tuple(slice(0, n) for n in wanted)])


def fitting(scales: np.ndarray, n: int) -> np.ndarray:
    """Scales [n] taken from another input's: by head index, or repeated over the group where there are fewer heads."""
    return scales[:n] if len(scales) >= n else np.repeat(scales, -(-n // len(scales)))[:n]


def power_of_two(x: np.ndarray, up: bool) -> np.ndarray:
    """x rounded up or down to powers of two."""
    return np.exp2(np.ceil(np.log2(x)) if up else np.floor(np.log2(x)))
