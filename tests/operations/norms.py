"""RMSNorm in NumPy's float32, right and with one fault."""

from collections.abc import Callable
from typing import Any

import numpy as np

#: fault -> the first stage that is wrong
FAULTS = {
    "eps outside the root": "rstd",
    "eps left out": "rstd",
    "sum in place of the mean": "rstd",
    "mean over the padded width": "rstd",
    "last vector lost": "squares",
    "half a row": "squares",
    "sum in bfloat16": "squares",
    "input cast": "squares",
    "rstd of the row before": "normed",
    "rstd twice": "normed",
    "weight of the next dim": "out",
    "weight + 1": "out",
    "weight left out": "out",
}


def rmsnorm(fault: str = "", *, dumps: bool = True) -> Callable[..., Any]:
    """The function."""
    from ml_dtypes import bfloat16

    f32 = np.float32

    def function(x: np.ndarray, weight: np.ndarray, *, eps: float) -> Any:
        wide, w, dim = x.astype(f32), weight.astype(f32), x.shape[-1]
        read = wide.astype(bfloat16).astype(f32) if fault == "input cast" else wide
        terms = read * read
        counted = {"last vector lost": dim - 8, "half a row": dim // 2}.get(fault, dim)
        squares = terms[:, :counted].sum(-1)
        if fault == "sum in bfloat16":
            squares = np.add.reduce(terms.astype(bfloat16), axis=-1).astype(f32)
        width = {"sum in place of the mean": 1, "mean over the padded width": -(-dim // 128) * 128}.get(fault, dim)
        mean, tiny = squares / f32(width), f32(0 if fault == "eps left out" else eps)
        rstd = 1 / (np.sqrt(mean) + tiny if fault == "eps outside the root" else np.sqrt(mean + tiny))
        used = {"rstd of the row before": np.roll(rstd, 1), "rstd twice": rstd * rstd}.get(fault, rstd)
        normed = wide * used[:, None]
        scale = {"weight of the next dim": np.roll(w, -1), "weight + 1": w + 1, "weight left out": 1 + 0 * w}
        out = (normed * scale.get(fault, w)).astype(x.dtype)
        return {"squares": squares, "rstd": rstd, "normed": normed, "out": out} if dumps else out

    return function
