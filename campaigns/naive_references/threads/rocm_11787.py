"""rocm-libraries 11787: RMSNorm that rounds the normalised row to bfloat16 before the weight."""
import torch

DTYPE = "bfloat16"
CONTRACT = "stored=normed:bfloat16"


def naive(x, weight):
    x32 = x.float()
    normed = x32 * torch.rsqrt(x32.pow(2).mean(-1, keepdim=True) + 1e-6)
    out = (normed * weight.float()).to(x.dtype)
    return out


def inputs(seed, dtype, rows=12, dim=4096):
    g, dtype = torch.Generator().manual_seed(seed), getattr(torch, dtype)
    return {"x": torch.randn(rows, dim, generator=g).to(dtype), "weight": (1 + 0.3 * torch.randn(dim, generator=g)).to(dtype)}


def rms(x, weight, terms):
    x32 = x.float()
    lanes = torch.zeros(x.shape[0], 256)
    for j in range(0, terms, 256):
        part = x32[:, j:min(j + 256, terms)]
        lanes[:, : part.shape[1]] += part * part
    r = torch.rsqrt(lanes.sum(-1, keepdim=True) / x.shape[1] + 1e-6)
    normed = (x32 * r).to(x.dtype)
    return (normed.float() * weight.float()).to(x.dtype)


def right(x, weight):
    """256 lanes of squares, then their sum; rounded before and after the weight."""
    return rms(x, weight, x.shape[1])


def wrong(x, weight):
    """The sum of squares forgets its last term of 4,096."""
    return rms(x, weight, x.shape[1] - 1)


if __name__ == "__main__":
    import sys
    sys.path.insert(0, ".")
    import check
    check.main(globals())
