"""Faults of the kernel on tensor cores with plain loads: registers that the instruction gives a meaning."""

from workbench.cuda.faults.conditions import row_of_other_warp, several_tiles
from workbench.cuda.faults.fault import Fault

FAULTS: tuple[Fault, ...] = (
    Fault(
        "tensor-q-of-first-warp",
        "flash_tensor",
        "every warp multiplies the rows of Q of the first",
        "x, y = warp_row + g, 8 * i + t",
        "x, y = g, 8 * i + t",
        ("qk",),
        shows=row_of_other_warp,
        source="synthetic",
    ),
    Fault(
        "tensor-k-words-neighbours",
        "flash_tensor",
        "a lane takes two neighbouring words of K, dims 2 t to 2 t + 3, not those that are 8 dims apart",
        "s_k[8 * n + g, y + 4])",
        "s_k[8 * n + g, y + 1])",
        ("qk",),
        source="synthetic",
    ),
    Fault(
        "tensor-pair-swapped",
        "flash_tensor",
        "of two keys of V in a register the second is in the lower half, and meets the probs of the first",
        "uint32(tile[key, d] | tile[key + 1, d] << 16)",
        "uint32(tile[key + 1, d] | tile[key, d] << 16)",
        ("acc",),
        source="synthetic",
    ),
    Fault(
        "tensor-no-barrier-before-load",
        "flash_tensor",
        "no barrier before K and V are loaded over those that other warps multiply",
        "cuda.syncthreads()  # protects K and V of the tile before",
        "pass  # protects K and V of the tile before",
        finding="race",
        shows=lambda case: several_tiles(case) and row_of_other_warp(case),
        source="llama.cpp#13438",
    ),
)
