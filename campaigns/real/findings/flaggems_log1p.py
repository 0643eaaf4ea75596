"""FlagGems 532ff438: softplus and logsigmoid take log(1 + exp(x)), which rounds 1 + exp(x): small results lose digits.

Usage: flaggems_log1p.py CHECKOUT, on a GPU. torch takes log1p. A result of 1e-8 is 0; beside what it is added to that
is little, and as a step size, a gate or a loss of its own it is all. Held against float64.
"""

import importlib
import os
import sys
from types import ModuleType

import torch
import torch.nn.functional as F

os.environ["GEMS_VENDOR"] = "nvidia"
sys.path.insert(0, f"{sys.argv[1]}/src")
for name in ("flag_gems", "flag_gems.ops"):  # without registering all of its operators
    sys.modules[name] = package = ModuleType(name)
    vars(package).update(__path__=[f"{sys.argv[1]}/src/{name.replace('.', '/')}"])
for name in ("flag_gems.utils.libentry", "flag_gems.utils"):  # a launcher of what other versions of Triton compile
    vars(importlib.import_module(name)).update(libentry=lambda *_, **__: lambda kernel: kernel)
softplus = importlib.import_module("flag_gems.ops.softplus").softplus
log_sigmoid = importlib.import_module("flag_gems.ops.log_sigmoid").log_sigmoid

for x in (-4.0, -8.0, -12.0, -16.0, -18.0):
    given = torch.full((64,), x, device="cuda")
    for own, plain, at in ((softplus, F.softplus, given), (log_sigmoid, F.logsigmoid, -given)):
        exact = float(plain(at[0].double()))
        off = [abs(float(f(at)[0]) / exact - 1) for f in (own, plain)]
        print(f"{own.__name__}({float(at[0]):g}): FlagGems off by {off[0]:.1e}, torch by {off[1]:.1e}")
