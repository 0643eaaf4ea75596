"""Backward of layer norm: dx, dweight, dbias from dy."""
import ml_dtypes  # noqa: F401
import numpy as np

f32 = np.float32


def naive(dy, x, weight):
    mean = x.mean(-1, keepdims=True)
    centered = x - mean
    var = (centered ** 2).mean(-1, keepdims=True)
    rstd = 1 / np.sqrt(var + 1e-5)
    xhat = centered * rstd
    dxhat = dy * weight
    c1 = dxhat.mean(-1, keepdims=True)
    c2 = (dxhat * xhat).mean(-1, keepdims=True)
    dx = rstd * (dxhat - c1 - xhat * c2)
    dweight = (dy * xhat).sum(0)
    dbias = dy.sum(0)
    return dx, dweight, dbias


def inputs(seed, dtype, rows=30, dim=768):
    rng = np.random.default_rng(seed)
    return {"dy": rng.standard_normal((rows, dim)).astype(dtype),
            "x": (0.5 + 1.5 * rng.standard_normal((rows, dim))).astype(dtype),
            "weight": (1 + 0.2 * rng.standard_normal(dim)).astype(dtype)}


def right_tiles(dy, x, weight):
    """Two passes over tiles of 128 columns, last tile first; rows summed in groups of 8, then the groups."""
    dtype, (rows, n) = x.dtype, x.shape
    dy, x, weight = (v.astype(f32) for v in (dy, x, weight))
    starts = range(n - 128, -1, -128)
    mean = sum(x[:, j:j + 128].sum(-1, keepdims=True) for j in starts) * f32(1 / n)
    var = sum(((x[:, j:j + 128] - mean) ** 2).sum(-1, keepdims=True) for j in starts) * f32(1 / n)
    rstd = f32(1) / np.sqrt(var + f32(1e-5))
    xhat, g = (x - mean) * rstd, dy * weight
    c1 = sum(g[:, j:j + 128].sum(-1, keepdims=True) for j in starts) * f32(1 / n)
    c2 = sum((g * xhat)[:, j:j + 128].sum(-1, keepdims=True) for j in starts) * f32(1 / n)
    groups = [slice(i, i + 8) for i in range(0, rows, 8)]
    dweight = np.stack([(dy[s] * xhat[s]).sum(0) for s in groups]).sum(0)
    dbias = np.stack([dy[s].sum(0) for s in groups]).sum(0)
    return (rstd * (g - (c1 + xhat * c2))).astype(dtype), dweight, dbias


def right_welford(dy, x, weight):
    """Welford over 32 lanes, then Chan's merge of the lanes; dx = (n g - sum g - xhat sum(g xhat)) rstd / n."""
    dtype, (rows, n) = x.dtype, x.shape
    dy, x, weight = (v.astype(f32) for v in (dy, x, weight))
    mean, m2 = np.zeros((rows, 32), f32), np.zeros((rows, 32), f32)
    for i, j in enumerate(range(0, n, 32)):
        delta = x[:, j:j + 32] - mean
        mean = mean + delta / f32(i + 1)
        m2 = m2 + delta * (x[:, j:j + 32] - mean)
    count = n // 32
    while mean.shape[1] > 1:
        half = mean.shape[1] // 2
        delta = mean[:, half:] - mean[:, :half]
        mean = mean[:, :half] + delta * f32(0.5)
        m2 = m2[:, :half] + m2[:, half:] + delta * delta * f32(count / 2)
        count *= 2
    rstd = f32(1) / np.sqrt(m2 / f32(n) + f32(1e-5))
    xhat, g = (x - mean) * rstd, dy * weight
    s1, s2 = g.sum(-1, keepdims=True), (g * xhat).sum(-1, keepdims=True)
    dx = (f32(n) * g - s1 - xhat * s2) * (rstd * f32(1 / n))
    dweight, dbias = np.zeros(n, f32), np.zeros(n, f32)
    for r in range(rows - 1, -1, -1):
        dweight, dbias = dweight + dy[r] * xhat[r], dbias + dy[r]
    return dx.astype(dtype), dweight, dbias


def right_dots(dy, x, weight):
    """Means as dot products with ones / n, c2 from sum(g (x - mean)) * rstd, column sums as ones @ matrix."""
    dtype, (rows, n) = x.dtype, x.shape
    dy, x, weight = (v.astype(f32) for v in (dy, x, weight))
    ones, across = np.full((n, 1), f32(1 / n), f32), np.ones(rows, f32)
    centered = x - x @ ones
    rstd = f32(1) / np.sqrt((centered * centered) @ ones + f32(1e-5))
    g = dy * weight
    c1, c2 = g @ ones, (g * centered) @ ones * rstd * rstd
    return ((g - c1 - centered * c2) * rstd).astype(dtype), across @ (dy * (centered * rstd)), across @ dy


def staged(dy, x, weight, mistake=""):
    dtype, (rows, n) = x.dtype, x.shape
    dy, x, weight = (v.astype(f32) for v in (dy, x, weight))
    mean = x.mean(-1, keepdims=True)
    centered = x - mean
    var = (centered ** 2).sum(-1, keepdims=True) / f32(n - 1 if mistake == "var" else n)
    rstd = f32(1) / np.sqrt(var + f32(1e-5))
    xhat, dxhat = centered * rstd, dy * weight
    c1 = dxhat.mean(-1, keepdims=True)
    c2 = (dxhat * xhat)[:, : n - (mistake == "c2")].sum(-1, keepdims=True) / f32(n)
    dx = (rstd * (dxhat - c1 - xhat * c2)).astype(dtype)
    used = rows // 8 * 8 if mistake == "rows" else rows
    dweight, dbias = (dy[:used] * xhat[:used]).sum(0), dy.sum(0)
    return {"mean": mean, "centered": centered, "var": var, "rstd": rstd, "xhat": xhat, "dxhat": dxhat, "c1": c1,
            "c2": c2, "dx": dx, "dweight": dweight, "dbias": dbias}


def last(got):
    return got["dx"], got["dweight"], got["dbias"]


def wrong_var_staged(dy, x, weight):
    return staged(dy, x, weight, "var")


def wrong_var(dy, x, weight):
    """The variance is divided by n - 1."""
    return last(staged(dy, x, weight, "var"))


def wrong_c2_staged(dy, x, weight):
    return staged(dy, x, weight, "c2")


def wrong_c2(dy, x, weight):
    """The sum of dxhat * xhat forgets its last column."""
    return last(staged(dy, x, weight, "c2"))


def wrong_rows(dy, x, weight):
    """dweight only sums whole groups of 8 rows: the last 6 of 30 are dropped."""
    return last(staged(dy, x, weight, "rows"))


if __name__ == "__main__":
    import sys
    sys.path.insert(0, ".")
    import check
    check.main(globals())
