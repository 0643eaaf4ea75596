"""Attention functions of packages that are called without a wrapper: how each takes what a case has.

Each entry says what of a case its function takes, and by which keywords; how q, k, v and what it returns lie
(`layouts`); and what is known of its arithmetic. A case with anything else is refused.
"""

import importlib
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from workbench.case.case import Case
from workbench.case.fields import LAID, PROBLEM, QUANTISER, of_role, typed
from workbench.case.memory import poison_of
from workbench.case.options import Options
from workbench.case.presets import INPUTS, fields_of
from workbench.case.stages import MASKS
from workbench.extras import absent
from workbench.foreign import packages
from workbench.foreign.keywords import VALUES, Asked
from workbench.foreign.layouts import laid, poisoned
from workbench.foreign.packages import Call
from workbench.raised import as_raised
from workbench.refusal import Refusal, Unavailable

#: fields that every function takes, by the shapes and the dtype of its arrays
SHAPES = ("batch", "heads", "seqlen_q", "seqlen_k", "head_dim", "dtype")
#: why a function does not take a case; empty where it does
Rule = Callable[[Case], str]


@dataclass(frozen=True)
class Adapter:
    """One function of a package."""

    function: str  #: module:name
    #: field of a case, or input, that it takes -> its keywords, or where it stands; empty: follows from arrays
    takes: Mapping[str, str]
    q: str  #: axes of q and out, as of `layouts`
    kv: str  #: axes of k and v where the case has no pages; empty: it takes pages alone
    lse: str = ""  #: axes of lse; empty: it returns none
    base2: bool = False  #: whether its lse is of base 2
    contract: str = ""  #: a preset, and what else its source shows, in words; empty: nothing is known
    on: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  #: device -> fields of the contract there
    arrays: str = "torch"
    device: str = "cuda"  #: where its arrays live unless it is said
    fixed: Mapping[str, Any] = field(default_factory=dict)  #: keywords of every call
    #: keyword -> its value for a case, where the keyword means something else than in other functions
    own: Mapping[str, Callable[[Asked], Any]] = field(default_factory=dict)
    rules: tuple[Rule, ...] = ()
    call: Callable[[Call], Any] | None = None  #: where keywords alone do not say all
    #: device -> conventions of its backward pass
    gradients: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    poisoned: bool = True  #: whether nothing reads behind the end of a sequence; else what lies there is finite
    #: whether its products round float32 operands to TF32 on a GPU, the default of `tl.dot` on NVIDIA's
    tf32: bool = False

    @property
    def package(self) -> str:
        """What has to be installed."""
        return self.function.partition(".")[0].partition(":")[0]

    def keywords(self, asked: Asked) -> dict[str, Any]:
        """What it is called with by keyword, arrays in NumPy; none where these do not say all."""
        if self.call is not None:
            return {}
        found = dict(self.fixed)
        for what, words in self.takes.items():
            for word in filter(None, words.split(", ")):
                value = self.own.get(word, VALUES.get(word, VALUES.get(what, lambda _: None)))(asked)
                found |= {} if value is None else {word: value}
        return found

    def rounds_operands(self, case: Case, lives_on: str) -> bool:
        """Whether it rounds float32 operands of its products to TF32."""
        return self.tf32 and lives_on == "cuda" and case.dtype == "float32"

    def promised(self, case: Case, lives_on: str) -> dict[str, Any]:
        """What is known of its arithmetic on a case, as of `presets.fields_of`."""
        found = fields_of(self.contract, case) | fields_of(self.on.get(lives_on, {}), case)
        return found | ({"input_precision": "tf32"} if self.rounds_operands(case, lives_on) else {})

    def arrays_of(self, asked: Asked) -> dict[str, np.ndarray]:
        """q, k and v as they lie for it."""
        case, read = asked.case, asked.read
        lengths = {"q": case.lengths_q, "k": case.lengths_k, "v": case.lengths_k}
        if (pages := asked.pages) is not None:
            return {"q": laid(read["q"], self.q, lengths["q"]), "k": pages.k, "v": pages.v}
        kind = poison_of(case) if self.poisoned else "stale"
        kv = "hsd" if self.kv == "shd" and case.kv_layout == "HND" else self.kv
        axes = {"q": self.q, "k": kv, "v": kv}
        return {x: laid(poisoned(read[x], lengths[x], kind, case.seed), axes[x], lengths[x]) for x in "qkv"}


def _one_query(case: Case) -> str:
    return "" if case.seqlen_q == 1 else f"one query per sequence; the case has seqlen_q={case.seqlen_q}"


