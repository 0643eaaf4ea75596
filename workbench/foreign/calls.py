"""Calls of packages' attention functions, read back: what a call of each asks, which is what its adapter does the other
way round.

Nothing is copied and nothing is waited for: tensors come back as views with the axes [batch, head, row, dim].
"""

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from workbench.foreign.adapters import ADAPTERS, Adapter, adapter_of
from workbench.foreign.layouts import BOX
from workbench.refusal import Refusal

Given = Mapping[str, Any]
_SDPA = "torch:scaled_dot_product_attention"
#: dtypes of q, k and v that are judged, by torch's names
DTYPES = {"torch.float32": "float32", "torch.float16": "float16", "torch.bfloat16": "bfloat16"}


@dataclass(frozen=True)
class Call:
    """What one call asks."""

    inputs: Mapping[str, Any]  #: q, k, v [batch, head, row, dim]; mask (bool) and bias, which broadcast to the scores
    fields: Mapping[str, Any] = field(default_factory=dict)  #: of its case, beside what shapes tell
    out: str = BOX  #: axes of the result, as of `layouts`
    lse: str = "bhs"  #: axes of an lse behind it; empty: what stands there is none
    base2: bool = False  #: whether that is in base 2
    contract: Mapping[str, Any] | str = field(default_factory=dict)  #: what is known of its arithmetic
    gradients: Mapping[str, Any] = field(default_factory=dict)  #: and of its backward pass: conventions
    cast: Any = None  #: dtype of torch to which the function casts q, k and v before it reads them; None: none
    packed: "Packed | None" = None  #: where q, k and v are sequences of several lengths behind each other


@dataclass(frozen=True)
class Packed:
    """Where sequences of several lengths begin, which lie behind each other: q, k and v have one batch of all rows."""

    cu_seqlens_q: Any  #: [sequences + 1], the first row of each, and behind the last
    cu_seqlens_k: Any
    max_seqlen_q: int  #: of the longest, which is known without waiting for a device
    max_seqlen_k: int


@dataclass(frozen=True)
class CallReader:
    """How calls of one function are read."""

    name: str
    read: Callable[..., Call]  #: called as the function is; Refusal for a call that cannot be judged


def reader_of(function: Callable[..., Any], spec: Callable[..., Given] | None = None) -> CallReader:
    """How calls of `function` are read: by its `spec` where one is given, else as its adapter says.

    `spec` is called as the function is, and returns what the call asks: q, k, v [batch, head, row, dim], a mask (bool,
    True: visible), a bias, fields of a case, and as `layout` the axes of the result (bhsd). Of packed sequences q, k
    and v are [rows, head, dim], beside cu_seqlens_q and _k, max_seqlen_q and _k as of flash_attn_varlen_func.

    Refusal for a function that no adapter knows, and of packages whose calls are not read back.
    """
    if is_dispatched(function):
        return CallReader(str(function), lambda op, *args, **kwargs: _of_op(op, args, kwargs))
    name = f"{function.__module__}.{getattr(function, '__qualname__', '?')}"
    if spec is not None:
        return CallReader(name, lambda *args, **kwargs: _told(spec(*args, **kwargs), name))
    adapter = adapter_of(function)
    target = next((target for target, one in ADAPTERS.items() if one is adapter), None)
    if adapter is None or target is None or target not in _READERS:
        raise Refusal(
            f"{target or name}: calls of {', '.join(_READERS)} are read as they are; of any other function say what a "
            "call asks: capture(function, folder, spec=lambda q, k, v: {'q': q, 'k': k, 'v': v, 'causal': True})"
        )
    return CallReader(target, _Adapted(function, target, adapter))


def is_dispatched(function: Callable[..., Any]) -> bool:
    """Whether it is torch's attention at the dispatcher, torch.ops.aten.scaled_dot_product_attention: calls are those
    of the operations in ATTENTION_OPS, which whoever calls it ends in.
    """
    return str(function) == "aten.scaled_dot_product_attention"


