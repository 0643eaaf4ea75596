"""Attention on 8-bit codes in float64, stage by stage: scales, codes, decode tables, decoded tiles, then `online.py`.

The stages up to the codes are the quantiser's, the others the kernel's. With a kernel's codes and scales as `given` and
nothing else, what comes out is what the kernel should have made of them; what q, k and v lost when they were quantised
is in none of its errors.
"""

from collections.abc import Sequence

import numpy as np

from workbench.case.stages import ALGORITHMS
from workbench.case.tiling import tiling
from workbench.reference import online, quantize
from workbench.reference.online import NOTHING, Arrays, Cast


def forward(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    *,
    scale: float,
    mask: np.ndarray,
    bias: np.ndarray | None = None,
    block_k: int,
    tile_order: str | Sequence[int] = "ascending",
    codes: str,
    scaling: str = "dynamic",
    given: Arrays = NOTHING,
    cast: Cast | None = None,
    operand_cast: Cast | None = None,
    row_sum_of_cast: bool = False,
    free_maxima: bool = False,
) -> dict[str, np.ndarray]:
    """Every stage of the fp8 algorithm in float64, name -> array with the axes of `stages.py`, in data-flow order.

    `codes`: simulated, e4m3 or e5m2; `scaling`: dynamic or static, of `quantize.scale`; `operand_cast` rounds decoded
    values to what the products read. The rest, and `given`, as in `online.forward`. Codes are their numbers, 0 to 255;
    a table holds NaN and infinities where codes are NaN and infinities.
    """
    sizes = online.axis_sizes(q, k, v, tiling(k.shape[2], block_k))
    seen = online.as_given(given, "fp8", sizes)
    before = decoding(q, k, v, codes=codes, scaling=scaling, given=seen, operand_cast=operand_cast)
    read = (seen.get(name, before[name]) for name in ("dequant_q", "dequant_k", "dequant_v"))
    attention = online.forward(
        *read, scale=scale, mask=mask, bias=bias, block_k=block_k, tile_order=tile_order,
        cast=cast, row_sum_of_cast=row_sum_of_cast, free_maxima=free_maxima,
        given={name: array for name, array in seen.items() if name in ALGORITHMS["flash"]},
    )  # fmt: skip
    return before | attention


def decoding(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    *,
    codes: str,
    scaling: str = "dynamic",
    given: Arrays = NOTHING,
    operand_cast: Cast | None = None,
) -> dict[str, np.ndarray]:
    """The stages before attention alone, scale_q to dequant_v; arguments as of `forward`, `given` in float64."""
    inputs = {"q": np.asarray(q, np.float64), "k": np.asarray(k, np.float64), "v": np.asarray(v, np.float64)}
    computed: dict[str, np.ndarray] = {}
    seen = dict(given)

    def keep(name: str, value: np.ndarray) -> None:
        computed[name] = value
        seen.setdefault(name, value)

    for name, x in inputs.items():
        keep(f"scale_{name}", quantize.scale(x, codes, scaling=scaling))
    for name, x in inputs.items():
        keep(f"codes_{name}", quantize.codes(x, seen[f"scale_{name}"], codes))
    for name in ("k", "v"):
        keep(f"lut_{name}", quantize.table(seen[f"scale_{name}"], codes))
    table_q = quantize.table(seen["scale_q"], codes)
    for name, table in (("q", table_q), ("k", seen["lut_k"]), ("v", seen["lut_v"])):
        value = quantize.decoded(seen[f"codes_{name}"], table)
        keep(f"dequant_{name}", value if operand_cast is None else operand_cast(value))
    return computed


def decoded_inputs(codes: str, given: Arrays) -> dict[str, np.ndarray]:
    """q, k and v [b, heads, rows, d] that the codes_* and scale_* of `given` stand for, not rounded to any dtype."""
    return {
        name: quantize.decoded(given[f"codes_{name}"], quantize.table(given[f"scale_{name}"], codes)) for name in "qkv"
    }
