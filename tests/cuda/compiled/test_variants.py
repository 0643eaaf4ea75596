"""Every variant of every kernel compiles and links: dtypes, formats, switches, with probes and without."""

import itertools
import re

import pytest

from tests.cuda.compiled.builds import (
    ARCHITECTURES,
    CODES_VARIANTS,
    FLOATS,
    FP8_MMA,
    FUNCTIONS,
    MMA,
    MMA_VARIANTS,
    OF_TENSOR,
    PLAIN,
    REGISTERS,
    SMALL,
    TENSOR,
    compiled,
    library_of,
    linked,
    normalised,
    of_kernel,
    registers_of,
    shared_of,
    switched,
)
from workbench.case.case import Case
from workbench.cuda.build import build
from workbench.cuda.flash_build import SWITCHES, Constants
from workbench.cuda.flash_mma_build import TILES
from workbench.cuda.flash_mma_build import Constants as MmaConstants
from workbench.cuda.fp8_mma import Constants as Fp8MmaConstants
from workbench.cuda.fp8_mma import default_tiles
from workbench.cuda.kernel import STATIC_SHARED
from workbench.floats import DTYPES


def turn(i):
    """The architecture besides 9.0 whose turn it is."""
    return ARCHITECTURES[i % (len(ARCHITECTURES) - 1)]


#: what a change is tested with, too, of which other tests compile the same
KEPT = {("flash_forward", "float32"), ("split_k_reduce", "float16")}


def campaign_but_first(i):
    """The mark of one of several variants that each cost seconds."""
    return pytest.mark.campaign if i else ()


@pytest.mark.campaign(but=1)
@pytest.mark.parametrize(
    ("name", "dtype", "probed", "other"),
    # each costs seconds: of every kernel and of every dtype some with probes and some without
    [
        pytest.param(
            *(name, dtype, (i + j) % 2 == 0, turn(i + j)),
            id=f"{name}-{dtype}-{'plain' if (i + j) % 2 else 'probed'}",
            marks=() if (name, dtype) in KEPT else pytest.mark.campaign,
        )
        for i, name in enumerate(FLOATS)
        for j, dtype in enumerate(DTYPES)
    ],
)
def test_variant_compiles_and_links(name, dtype, probed, other):
    assert_compiles_and_links(name, Constants(**SMALL, dtype=dtype), probed, other)


@pytest.mark.campaign
@pytest.mark.parametrize(
    ("constants", "probed", "other"),
    # each costs seconds: every other one with its probes, the default among them
    [
        pytest.param(
            *(one, i % 2 == 0, turn(i)),
            id=f"{one.codes}-{one.scores}-{one.decode}-{one.probs_dtype}",
            marks=campaign_but_first(i),
        )
        for i, one in enumerate(CODES_VARIANTS)
    ],
)
def test_variant_on_codes_compiles_and_links(constants, probed, other):
    assert_compiles_and_links("fp8_forward", constants, probed, other)
    ptx = compiled("fp8_forward", constants, probed).get_asm_str(cc=(9, 0))
    assert ("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32" in ptx) == (constants.scores == "mma")


@pytest.mark.campaign
@pytest.mark.parametrize(
    ("constants", "probed", "other"),
    [
        pytest.param(one, i % 2 == 1, turn(i), id=f"{one.dtype}-{one.head_dim}", marks=campaign_but_first(i))
        for i, one in enumerate(MMA_VARIANTS)
    ],
)
def test_variant_on_tensor_cores_compiles_and_links(constants, probed, other):
    assert_compiles_and_links(MMA, constants, probed, other)
    ptx = compiled(MMA, constants, probed).get_asm_str(cc=(9, 0))
    types = "f16.f16" if constants.dtype == "float16" else "bf16.bf16"
    for instruction in (f"mma.sync.aligned.m16n8k16.row.col.f32.{types}.f32", "ldmatrix.sync", "cp.async.cg"):
        assert instruction in ptx
    assert "mma.sync.aligned" in ptx and ("tanh.approx" in ptx) == ("SOFTCAP" in constants.switches)