def _one_sequence(case: Case) -> str:
    return "" if case.batch == 1 else f"one sequence; the case has batch={case.batch}"


def _diagonal(alignment: str) -> Rule:
    def rule(case: Case) -> str:
        by_diagonal = (
            case.causal or case.window is not None or (case.slopes is not None and case.alibi_form == "distance")
        )
        if not by_diagonal or case.causal_alignment == alignment or np.all(case.lengths_q == case.lengths_k):
            return ""
        return f"causal_alignment={alignment} where lengths differ; the case has {case.causal_alignment}"

    return rule


def _left_window(case: Case) -> str:
    """A window_left alone, whose right side is the diagonal where causal."""
    if case.window is None or case.window[1] == (0 if case.causal else -1) or (case.seqlen_q == 1):
        return ""
    return f"windows without a right side, or a causal one; the case has window={typed(case.window)}"


def _window_from_bottom_right(case: Case) -> str:
    return "" if case.window is None else _diagonal("bottom-right")(case)


def _alibi_of_flash_attn(case: Case) -> str:
    """FlashAttention-2 adds slope * key where it masks nothing but what is causal (csrc/flash_attn/src/alibi.h)."""
    left, right = case.sides
    form = "column" if right == 0 and (left == -1 or left >= case.seqlen_k) else "distance"
    if case.alibi_slopes is None or case.alibi_form == form:
        return ""
    return f"alibi_form={form} here; the case has {case.alibi_form}"


def _causal(case: Case) -> str:
    return "" if case.sides[1] == 0 else "causal masks alone; the case is not causal"


def as_many_keys(case: Case) -> str:
    """Attention of a sequence to itself: one length tells queries and keys."""
    if np.array_equal(case.lengths_q, case.lengths_k):
        return ""
    q, k = (typed(getattr(case, f"seqlens_{x}") or getattr(case, f"seqlen_{x}")) for x in "qk")
    return f"as many queries as keys; the case has {q} queries and {k} keys"


def _in_16_bits(case: Case) -> str:
    return "" if case.dtype != "float32" else "float16 and bfloat16; the case has float32"


def _in_two_parts(case: Case) -> str:
    """Dims that are rotated behind those that are not (aiter/ops/triton/attention/mha.py, _flash_attn_forward)."""
    parts = (case.head_dim_v, case.head_dim - case.head_dim_v)
    if parts[1] == 0 or all(x >= 16 and x & (x - 1) == 0 for x in parts):
        return ""
    return (
        "a head_dim_v as head_dim, or one that leaves a power of two from 16, and is one; the case has "
        f"head_dim={case.head_dim} and head_dim_v={case.head_dim_v}"
    )


def _sinks_beside_keys(case: Case) -> str:
    """A causal row without keys has an lse of 0, whatever its sink is (aiter's _attn_fwd, lse_causal_mask)."""
    if case.sinks is None or not case.causal or np.all(case.lengths_q <= case.lengths_k):
        return ""
    return "causal sinks where every row sees a key; the case has more queries than keys"


def _paged_decode(case: Case) -> str:
    return "" if case.page_size is not None else "a paged cache; the case has no page_size"


#: in operations of torch (torch/_higher_order_ops/flex_attention.py, math_attention): scores and their softmax in
#: float32; probs are rounded when they are normalised
_FLEX_ON_CPU = {
    "scores_dtype": "float32",
    "probs_normalised": True,
    "probs_dtype": INPUTS,
    "row_sum_of_cast": False,
    "out_dtype": INPUTS,
    "empty_out": 0.0,
}
#: a row that a mask leaves no key has 0 of some kernels, and of others what v makes of equal probs: of an H100 in 9 of
#: 330 random cases in 16 bits
_SDPA_ON_GPU = {"empty_out": "any"}

#: its flash backend adds blocks up in 16 bits (aten/src/ATen/native/cpu/FlashAttentionKernel.cpp, gemm with beta of 1)
_SDPA_BACKWARD_ON_CPU = {"accumulation_dtype": INPUTS}
#: on a GPU K and V of a group are repeated, or their gradients stored for each head, before heads are added up; the
#: memory-efficient backend makes dS of P as it was cast for dV
_SDPA_BACKWARD_ON_GPU = {"dk_sum_dtype": INPUTS, "dv_sum_dtype": INPUTS, "dscores_of": "cast probs"}
#: in torch's operations (sdpa_dense_backward) a gradient of each query head is stored before those of a group are added
_FLEX_BACKWARD_ON_CPU = {"dk_sum_dtype": INPUTS, "dv_sum_dtype": INPUTS}
#: compiled, delta is a sum of 16-bit tensors, which is stored as they are (torch/_inductor/kernel/flex)
_FLEX_BACKWARD_ON_GPU = {"delta_dtype": INPUTS}
#: softcaps by tanh.approx (csrc/flash_attn/src/utils.h, cutlass::fast_tanh)
_FLASH_BACKWARD = {"tanh": "approximate"}

