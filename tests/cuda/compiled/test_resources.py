"""Every case that is taken fits a block: its threads, registers and shared memory."""

import itertools

import pytest

from tests.cuda.compiled.builds import LARGEST, REGISTERS, TALLEST, compiled, linked, registers_of, shared_of
from workbench.case.case import Case
from workbench.cuda.flash_build import BLOCKS, Constants
from workbench.cuda.fp8_build import Constants as QuantisedConstants
from workbench.cuda.kernel import HEAD_DIMS, STATIC_SHARED
from workbench.cuda.kernels import KERNELS
from workbench.cuda.plan import resolve
from workbench.refusal import Refusal


def taken_and_refused(kernel, blocks, head_dims):
    """Tiles and head_dim of the cases that a kernel takes, and of those that it refuses."""
    taken, refused = set(), set()
    for block_q, block_k, head_dim in itertools.product(blocks, blocks, head_dims):
        try:
            resolve(kernel, Case(block_q=block_q, block_k=block_k, head_dim=head_dim))
            taken.add((block_q, block_k, head_dim))
        except Refusal:
            refused.add((block_q, block_k, head_dim))
    return taken, refused


@pytest.mark.parametrize("kernel", ["flash", "split_k"])
def test_every_case_that_is_taken_fits_a_block(kernel):
    kernel = KERNELS[kernel]
    taken, refused = taken_and_refused(kernel, BLOCKS, (1, 31, 32, 33, 64, 65, 100, 128))
    for tiles in (taken, refused):
        for block_q, block_k, head_dim in tiles:
            padded = next(size for size in HEAD_DIMS if size >= head_dim)
            floats = block_q * padded + block_k * padded + block_q * block_k
            assert (floats * 4 <= 48 * 1024) == (tiles is taken)
            assert Constants(block_q, block_k, padded, "float32").threads <= 1024
    assert (64, 64, 64) in taken and (64, 64, 65) in refused
    assert all(resolve(kernel, Case(head_dim=head_dim)).block_q for head_dim in range(1, 129))


def test_every_case_on_codes_that_is_taken_fits_a_block():
    taken, refused = taken_and_refused(KERNELS["fp8"], range(16, 129, 16), (16, 32, 48, 64, 80, 128))
    for tiles in (taken, refused):
        for block_q, block_k, head_dim in tiles:
            padded = next(size for size in HEAD_DIMS if size >= head_dim)
            halves = (block_q + block_k) * (padded + 8)
            floats = block_q * block_k + block_q * padded + 2 * block_q + 2 * 256
            assert (2 * halves + 4 * floats <= 48 * 1024) == (tiles is taken)
    assert (64, 48, 64) in taken and (64, 64, 64) in refused and (128, 16, 32) in taken
    assert all(resolve(KERNELS["fp8"], Case(head_dim=head_dim)).block_q for head_dim in range(16, 129, 16))


@pytest.mark.campaign
def test_largest_blocks_on_codes_link():
    """As much shared memory as a case can take, and 512 threads."""
    for tiles in ((64, 48, 64), (128, 16, 32)):
        constants = QuantisedConstants(*tiles, "simulated", "mma", "table", "float16")
        _, log = linked(compiled("fp8_forward", constants, True), (9, 0))
        assert registers_of(log) * constants.threads <= REGISTERS
        assert shared_of(log) == constants.shared_bytes


@pytest.mark.campaign
@pytest.mark.parametrize(
    ("name", "tiles"),
    [
        ("flash_forward", LARGEST),
        *(pytest.param(f"split_k_{x}", TALLEST, marks=pytest.mark.campaign) for x in ("flash_forward", "reduce")),
    ],
    ids=["most shared memory", "most threads", "reduce"],
)
def test_largest_blocks_link(name, tiles):
    """512 threads leave 128 registers for each; a compiler that does not know takes up to 246."""
    constants = Constants(**tiles, dtype="float16")
    _, log = linked(compiled(name, constants, True), (9, 0))
    assert registers_of(log) * constants.threads <= REGISTERS
    assert shared_of(log) == (0 if name == "split_k_reduce" else constants.shared_bytes)
    assert Constants(**LARGEST, dtype="float16").shared_bytes == STATIC_SHARED == 49152


@pytest.mark.campaign
def test_linker_refuses_more_shared_memory():
    """PTX says nothing about it, so that only the link shows whether a block fits."""
    from cuda.bindings.nvjitlink import nvJitLinkError

    library = compiled("flash_forward", Constants(64, 64, 128, "float32"), False)
    assert library.get_asm_str(cc=(9, 0))
    with pytest.raises(nvJitLinkError, match=r"uses too much shared data \(0x14000 bytes, 0xc000 max\)"):
        linked(library, (9, 0))
