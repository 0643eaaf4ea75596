"""How the tensor cores of each generation of GPUs add up products.

A step adds a block of products and the sum so far. Products are exact; all addends are aligned to the largest exponent
among them and cut off below so many bits beyond float32's last; their sum is exact, and cut off to float32, or to as
many bits as were aligned, where these are fewer (8 bits of exponent and 13 of fraction, of float8). A float16
accumulator rounds to nearest in place of that.

Sources: Fasi, Higham, Mikaitis, Pranesh 2021, "Numerical behavior of NVIDIA tensor cores", PeerJ CS 7:e330, section 4;
MMA-Sim, "Bit-accurate reference model of tensor cores and matrix cores" (arXiv 2511.10909), whose numbers the table
has; `tests/cuda/emulator/test_emulator_generations.py` holds the table against it, bit for bit.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from workbench.refusal import Refusal


class Accumulation(NamedTuple):
    """How a tensor core adds the products of one element of the result, in the order of k."""

    #: products that meet in one step; it starts with the sum of the step before it, the first one with C
    block: int
    #: bits kept below the last bit of a float32 that has the largest exponent of the step; negative where bits are lost
    extra_bits: int

    @property
    def fraction_bits(self) -> int:
        """Bits of fraction that a step's sum keeps: float32's 23, or as many as its addends where these are fewer."""
        return 23 + min(self.extra_bits, 0)

    @property
    def ulps(self) -> float:
        """What a step loses at most, in ulps of float32 at the sum of all sizes: less than 2^-extra_bits of each
        addend, the block and the sum so far, and less than a last bit of what is kept of their sum. The largest
        exponent is that of an addend as large where its factors are normal numbers: beside a subnormal factor, which
        counts as the smallest normal one, more may be lost.
        """
        return (self.block + 1) * 2.0**-self.extra_bits + 2.0 ** (23 - self.fraction_bits)

    def fields(self) -> dict[str, Any]:
        """It as fields of a contract."""
        return {"mma_block": self.block, "mma_extra_bits": self.extra_bits}


_HALVES = ("float16", "bfloat16")
#: generation -> what its tensor cores multiply -> how they add. float32 is multiplied as TF32, of which the core reads
#: the upper 19 bits. Of float8 on Hopper it is wgmma's: mma.sync converts to float16 there. Of Blackwell mma.sync and
#: tcgen05 are alike
GENERATIONS: Mapping[str, Mapping[str, Accumulation]] = {
    "volta": {"float16": Accumulation(4, 0)},
    "turing": {"float16": Accumulation(8, 1)},
    "ampere": {**dict.fromkeys(_HALVES, Accumulation(8, 1)), "tf32": Accumulation(4, 1)},
    "ada": {
        **dict.fromkeys(_HALVES, Accumulation(8, 1)),
        "tf32": Accumulation(4, 1),
        "float8": Accumulation(16, -10),
    },
    "hopper": {
        **dict.fromkeys(_HALVES, Accumulation(16, 2)),
        "tf32": Accumulation(8, 2),
        "float8": Accumulation(32, -10),
    },
    "blackwell": {
        **dict.fromkeys(_HALVES, Accumulation(16, 2)),
        "tf32": Accumulation(8, 2),
        "float8": Accumulation(32, 2),
    },
}
#: compute capability -> generation (CUDA programming guide, compute capabilities), where every minor one is of it ...
_MAJOR: Mapping[int, str] = {9: "hopper", 10: "blackwell", 12: "blackwell"}
#: ... and where it is not
_MINOR: Mapping[tuple[int, int], str] = {
    (7, 0): "volta",
    (7, 5): "turing",
    **dict.fromkeys(((8, 0), (8, 6), (8, 7)), "ampere"),
    (8, 9): "ada",
}


def generation_of(compute_capability: tuple[int, int]) -> str | None:
    """The generation of a GPU, one of GENERATIONS; None of one that the table does not know."""
    return _MINOR.get(compute_capability) or _MAJOR.get(compute_capability[0])


def known_of(generation: str | None, operands: str, *, declared: bool) -> dict[str, Any]:
    """The fields of a contract that tensor cores of a `generation` resolve for products of `operands` (float32, tf32,
    float16, bfloat16 or float8): mma_block and mma_extra_bits, and accumulation of a kernel that `declared` that they
    multiply. None without a generation, of float32, which no tensor core multiplies, and where nobody declared it of
    float8, which a kernel may widen first. Refusal for operands that those declared do not multiply.
    """
    if generation is None or operands == "float32" or (operands == "float8" and not declared):
        return {}
    kinds = GENERATIONS[generation]
    if declared and operands not in kinds:
        raise Refusal(
            f'"contract" field tensor_core={generation} multiplies {", ".join(kinds)}; the products of this case have '
            f"{operands} operands: leave tensor_core out"
        )
    if operands not in kinds:
        return {}
    return kinds[operands].fields() | ({"accumulation": "tensor-core"} if declared else {})


def table() -> list[dict[str, Any]]:
    """A row for each generation and what it multiplies: generation, operands, block, extra_bits."""
    return [
        {"generation": name, "operands": operands, "block": one.block, "extra_bits": one.extra_bits}
        for name, by_operands in GENERATIONS.items()
        for operands, one in by_operands.items()
    ]
