"""native-sparse-attention-triton 9bea856c: flash_attention_varlen, gqa_interleave=True: dk and dv of the wrong heads.

Usage: nsa_gqa_interleave.py CHECKOUT. backward_dkdv deals out heads by h % NUM_SHARE_Q_HEADS, the forward pass by
h % NUM_KV_HEADS: where these differ, it sums what is of other heads or never written. Held against float64.
"""

import importlib
import sys
from types import ModuleType

import torch

for name in ("", ".ops", ".ops.triton"):  # without other kernels
    sys.modules[f"native_sparse_attention{name}"] = package = ModuleType(name)
    vars(package)["__path__"] = [f"{sys.argv[1]}/native_sparse_attention{name.replace('.', '/')}"]
attention = importlib.import_module("native_sparse_attention.ops.triton.flash_attention").flash_attention_varlen
device, T = "cuda" if torch.cuda.is_available() else "cpu", 64
starts = torch.tensor([0, T], device=device, dtype=torch.int32)
for shared, n in ((2, 2), (3, 3), (2, 4), (1, 8)):
    torch.manual_seed(0)  # always 9 heads in memory, since the kernel reads some that there are not
    drawn, made = [torch.randn(9, T, 32, device=device).half()[: x * shared] for x in (n, 1, 1, n)], []
    for dtype in (torch.float64, torch.float16):
        q, k, v, do = (x.to(dtype).requires_grad_() for x in drawn)
        out = torch.nn.functional.scaled_dot_product_attention(q, k.repeat(n, 1, 1), v.repeat(n, 1, 1), is_causal=True)
        made.append(torch.autograd.grad(out, (k, v), do))
    out = attention(*(x.transpose(0, 1) for x in (q, k, v)), starts, starts, T, T, causal=1, gqa_interleave=1)
    made.append(torch.autograd.grad(out.transpose(0, 1), (k, v), do))
    for name, exact, *others in zip(("dk", "dv"), *made, strict=True):
        off = [f"{float((x.double() - exact).norm() / exact.norm()):.1e}" for x in others]
        print(f"{n * shared} heads share {shared} of keys: {name} of NSA off by {off[1]}, of torch by {off[0]}")
