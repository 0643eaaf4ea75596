"""Faults of attention sinks: how a logit without a key enters the state of a row, and which."""

from workbench.cuda.faults.conditions import grouped, scaled, several_heads, several_splits
from workbench.cuda.faults.fault import PARTIAL, Fault

_BEGINS = "l = float32(1) if m > NEG_INF else float32(0)"
#: what reads the state before the first tile
_STATE = ("row_max", "correction", "row_sum")

FAULTS: tuple[Fault, ...] = (
    Fault(
        "flash-sink-raw",
        "flash",
        "the sink itself is added to the sum, not exp(sink - max)",
        _BEGINS,
        "l = m if m > NEG_INF else float32(0)",
        ("row_sum",),
        needs={"sinks": "normal"},
        source="flash-attention e81c237e",
    ),
    Fault(
        "flash-sink-scaled",
        "flash",
        "the sink is multiplied by the scale of scores",
        "m = sinks[h]",
        "m = libdevice.fmul_rn(sinks[h], scale)",
        _STATE,
        needs={"sinks": "normal"},
        shows=scaled,
        source="synthetic",
    ),
    Fault(
        "partial-sink-in-every-split",
        "split_k",
        "the sink is counted in every split",
        "if first_tile == 0:",
        "if first_tile >= 0:",
        (*_STATE, "partial_max", "partial_sum"),
        needs={"sinks": "normal"},
        shows=several_splits,
        file=PARTIAL,
        source="rocm-libraries#12229",
    ),
    Fault(
        "flash-sink-never",
        "flash",
        "the sink is counted in no split",
        "if first_tile == 0:",
        "if first_tile < 0:",
        _STATE,
        needs={"sinks": "normal"},
        source="rocm-libraries#12229",
    ),
    Fault(
        "flash-sink-of-kv-head",
        "flash",
        "the sink is that of the kv head",
        "m = sinks[h]",
        "m = sinks[kv_h]",
        _STATE,
        needs={"sinks": "normal", "heads": 4, "kv_heads": 2},
        shows=grouped,
        source="synthetic",
    ),
    Fault(
        "partial-sink-of-first-head",
        "split_k",
        "the sink is read as one number for all heads",
        "m = sinks[h]",
        "m = sinks[0]",
        _STATE,
        needs={"sinks": "normal", "heads": 3, "kv_heads": 3},
        shows=several_heads,
        file=PARTIAL,
        source="synthetic",
    ),
    Fault(
        "flash-sink-not-in-lse",
        "flash",
        "lse leaves out the sink",
        "lse[b, h, first_q + row] = m + math.log(l) if",
        "lse[b, h, first_q + row] = m + math.log(l - math.exp(sinks[h] - m)) if",
        ("lse",),
        needs={"sinks": "normal"},
        source="synthetic",
    ),
    Fault(
        "flash-sink-overflows",
        "flash",
        "exp of the sink is taken without a max: it overflows above 88",
        "            m = sinks[h]\n            l = float32(1) if m > NEG_INF else float32(0)\n",
        "            m = float32(0)\n            l = math.exp(sinks[h])\n",
        _STATE,
        needs={"sinks": (100.0,), "heads": 1, "kv_heads": 1},
        source="synthetic",
    ),
)
