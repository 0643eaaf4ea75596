"""Faults of what is made of scaled scores and of probs: ALiBi, softcaps in other units, masks of heads, dropout."""

from typing import Any

from workbench.cuda.faults.conditions import grouped, rectangular, scaled
from workbench.cuda.faults.fault import PARTIAL, Fault

_CAPS = "s = libdevice.fmul_rn(softcap, math.tanh(s / softcap))"
_ALIBI = "s -= libdevice.fmul_rn(alibi_slopes[h], float32(abs(key - row - diagonal)))"
_COLUMN = "s += libdevice.fmul_rn(alibi_slopes[h], float32(key))"
_DROPS = "p_cast = CAST(libdevice.fmul_rn(p, keep_scale)) if kept else float32(0)"
_SLOPES = {"alibi_slopes": "geometric", "heads": 4, "kv_heads": 2}


def striped(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    """A mask of each head and query: key 0, and of the others two in three."""
    return (kv_idx == 0) | ((kv_idx + q_idx + h) % 3 != 0)


#: as a case says it
STRIPED = f"{__name__}:{striped.__name__}"

FAULTS: tuple[Fault, ...] = (
    # the softcap
    Fault(
        "flash-softcap-before-scale",
        "flash",
        "products are capped, and scaled after it",
        _CAPS,
        "s = libdevice.fmul_rn(libdevice.fmul_rn(softcap, math.tanh(dot / softcap)), scale)",
        ("capped",),
        needs={"softcap": 5.0},
        shows=scaled,
        source="synthetic",
    ),
    Fault(
        "partial-softcap-base-2",
        "split_k",
        "scores are in base 2 when they are capped, and the cap is not",
        _CAPS,
        "s = libdevice.fmul_rn(softcap / float32(1.4426950408889634), "
        "math.tanh(s * float32(1.4426950408889634) / softcap))",
        ("capped",),
        needs={"softcap": 5.0},
        file=PARTIAL,
        source="flashinfer#787",
    ),
    # ALiBi
    Fault(
        "flash-alibi-of-kv-head",
        "flash",
        "the slope is that of the kv head",
        _ALIBI,
        _ALIBI.replace("[h]", "[kv_h]"),
        ("scores",),
        needs=_SLOPES,
        shows=grouped,
        source="llama.cpp#20031",
    ),
    Fault(
        "flash-alibi-top-left",
        "flash",
        "distances are those from the diagonal that begins at the first key",
        _ALIBI,
        _ALIBI.replace(" - diagonal", ""),
        ("scores",),
        needs=_SLOPES,
        shows=rectangular,
        source="synthetic",
    ),
    Fault(
        "partial-alibi-from-end",
        "split_k",
        "keys are counted from the last one: out is right, lse is not",
        _COLUMN,
        _COLUMN.replace("float32(key)", "float32(key - seqlen_k + 1)"),
        ("scores",),
        needs={**_SLOPES, "alibi_form": "column"},
        file=PARTIAL,
        source="synthetic",
    ),
    Fault(
        "flash-alibi-before-scale",
        "flash",
        "what ALiBi adds is scaled as products are",
        _ALIBI,
        _ALIBI.replace("alibi_slopes[h]", "alibi_slopes[h] * scale"),
        ("scores",),
        needs=_SLOPES,
        shows=scaled,
        source="synthetic",
    ),
    Fault(
        "flash-alibi-exponent-off-by-one",
        "flash",
        "the slope of a head is that of the one before",
        _ALIBI,
        _ALIBI.replace("[h]", "[max(h - 1, 0)]"),
        ("scores",),
        needs=_SLOPES,
        source="mlx#3071",
    ),
    # the window
    Fault(
        "flash-window-right-off-by-one",
        "flash",
        "the window leaves out its right end: > became >=",
        "key > row + diagonal + right:",
        "key >= row + diagonal + right:",
        ("scores",),
        needs={"window": (16, 4), "causal": False},
        source="zml#763",
    ),
    # a mask
    Fault(
        "flash-mask-of-first-head",
        "flash",
        "every head takes the mask of the first",
        "spread(mask, b, h, row, key)",
        "spread(mask, b, 0, row, key)",
        ("scores",),
        needs={"mask_mod": STRIPED, "heads": 2, "kv_heads": 2},
        source="llama.cpp#14505, pytorch#184180",
    ),
    Fault(
        "partial-mask-of-folded-row",
        "split_k",
        "the row of the mask is that of the tile",
        "spread(mask, b, h, row, key)",
        "spread(mask, b, h, r, key)",
        ("scores",),
        needs={"mask_mod": STRIPED},
        file=PARTIAL,
        source="xformers 4f7ffaa3",
    ),
    # dropout
    Fault(
        "flash-dropout-not-rescaled",
        "flash",
        "probs that are kept are not divided by their share",
        _DROPS,
        "p_cast = CAST(p) if kept else float32(0)",
        ("probs_cast",),
        needs={"dropout_p": 0.25},
        source="synthetic",
    ),
    Fault(
        "flash-dropout-in-row-sum",
        "flash",
        "the sum of a row leaves out what is dropped",
        "tile_sum += p\n",
        "tile_sum += p if kept else float32(0)\n",
        ("row_sum",),
        needs={"dropout_p": 0.25},
        source="synthetic",
    ),
    Fault(
        "partial-dropout-of-first-head",
        "split_k",
        "every head drops what the first does",
        "spread(dropout_mask, b, h, row, first_key + c)",
        "spread(dropout_mask, b, 0, row, first_key + c)",
        ("probs_cast",),
        needs={"dropout_p": 0.25, "heads": 2, "kv_heads": 2},
        file=PARTIAL,
        source="pytorch#197563",
    ),
)
