"""flash-linear-attention bc3b101d: parallel_nsa_compression: wrong dq and dk of more than 128 dimensions of values.

Usage: fla_nsa_compression_delta.py CHECKOUT. Each tile of 128 values subtracts the whole sum of out dout, and dq and dk
are summed over tiles. Gradients are held against float64.
"""

import importlib
import sys
from types import ModuleType

import torch

for name in ("fla", "fla.ops", "fla.modules"):  # without models, which need transformers
    sys.modules[name] = package = ModuleType(name)
    vars(package).update(__path__=[f"{sys.argv[1]}/{name.replace('.', '/')}"], __version__="0.5.0")
compressed = importlib.import_module("fla.ops.nsa.compression").parallel_nsa_compression
device, T, block = "cuda" if torch.cuda.is_available() else "cpu", 64, 16
for V in (128, 256):
    torch.manual_seed(0)
    shapes = {"q": (1, T, 16, 32), "k": (1, T // block, 1, 32), "v": (1, T // block, 1, V)}
    given = [torch.randn(shape, device=device).requires_grad_() for shape in shapes.values()]
    dout = torch.randn(1, T, 16, V, device=device)
    found = torch.autograd.grad(compressed(*given, T, block_size=block)[0], given, dout)
    q, k, v = own = [x.detach().double().requires_grad_() for x in given]
    seen = torch.arange(T)[:, None] >= ((torch.arange(T // block) + 1) * block - 1)[None, :]
    scores = torch.einsum("bqhd,bkd->bhqk", q, k[:, :, 0]) * 32**-0.5
    weights = torch.where(seen.to(device), scores.exp(), 0.0)
    out = torch.einsum("bhqk,bkv->bqhv", weights / weights.sum(-1, keepdim=True).clamp(1e-9), v[:, :, 0])
    both = zip(shapes, found, torch.autograd.grad(out, own, dout.double()), strict=True)
    print(f"V={V}: relative errors", *(f"d{name} {float((x - y).norm() / y.norm()):.2g}" for name, x, y in both))
