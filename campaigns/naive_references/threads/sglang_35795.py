"""sglang 35795: key norm and RoPE in one kernel; outputs near 30, where half an ulp of bfloat16 is 0.0625."""
import torch

DTYPE = "bfloat16"
CONTRACT = ""


def naive(k, weight, cos, sin):
    x = k.float()
    normed = x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6) * weight.float()
    x1, x2 = normed.chunk(2, -1)
    c, s = cos.float()[:, None], sin.float()[:, None]
    rotated = torch.cat([x1 * c - x2 * s, x2 * c + x1 * s], -1).to(k.dtype)
    return rotated


def inputs(seed, dtype, tokens=32, heads=4, dim=128):
    g, dtype = torch.Generator().manual_seed(seed), getattr(torch, dtype)
    angle = torch.arange(tokens)[:, None] * 10000.0 ** (-torch.arange(dim // 2) * 2 / dim)
    return {"k": torch.randn(tokens, heads, dim, generator=g).to(dtype),
            "weight": (8 + torch.randn(dim, generator=g)).to(dtype), "cos": angle.cos(), "sin": angle.sin()}


def fused(k, weight, cos, sin, terms):
    """Float32 throughout, rounded once; sum of squares in tiles of 32."""
    x, w, h, dim = k.float(), weight.float(), k.shape[-1] // 2, k.shape[-1]
    squares = sum((x[..., j:min(j + 32, terms)] ** 2).sum(-1, keepdim=True) for j in range(0, terms, 32))
    r = torch.rsqrt(squares * (1 / dim) + 1e-6)
    x1, x2 = x[..., :h] * (r * w[:h]), x[..., h:] * (r * w[h:])
    c, s = cos[:, None].float(), sin[:, None].float()
    return torch.cat([torch.addcmul(-(x2 * s), x1, c), torch.addcmul(x1 * s, x2, c)], -1).to(k.dtype)


def right(k, weight, cos, sin):
    return fused(k, weight, cos, sin, k.shape[-1])


def wrong(k, weight, cos, sin):
    """The sum of squares forgets its last term."""
    return fused(k, weight, cos, sin, k.shape[-1] - 1)


if __name__ == "__main__":
    import sys
    sys.path.insert(0, ".")
    import check
    check.main(globals())
