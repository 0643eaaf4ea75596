"""Calls of packages' attention functions, read back: what a call of each asks, which is what its adapter does the other
way round.

Nothing is copied and nothing is waited for: tensors come back as views with the axes [batch, head, row, dim].
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from workbench.arrays import as_torch
from workbench.foreign.adapters import ADAPTERS, Adapter, adapter_of
from workbench.foreign.layouts import BOX
from workbench.foreign.read_back import LENGTHS, READERS, SDPA, Given, Packed, packed_inputs, sdpa
from workbench.refusal import Refusal

#: dtypes of q, k and v that are judged, by torch's names
DTYPES = {"torch.float32": "float32", "torch.float16": "float16", "torch.bfloat16": "bfloat16"}


#: axes of the result of packed sequences
PACKED = "nhd"


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
    packed: Packed | None = None  #: where q, k and v are sequences of several lengths behind each other
    where: str = ""  #: which call of a model it is: layer 7, step 3

    @property
    def in_pages(self) -> bool:
        """Whether k and v are a paged cache."""
        return self.packed is not None and self.packed.in_pages


def placed(call: Call, where: str) -> Call:
    """A call of a model, with which one it is."""
    return replace(call, where=where)


@dataclass(frozen=True)
class CallReader:
    """How calls of one function are read."""

    name: str
    read: Callable[..., Call]  #: called as the function is; Refusal for a call that cannot be judged


def reader_of(function: Callable[..., Any], spec: Callable[..., Given] | str | None = None) -> CallReader:
    """How calls of `function` are read: by its `spec` where one is given, else as its adapter says. The spec "sdpa" is
    of a function that takes what torch.nn.functional.scaled_dot_product_attention takes.

    `spec` is called as the function is, and returns what the call asks: q, k, v [batch, head, row, dim], a mask (bool,
    True: visible; or numbers that are added), a bias, fields of a case, and as `layout` the axes of the result (bhsd).
    Of packed sequences q, k and v are [rows, head, dim], beside cu_seqlens_q and _k, max_seqlen_q and _k as of
    flash_attn_varlen_func; in pages k and v are [page, row, head, dim], beside block_table, and seqused_k may stand in
    the place of cu_seqlens_k.

    Refusal for a function that no adapter knows, and of packages whose calls are not read back.
    """
    if is_dispatched(function):
        return CallReader(str(function), lambda op, *args, **kwargs: _of_op(op, args, kwargs))
    name = f"{function.__module__}.{getattr(function, '__qualname__', '?')}"
    if spec == "sdpa":
        read = _Adapted(function, SDPA, _LIKE_SDPA, name)
        return CallReader(name, lambda *args, **kwargs: read(**_as_sdpa(function, args, kwargs)))
    if isinstance(spec, str):
        raise Refusal(f'{name}: spec is "sdpa", or a function that returns the inputs of a call; got {spec!r}')
    if spec is not None:
        return CallReader(name, lambda *args, **kwargs: _told(spec(*args, **kwargs), name))
    adapter = adapter_of(function)
    target = next((target for target, one in ADAPTERS.items() if one is adapter), None)
    if adapter is None or target is None or target not in READERS:
        raise Refusal(
            f"{target or name}: calls of {', '.join(READERS)} are known; for any other function pass a spec of its "
            "calls: capture(function, folder, spec=lambda q, k, v: {'q': q, 'k': k, 'v': v, 'causal': True}), or "
            'spec="sdpa" if it takes the arguments of scaled_dot_product_attention'
        )
    return CallReader(target, _Adapted(function, target, adapter, target))


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
    inputs, fields = sdpa({"attn_mask": given.get("attn_bias"), **given})
    if op._schema.name == "aten::_scaled_dot_product_flash_attention" and "causal" in fields:
        del fields["causal_alignment"]  # FlashAttention counts from the bottom right, whoever calls it
    adapter = ADAPTERS[SDPA]
    on = adapter.on.get(inputs["q"].device.type, {})
    return Call(inputs, fields, adapter.q, contract=adapter.contract or dict(on))


#: what takes the arguments of torch's attention, of whose arithmetic nothing is known
_LIKE_SDPA = replace(ADAPTERS[SDPA], lse="bhs", contract="", on={}, gradients={})


@dataclass(frozen=True)
class _Adapted:
    """Reads calls of a package's function."""

    function: Callable[..., Any]
    target: str
    adapter: Adapter
    name: str  #: of the function, in messages

    def __call__(self, *args: Any, **kwargs: Any) -> Call:
        reader = READERS[self.target]
        given = _by_name(self.function, reader.names, args, kwargs)
        unknown = [x for x, value in given.items() if x not in reader.reads and not _idle(value)]
        if odd := [x for x in unknown if x not in reader.idle]:
            raise Refusal(f"{self.name} with {odd[0]}")
        inputs, fields = reader.read({x: value for x, value in given.items() if value is not None})
        on = self.adapter.on.get(inputs["q"].device.type, {})
        contract = self.adapter.contract or dict(on)
        one = self.adapter
        gradients, cast = one.gradients.get(inputs["q"].device.type, {}), _autocast(inputs["q"], self.target)
        packed = fields.pop("packed", None)
        return Call(
            inputs, fields, one.q if packed is None else PACKED, one.lse, one.base2, contract, gradients, cast, packed
        )


