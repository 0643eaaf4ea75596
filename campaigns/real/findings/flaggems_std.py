"""FlagGems 532ff438: std of all elements, float32: a mean of squares less the square of the mean.

Usage: flaggems_std.py CHECKOUT, on a GPU. Of numbers far from 0 nothing is left; along a dimension its kernel takes
the mean first. Held against float64.
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
std = importlib.import_module("flag_gems.ops.std").std

torch.manual_seed(0)
for mean in (0, 100, 1000, 10_000):
    x = mean + torch.randn(100, 96, device="cuda")
    exact = float(x.double().std())
    said = {"FlagGems": std(x), "torch": x.std()}
    print(f"mean {mean}: " + ", ".join(f"{name} off by {abs(float(y) / exact - 1):.1e}" for name, y in said.items()))
