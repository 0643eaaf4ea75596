"""FlagGems: torch's operators in Triton. Its tests compare with torch's own, so that references are plain ones."""

from dataclasses import replace
from typing import Any

import torch

from campaigns.real.call import Call, takes
from campaigns.real.case import FLOAT32, NARROW, Case
from campaigns.real.inputs import Tensors, drawn
from campaigns.real.project import Project, Tolerance
from campaigns.real.wrong import Truth, Wrong

GEMS = "FlagGems"
PROJECT = Project(
    name=GEMS, owner="FlagOpen", newest="532ff438", paths=("src/flag_gems",), root="src",
    tolerance={
        "float32": Tolerance(1e-4, 1.3e-6), "float16": Tolerance(1e-4, 1e-3), "bfloat16": Tolerance(1e-4, 0.016),
    },
    stubs=("flag_gems", "flag_gems.ops", "flag_gems.fused"),
    environment={"GEMS_VENDOR": "nvidia"},
    launchers=("flag_gems.utils.libentry:libentry", "flag_gems.utils:libentry"),
)  # fmt: skip
#: tl.dot(..., allow_tf32=False)
NO_TF32 = {"float32": "operands=float32"} | {x: f"operands={x}" for x in NARROW}


def _elu(seed: int, dtype: Any, T: int, D: int = 64) -> Tensors:
    """The result of an ELU with alpha 0.7, and a gradient of it."""
    draw = drawn(seed)
    x = draw(T, D)
    return {"grad": draw(T, D).to(dtype), "result": torch.where(x > 0, x, 0.7 * x.expm1()).to(dtype)}


def _matrix(seed: int, dtype: Any, T: int, D: int = 64) -> Tensors:
    """Columns whose odd ones are larger than all even ones."""
    return {"x": (drawn(seed)(T, D) + 10.0 * (torch.arange(D) % 2)).to(dtype)}


def _norm(seed: int, dtype: Any, T: int, D: int = 96) -> Tensors:
    draw = drawn(seed)
    made = {"x": 1 + draw(T, D), "weight": 1 + draw(D) / 4, "bias": draw(D) / 4}
    return {name: x.to(dtype) for name, x in made.items()}


def _weights(seed: int, dtype: Any, T: int, D: int = 64) -> Tensors:
    draw = drawn(seed)
    return {"v": draw(T, D).to(dtype), "g": (1 + draw(T, 1) / 4).to(dtype)}


def _qkv(seed: int, dtype: Any, T: int, H: int = 2, D: int = 32) -> Tensors:
    draw = drawn(seed)
    return {name: draw(1, H, T, D).to(dtype) for name in ("q", "k", "v")}


def _products(seed: int, dtype: Any, T: int, K: int = 64, N: int = 48) -> Tensors:
    draw = drawn(seed)
    return {name: x.to(dtype) for name, x in (("bias", draw(T, N)), ("x", draw(T, K)), ("y", draw(K, N)))}


def _masked(seed: int, dtype: Any, T: int, N: int = 40_000) -> Tensors:
    """Rows longer than 32,768, of which the first 5,000 are masked."""
    x = drawn(seed)(T, N)
    x[:, :5000] = -torch.inf
    return {"x": x.to(dtype)}


