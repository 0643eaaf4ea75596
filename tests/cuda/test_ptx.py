"""What the kernels compile to for a GPU, looked at without one: PTX, linked machine code, and its instructions.

numba.cuda.jit hands LTO-IR to nvJitLink, which optimises it once more; PTX shows what it was given.
"""

import ast
import functools
import itertools
import re
import shutil
import subprocess
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from cuda.pathfinder import find_nvidia_binary_utility
from numba.cuda import compiler, dispatcher, types

from workbench.case.case import Case
from workbench.case.stages import ALGORITHMS, STAGES, absent
from workbench.cuda.build import build
from workbench.cuda.cubin import SCALARS, type_of
from workbench.cuda.doctor import facts
from workbench.cuda.faults.fault import Fault
from workbench.cuda.flash_build import BLOCKS, SWITCHES, Constants
from workbench.cuda.flash_mma_build import TILES
from workbench.cuda.flash_mma_build import Constants as MmaConstants
from workbench.cuda.flash_tensor_build import Constants as TensorConstants
from workbench.cuda.fp8_build import Constants as QuantisedConstants
from workbench.cuda.fp8_mma_build import Constants as Fp8MmaConstants
from workbench.cuda.fp8_mma_build import default_tiles
from workbench.cuda.kernel import HEAD_DIMS, STATIC_SHARED
from workbench.cuda.kernels import KERNELS
from workbench.cuda.loops import apart
from workbench.cuda.plan import settle
from workbench.cuda.split_mma_build import Constants as SplitConstants
from workbench.floats import DTYPES
from workbench.refusal import Refusal

#: those that kernels are built for; 9.0 is in every test of a variant, the others take turns, since a link of each costs
#: half a second
ARCHITECTURES = ((8, 0), (8, 9), (10, 0), (9, 0))
REGISTERS = 65536  # of a block, on every one of them

#: tiles so small that compilers unroll plain and probed loops alike
SMALL = {"block_q": 16, "block_k": 16, "head_dim": 32}
#: tiles that need exactly as much shared memory as there is, and tiles that need the most threads
LARGEST = {"block_q": 64, "block_k": 64, "head_dim": 64}
TALLEST = {"block_q": 128, "block_k": 16, "head_dim": 64}

#: kernel functions with the kernel that launches them; flash and split_k share one, built with other constants
FUNCTIONS = {
    function if file == kernel.file else f"{kernel.name}_{function}": (kernel, function)
    for kernel in KERNELS.values()
    for function, file in kernel.functions.items()
}
PLAIN = Path(__file__).with_name("plain_kernels.py")
MMA, TENSOR = "flash_mma_forward", "flash_tensor_forward"
#: kernels of scalar products on floats, whose constants are those of `flash_build`
SCALAR = ("flash", "split_k")
SPLIT_MMA, SPLIT_MMA_REDUCE = "split_mma_forward", "split_mma_split_mma_reduce"
OF_MMA = MmaConstants(16, 16, 64, "float16", ("CAUSAL",))
OF_TENSOR = TensorConstants(64, 64, 64, "float16", ("CAUSAL",))
OF_SPLITS = SplitConstants(16, 32, 64, "float16", ("CAUSAL",), stages=1)
FP8_MMA, OF_FP8_MMA = "fp8_mma_forward", Fp8MmaConstants(16, 32, 64, "e4m3", ("CAUSAL",))
#: kernels of instructions and tensor maps of which code is made by the driver alone
OF_HOPPER = [name for name, (kernel, _) in FUNCTIONS.items() if kernel.name in ("flash_wgmma", "fp8_wgmma")]
FLOATS = [name for name, (kernel, _) in FUNCTIONS.items() if kernel.name in SCALAR]
CODES_TILES = (64, 32, 64)
#: every format, scores, decoding and probs of a kernel on codes is in one of them
CODES_VARIANTS = [
    QuantisedConstants(*CODES_TILES, *variant)
    for variant in (
        ("simulated", "mma", "table", "float16"),
        ("e4m3", "scalar", "direct", "float32"),
        ("e5m2", "mma", "table", "float32"),
        ("int8", "scalar", "direct", "float16", 64, "float16"),
    )
]
#: tiles, dtypes and switches of the kernel on tensor cores, each with and without probes
MMA_VARIANTS = [
    MmaConstants(64, 64, 64, "float16", ("CAUSAL",)),
    MmaConstants(64, 32, 64, "bfloat16", ("SOFTCAP", "SCALED", "WINDOW", "PADDED")),
    MmaConstants(32, 32, 128, "float16", ("RAGGED", "PACKED_Q", "PACKED_K", "CAUSAL")),
]
#: arrays that no prepared launch has -> their types
BESIDE = {
    "block_table": types.int32[:, ::1],
    **dict.fromkeys(("mask", "dropout_mask"), types.uint8[:, :, :, ::1]),
    "bias": types.float32[:, :, :, ::1],
    **dict.fromkeys(("alibi_slopes", "sinks"), types.float32[::1]),
}


