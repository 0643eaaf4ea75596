"""native-sparse-attention-triton 9bea856c: flash_attention_varlen, float16, not causal: NaN dq where scores are low.

Usage: nsa_padding_keys.py CHECKOUT. Where a sequence is no multiple of 64, backward_dq does not mask keys behind the
end: their weight is exp(0 - lse), infinite in float16 for an lse below -11, and that times 0 is NaN. dq is held against
float64.
"""

import importlib
import sys
from types import ModuleType

import torch

for name in ("", ".ops", ".ops.triton"):  # without other kernels
    sys.modules[f"native_sparse_attention{name}"] = package = ModuleType(name)
    vars(package)["__path__"] = [f"{sys.argv[1]}/native_sparse_attention{name.replace('.', '/')}"]
attention = importlib.import_module("native_sparse_attention.ops.triton.flash_attention").flash_attention_varlen
device = "cuda" if torch.cuda.is_available() else "cpu"
for keys, mean in ((128, 0), (100, 0), (128, 2), (100, 2)):
    torch.manual_seed(0)
    starts = torch.tensor([0, keys], device=device, dtype=torch.int32)
    drawn = [(m + torch.randn(2, keys, 32, device=device)).half() for m in (mean, -mean, 0, 0)]
    dq: list[torch.Tensor] = []
    for dtype in (torch.float64, torch.float16):
        q, k, v, do = (x.to(dtype).requires_grad_() for x in drawn)
        dq += torch.autograd.grad(torch.nn.functional.scaled_dot_product_attention(q, k, v), q, do)
    out = attention(*(x.transpose(0, 1) for x in (q, k, v)), starts, starts, keys, keys, causal=0, gqa_interleave=0)
    dq += torch.autograd.grad(out.transpose(0, 1), q, do)
    off = [f"{float((x.double() - dq[0]).norm() / dq[0].norm()):.1e}" for x in dq]
    print(f"{keys} keys, q around {mean}, k around {-mean}: dq of NSA off by {off[2]}, of torch by {off[1]}")
