"""aiter e4048607: flash_attn_func: window_size=(0, -1) is taken for no window, only (-1, -1) is documented as none.

Usage: aiter_window_zero.py CHECKOUT. Its docstring lets query i attend to keys from i - window_size[0] on; with causal,
(0, -1) leaves it its own key, and the output is v. Held against float64.
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
tiles, device = {"BLOCK_M": 64, "BLOCK_N": 32, "PRELOAD_V": False}, "cuda" if torch.cuda.is_available() else "cpu"
plain = lambda seen, q, k, v: (q @ k.mT * 32**-0.5).masked_fill(~seen, -torch.inf).softmax(-1) @ v  # noqa: E731
torch.manual_seed(0)
q, k, v = (torch.randn(1, 96, 2, 32, device=device).half() for _ in "qkv")
behind = torch.arange(96, device=device)[:, None] - torch.arange(96, device=device)
for causal, left in ((True, -1), (True, 1), (True, 0), (False, -1), (False, 1), (False, 0)):
    seen = (behind >= (0 if causal else -96)) & (behind <= (96 if left < 0 else left))
    y, exact = (
        plain(seen, *(x.to(dtype).transpose(1, 2) for x in (q, k, v))) for dtype in (torch.float16, torch.float64)
    )
    x = attention(q, k, v, causal=causal, window_size=(left, -1), config=tiles).transpose(1, 2)
    off = [f"{float((out.double() - exact).norm() / exact.norm()):.1e}" for out in (x, y)]
    print(f"causal={causal}, window_size=({left}, -1): aiter off by {off[0]}, torch by {off[1]}")
