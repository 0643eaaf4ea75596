"""vllm 51083: RoPE (interleaved pairs) of k_pe written into a paged MLA cache beside the latent; atol 1e-3 in bfloat16."""
import torch

DTYPE = "bfloat16"
CONTRACT = ""


def naive(kv_c, k_pe, cos, sin, positions, slots, cache):
    c, s = cos[positions].float(), sin[positions].float()
    even, odd = k_pe[:, 0::2].float(), k_pe[:, 1::2].float()
    rotated = torch.stack([even * c - odd * s, odd * c + even * s], -1).flatten(-2)
    out = cache.clone()
    out[slots] = torch.cat([kv_c.float(), rotated], -1).to(cache.dtype)
    return out


def inputs(seed, dtype, tokens=24, latent=64, rope=32, size=40):
    g, dtype = torch.Generator().manual_seed(seed), getattr(torch, dtype)
    angle = torch.arange(256)[:, None] * 10000.0 ** (-torch.arange(rope // 2) * 2 / rope)
    return {"kv_c": torch.randn(tokens, latent, generator=g).to(dtype),
            "k_pe": (2 * torch.randn(tokens, rope, generator=g)).to(dtype),
            "cos": angle.cos().to(dtype), "sin": angle.sin().to(dtype),
            "positions": torch.randint(0, 256, (tokens,), generator=g), "slots": torch.randperm(size, generator=g)[:tokens],
            "cache": torch.randn(size, latent + rope, generator=g).to(dtype)}


def fused(kv_c, k_pe, cos, sin, positions, slots, cache, shift):
    """A token at a time, float32, one rounding at the store."""
    out, latent, pairs = cache.clone(), kv_c.shape[1], cos.shape[1]
    at = torch.arange(pairs)
    at[-1] -= shift
    for t in range(kv_c.shape[0]):
        x = k_pe[t].float().view(-1, 2)
        c, s = cos[positions[t]].float(), sin[positions[t]].float()[at]
        rotated = torch.stack([torch.addcmul(x[:, 0] * c, x[:, 1], -s), torch.addcmul(x[:, 0] * s, x[:, 1], c)], -1)
        out[slots[t], :latent] = kv_c[t]
        out[slots[t], latent:] = rotated.flatten().to(out.dtype)
    return out


def right(kv_c, k_pe, cos, sin, positions, slots, cache):
    return fused(kv_c, k_pe, cos, sin, positions, slots, cache, 0)


def wrong(kv_c, k_pe, cos, sin, positions, slots, cache):
    """The last pair reads the sine of the pair before."""
    return fused(kv_c, k_pe, cos, sin, positions, slots, cache, 1)


if __name__ == "__main__":
    import sys
    sys.path.insert(0, ".")
    import check
    check.main(globals())
