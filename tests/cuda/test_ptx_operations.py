"""Every operation of `workbench.cuda.ptx` in a small kernel: what it compiles to, and the same on a GPU and the emulator."""

import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest
from cuda.pathfinder import find_nvidia_binary_utility
from numba import cuda, float32, uint16
from numba.cuda import compiler, dispatcher, types
from numba.cuda.np.numpy_support import from_dtype

from workbench.cuda import emulator, ptx
from workbench.cuda.doctor import facts

FORMATS = {
    "f16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "e4m3": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2,
}


@dataclass(frozen=True)
class Micro:
    """A kernel for one warp around one operation."""

    kernel: Callable[..., None]
    arguments: tuple[np.ndarray, ...]  #: the last one is its output, 32 rows of float32 or uint32
    ptx: str  #: an expression for the text of the instruction
    least: tuple[int, int] = (8, 0)  #: the first compute capability that has it


def mma(name):
    shape, a_type, b_type = ptx.MMA_TYPES[name]
    operation = ptx.OPERATIONS[name]

    def kernel(a, b, c, out):
        t = cuda.threadIdx.x
        left, right = ptx.ld_v4_u32(a, (t, 0)), ptx.ld_v2_u32(b, (t, 0))
        ptx.st_v4_f32(out, (t, 0), operation(left, right, ptx.ld_v4_f32(c, (t, 0))))

    random = np.random.default_rng(0)
    a, b = (
        random.standard_normal((32, 4 * words // np.dtype(FORMATS[t]).itemsize)).astype(FORMATS[t]).view(np.uint32)
        for words, t in ((4, a_type), (2, b_type))
    )
    c = random.standard_normal((32, 4)).astype(np.float32)
    text = rf"mma\.sync\.aligned\.{shape}\.row\.col\.f32\.{a_type}\.{b_type}\.f32"
    return Micro(kernel, (a, b, c, np.zeros_like(c)), text, (8, 0) if "k16" in shape else (8, 9))


def ldmatrix(count, suffix):
    operation = ptx.OPERATIONS[f"ldmatrix_x{count}{suffix}"]

    def kernel(x, out):
        s = cuda.shared.array((32, 24), uint16, alignment=16)
        t = cuda.threadIdx.x
        for i in range(8):
            s[t, 8 + i] = x[t, i]
        cuda.syncwarp()
        registers = operation(s, (t % (8 * count), 8))
        for i in range(count):
            out[t, i] = registers[i]

    x = np.arange(256, dtype=np.uint16).reshape(32, 8)
    text = rf"ldmatrix\.sync\.aligned\.m8n8\.x{count}{re.escape(suffix.replace('_', '.'))}\.shared\.b16"
    return Micro(kernel, (x, np.zeros((32, count), np.uint32)), text)


def cp_async(size):
    operation = ptx.OPERATIONS[f"cp_async_{size}"]
    words = size // 4

    def kernel(x, out):
        s = cuda.shared.array((2, 32, words), float32, alignment=16)
        t = cuda.threadIdx.x
        operation(s, (0, t, 0), x, (0, t, 0))
        ptx.cp_async_commit()
        operation(s, (1, t, 0), x, (1, t, 0))
        ptx.cp_async_commit()
        ptx.cp_async_wait_group(1)
        cuda.syncwarp()
        for i in range(words):
            out[t, i] = s[0, 31 - t, i]
        ptx.cp_async_wait_all()
        cuda.syncwarp()
        for i in range(words):
            out[t, words + i] = s[1, 31 - t, i]

    x = np.arange(64 * words, dtype=np.float32).reshape(2, 32, words)
    cache = "cg" if size == 16 else "ca"
    text = (
        rf"cp\.async\.{cache}\.shared\.global \[%r\d+\], \[%rd\d+\], {size};.*commit_group;.*wait_group 1;.*wait_all;"
    )
    return Micro(kernel, (x, np.zeros((32, 2 * words), np.float32)), text)


def values(count=64):
    """float32 of every size that an fp8 or a float16 may have, beyond it, and the special ones."""
    random = np.random.default_rng(0)
    x = (random.standard_normal(count) * 2.0 ** random.integers(-20, 18, count)).astype(np.float32)
    x[:8] = 0, -0.0, np.inf, -np.inf, np.nan, 448, 464, 1e30
    return x.reshape(32, -1)


def packing(name, text, least=(8, 0)):
    operation = ptx.OPERATIONS[name]

    def kernel(x, out):
        t = cuda.threadIdx.x
        out[t, 0] = operation(x[t, 0], x[t, 1])

    return Micro(kernel, (values(), np.zeros((32, 1), np.uint32)), text, least)


def unpacking(name, text):
    operation = ptx.OPERATIONS[name]

    def kernel(x, out):
        t = cuda.threadIdx.x
        for i in range(x.shape[1]):
            out[t, i] = operation(x[t, i])

    x = np.arange(256, dtype=np.uint8).view(np.uint16).reshape(32, 4)
    return Micro(kernel, (x, np.zeros((32, 4), np.uint32)), text, (8, 9))


def halves(x, out):
    t = cuda.threadIdx.x
    out[t, 0], out[t, 1] = ptx.cvt_f32_f16x2(x[t])


def powers(x, out):
    t = cuda.threadIdx.x
    for i in range(x.shape[1]):
        out[t, i] = ptx.ex2_approx(x[t, i])


def tangents(x, out):
    t = cuda.threadIdx.x
    for i in range(x.shape[1]):
        out[t, i] = ptx.tanh_approx(x[t, i])


def copied(count, kind):
    load, store = ptx.OPERATIONS[f"ld_v{count}_{kind}"], ptx.OPERATIONS[f"st_v{count}_{kind}"]

    def kernel(x, out):
        t = cuda.threadIdx.x
        store(out, (t, 0), load(x, count * (31 - t)))

    x = np.arange(32 * count, dtype=np.float32).view({"f32": np.float32, "u32": np.uint32}[kind])
    text = rf"ld\.global\.v{count}\.\w32.*st\.global\.v{count}\.\w32"
    return Micro(kernel, (x, np.zeros((32, count), x.dtype)), text)


def streamed(x, out):
    t = cuda.threadIdx.x
    ptx.st_cs_v2_f32(out, (t, 0), ptx.ld_v2_f32(x, 2 * (31 - t)))


def added(x, out):
    t = cuda.threadIdx.x
    ptx.red_add_v4_f32(out, (t % 16, 0), ptx.ld_v4_f32(x, 4 * t))


HALVES = np.random.default_rng(0).standard_normal(64).astype(np.float16).view(np.uint32)
MICROS = {
    **{name: mma(name) for name in ptx.MMA_TYPES},
    **{f"ldmatrix_x{n}{suffix}": ldmatrix(n, suffix) for n in (1, 2, 4) for suffix in ("", "_trans")},
    **{f"cp_async_{size}": cp_async(size) for size in (4, 8, 16)},
    "cvt_f16x2_f32": packing("cvt_f16x2_f32", r"cvt\.rn\.f16x2\.f32"),
    "cvt_bf16x2_f32": packing("cvt_bf16x2_f32", r"cvt\.rn\.bf16x2\.f32"),
    "cvt_e4m3x2_f32": packing("cvt_e4m3x2_f32", r"cvt\.rn\.satfinite\.e4m3x2\.f32", (8, 9)),
    "cvt_e5m2x2_f32": packing("cvt_e5m2x2_f32", r"cvt\.rn\.satfinite\.e5m2x2\.f32", (8, 9)),
    "cvt_f16x2_e4m3x2": unpacking("cvt_f16x2_e4m3x2", r"cvt\.rn\.f16x2\.e4m3x2"),
    "cvt_f16x2_e5m2x2": unpacking("cvt_f16x2_e5m2x2", r"cvt\.rn\.f16x2\.e5m2x2"),
    "cvt_f32_f16x2": Micro(halves, (HALVES, np.zeros((32, 2), np.float32)), r"cvt\.f32\.f16"),
    "ex2_approx": Micro(powers, (values(), np.zeros((32, 2), np.float32)), r"ex2\.approx\.ftz\.f32"),
    "tanh_approx": Micro(tangents, (values(), np.zeros((32, 2), np.float32)), r"tanh\.approx\.f32"),
    "st_cs_v2_f32": Micro(
        streamed, (np.arange(64, dtype=np.float32), np.zeros((32, 2), np.float32)), r"st\.global\.cs\.v2\.f32"
    ),
    "red_add_v4_f32": Micro(
        added, (np.arange(128, dtype=np.float32), np.ones((32, 4), np.float32)), r"red\.global\.add\.v4\.f32", (9, 0)
    ),
    **{f"ld_v{n}_{kind}, st": copied(n, kind) for n in (2, 4) for kind in ("f32", "u32")},
}


@pytest.fixture
def library_of(monkeypatch):
    """library_of(micro): numba's code library, typed and lowered without a GPU."""
    if missing := facts().missing_toolkit:
        pytest.skip(f"needs the CUDA toolkit; not found: {', '.join(missing)}")
    monkeypatch.setattr(dispatcher, "get_current_device", lambda: SimpleNamespace(compute_capability=(8, 0)))

    def compiled(micro):
        arrays = (types.Array(from_dtype(array.dtype), array.ndim, "C") for array in micro.arguments)
        library, _ = compiler._compile_pyfunc_with_fixup(
            micro.kernel, types.void(*arrays), device=False, abi="numba", cc=micro.least
        )
        return library

    return compiled


def cubin(library, cc):
    from cuda.core import Linker, LinkerOptions, ObjectCode

    code = ObjectCode.from_ptx(library.get_asm_str(cc=cc).encode())
    return Linker(code, options=LinkerOptions(arch=f"sm_{cc[0]}{cc[1]}")).link("cubin").code


@pytest.mark.parametrize(
    "architectures", [((8, 0), (9, 0)), pytest.param(((8, 9), (10, 0)), marks=pytest.mark.campaign)], ids=str
)
@pytest.mark.parametrize("name", MICROS)
def test_operation_is_its_instruction_and_assembles(library_of, name, architectures):
    library = library_of(MICROS[name])
    for cc in architectures:
        if cc >= MICROS[name].least:
            assert re.search(MICROS[name].ptx, library.get_asm_str(cc=cc), re.DOTALL)
            assert cubin(library, cc).startswith(b"\x7fELF")


def test_every_operation_has_a_kernel_here():
    used = {name for name in MICROS if name in ptx.OPERATIONS}
    used |= {f"{verb}_v{n}_{kind}" for verb in ("ld", "st") for n in (2, 4) for kind in ("f32", "u32")}
    assert ptx.OPERATIONS.keys() - used == {"cp_async_commit", "cp_async_wait_group", "cp_async_wait_all"}


def test_fp8_is_two_products_of_float16_on_hopper(library_of, tmp_path):
    """What `emulator.tensor` computes: zeros first, then the first product, C added last."""
    nvdisasm = shutil.which("nvdisasm") or find_nvidia_binary_utility("nvdisasm")
    if nvdisasm is None:
        pytest.skip("needs nvdisasm; pip install nvidia-cuda-nvdisasm")
    path = tmp_path / "kernel.cubin"
    path.write_bytes(cubin(library_of(MICROS["mma_m16n8k32_e4m3"]), (9, 0)))
    listing = subprocess.run([nvdisasm, "-c", path], capture_output=True, text=True, check=True).stdout
    upper, products = {}, []
    for name, operands in re.findall(r"\b(QMMA|HMMA|FADD|UNPACK_B)\b([^;]*);", listing):
        registers = re.findall(r"R[Z\d]+(?:\.H1)?", operands)
        if name == "UNPACK_B":  # two of the four fp8 of a register become two float16
            upper[registers[0]] = registers[1].endswith(".H1")
        elif name == "HMMA":
            products.append((upper[registers[1]], upper[registers[2]], registers[0], registers[3]))
        else:
            assert name == "FADD" and len(products) == 2
    (*first_factors, first, zeros), (*second_factors, _, start) = products
    assert (first_factors, second_factors) == ([False, False], [True, True])
    assert zeros == "RZ" and start == first
    assert len(re.findall(r"\bFADD\b", listing)) == 4


@pytest.mark.gpu
@pytest.mark.parametrize("name", MICROS)
def test_gpu_and_emulator_agree_to_the_bit(name):
    """ex2.approx is documented to be within 2 ulp, and the emulator's is rounded once; tanh.approx, within 2^-11, and the
    emulator's is as far off.
    """
    micro = MICROS[name]
    on_device = tuple(cuda.to_device(array) for array in micro.arguments)
    cuda.jit(micro.kernel)[1, 32](*on_device)
    on_gpu = on_device[-1].copy_to_host()
    emulated = tuple(array.copy() for array in micro.arguments)
    emulator.compile(emulator.source_of(micro.kernel))(1, 32, emulated)
    assert emulated[-1].any()
    if name == "ex2_approx":
        np.testing.assert_array_max_ulp(on_gpu, emulated[-1], 2)
    elif name == "tanh_approx":
        np.testing.assert_allclose(on_gpu, emulated[-1], rtol=2**-10, atol=0)
    else:
        np.testing.assert_array_equal(on_gpu.view(np.uint32), emulated[-1].view(np.uint32))


@pytest.mark.campaign(but=12)
@pytest.mark.parametrize("name", MICROS)
def test_emulator_runs_it(name):
    """The other half of the comparison with a GPU, and that it writes more than zeros."""
    micro = MICROS[name]
    arguments = tuple(array.copy() for array in micro.arguments)
    emulator.compile(emulator.source_of(micro.kernel))(1, 32, arguments)
    assert arguments[-1].any(axis=1).sum() >= 16
