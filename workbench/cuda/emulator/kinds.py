"""What a thread may wait for, as the small integers that the compiled scheduler reads."""

# Block-wide: every thread that has not exited must arrive at the same site.
SYNCTHREADS, SYNCTHREADS_COUNT, SYNCTHREADS_AND, SYNCTHREADS_OR = 1, 2, 3, 4
# Warp-wide: the lanes named by a mask meet.
SYNCWARP, SHFL, SHFL_UP, SHFL_DOWN, SHFL_XOR, ALL, ANY, EQ, BALLOT = 10, 11, 12, 13, 14, 15, 16, 17, 18
# Warp-wide without a mask: whichever lanes arrive together.
ACTIVEMASK = 19
# Warp-wide again: which lanes offer the same bits.
MATCH_ANY, MATCH_ALL = 30, 31

FIRST_WARP_KIND = SYNCWARP

# Name in `numba.cuda` -> kind.
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
}