#: dK and dV of each query head are stored before those of a group are added
#: (native_sparse_attention/ops/triton/flash_attention.py, _flash_attention_bwd)
_NSA_BACKWARD = {"dk_sum_dtype": INPUTS, "dv_sum_dtype": INPUTS}

_OF_FLASH_ATTN = {
    "scale": "softmax_scale",
    "causal": "causal",
    "kv_heads": "",
    "window": "window_size",
    "softcap": "softcap",
    "alibi_slopes": "alibi_slopes",
    "alibi_form": "",
}
_OF_FLASHINFER = {
    "scale": "sm_scale",
    "kv_heads": "",
    "window": "window_left",
    "softcap": "logits_soft_cap",
    "kv_layout": "kv_layout",
}
_FLASH_ATTN = (_diagonal("bottom-right"), _alibi_of_flash_attn)
#: of Triton (fla/ops/attn/parallel.py) and of TileLang, which takes its place on Hopper where it is installed
#: (fla/ops/common/backends/tilelang): both end in a division, and add the sink before it
_CONTRACT_OF_FLA = "triton,normalisation=division,sinks=last"
_OF_AITER = {
    "scale": "softmax_scale",
    "causal": "causal",
    "kv_heads": "",
    "head_dim_v": "",
    "window": "window_size",
    "alibi_slopes": "alibi_slopes",
    "sinks": "sink",
}
#: its window has a left side alone, and slopes must have an axis of batches (aiter/ops/triton/attention/mha.py,
#: _flash_attn_forward)
_OWN_OF_AITER: Mapping[str, Callable[[Asked], Any]] = {
    "window_size": lambda a: None if a.case.window is None else (a.case.window[0], -1),
    "alibi_slopes": lambda a: None if a.case.slopes is None else np.tile(a.case.slopes, (a.case.batch, 1)),
}
_AITER = (_diagonal("bottom-right"), _left_window, _in_two_parts, _sinks_beside_keys)
#: a row starts with its sink as the maximum, and ends in a product with 1 / sum; the lse of one without keys is 0 or
#: -inf (aiter/ops/triton/_triton_kernels/attention/mha.py, _attn_fwd)
_CONTRACT_OF_AITER = "triton,normalisation=division,sinks=first,lse_includes_sink=true,empty_lse=libraries"

