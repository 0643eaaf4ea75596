"""FlagGems 532ff438: softplus and logsigmoid take log(1 + exp(x)), which rounds 1 + exp(x): small results lose digits.

Usage: flaggems_log1p.py CHECKOUT, on a GPU. torch takes log1p. A result of 1e-8 is 0; beside what it is added to that
is little, and as a step size, a gate or a loss of its own it is all. Held against float64.
"""

import importlib
import os
import sys
from types import ModuleType

import torch

os.environ["GEMS_VENDOR"] = "nvidia"
sys.path.insert(0, f"{sys.argv[1]}/src")
for name in ("flag_gems", "flag_gems.ops"):  # without registering all of its operators
    sys.modules[name] = package = ModuleType(name)
    vars(package).update(__path__=[f"{sys.argv[1]}/src/{name.replace('.', '/')}"])
softplus = importlib.import_module("flag_gems.ops.softplus").softplus
log_sigmoid = importlib.import_module("flag_gems.ops.log_sigmoid").log_sigmoid

for x in (-4.0, -8.0, -12.0, -16.0, -18.0):
    for dtype in (torch.float32, torch.bfloat16):
        given = torch.full((64,), x, dtype=dtype, device="cuda")
        for name, own, plain, at in (("softplus", softplus, torch.nn.functional.softplus, given),
                                     ("logsigmoid", log_sigmoid, torch.nn.functional.logsigmoid, -given)):  # fmt: skip
            exact = float(plain(at[:1].double()))
            off = [abs(float(f(at)[0]) / exact - 1) for f in (own, plain)]
            print(f"{name}({float(at[0]):g}), {dtype}: FlagGems off by {off[0]:.1e}, torch by {off[1]:.1e}")
