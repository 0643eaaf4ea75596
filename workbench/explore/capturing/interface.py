"""Calls of the attention functions of transformers: what each asks is read from its module and its arguments."""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from workbench.case.presets import PRESETS
from workbench.explore.capturing.layers import Layers
from workbench.explore.capturing.sources import Tell, Watched
from workbench.foreign.adapters import ADAPTERS
from workbench.foreign.calls import Call
from workbench.foreign.read_back import SDPA, written_out
from workbench.refusal import Refusal

#: functions of transformers -> the package's function to which they hand a call
_OF_TRANSFORMERS = {
    "transformers.integrations.sdpa_attention": SDPA,
    "transformers.integrations.flex_attention": "torch:flex_attention",
    "transformers.integrations.flash_attention": "flash_attn:flash_attn_func",
}
#: arguments of which nothing that is judged is known
_UNKNOWN = ("indices", "block_indices", "cu_seq_lens_q", "cu_seq_lens_k", "block_table")
_NO_MASK = (
    "transformers makes no mask for {0!r}, so its function cannot know padding or where a window lies. To give it a "
    "mask: AttentionMaskInterface.register({0!r}, sdpa_mask)"
)
#: error of exp, in ulps of float32 for each unit of its argument, which was rounded to a dtype by half an ulp
_OF_DIFFERENCE = {"torch.bfloat16": 2.0**15, "torch.float16": 2.0**12}
#: axes of what attention functions of transformers return
_OUT = "bshd"


class Interface(NamedTuple):
    """An attention function, and how the model's config led to it."""

    function: Callable[..., Any]
    own: bool  #: whether it is the one of its modeling file, eager, which hides what its mask hides and nothing else
    masks: str  #: name of the function that made its mask; empty: none does, and it is told neither padding nor window
    where: str  #: which call of the model it is

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    def asked(self, *args: Any, **kwargs: Any) -> Call:
        """What a call of it asks."""
        return asked_of(self, *args, **kwargs)


def asks(model: Any) -> bool:
    """Whether modules of a model ask transformers for an attention function by name."""
    files = {type(module).__module__ for module in model.modules()}
    return any(hasattr(sys.modules.get(file), "ALL_ATTENTION_FUNCTIONS") for file in files)


@contextmanager
def watching(layers: Layers, watched: Watched, remark: Tell) -> Iterator[None]:
    """The attention functions that transformers gives the modules of a model are watched, until it is left; `remark`
    takes what the report should say of them.
    """
    interface: Any = getattr(sys.modules["transformers.modeling_utils"], "AttentionInterface", None)
    if not hasattr(interface, "get_interface"):
        raise Refusal("capture of a model needs transformers 5 (AttentionInterface.get_interface)")
    right, masks = interface.get_interface, sys.modules["transformers.masking_utils"].ALL_MASK_ATTENTION_FUNCTIONS

    made_by: dict[Any, str] = {}

    def get_interface(self: Any, implementation: Any, default: Any) -> Callable[..., Any]:
        function, own = right(self, implementation, default), implementation in (None, "eager")
        if implementation not in made_by:
            made_by[implementation] = getattr(masks.get(implementation), "__name__", "")
        mask = made_by[implementation]

        def of_model(module: Any, *args: Any, **kwargs: Any) -> Any:
            if module not in layers:
                return function(module, *args, **kwargs)
            if not (mask or own):
                remark(_NO_MASK.format(implementation))
            found = Interface(function, own, mask, layers.begin(module))
            try:
                return watched(found, module, *args, **kwargs)
            finally:
                layers.end()

        return of_model

    interface.get_interface = get_interface
    try:
        yield
    finally:
        interface.get_interface = right


