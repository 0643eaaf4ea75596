"""mamba e9594ce1: selective_state_update, dt_softplus=True, float32: small step sizes lose up to half of their digits.

Usage: mamba_softplus.py CHECKOUT. The softplus is log(exp(dt) + 1), with Triton 2 it was log1p(exp(dt)), which does not
round 1 + exp(dt). Its layers begin with step sizes of 0.001 to 0.1. The state is held against float64.
"""

import importlib
import sys
from contextlib import nullcontext
from types import ModuleType

import torch

for name in ("mamba_ssm", "mamba_ssm.ops"):  # without models, which need a compiled scan
    sys.modules[name] = package = ModuleType(name)
    vars(package).update(__path__=[f"{sys.argv[1]}/{name.replace('.', '/')}"])
update = importlib.import_module("mamba_ssm.ops.triton.selective_state_update").selective_state_update
device = "cuda" if torch.cuda.is_available() else "cpu"
vars(torch.cuda).update({} if device == "cuda" else {"device": lambda index: nullcontext()})
torch.manual_seed(0)
for size in (1e-1, 1e-2, 1e-3, 1e-4):
    x, b, c = (torch.randn(4, n, device=device) for n in (64, 16, 16))
    dt = torch.full((4, 64), size, dtype=torch.float64, device=device).expm1().log().float()
    state, A, zero = (torch.zeros(*shape, device=device) for shape in ((4, 64, 16), (64, 16), (64,)))
    update(state, x, dt, A - 1, b, c, D=zero, dt_bias=zero, dt_softplus=True)
    exact = torch.nn.functional.softplus(dt.double())[..., None] * b.double()[:, None] * x.double()[..., None]
    error = float(((state.double() - exact).abs() / exact.abs()).max())
    print(f"step sizes of {size:g}: relative error of the state {error:.1e}, {error / 2**-24:.0f} half ulps")
