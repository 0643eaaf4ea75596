"""Machine code of builds: what of a launch it takes, and that the cache gives no code of another build."""

import itertools
import struct
from dataclasses import replace
from types import SimpleNamespace

import pytest
from numba.cuda import dispatcher, types

from tests.refusals import refusal
from workbench import Case
from workbench.cuda import cubin as in_cache
from workbench.cuda.build import build
from workbench.cuda.cubin import COMPILERS, Cubin, cubin, signature
from workbench.cuda.doctor import facts
from workbench.cuda.kernels import KERNELS
from workbench.cuda.plan import resolve, scalars

CC = (9, 0)
#: bytes of what is passed of a scalar
SIZES = {types.float32: 4, types.int32: 4, types.boolean: 1}
#: every scalar and every array is an argument of one of them
BUILDS = {
    "flash_mma": dict(dtype="float16", head_dim=64, softcap=5.0, window=(8, 3)),
    "flash": dict(head_dim=32, causal=True, block_q=16, block_k=16),
}


@pytest.fixture(scope="module")
def toolkit():
    """Skip without it; answer for the GPU where numba asks for its compute capability."""
    if missing := facts().missing_toolkit:
        pytest.skip(f"needs the CUDA toolkit; not found: {', '.join(missing)}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dispatcher, "get_current_device", lambda: SimpleNamespace(compute_capability=CC))
        yield


def built(name, probes=(), **options):
    kernel = KERNELS[name]
    case = resolve(kernel, Case(**BUILDS[name] | options))
    (one,) = kernel.launches(case)
    constants = kernel.constants(case)
    return build(kernel.functions[one.function], one.function, constants, probes, ()), constants, case


def sections(elf):
    """Name -> content of the sections of an ELF file of 64 bits."""
    (table,), (size, count, of_names) = struct.unpack_from("<Q", elf, 0x28), struct.unpack_from("<HHH", elf, 0x3A)
    headers = [struct.unpack_from("<IIQQQQ", elf, table + i * size) for i in range(count)]
    names = headers[of_names][4]
    return {
        elf[names + name : elf.index(b"\0", names + name)].decode(): elf[at : at + length]
        for name, kind, _, _, at, length in headers
        if kind != 8  # which take no room in the file
    }


def parameters_of(code):
    """(offset, bytes) of every parameter of a kernel, in order: EIATTR_KPARAM_INFO of its section .nv.info."""
    info, at, found = sections(code.code)[f".nv.info.{code.symbol}"], 0, {}
    while at < len(info):
        form, attribute, size = struct.unpack_from("<BBH", info, at)
        if (form, attribute) == (4, 0x17):
            _, ordinal, offset, flags = struct.unpack_from("<IHHI", info, at + 4)
            found[ordinal] = offset, flags >> 18
        at += 4 + (size if form == 4 else 0)
    return [found[i] for i in range(len(found))]


@pytest.mark.parametrize(
    ("name", "layout"), [pytest.param("flash_mma", "A", marks=pytest.mark.campaign), ("flash", "C")]
)
def test_signature_is_what_the_code_takes(name, layout, toolkit):
    """numba.cuda passes of an array two pointers, elements, bytes of one, the address, shape and strides."""
    made, constants, case = built(name)
    typed = signature(made, case.dtype, layout)
    code = cubin(made, constants, typed, CC)
    assert made.source.name in code.symbol
    sizes = [[8] * (5 + 2 * x.ndim) if isinstance(x, types.Array) else [SIZES[x]] for x in typed.args]
    found = parameters_of(code)
    assert [size for _, size in found] == [*itertools.chain(*sizes)]
    assert all(offset % size == 0 for offset, size in found)


def test_types_of_arguments():
    made, _, case = built("flash_mma", ("scores", "row_sum"), dtype="bfloat16")
    typed = dict(
        zip((*made.parameters, *made.probes), signature(made, "bfloat16", "A").args, strict=True),
    )
    four, flat = types.Array(types.uint16, 4, "A"), types.Array(types.float32, 3, "C")
    assert all(typed[x] == four for x in ("q", "k", "v", "out")) and typed["lse"] == flat
    assert typed["scores"] == types.Array(types.float32, 4, "C") and typed["row_sum"].ndim == 4
    assert {x: typed[x] for x in ("scale", "softcap", "left")} == {
        "scale": types.float32,
        "softcap": types.float32,
        "left": types.int32,
    }
    assert {*typed} - {"q", "k", "v", "out", "lse", "scores", "row_sum"} <= {*scalars(case)}
    packed, _, _ = built("flash_mma", seqlens_q=(3, 4), seqlens_k=(5, 6), window=None)
    assert signature(packed, "float16").args[packed.parameters.index("cu_seqlens_k")] == types.Array(
        types.int32, 1, "C"
    )


@pytest.fixture
def compiles(tmp_path, monkeypatch):
    """The builds that were compiled, into an empty cache; code of each is another."""
    done = []

    def compiled(made, typed, compute_capability):
        done.append(made)
        return b"\x7fELF .nv.constant0.symbol%d\0 .text.other\0" % len(done)

    monkeypatch.setattr(in_cache, "_compiled", compiled)
    monkeypatch.setenv("WORKBENCH_CACHE", str(tmp_path))
    return done


@pytest.mark.parametrize("lines", [True, False])
def test_what_nvvm_cannot_give_lines_is_compiled_without(monkeypatch, lines):
    """NVVM 13.0 on some locals: "Symbol name with unsupported characters"; what is wrong otherwise stays so."""
    nvvm = pytest.importorskip("cuda.bindings.nvvm", reason="needs cuda-bindings")
    refused, asked = nvvm.nvvmError(nvvm.Result.ERROR_COMPILATION), []

    def compiles(function, typed, **options):
        asked.append(options["lineinfo"])
        if options["lineinfo"] or not lines:
            raise refused
        return ".target sm_90\n", None

    monkeypatch.setattr(in_cache.cuda, "compile", compiles)
    made, _, _ = built("flash")
    if lines:
        assert in_cache._by_nvvm(made, None, CC, "ptx") == ".target sm_90\n"
    else:
        with pytest.raises(nvvm.nvvmError):
            in_cache._by_nvvm(made, None, CC, "ptx")
    assert asked == [True, False]


def code_of(name, cc=CC, layout="C", probes=(), **options):
    made, constants, case = built(name, probes, **options)
    return cubin(made, constants, signature(made, case.dtype, layout), cc)


def test_a_build_is_compiled_once(compiles):
    first, again = code_of("flash_mma"), code_of("flash_mma")
    assert first == again == Cubin(first.code, "symbol1") and len(compiles) == 1


def test_the_name_of_the_file_is_the_same_in_every_process(compiles, tmp_path):
    """repr of a device function, which CAST is, has its address."""
    code_of("flash_mma")
    made, constants, _ = built("flash_mma")
    assert "0x" in repr(made.source.namespace["CAST"]) and "0x" not in repr(constants)
    names = sorted(path.name for path in (tmp_path / "cubin").iterdir())
    made.source.namespace["CAST"] = object()
    assert cubin(made, constants, signature(made, "float16"), CC).symbol == "symbol1"
    assert names == sorted(path.name for path in (tmp_path / "cubin").iterdir()) and len(names) == 1


@pytest.mark.parametrize(
    "other",
    [
        dict(block_q=32),
        dict(scale=-1.0, softcap=None),
        dict(probes=("scores",)),
        dict(probes=("row_max",)),
        dict(dtype="bfloat16"),
        dict(layout="A"),
        dict(cc=(8, 0)),
        dict(causal=True),
    ],
    ids=str,
)
def test_another_build_is_other_code(other, compiles):
    assert [code_of("flash_mma").symbol, code_of("flash_mma", **other).symbol] == ["symbol1", "symbol2"]
    assert [code_of("flash_mma").symbol, code_of("flash_mma", **other).symbol] == ["symbol1", "symbol2"]


def test_other_constants_alone_are_other_code(compiles):
    """The same text and signature: capitals that are functions have no words of their own."""
    made, constants, _ = built("flash_mma")
    typed = signature(made, "float16")
    found = {cubin(made, one, typed, CC).symbol for one in (constants, replace(constants, block_k=32))}
    assert found == {"symbol1", "symbol2"}


@pytest.mark.parametrize("package", COMPILERS)
def test_another_compiler_is_other_code(package, compiles, monkeypatch):
    first = code_of("flash_mma")
    monkeypatch.setattr(in_cache, "versions", lambda *names: dict.fromkeys(names, "1") | {package: "2"})
    second = code_of("flash_mma")
    monkeypatch.setattr(in_cache, "versions", lambda *names: dict.fromkeys(names, "1"))
    assert len({first, second, code_of("flash_mma")}) == 3


def test_other_device_code_is_other_code(compiles, monkeypatch):
    """A kernel calls functions of other files."""
    first = code_of("flash_mma")
    monkeypatch.setattr(in_cache, "_device_code", lambda: "changed")
    assert code_of("flash_mma") != first


def test_a_cache_that_cannot_be_written_is_refused(compiles, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("WORKBENCH_CACHE", str(tmp_path / "file"))
    said = refusal(code_of, "flash_mma")
    assert said.startswith(f"{tmp_path}/file/cubin/flash_mma_forward_") and "cannot be written: " in said