@pytest.mark.campaign
@pytest.mark.parametrize(
    ("tiles", "head_dim", "causal"),
    [
        ((64, 128), 64, True),
        pytest.param((128, 128), 64, False, marks=pytest.mark.campaign),
        pytest.param((128, 64), 128, True, marks=pytest.mark.campaign),
        pytest.param((64, 128), 128, False, marks=pytest.mark.campaign),
    ],
    ids=str,
)
def test_default_tiles_on_tensor_cores_stay_in_registers(tiles, head_dim, causal):
    """Nothing is spilled, no array lies in local memory, and two blocks of a multiprocessor have room."""
    assert tiles in [one[:2] for one in TILES[head_dim]]
    constants = MmaConstants(*tiles, head_dim, "float16", ("CAUSAL",) * causal)
    _, log = linked(compiled(MMA, constants, False), (9, 0))
    assert re.search(r"\b0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads", log)
    assert 2 * registers_of(log) * constants.threads <= REGISTERS


@pytest.mark.campaign
@pytest.mark.parametrize(("head_dim", "causal"), [(64, True), (128, False)])
def test_decoded_codes_stay_in_registers(head_dim, causal):
    """Likewise, of the kernel that decodes them, for the oldest GPUs that it runs on; words of four at a time."""
    case = Case(batch=2, heads=16, seqlen=4096, head_dim=head_dim, causal=causal, codes="e4m3")
    constants = Fp8MmaConstants(*default_tiles(case), head_dim, "float16", ("HEADS", *["CAUSAL"] * causal))
    library = compiled(FP8_MMA, constants, False)
    ptx = library.get_asm_str(cc=(8, 0))
    for instruction in (
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32",
        "ldmatrix.sync",
        "cp.async.cg",
        "prmt.b32",
    ):
        assert instruction in ptx
    assert "e4m3" not in ptx and ".f64" not in ptx
    _, log = linked(library, (8, 0))
    assert re.search(r"\b0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads", log)
    assert 2 * registers_of(log) * constants.threads <= REGISTERS


@pytest.mark.campaign
def test_plain_loads_stay_in_registers():
    """Likewise, of the default tiles of the kernel that loads them through registers, and it loads 16 bytes at once."""
    library = compiled(TENSOR, OF_TENSOR, False)
    ptx = library.get_asm_str(cc=(9, 0))
    assert "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32" in ptx
    assert re.search(r"ld\.global\.v4\.\w32", ptx) and re.search(r"st\.shared\.v4\.\w32", ptx)
    assert not re.search(r"ldmatrix|cp\.async", ptx)
    _, log = linked(library, (9, 0))
    assert re.search(r"\b0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads", log)
    assert 3 * registers_of(log) * OF_TENSOR.threads <= REGISTERS and shared_of(log) == OF_TENSOR.shared_bytes


def test_variants_on_codes_hold_every_value():
    fields = {
        "codes": {"simulated", "e4m3", "e5m2", "int8"},
        "scores": {"mma", "scalar"},
        "decode": {"table", "direct"},
        "probs_dtype": {"float16", "float32"},
        "q_dtype": {"", "float16"},
    }
    assert {field: {getattr(one, field) for one in CODES_VARIANTS} for field in fields} == fields


def test_every_kernel_is_linked_for_every_architecture():
    assert {turn(i) for i in range(len(DTYPES))} | {ARCHITECTURES[-1]} == {*ARCHITECTURES}
    assert {turn(i) for i, _ in enumerate(CODES_VARIANTS)} | {ARCHITECTURES[-1]} == {*ARCHITECTURES}


def assert_compiles_and_links(name, constants, probed, other):
    library = compiled(name, constants, probed)
    for cc in (other, ARCHITECTURES[-1]):
        ptx = library.get_asm_str(cc=cc)
        assert f".target sm_{cc[0]}{cc[1]}" in ptx
        assert ".f32" in ptx
        assert ".f64" not in ptx
        cubin, log = linked(library, cc, lto=cc == ARCHITECTURES[-1])
        assert cubin.startswith(b"\x7fELF")
        assert 0 < registers_of(log) * constants.threads <= REGISTERS
    kernel, function = FUNCTIONS[name]
    static = constants.shared_bytes - kernel.dynamic_bytes(constants, function)
    assert shared_of(log) == (0 if name == "split_k_reduce" else static)