#: operations of aten that are scaled_dot_product_attention, or what it becomes; that of its backend math is none, but
#: products and a softmax
ATTENTION_OPS = (
    "scaled_dot_product_attention", "_scaled_dot_product_flash_attention", "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention", "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_fused_attention_overrideable",
)  # fmt: skip


def _of_op(op: Any, args: tuple[Any, ...], kwargs: Given) -> Call:
    """A call of one of these: autocast has cast already what it is given."""
    names = [one.name for one in op._schema.arguments]
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    if not _idle(given.get("dropout_p")):
        raise Refusal(f"{op} with dropout_p")
    inputs, fields = _sdpa({"attn_mask": given.get("attn_bias"), **given})
    adapter = ADAPTERS[_SDPA]
    on = adapter.on.get(inputs["q"].device.type, {})
    return Call(inputs, fields, adapter.q, contract=adapter.contract or dict(on))


@dataclass(frozen=True)
class _Adapted:
    """Reads calls of a package's function."""

    function: Callable[..., Any]
    target: str
    adapter: Adapter

    def __call__(self, *args: Any, **kwargs: Any) -> Call:
        reader = _READERS[self.target]
        given = _by_name(self.function, reader.names, args, kwargs)
        unknown = [x for x, value in given.items() if x not in reader.reads and not _idle(value)]
        if odd := [x for x in unknown if x not in reader.idle]:
            raise Refusal(f"{self.target} with {odd[0]}")
        inputs, fields = reader.read({x: value for x, value in given.items() if value is not None})
        on = self.adapter.on.get(inputs["q"].device.type, {})
        contract = self.adapter.contract or dict(on)
        one = self.adapter
        gradients, cast = one.gradients.get(inputs["q"].device.type, {}), _autocast(inputs["q"], self.target)
        packed = fields.pop("packed", None)
        return Call(inputs, fields, one.q, one.lse, one.base2, contract, gradients, cast, packed)


@dataclass(frozen=True)
class _Reader:
    """How a call of a package's function is read."""

    read: Callable[[Given], tuple[dict[str, Any], dict[str, Any]]]  #: its arguments by name -> inputs, fields of a case
    reads: Sequence[str]  #: the arguments that it understands
    names: Sequence[str] = ()  #: parameters in their order, of a function whose signature Python cannot tell
    idle: Sequence[str] = ()  #: arguments that change no number


def _by_name(function: Callable[..., Any], names: Sequence[str], args: tuple[Any, ...], kwargs: Given) -> Given:
    if names:
        return {**dict(zip(names, args, strict=False)), **kwargs}
    return inspect.signature(function).bind(*args, **kwargs).arguments


def _idle(value: Any) -> bool:
    """Whether an argument is as if it were not given."""
    return value is None or (isinstance(value, int | float | str) and value in (0, "auto", "NONE"))


def _autocast(q: Any, target: str) -> Any:
    """The dtype to which torch.autocast casts what scaled_dot_product_attention is given; None where it does not."""
    import torch

    if target != _SDPA or not torch.is_autocast_enabled(q.device.type):
        return None
    return torch.get_autocast_dtype(q.device.type)


def _told(given: Given, name: str) -> Call:
    """What a spec says of a call."""
    rest = dict(given)
    inputs = {x: rest.pop(x) for x in ("q", "k", "v", "mask", "bias") if rest.get(x) is not None}
    if lacking := [x for x in "qkv" if x not in inputs]:
        raise Refusal(f"{name}: its spec says no {lacking[0]}")
    packed = None
    if lengths := {x: rest.pop(x) for x in _LENGTHS if x in rest}:
        if lacking := [x for x in _LENGTHS if x not in lengths]:
            raise Refusal(f"{name}: its spec says {', '.join(lengths)} and no {lacking[0]}")
        packed = Packed(**lengths)
        inputs = {x: _of_sequence(y) if x in ("q", "k", "v") else y for x, y in inputs.items()}
    layout, contract = rest.pop("layout", BOX if packed is None else "nhd"), rest.pop("contract", {})
    lse = "".join(axis for axis in layout if axis != "d")
    fields = {x: value for x, value in rest.items() if value is not None}
    return Call(inputs, fields, layout, lse, contract=contract, packed=packed)


