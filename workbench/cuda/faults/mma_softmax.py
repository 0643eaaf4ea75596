"""Faults of the kernel on tensor cores beside its products: masks, a softmax of raw scores in lanes, out and lse."""

import numpy as np

from workbench.case.case import Case
from workbench.cuda.faults.conditions import (
    blind_in_visited_tile,
    diagonal_within_warp,
    last_tile_of_block,
    odd_key_behind_diagonal,
    scaled,
)
from workbench.cuda.faults.fault import UNVISITED, Fault
from workbench.cuda.faults.online_softmax import online_softmax


def window_begins_within_tile(case: Case) -> bool:
    """Whether the window of some block of queries begins after the first key of a tile."""
    assert case.window is not None and case.block_q is not None and case.block_k is not None
    keys = np.arange(0, case.seqlen_q, case.block_q) + case.diagonal - case.window[0]
    return bool(np.any((keys > 0) & (keys < case.seqlen_k) & (keys % case.block_k != 0)))


FAULTS: tuple[Fault, ...] = (
    # scores
    Fault(
        "mma-softcap-of-raw-scores",
        "flash_mma",
        "scores are capped before they are scaled",
        "                s[i] = libdevice.fmul_rn(s[i], scale)\n",
        "                pass\n",
        ("capped",),
        needs={"softcap": 5.0},
        shows=scaled,
        source="synthetic",
    ),
    Fault(
        "mma-mask-of-pair",
        "flash_mma",
        "the mask hides both of a lane's neighbouring columns, or none: it is that of the first",
        "if column(i, 0) > column_of_last:",
        "if column(i, 0) - i % 2 > column_of_last:",
        ("scores",),
        needs={"causal": True},
        shows=odd_key_behind_diagonal,
        source="synthetic",
    ),
    Fault(
        "mma-mask-skipped-by-last-row",
        "flash_mma",
        "a warp skips the causal mask of tiles that its last row sees whole, which its first does not",
        "high = min(high, first_row + warp_row + diagonal)\n",
        "high = min(high, first_row + warp_row + WARP_ROWS - 1 + diagonal)\n",
        ("scores",),
        needs={"causal": True},
        shows=diagonal_within_warp,
        source="pytorch#196678",
    ),
    Fault(
        "mma-window-off-by-one",
        "flash_mma",
        "the window hides the first key in it: < became <=",
        "if column(i, 0) < column_of_first:",
        "if column(i, 0) <= column_of_first:",
        ("scores",),
        needs={"window": (16, 0)},
        source="transformers#39408",
    ),
    Fault(
        "mma-causal-one-tile-short",
        "flash_mma",
        "the last tile that a block of queries sees is not visited",
        "(first_row + BLOCK_Q - 1 + diagonal + BLOCK_K) // BLOCK_K",
        "(first_row + BLOCK_Q - 1 + diagonal) // BLOCK_K",
        UNVISITED,
        needs={"causal": True},
        shows=last_tile_of_block,
        source="synthetic",
    ),
    Fault(
        "mma-window-one-tile-late",
        "flash_mma",
        "the first tile of a window is rounded up: the one in which the window begins is not visited",
        "first_tile = max(0, first_row + diagonal - left) // BLOCK_K",
        "first_tile = (max(0, first_row + diagonal - left) + BLOCK_K - 1) // BLOCK_K",
        UNVISITED,
        needs={"window": (16, 0)},
        shows=window_begins_within_tile,
        source="synthetic",
    ),
    # softmax
    *online_softmax("flash_mma", "mma", "CAST", -(1 << 16), 8),
    Fault(
        "mma-no-masked-tile-guard",
        "flash_mma",
        "exp2(-inf - (-inf)) in rows that see no key of the first tile of their block",
        "safe = largest if largest > NEG_INF else float32(0)",
        "safe = largest",
        ("row_sum", "acc", "out", "lse"),  # what came of the tile itself is not judged: it might have been skipped
        needs={"causal": True},
        shows=blind_in_visited_tile,
        source="xformers 540fcbfd",
    ),
    Fault(
        "mma-max-not-scaled",
        "flash_mma",
        "exp2(fma(s, scale, -max)): what is subtracted from a scaled score is the max of those that are not",
        "s[x] = ptx.ex2_approx(cuda.fma(s[x], exp2_scale, -scaled_max))",
        "s[x] = ptx.ex2_approx(cuda.fma(s[x], exp2_scale, -safe))",
        ("probs", "acc"),  # that of probs so small that they are subnormal, of which a tensor core loses more
        source="synthetic",
    ),
    Fault(
        "mma-scale-twice",
        "flash_mma",
        "scores that were scaled before their cap are scaled by exp2 once more",
        "        exp2_scale = LOG2_E\n",
        "        pass\n",
        ("correction", "probs"),
        needs={"softcap": 5.0},
        shows=scaled,
        source="vllm#48016",
    ),
    # out
    Fault(
        "mma-out-lanes-swapped",
        "flash_mma",
        "lanes store the halves of a row that they keep and that they get in the wrong order",
        "(upper, other) if t % 2 == 0 else (other, lower)",
        "(other, upper) if t % 2 == 0 else (lower, other)",
        ("out",),
        source="synthetic",
    ),
)
