"""Faults of the quantiser, which makes the 8-bit codes and their scales."""

from workbench.cuda.faults.conditions import several_heads
from workbench.cuda.faults.fault import Fault

QUANTISER = "quantize.py"
_SCALES, _CODES = ("scale_q", "scale_k", "scale_v"), ("codes_q", "codes_k", "codes_v")

FAULTS: tuple[Fault, ...] = (
    # scales
    Fault(
        "quantiser-zero-scale",
        "fp8",
        "a head of zeros gets a tiny scale, not 1",
        "return xp.where(largest < SMALLEST_NORMAL, xp.ones_like(scale), scale)",
        "return xp.clip(scale, 1e-12, None)",
        _SCALES,
        needs={"distribution": "zero-head"},
        file=QUANTISER,
        source="lmdeploy#3652, vllm#53339",
    ),
    Fault(
        "quantiser-amax-without-abs",
        "fp8",
        "the scale is that of the largest value, not of the largest in size",
        "size = xp.abs(x)",
        "size = x",
        _SCALES,
        file=QUANTISER,
        source="LightLLM#943",
    ),
    Fault(
        "quantiser-largest-240",
        "fp8",
        "the scale takes 240 for the largest value of the format, that of e4m3fnuz",
        "scale = largest / KINDS[kind].largest",
        "scale = largest / 240",
        _SCALES,
        needs={"codes": "e4m3"},
        file=QUANTISER,
        source="vllm#42893",
    ),
    Fault(
        "quantiser-scale-rounded-down",
        "fp8",
        "the scale is rounded down to a power of two, so that the largest values are clipped",
        "scale = largest / KINDS[kind].largest",
        "scale = xp.exp2(xp.floor(xp.log2(largest / KINDS[kind].largest)))",
        _SCALES,
        file=QUANTISER,
        source="humming#39",
    ),
    # codes
    Fault(
        "no-saturation",
        "fp8",
        "values beyond the largest one wrap around, or become NaN or infinity",
        "        y = xp.clip(y, -form.largest, form.largest)",
        "        pass",
        _CODES,
        needs={"quantiser_scale": "static"},
        file=QUANTISER,
        source="ml_dtypes#400, pytorch#160957",
    ),
    Fault(
        "quantiser-scale-of-head-0",
        "fp8",
        "all heads are encoded with the scale of head 0",
        "spread = scale[:, None, None]",
        "spread = scale[:1, None, None]",
        _CODES,
        shows=several_heads,
        file=QUANTISER,
        source="sgl-kernel-xpu#252",
    ),
    Fault(
        "quantiser-truncates",
        "fp8",
        "values are truncated to codes, not rounded to the nearest",
        "xp.round(y * 127 / form.largest)",
        "xp.trunc(y * 127 / form.largest)",
        _CODES,
        needs={"codes": "simulated"},
        file=QUANTISER,
        source="FreeToken#103",
    ),
    Fault(
        "quantiser-rounds-twice",
        "fp8",
        "values are rounded to float16 before they are rounded to codes",
        "    y = x / scale\n",
        "    y = xp.asarray(xp.asarray(x / scale, dtype=xp.float16), dtype=xp.float32)\n",
        _CODES,
        needs={"codes": "e4m3"},
        file=QUANTISER,
        source="triton#11753",
    ),
    Fault(
        "quantiser-subnormals-lost",
        "fp8",
        "values below the smallest normal number of float8 become 0",
        "code = steps + (exponent",
        "code = steps * (size >= 2.0**form.smallest_exponent) + (exponent",
        _CODES,
        needs={"codes": "e4m3"},
        file=QUANTISER,
        source="vllm#55696",
    ),
)
