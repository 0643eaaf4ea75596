"""Faults of q @ k^T, its scale and its softcap, and of masks."""

from typing import Any

from workbench.cuda.faults.conditions import hides_keys, ragged, scaled, sees_past_end
from workbench.cuda.faults.fault import PARTIAL, Fault

_CAP = (
    "            if SOFTCAP:\n"
    "                s = libdevice.fmul_rn(softcap, math.tanh(s / softcap))\n"
    "                if row < seqlen_q and key < seqlen_k:\n"
    "                    probe.capped[b, h, row, key] = s\n"
)
_ADD = (
    "            if BIAS:\n"
    "                if row < seqlen_q and key < seqlen_k:\n"
    "                    s += spread(bias, b, h, row, key)\n"
    "            if ALIBI:\n"
    "                if COLUMN:\n"
    "                    s += libdevice.fmul_rn(alibi_slopes[h], float32(key))\n"
    "                else:\n"
    "                    s -= libdevice.fmul_rn(alibi_slopes[h], float32(abs(key - row - diagonal)))\n"
)
_HIDE = "            if key >= seqlen_k or (causal and key > row + diagonal):\n                s = NEG_INF\n"


def striped(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    """A mask of each head and query: key 0, and of the others two in three."""
    return (kv_idx == 0) | ((kv_idx + q_idx + h) % 3 != 0)


#: as a case says it
STRIPED = f"{__name__}:{striped.__name__}"

FAULTS: tuple[Fault, ...] = (
    # ---- q @ k^T, its scale and its softcap
    Fault(
        "flash-qk-truncated",
        "flash",
        "the inner product accumulates with rounding toward zero",
        "dot += s_q[r, d] * s_kv[c, d]",
        "dot = libdevice.fmaf_rz(s_q[r, d], s_kv[c, d], dot)",
        biased=("qk",),
        source="synthetic",
    ),
    Fault(
        "flash-scale-twice",
        "flash",
        "the scale is applied twice",
        "s = libdevice.fmul_rn(dot, scale)",
        "s = libdevice.fmul_rn(libdevice.fmul_rn(dot, scale), scale)",
        ("scores",),
        source="vllm#48016",
        shows=scaled,
    ),
    Fault(
        "flash-scale-missing",
        "flash",
        "the scale is not applied",
        "s = libdevice.fmul_rn(dot, scale)",
        "s = dot",
        ("scores",),
        shows=scaled,
        source="synthetic",
    ),
    Fault(
        "flash-softcap-after-mask",
        "flash",
        "the softcap is applied after the mask: -inf becomes -softcap, masked keys leak",
        _CAP + _ADD + _HIDE,
        _HIDE + _CAP + _ADD,
        ("capped", "scores", "row_max", "row_sum"),  # the last two of keys behind the last one
        needs={"softcap": 5.0, "causal": True},
        source="flashinfer f5f7a2a23, onnx#7865",
        shows=lambda case: hides_keys(case) or ragged(case),
    ),
    # ---- masks
    Fault(
        "flash-no-causal-mask",
        "flash",
        "the causal mask is left out",
        "if key >= seqlen_k or (causal and key > row + diagonal):",
        "if key >= seqlen_k:",
        ("scores",),
        needs={"causal": True},
        shows=hides_keys,
        source="MSLK#263",
    ),
    Fault(
        "flash-causal-off-by-one",
        "flash",
        "the causal mask hides the diagonal: > became >=",
        "(causal and key > row + diagonal)",
        "(causal and key >= row + diagonal)",
        ("scores",),
        needs={"causal": True},
        source="synthetic",
    ),
    Fault(
        "flash-window-off-by-one",
        "flash",
        "the window excludes its leftmost key: < became <=",
        "if key < row + diagonal - left or",
        "if key <= row + diagonal - left or",
        ("scores",),
        needs={"window": (16, 0)},
        source="transformers#39408, zml#763",
        shows=hides_keys,
    ),
    Fault(
        "partial-tail-not-masked",
        "split_k",
        "keys past the end are masked only if causal; otherwise their score is 0",
        "if key >= seqlen_k or (causal and key > row + diagonal):",
        "if causal and key > row + diagonal:",
        ("row_max", "row_sum"),
        shows=sees_past_end,
        file=PARTIAL,
        source="SageAttention 3917283, aiter#3551",
    ),
    Fault(
        "flash-mask-of-first-head",
        "flash",
        "every head uses the mask of head 0",
        "spread(mask, b, h, row, key)",
        "spread(mask, b, 0, row, key)",
        ("scores",),
        needs={"mask_mod": STRIPED, "heads": 2, "kv_heads": 2},
        source="llama.cpp#14505, pytorch#184180",
    ),
)