def asked_of(
    found: Interface,
    module: Any,
    query: Any,
    key: Any,
    value: Any,
    attention_mask: Any = None,
    *,
    scaling: float | None = None,
    dropout: float = 0.0,
    softcap: float | None = None,
    sliding_window: int | None = None,
    is_causal: bool | None = None,
    position_bias: Any = None,
    s_aux: Any = None,
    **rest: Any,
) -> Call:
    """What one call of an attention function asks. Refusal for one that cannot be judged, with what it has."""
    if dropout:
        raise Refusal(f"dropout of {dropout}: model.eval() turns it off")
    if attention_mask is not None and not hasattr(attention_mask, "mask_mod") and attention_mask.ndim == 4:
        rest = {name: x for name, x in rest.items() if not name.startswith("cu_seq_lens")}  # the mask has them
    if odd := [name for name, x in rest.items() if (name in _UNKNOWN and x is not None) or _of_numbers(x)]:
        raise Refusal(f"unsupported argument {odd[0]}")
    fields: dict[str, Any] = {"scale": scaling, "softcap": softcap or None}
    sinks: Any = getattr(module, "sinks", None) if s_aux is None else s_aux
    if sinks is not None:
        fields["sinks"] = _values(module, sinks)
    inputs = {"q": query, "k": key, "v": value} | _mask(attention_mask, query, key)
    if attention_mask is None or not _of_scores(attention_mask):
        causal = is_causal if is_causal is not None else getattr(module, "is_causal", True)
        fields |= _causal(found, bool(causal), query.shape[2], key.shape[2], sliding_window)
    if position_bias is not None:
        # of a sum in its own dtype -inf may become of the smallest number
        bias = position_bias[..., : key.shape[2]]
        inputs["bias"] = inputs["bias"].float() + bias.float() if "bias" in inputs else bias
    given = {name: x for name, x in fields.items() if x is not None}
    return Call(
        inputs,
        given,
        _OUT,
        contract=_contract(found, query, sinks is not None),
        cast=_autocast(query),
        where=found.where,
    )


def _contract(found: Interface, query: Any, sinks: bool) -> Any:
    """What is known of the arithmetic of transformers' own functions."""
    file = getattr(found.function, "__globals__", {}).get("__name__", "")  # where its code is, whatever it wraps
    if found.own and file.startswith("transformers.models."):
        # a row whose keys are all at the smallest number has the mean of v
        known = {name: x for name, x in PRESETS["torch-eager"].items() if name != "empty_out"}
        # with sinks their maximum is subtracted, and the difference rounded, before softmax: exp is off by as much
        return known | ({"exp_ulps_per_x": _OF_DIFFERENCE.get(str(query.dtype), 0.0)} if sinks else {})
    if file not in _OF_TRANSFORMERS:
        return {}
    adapter = ADAPTERS[_OF_TRANSFORMERS[file]]
    return adapter.contract or dict(adapter.on.get(query.device.type, {}))


def _of_numbers(x: Any) -> bool:
    """Whether an argument that nothing is known of holds numbers for each head or row, which may be added to scores."""
    import torch

    return isinstance(x, torch.Tensor) and x.is_floating_point() and x.ndim > 2


def _of_scores(mask: Any) -> bool:
    """Whether a mask has an entry for each score: it is all that is hidden then."""
    return hasattr(mask, "mask_mod") or mask.ndim == 4


def _mask(mask: Any, query: Any, key: Any) -> dict[str, Any]:
    """The mask of a call as inputs: bool, or added to the scores; of each key alone as flash_attention has it."""
    import torch

    if mask is None:
        return {}
    if hasattr(mask, "mask_mod"):
        return {"mask": written_out(mask, query, key)}
    if mask.ndim == 4:
        return {"mask" if mask.dtype == torch.bool else "bias": mask[..., : key.shape[2]]}
    if mask.ndim != 2:
        raise Refusal(f"an attention_mask with {mask.ndim} axes")
    seen = mask.bool()[:, None, None, : key.shape[2]]
    if mask.shape[1] == query.shape[2]:  # rows of padding are none
        seen = seen & mask.bool()[:, None, :, None]
    return {"mask": seen}


def _causal(found: Interface, causal: bool, queries: int, keys: int, window: int | None) -> Mapping[str, Any]:
    """What is hidden without a mask of scores."""
    if found.own:
        return {}
    fields: dict[str, Any] = {}
    if causal and queries > 1:
        fields["causal"] = True
        if found.masks == "sdpa_mask" and keys > queries:  # a cache of which only the first rows are filled
            fields["causal_alignment"] = "top-left"
    # a mask function leaves its mask out where the window hides nothing
    if window is not None and keys > window and found.masks in ("", "flash_attention_mask"):
        fields["window"] = (window - 1, 0 if causal else window - 1)
    return fields


def _values(module: Any, sinks: Any) -> tuple[float, ...]:
    """Logits of sinks. Those that are a parameter of the module are read from their device once, and where they were
    written again.
    """
    own: bool = sinks is getattr(module, "sinks", None)
    if not own or sinks.is_inference():
        return tuple(sinks.detach().float().flatten().tolist())
    version, values = _SINKS.get(module, (-1, ()))
    if version != sinks._version:
        version, values = sinks._version, tuple(sinks.detach().float().flatten().tolist())
        _SINKS[module] = (version, values)
    return values


_SINKS: WeakKeyDictionary[Any, tuple[int, tuple[float, ...]]] = WeakKeyDictionary()


def _autocast(query: Any) -> Any:
    """The dtype to which torch.autocast casts operands of products; None where it is off."""
    import torch

    kind = query.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
