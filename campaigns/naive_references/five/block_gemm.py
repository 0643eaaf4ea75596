"""GEMM of int8 codes with a scale per row and block of 32: out = (a_codes * a_scale) @ (b_codes * b_scale).T."""
import torch


def naive(a_codes, a_scale, b_codes, b_scale):
    a = a_codes.float() * a_scale.float().repeat_interleave(32, -1)
    b = b_codes.float() * b_scale.float().repeat_interleave(32, -1)
    out = a @ b.T
    return out


def inputs(seed, dtype, M=48, N=40, K=480):
    g, dtype = torch.Generator().manual_seed(seed), getattr(torch, dtype)
    a, b = ((36 * torch.randn(n, K, generator=g)).round().clamp(-128, 127).to(torch.int8) for n in (M, N))
    sa, sb = ((0.01 + 0.02 * torch.rand(n, K // 32, generator=g)).to(dtype) for n in (M, N))
    return {"a_codes": a, "a_scale": sa, "b_codes": b, "b_scale": sb}


def right_int32(a_codes, a_scale, b_codes, b_scale):
    """Integer dot products per block, exact, each times both scales into a float32 accumulator."""
    out = torch.zeros(a_codes.shape[0], b_codes.shape[0])
    for i in range(a_scale.shape[1]):
        s = slice(32 * i, 32 * i + 32)
        dot = a_codes[:, s].int() @ b_codes[:, s].int().T
        out += dot.float() * (a_scale[:, i, None].float() * b_scale[None, :, i].float())
    return out


def right_operands(a_codes, a_scale, b_codes, b_scale):
    """Dequantised to the scales' dtype (float32, or bfloat16 operands of the product), K in tiles of 64."""
    out, dtype = torch.zeros(a_codes.shape[0], b_codes.shape[0]), a_scale.dtype
    a = (a_codes.float() * a_scale.float().repeat_interleave(32, -1)).to(dtype).float()
    b = (b_codes.float() * b_scale.float().repeat_interleave(32, -1)).to(dtype).float()
    for j in range(0, a.shape[1], 64):
        out += a[:, j:j + 64] @ b[:, j:j + 64].T
    return out


def right_split_k(a_codes, a_scale, b_codes, b_scale):
    """Float dot products of codes per block, scaled by row, then column; even and odd blocks apart, last first."""
    parts = [torch.zeros(a_codes.shape[0], b_codes.shape[0]) for _ in range(2)]
    for i in reversed(range(a_scale.shape[1])):
        s = slice(32 * i, 32 * i + 32)
        dot = a_codes[:, s].float() @ b_codes[:, s].float().T
        parts[i % 2] += dot * a_scale[:, i, None].float() * b_scale[None, :, i].float()
    return parts[0] + parts[1]


def staged(a_codes, a_scale, b_codes, b_scale, mistake):
    sa, sb = a_scale.float(), b_scale.float().clone()
    ca = a_codes.float()
    if mistake == "min":
        ca = ca.clamp(min=-127)
    if mistake == "scale":
        sb[:, -1] = sb[:, -2]
    a, b = ca * sa.repeat_interleave(32, -1), b_codes.float() * sb.repeat_interleave(32, -1)
    out = torch.zeros(a.shape[0], b.shape[0])
    for j in range(0, a.shape[1], 32):
        out = out + a[:, j:j + 32] @ b[:, j:j + 32].T
        if mistake == "fp16":
            out = out.half().float()
    return {"a": a, "b": b, "out": out}


def wrong_int8_min_staged(a_codes, a_scale, b_codes, b_scale):
    return staged(a_codes, a_scale, b_codes, b_scale, "min")


def wrong_int8_min(a_codes, a_scale, b_codes, b_scale):
    """Codes of -128 in a are taken for -127, as in a symmetric format."""
    return staged(a_codes, a_scale, b_codes, b_scale, "min")["out"]


def wrong_scale_index_staged(a_codes, a_scale, b_codes, b_scale):
    return staged(a_codes, a_scale, b_codes, b_scale, "scale")


def wrong_scale_index(a_codes, a_scale, b_codes, b_scale):
    """The last block of b is scaled by the scale of the block before."""
    return staged(a_codes, a_scale, b_codes, b_scale, "scale")["out"]


def wrong_acc_fp16(a_codes, a_scale, b_codes, b_scale):
    """The accumulator is kept in float16 from block to block."""
    return staged(a_codes, a_scale, b_codes, b_scale, "fp16")["out"]


if __name__ == "__main__":
    import sys
    sys.path.insert(0, ".")
    import check
    check.main(globals())
