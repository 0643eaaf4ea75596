"""Faults of q @ k^T, its scale and its softcap."""

import numpy as np

from workbench.cuda.faults.conditions import hides_keys, own_scale, ragged, scaled
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

FAULTS: tuple[Fault, ...] = (
    # the inner product
    Fault(
        "flash-last-dim-left-out",
        "flash",
        "the inner product leaves out the last dim",
        "for d in range(head_dim):",
        "for d in range(head_dim - 1):",
        ("qk",),
        source="synthetic",
    ),
    Fault(
        "flash-qk-truncated",
        "flash",
        "the inner product is accumulated toward zero",
        "dot += s_q[r, d] * s_kv[c, d]",
        "dot = libdevice.fmaf_rz(s_q[r, d], s_kv[c, d], dot)",
        biased=("qk",),
        source="synthetic",
    ),
    Fault(
        "flash-qk-float16",
        "flash",
        "the inner product is accumulated in float16",
        "dot += s_q[r, d] * s_kv[c, d]",
        "dot = libdevice.half2float(libdevice.float2half_rn(dot + s_q[r, d] * s_kv[c, d]))",
        ("qk",),
        source="llama.cpp#20589, llama.cpp#17875",
    ),
    Fault(
        "partial-qk-slices-overwritten",
        "split_k",
        "the second half of each 16 dims is accumulated on 0, not on what was summed so far",
        "dot += s_q[r, d] * s_kv[c, d]",
        "dot = (float32(0) if d % 16 == 8 else dot) + s_q[r, d] * s_kv[c, d]",
        ("qk",),
        shows=lambda case: case.head_dim > 8,
        file=PARTIAL,
        source="flashinfer#448",
    ),
    Fault(
        "flash-operands-tf32",
        "flash",
        "float32 operands of the inner product lose all but 10 bits of their fractions",
        "dot += s_q[r, d] * s_kv[c, d]",
        "dot += libdevice.int_as_float(np.int32(libdevice.float_as_int(s_q[r, d]) & -8192)) * s_kv[c, d]",
        ("qk",),
        shows=lambda case: case.dtype == "float32",
        source="triton_docs#6",
    ),
    # the scale
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
        "flash-scale-float16",
        "flash",
        "the scale is rounded to float16, in which 1/sqrt(32) is not exact",
        "s = libdevice.fmul_rn(dot, scale)",
        "s = libdevice.fmul_rn(dot, libdevice.half2float(libdevice.float2half_rn(scale)))",
        ("scores",),
        needs={"head_dim": 32},
        shows=lambda case: float(np.float16(case.scale)) != case.scale,
        source="mlx#3119",
    ),
    Fault(
        "flash-scale-of-head-dim",
        "flash",
        "the kernel takes 1 / sqrt(head_dim), whatever scale it is given",
        "s = libdevice.fmul_rn(dot, scale)",
        "s = libdevice.fmul_rn(dot, float32(1 / math.sqrt(head_dim)))",
        ("scores",),
        shows=own_scale,
        source="flashinfer#1072",
    ),
    Fault(
        "partial-scale-hard-coded",
        "split_k",
        "the scale is 0.5, that of head_dim 4",
        "s = libdevice.fmul_rn(dot, scale)",
        "s = libdevice.fmul_rn(dot, float32(0.5))",
        ("scores",),
        shows=lambda case: case.scale != 0.5,
        file=PARTIAL,
        source="attorch#14",
    ),
    Fault(
        "flash-scale-without-root",
        "flash",
        "the scale is 1 / head_dim, not 1 / sqrt(head_dim)",
        "s = libdevice.fmul_rn(dot, scale)",
        "s = libdevice.fmul_rn(dot, scale * scale)",
        ("scores",),
        shows=scaled,
        source="synthetic",
    ),
    Fault(
        "flash-scores-float16-before-scale",
        "flash",
        "products are rounded to float16 before they are scaled",
        "s = libdevice.fmul_rn(dot, scale)",
        "s = libdevice.fmul_rn(libdevice.half2float(libdevice.float2half_rn(dot)), scale)",
        ("scores",),
        source="mlc-llm#1870, onnxruntime#28198",
    ),
    # the softcap
    Fault(
        "flash-softcap-after-mask",
        "flash",
        "scores are capped after they are masked: -inf becomes -softcap, so that masked keys leak",
        _CAP + _ADD + _HIDE,
        _HIDE + _CAP + _ADD,
        ("capped", "scores", "row_max", "row_sum"),  # the last two of keys behind the last one
        needs={"softcap": 5.0, "causal": True},
        source="flashinfer f5f7a2a23, onnx#7865",
        shows=lambda case: hides_keys(case) or ragged(case),
    ),
    Fault(
        "flash-softcap-times-argument",
        "flash",
        "a capped score is (s / softcap) * tanh(s / softcap), not softcap * tanh(s / softcap)",
        "s = libdevice.fmul_rn(softcap, math.tanh(s / softcap))",
        "s = libdevice.fmul_rn(s / softcap, math.tanh(s / softcap))",
        ("capped",),
        needs={"softcap": 5.0},
        source="flash-attention 14f3627d",
    ),
    Fault(
        "partial-softcap-dropped",
        "split_k",
        "the partial kernel does not cap scores",
        "s = libdevice.fmul_rn(softcap, math.tanh(s / softcap))",
        "pass",
        ("capped",),
        needs={"softcap": 5.0},
        file=PARTIAL,
        source="vllm-metal#665, sgl-kernel-xpu#491",
    ),
)
