"""rocm-libraries 4556: outputs near 66, where half an ulp of bfloat16 is 0.25; taken here as a GEMM with bias."""
import torch

DTYPE = "bfloat16"
CONTRACT = ""


def naive(a, b, bias):
    product = a.float() @ b.float().T
    out = (product + bias.float()).to(a.dtype)
    return out


def inputs(seed, dtype, M=48, N=48, K=256):
    g, dtype = torch.Generator().manual_seed(seed), getattr(torch, dtype)
    return {"a": torch.rand(M, K, generator=g).to(dtype), "b": torch.rand(N, K, generator=g).to(dtype),
            "bias": (2 + torch.rand(N, generator=g)).to(dtype)}


def split_k(a, b, bias, K):
    halves = [torch.zeros(a.shape[0], b.shape[0]), bias.float().expand(a.shape[0], -1)]
    for i, j in enumerate(range(0, K, 32)):
        e = min(j + 32, K)
        halves[i % 2] = halves[i % 2] + a[:, j:e].float() @ b[:, j:e].float().T
    return (halves[0] + halves[1]).to(a.dtype)


def right(a, b, bias):
    """Split K in two, the bias starts one accumulator, one rounding at the store."""
    return split_k(a, b, bias, a.shape[1])


def wrong(a, b, bias):
    """The last of 256 terms is forgotten."""
    return split_k(a, b, bias, a.shape[1] - 1)


if __name__ == "__main__":
    import sys
    sys.path.insert(0, ".")
    import check
    check.main(globals())
