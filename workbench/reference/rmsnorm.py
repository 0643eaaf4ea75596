"""RMSNorm in plain code: x / sqrt(mean(x^2) + eps) * weight (Zhang and Sennrich 2019, arXiv 1910.07467)."""

import numpy as np

Array = np.ndarray


def rmsnorm(
    x: Array, weight: Array, *, eps: float = 1e-6, weight_offset: int = 0, cast: str = "after weight"
) -> tuple[Array, Array]:
    """out, of the shape and dtype of x, and rstd, float32, a number for each row.

    x: [rows, dim], weight: [dim], floats. eps is added to the mean square, under the root; weight_offset to the weight.
    cast, where x is rounded back to its dtype: `after weight`, or `before weight` too. In float32, as kernels compute.

    A row with a NaN is NaN. An infinity is NaN in out, and the rest of its row 0. Zeros are NaN where eps is 0.
    """
    wide = x.astype(np.float32)
    squares = np.sum(wide * wide, axis=-1)
    mean = squares * (1 / x.shape[-1])  # kernels multiply by a rounded 1 / dim or divide, which rounds less
    rstd = 1 / np.sqrt(mean + eps)
    normed = wide * rstd[..., None]
    normed_cast = normed.astype(x.dtype if cast == "before weight" else np.float32)
    scale = weight.astype(np.float32)
    if weight_offset:
        scale = scale + weight_offset
    out = normed_cast * scale
    return out.astype(x.dtype), rstd
