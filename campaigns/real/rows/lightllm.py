"""lightllm: attention of prompts in Triton, which fills an output that is given, and rotations of several axes, which
are computed in the inputs' dtype.
"""

import inspect
from collections.abc import Callable
from typing import Any

import torch

from campaigns.real import inputs as of
from campaigns.real.call import Call, takes
from campaigns.real.case import Case
from campaigns.real.project import Project, Tolerance
from campaigns.real.wrong import Truth, Wrong

NEWEST = "fc72ffab"
PROJECT = Project(
    name="lightllm", owner="ModelTC", newest=NEWEST, paths=("lightllm",), tolerance={"": Tolerance(atol=1e-2)},
    stubs=("lightllm", "lightllm.models", "lightllm.models.llama", "lightllm.models.vit", "lightllm.models.deepseek2",
           "lightllm.models.qwen2_vl", "lightllm.utils"),
    absent=("lightllm.utils.device_utils",),
)  # fmt: skip
DTYPES = ("float32", "float16")
PLAIN = {"float32": "operands=float32", "float16": "operands=float16,round=eager:float16"}
QKV = ("q", "k", "v")
PARTS = ("q", "q_rope", "k", "k_rope", "v")


def _images(function: Callable[..., Any], q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Images of T tokens each, which newer commits lay one behind the other."""
    if "cu_seqlens" in inspect.signature(function).parameters:
        starts = torch.arange(q.shape[0] + 1, device=q.device, dtype=torch.int32) * q.shape[1]
        flat = [x.flatten(0, 1) for x in (q, k, v, torch.empty_like(q))]
        function(*flat, starts, q.shape[1])
        return flat[-1].view_as(q)
    out = torch.empty_like(q)
    function(q, k, v, out)
    return out


def _filled(function: Callable[..., Any], x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x[:, : x.shape[1] // 2])
    function(x, out)
    return out


def _rows(seed: int, dtype: torch.dtype, T: int, D: int = 96) -> of.Tensors:
    draw = of.drawn(seed)
    return {"x": draw(T, D).to(dtype), "weight": (1 + draw(D) / 4).to(dtype)}


def _gates(seed: int, dtype: torch.dtype, T: int) -> of.Tensors:
    return {"x": of.drawn(seed)(T, 96).to(dtype)}


def _split_prompt(kernel: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """The kernel itself, of one request whose last part is computed: its wrapper passes a stream, which Triton 3 does
    not take.
    """
    new, all_, heads, dim = q.shape[1], k.shape[1], q.shape[2], q.shape[3]
    q, k, v, out = q[0], k[0], v[0], torch.empty_like(q[0])
    places = torch.arange(all_, device=q.device, dtype=torch.int32)[None]
    one, zero = torch.tensor([new, all_], device=q.device, dtype=torch.int32), places[0, :1]
    kernel[(1, heads, -(-new // 128))](
        q, k, v, dim**-0.5, places, zero, zero, one[:1], one[1:], out,
        *q.stride(), *k.stride(), *v.stride(), *out.stride(), *places.stride(), kv_group_num=heads // k.shape[1],
        BLOCK_M=128, BLOCK_DMODEL=dim, BLOCK_N=128, num_warps=4, num_stages=1,
    )  # fmt: skip
    return out[None]


def _behind_caches(function: Callable[..., Any], scale: float, **parts: torch.Tensor) -> torch.Tensor:
    """Requests one behind the other, each with keys of a prompt that was cached before its queries."""
    q, k = parts["q"], parts["k"]
    requests, new, all_ = q.shape[0], q.shape[1], k.shape[1]
    flat = [parts[name].flatten(0, 1) for name in PARTS]
    out = torch.empty_like(flat[0])
    count = torch.arange(requests, device=q.device, dtype=torch.int32)
    starts = [count * new] + [count * all_] * ("b_kv_start_loc" in inspect.signature(function).parameters)
    lengths = [torch.full_like(count, all_), torch.full_like(count, all_ - new)]
    function(*flat, out, *starts, *lengths, new, scale)
    return out.unflatten(0, (requests, new))


def _from_start(function: Callable[..., Any], scale: float, **parts: torch.Tensor) -> torch.Tensor:
    """One request without a cache. Rows lie behind the rotated keys, so that nothing is read behind the tensor."""
    T = parts["q"].shape[1]
    flat = {name: x[0] for name, x in parts.items()}
    flat["k_rope"] = torch.cat([flat["k_rope"], torch.ones_like(flat["k_rope"][:8])])[:T]
    out, start = torch.empty_like(flat["q"]), torch.zeros(1, device=flat["q"].device, dtype=torch.int32)
    function(*(flat[name] for name in PARTS), out, start, start + T, T, scale)
    return out[None]


def _axes(
    function: Callable[..., Any], q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor,
    sections: tuple[int, ...],
) -> Any:  # fmt: skip
    """Tables lie behind the tables, so that nothing is read behind them."""
    axis = torch.cat([torch.full((n,), i % 3, dtype=torch.int32) for i, n in enumerate(sections)]).to(q.device)
    return function(q, k, *(torch.cat([x, x])[:3] for x in (cos, sin)), axis)


def _behind(seed: int, dtype: torch.dtype, T: int, H: int = 2, D: int = 32) -> of.Tensors:
    """Tokens from 128 on have queries: a tile of keys that a query sees nothing of makes NaN, also after the fix."""
    made = of.qkv(of.drawn(seed), dtype, T, H, D)
    return made | {"q": made["q"][:, 128:].contiguous()}


def _latent(seed: int, dtype: torch.dtype, T: int, B: int = 1, H: int = 4, D: int = 32) -> of.Tensors:
    draw = of.drawn(seed)
    made = of.qkv(draw, dtype, T, H, D, B=B)
    return made | {"q_rope": draw(B, T, H, 16).to(dtype), "k_rope": draw(B, T, 1, 16).to(dtype)}


def _latent_behind(seed: int, dtype: torch.dtype, T: int) -> of.Tensors:
    """Two requests, each with queries for its last 24 tokens."""
    made = _latent(seed, dtype, T, B=2)
    return made | {name: made[name][:, -24:].contiguous() for name in ("q", "q_rope")}


def _three_axes(seed: int, dtype: torch.dtype, T: int, D: int = 32) -> of.Tensors:
    """q and k have heads before time."""
    draw = of.drawn(seed)
    made = {"q": draw(1, 3, T, D).to(dtype), "k": draw(1, 1, T, D).to(dtype)}
    angle = draw(3, 1, T, D)
    return made | {"cos": angle.cos().to(dtype), "sin": angle.sin().to(dtype)}


_DEEP = "lightllm.models.deepseek2.triton_kernel.context_flashattention_nopad_with_v"
_attention = Call("plain/attention:attention", takes(*QKV))
_causal = Call("plain/attention:attention", takes(*QKV), {"causal": True})
_latent_reference = Call("plain/attention:latent", takes(*PARTS), {"scale": 0.125})
_SECTIONS = {"sections": (4, 6, 6, 4, 6, 6)}

CASES: tuple[Case, ...] = (
    Case("attention of images",
         Call("lightllm.models.vit.triton_kernel.flashattention_nopad:_flash_attention_triton_fwd", takes(*QKV),
              adapter=_images), (_attention,), of.plain, T=100, dtypes=DTYPES),
    Case("latent attention behind a cache",
         Call(f"{_DEEP}:context_attention_fwd_with_v", takes(*PARTS), {"scale": 0.125}, adapter=_behind_caches),
         (_latent_reference,), _latent_behind, T=80, dtypes=DTYPES),
    Case("RMS norm", Call("lightllm.models.llama.triton_kernel.rmsnorm:rmsnorm_forward", takes("x", "weight"),
                          {"eps": 1e-6}),
         (Call("plain/attention:rms_norm", takes("x", "weight"), {"eps": 1e-6}),), _rows, PLAIN, T=40, dtypes=DTYPES),
    Case("gated unit", Call("lightllm.models.llama.triton_kernel.silu_and_mul:silu_and_mul_fwd", takes("x"),
                            adapter=_filled),
         (Call("plain/attention:gated", takes("x")),), _gates, PLAIN, T=40, dtypes=DTYPES),
    Case("rotation of three axes",
         Call("lightllm.models.qwen2_vl.triton_kernel.mrope:mrope_triton", takes("q", "k", "cos", "sin"), _SECTIONS,
              adapter=_axes),
         (Call("plain/attention:rope_of_axes", takes("q", "k", "cos", "sin"), _SECTIONS),), _three_axes, PLAIN,
         T=3, dtypes=DTYPES),
)  # fmt: skip

#: The truth of the second was changed after its first run, from the mask: what ends early is the loop that sums over
#: keys.
WRONG = (
    Wrong(PROJECT.name, "b887d8d8", "f7dfc16b", "the sum of weights starts at exp(0): a key of score 0 too many",
          CASES[0], ("out",), Truth("scores.softmax(-1)", "factor"), "all, by one part in the number of keys",
          dtypes=DTYPES),
    Wrong(PROJECT.name, "8075c3df", "00d37c6c", "the loop over keys ends as if nothing were cached before the queries",
          Case("attention of a part of a prompt",
               Call("lightllm.models.llama.triton_kernel.splitfuse_context_flashattention_nopad:_fwd_kernel",
                    takes(*QKV), adapter=_split_prompt), (_causal,), _behind, T=200, dtypes=DTYPES),
          ("out",), Truth("probs = scores.softmax", "omitted part", changed=True),
          "keys from 128 on are lost", dtypes=DTYPES),
    Wrong(PROJECT.name, "9313a087", "00e4de74", "keys of a request are read from where its queries start",
          CASES[1], ("out",), Truth("scores = (pairs(q, k) + pairs(q_rope, k_rope)) * scale", "index"),
          "the second request", dtypes=DTYPES),
    Wrong(PROJECT.name, "16e86d5e", "8bd82148", "heads move on by one in rotated keys that have a single head",
          Case("latent attention",
               Call(f"{_DEEP}:context_attention_fwd_no_prompt_cache_with_v", takes(*PARTS), {"scale": 0.125},
                    adapter=_from_start), (_latent_reference,), _latent, T=80, dtypes=DTYPES),
          ("out",), Truth("pairs(q_rope, k_rope)", "index"), "all heads but the first", dtypes=DTYPES),
    Wrong(PROJECT.name, "e59d0675", "7cf74df5", "time is the first dimension as long: of three tokens the axes'",
          CASES[4], ("q_out", "k_out"), Truth("cos[i % 3", "index"), "all but the first token", dtypes=DTYPES),
)  # fmt: skip
