"""HipKittens 64: bfloat16 GEMM whose terms cancel, rtol 1e-2."""
import torch

DTYPE = "bfloat16"
CONTRACT = ""


def naive(a, b):
    out = (a.float() @ b.float()).to(a.dtype)
    return out


def inputs(seed, dtype, M=32, N=32, K=4096):
    """The second half of K nearly takes back what the first half adds."""
    g, dtype = torch.Generator().manual_seed(seed), getattr(torch, dtype)
    a, b = torch.randn(M, K // 2, generator=g), torch.randn(K // 2, N, generator=g)
    return {"a": torch.cat([a, -a], 1).to(dtype),
            "b": torch.cat([b, b + 0.01 * torch.randn(K // 2, N, generator=g)]).to(dtype)}


def tiles(a, b, K):
    acc = torch.zeros(a.shape[0], b.shape[1])
    for j in range(0, K, 64):
        e = min(j + 64, K)
        acc = acc + a[:, j:e].float() @ b[j:e].float()
    return acc.to(a.dtype)


def right(a, b):
    """Tiles of 64 along K into one float32 accumulator, rounded once."""
    return tiles(a, b, a.shape[1])


def wrong(a, b):
    """The last of 4,096 terms is forgotten."""
    return tiles(a, b, a.shape[1] - 1)


if __name__ == "__main__":
    import sys
    sys.path.insert(0, ".")
    import check
    check.main(globals())