def _by_name(function: Callable[..., Any], names: Sequence[str], args: tuple[Any, ...], kwargs: Given) -> Given:
    if names:
        return {**dict(zip(names, args, strict=False)), **kwargs}
    return inspect.signature(function).bind(*args, **kwargs).arguments


def _as_sdpa(function: Callable[..., Any], args: tuple[Any, ...], kwargs: Given) -> dict[str, Any]:
    """The arguments of a function that takes what torch's attention takes: its q, k and v stand first, whatever they
    are called, behind the object of a method.
    """
    signature = inspect.signature(function)
    given = dict(signature.bind(*args, **kwargs).arguments)
    for name, parameter in signature.parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            given |= given.pop(name, {})
        if parameter.kind is parameter.VAR_POSITIONAL:
            given |= dict(zip(READERS[SDPA].names, given.pop(name, ()), strict=False))
    own = [name for name in signature.parameters if name != "self"]
    given.pop("self", None)
    return {dict(zip(own, _QKV, strict=False)).get(name, name): x for name, x in given.items()}


#: what torch's attention calls q, k and v
_QKV = ("query", "key", "value")


def _idle(value: Any) -> bool:
    """Whether an argument is as if it were not given."""
    return value is None or (isinstance(value, int | float | str) and value in (0, "auto", "NONE"))


def _autocast(q: Any, target: str) -> Any:
    """The dtype to which torch.autocast casts what scaled_dot_product_attention is given; None where it does not."""
    import torch

    if target != SDPA or not torch.is_autocast_enabled(q.device.type):
        return None
    return torch.get_autocast_dtype(q.device.type)


def _told(given: Given, name: str) -> Call:
    """What a spec says of a call."""
    rest = dict(given)
    inputs = {x: as_torch(rest.pop(x), x) for x in ("q", "k", "v", "mask", "bias") if rest.get(x) is not None}
    if lacking := [x for x in "qkv" if x not in inputs]:
        raise Refusal(f"{name}: its spec returned no {lacking[0]}")
    if "mask" in inputs and "bool" not in str(inputs["mask"].dtype):  # numbers are added, whatever they are called
        mask = inputs.pop("mask")
        inputs["bias"] = mask if "bias" not in inputs else inputs["bias"].float() + mask.float()
    packed = None
    if lengths := {x: y for x in LENGTHS if (y := rest.pop(x, None)) is not None}:
        of_keys = "seqused_k" if "block_table" in lengths and "cu_seqlens_k" not in lengths else "cu_seqlens_k"
        if lacking := [x for x in (*LENGTHS[:3], of_keys) if x not in lengths]:
            raise Refusal(f"{name}: its spec returned {', '.join(lengths)} but no {lacking[0]}")
        packed = Packed(**lengths)
        inputs |= packed_inputs(inputs, packed)
    layout, contract = rest.pop("layout", BOX if packed is None else PACKED), rest.pop("contract", {})
    lse = "".join(axis for axis in layout if axis != "d")
    fields = {x: value for x, value in rest.items() if value is not None}
    return Call(inputs, fields, layout, lse, contract=contract, packed=packed)
