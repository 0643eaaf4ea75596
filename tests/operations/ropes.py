"""RoPE in NumPy's float32, in both forms, right and with one fault."""

from collections.abc import Callable
from typing import Any

import numpy as np

#: fault -> the first stage that is wrong
FAULTS = {
    "base": "inv_freq",
    "exponent without its 2": "inv_freq",
    "the other form": "inv_freq",
    "position off by one": "angles",
    "positions counted from 0": "angles",
    "angles in bfloat16": "angles",
    "tables swapped": "cos",
    "tables in bfloat16": "cos",
    "sin with the other sign": "sin",
    "pairs of the other form": "partner",
    "minus on the second": "partner",
    "swapped where they are read": "kept",
    "last half of the dims not turned": "out",
}


def spread(table: np.ndarray, pairs: str) -> np.ndarray:
    """A table of pairs over all dims."""
    return np.repeat(table, 2, -1) if pairs == "interleaved" else np.concatenate([table, table], -1)


def partner_of(x: np.ndarray, pairs: str) -> np.ndarray:
    """(-second, first) of each pair (first, second)."""
    if pairs == "interleaved":
        return np.stack([-x[..., 1::2], x[..., ::2]], -1).reshape(x.shape)
    half = x.shape[-1] // 2
    return np.concatenate([-x[..., half:], x[..., :half]], -1)


def rope(fault: str = "", *, dumps: bool = True, pairs: str = "halves", **narrow: str) -> Callable[..., Any]:
    """The function, in the form `pairs`; `narrow` are conventions `table_dtype` and `product_dtype`."""
    from ml_dtypes import bfloat16

    f32 = np.float32
    other = "halves" if pairs == "interleaved" else "interleaved"

    def stored(stage: str, x: np.ndarray, dtype: Any, made: dict[str, np.ndarray]) -> np.ndarray:
        """Noted, cast where the convention says so, and read again."""
        made[stage] = x
        if dtype == f32 or narrow.get("table_dtype" if stage in ("cos", "sin") else "product_dtype") != "inputs":
            return x
        made[f"{stage}_cast"] = x.astype(dtype)
        return made[f"{stage}_cast"].astype(f32)

    def function(x: np.ndarray, positions: np.ndarray, *, base: float) -> Any:
        wide, half, made = x.astype(f32), x.shape[-1] // 2, dict[str, np.ndarray]()
        exponent = np.arange(half, dtype=f32) / f32(2 * half if fault == "exponent without its 2" else half)
        frequencies = f32(2 * base if fault == "base" else base) ** -exponent
        inv_freq = spread(frequencies, other if fault == "the other form" else pairs)
        at = positions + f32(fault == "position off by one")
        at = np.arange(at.shape[1], dtype=f32) + 0 * at if fault == "positions counted from 0" else at
        angles = at[..., None] * inv_freq
        angles = angles.astype(bfloat16).astype(f32) if fault == "angles in bfloat16" else angles
        cos, sin = np.cos(angles), np.sin(angles) * f32(-1 if fault == "sin with the other sign" else 1)
        if fault == "tables swapped":
            cos, sin = sin, cos
        if fault == "tables in bfloat16":
            cos, sin = cos.astype(bfloat16).astype(f32), sin.astype(bfloat16).astype(f32)
        made |= {"inv_freq": inv_freq, "angles": angles}
        by_cos, by_sin = stored("cos", cos, x.dtype, made), stored("sin", sin, x.dtype, made)
        if fault == "swapped where they are read":
            by_cos, by_sin = by_sin, by_cos
        partner = partner_of(wide, other if fault in ("the other form", "pairs of the other form") else pairs)
        made["partner"] = -partner if fault == "minus on the second" else partner
        kept = stored("kept", wide * by_cos[:, None], x.dtype, made)
        turned = stored("turned", made["partner"] * by_sin[:, None], x.dtype, made)
        out = (kept + turned).astype(x.dtype)
        if fault == "last half of the dims not turned":
            out[..., half:] = x[..., half:]
        return {**made, "out": out} if dumps else out

    return function
