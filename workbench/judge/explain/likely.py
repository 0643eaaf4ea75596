"""The faults that are tried where only largest errors are known: those that are known of kernels like these.

They are what the catalogue of faults and public reports tell, as far as the library has it. A table holds too little to
tell thousands apart.
"""

from workbench.judge.explain.hypothesis import Hypothesis
from workbench.judge.explain.library import library

#: family -> what is wrong, as in the ids of the library
LIKELY = {
    "mask": """
        none right-+1 right--1 left-+1 left--1 no-right no-left top-left left-top-left inverted row-start-16
        row-start-32 row-start-64 none-in-visited-64 last-key first-key last-tile first-tile odd-tiles last-of-tile
        whole-16 whole-32 whole-64 split-start split-end first-split last-split keys-as-queries filled--10000 filled-0
        before-cap not-in-probs not-in-max added--10000 tail tail-16 tail-32 tail-in-sum first-head unvisited-ragged
        unvisited-last unvisited-ends unvisited-left-over unvisited-of-queries
    """,
    "scale": """
        one twice usual root inverse times-usual of-dim no-log2e log2e negative double half cap-none cap-argument
        cap-no-product cap-no-quotient cap-before-scale cap-base-2
    """,
    "softmax": """
        acc-uninitialised row_sum-uninitialised correction-missing correction-missing-in-row_sum
        correction-missing-in-acc correction-inverted correction-twice-in-acc correction-twice-in-row_sum
        correction-zero-in-row_sum correction-zero-in-acc unguarded max-of-tile max-stale max-never-below-0
        max-without-last max-begins--10000 subtracts-stale subtracts-own subtracts-nothing subtracts-nothing-in-last
        subtracts-never-below-0 exp-no-log2e exp-log2e exp-above-10 probs-normalised row_sum-first-half
        row_sum-without-last acc-without-last row_sum-twice acc-twice row_sum-nothing row_sum-starts-one
        acc-of-padding
    """,
    "merge": """
        weight-times-sum weight-times-sum-in-out weight-times-sum-in-sum weight-over-sum weight-one weight-one-in-sum
        weight-one-in-out weight-inverted weight-squared weight-no-max weight-no-log2e unguarded-split unguarded-row
        split-next-partial_O split-next-partial_max split-next-partial_sum row-next-partial_O row-previous-partial_O
        query-first-partial_sum normalised empty-unwritten-partial_max-partial_sum empty-max-0 last-lost-in-both
        last-lost-in-out last-lost-in-sum first-lost-in-both first-lost-in-out first-lost-in-sum
        but-first-lost-in-both max-first max-first-in-weights max-scaled-in-weights sum-max sum-first equal-shares
        mean plain-sum natural-as-base2 base2-as-natural not-rescaled not-rescaled-in-out not-rescaled-in-sum
    """,
    "output": """
        uninitialised undivided divided-twice multiplied unguarded divided-by-1-more rows-next rows-previous
        heads-zero out-strides lse-base-2 lse-no-max lse-max lse-sum lse-log2-sum lse-minus lse-negative
        lse-unscaled-max lse-scaled-max lse-zero lse-exp lse-per-split lse-empty-zero lse-strides lse-of-last-split
        lse-of-first-split lse-rows-next
    """,
    "layout": """
        v-for-k k-for-v q-for-k k-for-q head-zero-kv head-modulo-kv head-modulo-k head-modulo-v head-next-kv
        batch-zero-k batch-zero-v batch-zero-kv rows-next-q rows-next-k rows-next-v rows-previous-k rows-previous-v
        as-bshd-q as-bshd-k as-bshd-v as-bshd-kv as-bshd-qkv rows-block-previous-16-k rows-block-previous-32-k
        rows-block-previous-64-k rows-block-previous-16-v rows-block-previous-32-v rows-block-previous-64-v
        dims-without-last-q dims-without-last-v dims-first-half-q blocks-transposed-16-v sum-of-lane
    """,
    "precision": """
        qk-float16 qk-bfloat16 scores-float16 scores-bfloat16 probs-bfloat16 probs-float16 acc-float16 acc-bfloat16
        partial_O-float16 partial_O-bfloat16 partial_max-float16 merge_weight-float16 q_rows-tf32 k_rows-tf32
        v_rows-tf32 out-flushed-1e-3
    """,
}


def likely() -> tuple[Hypothesis, ...]:
    """These faults, the plainest first."""
    known = {one.id: one for one in library((*LIKELY,))}
    return tuple(known[f"{family}.{what}"] for family, names in LIKELY.items() for what in names.split())
