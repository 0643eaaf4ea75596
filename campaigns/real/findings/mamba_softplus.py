"""mamba e9594ce1: selective_state_update, dt_softplus=True, float32: small step sizes lose up to half of their digits.

Usage: mamba_softplus.py CHECKOUT. The softplus is log(exp(dt) + 1); of Triton 2 it was log1p(exp(dt)), which does not
round 1 + exp(dt). Step sizes of 0.001 to 0.1 are those that its layers begin with. The state is held against float64.
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

device, B, D, N = "cuda" if torch.cuda.is_available() else "cpu", 4, 64, 16
if device == "cpu":
    torch.cuda.device = lambda index: nullcontext()
torch.manual_seed(0)
for size in (1e-1, 1e-2, 1e-3, 1e-4):
    x, b, c = (torch.randn(*shape, device=device) for shape in ((B, D), (B, N), (B, N)))
    dt = torch.full((B, D), size, dtype=torch.float64, device=device).expm1().log().float()
    state, A, zero = (
        torch.zeros(B, D, N, device=device),
        -torch.ones(D, N, device=device),
        torch.zeros(D, device=device),
    )
    update(state, x, dt, A, b, c, D=zero, dt_bias=zero, dt_softplus=True)
    exact = torch.nn.functional.softplus(dt.double())[..., None] * b.double()[:, None] * x.double()[..., None]
    error = float(((state.double() - exact).abs() / exact.abs()).max())
    print(f"step sizes of {size:g}: relative error of the state {error:.1e}, {error / 2**-24:.0f} half ulps")
