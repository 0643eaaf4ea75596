"""What sums tell of tensor cores, on models in place of one: whichever accumulation they have must be found."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from tests.cuda.calibrate.models import model
from workbench.cuda import ptx
from workbench.cuda.calibrate import accumulation, probe_mma
from workbench.cuda.calibrate.backends import on_emulator
from workbench.cuda.calibrate.record import TensorCore

TRUNCATING = TensorCore(16, 2, "toward-zero", "toward-zero", None)
F16 = "mma_m16n8k16_f16"


@pytest.mark.campaign(but=2)
@pytest.mark.parametrize("name", ptx.MMA_TYPES)
def test_the_emulators_tensor_cores_are_as_declared(name):
    """On fp8 c comes last, and two products of 16 are interleaved along k."""
    expected = replace(TRUNCATING, c_rounding="nearest-even" if "k32" in name else None)
    assert accumulation.measure(name, probe_mma.multiply_on(on_emulator)) == expected


@pytest.mark.campaign(but=2)
@pytest.mark.parametrize(
    ("name", "pair"),
    [(F16, pair) for pair in ((16, 2), (8, 1), (4, 0), (1, 0), (8, -1), (16, -10), (16, 9))]
    + [(name, pair) for name in ("mma_m16n8k16_bf16", "mma_m16n8k32_e4m3_e5m2") for pair in ((8, 1), (16, -10))]
    # where c comes last, nothing tells the first product from the second
    + [("mma_m16n8k32_e4m3_e5m2", (1, 0))],
    ids=str,
)
def test_whichever_block_and_extra_bits_a_model_has_are_found(name, pair):
    block, extra_bits = pair
    found = accumulation.measure(name, partial(model, block=block, extra_bits=extra_bits))
    expected = replace(
        TRUNCATING, block=block, extra_bits=extra_bits, c_rounding="nearest-even" if "k32" in name else None
    )
    assert found == expected  # also where a sum is stored in fewer bits than float32's


def values(bits, kind):
    dtype = probe_mma.FORMATS[kind]
    return bits.astype(f"u{dtype.itemsize}").view(dtype).astype(np.float64)


def of_float64(sum_of):
    """A `Multiply` whose sums are made by sum_of(c, products) -> float32, products [n, 16, 8, k] in float64."""

    def multiply(name, a, b, c):
        _, a_kind, b_kind = ptx.MMA_TYPES[name]
        products = values(a, a_kind)[:, :, None] * values(b, b_kind)[:, None]
        start = c.astype(np.uint32).view(np.float32)
        return np.asarray(sum_of(start, products), np.float32).view(np.uint32).astype(np.int64)

    return multiply


def exact_sum(c, products):
    """float64 holds every sum of the powers that are asked for; one rounding to nearest."""
    return (c + products.sum(axis=-1)).astype(np.float32)


def fma_chain(c, products):
    for k in range(products.shape[-1]):
        c = (c + products[..., k]).astype(np.float32)
    return c


def rounded_addends(c, products):
    """Blocks of 16 aligned as on a tensor core, addends rounded to nearest even in place of cut off, and so the sum."""
    addends = np.concatenate([c[..., None].astype(np.float64), products], axis=-1)
    _, exponent = np.frexp(np.abs(addends).max(axis=-1, keepdims=True))
    unit = np.ldexp(1.0, exponent - 1 - 23 - 2)
    return (np.rint(addends / unit) * unit).sum(axis=-1).astype(np.float32)


@pytest.mark.parametrize(
    ("sum_of", "expected"),
    [
        # where nothing is lost, nothing tells when c is added
        (exact_sum, TensorCore(16, 9, "exact", "nearest-even", "nearest-even")),
        (fma_chain, TensorCore(1, 0, "nearest-even", "nearest-even", None)),
        (rounded_addends, TensorCore(16, 2, "nearest-even", "nearest-even", None)),
        (
            lambda c, products: rounded_addends(np.zeros_like(c), products) + c,
            TensorCore(16, 2, "nearest-even", "nearest-even", "nearest-even"),
        ),
    ],
    ids=["exact", "fma", "rounded addends", "rounded addends, c last"],
)
def test_other_roundings_are_told_apart(sum_of, expected):
    assert accumulation.measure(F16, of_float64(sum_of)) == expected


def test_a_machine_that_gives_nan_has_no_name():
    found = accumulation.measure(F16, of_float64(lambda c, products: c * np.nan))
    assert (found.addend_rounding, found.sum_rounding) == ("other", "other")