#: TARGET -> how it is called
ADAPTERS: Mapping[str, Adapter] = {
    "torch:scaled_dot_product_attention": Adapter(
        "torch.nn.functional:scaled_dot_product_attention",
        {
            "scale": "scale",
            "causal": "is_causal, attn_mask",
            "causal_alignment": "attn_mask",
            "kv_heads": "enable_gqa",
            "head_dim_v": "",
            "shared_kv": "",
            "seqlens_q": "attn_mask",
            "seqlens_k": "attn_mask",
            "window": "attn_mask",
            "alibi_slopes": "attn_mask",
            "alibi_form": "attn_mask",
            "mask_mod": "attn_mask",
            "mask": "attn_mask",
            "bias": "attn_mask",
        },
        q="bhsd", kv="bhsd", contract="torch-sdpa", on={"cuda": _SDPA_ON_GPU}, device="cpu", call=packages.sdpa,
        gradients={"cpu": _SDPA_BACKWARD_ON_CPU, "cuda": _SDPA_BACKWARD_ON_GPU}, poisoned=False,
    ),
    "torch:flex_attention": Adapter(
        "torch.nn.attention.flex_attention:flex_attention",
        {
            "scale": "scale",
            "causal": "block_mask",
            "causal_alignment": "block_mask",
            "kv_heads": "enable_gqa",
            "head_dim_v": "",
            "shared_kv": "",
            "seqlens_q": "block_mask",
            "seqlens_k": "block_mask",
            "window": "block_mask",
            "softcap": "score_mod",
            "score_mod": "score_mod",
            "alibi_slopes": "score_mod",
            "alibi_form": "score_mod",
            "mask_mod": "block_mask",
            "mask": "block_mask",
            "bias": "score_mod",
        },
        q="bhsd", kv="bhsd", lse="bhs", on={"cpu": _FLEX_ON_CPU}, device="cpu", call=packages.flex,
        gradients={"cpu": _FLEX_BACKWARD_ON_CPU, "cuda": _FLEX_BACKWARD_ON_GPU}, poisoned=False,
    ),
    "flash_attn:flash_attn_func": Adapter(
        "flash_attn:flash_attn_func",
        _OF_FLASH_ATTN,
        q="bshd", kv="bshd", lse="bhs", contract="flash-attention-2", fixed={"return_attn_probs": True},
        rules=_FLASH_ATTN, gradients={"cuda": _FLASH_BACKWARD},
    ),
    "flash_attn:flash_attn_varlen_func": Adapter(
        "flash_attn:flash_attn_varlen_func",
        {
            **_OF_FLASH_ATTN,
            "seqlens_q": "cu_seqlens_q, max_seqlen_q",
            "seqlens_k": "cu_seqlens_k, max_seqlen_k",
            "page_size": "block_table",
        },
        q="nhd", kv="nhd", lse="hn", contract="flash-attention-2", fixed={"return_attn_probs": True},
        rules=_FLASH_ATTN, gradients={"cuda": _FLASH_BACKWARD},
    ),
    "flash_attn:flash_attn_with_kvcache": Adapter(
        "flash_attn:flash_attn_with_kvcache",
        {**_OF_FLASH_ATTN, "seqlens_k": "cache_seqlens", "page_size": "block_table"},
        q="bshd", kv="bshd", lse="bhs", contract="flash-attention-2", fixed={"return_softmax_lse": True},
        rules=_FLASH_ATTN,
    ),
    "flashinfer:single_prefill_with_kv_cache": Adapter(
        "flashinfer:single_prefill_with_kv_cache",
        {**_OF_FLASHINFER, "causal": "causal"},
        q="shd", kv="shd", lse="sh", base2=True, fixed={"return_lse": True},
        rules=(_one_sequence, _diagonal("bottom-right"), _left_window),
    ),
    "flashinfer:single_decode_with_kv_cache": Adapter(
        "flashinfer:single_decode_with_kv_cache",
        {**_OF_FLASHINFER, "causal": ""},
        q="hd", kv="shd", lse="h", base2=True, fixed={"return_lse": True},
        rules=(_one_sequence, _one_query, _diagonal("bottom-right"), _left_window),
    ),
    "flashinfer:BatchDecodeWithPagedKVCacheWrapper": Adapter(
        "flashinfer:BatchDecodeWithPagedKVCacheWrapper",
        {
            **_OF_FLASHINFER,
            "causal": "",
            "seqlens_k": "indptr, last_page_len",
            "page_size": "page_size, indices",
        },
        q="bhd", kv="", lse="bh", base2=True, call=packages.flashinfer_decode,
        rules=(_paged_decode, _one_query, _diagonal("bottom-right"), _left_window),
    ),
    "xformers.ops:memory_efficient_attention": Adapter(
        "xformers.ops:memory_efficient_attention",
        {
            "scale": "scale",
            "causal": "attn_bias",
            "causal_alignment": "attn_bias",
            "head_dim_v": "",
            "window": "attn_bias",
        },
        q="bshd", kv="bshd", call=packages.xformers, rules=(_window_from_bottom_right,),
    ),
    "fla.ops:parallel_attn": Adapter(
        "fla.ops.attn:parallel_attn",
        {
            "scale": "scale",
            "causal": "",
            "kv_heads": "",
            "head_dim_v": "",
            "seqlens_q": "cu_seqlens",
            "seqlens_k": "cu_seqlens",
            "window": "window_size",
            "sinks": "sink_bias",
        },
        q="bshd", kv="bshd", contract=_CONTRACT_OF_FLA, call=packages.fla,
        rules=(_causal, as_many_keys), tf32=True,
    ),
    "aiter.ops.triton.mha:flash_attn_func": Adapter(
        "aiter.ops.triton.attention.mha:flash_attn_func",
        _OF_AITER,
        q="bshd", kv="bshd", lse="bhs", contract=_CONTRACT_OF_AITER, fixed={"return_lse": True}, own=_OWN_OF_AITER,
        rules=_AITER,
    ),
    "aiter.ops.triton.mha:flash_attn_varlen_func": Adapter(
        "aiter.ops.triton.attention.mha:flash_attn_varlen_func",
        {
            **_OF_AITER,
            "seqlens_q": "cu_seqlens_q, max_seqlen_q",
            "seqlens_k": "cu_seqlens_k, max_seqlen_k",
        },
        q="nhd", kv="nhd", lse="nh", contract=_CONTRACT_OF_AITER, fixed={"return_lse": True}, own=_OWN_OF_AITER,
        rules=_AITER,
    ),
    "native_sparse_attention.ops:flash_attention_varlen": Adapter(
        "native_sparse_attention.ops:flash_attention_varlen",
        {
            "scale": "sm_scale",
            "causal": "causal",
            "kv_heads": "",
            "head_dim_v": "",
            "seqlens_q": "cu_seqlens_q, max_seqlen_q",
            "seqlens_k": "cu_seqlens_k, max_seqlen_k",
        },
        q="nhd", kv="nhd", contract="triton", rules=(_in_16_bits, as_many_keys), gradients={"cuda": _NSA_BACKWARD},
    ),
    "jax.nn:dot_product_attention": Adapter(
        "jax.nn:dot_product_attention",
        {
            "scale": "scale",
            "causal": "is_causal, mask",
            "causal_alignment": "mask",
            "kv_heads": "",
            "seqlens_q": "query_seq_lengths",
            "seqlens_k": "key_value_seq_lengths",
            "window": "local_window_size, mask",
            "mask_mod": "mask",
            "mask": "mask",
            "bias": "bias",
        },
        q="bshd", kv="bshd", arrays="jax", device="cpu", call=packages.jax, poisoned=False,
    ),
}  # fmt: skip


