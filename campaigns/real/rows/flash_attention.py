"""flash-attention: its Triton norms and its rotary embedding. Its attention in Triton needs Triton 2.0."""

from typing import Any

import torch

from campaigns.real import inputs as of
from campaigns.real.call import Call, takes
from campaigns.real.case import FLOAT32, Case
from campaigns.real.project import Project, Tolerance
from campaigns.real.wrong import Truth, Wrong

NEWEST = "0251105a"
PROJECT = Project(
    name="flash-attention", owner="Dao-AILab", newest=NEWEST,
    paths=("flash_attn/ops", "flash_attn/layers", "flash_attn/utils"),
    tolerance={"": Tolerance(atol=1e-4), "float16": Tolerance(atol=1e-2), "bfloat16": Tolerance(atol=5e-2)},
    stubs=("flash_attn", "flash_attn.ops", "flash_attn.ops.triton", "flash_attn.layers", "flash_attn.utils"),
    absent=("rotary_emb", "flash_attn.utils.torch", "flash_attn.utils.library"),
)  # fmt: skip


def _norm(seed: int, dtype: torch.dtype, T: int, D: int = 48) -> of.Tensors:
    """A layer norm of T rows, and the residual that is added before it."""
    draw = of.drawn(seed)
    made = {"x": draw(T, D).to(dtype), "residual": draw(T, D).to(dtype)}
    return made | {"weight": (1 + draw(D) / 4).to(dtype), "bias": (draw(D) / 4).to(dtype)}


def _no_residual(seed: int, dtype: torch.dtype, T: int) -> of.Tensors:
    made = _norm(seed, dtype, T)
    return {name: made[name] for name in ("x", "weight", "bias")}


def _rotated(seed: int, dtype: torch.dtype, T: int) -> of.Tensors:
    return {"x": of.drawn(seed)(1, T, 1, 32).to(dtype)}


def _labelled(seed: int, dtype: torch.dtype, T: int, classes: int = 300) -> of.Tensors:
    labels = torch.arange(T) * 37 % classes
    return {"logits": (3 * of.drawn(seed)(T, classes)).to(dtype), "labels": labels}


def _angles(seed: int, dtype: torch.dtype, T: int) -> of.Tensors:
    """Half of the dimensions rotate."""
    draw = of.drawn(seed)
    made, angle = {"x": draw(1, T, 2, 64).to(dtype)}, draw(T, 16)
    return made | {"cos": angle.cos().to(dtype), "sin": angle.sin().to(dtype)}


def _of_16_bits(embedding: type, x: torch.Tensor) -> torch.Tensor:
    """A rotary embedding whose buffers are in x's dtype, as those of a model that is trained in it; the tables that it
    caches, applied to x.
    """
    made: Any = embedding(x.shape[-1]).to(x)
    if hasattr(made, "_compute_inv_freq"):
        made._update_cos_sin_cache(x.shape[1], device=x.device, dtype=x.dtype)
    else:
        made._update_cos_sin_cache(x)
    cos, sin = made._cos_cached[:, None], made._sin_cached[:, None]
    left, right = x.float().chunk(2, -1)
    return torch.cat([left * cos - right * sin, right * cos + left * sin], -1).to(x.dtype)


_LAYER_NORM = "flash_attn.ops.triton.layer_norm:layer_norm_fn"
_REFERENCE = "flash_attn/ops/triton/layer_norm.py:layer_norm_ref"
_EPS = {"eps": 1e-6}
#: rows that 132 multiprocessors do not share evenly: two each, and none for the last 32; nor do 78, 108 or 114
ROWS = 200

CASES = (
    Case("layer norm", Call(_LAYER_NORM, takes("x", "weight", "bias"), _EPS),
         (Call(_REFERENCE, takes("x", "weight", "bias"), _EPS | {"upcast": True}),), _no_residual, FLOAT32,
         gradients=True),
    Case("layer norm of a sum", Call(_LAYER_NORM, takes("x", "weight", "bias", "residual"), _EPS | {"prenorm": True}),
         (Call(_REFERENCE, takes("x", "weight", "bias", "residual"), _EPS | {"prenorm": True, "upcast": True}),),
         _norm, FLOAT32),
    Case("cross entropy", Call("flash_attn.ops.triton.cross_entropy:cross_entropy_loss", takes("logits", "labels"),
                               results=(0,)),
         (Call("plain/attention:cross_entropy", takes("logits", "labels")),), _labelled, FLOAT32, gradients=True, T=40,
         back=40),
    Case("rotary", Call("flash_attn.layers.rotary:apply_rotary_emb", takes("x", "cos", "sin")),
         (Call("flash_attn/layers/rotary.py:apply_rotary_emb_torch", takes("x", "cos", "sin")),), _angles, FLOAT32,
         T=40),
    Case("RMS norm", Call("flash_attn.ops.triton.layer_norm:rms_norm_fn", takes("x", "weight", "bias"), _EPS),
         (Call("flash_attn/ops/triton/layer_norm.py:rms_norm_ref", takes("x", "weight", "bias"),
               _EPS | {"upcast": True}),), _no_residual, FLOAT32, gradients=True),
)  # fmt: skip

WRONG = (
    Wrong(PROJECT.name, "36bc29ed", "bdcae547", "programs without rows leave their part of dweight unwritten",
          Case("layer norm, uninitialised", Call(_LAYER_NORM, takes("x", "weight", "bias"), _EPS),
               (Call(_REFERENCE, takes("x", "weight", "bias"), _EPS | {"upcast": True}),), _no_residual, FLOAT32,
               gradients=True, back=ROWS),
          ("dweight", "dbias"), Truth("F.layer_norm", "no edit"), "all, with NaN", wrong_in=("gradients",)),
    Wrong(PROJECT.name, "80040184", "bd82d6c6",
          "without gradients the sum of x and the residual is not stored, and x is returned for it",
          CASES[1], ("x",), Truth("x = (x + residual)", "omitted part"), "all of the second result"),
    Wrong(PROJECT.name, "9818f85f", "62e98144",
          "positions and frequencies are in 16 bits where the model is: those above 256 coincide",
          Case("rotary embedding",
               Call("flash_attn.layers.rotary:RotaryEmbedding", takes("x"), adapter=_of_16_bits),
               (Call("plain/attention:rope", takes("x"), stored=("cos", "sin")),), _rotated, FLOAT32, T=600,
               tolerance={"": Tolerance(atol=5e-3, rtol=1e-3)}),
          ("out",), Truth("angle = ", "cast"), "late positions most", dtypes=("bfloat16", "float16")),
)  # fmt: skip