def _layer_norm(f: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> Any:
    return f(x, (x.shape[-1],), weight, bias, 1e-6)[0]


def _every_second(f: Any, x: torch.Tensor) -> Any:
    return f(x[:, ::2])


def _first(f: Any, v: torch.Tensor, g: torch.Tensor) -> Any:
    return f(v, g, 0)[0]


def _elu_backward(f: Any, grad: torch.Tensor, result: torch.Tensor, alpha: float) -> Any:
    return f(grad, alpha, 1.0, 1.0, True, result)


_ALPHA = {"alpha": 0.7}
ELU = Case(
    "ELU, backward from its result",
    Call("flag_gems.ops.elu:elu_backward", takes("grad", "result"), _ALPHA, adapter=_elu_backward),
    (Call("plain/layers:elu_backward", takes("grad", "result"), _ALPHA),),
    _elu, FLOAT32, T=100,
)  # fmt: skip
MAX = Case(
    "maximum, strided",
    Call("flag_gems.ops.max:max", takes("x"), adapter=_every_second),
    (Call("plain/layers:largest_of_even", takes("x")),),
    _matrix, FLOAT32, T=100,
)  # fmt: skip
LAYER_NORM = Case(
    "layer norm",
    Call("flag_gems.ops.layernorm:layer_norm", takes("x", "weight", "bias"), adapter=_layer_norm),
    (Call("plain/norms:layer_norm", takes("x", "weight", "bias"), {"eps": 1e-6}),),
    _norm, FLOAT32, gradients=True, T=100, dtypes=NARROW,
)  # fmt: skip
WEIGHT_NORM = Case(
    "weight norm",
    Call("flag_gems.ops.weightnorm:WeightNormInterface.apply", takes("v", "g"), adapter=_first),
    (Call("plain/norms:weight_norm", takes("v", "g")),),
    _weights, FLOAT32, gradients=True, T=100, dtypes=NARROW,
)  # fmt: skip
ATTENTION = Case(
    "attention",
    Call("flag_gems.ops.attention:scaled_dot_product_attention", takes(query="q", key="k", value="v")),
    (Call("plain/layers:attention", takes("q", "k", "v")),),
    _qkv, NO_TF32, T=256,
)  # fmt: skip
ADDMM = Case(
    "a product plus a matrix",
    Call("flag_gems.ops.addmm:addmm", takes("bias", mat1="x", mat2="y")),
    (Call("plain/layers:addmm", takes("bias", "x", "y")),),
    _products, NO_TF32, T=100,
)  # fmt: skip
SOFTMAX = Case(
    "softmax, masked",
    Call("flag_gems.ops.softmax:softmax", takes("x")),
    (Call("plain/layers:softmax", takes("x")),),
    _masked, FLOAT32, T=2,
)  # fmt: skip


def _one(seed: int, dtype: Any, T: int, D: int = 96) -> Tensors:
    """Numbers of up to 10 or so."""
    return {"x": (3 * drawn(seed)(T, D)).to(dtype)}


def _far_from_0(seed: int, dtype: Any, T: int, D: int = 96) -> Tensors:
    """Numbers around 100, that differ by 1."""
    return {"x": (100 + drawn(seed)(T, D)).to(dtype)}


def _pair(seed: int, dtype: Any, T: int, D: int = 96) -> Tensors:
    draw = drawn(seed)
    return {name: draw(T, D).to(dtype) for name in ("a", "b")}


def _low_logits(seed: int, dtype: Any, T: int, V: int = 200) -> Tensors:
    """Logits around -50, as of a model that adds the same number to all."""
    generator = torch.Generator().manual_seed(seed)
    return {"x": (drawn(seed)(T, V) - 50).to(dtype), "labels": torch.randint(0, V, (T,), generator=generator)}


def _rms_norm(f: Any, x: torch.Tensor, weight: torch.Tensor) -> Any:
    return f(x, (x.shape[-1],), weight, 1e-6)


def _weighted(seed: int, dtype: Any, T: int) -> Tensors:
    made = _norm(seed, dtype, T)
    return {name: made[name] for name in ("x", "weight")}


def _last(f: Any, x: torch.Tensor) -> Any:
    return f(x, -1)


_SIMPLE = (
    ("logarithm of a sigmoid", "ops.log_sigmoid:log_sigmoid", "log_sigmoid", _one, None),
    ("softplus", "ops.softplus:softplus", "softplus", _one, None),
    ("softmax", "ops.softmax:softmax", "softmax", _one, _last),
    ("cumulative sum", "ops.cumsum:cumsum", "cumulative_sum", _one, _last),
    ("standard deviation", "ops.std:std", "deviation", _far_from_0, None),
    ("length", "ops.vector_norm:vector_norm", "length", _one, None),
)
CASES = (
    ELU, MAX, replace(ATTENTION, T=200), ADDMM,
    *(Case(operation, Call(f"flag_gems.{path}", takes("x"), positional=adapter is None, adapter=adapter),
           (Call(f"plain/layers:{reference}", takes("x")),), inputs, FLOAT32, T=100)
      for operation, path, reference, inputs, adapter in _SIMPLE),
    Case("RMS norm", Call("flag_gems.ops.rms_norm:rms_norm", takes("x", "weight"), adapter=_rms_norm),
         (Call("plain/norms:rms_norm", takes("x", "weight"), {"eps": 1e-6}),), _weighted, FLOAT32, gradients=True,
         T=100, rounds="eager"),  # `torch.sum(partial_buffer, dim=0, dtype=x.dtype)` casts before it adds
    Case("SwiGLU", Call("flag_gems.fused.silu_and_mul:silu_and_mul", takes("a", "b"), positional=True),
         (Call("plain/layers:swiglu", takes("a", "b")),), _pair, FLOAT32, gradients=True, T=100),
    Case("GEGLU", Call("flag_gems.fused.gelu_and_mul:gelu_and_mul", takes("a", "b"), positional=True),
         (Call("plain/layers:gelu_and_mul", takes("a", "b")),), _pair, FLOAT32, gradients=True, T=100,
         rounds="eager"),  # `d_gelu = dgrad * y`
    Case("cross-entropy", Call("flag_gems.fused.cross_entropy_loss:cross_entropy_loss", takes("x", "labels"),
                               positional=True),
         (Call("plain/losses:mean_cross_entropy", takes("x", "labels")),), _low_logits, FLOAT32, gradients=True, T=100),
)  # fmt: skip

WRONG = (
    Wrong(GEMS, "10624096", "b75cdb51", "the result is taken for the input: exp(y) where y + 1 belongs",
          ELU, ("result",), Truth("torch.where(result > 0, 1.0, result + alpha)", "step"), "where x < 0"),
    Wrong(GEMS, "2bd92c13", "8ef08594", "strides are not read: as many elements, one after the other",
          MAX, ("result",), Truth("x[:, ::2].amax()", "index")),
    Wrong(GEMS, "674a9782", "fc32e199", "mean and 1 / deviation are kept for the backward pass in 16 bits",
          LAYER_NORM, ("dx", "dweight"), Truth("torch.rsqrt((centered * centered).mean(-1", "cast"),
          wrong_in=("gradients",), dtypes=NARROW),
    Wrong(GEMS, "1a7e89ff", "6604a9ea", "norms are kept for the backward pass in 16 bits",
          WEIGHT_NORM, ("dv", "dg"), Truth("(wide * wide).sum(-1, keepdim=True).sqrt()", "cast"),
          wrong_in=("gradients",), dtypes=NARROW),
    Wrong(GEMS, "cebed0d0", "73acbe67", "the scale of the scores grows by log2(e) with every block of keys",
          ATTENTION, ("result",), Truth("q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5", "factor"),
          "all rows: keys behind the first block"),
    Wrong(GEMS, "a2892aae", "42fb3dc2", "every row adds the first row of the matrix",
          ADDMM, ("result",), Truth("x @ y + bias", "index"), "behind the first row"),
    Wrong(GEMS, "9c1b2bee", "16f4e691", "a first block that is all masked: exp(inf - inf)",
          SOFTMAX, ("result",), Truth("", "no edit"), "NaN"),
)  # fmt: skip
