"""aiter e4048607: flash_attn_func, float16, not causal: dq is NaN where scores are low and keys end within a tile.

Usage: aiter_padding_keys.py CHECKOUT. _bwd_dq_inner does not mask keys behind the end: their weight is exp(0 - lse),
infinite in float16 for an lse below -11, and that times 0 is NaN. dq is held against float64.
"""

import importlib
import sys
from types import ModuleType

import torch

for name in ("", ".ops", ".ops.triton", ".ops.triton._triton_kernels.flash_attn_triton_amd"):  # without other kernels
    sys.modules[f"aiter{name}"] = package = ModuleType(name)
    vars(package).update(__path__=[f"{sys.argv[1]}/aiter{name.replace('.', '/')}"], flash_attn_2=None)
sys.modules["aiter.ops.triton.utils._triton.arch_info"] = arch = ModuleType("arch_info")
vars(arch).update(get_arch=lambda: "gfx942")  # on any GPU
attention = importlib.import_module("aiter.ops.triton.attention.mha").flash_attn_func
sizes = {"BLOCK_M1": 32, "BLOCK_N1": 64, "BLOCK_M2": 64, "BLOCK_N2": 32, "BLK_SLICE_FACTOR": 2}
tiles = {"preprocess_kernel": {"PRE_BLOCK": 64}, "onekernel": sizes}
vars(sys.modules["aiter.ops.triton.attention.mha_onekernel_bwd"])["_get_config"] = lambda: tiles
device, ahead = "cuda" if torch.cuda.is_available() else "cpu", {"BLOCK_M": 64, "BLOCK_N": 32, "PRELOAD_V": False}
for keys, mean in ((96, 0), (100, 0), (96, 2), (100, 2)):
    torch.manual_seed(0)
    drawn = [(m + torch.randn(1, 2, keys, 32, device=device)).half() for m in (mean, -mean, 0, 0)]
    dq: list[torch.Tensor] = []
    for dtype in (torch.float64, torch.float16):
        q, k, v, do = (x.to(dtype).requires_grad_() for x in drawn)
        dq += torch.autograd.grad(torch.nn.functional.scaled_dot_product_attention(q, k, v), q, do)
    dq += torch.autograd.grad(attention(*(x.transpose(1, 2) for x in (q, k, v)), config=ahead).transpose(1, 2), q, do)
    off = [f"{float((x.double() - dq[0]).norm() / dq[0].norm()):.1e}" for x in dq]
    print(f"{keys} keys, q around {mean}, k around {-mean}: dq of aiter off by {off[2]}, of torch by {off[1]}")
