"""What tensor cores keep of a sum, beside the model of `emulator.tensor`: on the emulator, and on a GPU where one is.

Random products and sums are compared, to the bit, with the model for every block length and number of extra bits: the
declared `ACCUMULATION` should be the pair without a difference. Crafted sums ask one question each (Fasi, Higham,
Mikaitis, Pranesh 2021, sections 3 and 4).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product as combinations

import numpy as np
import pytest

from tests.cuda.calibrate.models import declared, model
from workbench.cuda import ptx
from workbench.cuda.calibrate.backends import on_emulator, on_gpu
from workbench.cuda.calibrate.probe_mma import Multiply, bits_of, multiply_on

BLOCKS = (2, 4, 8, 16)
EXTRA_BITS = range(-12, 6)
TILES = 64  #: of 128 random sums each


@dataclass(frozen=True)
class Sum:
    """A crafted sum: c plus products at places along k, in the order in which the model takes them."""

    question: str
    products: Sequence[tuple[int, float, float]]  #: place, and the two factors
    c: float = 0.0


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
    """Sums that ask one question each, and none that `accumulation` does; powers of two around 2^base, which all the
    formats have.
    """
    kind = ptx.MMA_TYPES[name][1]
    base = 0 if kind in ("f16", "bf16") else 10

    def power(place: int, exponent: int, sign: int = 1) -> tuple[int, float, float]:
        low = (exponent + base) // 2
        return place, sign * 2.0**low, 2.0 ** (exponent + base - low)

    one, unit = power(0, 0), 2.0**base
    tails = [power(1 + i, -25) for i in range(8)]
    sums = [
        Sum("1 - 2^-27: cut off towards zero, or down?", [one, power(1, -27, -1)]),
        Sum("c = 1, product -2^-27: the same of c", [power(0, -27, -1)], unit),
        Sum("2.25 and 8 of 2^-25: exponent of 1.5 * 1.5", [(0, 1.5 * one[1], 1.5 * one[2]), *tails]),
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


def differing(name: str, multiply: Multiply) -> list[str]:
    """The questions of the crafted sums for which the model has another answer."""
    sums = crafted(name)
    tiles = tiles_of(name, sums)
    measured, predicted = (d[:, 0, 0] for d in (multiply(name, *tiles), model(name, *tiles, *declared(name))))
    return [one.question for one, m, p in zip(sums, measured, predicted, strict=True) if m != p]


@pytest.mark.campaign(but=2)
@pytest.mark.parametrize(
    "pair",
    [(16, 2), *(pytest.param(pair, marks=pytest.mark.campaign) for pair in ((8, 1), (4, 0), (16, -10)))],
    ids=str,
)
@pytest.mark.parametrize("name", ptx.MMA_TYPES)
def test_one_accumulation_alone_explains_the_random_sums(name: str, pair: tuple[int, int]) -> None:
    found = differences(name, partial(model, block=pair[0], extra_bits=pair[1]))
    assert found[pair] == 0
    assert all(count > 10 for other, count in found.items() if other != pair)


@pytest.mark.parametrize("name", ptx.MMA_TYPES)
def test_fragments_are_those_of_the_operation(name: str) -> None:
    """The kernel that the probe launches, on the emulator: the model's own bits for whole random tiles."""
    tiles = [x[:4] for x in random_tiles(name)]
    measured = multiply_on(on_emulator)(name, *tiles)
    np.testing.assert_array_equal(measured, model(name, *tiles, *declared(name)))
    assert np.unique(measured).size > 500


@pytest.mark.parametrize("name", ptx.MMA_TYPES)
def test_crafted_sums_of_the_emulator_are_as_declared(name: str) -> None:
    assert differing(name, multiply_on(on_emulator)) == []


def test_crafted_sums_tell_another_accumulation() -> None:
    """Blocks of 8 with a bit less keep less of eight small products."""
    name = "mma_m16n8k16_bf16"
    assert differing(name, partial(model, block=8, extra_bits=1)) == ["2.25 and 8 of 2^-25: exponent of 1.5 * 1.5"]


@pytest.mark.gpu
@pytest.mark.parametrize("name", ptx.MMA_TYPES)
def test_the_gpu_accumulates_as_declared(name: str) -> None:
    multiply = multiply_on(on_gpu)
    assert differences(name, multiply)[declared(name)] == 0
    assert differing(name, multiply) == []
