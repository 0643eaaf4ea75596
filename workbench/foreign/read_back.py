"""What the arguments of packages' attention functions ask, which is what their adapters do the other way round.

Nothing is copied and nothing is waited for: tensors come back as views with the axes [batch, head, row, dim].
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from workbench.arrays import as_torch
from workbench.foreign.layouts import BOX
from workbench.foreign.score_mods import known_score_mod
from workbench.refusal import Refusal

Given = Mapping[str, Any]
SDPA = "torch:scaled_dot_product_attention"


@dataclass(frozen=True)
class Packed:
    """Where sequences of several lengths begin, which lie behind each other: q, k and v have one batch of all rows; or
    k and v lie in pages, which a table tells, [page, head, row, dim].
    """

    cu_seqlens_q: Any  #: [sequences + 1], the first row of each, and behind the last
    max_seqlen_q: int  #: of the longest, which is known without waiting for a device
    max_seqlen_k: int
    cu_seqlens_k: Any = None  #: of keys, in pages too, whose lengths it tells; None where `seqused_k` does
    seqused_k: Any = None  #: [sequences], how many keys of each are read
    block_table: Any = None  #: [sequences, blocks], the pages of each in order; None: k and v lie packed

    @property
    def in_pages(self) -> bool:
        """Whether k and v are a paged cache."""
        return self.block_table is not None


@dataclass(frozen=True)
class Reader:
    """How a call of a package's function is read."""

    read: Callable[[Given], tuple[dict[str, Any], dict[str, Any]]]  #: its arguments by name -> inputs, fields of a case
    reads: Sequence[str]  #: the arguments that it understands
    names: Sequence[str] = ()  #: parameters in their order, of a function whose signature Python cannot tell
    idle: Sequence[str] = ()  #: arguments that change no number


def sdpa(given: Given) -> tuple[dict[str, Any], dict[str, Any]]:
    """scaled_dot_product_attention: is_causal counts from the top left; a float mask is added."""
    inputs = {x: _boxed(given[name]) for x, name in zip("qkv", ("query", "key", "value"), strict=True)}
    if (mask := given.get("attn_mask")) is not None:
        inputs["mask" if str(mask.dtype) == "torch.bool" else "bias"] = _of_scores(mask)
    causal = {"causal": True, "causal_alignment": "top-left"} if given.get("is_causal") else {}
    return inputs, causal | _scale(given.get("scale"))


def _flex(given: Given) -> tuple[dict[str, Any], dict[str, Any]]:
    """flex_attention: its block_mask is written out, which takes a bool for each score."""
    inputs = {x: _boxed(given[name]) for x, name in zip("qkv", ("query", "key", "value"), strict=True)}
    if (blocks := given.get("block_mask")) is not None:
        inputs["mask"] = written_out(blocks, inputs["q"], inputs["k"])
    fields: dict[str, Any] = {}
    if (score_mod := given.get("score_mod")) is not None:
        added, softcap = known_score_mod(score_mod, inputs["q"], inputs["k"])
        inputs |= {} if added is None else {"bias": added}
        fields |= {} if softcap is None else {"softcap": softcap}
    return inputs, fields | _scale(given.get("scale"))


def written_out(blocks: Any, q: Any, k: Any) -> Any:
    """flex_attention's block_mask as a mask, bool [b, h, q, k]."""
    from torch.nn.attention.flex_attention import create_mask

    sizes = (q.shape[0], q.shape[1], q.shape[2], k.shape[2])
    if math.prod(sizes) > LARGEST_MASK:
        raise Refusal(f"torch:flex_attention with a block_mask of more than {LARGEST_MASK:,} scores")
    return create_mask(blocks.mask_mod, *sizes, device=q.device)


#: scores of which flex_attention's block_mask is written out, a byte each
LARGEST_MASK = 2**24


