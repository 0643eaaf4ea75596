"""What targets take of a case: each field is tried on each."""

from typing import Any

from docs.generators.markdown import table
from workbench import Case, Refusal
from workbench.case.fields import LAID, PROBLEM, of_role
from workbench.case.options import Options
from workbench.cuda.kernels import KERNELS
from workbench.cuda.plan import plan
from workbench.foreign.adapters import ADAPTERS, as_many_keys, check
from workbench.foreign.keywords import FEATURES, Asked

BASE = Case(seqlen_q=1, seqlen_k=12, heads=2, head_dim=16, dtype="float16", scale=0.3)
#: field -> cases that have it, by what their being taken means; `both` where two are
SHOWN: dict[str, dict[str, dict[str, Any]]] = {
    "batch": {"any": {"batch": 2}},
    "heads": {"yes": {}},
    "kv_heads": {"yes": {"kv_heads": 1}},
    "seqlen_q": {"any": {"seqlen_q": 5}},
    "seqlen_k": {"yes": {}},
    "seqlens_q": {"yes": {"batch": 2, "seqlen_q": 5, "seqlens_q": (5, 3)}},
    "seqlens_k": {"yes": {"batch": 2, "seqlens_k": (12, 3)}},
    "head_dim": {"yes": {}},
    "head_dim_v": {"yes": {"head_dim": 32, "head_dim_v": 16}},
    "shared_kv": {"yes": {"head_dim_v": 8, "shared_kv": True}},
    "dtype": {"yes": {}},
    "causal": {"yes": {"causal": True, "causal_alignment": "bottom-right"}},
    "causal_alignment": {
        "bottom-right": {"causal": True, "causal_alignment": "bottom-right"},
        "top-left": {"causal": True, "causal_alignment": "top-left"},
    },
    "scale": {"yes": {"scale": 0.25}},
    "softcap": {"yes": {"softcap": 2.0}},
    "window": {"left": {"window": (3, -1)}, "right": {"seqlen_q": 5, "window": (3, 1), "causal": False}},
    "alibi_slopes": {"yes": {"alibi_slopes": "geometric"}},
    "alibi_form": {
        "distance": {"alibi_slopes": "geometric"},
        "column": {"alibi_slopes": "geometric", "alibi_form": "column", "causal": True},
    },
    "sinks": {"yes": {"sinks": "normal"}},
    "dropout_p": {"yes": {"dropout_p": 0.5}},
    "score_mod": {"yes": {"score_mod": lambda score, b, h, q, k: score}},
    "mask_mod": {"yes": {"mask_mod": lambda b, h, q, k: q >= k}},
    "page_size": {"yes": {"page_size": 4}},
    "kv_layout": {"yes": {"page_size": 4, "kv_layout": "HND"}},
}
#: what a function takes no case without
NEEDED: dict[str, dict[str, Any]] = {
    "flashinfer:BatchDecodeWithPagedKVCacheWrapper": {"page_size": 4},
    "fla.ops:parallel_attn": {"causal": True},
}
#: columns of functions that have an adapter
SHORT = {
    "torch:scaled_dot_product_attention": "SDPA",
    "torch:flex_attention": "flex",
    "flash_attn:flash_attn_func": "FA func",
    "flash_attn:flash_attn_varlen_func": "FA varlen",
    "flash_attn:flash_attn_with_kvcache": "FA kvcache",
    "flashinfer:single_prefill_with_kv_cache": "FI prefill",
    "flashinfer:single_decode_with_kv_cache": "FI decode",
    "flashinfer:BatchDecodeWithPagedKVCacheWrapper": "FI paged",
    "xformers.ops:memory_efficient_attention": "xFormers",
    "fla.ops:parallel_attn": "fla",
    "aiter.ops.triton.mha:flash_attn_func": "aiter func",
    "aiter.ops.triton.mha:flash_attn_varlen_func": "aiter varlen",
    "native_sparse_attention.ops:flash_attention_varlen": "NSA varlen",
    "jax.nn:dot_product_attention": "JAX",
}
#: what a function of a user's is called with that no keyword of its own name tells
YOURS = {
    **dict.fromkeys(("batch", "heads", "kv_heads", "seqlen_q", "seqlen_k", "head_dim", "head_dim_v"), "shapes"),
    "dtype": "dtypes",
    "seqlens_q": "`cu_seqlens_q`, `seqlens_q`; or `mask`",
    "seqlens_k": "`cu_seqlens_k`, `seqlens_k`, `cache_seqlens`, pages; or `mask`",
    "shared_kv": "v is a view of k",
    "scale": "`scale`",
    "causal": "`causal`",
    "causal_alignment": "its own; or `causal_alignment`",
    "alibi_form": "its own; or `alibi_form`",
    "mask_mod": "`mask_mod`; or `mask`",
    "dropout_p": "`dropout_p`, `dropout_mask`",
    "page_size": "`block_table`; or `kv_indptr`, `kv_indices`, `kv_last_page_len`",
    "kv_layout": "`kv_layout`",
}


def _takes(target: str, case: Case) -> bool:
    try:
        if target in KERNELS:
            plan(target, case.but(dtype="float32") if KERNELS[target].quantised else case, Options())
        else:
            check(ADAPTERS[target], Asked(case, {}), target)
    except Refusal:
        return False
    return True


def _shown(target: str, more: dict[str, Any]) -> Case:
    """A case for a target, with its keys as the queries where it takes no other."""
    case = BASE.but(**{**NEEDED.get(target, {}), **more})
    if not _of_one_length(target):
        return case
    lengths = case.seqlens_q or case.seqlens_k
    return case.but(seqlens_q=lengths, seqlens_k=lengths, seqlen=max(lengths or [case.seqlen_k]))


def _of_one_length(target: str) -> bool:
    return target in ADAPTERS and as_many_keys in ADAPTERS[target].rules


def _cell(target: str, field: str) -> str:
    """What a target takes of a field."""
    if field == "seqlen_q" and _of_one_length(target):
        return "as `seqlen_k`"
    taken = [what for what, more in SHOWN[field].items() if _takes(target, _shown(target, more))]
    if not taken:
        return {"batch": "1", "seqlen_q": "1"}.get(field, "")
    return "both" if len(taken) > 1 else taken[0]


def fields() -> str:
    """Fields of a case against targets."""
    assert {*SHOWN} == {*of_role(PROBLEM, LAID)} and {*SHORT} == {*ADAPTERS}
    alike: dict[tuple[str, ...], list[str]] = {}  # built-in kernels that take the same share a column
    for name in KERNELS:
        alike.setdefault(tuple(_cell(name, field) for field in SHOWN), []).append(f"`{name}`")
    head = ["field", *(", ".join(names) for names in alike.values()), *SHORT.values(), "your function"]
    rows = []
    for number, field in enumerate(SHOWN):
        keywords = ", ".join(f"`{word}`" for word in FEATURES.get(field, ()))
        cells = [*(column[number] for column in alike), *(_cell(target, field) for target in ADAPTERS)]
        rows.append([f"`{field}`", *cells, YOURS.get(field, keywords)])
    return table(head, rows)
