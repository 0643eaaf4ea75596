"""What a thread may wait for, as the small integers that the compiled scheduler reads."""

# Block-wide: every thread that has not exited must arrive at the same site.
SYNCTHREADS, SYNCTHREADS_COUNT, SYNCTHREADS_AND, SYNCTHREADS_OR = 1, 2, 3, 4
# Of a thread or a warp group, with operations of `workbench.cuda.hopper`.
MBARRIER_WAIT, NAMED_BARRIER, WGMMA_WAIT = 5, 6, 7
# Warp-wide: the lanes named by a mask meet.
SYNCWARP, SHFL, SHFL_UP, SHFL_DOWN, SHFL_XOR, ALL, ANY, EQ, BALLOT = 10, 11, 12, 13, 14, 15, 16, 17, 18
# Warp-wide without a mask: whichever lanes arrive together.
ACTIVEMASK = 19
# Warp-wide again: which lanes offer the same bits.
MATCH_ANY, MATCH_ALL = 20, 21
# Warp-wide, one and the same instruction in all 32 lanes (``.aligned`` in PTX).
MMA_F16, MMA_BF16, MMA_E4M3, MMA_E5M2, MMA_E4M3_E5M2, MMA_E5M2_E4M3 = 22, 23, 24, 25, 26, 27
LDMATRIX, LDMATRIX_TRANS = 28, 29

FIRST_ASYNC_KIND = MBARRIER_WAIT
FIRST_WARP_KIND = SYNCWARP
FIRST_ALIGNED_KIND = MMA_F16

# Name in `numba.cuda`, or after "ptx." in `workbench.cuda.ptx`, or after "hopper." in `workbench.cuda.hopper` -> kind.
KINDS = {
    "syncthreads": SYNCTHREADS,
    "syncthreads_count": SYNCTHREADS_COUNT,
    "syncthreads_and": SYNCTHREADS_AND,
    "syncthreads_or": SYNCTHREADS_OR,
    "syncwarp": SYNCWARP,
    "shfl_sync": SHFL,
    "shfl_up_sync": SHFL_UP,
    "shfl_down_sync": SHFL_DOWN,
    "shfl_xor_sync": SHFL_XOR,
    "all_sync": ALL,
    "any_sync": ANY,
    "eq_sync": EQ,
    "ballot_sync": BALLOT,
    "activemask": ACTIVEMASK,
    "match_any_sync": MATCH_ANY,
    "match_all_sync": MATCH_ALL,
    "hopper.mbarrier_wait": MBARRIER_WAIT,
    "hopper.named_barrier": NAMED_BARRIER,
    "hopper.wgmma_wait": WGMMA_WAIT,
    "ptx.mma_m16n8k16_f16": MMA_F16,
    "ptx.mma_m16n8k16_bf16": MMA_BF16,
    "ptx.mma_m16n8k32_e4m3": MMA_E4M3,
    "ptx.mma_m16n8k32_e5m2": MMA_E5M2,
    "ptx.mma_m16n8k32_e4m3_e5m2": MMA_E4M3_E5M2,
    "ptx.mma_m16n8k32_e5m2_e4m3": MMA_E5M2_E4M3,
    **{f"ptx.ldmatrix_x{count}": LDMATRIX for count in (1, 2, 4)},
    **{f"ptx.ldmatrix_x{count}_trans": LDMATRIX_TRANS for count in (1, 2, 4)},
}
