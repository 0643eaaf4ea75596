"""Liger-Kernel ead96b61: group norm: the variance is a mean of squares less the square of the mean.

Usage: liger_group_norm.py CHECKOUT, on a GPU. Of channels far from 0 few digits are left; in bfloat16, whose squares
and sums are rounded to bfloat16 as well (`squared_sum += tl.sum(X * X)`), none of channels around 10. Held against
float64.
"""

import importlib
import sys
from types import ModuleType

import torch

sys.path.insert(0, f"{sys.argv[1]}/src")
for name in ("liger_kernel", "liger_kernel.ops"):  # without importing all of its operators
    sys.modules[name] = package = ModuleType(name)
    vars(package).update(__path__=[f"{sys.argv[1]}/src/{name.replace('.', '/')}"])
norm = importlib.import_module("liger_kernel.ops.group_norm").LigerGroupNormFunction.apply
torch.manual_seed(0)
for dtype, means in ((torch.float32, (0, 10, 100, 1000)), (torch.bfloat16, (0, 1, 10))):
    for mean in means:
        x = (mean + torch.randn(2, 6, 512, device="cuda")).to(dtype)
        made = norm(x, torch.ones_like(x[0, :, 0]), torch.zeros_like(x[0, :, 0]), 6, 2, 1e-6)
        exact = torch.nn.functional.group_norm(x.double(), 2, eps=1e-6)
        said = {"Liger-Kernel": made, "torch": torch.nn.functional.group_norm(x, 2, eps=1e-6)}
        off = {key: float((y.double() - exact).norm() / exact.norm()) for key, y in said.items()}
        print(f"{dtype}, mean {mean}: " + ", ".join(f"{key} off by {error:.1e}" for key, error in off.items()))
