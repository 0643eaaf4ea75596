"""unsloth: norms and rotary embeddings in Triton. Its weights are frozen: norms give no gradient of theirs."""

from typing import Any

import torch
from packaging.version import Version

from campaigns.real.call import Call, takes
from campaigns.real.case import FLOAT32, Case
from campaigns.real.inputs import Tensors, drawn
from campaigns.real.project import Project, Tolerance
from campaigns.real.wrong import Truth, Wrong

UNSLOTH = "unsloth"
PROJECT = Project(
    name=UNSLOTH, owner="unslothai", newest="015bdef0d9",
    paths=("unsloth/kernels", "unsloth/device_type.py", "unsloth/bnb_availability.py"),
    tolerance={"": Tolerance(atol=0.05)},  # the largest gradient of its RMS norm; 0.1 of its layer norm as a whole
    stubs=("unsloth", "unsloth.kernels", "unsloth_zoo", "unsloth_zoo.utils", "bitsandbytes"),
    says={"Version": Version, "__version__": "0.43.0"},  # of unsloth_zoo.utils; of bitsandbytes, which runs no kernel
    absent=(
        "bitsandbytes.functional", "bitsandbytes.functional.lib", "unsloth_zoo.patching_utils",
        "unsloth_zoo.loss_utils", "transformers", "transformers.models", "transformers.models.llama",
        "transformers.models.llama.modeling_llama", "unsloth.kernels.fp8",
    ),
)  # fmt: skip


def _rows(seed: int, dtype: Any, T: int, D: int = 96) -> Tensors:
    """Rows whose mean is not 0, of a length that is no power of 2."""
    draw = drawn(seed)
    made = {"x": 1 + draw(1, T, D), "weight": 1 + draw(D) / 4, "bias": draw(D) / 4}
    return {name: x.to(dtype) for name, x in made.items()}


def _weighted(seed: int, dtype: Any, T: int) -> Tensors:
    """Gemma's weights are around 0, and count from 1."""
    made = _rows(seed, dtype, T)
    return {"x": made["x"], "weight": made["bias"]}


def _heads(seed: int, dtype: Any, T: int, H: int = 4, D: int = 32) -> Tensors:
    draw = drawn(seed)
    angles = torch.arange(T)[:, None] * 10000.0 ** (-torch.arange(0, D, 2) / D)
    cos, sin = torch.cat([angles.cos()] * 2, -1)[None], torch.cat([angles.sin()] * 2, -1)[None]
    return {"q": draw(1, H, T, D).to(dtype), "k": draw(1, H, T, D).to(dtype), "cos": cos, "sin": sin}


def _layer_norm(f: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> Any:
    """Times 1, so that the gradient that it overwrites is not the caller's."""
    return f(x, weight, bias, 1e-6) * 1.0


def _over_heads(f: Any, q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> Any:
    """A sum over heads, whose gradient is one tensor that every head sees. Copies: the kernel rotates in place."""
    return f(q.clone(), k.clone(), cos, sin, None)[0].sum(1)


LAYER_NORM = Case(
    "layer norm",
    Call("unsloth.kernels.layernorm:Fast_Layernorm.apply", takes("x", "weight", "bias"), adapter=_layer_norm),
    (Call("plain/norms:frozen_layer_norm", takes("x", "weight", "bias"), {"eps": 1e-6}),),
    _rows, FLOAT32, gradients=True, T=100,
)  # fmt: skip
GEMMA = Case(
    "RMS norm, gemma",
    Call("unsloth.kernels.rms_layernorm:Fast_RMS_Layernorm.apply", takes("x", "weight"), {"eps": 1e-6, "gemma": True},
         positional=True),
    (Call("plain/norms:frozen_rms_norm", takes("x", "weight"), {"eps": 1e-6, "offset": 1.0}),),
    _weighted, FLOAT32, gradients=True, T=100,
)  # fmt: skip
ROPE = Case(
    "rotary embedding, queries and keys",
    Call("unsloth.kernels.rope_embedding:Fast_RoPE_Embedding_QK.apply", takes("q", "k", "cos", "sin"),
         adapter=_over_heads),
    (Call("plain/rotary:rope_over_heads", takes("q", "k", "cos", "sin")),),
    _heads, FLOAT32, gradients=True, T=100, dtypes=("float32",),
)  # fmt: skip


def _logits(seed: int, dtype: Any, T: int, V: int = 200) -> Tensors:
    generator = torch.Generator().manual_seed(seed)
    return {"x": (2 * drawn(seed)(T, V)).to(dtype), "labels": torch.randint(0, V, (T,), generator=generator)}


def _pair(seed: int, dtype: Any, T: int, D: int = 96) -> Tensors:
    draw = drawn(seed)
    return {name: draw(1, T, D).to(dtype) for name in ("a", "b")}


def _per_token(f: Any, x: torch.Tensor, labels: torch.Tensor) -> Any:
    """A copy, which its gradient overwrites."""
    return f(x.clone(), labels, 0, 0)


CASES = (
    LAYER_NORM, GEMMA, ROPE,
    Case("cross-entropy, per token",
         Call("unsloth.kernels.cross_entropy_loss:Fast_CrossEntropyLoss.apply", takes("x", "labels"),
              adapter=_per_token),
         (Call("plain/losses:cross_entropy", takes("x", "labels")),), _logits, FLOAT32, gradients=True, T=100),
    Case("SwiGLU", Call("unsloth.kernels.swiglu:swiglu_fg_kernel", takes(e="a", g="b")),
         (Call("plain/layers:swiglu", takes("a", "b")),), _pair, FLOAT32, T=100),
    Case("GEGLU, tanh", Call("unsloth.kernels.geglu:geglu_approx_forward_kernel", takes(gate="a", up="b")),
         (Call("plain/layers:geglu", takes("a", "b")),), _pair, FLOAT32, T=100),
    Case("GEGLU", Call("unsloth.kernels.geglu:geglu_exact_forward_kernel", takes(gate="a", up="b")),
         (Call("plain/layers:gelu_and_mul", takes("a", "b")),), _pair, FLOAT32, T=100),
)  # fmt: skip

WRONG = (
    Wrong(UNSLOTH, "8a72e20a", "8180e9803c", "columns behind the end of a row, 0 less its mean, are in its variance",
          LAYER_NORM, ("result", "dx"), Truth("(centered * centered).mean(-1", "mask"),
          wrong_in=("forward", "gradients")),
    Wrong(UNSLOTH, "263eaaa27f", "d47d838ee8", "the gradient of the result is given back as that of x",
          GEMMA, ("dx",),
          # was "omitted part": dx is another value, dresult, which leaves out all of the line at once
          Truth("torch.rsqrt((wide * wide).mean(-1", "operand", changed=True), wrong_in=("gradients",)),
    Wrong(UNSLOTH, "6180adda", "dabf2a901b", "a gradient that all heads share is rotated in place, once for each",
          ROPE, ("dq",), Truth("", "no edit"), wrong_in=("gradients",), dtypes=("float32",)),
)  # fmt: skip
