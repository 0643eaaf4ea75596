"""Right attention functions of libraries, each as a function of q, k and v for `workbench accept`.

Masks are added numbers, finfo.min where a key is hidden, as transformers makes them for eager attention, but for sdpa
and flex_attention. Rows count from the bottom right.
"""

from types import SimpleNamespace
from typing import Any

import torch
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.models.bert import modeling_bert
from transformers.models.gemma2 import modeling_gemma2
from transformers.models.gemma3 import modeling_gemma3
from transformers.models.gpt2 import modeling_gpt2
from transformers.models.gpt_oss import modeling_gpt_oss
from transformers.models.llama import modeling_llama
from transformers.models.mistral import modeling_mistral
from transformers.models.qwen3 import modeling_qwen3
from transformers.models.t5 import modeling_t5

from workbench.case.presets import PRESETS


def seen(q: Any, k: Any, causal: bool, window: Any = None) -> Any:
    """Which keys a row sees, bool [row, key]."""
    rows, keys = q.shape[2], k.shape[2]
    before = torch.arange(rows)[:, None] + keys - rows - torch.arange(keys)
    found = before >= 0 if causal else torch.ones(rows, keys, dtype=torch.bool)
    return found if window is None else found & (before <= window[0])


def added(q: Any, k: Any, causal: bool, window: Any = None) -> Any:
    """The same as numbers that are added to scores."""
    hidden = ~seen(q, k, causal, window)[None, None]
    return torch.zeros(hidden.shape, dtype=q.dtype).masked_fill(hidden, torch.finfo(q.dtype).min)


def _called(function: Any, q: Any, k: Any, v: Any, mask: Any, scale: float, **more: Any) -> Any:
    sinks = more.pop("sinks", None)
    module = SimpleNamespace(
        num_key_value_groups=q.shape[1] // k.shape[1], head_dim=q.shape[3], training=False, is_causal=False, sinks=sinks
    )
    return function(module, q, k, v, mask, scaling=scale, **more)[0].transpose(1, 2)


def llama(q: Any, k: Any, v: Any, *, scale: float, causal: bool) -> Any:
    return _called(modeling_llama.eager_attention_forward, q, k, v, added(q, k, causal), scale)


def qwen3(q: Any, k: Any, v: Any, *, scale: float, causal: bool) -> Any:
    return _called(modeling_qwen3.eager_attention_forward, q, k, v, added(q, k, causal), scale)


def mistral(q: Any, k: Any, v: Any, *, scale: float, causal: bool, window_size: Any) -> Any:
    return _called(modeling_mistral.eager_attention_forward, q, k, v, added(q, k, causal, window_size), scale)


def gemma2(q: Any, k: Any, v: Any, *, scale: float, causal: bool, softcap: float) -> Any:
    return _called(modeling_gemma2.eager_attention_forward, q, k, v, added(q, k, causal), scale, softcap=softcap)


def gemma3(q: Any, k: Any, v: Any, *, scale: float, causal: bool, window_size: Any) -> Any:
    return _called(modeling_gemma3.eager_attention_forward, q, k, v, added(q, k, causal, window_size), scale)


def gpt_oss(q: Any, k: Any, v: Any, *, scale: float, causal: bool, sinks: Any) -> Any:
    of = modeling_gpt_oss.eager_attention_forward
    return _called(of, q, k, v, added(q, k, causal), scale, sinks=sinks.to(q.dtype))


def gpt2(q: Any, k: Any, v: Any, *, scale: float, causal: bool) -> Any:
    return _called(modeling_gpt2.eager_attention_forward, q, k, v, added(q, k, causal), scale)


def bert(q: Any, k: Any, v: Any, *, scale: float, causal: bool) -> Any:
    return _called(modeling_bert.eager_attention_forward, q, k, v, added(q, k, causal), scale)


def t5(q: Any, k: Any, v: Any, *, scale: float, causal: bool) -> Any:
    return _called(modeling_t5.eager_attention_forward, q, k, v, added(q, k, causal), scale)


def sdpa(q: Any, k: Any, v: Any, *, scale: float, causal: bool) -> Any:
    mask = seen(q, k, causal)[None, None] if causal else None
    return _called(sdpa_attention_forward, q, k, v, mask, scale)


#: function -> what a spec says of its cases, and its contract
SPECS: dict[str, tuple[dict[str, Any], str]] = {
    "llama": ({}, "torch-eager"),
    "qwen3": ({}, "torch-eager"),
    "mistral": ({"causal": True, "window": (15, 0)}, "torch-eager"),
    "gemma2": ({"softcap": 5.0}, "torch-eager"),
    "gemma3": ({"causal": True, "window": (7, 0)}, "torch-eager"),
    "gpt_oss": ({"sinks": "normal"}, "torch-eager"),
    "gpt2": ({"group": 1}, "torch-eager"),
    "bert": ({"group": 1, "causal": False}, "torch-eager"),
    "t5": ({"group": 1}, "torch-eager"),
    "sdpa": ({}, "torch-sdpa"),
}


#: error of exp, in ulps of float32 for each unit of its argument, where that was rounded: gpt_oss subtracts the maximum
#: in the dtype of its inputs
OF_DIFFERENCE = {"float32": 0.0, "float16": 2.0**12, "bfloat16": 2.0**15}


def contract_of(name: str, dtype: str) -> dict[str, Any]:
    """What a function promises of its arithmetic."""
    more = {"exp_ulps_per_x": OF_DIFFERENCE[dtype]} if name == "gpt_oss" else {}
    return {**PRESETS[SPECS[name][1]], **more}