def _flash_attn(given: Given) -> tuple[dict[str, Any], dict[str, Any]]:
    """flash_attn_func: [b, s, h, d]; windows and causal masks count from the bottom right."""
    fields: dict[str, Any] = {"causal": bool(given.get("causal", False))} | _scale(given.get("softmax_scale"))
    if (window := tuple(given.get("window_size", (-1, -1)))) != (-1, -1):
        fields["window"] = window
    if softcap := given.get("softcap"):
        fields["softcap"] = float(softcap)
    return {x: given[x].transpose(1, 2) for x in "qkv" if x in given}, fields


def _varlen(given: Given) -> tuple[dict[str, Any], dict[str, Any]]:
    """flash_attn_varlen_func: [rows of all sequences, h, d], or k and v in pages, [page, row, h, d]; masks count from
    the bottom right of each sequence.
    """
    packed = Packed(**{x: given[x] for x in LENGTHS if x in given})
    _, fields = _flash_attn({x: y for x, y in given.items() if x not in ("q", "k", "v")})
    return packed_inputs(given, packed), fields | {"packed": packed}


def _kvcache(given: Given) -> tuple[dict[str, Any], dict[str, Any]]:
    """flash_attn_with_kvcache: q [b, s, h, d], and caches [page, row, h, d], which without a table are one of each
    sequence; masks count from the bottom right of each.
    """
    import torch

    q, cache, table, used = given["q"], given["k_cache"], given.get("block_table"), given.get("cache_seqlens")
    count, rows = q.shape[:2]
    if table is None:
        table = torch.arange(count, device=q.device)[:, None]
    if not isinstance(used, torch.Tensor):
        used = torch.full((count,), cache.shape[1] if used is None else int(used), device=q.device)
    starts = torch.arange(0, (count + 1) * rows, rows, device=q.device)
    packed = Packed(starts, rows, table.shape[1] * cache.shape[1], seqused_k=used, block_table=table)
    _, fields = _flash_attn({x: y for x, y in given.items() if x not in ("q", "k", "v")})
    inputs = {"q": q.flatten(0, 1), "k": cache, "v": given["v_cache"]}
    return packed_inputs(inputs, packed), fields | {"packed": packed}


def packed_inputs(given: Given, packed: Packed) -> dict[str, Any]:
    """q, k and v of packed sequences, [batch, head, row, dim]; of a cache in pages a page is a batch."""
    return {x: given[x].transpose(1, 2) if packed.in_pages and x != "q" else of_sequence(given[x]) for x in "qkv"}


def _flashinfer_prefill(given: Given) -> tuple[dict[str, Any], dict[str, Any]]:
    """single_prefill_with_kv_cache: one sequence, [s, h, d]; k and v may be [h, s, d]."""
    fields: dict[str, Any] = {"causal": bool(given.get("causal", False))} | _scale(given.get("sm_scale"))
    if (left := given.get("window_left", -1)) >= 0:
        fields["window"] = (left, 0 if fields["causal"] else -1)
    if cap := given.get("logits_soft_cap"):
        fields["softcap"] = float(cap)
    of_kv = (lambda x: x[None]) if given.get("kv_layout", "NHD") == "HND" else of_sequence
    return {"q": of_sequence(given["q"]), "k": of_kv(given["k"]), "v": of_kv(given["v"])}, fields


def _xformers(given: Given) -> tuple[dict[str, Any], dict[str, Any]]:
    """memory_efficient_attention: [b, s, h, d]; masks are objects, which their classes name, or added tensors."""
    inputs = {x: given[name].transpose(1, 2) for x, name in zip("qkv", ("query", "key", "value"), strict=True)}
    bias = given.get("attn_bias")
    name = "" if bias is None else type(bias).__name__
    fields = _scale(given.get("scale"))
    if name == "LowerTriangularMask":
        fields |= {"causal": True, "causal_alignment": "top-left"}
    elif name == "LowerTriangularFromBottomRightMask":
        fields |= {"causal": True}
    elif name == "Tensor":
        inputs["bias"] = _of_scores(bias)
    elif name:
        raise Refusal(f"xformers.ops:memory_efficient_attention with {name}")
    return inputs, fields


