"""aiter: attention in Triton for AMD's GPUs, forward, backward and decoding from pages.

Options that other backends lack (`waves_per_eu`) are taken from the launches.
"""

import sys
from collections.abc import Callable
from typing import Any

import torch

from campaigns.real import inputs as of
from campaigns.real.call import Call, takes
from campaigns.real.case import FLOAT32, Case
from campaigns.real.plain.attention import attention, pairs
from campaigns.real.project import Project, Tolerance
from campaigns.real.wrong import Truth, Wrong

NEWEST = "e4048607"
PROJECT = Project(
    name="aiter", owner="ROCm", newest=NEWEST, paths=("aiter/ops/triton",),
    tolerance={"": Tolerance(atol=1e-2, rtol=1e-2)},
    stubs=("aiter", "aiter.ops", "aiter.ops.triton", "aiter.ops.triton._triton_kernels",
           "aiter.ops.triton._triton_kernels.attention", "aiter.ops.triton._triton_kernels.flash_attn_triton_amd",
           "aiter.ops.triton.attention", "aiter.ops.triton.utils", "aiter.ops.triton.utils._triton"),
)  # fmt: skip
QKV = ("q", "k", "v")
PAGE = 16  #: tokens
#: of the backward kernel: a program has 64 keys, then as many queries
TILES = {"preprocess_kernel": {"PRE_BLOCK": 64},
         "onekernel": {"BLOCK_M1": 32, "BLOCK_N1": 64, "BLOCK_M2": 64, "BLOCK_N2": 32, "BLK_SLICE_FACTOR": 2,
                       "num_warps": 4, "num_stages": 1}}  # fmt: skip


class _Launched:
    """A kernel that is launched without options of AMD's backend."""

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel

    def __getitem__(self, grid: Any) -> Callable[..., Any]:
        def launch(*given: Any, **named: Any) -> Any:
            return self.kernel[grid](*given, **{key: x for key, x in named.items() if key != "waves_per_eu"})

        return launch


def _portable(function: Callable[..., Any], *kernels: str) -> None:
    here = vars(sys.modules[function.__module__])
    for name in kernels:
        kernel = here[name]
        for config in getattr(kernel, "configs", ()):
            config.kwargs.pop("waves_per_eu", None)
        if not isinstance(kernel, _Launched):
            here[name] = _Launched(kernel)


def _forward(
    function: Callable[..., Any], q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool = False
) -> torch.Tensor:
    _portable(function, "_attn_fwd")
    given = {"dropout_p": 0.0, "softmax_scale": q.shape[-1] ** -0.5, "causal": causal, "window_size_left": -1,
             "window_size_right": -1, "bias": None, "alibi_slopes": None, "return_lse": True, "return_softmax": False,
             "max_seqlen_q": q.shape[1], "max_seqlen_k": k.shape[1]}  # fmt: skip
    taken = function.__code__.co_varnames[: function.__code__.co_argcount]
    found: torch.Tensor = function(q, k, v, **{key: x for key, x in given.items() if key in taken})[0]
    return found


