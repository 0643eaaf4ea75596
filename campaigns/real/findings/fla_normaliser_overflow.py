"""flash-linear-attention bc3b101d: chunk_linear_attn, normalize=True, float16: dq, dk lack the normaliser's part.

Usage: fla_normaliser_overflow.py CHECKOUT. Where a denominator is above 256, its square in float16 is infinite in
StatefulNormalizeFunction.backward. Gradients are held against float64.
"""

import importlib
import sys
from types import ModuleType

import torch

for name in ("fla", "fla.ops", "fla.modules"):  # without models, which need transformers
    sys.modules[name] = package = ModuleType(name)
    vars(package).update(__path__=[f"{sys.argv[1]}/{name.replace('.', '/')}"], __version__="0.5.0")
chunk_linear_attn = importlib.import_module("fla.ops.linear_attn.chunk").chunk_linear_attn

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
q, k = (torch.nn.functional.elu(torch.randn(1, 192, 2, 32, device=device)) + 1 for _ in "qk")  # as a feature map's
v, do = (torch.randn(1, 192, 2, 32, device=device) for _ in range(2))
q, k, v, do = (x.half() for x in (q, k, v, do))
given = [x.requires_grad_() for x in (q, k, v)]
found = torch.autograd.grad(chunk_linear_attn(q, k, v, normalize=True)[0], given, do)
exact = [x.detach().double().requires_grad_() for x in given]
scores = torch.einsum("bthd,bshd->bhts", exact[0], exact[1]).tril()
out = torch.einsum("bhts,bshd->bthd", scores / scores.sum(-1, keepdim=True), exact[2])
for name, x, y in zip(("dq", "dk", "dv"), found, torch.autograd.grad(out, exact, do.double()), strict=True):
    print(f"{name}: relative error {float((x.double() - y).norm() / y.norm()):.2g}")
