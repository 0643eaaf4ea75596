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


class Cubin(NamedTuple):
    """A kernel in an ELF file."""

    code: bytes
    symbol: str  #: its name in there


def signature(build: Build, dtype: str, layout: str = "C") -> Any:
    """The numba signature of a build on floats: arrays of q, k, v and out of `dtype` and a layout, C or, with strides
    of any size, A; all others contiguous, float32 but for lengths.
    """

    def of(name: str) -> Any:
        if name in SCALARS:
            return SCALARS[name]
        if name in LENGTHS:
            return types.Array(types.int32, 1, "C")
        if name in ("q", "k", "v", "out"):
            return types.Array(STORAGE[dtype], 4, layout)
        return types.Array(types.float32, len(STAGES[name.removeprefix("probe_")].axes), "C")

    return types.void(*map(of, (*build.parameters, *(f"probe_{stage}" for stage in build.probes))))


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
    (symbol,) = {*re.findall(rb"\.nv\.constant0\.(\w+)", code)}
    return Cubin(code, symbol.decode())


@functools.cache
def _device_code() -> str:
    """A hash of what kernels may call: device functions and instructions are in this folder."""
    files = sorted(Path(__file__).parent.glob("*.py"))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def _compiled(build: Build, typed: Any, compute_capability: tuple[int, int]) -> bytes:
    """As numba.cuda's own launch has it: LTO-IR, optimised once more where it is linked."""
    from cuda.core import Linker, LinkerOptions, ObjectCode

    function = build.source.namespace[build.source.name]
    ltoir, _ = cuda.compile(
        function, typed, device=False, abi="numba", cc=compute_capability, output="ltoir", **build.cuda_options
    )
    options = LinkerOptions(arch="sm_{}{}".format(*compute_capability), link_time_optimization=True, lineinfo=True)
    code: bytes = Linker(ObjectCode.from_ltoir(ltoir), options=options).link("cubin").code
    return code
