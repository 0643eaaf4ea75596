"""Faults of the kernels for Hopper: products of warp groups, buffers, the barriers that copies come to."""

from typing import Any

from campaigns.faults.conditions import grouped
from campaigns.faults.online_softmax import online_softmax
from workbench.case.case import Case
from workbench.case.formats import TILE_ROWS
from workbench.cuda.faults.conditions import scaled
from workbench.cuda.faults.fault import Fault
from workbench.cuda.faults.tensor_cores import LONG, SMALL, TILES, scales_of_keys

#: blocks with two consumers, and several tiles of keys
PAIR: dict[str, Any] = {"block_q": 128, "block_k": 64}
_V_BEFORE = "place = V_AT + before * BLOCK_K * HEAD_DIM + i * 16 * 64\n                        "
_WAIT_S = "                hopper.wgmma_wait(1, s, S_REGISTERS)\n"


def _tiles(least: int) -> Any:
    """Whether a row sees so many tiles of keys."""
    return lambda case: case.window is None and (case.seqlen_k - 1) // (case.block_k or 64) >= least - 1


def _partial(case: Case) -> bool:
    """Whether the last tile has keys that there are not, which no mask hides; their scores are 0, and no maximum."""
    plain = not case.causal and case.window is None and case.distribution == "normal"
    return plain and case.seqlen_k % (case.block_k or 64) > 0


def _scales_of_queries(case: Case) -> bool:
    """Whether queries have more than one scale."""
    return case.seqlen_q > TILE_ROWS


