"""Causes that were named, and whether each says what is wrong: decided by reading it beside the truth of its report.

A cause is so where it says what the kernel does on every input of the shape of its run: "the last 8 dims" of 40 are
those that a whole number of blocks of 16 leaves. Of NaN it is so where it says which rows are NaN and why.
"""

from collections.abc import Mapping

#: kernel -> the sentence of a cause -> whether it is so
READ: Mapping[str, Mapping[str, bool]] = {
    "alibi_bias_twice": {
        "ALiBi is added twice": True,
    },
    "alibi_slope_of_head_before": {
        "the given slopes are ignored: geometric slopes with exponents from 0 are used": True,
    },
    "alibi_top_left": {
        "ALiBi distances are measured from the top-left diagonal": True,
    },
    "all_heads_read_head_zero": {
        "the wrong head of k and v is read: head 0 for all": True,
    },
    "dot_without_tail_of_dim": {
        "dims of q are read as 0 from 32 on": True,
    },
    "eager_causal_top_left": {
        "the mask is aligned top-left instead of bottom-right": True,
    },
    "eager_offset_unsigned": {
        "no key is masked when there are more queries than keys": True,
    },
    "eager_scale_of_value_dim": {
        "the scale is 1/sqrt(head_dim_v)": True,
    },
    "eager_scale_one_percent": {
        "the scale is 0.178544 = 1.01/sqrt(head_dim), not the requested one": True,
    },
    "eager_sum_bf16": {
        "row_sum is kept in bfloat16: rows are divided by bfloat16 values": True,
    },
    "eager_scores_bf16": {
        "scores are rounded to bfloat16": True,
    },
    "eager_window_left_exclusive": {
        "each query sees one key too few on the left": True,
    },
    "eager_window_needs_causal": {
        "no key is masked": True,
    },
    "exp2_log2e_of_three_digits": {
        "scores are multiplied by 0.998132": True,
    },
    "exp2_log2e_twice": {
        "log2(e) is applied once too often: scores are too large by that factor": True,
    },
    "exp2_sink_without_log2e": {
        "the sink is exponentiated in base 2: 2^sink": True,
    },
    "exp2_without_log2e": {
        "exp2 is used without log2(e): scores are too small by a factor of ln 2": True,
    },
    "flash_acc_not_rescaled": {
        "in acc the correction is not applied (tiles of 16 keys)": True,
    },
    "flash_alpha_of_first_row": {
        "the correction of acc is taken from another row: with the first of each 16 repeated over its block (tiles of 16 keys)": True,  # noqa: E501
    },
    "flash_alpha_of_tile_max": {
        "the correction is exp(old max - this tile's max, or 0 if none of its keys is visible) (tiles of 32 keys)": True,  # noqa: E501
    },
    "flash_causal_folded_off": {
        "no key is masked": True,
    },
    "flash_diagonal_lost": {
        "each query sees one key too few on the right": True,
    },
    "flash_empty_row_divides_by_zero": {
        "out of empty rows (no visible key) is 0 / 0": True,
        "rows that have seen no key yet become NaN: -inf - (-inf) or 0 / 0 is unguarded": True,
    },
    "flash_first_tile_masked_nan": {
        "rows that have seen no key yet become NaN: -inf - (-inf) or 0 / 0 is unguarded (tiles of 16 keys)": True,
    },
    "flash_last_q_tile_shifted": {
        "where out is wrong, actual at q = expected at q - 16, the last 16 of 80 queries, from 64 on": True,
    },
    "flash_p_of_old_max": {
        "probs subtract the max from before this tile (tiles of 64 keys)": True,
    },
    "flash_partial_tile_skipped": {
        "keys past the last full block of 32 are skipped": True,
    },
    "flash_phantom_key": {
        "row_sum starts at 1 (tiles of 32 keys)": True,
        "row_sum starts at 1": True,
    },
    "flash_scale_of_padded_dim": {
        "the scale is 1/sqrt(head_dim rounded up to 64)": True,
    },
    "flash_scale_twice": {
        "the scale is applied twice": True,
    },
    "flash_sum_not_rescaled": {
        "in row_sum the correction is not applied (tiles of 32 keys)": True,
    },
    "flash_tail_by_64": {
        "padding past the last key, up to a full block of 64, is not masked": True,
    },
    "flash_tail_in_sum": {
        "padding past the last key, up to a full block of 32, is not masked": True,
    },
    "flash_tail_seen_when_full": {
        "padding past the last key, up to a full block of 64, is not masked": True,
    },
    "flash_v_tile_of_before": {
        "rows of v are read off by a block (i gets i - 32)": True,
    },
    "flash_window_one_more": {
        "each query sees one key too many on the left": True,
    },
    "flash_window_top_left": {
        "the left edge of the mask (the window) is aligned top-left instead of bottom-right": True,
    },
    "gqa_batch_term_missing": {
        "the wrong batch of k and v is read: index 0 for all": True,
    },
    "gqa_heads_modulo": {
        "the wrong head of k and v is read: h % kv_heads in place of h // group": True,
    },
    "gqa_remap_heads_minus_one": {
        "the wrong head of k and v is read: h // (group - 1)": True,
    },
    "grid_batch_and_head_swapped": {
        "batch and head of q, k and v are swapped in the grid index (z % batch instead of z // heads)": True,
    },
    "launch_k_for_q": {
        "k is read in place of q": True,
    },
    "lengths_of_first_sequence": {
        "every sequence gets the key count of the first; zeros follow each sequence": True,
    },
    "lse_in_base_two": {
        "lse is in base 2, not in base e": True,
    },
    "lse_keeps_fp8_offset": {
        "lse is too large by log(256)": True,
    },
    "lse_never_written": {
        "lse is 0": True,
    },
    "lse_query_major_of_mqa": {
        "lse: [b, h, q] is stored with the strides of [b, q, h]": True,
    },
    "merge_two_empty_states": {
        "rows that have seen no key yet become NaN: -inf - (-inf) or 0 / 0 is unguarded": True,
    },
    "mma_slices_overwritten": {
        "the dot products use only the last 8 dims": True,
    },
    "next_key_and_lse_base_two": {
        "each query sees one key too many on the right": True,
    },
    "out_stored_query_major": {
        "out: [b, h, q, d] is stored with the strides of [b, q, h, d]": True,
    },
    "out_swizzle_differs": {
        "where out is wrong, actual at d = expected at d ^ 8": True,
    },
    "q_memory_assumed_contiguous": {
        "q: [b, s, h, d] is read with the strides of [b, h, s, d]": True,
    },
    "ring_empty_lse_plus_inf": {
        "rows with a fully masked tile become NaN: -inf - (-inf) or 0 / 0 is unguarded (tiles of 32 keys)": True,  # noqa: E501
    },
    "row_sum_slot_shared": {
        "out is divided by the row sum of another row: with the lower half of each 32 repeated": True,
    },
    "scores_row_column_swapped": {
        "qk is stored transposed": True,
    },
    "sink_added_raw": {
        "the sink is added to the sum without exp": True,
    },
    "sink_in_each_split": {
        "probs is multiplied by 1/4 (2 splits, tiles of 64 keys)": True,
    },
    "sink_not_shifted_and_columns_lost": {
        "in lse exp(sink) is added to the sum without subtracting the max": True,
    },
    "sink_of_kv_head": {
        "sinks are indexed by kv head (h // group)": True,
    },
    "softcap_after_mask": {
        "the softcap is applied after the mask: masked scores are -softcap": True,
    },
    "softcap_before_scale": {
        "the softcap is applied before the scale": True,
    },
    "softcap_inner_for_outer": {
        "capped scores are (s / cap) * tanh(s / cap)": True,
    },
    "split_empty_counts_as_zero": {
        "row_sum starts at exp(-max), as if there were a sink of 0 (4 splits, tiles of 32 keys)": True,
    },
    "split_masked_partial_nan": {
        "rows with a fully masked tile become NaN: -inf - (-inf) or 0 / 0 is unguarded (tiles of 32 keys)": True,  # noqa: E501
    },
    "split_no_final_division": {
        "out is not divided by the row sum": True,
    },
    "split_scratch_batch_stride_zero": {
        "batches of out and lse are stored wrong: the last one for all": True,
        "batches of out are stored wrong: the last one for all": True,
    },
    "two_pass_last_tile_unshifted": {
        "in the last tile probs subtract no max at all (tiles of 32 keys)": True,
    },
    "two_pass_weight_to_running_max": {
        "the correction is not applied (tiles of 16 keys)": True,
    },
    "v_addressed_with_k_pitch": {
        "rows of v are read with a stride of 2": True,
    },
    "v_blocks_transposed": {
        "each 8 by 8 block of v is read transposed": True,
    },
    "v_page_once_per_iteration": {
        "rows of v are read with the lower half of each 32 repeated": True,
    },
}
