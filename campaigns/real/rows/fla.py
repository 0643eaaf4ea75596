"""flash-linear-attention: kernels of linear attention, right at the commit RIGHT, and its own naive references."""

from typing import Any

from campaigns.real import inputs as of
from campaigns.real.call import Call, takes
from campaigns.real.case import DTYPES, EAGER, FLOAT32, NARROW, SCALED, SHORT, WHOLE, Case
from campaigns.real.project import Project, Tolerance

RIGHT = "bc3b101d"
PROJECT = Project(
    name="flash-linear-attention", owner="fla-org", newest=RIGHT, paths=("fla", "tests/modules"),
    tolerance={"": Tolerance(rms=0.005)},
    stubs=("fla", "fla.ops", "fla.modules", "fla.layers", "fla.models"),
    says={"__version__": "0.5.0"},  # which the project compares with that of deprecated arguments
    environment={"FLA_DISABLE_BACKEND_DISPATCH": "1"},  # its kernels run as they are written, and no other backend
)  # fmt: skip


def _ops(path: str, *same: str, module: str = "", **more: Any) -> Call:
    """A kernel `path` of fla.ops, which takes `same`; other arguments as of Call."""
    fixed = more.pop("fixed", {"output_final_state": True})
    other = more.pop("other", {})
    return Call(f"fla.{module or 'ops'}.{path}", takes(*same, **other), fixed, **more)


def _naive(path: str, *same: str, **more: Any) -> Call:
    """A reference, `operation:function` or `operation/file.py:function`, below fla/ops."""
    folder, _, function = path.partition(":")
    file = folder if folder.endswith(".py") else f"{folder}/naive.py"
    fixed, other = more.pop("fixed", {}), more.pop("other", {})
    return Call(f"fla/ops/{file}:{function}", takes(*same, **other), fixed, **more)


STATE = {"output_final_state": True}
QKV = ("q", "k", "v")

_gdr = (
    _naive("gated_delta_rule:naive_recurrent_gated_delta_rule", *QKV, "beta", "g", fixed=STATE),
    _naive("gated_delta_rule:naive_chunk_gated_delta_rule", *QKV, "beta", "g", fixed=STATE, stored=("k_cumsum",)),
)
_delta = (
    _naive("delta_rule:delta_rule_recurrence", *QKV, "beta", swapped=(*QKV, "beta"), swaps=(0,)),
    _naive("delta_rule:delta_rule_chunkwise", *QKV, "beta", swapped=(*QKV, "beta"), swaps=(0,), stored=("u",)),
)
_kda = (
    _naive("kda:naive_recurrent_kda", *QKV, "g", "beta", fixed=STATE),
    _naive("kda:naive_chunk_kda", *QKV, "g", "beta", fixed=STATE, stored=("u",)),
)
_simple = (
    _naive("simple_gla:naive_recurrent_simple_gla", *QKV, "g"),
    _naive("simple_gla:naive_chunk_simple_gla", *QKV, "g", fixed=STATE),
)
_gla = (
    _naive("gla:naive_recurrent_gla", *QKV, other={"gk": "g"}, fixed=STATE),
    Call("plain/linear:gla", takes(*QKV, "g")),
)
_rwkv6 = (
    _naive("rwkv6/recurrent_naive.py:naive_recurrent_rwkv6", *QKV, "w", "u", swapped=(*QKV, "w"), swaps=(0,),
           fixed={"scale": 1.0, "output_final_state": True}),
    Call("plain/linear:rwkv6", takes(*QKV, "w", "u")),
)  # fmt: skip
_low_rank = {"alpha": "a", "beta": "b"}
_dplr = tuple(
    _naive(f"generalized_delta_rule/dplr:{name}", *QKV, "gk", other=_low_rank,
           swapped=(*QKV, "alpha", "beta", "gk"), swaps=(0,), stored=stored)
    for name, stored in (("dplr_recurrence", ()), ("dplr_chunkwise", ("u",)))
)  # fmt: skip
_iplr = tuple(
    _naive(f"generalized_delta_rule/iplr:{name}", *QKV, other=_low_rank, swapped=(*QKV, "alpha", "beta"), swaps=(0,),
           stored=stored)
    for name, stored in (("iplr_recurrence", ()), ("iplr_chunkwise", ("u",)))
)  # fmt: skip
_hgrn = (_naive("hgrn:naive_recurrent_hgrn", "x", "g", fixed=STATE),)
_linear = (_naive("linear_attn:naive_recurrent_linear_attn", *QKV, fixed=STATE),)
_normalised = (_naive("linear_attn:naive_recurrent_linear_attn", *QKV, fixed={"normalize": True}),)
_retention = (_naive("retention:naive_retention", *QKV, swapped=QKV, swaps=(0,)),)
#: the naive recurrence of Comba reads the state behind a token's decay, kernels and the chunked form before it
_comba = (_naive("comba:naive_chunk_comba", *QKV, "p", "beta", "g", fixed=STATE, stored=("k_cumsum",)),)
#: what RWKV-7 calls r, w; the naive function scales by 1 / sqrt(dim), as the kernel is told to
_RWKV7: dict[str, Any] = {"fixed": {"scale": 32**-0.5, "output_final_state": True}, "other": {"r": "q", "w": "gk"}}
_EPS = {"eps": 1e-6}