FAULTS: tuple[Fault, ...] = (
    # buffers
    Fault(
        "wgmma-k-stage-not-flipped",
        "flash_wgmma",
        "K is always read from the first buffer",
        "k_place = K_AT + stage * BLOCK_K * HEAD_DIM + i // 4",
        "k_place = K_AT + i // 4",
        ("qk",),
        needs=SMALL,
        shows=_tiles(2),
        source="synthetic",
    ),
    Fault(
        "wgmma-v-of-this-stage",
        "flash_wgmma",
        "probs of the tile before are multiplied by V of this tile",
        "place = V_AT + before * BLOCK_K * HEAD_DIM + i * 16 * 64",
        "place = V_AT + stage * BLOCK_K * HEAD_DIM + i * 16 * 64",
        (),
        finding="early-read",
        needs=SMALL,
        shows=_tiles(2),
        source="synthetic",
    ),
    Fault(
        "wgmma-parity-not-flipped",
        "flash_wgmma",
        "the parity of V's barrier stays 0 when the ring of buffers wraps",
        "hopper.mbarrier_wait(bars, V_FULL + before, turn_before & 1)",
        "hopper.mbarrier_wait(bars, V_FULL + before, 0)",
        (),
        finding="early-read",
        needs=SMALL | LONG,
        source="synthetic",
    ),
    Fault(
        "wgmma-half-the-bytes",
        "flash_wgmma",
        "K counts as arrived after half of its bytes",
        "hopper.mbarrier_expect_tx(bars, K_FULL + stage, BLOCK_K * HEAD_DIM * 2)",
        "hopper.mbarrier_expect_tx(bars, K_FULL + stage, BLOCK_K * HEAD_DIM)",
        (),
        finding="byte-count",
        needs=SMALL,
        source="synthetic",
    ),
    Fault(
        "wgmma-more-bytes-than-come",
        "flash_wgmma",
        "V's barrier expects twice the bytes that arrive",
        "hopper.mbarrier_expect_tx(bars, V_FULL + stage, BLOCK_K * HEAD_DIM * 2)",
        "hopper.mbarrier_expect_tx(bars, V_FULL + stage, BLOCK_K * HEAD_DIM * 4)",
        (),
        finding="deadlock",
        needs=SMALL,
        source="synthetic",
    ),
    Fault(
        "wgmma-one-consumer-empties",
        "flash_wgmma",
        "K is overwritten as soon as one consumer has multiplied it",
        "hopper.mbarrier_init(bars, K_EMPTY + stage, 4 * CONSUMERS)",
        "hopper.mbarrier_init(bars, K_EMPTY + stage, 4)",
        (),
        finding="early-write",
        needs=PAIR | LONG,
        source="synthetic",
    ),
    Fault(
        "wgmma-scores-not-waited-for",
        "flash_wgmma",
        "scores are read while their product is in flight: the wait allows two groups, not one",
        _WAIT_S,
        _WAIT_S.replace("(1,", "(2,"),
        (),
        finding="early-read",
        needs=SMALL,
        shows=_tiles(2),
        source="synthetic",
    ),
    Fault(
        "wgmma-barriers-not-fenced",
        "flash_wgmma",
        "copies may not see initialised barriers: the fence is missing",
        "hopper.fence_barrier_init()\n",
        "pass\n",
        (),
        finding="missing-fence",
        needs=SMALL,
        source="synthetic",
    ),
    # products
    Fault(
        "wgmma-q-of-first-consumer",
        "flash_wgmma",
        "both consumers multiply the first 64 rows of Q",
        "q_at = Q_AT + consumer * 64 * ROW",
        "q_at = Q_AT",
        ("qk",),
        needs=PAIR,
        shows=lambda case: case.seqlen_q > 64,
        source="synthetic",
    ),
    Fault(
        "wgmma-second-dims-of-v",
        "flash_wgmma",
        "dims 64 to 127 of V are read one row of tiles too early",
        _V_BEFORE + "PV(acc, p, 4 * i, tiles, place, V_TILE_BYTES, 1)\n",
        _V_BEFORE + "PV(acc, p, 4 * i, tiles, place, 1024, 1)\n",
        ("acc",),
        needs=SMALL | {"head_dim": 128},
        shows=_tiles(2),
        source="synthetic",
    ),
    Fault(
        "wgmma-scores-accumulate",
        "flash_wgmma",
        "the product with K accumulates onto the scores of the tile before",
        "QK(s, tiles, q_place, tiles, k_place, i)",
        "QK(s, tiles, q_place, tiles, k_place, 1)",
        ("qk",),
        needs=SMALL,
        shows=_tiles(2),
        source="synthetic",
    ),
    Fault(
        "wgmma-kv-head-modulo",
        "flash_wgmma",
        "query head h reads kv head h % kv_heads",
        "kv_h = h // (q.shape[1] // k.shape[1])",
        "kv_h = h % k.shape[1]",
        ("qk", "acc"),
        needs=SMALL,
        shows=grouped,
        source="native-sparse-attention-triton#27",
    ),
    # softmax
    Fault(
        "wgmma-last-partial-tile",
        "flash_wgmma",
        "padding keys, zero-filled by the copy, get probs",
        "                    last = seqlen_k - 1\n",
        "                    last = seqlen_k + BLOCK_K\n",
        ("row_sum",),
        needs=SMALL,
        shows=_partial,
        source="synthetic",
    ),
    Fault(
        "wgmma-probs-before-their-product",
        "flash_wgmma",
        "probs are packed into registers that a product in flight reads",
        "hopper.wgmma_wait(0, acc, ACC_REGISTERS)\n                    if lane == 0:",
        "hopper.wgmma_wait(1, acc, ACC_REGISTERS)\n                    if lane == 0:",
        (),
        finding="early-write",
        needs=SMALL,
        shows=_tiles(2),
        source="synthetic",
    ),
    # float8
    Fault(
        "fp8-wgmma-order-of-keys",
        "fp8_wgmma",
        "keys of V and of probs are in different orders in a register",
        "tiles[at + even + 8 * ROW], tiles[at + odd + 8 * ROW]",
        "tiles[at + odd + 8 * ROW], tiles[at + even + 8 * ROW]",
        ("acc",),
        needs=SMALL,
        shows=lambda case: case.seqlen_k > 9,
        source="synthetic",
    ),
    Fault(
        "fp8-wgmma-turned-v-not-fenced",
        "fp8_wgmma",
        "products may not see the V that warps have transposed: the fence is missing",
        "hopper.fence_async_shared()\n",
        "pass\n",
        (),
        finding="missing-fence",
        needs=SMALL,
        source="synthetic",
    ),
    Fault(
        "fp8-wgmma-scale-of-k-missing",
        "fp8_wgmma",
        "scores are multiplied by q's scale only, not k's",
        "libdevice.fmul_rn(scale_q[h], scale_k[kv_h])",
        "scale_q[h]",
        ("qk",),
        needs=SMALL | {"scale_of": "head"},
        source="synthetic",
    ),
    Fault(
        "fp8-wgmma-tiles-added-twice",
        "fp8_wgmma",
        "a product with V accumulates onto that of the tile before, which is already in the accumulator",
        "PV(pv, p, 4 * i, tiles, V_AT + before * HEAD_DIM * ROW + i * 8, i)",
        "PV(pv, p, 4 * i, tiles, V_AT + before * HEAD_DIM * ROW + i * 8, 1)",
        ("acc",),
        needs=SMALL | LONG,
        source="synthetic",
    ),
    Fault(
        "fp8-wgmma-q-scale-of-first-tile",
        "fp8_wgmma",
        "every block of queries uses the scale of the first tile",
        "scale_q[b, h, first_row, 0]",
        "scale_q[b, h, 0, 0]",
        ("qk",),
        needs=TILES | {"seqlen_q": 150},
        shows=_scales_of_queries,
        source="synthetic",
    ),
    Fault(
        "fp8-wgmma-k-scale-at-index-of-tile",
        "fp8_wgmma",
        "per-row scales of K are read as if per kernel tile",
        "scale_k[b, kv_h, first_key, 0]",
        "scale_k[b, kv_h, tile, 0]",
        ("qk",),
        needs=TILES,
        shows=scales_of_keys,
        source="synthetic",
    ),
    Fault(
        "fp8-wgmma-last-v-scale-kept",
        "fp8_wgmma",
        "the last product with V uses the scale of the one before",
        "                pv_unit = scale_v[b, kv_h, (end_tile - 1) * BLOCK_K, 0]\n",
        "                pass\n",
        ("acc",),
        needs=TILES | {"block_k": 128},
        shows=scales_of_keys,
        source="synthetic",
    ),
    # ---- softmax and results
    *online_softmax("flash_wgmma", "wgmma", 8, -(1 << 16), {"dtype": "bfloat16"}),
    Fault(
        "wgmma-softcap-of-raw-scores",
        "flash_wgmma",
        "the softcap is applied before the scale",
        "                    s[i] = libdevice.fmul_rn(s[i], scale)\n",
        "                    pass\n",
        ("capped",),
        needs={"softcap": 5.0},
        shows=scaled,
        source="synthetic",
    ),
    # of the fraction of float8 (e4m3) 3 bits, of float32 23
    *online_softmax("fp8_wgmma", "fp8-wgmma", 8, -(1 << 20)),
)
