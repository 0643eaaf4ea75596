"""Machine code of a build, compiled once for a GPU and kept on disk."""

import functools
import hashlib
import re
from pathlib import Path
from typing import Any, NamedTuple

from numba import cuda, types

from workbench.case.stages import STAGES
from workbench.cuda.build import Build
from workbench.cuda.kernel import Constants
from workbench.cuda.tensor_maps import MAP_BYTES, tensor_map_name
from workbench.files import cache_folder, write_atomically
from workbench.machine import versions

#: scalar argument of a kernel -> its type; `plan.scalars` has their values
SCALARS = {
    **dict.fromkeys(("scale", "softcap", "keep_scale"), types.float32),
    **dict.fromkeys(("causal", "bottom_right"), types.boolean),
    **dict.fromkeys(("diagonal", "left", "right", "max_seqlen_k"), types.int32),
}
#: dtype of q, k, v and out -> its type in a kernel; bfloat16 as bits
STORAGE = {"float32": types.float32, "float16": types.float16, "bfloat16": types.uint16}
#: arrays of 32-bit integers, [b] or [b + 1]
LENGTHS = ("cu_seqlens_q", "cu_seqlens_k", "cache_seqlens")
#: what makes code of a kernel: numba types it, NVVM compiles it, nvJitLink optimises it again
COMPILERS = ("numba", "numba-cuda", "cuda-core", "nvidia-nvvm", "nvidia-nvjitlink")


#: compute capability of the instructions in `hopper`
HOPPER = (9, 0)


class Cubin(NamedTuple):
    """A kernel in an ELF file, or in PTX."""

    code: bytes
    symbol: str  #: its name in there

    def load(self) -> Any:
        """The kernel of `cuda.core` on the GPU whose context is current."""
        from cuda.core import ObjectCode

        made = ObjectCode.from_cubin if self.code.startswith(b"\x7fELF") else ObjectCode.from_ptx
        return made(self.code).get_kernel(self.symbol)


def signature(build: Build, dtype: str, layout: str = "C") -> Any:
    """The numba signature of a build on floats, its parameters as of `type_of`."""
    names = (*build.parameters, *(f"probe_{stage}" for stage in build.probes))
    return types.void(*(type_of(name, dtype, layout) for name in names))


def type_of(name: str, dtype: str, layout: str = "C") -> Any:
    """The type of a parameter of a kernel on floats: arrays of q, k, v and out of `dtype` and a layout, C or, with
    strides of any size, A; all others contiguous, float32 but for lengths.
    """
    if name in SCALARS:
        return SCALARS[name]
    if name in LENGTHS:
        return types.Array(types.int32, 1, "C")
    if name in ("q", "k", "v", "out"):
        return types.Array(STORAGE[dtype], 4, layout)
    return types.Array(types.float32, len(STAGES[name.removeprefix("probe_")].axes), "C")


def cubin(build: Build, constants: Constants, typed: Any, compute_capability: tuple[int, int]) -> Cubin:
    """The machine code of a build with these constants and a `typed` signature; from the cache where it was compiled
    before. Refusal where the cache cannot be written.
    """
    # constants tell what capitals are bound to; repr of a device function among those is another in every process
    made_of = (build.text, build.source.name, build.probes, constants, str(typed), compute_capability)
    key = repr((made_of, sorted(build.cuda_options.items()), _device_code(), versions(*COMPILERS)))
    path = cache_folder() / "cubin" / f"{build.source.name}_{hashlib.sha256(key.encode()).hexdigest()[:24]}.cubin"
    if not path.exists():
        write_atomically(path, _compiled(build, typed, compute_capability))
    code = path.read_bytes()
    # only what is launched has a bank of its arguments: a function that it calls has a text at most
    (symbol,) = {*re.findall(rb"\.entry (\w+)" if build.maps else rb"\.nv\.constant0\.(\w+)", code)}
    return Cubin(code, symbol.decode())


@functools.cache
def _device_code() -> str:
    """A hash of what kernels may call: device functions and instructions are in this folder."""
    files = sorted(Path(__file__).parent.glob("*.py"))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def _compiled(build: Build, typed: Any, compute_capability: tuple[int, int]) -> bytes:
    """As numba.cuda's own launch has it: LTO-IR, optimised once more where it is linked."""
    from cuda.core import Linker, LinkerOptions, ObjectCode

    if build.maps:
        return _with_maps(_by_nvvm(build, typed, HOPPER, "ptx"), len(build.maps)).encode()
    ltoir = _by_nvvm(build, typed, compute_capability, "ltoir")
    options = LinkerOptions(arch="sm_{}{}".format(*compute_capability), link_time_optimization=True, lineinfo=True)
    code: bytes = Linker(ObjectCode.from_ltoir(ltoir), options=options).link("cubin").code
    return code


def _by_nvvm(build: Build, typed: Any, compute_capability: tuple[int, int], output: str) -> Any:
    """What NVVM makes of a build; without its lines where it cannot have them."""
    from cuda.bindings.nvvm import nvvmError

    given = {"device": False, "abi": "numba", "cc": compute_capability, "output": output, **build.cuda_options}
    try:
        made, _ = cuda.compile(build.for_numba, typed, **given)
    except nvvmError:
        # with lines, numba-cuda tells the debugger of each local's values too (llvm.dbg.value), and NVVM 13.0 has no
        # symbol for some that it has folded: "Symbol name with unsupported characters"
        made, _ = cuda.compile(build.for_numba, typed, **given | {"lineinfo": False})
    return made


def _with_maps(ptx: str, count: int) -> str:
    """PTX for Hopper alone, its entry with as many tensor maps behind its other parameters. A linker makes code that
    others may call, for which it ignores how registers are handed on (setmaxnreg); the driver compiles it whole.
    """
    ptx = re.sub(r"^\.target sm_90\b", ".target sm_90a", ptx, flags=re.M)
    maps = "".join(f",\n\t.param .align 64 .b8 {tensor_map_name(i)}[{MAP_BYTES}]" for i in range(count))
    return re.sub(r"(\.entry \w+\([^)]*?)\s*\)", rf"\1{maps}\n)", ptx, count=1)
