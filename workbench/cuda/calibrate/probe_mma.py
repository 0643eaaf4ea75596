"""What a GPU's tensor cores keep of a sum, measured: `python3 -m workbench.cuda.calibrate.probe_mma`, where one is.

Two kinds of evidence, each beside the model of `emulator.tensor`. Random products and sums are compared, to the bit,
with the model for every block length and number of extra bits: the declared `ACCUMULATION` should be the pair without a
difference. Crafted sums ask one question each (Fasi, Higham, Mikaitis, Pranesh 2021, sections 3 and 4). The exit code
is 0 where nothing differs from what is declared.
"""

import functools
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product as combinations
from typing import Any

import ml_dtypes
import numpy as np
from numba import cuda

from workbench.cuda import ptx
from workbench.cuda.calibrate.backends import Launch, Machine, on_gpu
from workbench.cuda.emulator import tensor

FORMATS = {
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "e4m3": np.dtype(ml_dtypes.float8_e4m3fn),
    "e5m2": np.dtype(ml_dtypes.float8_e5m2),
}
BLOCKS = (2, 4, 8, 16)
EXTRA_BITS = range(-12, 6)
TILES = 64  #: of 128 random sums each

#: bits of a [n, 16, k], b transposed [n, 8, k] and c [n, 16, 8] -> bits of a b + c, all int64, for an operation's name
Multiply = Callable[[str, np.ndarray, np.ndarray, np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Sum:
    """A crafted sum: c plus products at places along k, in the order in which the model takes them."""

    question: str
    products: Sequence[tuple[int, float, float]]  #: place, and the two factors
    c: float = 0.0


def declared(name: str) -> tuple[int, int]:
    """The block length and the extra bits that the model has for an operation."""
    _, kind, _ = ptx.MMA_TYPES[name]
    return tensor.ACCUMULATION[kind if kind in tensor.ACCUMULATION else "fp8"]


def model(name: str, a: np.ndarray, b: np.ndarray, c: np.ndarray, block: int, extra_bits: int) -> np.ndarray:
    """What the model gives, as a `Multiply` does."""
    codes = [tensor.CODES[kind] for kind in ptx.MMA_TYPES[name][1:]]
    return np.stack([tensor.product(*tiles, *codes, block, extra_bits) for tiles in zip(a, b, c, strict=True)])


def multiply_on(machine: Machine) -> Multiply:
    """What a machine gives: one warp for each tile, whose lanes load the fragments of `fragments`."""

    @functools.cache
    def launcher(name: str) -> Launch:
        operation = ptx.OPERATIONS[name]

        def kernel(a: Any, b: Any, c: Any) -> None:
            i, t = cuda.blockIdx.x, cuda.threadIdx.x
            ptx.st_v4_f32(
                c,
                (i, t, 0),
                operation(ptx.ld_v4_u32(a, (i, t, 0)), ptx.ld_v2_u32(b, (i, t, 0)), ptx.ld_v4_f32(c, (i, t, 0))),
            )

        return machine(kernel)

    def multiply(name: str, a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
        registers = fragments(a, b, c)
        launcher(name)(len(a), 32, registers)
        d = np.empty_like(c)
        row, column = _owned_by_lane()
        d[:, row, column] = registers[2].view(np.uint32)
        return d

    return multiply


def _owned_by_lane() -> tuple[np.ndarray, np.ndarray]:
    lane, register = np.arange(32)[:, None], np.arange(4)
    return lane // 4 + register // 2 * 8, lane % 4 * 2 + register % 2


def fragments(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The registers of each lane: uint32 [n, 32, 4] and [n, 32, 2], float32 [n, 32, 4]."""
    packed = a.shape[2] // 8  # factors in a register: neighbours along k, from `packed * t` on and `4 * packed` later
    word = np.dtype(f"u{4 // packed}")
    g, t = np.arange(32) // 4, np.arange(32) % 4
    rows_a, rows_b = (np.ascontiguousarray(x.astype(word)).view(np.uint32) for x in (a, b))
    left = [rows_a[:, g + 8 * (register % 2), t + 4 * (register // 2)] for register in range(4)]
    right = [rows_b[:, g, t + 4 * register] for register in range(2)]
    start = np.ascontiguousarray(c[:, *_owned_by_lane()].astype(np.uint32)).view(np.float32)
    return np.ascontiguousarray(np.stack(left, -1)), np.ascontiguousarray(np.stack(right, -1)), start


def bits_of(values: np.ndarray, kind: str) -> np.ndarray:
    """The bits, int64, of values rounded to a type of factors ("f16", "bf16", "e4m3", "e5m2")."""
    narrow = values.astype(FORMATS[kind])
    return narrow.view(f"u{narrow.itemsize}").astype(np.int64)


def random_tiles(name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Factors and sums of either sign whose sizes differ, so that much is cut off, and never infinite or NaN."""
    shape, a_kind, b_kind = ptx.MMA_TYPES[name]
    k = int(shape.rpartition("k")[2])
    random = np.random.default_rng(0)

    def draw(spread: int, *size: int) -> np.ndarray:
        return random.choice([-1, 1], size) * random.uniform(1, 2, size) * 2.0 ** random.integers(-spread, spread, size)

    c = draw(16, TILES, 16, 8).astype(np.float32).view(np.uint32).astype(np.int64)
    return bits_of(draw(7, TILES, 16, k), a_kind), bits_of(draw(7, TILES, 8, k), b_kind), c


def differences(name: str, multiply: Multiply) -> dict[tuple[int, int], int]:
    """How many of the random sums differ from the model, by its (block, extra_bits)."""
    tiles = random_tiles(name)
    measured = multiply(name, *tiles)
    return {pair: int(np.sum(model(name, *tiles, *pair) != measured)) for pair in combinations(BLOCKS, EXTRA_BITS)}


def crafted(name: str) -> list[Sum]:
    """Sums that ask one question each; powers of two around 2^base, which all the formats have."""
    kind = ptx.MMA_TYPES[name][1]
    base = 0 if kind in ("f16", "bf16") else 10

    def power(place: int, exponent: int, sign: int = 1) -> tuple[int, float, float]:
        low = (exponent + base) // 2
        return place, sign * 2.0**low, 2.0 ** (exponent + base - low)

    one, unit = power(0, 0), 2.0**base
    sums = [
        Sum(f"1 and {2**j} of 2^-{23 + j}: {j} extra bits?", [one, *(power(1 + i, -23 - j) for i in range(2**j))])
        for j in range(4)
    ]
    sums += [
        Sum(f"c = 1 and {2**j} of 2^-{23 + j}: the same of c?", [power(i, -23 - j) for i in range(2**j)], unit)
        for j in range(5)
    ]
    sums += [
        Sum(f"1 at k = 0, 2^-24 at 1, -1 at {place}: lost where a block ends before it", [one, power(1, -24), last])
        for place in (2, 3, 4, 7, 8, 15, *([] if base == 0 else [16]))
        for last in [power(place, 0, -1)]
    ]
    sums += [
        Sum("1 + 3/4 ulp: the result's rounding", [one, power(1, -24), power(2, -25)]),
        Sum("-1 - 3/4 ulp: the same, below zero", [power(0, 0, -1), power(1, -24, -1), power(2, -25, -1)]),
        Sum("1 - 2^-27: cut off towards zero, or down?", [one, power(1, -27, -1)]),
        Sum("c = 1, product -2^-27: the same of c", [power(0, -27, -1)], unit),
        Sum("2.25 and 8 of 2^-25: exponent of 1.5 * 1.5", [_scaled(one, 1.5), *(power(1 + i, -25) for i in range(8))]),
        Sum("1 - 1 + (c = 2^-30): c in the first step, or apart?", [one, power(1, 0, -1)], unit * 2.0**-30),
        Sum("1 - 1: sign of zero", [one, power(1, 0, -1)]),
        Sum("-0 * 1 + (c = -0): sign of zero", [(0, -0.0, 1.0)], -0.0),
        Sum("c = the smallest subnormal", [], 2.0**-149),
        Sum("c = the largest float32", [], float(np.finfo(np.float32).max)),
        Sum("NaN * 1: which NaN", [(0, np.nan, 1.0)]),
        Sum("c = inf", [one], np.inf),
    ]
    if kind != "e4m3":
        sums += [Sum("inf * 0", [(0, np.inf, 0.0)]), Sum("inf * 1 - inf * 1", [(0, np.inf, 1.0), (1, -np.inf, 1.0)])]
    if kind == "bf16":
        big = (0, 2.0**127, 1.0)
        sums += [
            Sum("2^127 + 2^127: overflow", [big, (1, 2.0**127, 1.0)]),
            Sum("2^127 + 2^127 - 2^127 in a block", [big, (1, 2.0**127, 1.0), (2, -(2.0**127), 1.0)]),
            Sum("2^130 - 2^130 + 1", [(0, 2.0**65, 2.0**65), (1, -(2.0**65), 2.0**65), (2, 1.0, 1.0)]),
            Sum("-2^-150: underflow, sign of zero", [(0, -(2.0**-75), 2.0**-75)]),
            Sum("3 * 2^-150: rounding of subnormals", [(0, 3 * 2.0**-75, 2.0**-75)]),
        ]
    if kind == "f16":
        sums += [Sum("2^-24 * 2^-24: subnormal factors", [(0, 2.0**-24, 2.0**-24)])]
    if kind in ("f16", "bf16"):
        large = 2.0**15 if kind == "f16" else 2.0**127
        sums += [
            Sum("0 * the largest power + 2^-48: has a zero an exponent?", [(0, 0.0, large), (1, 2.0**-24, 2.0**-24)])
        ]
    return sums


def _scaled(term: tuple[int, float, float], factor: float) -> tuple[int, float, float]:
    place, a, b = term
    return place, a * factor, b * factor


def tiles_of(name: str, sums: Sequence[Sum]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A tile for each sum, which is its element [0, 0]; places are in the model's order, on fp8 first k % 4 < 2."""
    shape, a_kind, b_kind = ptx.MMA_TYPES[name]
    k = int(shape.rpartition("k")[2])
    order = list(range(k)) if k == 16 else sorted(range(k), key=lambda i: i % 4 // 2)
    a, b, c = np.zeros((len(sums), 16, k)), np.zeros((len(sums), 8, k)), np.zeros((len(sums), 16, 8), np.float32)
    for i, wanted in enumerate(sums):
        c[i, 0, 0] = wanted.c
        for place, left, right in wanted.products:
            a[i, 0, order[place]], b[i, 0, order[place]] = left, right
    return bits_of(a, a_kind), bits_of(b, b_kind), c.view(np.uint32).astype(np.int64)


def table(name: str, multiply: Multiply) -> tuple[list[str], bool]:
    """The lines about one operation, and whether all it gave is as declared."""
    found = differences(name, multiply)
    best = min(found, key=lambda pair: found[pair])
    total = TILES * 128
    lines = [f"{name}: of {total} random sums differ from the model with (block, extra_bits) ="]
    for label, pair in (("declared", declared(name)), ("best", best)):
        lines.append(f"  {label:8} ({pair[0]:2}, {pair[1]:2})  {found[pair]:5}")
    alike = sorted(pair for pair in found if found[pair] == found[best])
    lines += [f"  equally good as the best: {alike}"] if len(alike) > 1 else []
    sums = crafted(name)
    tiles = tiles_of(name, sums)
    measured, predicted = (d[:, 0, 0] for d in (multiply(name, *tiles), model(name, *tiles, *declared(name))))
    lines.append(f"  {'measured':>20} {'model':>20}")
    for wanted, m, p in zip(sums, measured, predicted, strict=True):
        lines.append(f"  {_shown(m):>20} {_shown(p):>20}  {wanted.question}{'  <- differs' if m != p else ''}")
    return lines, found[declared(name)] == 0 and np.array_equal(measured, predicted)


def _shown(bits: np.integer) -> str:
    value = np.uint32(bits).view(np.float32)
    return f"{float(value).hex()}" if np.isfinite(value) else f"{value} {int(bits):#x}"


def main(multiply: Multiply) -> int:
    """Write the tables of all operations; the exit code is 1 where something differs."""
    good = True
    for name in ptx.MMA_TYPES:
        lines, as_declared = table(name, multiply)
        good &= as_declared
        sys.stdout.write("\n".join(lines) + "\n\n")
    sys.stdout.write("as declared in workbench/cuda/emulator/tensor.py\n" if good else "not as declared\n")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main(multiply_on(on_gpu)))
