"""What is wrong in which kernel, the case that shows it, and the correct kernels beside them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from campaigns.reports import (
    correct,
    correct_more,
    extras,
    layout,
    lse,
    masks,
    merges,
    merges_lse,
    nans,
    pairs_of_masks,
    pairs_of_values,
    precision,
    scales,
    softmax_steps,
    stale,
)


@dataclass(frozen=True)
class Report:
    """A kernel, the case it is run on, and what is wrong with it; `domain` says what it supports, "" all."""

    name: str
    function: Callable[..., Any]
    options: dict[str, Any]
    faults: int
    truth: str
    source: str
    domain: str = ""


def case(sq: int, sk: int, dtype: str = "float32", heads: int = 2, causal: bool = False, **more: Any) -> dict[str, Any]:
    """The options of a case."""
    base = {"seqlen_q": sq, "seqlen_k": sk, "dtype": dtype, "heads": heads, "kv_heads": heads, "batch": 1}
    return base | {"head_dim": 32, "causal": causal} | more


def wrong(f: Callable[..., Any], source: str, options: dict[str, Any], truth: str, domain: str = "") -> Report:
    """A kernel with one fault."""
    return Report(f.__name__, f, options, 1, truth, source, domain)


def two(f: Callable[..., Any], source: str, options: dict[str, Any], truth: str, domain: str = "") -> Report:
    """A kernel with two faults, a sentence each."""
    return Report(f.__name__, f, options, 2, truth, source, domain)


def right(f: Callable[..., Any], options: dict[str, Any], domain: str = "") -> Report:
    """A correct kernel."""
    return Report(f.__name__, f, options, 0, "", "", domain)


MASKS = (
    wrong(
        masks.eager_causal_top_left,
        "flash-attn#436, pytorch#110144",
        case(48, 80, causal=True),
        "mask: the causal mask is aligned top-left (j <= i), not bottom-right (j <= i + seqlen_k - seqlen_q).",
    ),
    wrong(
        masks.flash_diagonal_lost,
        "zml#763",
        case(64, 96, "float16", causal=True),
        "mask: the causal comparison is strict, a query misses its last visible key (j < i + seqlen_k - seqlen_q); "
        "the same as a causal diagonal shifted by -1, or a right window of -1.",
    ),
    wrong(
        masks.eager_window_left_exclusive,
        "transformers#39408",
        case(64, 64, causal=True, window=(12, 0)),
        "mask: the left edge of the window is exclusive, each row misses the key at distance `left`; the same as "
        "a left window smaller by 1.",
    ),
    wrong(
        masks.flash_window_one_more,
        "zml#763",
        case(80, 80, "bfloat16", causal=True, window=(8, 0)),
        "mask: the window to the left is larger by 1, each row sees the key at distance left + 1.",
    ),
    wrong(
        masks.eager_window_needs_causal,
        "jax 099f0a1708",
        case(64, 64, window=(10, 6)),
        "mask: the sliding window is ignored when the attention is not causal (all keys are seen, and so lse too); "
        "the code that masks runs only when causal.",
    ),
    wrong(
        masks.flash_window_first_tile_ceil,
        "after flashinfer#563",
        case(96, 96, "float16", causal=True, window=(20, 0)),
        "key loop with a window: the first key tile (16 keys) of a query tile (16 rows) is rounded up for down, keys "
        "from the left edge of the tile's first row up to the next multiple of 16 are skipped for the whole tile.",
    ),
    wrong(
        masks.flash_tail_seen_when_full,
        "SageAttention 3917283",
        case(48, 100, "float16"),
        "mask of the tail: without causal, keys behind seqlen_k up to the next multiple of 64 are not masked; they "
        "are zeros, so each adds exp(0 - max) to the row sum (score 0) and nothing to P @ V.",
    ),
    wrong(
        masks.flash_tail_by_64,
        "pytorch#196678",
        case(64, 96),
        "mask of the tail: the test is on (j // 64) * 64 for j in tiles of 128, so zero-filled keys from seqlen_k up "
        "to the next multiple of 64 count with score 0 (sum too large, nothing added to P @ V).",
        "full attention only",
    ),
    wrong(
        masks.packed_rows_bound_floor,
        "flashinfer#1148",
        case(40, 40, heads=7, causal=True, kv_heads=1),
        "key loop: the causal bound of a tile of 16 packed query * group rows is hi // group for ceil(hi / group), so "
        "a query whose rows are split over two tiles misses its last visible key in the rows of the first tile.",
    ),
    wrong(
        masks.flash_bound_of_equal_blocks,
        "jax 7d27c319b2",
        case(128, 128, "float16", causal=True),
        "key loop: for query tiles of 64 and key tiles of 16 the causal bound is that of equal blocks, "
        "t * 64 // 16 + 1 tiles; keys from t * 64 + 16 on are skipped for query tile t.",
        "seqlen_q == seqlen_k",
    ),
    wrong(
        masks.flash_one_masking_step,
        "a FlashAttention-2 port, n_masking_steps",
        case(96, 96, causal=True),
        "mask: only the last key tile of 16 of a query tile of 32 rows is masked causally; in the tile before it, on "
        "the diagonal of the first 16 rows, keys above the diagonal are seen.",
        "seqlen_q == seqlen_k, a multiple of 32",
    ),
    wrong(
        masks.flash_key_loop_by_queries,
        "jax bd9a10e4eb",
        case(64, 128, "bfloat16"),
        "key loop: the number of key tiles of 32 is ceil(seqlen_q / 32), keys behind that are never visited.",
        "seqlen_q <= seqlen_k",
    ),
    wrong(
        masks.flash_pointer_left_behind,
        "llama.cpp#14916",
        case(96, 96, causal=True, window=(16, 0)),
        "load: a fully masked key tile is skipped without advancing the K and V pointers, later tiles of that query "
        "tile are read from too early positions (K and V alike), while the mask is of the right positions.",
        "seqlen_k a multiple of 16",
    ),
    wrong(
        masks.eager_empty_row_mean,
        "onnxruntime#28904",
        case(96, 64, "float16", causal=True),
        "mask: masked scores are -1e30 and not -inf and there is no guard, so a row without a visible key gets the "
        "mean of V and a finite lse (-1e30) for 0 and -inf; other rows are right.",
    ),
    wrong(
        masks.eager_offset_unsigned,
        "pytorch#193632",
        case(96, 64, causal=True),
        "mask: seqlen_k - seqlen_q wraps as an unsigned number when seqlen_q > seqlen_k, so the causal mask is off "
        "and all rows see all keys.",
    ),
    wrong(
        masks.flash_causal_folded_off,
        "MSLK#263",
        case(64, 64, "float16", causal=True),
        "mask: the causal mask is not applied at all, all rows see all keys.",
    ),
    wrong(
        masks.eager_positions_int8,
        "mlx#3361, with 8 bits in place of 16",
        case(160, 160, causal=True),
        "mask: row and column positions wrap at 128 (int8) in the causal comparison; rows from 128 on see only keys "
        "from 128 up to their own, and rows below 128 see besides theirs all keys from 128 on.",
        "seqlen_q == seqlen_k",
    ),
    wrong(
        masks.flash_window_top_left,
        "flash-attn#1778",
        case(48, 96, causal=True, window=(16, 0)),
        "mask: the left edge of the window is aligned top-left (j >= i - left), the causal mask and the right edge "
        "bottom-right; with more keys than queries too many keys are seen on the left.",
    ),
    wrong(
        masks.mqa_mask_of_folded_row,
        "xformers 4f7ffaa3 (#952)",
        case(40, 40, "float16", heads=4, causal=True, kv_heads=1),
        "mask: heads are folded into rows and the causal mask uses the folded row h * seqlen_q + i for i, so heads "
        "from 1 on see all keys; head 0 is right.",
        "MQA only",
    ),
)

SOFTMAX = (
    wrong(
        softmax_steps.flash_sum_not_rescaled,
        "an online softmax of a course repository",
        case(64, 128),
        "online softmax: the running sum is not multiplied by the correction exp(old max - new max) (key tiles of "
        "32); the accumulator is.",
    ),
    wrong(
        softmax_steps.flash_acc_not_rescaled,
        "aiter#4216 around the lazy rescale",
        case(64, 128, "float16"),
        "online softmax: the output accumulator is not multiplied by the correction (key tiles of 16); the running "
        "sum is, so lse is right.",
    ),
    wrong(
        softmax_steps.flash_alpha_of_tile_max,
        "aiter#4216",
        case(48, 128),
        "correction: exp(old max - max of this tile) in place of exp(old max - new running max), for both sum and "
        "accumulator (tiles of 32); it exceeds 1 where the tile's max is below the running one.",
    ),
    wrong(
        softmax_steps.flash_phantom_key,
        "flashinfer c6fdbd6d5 (#27)",
        case(64, 96, "bfloat16", head_dim=64),
        "initial values: the running sum starts at 1 with the max of the first tile (32 keys) of the row, so the row "
        "sum holds a phantom key with that maximum as its score and value 0.",
    ),
    wrong(
        softmax_steps.flash_sum_over_two_rows,
        "flashinfer 6c6417903",
        case(64, 64, "float16"),
        "row sum: the reduction of a tile's P runs over two adjacent rows (2r, 2r + 1), each gets the sum of both; "
        "max, correction and P @ V are of the own row.",
        "an even seqlen_q",
    ),
    wrong(
        softmax_steps.flash_warps_keep_own_max,
        "llama.cpp#24451",
        case(64, 96),
        "row max: each half (16 keys) of a tile of 32 subtracts max(running max, its own max) in P, not the max of "
        "the whole tile, while the running max and correction take the whole tile; sums and P @ V of the halves are "
        "added as if they had one max.",
        "full attention, seqlen_k a multiple of 32",
    ),
    wrong(
        softmax_steps.two_pass_last_tile_unshifted,
        "tt-metal#51278",
        case(64, 96),
        "P: in the last key tile (32 keys) the row max is not subtracted, P = exp(s) there; sum and P @ V both use it.",
    ),
    wrong(
        softmax_steps.flash_tail_in_sum,
        "NNkernels.jl#16",
        case(64, 70, "float16"),
        "mask of the tail: zero-filled keys behind seqlen_k up to the next multiple of 32 are left out of the max but "
        "not out of exp and sum, each adds exp(0 - max) to the row sum; the same result as a tail that is not masked.",
        "full attention only",
    ),
    wrong(
        softmax_steps.two_pass_weight_to_running_max,
        "after flash-attn#2717, a stale max",
        case(64, 128),
        "online softmax: the correction is left out for both sum and accumulator (key tiles of 16), P of a tile is "
        "relative to the running max after that tile; the same as a correction of 1.",
    ),
    wrong(
        softmax_steps.flash_p_of_old_max,
        "llama.cpp#13438",
        case(64, 160, "float16"),
        "P: from the second tile on (64 keys) P subtracts the running max from before the tile, the correction goes "
        "to the max after it, which lse uses too; so P of a tile is too large by exp(new max - old max).",
        "causal with equal lengths only",
    ),
    wrong(
        softmax_steps.eager_softmax_over_queries,
        "a wrong axis in an einsum port",
        case(64, 64),
        "softmax: maximum and sum are taken over the queries (columns of the scores), not over the keys; lse is "
        "that of the columns.",
        "seqlen_q == seqlen_k, full attention",
    ),
    wrong(
        softmax_steps.flash_alpha_of_first_row,
        "after flash-attn#2229",
        case(64, 96, "bfloat16"),
        "correction: the accumulator of all rows of a query tile (16 rows) is multiplied by the correction of the "
        "tile's first row (key tiles of 16); the running sum by that of its own row, lse is right.",
    ),
)

SCALES = (
    wrong(
        scales.exp2_without_log2e,
        "flashinfer#787",
        case(64, 64, "float16", causal=True),
        "exp: exp2 of scores without the factor log2(e), P = 2 ** (s - max) for exp; lse is consistent with it. The "
        "same as natural softmax with the scale multiplied by ln(2).",
    ),
    wrong(
        scales.flash_scale_of_padded_dim,
        "after flashinfer#1072",
        case(64, 64, head_dim=40),
        "scale: 1 / sqrt(head_dim rounded up to a multiple of 64), here 1 / 8, in place of the scale given.",
    ),
    wrong(
        scales.eager_scale_one_percent,
        "a mistyped constant",
        case(64, 64, causal=True),
        "scale: 1.01 / sqrt(head_dim), one percent too large.",
    ),
    wrong(
        scales.exp2_log2e_of_three_digits,
        "a hand-written exp2 kernel",
        case(64, 128, head_dim=64),
        "scale: log2(e) folded into the scale is 1.44 for 1.442695, the scores are too small by 0.19 percent, as in "
        "a scale too small by that; lse is consistent with it.",
    ),
    wrong(
        scales.flash_scale_twice,
        "vllm#48016",
        case(64, 96, "bfloat16"),
        "scale: applied twice, to q at its load and to the scores; scores are q @ k^T * scale^2.",
    ),
    wrong(
        scales.eager_scale_of_value_dim,
        "an MLA port",
        case(48, 64, "float16", head_dim=64, head_dim_v=32, causal=True),
        "scale: 1 / sqrt(head_dim_v) in place of 1 / sqrt(head_dim).",
    ),
    wrong(
        scales.exp2_log2e_twice,
        "flashinfer, logits hook and sm_scale_log2",
        case(64, 64, head_dim=64),
        "scale: log2(e) is applied twice, in the scale and again in exp2, as natural softmax with the scale "
        "multiplied by log2(e); lse is consistent with that.",
        "head_dim 64",
    ),
    wrong(
        scales.mma_slices_overwritten,
        "flashinfer#448",
        case(64, 64, "float16", head_dim=64),
        "q @ k^T: of the dot only the last slice of 8 of the head dim survives, earlier sums are overwritten.",
        "head_dim a multiple of 16",
    ),
    wrong(
        scales.dot_without_tail_of_dim,
        "after flash-attn#2745, floor for ceil",
        case(64, 64, head_dim=40, causal=True),
        "q @ k^T: the dot covers floor(head_dim / 16) * 16 of the head dim, the tail (here 8 of 40) is left out.",
    ),
)

LAYOUT = (
    wrong(
        layout.gqa_heads_modulo,
        "a repeat for repeat_interleave in a port",
        case(48, 48, "float16", heads=6, causal=True, kv_heads=2),
        "head mapping: query head h reads K and V of head h % kv_heads, not h // group.",
    ),
    wrong(
        layout.gqa_remap_heads_minus_one,
        "aiter#612",
        case(48, 64, heads=8, kv_heads=2),
        "head mapping: the group size is (heads - 1) // kv_heads, one too small, so K and V heads of h // 3 (clipped) "
        "are read for h // 4.",
        "GQA only",
    ),
    wrong(
        layout.all_heads_read_head_zero,
        "attorch#14",
        case(48, 48, heads=3, causal=True),
        "load: K and V of head 0 are read for all heads.",
        "heads == kv_heads",
    ),
    wrong(
        layout.gqa_batch_term_missing,
        "mlx#4431",
        case(32, 64, "bfloat16", heads=4, kv_heads=2, batch=2),
        "load: the batch term is missing in the offsets of K and V, all sequences read those of sequence 0.",
    ),
    wrong(
        layout.grid_batch_and_head_swapped,
        "cutlass#2291",
        case(32, 48, heads=3, batch=2, causal=True),
        "block index: q, k and v are loaded at (batch, head) = (z % batches, z // batches), out and lse are stored at "
        "(z // heads, z % heads); results are right and at the wrong place, a permutation over batch and head.",
        "heads == kv_heads",
    ),
    wrong(
        layout.v_addressed_with_k_pitch,
        "mlx#1558",
        case(48, 48, head_dim=64, head_dim_v=32),
        "load: rows of V are addressed with the row pitch of K (head_dim for head_dim_v), wrapping at the end of the "
        "head; row j is read at j * head_dim.",
        "head_dim_v < head_dim",
    ),
    wrong(
        layout.out_stored_query_major,
        "mlx#2152",
        case(40, 40, "float16", heads=4, causal=True),
        "store: out is stored at row query * heads + head in a buffer read as head * seqlen_q + query; lse is right.",
    ),
    wrong(
        layout.out_batch_stride_of_v,
        "aiter#970",
        case(64, 48, batch=2),
        "store: the batch stride of out is that of V (heads * seqlen_k * dim for heads * seqlen_q * dim), sequence 1 "
        "is stored over the end of sequence 0 and the end of the buffer stays 0; lse is right.",
        "full attention, seqlen_k < seqlen_q, heads == kv_heads",
    ),
    wrong(
        layout.out_dim_tile_offset_dropped,
        "fla#1028",
        case(48, 48, "float16", head_dim=48, causal=True),
        "store: the offset of the column tile (16) of out is missing, all tiles are stored to the first 16 columns, "
        "the last one stays, other columns are 0; lse is right.",
    ),
    wrong(
        layout.launch_k_for_q,
        "llama.cpp#9374",
        case(64, 64, "bfloat16", causal=True),
        "load: K is read in place of Q, scores are k @ k^T * scale.",
        "q and k of one shape",
    ),
    wrong(
        layout.scores_row_column_swapped,
        "an MMA fragment layout of another kind",
        case(64, 64, "float16"),
        "scores: rows and columns of the scores are swapped, s[i, j] = q_j . k_i * scale; the mask comes after.",
        "seqlen_q == seqlen_k",
    ),
    wrong(
        layout.out_swizzle_differs,
        "flash-attn eeca63a7",
        case(48, 64, head_dim=16),
        "store: on odd rows of out column c holds column c ^ 8, the two halves of 8 columns are swapped; lse is right.",
        "head_dim_v 16",
    ),
    wrong(
        layout.v_blocks_transposed,
        "flashinfer#2689",
        case(64, 64, "float16"),
        "load: each 8 x 8 block of V (8 keys by 8 columns) is transposed.",
        "seqlen_k and head_dim_v multiples of 8",
    ),
    wrong(
        layout.q_memory_assumed_contiguous,
        "pytorch#181151",
        case(48, 48, heads=3, causal=True),
        "load: q laid out [batch, seqlen, heads, dim] is read as [batch, heads, seqlen, dim]; row h * seqlen_q + i "
        "holds the q of position (h * seqlen_q + i) // heads and head (h * seqlen_q + i) % heads.",
    ),
    wrong(
        layout.gqa_group_padded_in_reader,
        "llama.cpp#19115",
        case(32, 64, heads=6, kv_heads=2),
        "scratch: out of query head h is written at slot (h // group) * 4 + h % group (group 3 padded to 4) and read "
        "at slot h: from head 3 on out is unwritten memory or that of the head before; lse is right. With a group "
        "that is a power of two nothing is wrong.",
    ),
)

STALE = (
    wrong(
        stale.flash_v_tile_of_before,
        "Fuser#2000",
        case(48, 128, "float16"),
        "P @ V: from the second key tile (32) on P is multiplied with the V tile of the iteration before.",
        "seqlen_k a multiple of 32",
    ),
    wrong(
        stale.flash_v_over_k,
        "rocm-libraries#4742",
        case(48, 96),
        "load: keys 16..31 of each tile of 32 are overwritten by the rows of V before the scores are computed; their "
        "scores are q . v_j * scale.",
        "head_dim_v == head_dim",
    ),
    wrong(
        stale.flash_partial_tile_not_loaded,
        "after flashinfer#1029",
        case(48, 88, "bfloat16"),
        "load: a partial last key tile (32) is not loaded, K and V rows of the tile before it are used in its place.",
        "seqlen_k >= 32",
    ),
    wrong(
        stale.flash_partial_tile_skipped,
        "flash-attn#2745",
        case(48, 88, "float16"),
        "key loop: floor(seqlen_k / 32) tiles are visited, keys of the partial last tile are left out.",
    ),
    wrong(
        stale.flash_last_q_tile_shifted,
        "after llama.cpp#7479",
        case(80, 80, causal=True),
        "load: the last partial query tile (32 rows) is read (q and mask) from seqlen_q - 32 on, and its first rows "
        "are stored at the unshifted place; those rows hold out and lse of rows 32 - n earlier, n rows in the tile.",
        "seqlen_q >= 32",
    ),
    wrong(
        stale.persistent_acc_not_reset,
        "flashinfer#5029",
        case(64, 64, "float16"),
        "accumulator: not cleared between query tiles of 16 rows, the P @ V of all earlier tiles (same row in the "
        "tile) is added; sums and maxima are fresh, lse is right.",
        "seqlen_q a multiple of 16",
    ),
    wrong(
        stale.flash_next_k_too_early,
        "llama.cpp#26434",
        case(64, 96),
        "load: for query rows i with i % 16 >= 8 the scores use the next key tile (16) in place of their own (the "
        "last tile itself), V and mask are of the own tile.",
        "seqlen_k a multiple of 16",
    ),
    wrong(
        stale.row_sum_slot_shared,
        "flash-attn#2229",
        case(64, 64, "float16", causal=True),
        "normaliser: rows of odd query tiles of 16 are divided by the row sum of the row 16 before them; lse is right.",
        "seqlen_q a multiple of 32",
    ),
    wrong(
        stale.first_tile_before_fence,
        "FlashMLA 01a2772",
        case(48, 80, "bfloat16", head_dim=64),
        "load: K and V of the first key tile (16 keys) are zeros, its keys count with score 0 and value 0.",
        "head_dim 64",
    ),
    wrong(
        stale.v_slot_without_tile_size,
        "flashinfer#3276",
        case(48, 64),
        "load: stages of V (tiles of 16, two stages) start at row 0 and row 1 of the buffer, so the prefetch of the "
        "next tile overwrites the current V tile: an even tile t holds one own row (0) and then rows 0..14 of tile "
        "t + 1, an odd one rows 1..15 of tile t + 1 and its own row 15; the last tile is right.",
    ),
    wrong(
        stale.v_page_once_per_iteration,
        "TRT-LLM#18244",
        case(48, 96, "float16"),
        "load: in each iteration of 32 keys the V rows of the first 16 keys are used for the second 16 too.",
        "seqlen_k a multiple of 32",
    ),
)

MERGES = (
    wrong(
        merges.split_sum_of_last_only,
        "flashinfer 6cbaf6e26",
        case(32, 128),
        "merge: the merged sum is only the weighted sum of the last of 4 splits, not added over splits; out too large "
        "and lse too small.",
    ),
    wrong(
        merges.split_no_final_division,
        "flashinfer 6cbaf6e26",
        case(32, 96, "float16"),
        "merge: out is not divided by the merged sum, it is the weighted sum of unnormalised partials; lse is right.",
    ),
    wrong(
        merges.split_reduce_blocks_floor,
        "mlx#3875",
        case(4, 112, "float16", heads=4),
        "merge: only floor(splits / 4) * 4 splits (of 16 keys) are reduced, the remaining splits are left out of out "
        "and lse; here keys 64..111.",
        "at most 4 queries, seqlen_k >= 64",
    ),
    wrong(
        merges.split_chunk_end_unmasked,
        "flashinfer#1206",
        case(32, 120),
        "split bounds: chunks of 40 keys in tiles of 16 end at 48 and are masked by seqlen_k only, the 8 keys at the "
        "beginning of the next chunk are counted twice.",
    ),
    wrong(
        merges.split_scratch_batch_stride_zero,
        "flash-attn#2550",
        case(32, 96, "bfloat16", batch=3),
        "merge: the scratch of partials has batch stride 0, all sequences get out and lse of the last sequence.",
    ),
    wrong(
        merges.split_exp_of_log2_max,
        "FlashDecoding, an exp2 port",
        case(32, 128),
        "merge: partial maxima are in units of log2, weights are exp(max_s - max) of them and not exp2; lse takes the "
        "max right (times ln 2) and the wrong sum.",
    ),
    wrong(
        merges.split_combine_row_pitch,
        "FlagGems#5235",
        case(32, 128, head_dim=40),
        "merge: partial outputs are read at row pitch head_dim_v (40) from rows written at a pitch of 64 (rounded up "
        "to 32); maxima and sums are right, lse is right. Right when head_dim_v is a multiple of 32.",
    ),
    wrong(
        merges.decode_request_offset_missing,
        "flashinfer#4382",
        case(4, 96, "float16", heads=4, kv_heads=2, batch=3),
        "load: queries of sequence b are read from packed row b + i in place of b * seqlen_q + i; K, V, out and lse "
        "are those of sequence b. Right for batch 1.",
        "2 to 8 queries",
    ),
    wrong(
        merges.split_scratch_axes_swapped,
        "flash-attn#2388",
        case(32, 96, heads=4),
        "merge: partial maxima are written [split, head] and read as [head, split], weights and lse use maxima of "
        "another (split, head); partial sums and outputs are read right.",
    ),
    wrong(
        merges.split_last_without_bound,
        "xformers 3e4a1b4b (fi#1100)",
        case(32, 100, "float16"),
        "mask of the tail: the last of 3 splits has no bound, zero-filled keys behind seqlen_k up to 3 times the "
        "split size (48 each here) count with score 0 and value 0; the same as an unmasked tail of 44 keys.",
        "full attention only",
    ),
    wrong(
        merges.split_workspace_too_small,
        "TRT-LLM#18755",
        case(32, 128, "float16"),
        "scratch: the workspace has 3 slots for 4 splits, split 3 overwrites split 0; split 3 is merged twice and "
        "split 0 not at all, in out and lse.",
        "seqlen_k >= 16",
    ),
)

MERGES_LSE = (
    wrong(
        merges_lse.decode_partial_lse_not_stored,
        "flashinfer#50",
        case(32, 128, "float16", causal=True),
        "merge: partial lse are read as 0, all splits (32 keys) get the same weight, out is the plain mean of the "
        "normalised partial outputs; the final lse is right.",
    ),
    wrong(
        merges_lse.split_empty_counts_as_zero,
        "aiter#3641",
        case(32, 80, "bfloat16"),
        "merge: empty splits (3 of 8 for 80 keys in splits of 16) carry lse 0 and output 0 and are merged with weight "
        "exp(0 - max); the same as that many extra keys with score 0 and value 0.",
    ),
    wrong(
        merges_lse.merge_states_base_two,
        "FlashInfer's base-2 lse in a merge of vLLM",
        case(4, 128, heads=4),
        "merge: partial lse in base 2 (times log2(e)) are weighted with exp, so weights of the two states are "
        "exp(log2(e) * (lse_s - max)); the final lse is right.",
        "at most 4 queries",
    ),
    wrong(
        merges_lse.merge_lse_takes_max,
        "flashinfer 5dadb243c",
        case(32, 96),
        "lse: the merged lse is the largest partial lse, the log of the sum of weights is missing; out is right.",
    ),
    wrong(
        merges_lse.ring_sigmoid_sign,
        "ring-flash-attention's update of out",
        case(32, 128, "float16"),
        "merge: a block is mixed in with weight sigmoid(lse - block_lse), the sign is swapped, so the two states "
        "have each other's weights; lse is right.",
        "full attention only",
    ),
    wrong(
        merges_lse.ring_lse_not_carried,
        "TransformerEngine#1546",
        case(32, 128),
        "merge: after a ring step the running lse is that of the block alone, so the weight of all that came before "
        "is that of the previous block only (4 ranks); the final lse is right.",
        "full attention, seqlen_k a multiple of 4",
    ),
    wrong(
        merges_lse.ring_half_lse_offset,
        "TransformerEngine 7b861e75d",
        case(64, 96),
        "merge: rows of the second half of the queries are weighted by the partial lse of row i - seqlen_q / 2, those "
        "of the first half; the final lse is right.",
        "an even seqlen_q",
    ),
    wrong(
        merges_lse.merge_lse_layout_swapped,
        "vllm-project/flash-attention#87",
        case(32, 128, "float16", heads=4),
        "merge: partial lse written as [head, query] are read as [query, head], weights are of other rows and heads; "
        "the final lse is right.",
    ),
    wrong(
        merges_lse.merge_lse_in_bf16,
        "TransformerEngine#1546",
        case(32, 128, causal=False, head_dim=64),
        "merge: partial lse are rounded to bfloat16 before they are merged, which moves weights (and the final lse) "
        "by up to 2^-9 of lse.",
    ),
)

PRECISION = (
    wrong(
        precision.flash_acc_bf16,
        "mlir-air#1600",
        case(48, 128),
        "accumulator: rounded to bfloat16 after every key tile (8 keys); sum, max and lse are float32.",
    ),
    wrong(
        precision.eager_sum_bf16,
        "mlir-air#1606",
        case(32, 160),
        "row sum: added key by key in bfloat16, rounded after each; P @ V in float32, out and lse move by the same "
        "factor.",
    ),
    wrong(
        precision.eager_dot_fp16,
        "llama.cpp#20589",
        case(48, 64, "float16", head_dim=64),
        "q @ k^T: products and their sum over the head dim are float16, added in order; visible a little only.",
        "float16 only",
    ),
    wrong(
        precision.eager_scores_bf16,
        "cudnn-frontend#744 (in the backward there)",
        case(64, 64),
        "scores: rounded to bfloat16 after the scale and before max and exp.",
    ),
    wrong(
        precision.exp2_q_scaled_in_half,
        "mlx#3119",
        case(64, 64, "bfloat16", head_dim=64),
        "load: scale * log2(e) is rounded to the 16-bit input type and q times it is rounded again, so scores carry "
        "the error of a 16-bit q; visible a little only.",
    ),
    wrong(
        precision.flash_p_fp8,
        "flash-attn#2717",
        case(64, 96, "float16"),
        "P: cast to e4m3 (without a scale) before P @ V, the row sum is of P before the cast; lse is right.",
    ),
    wrong(
        precision.eager_out_through_fp8,
        "vllm#55696",
        case(64, 64, "float16", causal=True),
        "store: out is rounded to e4m3 before it is cast to its dtype; lse is right.",
    ),
    wrong(
        precision.flash_dots_tf32_truncated,
        "triton_docs#6",
        case(64, 128, head_dim=64),
        "products: operands of both q @ k^T and P @ V (q, k, v and P) are truncated to 10 bits of mantissa (TF32 "
        "without rounding); the row sum is of the untruncated P.",
        "float32 only",
    ),
    wrong(
        precision.flash_alpha_fp8,
        "vllm-gaudi#1419",
        case(64, 128, "float16"),
        "correction: that of the accumulator is rounded to e4m3 (key tiles of 32), that of the sum is not; lse is "
        "right.",
    ),
    wrong(
        precision.split_partial_out_bf16,
        "flashinfer#5107",
        case(64, 128),
        "partials: the unnormalised partial outputs (32 keys a split) are rounded to bfloat16 before the merge.",
    ),
    wrong(
        precision.flash_acc_truncated_13_bits,
        "flash-attn#2250",
        case(32, 160),
        "accumulator: truncated to 13 bits of mantissa after every 8 keys, a bias towards 0; lse is right; visible a "
        "little only.",
    ),
    wrong(
        precision.eager_store_truncates,
        "triton#11753",
        case(64, 64, "bfloat16"),
        "store: out is truncated to bfloat16 in place of rounded to nearest, a bias towards 0 of half an ulp; "
        "visible a little only.",
        "bfloat16 only",
    ),
    wrong(
        precision.exp2_polynomial_degree_two,
        "after flash-attn#2595",
        case(64, 96),
        "exp: 2 ** fraction is a polynomial of degree 2 with a relative error of up to about 0.2 percent, so P and "
        "the row sum are off by that.",
    ),
)

LSE = (
    wrong(
        lse.lse_in_base_two,
        "pytorch#181645",
        case(64, 64, "float16", causal=True),
        "lse: in base 2, the right one times log2(e); out is right.",
    ),
    wrong(
        lse.lse_never_written,
        "flashinfer#3838",
        case(64, 96),
        "lse: not written, 0 everywhere; out is right.",
    ),
    wrong(
        lse.lse_of_last_split,
        "flashinfer#58",
        case(48, 120, "float16"),
        "lse: that of the last split (40 keys) alone; out is right.",
    ),
    wrong(
        lse.lse_query_major_of_mqa,
        "xformers 41646dbb (fi#850)",
        case(32, 48, heads=4, kv_heads=1, causal=True),
        "lse: stored at query * heads + head in a buffer read as head * seqlen_q + query; out is right.",
        "MQA only",
    ),
    wrong(
        lse.lse_padding_over_next_head,
        "flash-attn d11341fd",
        case(80, 64, "bfloat16", heads=3),
        "lse: tiles of 32 rows are stored whole at a pitch of seqlen_q per head, rows behind the end of a head (zero "
        "q, lse = log(seqlen_k)) overwrite the first rows (32 - seqlen_q % 32) of the next head; out is right. "
        "Right when seqlen_q is a multiple of 32.",
        "full attention only",
    ),
    wrong(
        lse.lse_without_smoothed_mean,
        "SageAttention 9cd0915",
        case(64, 96),
        "lse: the mean of K over the keys is subtracted from K and scale * (q . mean) is not added back to lse, so "
        "lse is too small by it; out is right.",
    ),
    wrong(
        lse.lse_empty_rows_finite,
        "flashinfer#4267",
        case(96, 64, "float16", causal=True),
        "lse: rows without a visible key have -5e4 (the initial max) for -inf; out and other rows are right.",
    ),
    wrong(
        lse.lse_keeps_fp8_offset,
        "SageAttention 3ec1f13",
        case(48, 96),
        "lse: too large by the constant 8 * ln(2) = 5.545, P and sum carry a factor 2^8 that is not taken out of lse; "
        "out is right.",
    ),
)
SINK = {"sinks": "normal"}
SLOPES = {"alibi_slopes": "geometric"}

EXTRAS = (
    wrong(
        extras.sink_added_raw,
        "flash-attn e81c237e",
        case(48, 64, heads=4, **SINK),
        "sink: the logit itself is added to the row sum, in place of exp(sink - max); lse is NaN where a negative "
        "logit makes the sum negative.",
    ),
    wrong(
        extras.sink_in_each_split,
        "rocm-libraries#12229",
        case(32, 128, "float16", heads=4, **SINK),
        "sink: counted in every split's partial sum (4 splits of 32 keys), so the merged sum holds it once per split.",
    ),
    wrong(
        extras.sink_of_kv_head,
        "the GQA path of a gpt-oss port",
        case(48, 48, heads=8, causal=True, kv_heads=2, **SINK),
        "sink: indexed by the K/V head, query head h has sinks[h // group].",
        "GQA only",
    ),
    wrong(
        extras.exp2_sink_without_log2e,
        "flash-attn's learnable sink, an exp2 port",
        case(32, 32, heads=4, causal=True, **SINK),
        "sink: not multiplied by log2(e) in an exp2 kernel, it counts as a sink logit times ln(2).",
    ),
    wrong(
        extras.alibi_second_half_wrong,
        "llama.cpp#20031",
        case(48, 48, "float16", heads=6, causal=True, **SLOPES),
        "ALiBi: heads of the second half use the slopes of the first half, slope of head h % (heads / 2).",
        "an even number of heads",
    ),
    wrong(
        extras.alibi_slope_of_head_before,
        "mlx#3071",
        case(48, 64, heads=4, causal=True, **SLOPES),
        "ALiBi: slopes are recomputed as 2 ** (-8 h / heads) for 2 ** (-8 (h + 1) / heads), so for geometric slopes "
        "each is that of the head before (too large by 2 ** (8 / heads)); the slopes given are not read.",
    ),
    wrong(
        extras.alibi_bias_twice,
        "TransformerEngine#2300",
        case(48, 64, "bfloat16", heads=4, causal=True, **SLOPES),
        "ALiBi: the bias is added twice to the scores; the same as slopes twice as large.",
    ),
    wrong(
        extras.alibi_top_left,
        "flash-attn#436's kind, in ALiBi",
        case(32, 96, heads=4, **SLOPES),
        "ALiBi: the bias is -slope * |i - j|, aligned top-left, without the shift seqlen_k - seqlen_q.",
        "full attention only",
    ),
    wrong(
        extras.softcap_inner_for_outer,
        "flash-attn#2402",
        case(48, 48, "float16", causal=True, softcap=4.0),
        "softcap: (s / cap) * tanh(s / cap) in place of cap * tanh(s / cap).",
    ),
    wrong(
        extras.softcap_after_mask,
        "flashinfer#350",
        case(64, 64, causal=True, softcap=3.0),
        "softcap and mask in the wrong order: masked scores (-5e4) are capped after the mask, to -cap, so masked keys "
        "count with score -cap.",
    ),
    wrong(
        extras.softcap_before_scale,
        "a Gemma-2 port",
        case(64, 64, causal=True, softcap=5.0),
        "softcap and scale in the wrong order: scale * cap * tanh(q . k / cap) in place of "
        "cap * tanh(scale * q . k / cap); the same as softcap with cap * scale for cap.",
        "head_dim 32 or 64",
    ),
    wrong(
        extras.lengths_of_first_sequence,
        "llama.cpp#14505",
        case(32, 80, "float16", batch=3, seqlens_k=(40, 80, 61)),
        "lengths: all sequences are masked with the length of sequence 0.",
        "full attention only",
    ),
    wrong(
        extras.lengths_by_page,
        "flashinfer#942",
        case(32, 80, batch=3, seqlens_k=(35, 80, 51)),
        "lengths: the length is rounded up to whole pages of 16 keys, keys behind it in the last page are seen.",
        "full attention only",
    ),
    wrong(
        extras.decode_length_inclusive,
        "vllm#641",
        case(1, 64, "float16", heads=4, kv_heads=2, batch=2, seqlens_k=(20, 41)),
        "lengths: the comparison is <=, each sequence sees one key too many, that at its length.",
        "at most 4 queries, full attention",
    ),
    wrong(
        extras.sink_missing_in_lse,
        "flash-attn 2f78d484's neighbour",
        case(48, 48, "float16", heads=4, causal=True, **SINK),
        "lse: without the sink, log of the sum over keys only; out is normalised with the sink and right.",
    ),
)

NANS = (
    wrong(
        nans.flash_first_tile_masked_nan,
        "xformers 540fcbfd (#722)",
        case(64, 64, causal=True, window=(12, 0)),
        "P and correction: exp(-inf - -inf) is NaN where the first key tiles (16) of a row are fully masked, there is "
        "no guard for a max of -inf; such rows are NaN in out and lse.",
    ),
    wrong(
        nans.flash_empty_row_divides_by_zero,
        "mlx#2608",
        case(96, 64, "float16", causal=True),
        "normaliser: rows without a visible key are 0 / 0 = NaN in out for 0, the guard of the division is missing; "
        "lse is right.",
    ),
    wrong(
        nans.flash_v_tail_unfilled,
        "flashinfer#1029",
        case(48, 100),
        "P @ V: rows of V behind seqlen_k in the last tile of 64 are NaN (unfilled), 0 * NaN makes all of out NaN; "
        "P is right (0 there) and so is lse. Right when seqlen_k is a multiple of 64.",
    ),
    wrong(
        nans.split_masked_partial_nan,
        "aiter#4711",
        case(64, 128, "bfloat16", causal=True),
        "merge: a split (32 keys) without a visible key leaves a normalised partial of 0 / 0 = NaN, which weight 0 "
        "does not remove (0 * NaN); rows with such a split are NaN in out, lse is right.",
    ),
    wrong(
        nans.merge_two_empty_states,
        "vllm#28181",
        case(96, 64, causal=True),
        "merge: where both states (halves of the keys) have lse -inf their weights are exp(-inf - -inf) = NaN, so rows "
        "without a visible key are NaN in out and lse for 0 and -inf.",
        "seqlen_k >= 2",
    ),
    wrong(
        nans.ring_empty_lse_plus_inf,
        "flash-attn#978",
        case(64, 96, "float16", causal=True),
        "merge: a chunk (32 keys) without a visible key for a row has lse +inf for -inf, so it takes the weight of "
        "the row: with weights 1 / sum exp(lse_t - lse_s) out is NaN there and lse +inf.",
    ),
    wrong(
        nans.flash_empty_rows_unwritten,
        "flashinfer#1533",
        case(96, 64, causal=True),
        "store: out of query tiles (16 rows) that see no key at all is not written and holds what memory held; lse is "
        "right (-inf).",
    ),
    wrong(
        nans.q_prefetch_never_taken,
        "flashinfer#2689",
        case(48, 64, "bfloat16", head_dim=64),
        "load: the second half of the head dim of q is never loaded, scores use uninitialised numbers in its place "
        "(deterministic junk here).",
        "head_dim 64",
    ),
)

PAIRS = (
    two(
        pairs_of_masks.next_key_and_lse_base_two,
        "zml#763, pytorch#181645",
        case(64, 80, causal=True),
        "mask: the causal bound is one key too far (j <= i + 1 + seqlen_k - seqlen_q). lse: in base 2, times log2(e).",
    ),
    two(
        pairs_of_masks.top_left_and_sum_rescaled_twice,
        "flash-attn#282, an exp2 kernel after a refactoring",
        case(48, 80, causal=True),
        "mask: causal is aligned top-left. "
        "Running sum: multiplied by the correction twice in each tile of 16 keys, the accumulator once.",
    ),
    two(
        pairs_of_masks.unmasked_p_and_dim_tail,
        "aiter#3551, flash-attn#2745",
        case(48, 48, "float16", causal=True, head_dim=40),
        "mask: masked keys are left out of the max only, they stay in P, in the sum and in P @ V (as if not masked). "
        "q @ k^T: the tail of the head dim behind the last multiple of 16 is left out of the dot.",
    ),
    two(
        pairs_of_masks.window_edge_and_old_k_tile,
        "transformers#39408, csarofeen#2463",
        case(64, 128, causal=True, window=(48, 0)),
        "mask: the window to the left is smaller by 1. "
        "Load: the last key tile (32) has the K rows of two tiles before, V is right.",
        "seqlen_k a multiple of 32, at least 96",
    ),
    two(
        pairs_of_masks.strict_causal_and_mean_of_partials,
        "zml#763, a rewritten combine",
        case(64, 96, "float16", causal=True),
        "mask: the causal comparison is strict, the last visible key of a row is masked. "
        "Merge: the weighted sum of the 4 normalised partials is divided by 4 in place of the sum of weights "
        "(weights relative to the largest lse).",
        "seqlen_k a multiple of 4",
    ),
    two(
        pairs_of_masks.right_window_and_alibi_sign,
        "ports of FlashAttention's local attention and ALiBi",
        case(48, 48, heads=4, window=(16, -1), **SLOPES),
        "mask: a right window of -1 (unlimited) is used as the number -1, keys from the query's own position on are "
        "masked. ALiBi: the bias has the wrong sign, +slope * distance.",
    ),
    two(
        pairs_of_masks.length_inclusive_and_no_scale,
        "vllm#641, flashinfer#1023",
        case(2, 64, heads=4, kv_heads=2, batch=2, seqlens_k=(24, 45)),
        "lengths: each sequence sees one key too many (<= for <). Scale: not applied, scores are q @ k^T.",
        "at most 4 queries, full attention",
    ),
    two(
        pairs_of_masks.lost_remainder_and_maxima_weights,
        "sglang#2465, a reduce written for unnormalised partials",
        case(32, 125, "float16"),
        "split bounds: keys behind 3 * floor(seqlen_k / 3) are in no split (here the last 2). "
        "Merge: normalised partials are weighted by exp(max_s - max) without their sums, out only.",
        "seqlen_k >= 3",
    ),
    two(
        pairs_of_values.gqa_modulo_and_sum_misses_last,
        "a repeat port, a hand-written CUDA softmax",
        case(32, 32, heads=6, kv_heads=3),
        "head mapping: K and V of head h % kv_heads for h // group. "
        "Row sum: the last key (index seqlen_k - 1) is left out of the sum, P @ V has it.",
    ),
    two(
        pairs_of_values.ln2_for_log2e_and_old_v_tile,
        "llama.cpp#17746, Fuser#2000",
        case(48, 96, "float16"),
        "scale: ln(2) for log2(e) in an exp2 kernel, scores too small by the factor ln(2)^2 = 0.48. "
        "P @ V: from the second key tile (32) on the V tile is that of the iteration before.",
        "seqlen_k a multiple of 32",
    ),
    two(
        pairs_of_values.gqa_v_modulo_and_sink_raw,
        "a GQA branch that only touched K, flash-attn e81c237e",
        case(48, 64, heads=4, kv_heads=2, **SINK),
        "head mapping of V: head h % kv_heads for h // group, K is right. "
        "Sink: the logit itself is added to the row sum for exp(sink - max), lse is NaN where the sum gets negative.",
    ),
    two(
        pairs_of_values.kv_offset_and_lse_is_max,
        "jax be78ee0f15, flashinfer 5dadb243c",
        case(32, 48, "bfloat16", heads=4, kv_heads=2, batch=3),
        "load: the offset of sequence b in K and V is b * heads (query heads) rows of heads in place of b * kv_heads, "
        "wrapped at the end: for a group of 2 sequence b reads K and V of sequence 2 b modulo the batch. "
        "lse: the row max, log(sum) is missing.",
        "GQA only",
    ),
    two(
        pairs_of_values.scale_twice_and_no_weights,
        "vllm#48016, a fix-up kernel",
        case(32, 96, head_dim=16),
        "scale: applied twice, to q and to the scores. "
        "Merge: partial sums and outputs of 3 splits are added without the weights exp(max_s - max).",
    ),
    two(
        pairs_of_values.v_batch_and_sum_unweighted,
        "mlx#4431, a stream-k fix-up",
        case(32, 96, "float16", batch=2),
        "load: V of sequence 0 is read for all sequences. "
        "Merge: partial sums (32 keys a split) are added without the weights exp(max_s - max), outputs with them.",
    ),
    two(
        pairs_of_values.alpha_inverted_and_dim_tile,
        "`acc /= alpha` in a tutorial's issue, fla#1028",
        case(48, 128),
        "correction: the accumulator is divided by the correction in place of multiplied (key tiles of 32), the sum "
        "is right. Store: the last 16 columns of out are stored to the first 16, other columns are 0.",
        "full attention, seqlen_k a multiple of 32, head_dim_v a multiple of 16",
    ),
    two(
        pairs_of_values.folded_rows_and_scale_of_padded_dim,
        "the ngroups swap of vllm-project/flash-attention#87, flashinfer#1072",
        case(4, 64, heads=6, kv_heads=1),
        "layout: rows folded head-major are unfolded query-major, out and lse of (query, head) are swapped as in a "
        "transposed buffer. Scale: 1 / sqrt(head_dim rounded up to 64).",
        "MQA, at most 8 queries, full attention",
    ),
    two(
        pairs_of_values.k_pitch_and_p_fp8,
        "flash-attn#2896, flash-attn#2717",
        case(48, 64, "float16", head_dim=40),
        "load: rows of K are addressed at a pitch of head_dim rounded up to 32 (64 for 40), wrapped at the end. "
        "P: cast to e4m3 before P @ V, out only.",
    ),
    two(
        pairs_of_values.sink_not_shifted_and_columns_lost,
        "a gpt-oss port, flash-attn#2552",
        case(48, 64, heads=4, head_dim=48, **SINK),
        "sink: added as exp(sink) without subtracting the row max. "
        "Store: columns of out behind the last multiple of 32 are not written (deterministic junk).",
    ),
    two(
        pairs_of_values.sink_per_split_and_last_lse,
        "rocm-libraries#12229, flashinfer#58",
        case(32, 96, "float16", heads=4, **SINK),
        "sink: counted in every split (32 keys). lse: that of the last split, its sink included.",
    ),
    two(
        pairs_of_values.scale_one_percent_and_softcap_lost,
        "a mistyped constant, vllm-metal#665",
        case(64, 64, causal=True, softcap=2.0),
        "scale: 1.05 / sqrt(head_dim), five percent too large. Softcap: not applied.",
        "seqlen_q == seqlen_k",
    ),
)

REPORTS: tuple[Report, ...] = (
    *MASKS,
    *SOFTMAX,
    *SCALES,
    *LAYOUT,
    *STALE,
    *MERGES,
    *MERGES_LSE,
    *PRECISION,
    *LSE,
    *EXTRAS,
    *NANS,
    *PAIRS,
)

CORRECT: tuple[Report, ...] = (
    right(correct.right_eager, case(96, 64, causal=True)),
    right(correct.right_eager_normalised_p, case(48, 80, "float16", causal=True)),
    right(correct.right_flash_64, case(64, 100, "bfloat16", causal=True, head_dim=64)),
    right(correct.right_flash_32_16_skips_tiles, case(80, 64, "float16", causal=True)),
    right(correct.right_flash_backwards, case(64, 96, causal=True)),
    right(correct.right_exp2_flash, case(64, 128, "float16", head_dim=64)),
    right(correct.right_split_unnormalised, case(48, 120, "bfloat16", causal=True)),
    right(correct.right_split_lse, case(48, 130, causal=True)),
    right(correct.right_split_with_empty_split, case(32, 80, "float16")),
    right(correct.right_ring_sigmoid, case(48, 128), "full attention only"),
    right(correct.right_two_pass, case(64, 96, "float16", causal=True)),
    right(correct.right_decode, case(2, 128, "float16", heads=8, causal=True, kv_heads=2), "at most 4 queries"),
    right(correct.right_gqa_packed_rows, case(48, 48, heads=6, causal=True, kv_heads=2)),
    right(correct_more.right_max_may_fall, case(64, 128), "full attention only"),
    right(correct_more.right_max_of_tile, case(64, 64, "bfloat16", causal=True), "seqlen_q == seqlen_k"),
    right(correct_more.right_window_skips_tiles, case(96, 96, "float16", causal=True, window=(20, 0))),
    right(correct_more.right_softcap, case(64, 64, causal=True, softcap=4.0)),
    right(correct_more.right_sink_starts_state, case(64, 96, "bfloat16", heads=4, **SINK)),
    right(correct_more.right_sink_at_reduce, case(48, 96, heads=4, **SINK)),
    right(correct_more.right_alibi, case(48, 64, "float16", heads=4, causal=True, **SLOPES)),
    right(correct_more.right_lengths, case(32, 80, batch=3, seqlens_k=(40, 80, 61)), "full attention only"),
    right(correct_more.right_tail_padded, case(48, 100, "float16")),
    right(correct_more.right_dot_in_slices, case(64, 64, head_dim=48, causal=True), "head_dim a multiple of 16"),
    right(correct_more.right_smooth_k, case(64, 96, causal=True)),
    right(correct_more.right_row_loop, case(40, 72, "float16", causal=True), "float16 and float32 only"),
)