def known(target: str) -> Adapter | None:
    """The adapter of TARGET, which may name the function as it is imported."""
    return ADAPTERS.get(target) or next((one for one in ADAPTERS.values() if one.function == target), None)


def load(adapter: Adapter, target: str) -> Callable[..., Any]:
    """The function of a package; Unavailable where that is not installed, Refusal where it has none of the name."""
    module, _, name = adapter.function.partition(":")
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise Unavailable(absent(f"{target} needs", str(error.name))) from None
    except Exception as error:  # of an extension, most often, that was built for another machine
        raise Refusal(f"{target}: {module} could not be imported:\n{as_raised(error)}") from None
    if (function := getattr(found, name, None)) is None:
        version = getattr(importlib.import_module(adapter.package), "__version__", "unknown")
        raise Refusal(f"{target}: {module} of {adapter.package} {version} has no {name}")
    return function


def adapter_of(function: Callable[..., Any] | None) -> Adapter | None:
    """The adapter of a function, or of what it wraps (`functools.wraps`); None of one that is of no package here."""
    if function is None:
        return None
    for adapter in ADAPTERS.values():
        module, _, name = adapter.function.partition(":")
        if getattr(sys.modules.get(module), name, None) is function:
            return adapter
    return adapter_of(getattr(function, "__wrapped__", None))


def lives(adapter: Adapter, options: Options, name: str) -> tuple[str, str]:
    """The library and the device of the arrays of a function; Refusal where the options say another, or a layout."""
    for option, own in (("arrays", adapter.arrays), ("layout", Options().layout)):
        said = getattr(options, option)
        if said not in (getattr(Options(), option), own):
            raise Refusal(f"{name} takes {adapter.arrays} arrays in its own layout; got {option}={said!r}")
    return adapter.arrays, options.device or adapter.device


def check(adapter: Adapter, asked: Asked, name: str) -> None:
    """Refusal for what a case has and the function `name` does not take, with what it takes."""
    case, takes = asked.case, adapter.takes
    unusual = {x: value for x, value in case.unusual.items() if x in of_role(PROBLEM, LAID, QUANTISER)}
    idle = {*SHAPES, "seqlen", "causal_alignment"}  # a rule tells where that matters
    idle |= {"seqlens_q", "seqlens_k"} - {*asked.uneven}
    idle |= {"alibi_form"} if case.alibi_slopes is None else set()
    has = {x: f"the case has ({x}={typed(value)})" for x, value in unusual.items() if x not in idle}
    if case.mask_mod is not None and "mask_mod" not in takes and "mask" in takes:
        del has["mask_mod"]
    has |= {x: "the inputs hold" for x in MASKS if x in asked.read and not (x == "mask" and asked.own_mask is None)}
    if missing := next((x for x in has if x not in takes), None):
        raise Refusal(f"{name} takes no {missing}, which {has[missing]}; it takes {', '.join(takes)}")
    if why := next(filter(None, (rule(case) for rule in adapter.rules)), ""):
        raise Refusal(f"{name} takes {why}")
