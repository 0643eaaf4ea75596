"""What the kernels compile to for a GPU, looked at without one: PTX, linked machine code, and its instructions.

numba.cuda.jit hands LTO-IR to nvJitLink, which optimises it once more; PTX shows what it was given.
"""

import functools
import re
from dataclasses import replace
from pathlib import Path

import pytest
from numba.cuda import compiler, types

from workbench.case.stages import ALGORITHMS, STAGES, absent
from workbench.cuda.build import build
from workbench.cuda.cubin import SCALARS, type_of
from workbench.cuda.flash_build import SWITCHES
from workbench.cuda.flash_mma_build import Constants as MmaConstants
from workbench.cuda.flash_tensor_build import Constants as TensorConstants
from workbench.cuda.fp8_build import Constants as QuantisedConstants
from workbench.cuda.fp8_mma import Constants as Fp8MmaConstants
from workbench.cuda.kernels import KERNELS
from workbench.cuda.split_mma_build import Constants as SplitConstants

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
    function if file.stem == kernel.name else f"{kernel.name}_{function}": (kernel, function)
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
FP8_MMA, OF_FP8_MMA = "fp8_mma_flash_mma_forward", Fp8MmaConstants(16, 32, 64, "float16", ("CAUSAL",))
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
    MmaConstants(64, 128, 64, "float16", ("CAUSAL",)),  # default ones
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


def normalised(ptx):
    """PTX with the names that numba numbers, and the length of debug strings that hold them, made alike."""
    ptx = re.sub(r"_ZN\w+", "NAME", ptx)
    ptx = re.sub(r"_cudapy_smem_\d+", "smem", ptx)
    return ptx
