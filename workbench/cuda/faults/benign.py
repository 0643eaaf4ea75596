"""Changes that are no faults: other bits of correct kernels, or other values of what nobody uses.

A judge must not call a kernel with one of them wrong. Where the change breaks a promise of the kernel's contract that
it need not have made, such as the order of its tiles, `promises` says what it promises instead.
"""

from collections.abc import Mapping

from workbench.case.case import Case
from workbench.cuda.faults.conditions import several_splits, several_tiles, tiles_left_over
from workbench.cuda.faults.fault import PARTIAL, Fault


def _even(case: Case) -> dict[str, tuple[int, ...]]:
    """Splits as even as whole tiles allow."""
    assert case.block_k is not None and case.splits is not None
    tiles = -(-case.seqlen_k // case.block_k)
    ends = [split * tiles // case.splits * case.block_k for split in range(case.splits)]
    return {"split_bounds": (*ends, case.seqlen_k)}


BENIGN: Mapping[str, Fault] = {
    fault.id: fault
    for fault in (
        # other orders of what is summed
        Fault(
            "dims-descending",
            "flash",
            "the inner product is summed from the last dim to the first",
            "for d in range(head_dim):",
            "for d in range(head_dim - 1, -1, -1):",
        ),
        Fault(
            "acc-keys-descending",
            "flash",
            "probs @ v is summed from the last key of a tile to the first",
            "            for c in range(BLOCK_K):\n                p = s_p[r, c]\n",
            "            for c in range(BLOCK_K - 1, -1, -1):\n                p = s_p[r, c]\n",
        ),
        Fault(
            "probs-descending",
            "flash",
            "a lane adds its probs from the last key of a tile to the first",
            "        for c in range(lane, BLOCK_K, LANES):\n            p = ",
            "        for c in range(BLOCK_K - LANES + lane, -1, -LANES):\n            p = ",
        ),
        Fault(
            "tiles-descending",
            "flash",
            "key tiles are visited from the last to the first",
            "for tile in range(first_tile, tiles):",
            "for tile in range(tiles - 1, first_tile - 1, -1):",
            shows=several_tiles,
            promises=lambda case: {"tile_order": "descending"},
        ),
        Fault(
            "merge-descending",
            "split_k",
            "merge_sum adds the splits from the last to the first",
            "    for s in range(splits):\n        l +=",
            "    for s in range(splits - 1, -1, -1):\n        l +=",
            shows=several_splits,
        ),
        Fault(
            "splits-even",
            "split_k",
            "tiles are divided evenly among the splits; the last split is not shorter",
            "        tiles_per_split = (most_tiles + splits - 1) // splits\n"
            "        first_tile, tiles = split * tiles_per_split, min((split + 1) * tiles_per_split, tiles)\n",
            "        # the first splits take the tiles that are left\n"
            "        first_tile, tiles = split * tiles // splits, (split + 1) * tiles // splits\n",
            file=PARTIAL,
            shows=tiles_left_over,
            promises=_even,
            source="aiter#4378",
        ),
        # other arithmetic of the same precision
        Fault(
            "exp2-of-product",
            "flash",
            "exp(x) is exp2(x * log2(e))",
            "p = math.exp(s_p[r, c] - m_safe)",
            "p = libdevice.exp2f((s_p[r, c] - m_safe) * float32(1.4426950408889634))",
            promises=lambda case: {"exp_ulps_per_x": 1.0},
            source="flash-attention#2595",
        ),
        Fault(
            "scores-fused",
            "flash",
            "the inner product uses FMA: one rounding per term",
            "dot += s_q[r, d] * s_kv[c, d]",
            "dot = libdevice.fmaf_rn(s_q[r, d], s_kv[c, d], dot)",
        ),
        # values that nobody uses
        Fault(
            "unused-rows-one",
            "flash",
            "tiles are padded with 1, not 0; padding has no weight",
            "            tile[r, d] = float32(0)\n",
            "            tile[r, d] = float32(1)\n",
            source="flashinfer#3890",
        ),
        Fault(
            "sum-begins-at-1",
            "flash",
            "the running sum starts at 1; the first correction makes it 0",
            "    l = float32(0)\n    if SINKS",
            "    l = float32(1)\n    if SINKS",
            source="flashinfer#27",
        ),
        Fault(
            "tile-max-carried",
            "flash",
            "the max of a tile starts from the running max, not from -inf",
            "        tile_max = NEG_INF\n        for c",
            "        tile_max = m\n        for c",
        ),
        Fault(
            "masked-tile-first",
            "flash",
            "a tile past the last key is visited first; all its keys are masked",
            "    for tile in range(first_tile, tiles):\n        first_key = tile * BLOCK_K\n",
            "    for visit in range(-1, tiles):\n"
            "        tile = max(visit, 0); first_key = (tile if visit == tile else tiles) * BLOCK_K\n",
            source="flashinfer#563",
        ),
        Fault(
            "mma-pairs-swapped",
            "fp8",
            "adjacent dims are swapped in the fragments of both Q and K",
            "(int(tile[high]) & 0xFFFF) << 16 | int(tile[low]) & 0xFFFF",
            "(int(tile[low]) & 0xFFFF) << 16 | int(tile[high]) & 0xFFFF",
            needs={"scores": "mma"},
        ),
        # other blocks, the same work
        Fault(
            "blocks-batch-first",
            "flash",
            "blocks map to pairs of batch and head in another order",
            "    b, h = cuda.blockIdx.z, cuda.blockIdx.y\n",
            "    pair = cuda.blockIdx.z * q.shape[1] + cuda.blockIdx.y; b, h = pair % q.shape[0], pair // q.shape[0]\n",
            source="cutlass#2291",
        ),
        Fault(
            "blocks-split-first",
            "split_k",
            "blocks map to pairs of head and split in another order",
            "h, split = cuda.blockIdx.y // splits, cuda.blockIdx.y % splits",
            "h, split = cuda.blockIdx.y % q.shape[1], cuda.blockIdx.y // q.shape[1]",
            file=PARTIAL,
        ),
    )
}