CASES = (
    Case("gated delta rule, chunks", _ops("gated_delta_rule.chunk:chunk_gated_delta_rule", *QKV, "g", "beta"),
         _gdr, of.gated_delta, SCALED),
    Case("gated delta rule, tokens",
         _ops("gated_delta_rule.fused_recurrent:fused_recurrent_gated_delta_rule", *QKV, "g", "beta"),
         _gdr[:1], of.gated_delta, FLOAT32),
    Case("delta rule, chunks", _ops("delta_rule.chunk:chunk_delta_rule", *QKV, "beta"), _delta, of.delta, SCALED,
         gradients=True, back=SHORT, T=WHOLE, dtypes=NARROW),
    Case("delta rule, tokens", _ops("delta_rule.fused_recurrent:fused_recurrent_delta_rule", *QKV, "beta"),
         _delta[:1], of.delta, FLOAT32, gradients=True, rounds="saved"),
    Case("KDA, chunks", _ops("kda.chunk:chunk_kda", *QKV, "g", "beta", results=(0, 1)), _kda, of.kda, SCALED,
         gradients=True, back=64, T=WHOLE),
    Case("KDA, tokens", _ops("kda.fused_recurrent:fused_recurrent_kda", *QKV, "g", "beta"), _kda[:1], of.kda, FLOAT32),
    Case("simple GLA, chunks", _ops("simple_gla.chunk:chunk_simple_gla", *QKV, "g"), _simple, of.scalar_gate, SCALED),
    Case("simple GLA, parallel", _ops("simple_gla.parallel:parallel_simple_gla", *QKV, "g", fixed={}, results=(0,)),
         (_naive("simple_gla:naive_parallel_simple_gla", *QKV, "g"), Call("plain/linear:simple_gla", takes(*QKV, "g"))),
         of.scalar_gate, SCALED, gradients=True),
    Case("simple GLA, tokens", _ops("simple_gla.fused_recurrent:fused_recurrent_simple_gla", *QKV, "g"),
         _simple, of.scalar_gate, FLOAT32, gradients=True),
    Case("lightning attention, chunks",
         _ops("lightning_attn.chunk:chunk_lightning_attn", *QKV,
              fixed={"layer_idx": 1, "num_layers": 12, "output_final_state": True}),
         _simple, of.constant_gate, SCALED, T=WHOLE),
    Case("GLA, chunks", _ops("gla.chunk:chunk_gla", *QKV, "g"), _gla, of.vector_gate, SCALED, gradients=True),
    Case("GLA, tokens", _ops("gla.fused_recurrent:fused_recurrent_gla", *QKV, other={"gk": "g"}), _gla,
         of.vector_gate, FLOAT32, gradients=True),
    Case("RWKV-6, chunks",
         _ops("rwkv6.chunk:chunk_rwkv6", "k", "v", "w", "u", other={"r": "q"},
              fixed={"scale": 1.0, "output_final_state": True}),
         _rwkv6, of.rwkv6, SCALED, gradients=True),
    Case("RWKV-6, tokens",
         _ops("rwkv6.fused_recurrent:fused_recurrent_rwkv6", "k", "v", "w", "u", other={"r": "q"},
              fixed={"scale": 1.0, "output_final_state": True}),
         _rwkv6, of.rwkv6, FLOAT32, gradients=True),
    Case("DPLR, chunks", _ops("generalized_delta_rule.dplr.chunk:chunk_dplr_delta_rule", *QKV, "a", "b", "gk"),
         _dplr, of.low_rank, SCALED, gradients=True, back=SHORT, T=WHOLE),
    Case("DPLR, tokens",
         _ops("generalized_delta_rule.dplr.fused_recurrent:fused_recurrent_dplr_delta_rule", *QKV, "a", "b", "gk"),
         _dplr[:1], of.low_rank, FLOAT32),
    Case("RWKV-7, chunks", _ops("rwkv7.chunk:chunk_rwkv7", "k", "v", "a", "b", **_RWKV7), _dplr, of.rwkv7, SCALED,
         gradients=True, back=SHORT, T=WHOLE),
    Case("RWKV-7, tokens", _ops("rwkv7.fused_recurrent:fused_recurrent_rwkv7", "k", "v", "a", "b", **_RWKV7),
         _dplr[:1], of.rwkv7, FLOAT32),
    Case("IPLR, chunks", _ops("generalized_delta_rule.iplr.chunk:chunk_iplr_delta_rule", *QKV, "a", "b"),
         _iplr, of.low_rank, SCALED, T=WHOLE),
    Case("HGRN, chunks", _ops("hgrn.chunk:chunk_hgrn", "x", "g"), _hgrn, of.hgrn, FLOAT32, gradients=True,
         rounds="saved"),
    Case("HGRN, tokens", _ops("hgrn.fused_recurrent:fused_recurrent_hgrn", "x", "g"), _hgrn, of.hgrn, FLOAT32,
         gradients=True, rounds="saved"),
    Case("linear attention, chunks",
         _ops("linear_attn.chunk:chunk_linear_attn", *QKV, fixed={"normalize": False, "output_final_state": True}),
         _linear, of.plain, gradients=True),
    Case("linear attention, normalised",
         _ops("linear_attn.chunk:chunk_linear_attn", *QKV, fixed={"normalize": True}, results=(0,)),
         _normalised, of.positive, EAGER, gradients=True),
    Case("linear attention, tokens", _ops("linear_attn.fused_recurrent:fused_recurrent_linear_attn", *QKV), _linear,
         of.plain, FLOAT32, gradients=True),
    Case("retention, chunks", _ops("retention.chunk:chunk_retention", *QKV, fixed={}, results=(0,)), _retention,
         of.plain, SCALED, gradients=True),
    Case("retention, parallel", _ops("retention.parallel:parallel_retention", *QKV, fixed={}, results=(0,)),
         _retention, of.plain, SCALED, gradients=True),
    Case("forgetting attention", _ops("forgetting_attn.parallel:parallel_forgetting_attn", *QKV, "g", fixed={}),
         (_naive("forgetting_attn:naive_forgetting_attn", *QKV, "g"),), of.scalar_gate, gradients=True, rounds="saved"),
    Case("attention", _ops("attn.parallel:parallel_attn", *QKV, fixed={}),
         (_naive("attn:naive_parallel_attn", *QKV, results=(0,)),), of.plain, gradients=True, rounds="saved"),
    Case("sparse attention",
         _ops("nsa.parallel:parallel_nsa", *QKV, "block_indices", fixed={"block_counts": 4, "block_size": 16}),
         (_naive("nsa:naive_nsa_selection", *QKV, "block_indices", fixed={"block_size": 16}),), of.blocks,
         gradients=True, rounds="saved", T=100, back=48),
    Case("DeltaFormer, first stage",
         _ops("deltaformer.parallel:ParallelDeltaformerFunction.apply", *QKV, "beta",
              fixed={"C": 64, "cu_seqlens": None}, positional=True, swaps=(0,),
              names=("naive_deltaformer_attn_head_first.u",)),
         (_naive("deltaformer:naive_deltaformer_attn", *QKV, "beta"),), of.deltaformer, EAGER, T=128),
    Case("log-linear attention",
         _ops("log_linear_attn.chunk:chunk_log_linear_attn", *QKV, "g", "level_scales", fixed={}, results=(0,)),
         (_naive("log_linear_attn:naive_log_linear_attn", *QKV, "g", "level_scales"),), of.levels, SCALED,
         gradients=True, dtypes=DTYPES[:1]),
    Case("path attention",
         _ops("path_attn.parallel:parallel_path_attn", *QKV, "w", "beta", "g", fixed={}, results=(0,)),
         (_naive("path_attn:naive_path_attn", *QKV, "w", "beta", "g", fixed={"scale": 32**-0.5}),), of.path, SCALED,
         gradients=True, rounds="saved"),
    Case("slot attention, chunks", _ops("gsa.chunk:chunk_gsa", *QKV, "s", "g", results=(0, (1, 0), (1, 1))),
         (_naive("gsa:naive_recurrent_gsa", *QKV, "s", "g", fixed=STATE, results=(0, (1, 0), (1, 1))),
          Call("plain/linear:slots", takes(*QKV, "s", "g"), results=(0, (1, 0), (1, 1)))),
         of.slots, SCALED, gradients=True),
    Case("Comba, chunks", _ops("comba.chunk:chunk_comba", *QKV, "p", "g", "beta"), _comba, of.comba, SCALED),
    Case("Parallax", _ops("parallax.parallel:parallel_parallax", *QKV, "r", fixed={}),
         (_naive("parallax:naive_parallax", *QKV, "r"),), of.secondary, gradients=True, rounds="saved", dtypes=NARROW),
    Case("causal convolution",
         _ops("conv.causal_conv1d:causal_conv1d", "x", "weight", "bias", module="modules",
              fixed={"activation": "silu"}, results=(0,)),
         (Call("tests/modules/test_conv.py:causal_conv1d_ref_torch", takes("x", "weight", "bias"),
               {"activation": "silu"}, swapped=("x",), swaps=(0,)),),
         of.convolution, FLOAT32, gradients=True, rounds="saved"),
    Case("RMS norm, gated",
         _ops("fused_norm_gate:rms_norm_gated", "x", "g", "weight", module="modules", fixed={"bias": None, **_EPS}),
         (Call("fla/modules/layernorm_gated.py:rms_norm_ref", takes("x", "weight", z="g"), {"bias": None, **_EPS}),),
         of.norm, FLOAT32, gradients=True),
    Case("RMS norm", _ops("layernorm:rms_norm", "x", "weight", module="modules", fixed={"bias": None, **_EPS}),
         (Call("fla/modules/layernorm.py:rms_norm_ref", takes("x", "weight"), {"bias": None, **_EPS}),),
         of.norm, FLOAT32, gradients=True),
    Case("RMS norm, gated, linear",
         _ops("fused_norm_gate:rms_norm_swish_gate_linear", "x", "g", module="modules",
              other={"norm_weight": "weight", "linear_weight": "linear"},
              fixed={"norm_bias": None, "linear_bias": None, **_EPS}),
         (Call("plain/linear:rms_norm_swish_gate_linear", takes("x", "g", "weight", "linear"), _EPS),),
         of.norm_linear, gradients=True, rounds="eager"),
    Case("cumulative sum, reversed",
         _ops("utils.cumsum:chunk_global_cumsum", "s", fixed={"reverse": True}),
         (Call("plain/linear:cumsum", takes("s"), {"reverse": True}),), of.sequence, FLOAT32),
)  # fmt: skip


def named(operation: str) -> Case:
    """The case of an operation."""
    return next(one for one in CASES if one.operation == operation)