def _sdpa(given: Given) -> tuple[dict[str, Any], dict[str, Any]]:
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
        from torch.nn.attention.flex_attention import create_mask

        q, k = inputs["q"], inputs["k"]
        sizes = (q.shape[0], q.shape[1], q.shape[2], k.shape[2])
        if math.prod(sizes) > LARGEST_MASK:
            raise Refusal(f"torch:flex_attention with a block_mask of more than {LARGEST_MASK:,} scores")
        inputs["mask"] = create_mask(blocks.mask_mod, *sizes, device=q.device)
    return inputs, _scale(given.get("scale"))


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
    """flash_attn_varlen_func: [rows of all sequences, h, d]; masks count from the bottom right of each sequence."""
    packed = Packed(*(given[x] for x in _LENGTHS))
    _, fields = _flash_attn({x: y for x, y in given.items() if x not in ("q", "k", "v")})
    return {x: _of_sequence(given[x]) for x in "qkv"}, fields | {"packed": packed}


def _flashinfer_prefill(given: Given) -> tuple[dict[str, Any], dict[str, Any]]:
    """single_prefill_with_kv_cache: one sequence, [s, h, d]; k and v may be [h, s, d]."""
    fields: dict[str, Any] = {"causal": bool(given.get("causal", False))} | _scale(given.get("sm_scale"))
    if (left := given.get("window_left", -1)) >= 0:
        fields["window"] = (left, 0 if fields["causal"] else -1)
    if cap := given.get("logits_soft_cap"):
        fields["softcap"] = float(cap)
    of_kv = (lambda x: x[None]) if given.get("kv_layout", "NHD") == "HND" else _of_sequence
    return {"q": _of_sequence(given["q"]), "k": of_kv(given["k"]), "v": of_kv(given["v"])}, fields


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


#: what says where packed sequences lie, of flash_attn_varlen_func and of specs
_LENGTHS = ("cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k")
_OF_SDPA = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")
_OF_FLASHINFER = ("q", "k", "v", "causal", "kv_layout", "sm_scale", "window_left", "logits_soft_cap")
#: TARGET -> how its calls are read; what is not listed of their arguments is told and not judged
_READERS: Mapping[str, _Reader] = {
    _SDPA: _Reader(
        _sdpa, [x for x in _OF_SDPA if x != "dropout_p"], names=_OF_SDPA
    ),
    "torch:flex_attention": _Reader(
        _flex, ("query", "key", "value", "block_mask", "scale", "enable_gqa"),
        idle=("return_lse", "kernel_options", "return_aux"),
    ),
    "flash_attn:flash_attn_func": _Reader(
        _flash_attn, ("q", "k", "v", "softmax_scale", "causal", "window_size", "softcap"),
        idle=("deterministic", "return_attn_probs"),
    ),
    "flash_attn:flash_attn_varlen_func": _Reader(
        _varlen, ("q", "k", "v", *_LENGTHS, "softmax_scale", "causal", "window_size", "softcap"),
        idle=("deterministic", "return_attn_probs"),
    ),
    "flashinfer:single_prefill_with_kv_cache": _Reader(
        _flashinfer_prefill, _OF_FLASHINFER, idle=("return_lse", "backend"),
    ),
    "xformers.ops:memory_efficient_attention": _Reader(
        _xformers, ("query", "key", "value", "attn_bias", "scale"), idle=("op",),
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


def _of_sequence(x: Any) -> Any:
    """[s, h, d] as [b, h, s, d]."""
    return x.transpose(0, 1)[None]
