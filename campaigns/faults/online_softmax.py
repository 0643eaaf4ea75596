"""Faults of the online softmax and of the results, in kernels that keep raw scores in fragments: lines are alike."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from campaigns.faults.conditions import empty_rows, lower_row_sees_more
from workbench.cuda.faults.conditions import raw, scaled
from workbench.cuda.faults.fault import Fault

_PACKED = "(s[i],) = probe(CAST(s[i]))  # as they are packed, for which they are the same\n"


def online_softmax(
    kernel: str, prefix: str, deep: int, kept: int, narrow: Mapping[str, Any] = MappingProxyType({})
) -> tuple[Fault, ...]:
    """The faults of a kernel whose loop over rows is `deep` spaces deep, and that keeps of the bits of a prob those of
    the mask `kept` where it casts it; it casts to so few in `narrow` cases.
    """
    corrected = f"{' ' * deep}correction[r] = ptx.ex2_approx((m[r] - safe) * exp2_scale)\n"
    largest = f"{' ' * deep}m[r] = largest\n"
    return (
        Fault(
            f"{prefix}-mask-of-upper-row",
            kernel,
            "row g + 8 of a fragment has the causal mask of row g",
            "last = min(last, row + 8 * r + diagonal)\n",
            "last = min(last, row + r // 2 * 16 + diagonal)\n",
            ("scores",),
            needs={"causal": True},
            shows=lower_row_sees_more,
            source="synthetic",
        ),
        Fault(
            f"{prefix}-row-max-of-two-lanes",
            kernel,
            "the row max reduction ends one shuffle early: it covers two of four lanes",
            "largest = row_max_of(largest)",
            "largest = max(largest, cuda.shfl_xor_sync(FULL_WARP, largest, 1))",
            ("row_max", "probs", "row_sum", "acc"),  # the lanes of a row go on with a max each
            source="synthetic",
        ),
        Fault(
            f"{prefix}-max-stored-too-early",
            kernel,
            "the correction uses the new max as the old one: it is overwritten one line too early",
            corrected + largest,
            largest + corrected,
            ("correction",),
            source="synthetic",
        ),
        Fault(
            f"{prefix}-exp2-without-log2e",
            kernel,
            "the scale of exp2's argument lacks the factor log2(e)",
            "exp2_scale = libdevice.fmul_rn(scale, LOG2_E)\n",
            "exp2_scale = scale\n",
            ("correction", "probs"),
            shows=raw,
            source="flashinfer#787",
        ),
        Fault(
            f"{prefix}-probs-cut-off",
            kernel,
            "probs are truncated before their cast, which then rounds nothing",
            _PACKED,
            f"s[i] = libdevice.int_as_float(int32(libdevice.float_as_int(s[i]) & {kept})); {_PACKED}",
            ("probs_cast",),
            needs=narrow,
            source="FreeToken#103",
        ),
        Fault(
            f"{prefix}-row-sum-reduced-twice",
            kernel,
            "the lanes of a row reduce their sums at every tile and again at the end",
            "l[r] = total\n",
            "l[r] = row_sum_of(total)\n",
            ("row_sum",),
            source="synthetic",
        ),
        Fault(
            f"{prefix}-row-sum-of-one-lane",
            kernel,
            "each lane divides by the sum of its own keys, not by that of its row",
            "l[r] = row_sum_of(l[r])\n",
            "pass\n",
            ("out", "lse"),
            source="synthetic",
        ),
        Fault(
            f"{prefix}-no-empty-row-guard",
            kernel,
            "empty rows are divided by 0",
            "inverse = float32(1) / l[r] if l[r] != float32(0) else float32(0)",
            "inverse = float32(1) / l[r]",
            ("out",),
            needs={"causal": True},
            shows=empty_rows,
            source="CK#3326",
        ),
        Fault(
            f"{prefix}-lse-without-scale",
            kernel,
            "lse adds an unscaled max",
            "largest = m[r] * scale",
            "largest = m[r]",
            ("lse",),
            shows=lambda case: raw(case) and scaled(case),
            source="synthetic",
        ),
    )
