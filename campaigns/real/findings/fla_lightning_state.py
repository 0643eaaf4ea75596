"""flash-linear-attention bc3b101d: chunk_lightning_attn: a NaN state where the last chunk is partial.

Usage: fla_lightning_state.py CHECKOUT. Tokens behind the end get a factor exp(-gamma t) that overflows, times 0. The
state is held against float64.
"""

import importlib
import sys
from types import ModuleType

import torch

for name in ("fla", "fla.ops", "fla.modules"):  # without models, which need transformers
    sys.modules[name] = package = ModuleType(name)
    vars(package).update(__path__=[f"{sys.argv[1]}/{name.replace('.', '/')}"], __version__="0.5.0")
chunk_lightning_attn = importlib.import_module("fla.ops.lightning_attn.chunk").chunk_lightning_attn

device, H, layer, layers = "cuda" if torch.cuda.is_available() else "cpu", 2, 1, 12
for T in (192, 200):
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, T, H, 32, device=device) for _ in "qkv")
    _, state = chunk_lightning_attn(q, k, v, layer, layers, output_final_state=True)
    gamma = -(8 / H * (1 - layer / layers)) * torch.arange(H, dtype=torch.float64, device=device)
    decay = (gamma * torch.arange(T - 1, -1, -1, device=device)[:, None]).exp()
    exact = torch.einsum("bthk,bthv->bhkv", k.double() * decay[..., None], v.double())
    error = float((state.double() - exact).norm() / exact.norm())
    print(f"T={T}: {int(state.isnan().sum())} of {state.numel()} are NaN, relative error {error:.2g}")
