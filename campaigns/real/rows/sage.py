"""SageAttention: attention of int8 queries and keys, in Triton; the package itself needs its CUDA extensions.

`tl.dot(p, v, out_dtype=tl.float16)` sums in float16 within a tile of 64 keys, and in float32 over tiles.
"""

from collections.abc import Callable
from typing import Any

import torch

from campaigns.real import inputs as of
from campaigns.real.call import Call, takes
from campaigns.real.case import Case
from campaigns.real.project import Project, Tolerance
from campaigns.real.wrong import Truth, Wrong

NEWEST = "d1a57a54"
PROJECT = Project(
    name="SageAttention", owner="thu-ml", newest=NEWEST, paths=("sageattention",),
    tolerance={"": Tolerance(atol=1e-1, rtol=1e-1)}, stubs=("sageattention", "sageattention.triton"),
)  # fmt: skip
HALF = {"float16": "operands=float16,accumulate=float16"}
NAMES = ("q", "k", "v", "q_scale", "k_scale")


def _int8(function: Callable[..., Any], q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **given: Any) -> Any:
    bias = {"attn_mask": given["bias"]} if "bias" in given else {}
    return function(q.to(torch.int8), k.to(torch.int8), v, given["q_scale"], given["k_scale"], "NHD", **bias)[0]


def _codes(seed: int, dtype: torch.dtype, T: int, Tk: int = 100, H: int = 2, D: int = 64) -> of.Tensors:
    """Whole numbers of 8 bits, scaled block by block to scores of order 1."""
    draw = of.drawn(seed)
    made = of.qkv(draw, dtype, Tk, H, D)
    codes = {"q": draw(1, T, H, D), "k": draw(1, Tk, H, D)}
    made |= {name: (40 * x).round().clamp(-127, 127).to(dtype) for name, x in codes.items()}
    made["q_scale"] = (1 + draw(1, H, -(-T // 128)).sigmoid()) * 1.44 / 40 / D**0.5
    made["k_scale"] = (1 + draw(1, H, -(-Tk // 64)).sigmoid()) / 40
    return made


def _biased(seed: int, dtype: torch.dtype, T: int) -> of.Tensors:
    """A bias that is 0 for the first 64 keys."""
    made = _codes(seed, dtype, T, T)
    bias = of.drawn(seed + 1)(1, 2, T, T)
    bias[..., :64] = 0
    return made | {"bias": bias.to(dtype)}


_PATH = "sageattention.triton.attn_qk_int8_per_block:forward"
CASES = (
    Case("int8 attention", Call(_PATH, takes(*NAMES), adapter=_int8),
         (Call("plain/attention:quantised", takes(*NAMES)),), _codes, HALF, T=70, dtypes=("float16",)),
    Case("int8 attention with a bias", Call(_PATH, takes(*NAMES, "bias"), adapter=_int8),
         (Call("plain/attention:quantised", takes(*NAMES, "bias")),), _biased, HALF, T=128, dtypes=("float16",)),
)  # fmt: skip

WRONG = (
    Wrong(PROJECT.name, "628a89f1", "3917283", "keys behind the last are not masked: each adds a score of 0",
          CASES[0], ("out",), Truth("weights.sum(-1)", "mask"), "all", dtypes=("float16",)),
    Wrong(PROJECT.name, "f78d412f", "34ea987", "tiles are skipped where a float mask is 0, which keeps them",
          CASES[1], ("out",), Truth("weights = torch.exp2", "mask"), "the first 64 keys are lost", dtypes=("float16",)),
)  # fmt: skip
