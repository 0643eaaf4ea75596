"""What is read of shared objects, on some that the compiler makes here."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from workbench import Refusal, Unavailable
from workbench.foreign import extension as shared_object
from workbench.foreign.extension import newer_sources, read

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")


def built(folder: Path, name: str, source: str, *options: str) -> Path:
    """A shared object made by g++, newer than its source."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.cpp").write_text(source)
    os.utime(folder / f"{name}.cpp", (1e9, 1e9))
    made = folder / f"lib{name}.so"
    subprocess.run(["g++", "-shared", "-fPIC", "-o", made, folder / f"{name}.cpp", *options], check=True)
    return made


KEEP = ("-Wl,--no-as-needed", "-lm")
CALLS = """
#include <string>
namespace c10 { void fail(const std::string &); }
namespace mine { int missing(float, long); }
extern "C" int PyLong_FromLong(long);
extern "C" int go() { c10::fail("x"); return mine::missing(1, 2) + PyLong_FromLong(3); }
"""


@pytest.mark.parametrize("abi", [0, 1])
def test_open_symbols_and_the_abi_that_they_show(tmp_path: Path, abi: int) -> None:
    it = read(built(tmp_path, "calls", CALLS, f"-D_GLIBCXX_USE_CXX11_ABI={abi}"), None)
    text = "std::__cxx11::basic_string" if abi else "std::basic_string"
    (fails,) = (name for name in it.undefined if name.startswith("c10::fail("))
    assert fails.startswith(f"c10::fail({text}<char") and set(it.undefined) == {fails, "mine::missing(float, long)"}
    assert it.cxx11_abi == (abi,) and not it.machine_code and not it.ptx


def test_strings_that_torch_never_sees_tell_no_abi(tmp_path: Path) -> None:
    source = CALLS.replace("c10::", "my::").replace("namespace c10", "namespace my")
    assert read(built(tmp_path, "calls", source, "-D_GLIBCXX_USE_CXX11_ABI=0"), None).cxx11_abi == ()


def test_libraries_and_where_they_are_found(tmp_path: Path) -> None:
    lower = built(tmp_path / "torch", "lower", "int lower() { return 1; }")
    upper = built(
        tmp_path, "upper", "int lower(); int upper() { return lower(); }", f"-L{lower.parent}", "-llower", *KEEP
    )
    alone = read(upper, None)
    assert alone.libraries["liblower.so"] == "" and alone.undefined == ("lower()",)
    assert alone.libraries["libm.so.6"].endswith("/libm.so.6")
    beside = read(upper, lower.parent)
    assert beside.libraries["liblower.so"] == str(lower) and beside.undefined == ()


def test_newer_sources_are_named(tmp_path: Path) -> None:
    made = built(tmp_path, "old", "int f() { return 1; }")
    (tmp_path / "notes.txt").touch()
    assert newer_sources(made) == ()
    later = made.stat().st_mtime + 10
    for name in ("old.cpp", "kernel.cu", "notes.txt"):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (later, later))
    assert newer_sources(made) == (str(tmp_path / "kernel.cu"), str(tmp_path / "old.cpp"))
    (tmp_path / "csrc").mkdir()
    header = (tmp_path / "kernel.cu").rename(tmp_path / "csrc" / "kernel.cuh")
    assert newer_sources(made) == (str(header), str(tmp_path / "old.cpp"))
    header.rename(tmp_path / "kernel.cu")
    (tmp_path / "build").mkdir()
    made = made.rename(tmp_path / "build" / made.name)
    assert newer_sources(made) == ()
    rules = f"rule compile\n  command = c++\n\nbuild main.o: compile {tmp_path}/old.cpp\nbuild k.cuda.o: cuda_compile {tmp_path}/kernel.cu\n"
    (tmp_path / "build" / "build.ninja").write_text(rules)
    assert newer_sources(made) == (str(tmp_path / "kernel.cu"), str(tmp_path / "old.cpp"))


def test_architectures_are_unknown_without_cuobjdump(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = built(tmp_path, "fat", 'asm(".section .nv_fatbin, \\"a\\"; .zero 8; .previous");')
    monkeypatch.setattr(shared_object, "_cuobjdump", lambda: None)
    it = read(made, None)
    assert (it.machine_code, it.ptx) == (None, ())


@pytest.mark.campaign
def test_architectures_of_nvcc(tmp_path: Path) -> None:
    if shutil.which("nvcc") is None or shared_object._cuobjdump() is None:
        pytest.skip("nvcc or cuobjdump is not installed")
    (tmp_path / "k.cu").write_text("__global__ void f(float *x) { x[0] = 1; }\n")
    targets = [
        word
        for code in ("arch=compute_80,code=sm_80", "arch=compute_90a,code=sm_90a", "arch=compute_90,code=compute_90")
        for word in ("-gencode", code)
    ]
    options = ["-shared", "-Xcompiler", "-fPIC", "-cudart", "none", *targets]
    subprocess.run(["nvcc", "-o", tmp_path / "k.so", tmp_path / "k.cu", *options], check=True)
    it = read(tmp_path / "k.so", None)
    assert (it.machine_code, it.ptx) == (("sm_80", "sm_90a"), ("sm_90",))


def test_other_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.so").write_text("MZ90 windows")
    with pytest.raises(Refusal) as refusal:
        read(tmp_path / "a.so", None)
    assert str(refusal.value) == f"{tmp_path}/a.so: not a shared object of 64-bit Linux; it begins with b'MZ90 w'"


@pytest.mark.parametrize("size", [6, 50, 1000])
def test_a_file_that_is_cut_off_is_refused(tmp_path: Path, size: int) -> None:
    """As an interrupted copy leaves it: the ELF header tells of sections beyond its end."""
    made = built(tmp_path, "whole", "int f() { return 1; }")
    made.write_bytes(made.read_bytes()[:size])
    with pytest.raises(Refusal) as refusal:
        read(made, None)
    assert str(refusal.value) == f"{made}: not a whole shared object; it is cut off at {size} bytes"


def test_a_tool_that_is_not_there_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = built(tmp_path, "plain", "int f() { return 1; }")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Unavailable) as missing:
        read(made, None)
    assert str(missing.value) == (
        "doctor reads shared objects with ldd, which was not found: apt install binutils libc-bin"
    )