def _jax(given: Given) -> tuple[dict[str, Any], dict[str, Any]]:
    """jax.nn.dot_product_attention: [b, s, h, d] or [s, h, d]; masks count from the top left."""
    inputs = {
        x: _boxed(as_torch(given[name], x)).transpose(1, 2)
        for x, name in zip("qkv", ("query", "key", "value"), strict=True)
    }
    inputs |= {x: _of_scores(as_torch(given[x], x)) for x in ("mask", "bias") if given.get(x) is not None}
    fields = {"causal": True, "causal_alignment": "top-left"} if given.get("is_causal") else {}
    if (window := given.get("local_window_size")) is not None:
        fields |= {
            "window": (window, window) if isinstance(window, int) else tuple(window),
            "causal_alignment": "top-left",
        }
    return inputs, fields | _scale(given.get("scale"))


#: what says where packed sequences lie, of flash_attn_varlen_func and of specs
LENGTHS = ("cu_seqlens_q", "max_seqlen_q", "max_seqlen_k", "cu_seqlens_k", "seqused_k", "block_table")
_OF_SDPA = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")
_OF_FLASH_ATTN = ("softmax_scale", "causal", "window_size", "softcap")
_OF_FLASHINFER = ("q", "k", "v", "causal", "kv_layout", "sm_scale", "window_left", "logits_soft_cap")
#: TARGET -> how its calls are read; what is not listed of their arguments is told and not judged
READERS: Mapping[str, Reader] = {
    SDPA: Reader(
        sdpa, [x for x in _OF_SDPA if x != "dropout_p"], names=_OF_SDPA
    ),
    "torch:flex_attention": Reader(
        _flex, ("query", "key", "value", "score_mod", "block_mask", "scale", "enable_gqa"),
        idle=("return_lse", "kernel_options", "return_aux"),
    ),
    "flash_attn:flash_attn_func": Reader(
        _flash_attn, ("q", "k", "v", *_OF_FLASH_ATTN),
        idle=("deterministic", "return_attn_probs"),
    ),
    "flash_attn:flash_attn_varlen_func": Reader(
        _varlen, ("q", "k", "v", *LENGTHS, *_OF_FLASH_ATTN),
        idle=("deterministic", "return_attn_probs"),
    ),
    "flash_attn:flash_attn_with_kvcache": Reader(
        _kvcache, ("q", "k_cache", "v_cache", "cache_seqlens", "block_table", *_OF_FLASH_ATTN),
        idle=("num_splits", "return_softmax_lse", "rotary_interleaved"),
    ),
    "flashinfer:single_prefill_with_kv_cache": Reader(
        _flashinfer_prefill, _OF_FLASHINFER, idle=("return_lse", "backend"),
    ),
    "xformers.ops:memory_efficient_attention": Reader(
        _xformers, ("query", "key", "value", "attn_bias", "scale"), idle=("op",),
    ),
    "jax.nn:dot_product_attention": Reader(
        _jax, ("query", "key", "value", "bias", "mask", "scale", "is_causal", "local_window_size"),
        idle=("implementation", "return_residual"),
    ),
}  # fmt: skip


def _scale(value: Any) -> dict[str, Any]:
    return {} if value is None else {"scale": float(value)}


def _boxed(x: Any) -> Any:
    """[..., head, row, dim] with one axis of batches; a tensor of two or three axes has one batch, or one head too."""
    if x.ndim > len(BOX):
        raise Refusal(f"a tensor of {x.ndim} axes")
    return x[(None,) * (len(BOX) - x.ndim)]


def _of_scores(x: Any) -> Any:
    """A mask with four axes, of size 1 where it has none."""
    return x[(None,) * (4 - x.ndim)]


def of_sequence(x: Any) -> Any:
    """[s, h, d] as [b, h, s, d]."""
    return x.transpose(0, 1)[None]
