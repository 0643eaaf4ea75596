"""sglang 28226: all-reduce, residual add and RMSNorm; the sum is rounded twice, after the reduction and after the add."""
import torch

DTYPE = "bfloat16"
CONTRACT = "stored=reduced:bfloat16+added:bfloat16"


def naive(partials, residual, weight):
    reduced = partials.float().sum(0)
    added = reduced + residual.float()
    rstd = torch.rsqrt((added * added).mean(-1, keepdim=True) + 1e-6)
    out = (added * rstd * weight.float()).to(residual.dtype)
    return out, added


def inputs(seed, dtype, ranks=4, rows=10, dim=2048):
    g, dtype = torch.Generator().manual_seed(seed), getattr(torch, dtype)
    return {"partials": torch.randn(ranks, rows, dim, generator=g).to(dtype),
            "residual": torch.randn(rows, dim, generator=g).to(dtype),
            "weight": (1 + 0.3 * torch.randn(dim, generator=g)).to(dtype)}


def fused(partials, residual, weight, skip):
    dtype = residual.dtype
    reduced = partials[0].float()
    for r in range(1, partials.shape[0]):
        reduced = reduced + partials[r].float()
    if skip:
        reduced[:, -1] -= partials[-1, :, -1].float()
    added = (reduced.to(dtype).float() + residual.float()).to(dtype)
    x = added.float()
    squares = sum((x[:, j:j + 512] ** 2).sum(-1, keepdim=True) for j in range(0, x.shape[1], 512))
    return (x * torch.rsqrt(squares * (1 / x.shape[1]) + 1e-6) * weight.float()).to(dtype), added


def right(partials, residual, weight):
    """Rank after rank in float32, rounded; the residual added, rounded; the norm of what was rounded."""
    return fused(partials, residual, weight, False)


def wrong(partials, residual, weight):
    """The last column's sum forgets the last rank."""
    return fused(partials, residual, weight, True)


if __name__ == "__main__":
    import sys
    sys.path.insert(0, ".")
    import check
    check.main(globals())
