"""Faults of Split-K on tensor cores beyond a split: which keys it has, what it leaves, and the merge."""

from workbench.case.case import Case
from workbench.cuda.faults.conditions import (
    empty_rows,
    keys_in_every_split,
    keys_in_several_splits,
    raw,
    scaled,
    several_splits,
    tiles_left_over,
)
from workbench.cuda.faults.fault import UNVISITED, Fault

#: the second pass
REDUCE = "split_mma_reduce.py"


def a_split_without_tiles(case: Case) -> bool:
    """Whether some split has no key."""
    return not keys_in_every_split(case)


FAULTS: tuple[Fault, ...] = (
    # splits
    Fault(
        "split-mma-chunk-floor",
        "split_mma",
        "the tiles of a split are rounded down, so that no split takes those that are left",
        "tiles_per_split = (most_tiles + splits - 1) // splits",
        "tiles_per_split = max(most_tiles // splits, 1)",
        (*UNVISITED, "partial_max", "partial_sum", "partial_O"),
        shows=tiles_left_over,
        source="flashinfer#1614",
    ),
    Fault(
        "split-mma-split-ends-early",
        "split_mma",
        "every split but the last ends one tile early",
        "min((split + 1) * tiles_per_split, end_tile)",
        "min((split + 1) * tiles_per_split - (split < splits - 1), end_tile)",
        UNVISITED,
        shows=several_splits,
        source="synthetic",
    ),
    Fault(
        "split-mma-empty-split-not-written",
        "split_mma",
        "a split without tiles leaves no partial results, and those of the launch before are merged",
        "        if query[r] < seqlen_q:\n            if warp == 0",
        "        if query[r] < seqlen_q and first_tile < end_tile:\n            if warp == 0",
        ("partial_max", "partial_sum", "partial_O"),
        finding="unwritten-output",
        shows=a_split_without_tiles,
        source="synthetic",
    ),
    Fault(
        "split-mma-partial-max-scaled",
        "split_mma",
        "partial_max is stored scaled, and read as if it were not",
        "partial_max[b, head[r], split, query[r]] = m[r]",
        "partial_max[b, head[r], split, query[r]] = m[r] * scale",
        ("partial_max",),
        shows=lambda case: raw(case) and scaled(case),
        source="cutlass#2366, flashinfer#1109",
    ),
    Fault(
        "split-mma-partial-sum-wrong-split",
        "split_mma",
        "partial_sum is stored at (split + 1) % splits: the writer's strides are not the reader's",
        "partial_sum[b, head[r], split, query[r]] = l[r]",
        "partial_sum[b, head[r], (split + 1) % splits, query[r]] = l[r]",
        ("partial_sum",),
        shows=several_splits,
        source="flash-attention#2388",
    ),
    Fault(
        "split-mma-partial-O-pairs-swapped",
        "split_mma",
        "the two neighbours that a lane stores at once change places",
        "(acc[x], acc[x + 1]))",
        "(acc[x + 1], acc[x]))",
        ("partial_O",),
        source="synthetic",
    ),
    # the merge
    Fault(
        "split-mma-merge-max-of-first-split",
        "split_mma",
        "the common max is that of the first split",
        "for s in range(lane, splits, 32):",
        "for s in range(lane, 1, 32):",
        ("merge_max",),
        shows=keys_in_several_splits,
        file=REDUCE,
        source="synthetic",
    ),
    Fault(
        "split-mma-merge-in-base-2",
        "split_mma",
        "weights of splits are exp2 of differences that are scaled for exp",
        "weight = ptx.ex2_approx((partial_max[b, h, own, row] - safe) * exp2_scale)",
        "weight = ptx.ex2_approx((partial_max[b, h, own, row] - safe) * scale)",
        ("merge_weight", "merge_sum"),
        shows=lambda case: raw(case) and keys_in_several_splits(case),
        file=REDUCE,
        source="flashinfer#787",
    ),
    Fault(
        "split-mma-no-empty-guard",
        "split_mma",
        "exp2(-inf - (-inf)) where no split has a key",
        "safe = m if m > NEG_INF else float32(0)",
        "safe = m",
        ("merge_weight", "merge_sum"),
        needs={"causal": True},
        shows=empty_rows,
        file=REDUCE,
        source="flash-attention 31920dda, vllm#28181",
    ),
    Fault(
        "split-mma-sum-unweighted",
        "split_mma",
        "merge_sum adds the sums of the splits as they are",
        "l += weight * partial_sum[b, h, own, row]",
        "l += partial_sum[b, h, own, row]",
        ("merge_sum",),
        shows=keys_in_several_splits,
        file=REDUCE,
        source="synthetic",
    ),
    Fault(
        "split-mma-out-of-first-warp",
        "split_mma",
        "out is made of the splits that the first warp has added",
        "        for w in range(WARPS):\n            numerator += ",
        "        for w in range(1):\n            numerator += ",
        ("out",),
        shows=keys_in_several_splits,
        file=REDUCE,
        source="synthetic",
    ),
    Fault(
        "split-mma-lse-without-scale",
        "split_mma",
        "lse is the log-sum-exp with a max that is not scaled",
        "largest = m * scale",
        "largest = m",
        ("lse",),
        shows=lambda case: raw(case) and scaled(case),
        file=REDUCE,
        source="synthetic",
    ),
    Fault(
        "split-mma-merge-without-barrier",
        "split_mma",
        "out is made before the sums of the other warps are there",
        "    cuda.syncthreads()  # sums of all warps are complete\n",
        "    pass\n",
        finding="race",
        file=REDUCE,
        source="synthetic",
    ),
)