def _backward(function: Callable[..., Any], q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """The forward pass in torch, the backward pass by the kernel."""

    class Attention(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            out = attention(q, k, v).contiguous()
            ctx.save_for_backward(q, k, v, out, (pairs(q, k) * q.shape[-1] ** -0.5).logsumexp(-1))
            return out

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> Any:
            q, k, v, out, lse = ctx.saved_tensors
            made = [torch.zeros_like(x) for x in (q, k, v)]
            function(grad, q, k, v, out, lse, *made, None, q.shape[-1] ** -0.5, None, False, None, None,
                     q.shape[1], k.shape[1], 0.0, config=TILES)  # fmt: skip
            return tuple(made)

    made: torch.Tensor = Attention.apply(q, k, v)
    return made


def _paged(function: Callable[..., Any], q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Pages in reversed order; each has its keys before its values."""
    _portable(function, "_fwd_kernel_splitK", "_splitK_reduce")
    batch, T, heads, dim = k.shape
    pages = T // PAGE
    cache = torch.stack([x.reshape(batch * pages, PAGE, heads, dim).flip(0) for x in (k, v)], 1)
    table = torch.arange(batch * pages, device=q.device, dtype=torch.int32).flip(0).view(batch, pages)
    out, lse = torch.empty_like(q), torch.empty(batch, q.shape[2], q.shape[1], device=q.device)
    lengths = torch.full((batch,), T, device=q.device, dtype=torch.int32)
    function(q, cache[:, 0], cache[:, 1], None, None, out, lse, dim**-0.5, False, -1, -1, None, "bshd", lengths, None,
             table)  # fmt: skip
    return out


def _softmax(function: Callable[..., Any], x: torch.Tensor) -> torch.Tensor:
    _portable(function, "_softmax_kernel_online")
    found: torch.Tensor = function(x)
    return found


def _rows(seed: int, dtype: torch.dtype, T: int) -> of.Tensors:
    return {"x": (3 * of.drawn(seed)(T, 300)).to(dtype)}


def _longer(seed: int, dtype: torch.dtype, T: int) -> of.Tensors:
    """40 queries at the end of T keys."""
    made = of.plain(seed, dtype, T)
    return made | {"q": made["q"][:, -40:].contiguous()}


def _ten(seed: int, dtype: torch.dtype, T: int) -> of.Tensors:
    return of.plain(seed, dtype, T, H=10, D=16)


def _strided(seed: int, dtype: torch.dtype, T: int) -> of.Tensors:
    """The result's gradient lies head by head."""
    head = of.drawn(seed + 1)(1, 2, T, 32).transpose(1, 2)
    return of.plain(seed, dtype, T) | {"dout": head.to(dtype)}


def _one(seed: int, dtype: torch.dtype, T: int) -> of.Tensors:
    """One query of each of two sequences."""
    made = of.qkv(of.drawn(seed), dtype, T, 2, 32, B=2)
    return made | {"q": made["q"][:, -1:].contiguous()}


_attention = Call("plain/attention:attention", takes(*QKV))
_causal = Call("plain/attention:attention", takes(*QKV), {"causal": True})
_BACKWARD = "aiter.ops.triton.attention.mha_onekernel_bwd:flash_attn_onekernel_backward"
_DECODE = "aiter.ops.triton._triton_kernels.flash_attn_triton_amd.fwd_decode:attention_forward_decode_triton_impl"
CASES = (
    Case("attention, backward", Call(_BACKWARD, takes(*QKV), adapter=_backward), (_attention,), _strided,
         gradients=True, rounds="saved"),
    Case("softmax", Call("aiter.ops.triton.softmax:softmax", takes("x"), adapter=_softmax),
         (Call("plain/attention:softmax_of_rows", takes("x")),), _rows, FLOAT32, T=40),
    Case("decoding from pages", Call(_DECODE, takes(*QKV), adapter=_paged), (_attention,), _one, T=96),
)  # fmt: skip

#: The truth of the second was changed after its first run, from `no edit`: that a head is 0 is an edit.
WRONG = (
    Wrong(PROJECT.name, "e518e5d1", "fde813b3", "of fewer queries than keys, tiles are masked as if both began at 0",
          Case("causal attention", Call("aiter.ops.triton.mha:_flash_attn_forward", takes(*QKV), {"causal": True},
                                        adapter=_forward), (_causal,), _longer, T=150),
          ("out",), Truth("tril(k.shape[1] - q.shape[1])", "mask"), "keys from 32 on, for the queries before them"),
    Wrong(PROJECT.name, "0cce2e23", "94b3876e", "heads are dealt out as if there were one less: the last is left out",
          Case("attention of ten heads",
               Call("aiter.ops.triton.mha:_flash_attn_forward", takes(*QKV), adapter=_forward), (_attention,), _ten,
               T=40),
          ("out",), Truth('"bhqk,bkhd->bqhd"', "omitted part", changed=True), "head 9 is 0"),
    Wrong(PROJECT.name, "dcb0639d", "059c7787", "the result's gradient is read with the result's strides",
          CASES[0], ("dq", "dk"), Truth("probs = scores.softmax(-1)", "index"), wrong_in=("gradients",)),
    Wrong(PROJECT.name, "2b5b5af1", "6740fb79", "pages are taken to follow each other, whatever lies between them",
          CASES[2], ("out",), Truth("scores = pairs(q, k)", "index"), "all"),
)  # fmt: skip