@pytest.fixture(scope="module", autouse=True)
def no_gpu_needed():
    """Skip without the toolkit; answer for the GPU where numba asks for its compute capability."""
    if missing := facts().missing_toolkit:
        pytest.skip(f"needs the CUDA toolkit; not found: {', '.join(missing)}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dispatcher, "get_current_device", lambda: SimpleNamespace(compute_capability=(8, 0)))
        yield


def signature(function, algorithm, dtype):
    """The types that `workbench.cuda.run` launches a built function with."""
    blocks = not function.__globals__.get("HEADS", True)

    def of(name):
        if name in BESIDE:
            return BESIDE[name]
        if algorithm != "fp8" or name in SCALARS:
            return type_of(name, dtype)
        stage = name.removeprefix("probe_")
        own = {"codes": types.uint8, "dequant": types.float16, "out": types.float16, "q": types.float16}
        dims = 4 if name == "q" or (blocks and stage.startswith("scale")) else len(STAGES[stage].axes)
        return types.Array(own.get(stage.partition("_")[0], types.float32), dims, "C")

    code = function.__code__
    return types.void(*(of(name) for name in code.co_varnames[: code.co_argcount]))


def library_of(function, algorithm, dtype, options):
    """numba's code library: typed and lowered once, good for every architecture, which the public functions are not."""
    library, _ = compiler._compile_pyfunc_with_fixup(
        function, signature(function, algorithm, dtype), device=False, abi="numba", cc=ARCHITECTURES[0], **options
    )
    return library


@functools.cache
def compiled(name, constants, probed, faults=()):
    """The code library of one variant: a kernel function, its constants, all probes or none."""
    kernel, function = FUNCTIONS[name]
    coded = "kv" if getattr(constants, "q_dtype", "") else "qkv"
    lacks = absent(numbers={"softcap"} if "SOFTCAP" in getattr(constants, "switches", ()) else (), coded=coded)
    stages = tuple(stage for stage in ALGORITHMS[kernel.algorithm] if stage not in lacks) if probed else ()
    made = build(kernel.functions[function], function, of_kernel(kernel, constants), stages, faults)
    dtype = None if kernel.quantised else constants.dtype
    return library_of(made.for_numba, kernel.algorithm, dtype, made.cuda_options)


def of_kernel(kernel, constants):
    return switched(constants, *["SPLIT"] * kernel.splits) if kernel.name in SCALAR else constants


def switched(constants, *names):
    """The same with these switches on besides."""
    return replace(constants, switches=tuple(x for x in SWITCHES if x in {*constants.switches, *names}))


def linked(library, cc, *, lto=True):
    """The cubin, and what the linker's log says of it."""
    from cuda.core import Linker, LinkerOptions, ObjectCode

    code = (
        ObjectCode.from_ltoir(library.get_ltoir(cc=cc))
        if lto
        else ObjectCode.from_ptx(library.get_asm_str(cc=cc).encode())
    )
    options = LinkerOptions(arch=f"sm_{cc[0]}{cc[1]}", link_time_optimization=lto or None, verbose=True)
    linker = Linker(code, options=options)
    return linker.link("cubin").code, linker.get_info_log()


def registers_of(log):
    """Registers of a thread. nvJitLink has been seen to link well and say nothing."""
    if not log:
        pytest.skip("the linker's log is empty, which is the only place that tells the registers")
    (registers,) = re.findall(r"Used (\d+) registers", log)
    return int(registers)


def shared_of(log):
    """Bytes of static shared memory; only code that was linked from LTO-IR says so."""
    found = re.findall(r"(\d+) bytes smem", log)
    return int(found[0]) if found else 0


# ---- every variant


def turn(i):
    """The architecture besides 9.0 whose turn it is."""
    return ARCHITECTURES[i % (len(ARCHITECTURES) - 1)]


@pytest.mark.parametrize(
    ("name", "dtype", "probed", "other"),
    # each costs seconds: of every kernel and of every dtype some with probes and some without
    [
        pytest.param(
            name, dtype, (i + j) % 2 == 0, turn(i + j), id=f"{name}-{dtype}-{'plain' if (i + j) % 2 else 'probed'}"
        )
        for i, name in enumerate(FLOATS)
        for j, dtype in enumerate(DTYPES)
    ],
)
def test_variant_compiles_and_links(name, dtype, probed, other):
    assert_compiles_and_links(name, Constants(**SMALL, dtype=dtype), probed, other)


@pytest.mark.parametrize(
    ("constants", "probed", "other"),
    # each costs seconds: every other one with its probes, the default among them
    [
        pytest.param(one, i % 2 == 0, turn(i), id=f"{one.codes}-{one.scores}-{one.decode}-{one.probs_dtype}")
        for i, one in enumerate(CODES_VARIANTS)
    ],
)
def test_variant_on_codes_compiles_and_links(constants, probed, other):
    assert_compiles_and_links("fp8_forward", constants, probed, other)
    ptx = compiled("fp8_forward", constants, probed).get_asm_str(cc=(9, 0))
    assert ("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32" in ptx) == (constants.scores == "mma")


@pytest.mark.parametrize(
    ("constants", "probed", "other"),
    [pytest.param(one, i % 2 == 1, turn(i), id=f"{one.dtype}-{one.head_dim}") for i, one in enumerate(MMA_VARIANTS)],
)
def test_variant_on_tensor_cores_compiles_and_links(constants, probed, other):
    assert_compiles_and_links(MMA, constants, probed, other)
    ptx = compiled(MMA, constants, probed).get_asm_str(cc=(9, 0))
    types = "f16.f16" if constants.dtype == "float16" else "bf16.bf16"
    for instruction in (f"mma.sync.aligned.m16n8k16.row.col.f32.{types}.f32", "ldmatrix.sync", "cp.async.cg"):
        assert instruction in ptx
    assert "mma.sync.aligned" in ptx and ("tanh.approx" in ptx) == ("SOFTCAP" in constants.switches)


@pytest.mark.parametrize(
    ("tiles", "head_dim", "causal"),
    [((128, 128), 64, False), ((64, 128), 64, True), ((128, 64), 128, True), ((64, 128), 128, False)],
    ids=str,
)
def test_default_tiles_on_tensor_cores_stay_in_registers(tiles, head_dim, causal):
    """Nothing is spilled, no array lies in local memory, and two blocks of a multiprocessor have room."""
    assert tiles in [one[:2] for one in TILES[head_dim]]
    constants = MmaConstants(*tiles, head_dim, "float16", ("CAUSAL",) * causal)
    _, log = linked(compiled(MMA, constants, False), (9, 0))
    assert re.search(r"\b0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads", log)
    assert 2 * registers_of(log) * constants.threads <= REGISTERS


@pytest.mark.parametrize(("head_dim", "causal"), [(64, True), (128, False)])
def test_decoded_codes_stay_in_registers(head_dim, causal):
    """Likewise, of the kernel that decodes them, for the oldest GPUs that it runs on; words of four at a time."""
    case = Case(batch=2, heads=16, seqlen=4096, head_dim=head_dim, causal=causal, codes="e4m3")
    constants = Fp8MmaConstants(*default_tiles(case), head_dim, "e4m3", ("HEADS", *["CAUSAL"] * causal))
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


@pytest.mark.parametrize(("name", "constants"), SWITCHED, ids=lambda x: getattr(x, "head_dim", x))
def test_switches_compile_and_link(name, constants):
    library = compiled(name, constants, True)
    for cc in (ARCHITECTURES[0], ARCHITECTURES[-1]):
        ptx = library.get_asm_str(cc=cc)
        assert f".target sm_{cc[0]}{cc[1]}" in ptx and ".f32" in ptx and ".f64" not in ptx
    _, log = linked(library, ARCHITECTURES[-1])
    assert 0 < registers_of(log) * constants.threads <= REGISTERS
    assert shared_of(log) == (0 if name == "split_k_reduce" else constants.shared_bytes) <= STATIC_SHARED


def test_every_switch_is_compiled():
    assert set().union(*(of_kernel(FUNCTIONS[name][0], one).switches for name, one in SWITCHED)) == {*SWITCHES}


@pytest.mark.parametrize("name", FLOATS)
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


# ---- resources of a block


@pytest.mark.parametrize("kernel", ["flash", "split_k"])
def test_every_case_that_is_taken_fits_a_block(kernel):
    kernel = KERNELS[kernel]
    taken, refused = set(), set()
    for block_q, block_k, head_dim in itertools.product(BLOCKS, BLOCKS, (1, 31, 32, 33, 64, 65, 100, 128)):
        try:
            settle(kernel, Case(block_q=block_q, block_k=block_k, head_dim=head_dim))
            taken.add((block_q, block_k, head_dim))
        except Refusal:
            refused.add((block_q, block_k, head_dim))
    for tiles in (taken, refused):
        for block_q, block_k, head_dim in tiles:
            padded = next(size for size in HEAD_DIMS if size >= head_dim)
            floats = block_q * padded + block_k * padded + block_q * block_k
            assert (floats * 4 <= 48 * 1024) == (tiles is taken)
            assert Constants(block_q, block_k, padded, "float32").threads <= 1024
    assert (64, 64, 64) in taken and (64, 64, 65) in refused
    assert all(settle(kernel, Case(head_dim=head_dim)).block_q for head_dim in range(1, 129))


def test_every_case_on_codes_that_is_taken_fits_a_block():
    taken, refused = set(), set()
    blocks = range(16, 129, 16)
    for block_q, block_k, head_dim in itertools.product(blocks, blocks, (16, 32, 48, 64, 80, 128)):
        try:
            settle(KERNELS["fp8"], Case(block_q=block_q, block_k=block_k, head_dim=head_dim))
            taken.add((block_q, block_k, head_dim))
        except Refusal:
            refused.add((block_q, block_k, head_dim))
    for tiles in (taken, refused):
        for block_q, block_k, head_dim in tiles:
            padded = next(size for size in HEAD_DIMS if size >= head_dim)
            halves = (block_q + block_k) * (padded + 8)
            floats = block_q * block_k + block_q * padded + 2 * block_q + 2 * 256
            assert (2 * halves + 4 * floats <= 48 * 1024) == (tiles is taken)
    assert (64, 48, 64) in taken and (64, 64, 64) in refused and (128, 16, 32) in taken
    assert all(settle(KERNELS["fp8"], Case(head_dim=head_dim)).block_q for head_dim in range(16, 129, 16))


def test_largest_blocks_on_codes_link():
    """As much shared memory as a case can take, and 512 threads."""
    for tiles in ((64, 48, 64), (128, 16, 32)):
        constants = QuantisedConstants(*tiles, "simulated", "mma", "table", "float16")
        _, log = linked(compiled("fp8_forward", constants, True), (9, 0))
        assert registers_of(log) * constants.threads <= REGISTERS
        assert shared_of(log) == constants.shared_bytes


@pytest.mark.parametrize(
    ("name", "tiles"),
    [("flash_forward", LARGEST), ("split_k_flash_forward", TALLEST), ("split_k_reduce", TALLEST)],
    ids=["most shared memory", "most threads", "reduce"],
)
def test_largest_blocks_link(name, tiles):
    """512 threads leave 128 registers for each; a compiler that does not know takes up to 246."""
    constants = Constants(**tiles, dtype="float16")
    _, log = linked(compiled(name, constants, True), (9, 0))
    assert registers_of(log) * constants.threads <= REGISTERS
    assert shared_of(log) == (0 if name == "split_k_reduce" else constants.shared_bytes)
    assert Constants(**LARGEST, dtype="float16").shared_bytes == STATIC_SHARED == 49152


def test_linker_refuses_more_shared_memory():
    """PTX says nothing about it, so that only the link shows whether a block fits."""
    from cuda.bindings.nvjitlink import nvJitLinkError

    library = compiled("flash_forward", Constants(64, 64, 128, "float32"), False)
    assert library.get_asm_str(cc=(9, 0))
    with pytest.raises(nvJitLinkError, match=r"uses too much shared data \(0x14000 bytes, 0xc000 max\)"):
        linked(library, (9, 0))


# ---- probes leave no trace in a plain build


def without_probe_lines(text):
    """The source with its probe lines, and the headers of blocks left empty, blanked out; no syntax tree involved."""
    lines = ["" if re.match(r" *(probe\.|.* = probe\()", line) else line for line in text.split("\n")]
    while True:
        empty = [i for i, line in enumerate(lines) if re.match(r" +(if|for) .*:$", line) and not has_body(lines, i)]
        if not empty:
            return "\n".join(lines)
        for i in empty:
            lines[i] = ""


def has_body(lines, header):
    following = next(line for line in lines[header + 1 :] if line.strip())
    return indent(following) > indent(lines[header])


def indent(line):
    return len(line) - len(line.lstrip())


def normalised(ptx):
    """PTX with the names that numba numbers, and the length of debug strings that hold them, made alike."""
    ptx = re.sub(r"_ZN\w+", "NAME", ptx)
    ptx = re.sub(r"_cudapy_smem_\d+", "smem", ptx)
    return ptx


@pytest.mark.parametrize(
    ("name", "constants"),
    [
        *itertools.product(FLOATS, [Constants(**SMALL, dtype="bfloat16")]),
        ("flash_forward", Constants(**LARGEST, dtype="float32")),
        *itertools.product(["fp8_forward"], [CODES_VARIANTS[0], CODES_VARIANTS[3]]),
        (TENSOR, OF_TENSOR),
        (SPLIT_MMA_REDUCE, OF_SPLITS),
    ],
    ids=str,
)
def test_plain_build_is_the_source_without_its_probe_lines_and_switches(name, constants):
    """The same PTX, lines of the source included: of what is off nothing is left, not even its parameters."""
    kernel, _ = FUNCTIONS[name]
    constants = of_kernel(kernel, constants)
    options = {"lineinfo": True, "launch_bounds": constants.threads}
    dtype = None if kernel.quantised else constants.dtype
    expected = library_of(stripped(name, constants), kernel.algorithm, dtype, options).get_asm_str(cc=(9, 0))
    actual = compiled(name, constants, False).get_asm_str(cc=(9, 0))
    assert ".loc" in expected and ".maxntid" in expected
    assert normalised(actual) == normalised(expected)


@pytest.mark.parametrize(
    ("name", "constants"),
    [(MMA, OF_MMA), (FP8_MMA, OF_FP8_MMA), (SPLIT_MMA, OF_SPLITS), (TENSOR, OF_TENSOR)],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_plain_build_is_the_same_bytecode(name, constants):
    """From which numba makes the same PTX, as above; that takes it up to 20 s for each of these."""
    kernel, function = FUNCTIONS[name]
    made = build(kernel.functions[function], function, constants, (), ())
    actual, expected = made.for_numba.__code__, stripped(name, constants).__code__
    assert len(expected.co_code) > 1000 and [*actual.co_lines()] == [*expected.co_lines()]
    for part in ("co_code", "co_consts", "co_names", "co_varnames", "co_argcount"):
        assert getattr(actual, part) == getattr(expected, part)


def stripped(name, constants):
    """The kernel function of the source without its probe lines and switches, as text has it."""
    kernel, function = FUNCTIONS[name]
    text, _, _ = kernel.functions[function].read_text().partition("\n\n# ---- on the host\n")
    namespace = constants.names()
    switches = {capital: value for capital, value in namespace.items() if isinstance(value, bool)}
    rest = without_switches(without_probe_lines(text), function, switches)
    assert text.count("\n") == rest.count("\n") and "    probe." in text and "    probe." not in rest
    assert not re.search(r"\bif (not )?[A-Z_]+:", rest) and re.search(r"\bif [A-Z_]+:", text)
    exec(compile(apart(ast.parse(rest), namespace), str(kernel.functions[function]), "exec"), namespace)
    return namespace[function]


def without_switches(text, function, switches):
    """The source with the branches of switches taken or blanked out, lines kept, and the parameters that `function` then
    does not use removed; no syntax tree involved.
    """
    lines = text.split("\n")
    for i, line in enumerate(lines):
        found = re.fullmatch(r" +if (not )?([A-Z_]+):", line)
        if found is None:
            continue
        lines[i] = ""
        holds = switches[found[2]] is not bool(found[1])
        i = take(lines, i + 1, indent(line), holds)
        if i < len(lines) and lines[i] == " " * indent(line) + "else:":
            lines[i] = ""
            take(lines, i + 1, indent(line), not holds)
    text = "\n".join(lines)
    (head,) = re.findall(rf"^def {function}\(\s*(.*?),?\s*\):(?:  # fmt: skip)?$", text, re.MULTILINE | re.DOTALL)
    body = text.partition(head)[2].split('"""')[2]
    kept = [name for name in re.split(r",\s+", head) if re.search(rf"\b{name}\b", body)]
    return text.replace(head, ", ".join(kept) + "\n" * head.count("\n"))


def take(lines, first, outer, taken):
    """Move the block from `first` on to the left, or blank it out; returns where it ends."""
    for i in range(first, len(lines)):
        if lines[i].strip() and indent(lines[i]) <= outer:
            return i
        lines[i] = lines[i][4:] if taken else ""
    return len(lines)


# ---- probes leave the arithmetic alone


@pytest.fixture
def operations(tmp_path):
    """operations(cubin): how often each float32 instruction occurs in it, by its name without modifiers."""
    nvdisasm = shutil.which("nvdisasm") or find_nvidia_binary_utility("nvdisasm")
    if nvdisasm is None:
        pytest.skip("needs nvdisasm; pip install nvidia-cuda-nvdisasm")

    def count(cubin):
        path = tmp_path / "kernel.cubin"
        path.write_bytes(cubin)
        listing = subprocess.run([nvdisasm, "-c", path], capture_output=True, text=True, check=True).stdout
        found = Counter(re.findall(r"^\s+/\*[0-9a-f]+\*/\s+(?:@!?U?P\w+\s+)?([A-Z0-9]+)", listing, re.MULTILINE))
        return {name: found[name] for name in ("FADD", "FFMA", "FMUL", "FMNMX", "MUFU")}

    return count


@pytest.mark.parametrize(
    ("name", "cc"),
    [*((name, (9, 0)) for name in FUNCTIONS if name not in OF_HOPPER), ("flash_forward", (10, 0))],
    ids=lambda x: x if isinstance(x, str) else f"sm_{x[0]}{x[1]}",
)
def test_probes_leave_contraction_alone(operations, name, cc):
    """Products and sums become FFMA only in machine code, depending on who else reads a product.

    A probe is one more reader: a probed product that otherwise only meets an addition would be fused in plain builds
    alone, and rounded once less there.
    """
    own = {"fp8_forward": CODES_VARIANTS[1], MMA: OF_MMA, FP8_MMA: OF_FP8_MMA}
    own |= dict.fromkeys((SPLIT_MMA, SPLIT_MMA_REDUCE), OF_SPLITS) | {TENSOR: OF_TENSOR}
    constants = own.get(name, Constants(**SMALL, dtype="float32"))
    plain, probed = (operations(linked(compiled(name, constants, kind), cc)[0]) for kind in (False, True))
    assert plain["FFMA"] >= 10
    # lanes of these add up a row for its probe alone, and of codes what they stand for, and acc, get their scale there
    kept = {MMA: ("FFMA", "FMUL", "MUFU"), FP8_MMA: ("FFMA", "MUFU")}.get(name, plain)
    assert {x: probed[x] for x in kept} == {x: plain[x] for x in kept}


def test_probe_that_undoes_a_contraction_would_be_seen(operations):
    product = "s_q[r, d] * s_kv[c, d]"
    probing = Fault("", "flash", "", f"dot += {product}", f"t = {product}; probe.qk[b, h, row, key] = t; dot += t", ())
    plain, probed = (
        operations(linked(compiled("flash_forward", Constants(**SMALL, dtype="float32"), kind, (probing,)), (9, 0))[0])
        for kind in (False, True)
    )
    assert plain["FFMA"] > probed["FFMA"] and plain["FMUL"] < probed["FMUL"]
    ptx = compiled("flash_forward", Constants(**SMALL, dtype="float32"), True, (probing,)).get_asm_str(cc=(9, 0))
    assert stored_and_added(ptx)


@pytest.mark.parametrize("name", [*OF_HOPPER, "flash_forward"])
def test_no_probe_stores_a_product_that_is_added(name):
    """What a compiler fuses without that probe. Instructions of whole kernels are no measure where loops are taken apart,
    whose copies it merges as it likes.
    """
    kernel, _ = FUNCTIONS[name]
    case = Case(head_dim=64, dtype=kernel.dtypes[-1], causal=True)
    constants = kernel.constants(settle(kernel, case)) if name in OF_HOPPER else Constants(**SMALL, dtype="float32")
    ptx = compiled(name, constants, True).get_asm_str(cc=(9, 0))
    assert len(re.findall(r"\bst\.global\.f32\s", ptx)) > 10 and re.search(r"\bmul\.f32\s", ptx)
    assert not stored_and_added(ptx)


def stored_and_added(ptx):
    """Registers of products that are stored, and else only added: by instructions that may become one with the product's,
    which those that say how they round may not.
    """
    lines = re.findall(r"^\s+(?:@!?%p\d+ )?([a-z][\w.:]+)\s+(.*);$", ptx, re.MULTILINE)
    users = {text.partition(",")[0]: set() for name, text in lines if name == "mul.f32"}
    for name, text in lines:
        first, *others = re.findall(r"%f\d+", text) or [""]
        for register in [first, *others] if name.startswith("st.") else others:
            users.get(register, set()).add(name)
    sums = {"add.f32", "sub.f32"}
    return [
        x
        for x, names in users.items()
        if names & sums and "st.global.f32" in names and names <= {*sums, "st.global.f32"}
    ]