@pytest.mark.campaign
def test_softcap_and_window_are_more_code_alone_and_together():
    """tanh is no approximation."""
    lengths = {}
    for softcap, window in itertools.product((False, True), repeat=2):
        constants = switched(Constants(**SMALL, dtype="bfloat16"), *["SOFTCAP"] * softcap, *["WINDOW"] * window)
        ptx = compiled("flash_forward", constants, False).get_asm_str(cc=(9, 0))
        lengths[softcap, window] = len(ptx)
        assert "tanh.approx" not in ptx
    assert lengths[False, False] < lengths[False, True] < lengths[True, True] > lengths[True, False]
    assert lengths[False, False] < lengths[True, False]


#: every switch is on in one of them, on its own or among others: kernel function, constants
SWITCHED = (
    ("flash_forward", Constants(16, 16, 32, "bfloat16", switches=tuple({*SWITCHES} - {"SPLIT", "COLUMN"}))),
    (
        "split_k_flash_forward",
        Constants(16, 16, 576, "float16", switches=("ALIBI", "COLUMN", "DIM_V", "LENGTHS", "PAGED", "PACK_GQA")),
    ),
    ("split_k_reduce", Constants(16, 16, 576, "float16", switches=("RAGGED", "PACKED_Q"))),
)


@pytest.mark.campaign
@pytest.mark.parametrize(
    ("name", "constants"),
    [pytest.param(*one, marks=campaign_but_first(i)) for i, one in enumerate(SWITCHED)],
    ids=lambda x: getattr(x, "head_dim", x),
)
def test_switches_compile_and_link(name, constants):
    library = compiled(name, constants, True)
    for cc in (ARCHITECTURES[0], ARCHITECTURES[-1]):
        ptx = library.get_asm_str(cc=cc)
        assert f".target sm_{cc[0]}{cc[1]}" in ptx and ".f32" in ptx and ".f64" not in ptx
        assert "tanh.approx" not in ptx
    _, log = linked(library, ARCHITECTURES[-1])
    assert 0 < registers_of(log) * constants.threads <= REGISTERS
    assert shared_of(log) == (0 if name == "split_k_reduce" else constants.shared_bytes) <= STATIC_SHARED


def test_every_switch_is_compiled():
    assert set().union(*(of_kernel(FUNCTIONS[name][0], one).switches for name, one in SWITCHED)) == {*SWITCHES}


@pytest.mark.campaign
@pytest.mark.parametrize("name", [pytest.param(name, marks=campaign_but_first(i)) for i, name in enumerate(FLOATS)])
def test_a_build_without_switches_is_a_kernel_that_has_none(name):
    """What they cost where they are off is nothing: the PTX is that of kernels without any, but for lines of the source."""
    kernel, function = FUNCTIONS[name]
    constants = Constants(**SMALL, dtype="bfloat16")
    plain = build(PLAIN, function, of_kernel(kernel, constants), (), ())
    plain = library_of(plain.for_numba, kernel.algorithm, constants.dtype, plain.cuda_options)
    expected, actual = (
        re.sub(r"(?m)^\s*(\.loc|\.file|//).*\n?", "", normalised(library.get_asm_str(cc=(9, 0))))
        for library in (plain, compiled(name, constants, False))
    )
    assert "fma.rn.f32" in expected and actual == expected


@pytest.mark.campaign
@pytest.mark.parametrize(("name", "dtype"), [("flash_forward", "float16"), ("split_k_flash_forward", "bfloat16")])
def test_cast_of_probs_compiles_and_links(name, dtype):
    cast = compiled(name, Constants(**SMALL, dtype=dtype, probs_dtype=dtype), False)
    uncast = compiled(name, Constants(**SMALL, dtype=dtype), False)
    assert cast.get_asm_str(cc=(9, 0)) != uncast.get_asm_str(cc=(9, 0))
    for cc in (ARCHITECTURES[0], ARCHITECTURES[-1]):
        assert ".f64" not in cast.get_asm_str(cc=cc)
        assert linked(cast, cc, lto=False)[0].startswith(b"\x7fELF")


def test_f64_would_be_seen():
    """numba promotes float32 * int64 to float64 without a word: what the search for .f64 is there for."""

    def promotes(q, out):
        out[0, 0, 0, 0] = q[0, 0, 0, 0] * len(q)

    assert ".f64" in library_of(promotes, "flash", "float32", {}).get_asm_str(cc=(9, 0))
