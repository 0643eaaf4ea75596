"""Split-K on tensor cores as the host knows it: its tiles, what a build binds capitals to, its launches, its splits."""

from dataclasses import dataclass, replace
from typing import Any

from workbench.case.case import Case
from workbench.case.contract import Contract
from workbench.cuda import flash_mma_build, ptx
from workbench.cuda.device import CONVERSIONS
from workbench.cuda.flash_mma_build import DTYPES
from workbench.cuda.fragments_build import DIMS_AT_ONCE, TensorCores, tiled
from workbench.cuda.kernel import Kernel, Launch
from workbench.refusal import Refusal

__all__ = ["DIMS_AT_ONCE", "DTYPES", "Constants", "contract", "fills", "launches", "resolve"]

#: rows of fragments; a warp takes 16 keys of a tile or more, and WARPS of them are enough
BLOCKS_Q, BLOCKS_K, WARPS = (16, 32, 64), (16, 32, 64, 128), 4
#: keys in a tile: of 64 a warp has 16, a fragment; and tiles of K and of V that a block has in shared memory
DEFAULT_BLOCK_K, STAGES = 64, 2
#: blocks along y of a grid
MOST_TILES = 65535
#: blocks for whose registers a multiprocessor has room: 65536 of them, 120 for each of 128 threads
BLOCKS_BY_REGISTERS = 4
#: bytes of shared memory of a block beside its tiles: probs, maxima and sums, and what a launch reserves
BESIDE_TILES = 4096
#: blocks for each multiprocessor that have bytes enough under way at head_dim 128: with fewer, memory waits for them.
#: On an H100 192 blocks, 1.45 for each, reach 83 % of the bandwidth that 256 do
ENOUGH_BLOCKS = 1.75
#: splits beyond which merging them takes longer than what it saves
MOST_SPLITS = 256


@dataclass(frozen=True)
class Constants(TensorCores):
    """The constants of a build."""

    stages: int = STAGES  #: tiles of K, and of V, that are in shared memory

    @property
    def warps(self) -> int:
        """Warps of a block: one for each 16 keys of a tile, WARPS at most."""
        return min(WARPS, self.block_k // 16)

    @property
    def threads(self) -> int:
        """Threads in a block."""
        return 32 * self.warps

    @property
    def rows(self) -> int:
        """Rows of shared memory, of tiles of Q, K and V."""
        return self.block_q + 2 * self.stages * self.block_k

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block for its tiles, which a launch asks for; there are probs besides, and a maximum and a
        sum for each row and warp: 18 KiB at most.
        """
        return 2 * self.rows * self.head_dim

    def names(self) -> dict[str, Any]:
        """Capital name in the kernel's source -> its value."""
        warp_keys, warp_dims, lane_rows = self.block_k // self.warps, self.head_dim // self.warps, self.block_q // 8
        return super().names() | {
            "STAGES": self.stages,
            # groups of copies are asked for in the order K, V, K, ...: behind those that a product needs
            "K_PENDING": 2 * self.stages - 2,
            "V_PENDING": 2 * self.stages - 1,
            "WARPS": self.warps,
            "WARP_KEYS": warp_keys,
            "WARP_DIMS": warp_dims,
            "LANE_ROWS": lane_rows,
            # of a product over dims, that are unrolled: all of them where registers suffice
            "DIM_STEPS": self.head_dim // 16 if self.block_q <= 32 else 2,
            "LANE_DIMS": self.head_dim // 32,
            "ROWS_AT_ONCE": self.threads * DIMS_AT_ONCE // self.head_dim,
            "PROBS_SIZE": self.block_q * self.block_k // 2,
            "STATES_SIZE": self.block_q * self.warps,
            "ACC_SIZE": self.head_dim * self.warps,
            "Q_AT": 0,
            "K_AT": self.block_q,
            "V_AT": self.block_q + self.stages * self.block_k,
            # bits of a row by which its chunks of 8 probs change places: so many chunks has a row at least
            "PROBS_SWIZZLE": min(8, self.block_k // 8) - 1,
            "S_REGISTERS": lane_rows * warp_keys // 4,
            "V_REGISTERS": warp_dims // 4,
            "ACC_REGISTERS": lane_rows * warp_dims // 4,
            "STORE": CONVERSIONS[self.dtype][1],
            "LOAD": ptx.ld_v2_f32 if self.head_dim == 64 else ptx.ld_v4_f32,
        }


def resolve(kernel: Kernel, case: Case) -> Case:
    """`case` with its tiles, in 2 splits where none are given; Refusal where the kernel cannot run it."""
    rows = case.seqlen_q * (case.heads // case.kv_heads)
    block_q = next((size for size in BLOCKS_Q if size >= rows), BLOCKS_Q[-1])
    case = flash_mma_build.taken(kernel, case.but(pack_gqa=False)).but(pack_gqa=True, splits=case.splits or 2)
    case = tiled(kernel, case, (block_q, DEFAULT_BLOCK_K), BLOCKS_Q, BLOCKS_K)
    if (tiles := launches(case)[0].grid[1]) > MOST_TILES:
        raise Refusal(
            f"kernel {kernel.name} is for few queries: at most {MOST_TILES} tiles of {case.block_q} packed rows "
            f"over all kv heads; got {tiles}"
        )
    return case


def launches(case: Case) -> list[Launch]:
    """A block for each split, tile of packed rows, kv head and batch; then one for each row."""
    assert case.block_q is not None and case.splits is not None
    query_tiles = -(-case.seqlen_q * (case.heads // case.kv_heads) // case.block_q)
    partials = ("partial_O", "partial_max", "partial_sum")
    return [
        Launch("split_mma_forward", (case.splits, case.kv_heads * query_tiles, case.batch), partials),
        Launch("split_mma_reduce", (case.seqlen_q, case.heads, case.batch)),
    ]


def fills(case: Case, multiprocessors: int, shared_bytes: int) -> int:
    """The number of splits with which a GPU ends first, the least where several do; `shared_bytes` are those of a
    multiprocessor.

    Memory serves as many tiles at a time as blocks are there, so that a wave of blocks takes a time that is in
    proportion to them, but no less than that of ENOUGH_BLOCKS; a block takes one turn more than it has tiles, in which
    nothing of its own is under way. As in FlashAttention's `num_splits_heuristic` a last wave of few blocks is what
    costs: on an H100 (396 blocks at once) 512 blocks reach 79 to 87 % of the bandwidth that 256, 384 or 768 do.
    """
    first, _ = launches(case)
    assert case.block_k is not None
    _, rows, batch = first.grid
    tiles = -(-case.seqlen_k // case.block_k)
    by_memory = shared_bytes // (Constants.of(case).shared_bytes + BESIDE_TILES)
    slots, enough = max(1, min(by_memory, BLOCKS_BY_REGISTERS)) * multiprocessors, ENOUGH_BLOCKS * multiprocessors

    def time(splits: int) -> float:
        waves, rest = divmod(rows * batch * splits, slots)
        return (waves * slots + (max(rest, min(enough, slots)) if rest else 0)) * (-(-tiles // splits) + 1)

    return min(range(1, min(tiles, MOST_SPLITS) + 1), key=time)


def contract(case: Case) -> Contract:
    """The contract of a resolved case: the arithmetic of `flash_mma`, but that lanes add up their sums at each tile,
    and that out is a quotient.
    """
    return replace(flash_mma_build.contract(case), splits=case.splits, row_sum_lanes=1, fast_math=False)
