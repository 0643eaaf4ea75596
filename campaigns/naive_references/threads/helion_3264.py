"""helion 3264: layer norm by Welford's method in bfloat16; 0.01 where an ulp of an output above 2 is 0.0156."""
import torch

DTYPE = "bfloat16"
CONTRACT = ""


def naive(x, weight, bias):
    x32 = x.float()
    centered = x32 - x32.mean(-1, keepdim=True)
    rstd = torch.rsqrt((centered * centered).mean(-1, keepdim=True) + 1e-5)
    out = (centered * rstd * weight.float() + bias.float()).to(x.dtype)
    return out


def inputs(seed, dtype, rows=32, dim=1000):
    g, dtype = torch.Generator().manual_seed(seed), getattr(torch, dtype)
    return {"x": torch.randn(rows, dim, generator=g).to(dtype),
            "weight": (1 + 0.3 * torch.randn(dim, generator=g)).to(dtype), "bias": torch.randn(dim, generator=g).to(dtype)}


def welford(x, weight, bias, terms):
    x32, count = x.float(), 0
    mean, m2 = torch.zeros(x.shape[0], 1), torch.zeros(x.shape[0], 1)
    for j in range(0, terms, 128):
        tile = x32[:, j:min(j + 128, terms)]
        n = tile.shape[1]
        there = tile.mean(-1, keepdim=True)
        delta = there - mean
        m2 = m2 + ((tile - there) ** 2).sum(-1, keepdim=True) + delta * delta * (count * n / (count + n))
        mean, count = mean + delta * (n / (count + n)), count + n
    return ((x32 - mean) * torch.rsqrt(m2 / count + 1e-5) * weight.float() + bias.float()).to(x.dtype)


def right(x, weight, bias):
    """Tiles of 128 merged by Chan's formula, the last one of 104; float32, one rounding."""
    return welford(x, weight, bias, x.shape[1])


def wrong(x, weight, bias):
    """Mean and variance forget the last element of 1,000."""
    return welford(x, weight, bias, x.shape[1] - 1)


if __name__ == "__main__":
    import sys
    sys.path.insert(0, ".")
    import check
    check.main(globals())
