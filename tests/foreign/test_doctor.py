"""The doctor on extensions: each thing that can be wrong with one, in a line with its fix."""

import json
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from workbench import Refusal
from workbench.cli.main import commands
from workbench.cuda.gpu import Gpu
from workbench.foreign.doctor import Torch, checks_of, extensions, judge, runs_on
from workbench.foreign.extension import SharedObject

H200 = Gpu("NVIDIA H200", (9, 0), "13.0")
TORCH = Torch("2.13.0+cu130", "13.0", 1, Path("/site/torch/lib"))
HEALTHY = SharedObject(
    path=Path("/build/flash.so"),
    libraries={"libc10.so": "/site/torch/lib/libc10.so", "libcudart.so.13": "/cuda/lib64/libcudart.so.13"},
    undefined=(),
    cxx11_abi=(1,),
    machine_code=("sm_80", "sm_90a"),
    ptx=(),
    newer_sources=(),
)


def test_a_healthy_extension() -> None:
    assert [(one.name, one.detail) for one in judge(HEALTHY, TORCH, H200)] == [
        ("flash.so libc10.so", "/site/torch/lib/libc10.so, once torch is imported"),
        ("flash.so libcudart.so.13", "/cuda/lib64/libcudart.so.13"),
        ("flash.so symbols", "all defined"),
        ("flash.so C++ ABI", "1, torch's is 1"),
        ("flash.so CUDA", "linked with 13, torch with 13.0"),
        ("flash.so GPUs", "sm_80, sm_90a; NVIDIA H200 is sm_90"),
        ("flash.so age", "not older than its sources"),
    ]
    assert all(one.ok and not one.fix for one in judge(HEALTHY, TORCH, H200))
    assert [one.name[9:] for one in judge(replace(HEALTHY, libraries={}, machine_code=()), TORCH, H200)] == [
        "symbols",
        "age",
    ]
    assert judge(HEALTHY, TORCH, None)[-2].detail == "sm_80, sm_90a; no GPU here to compare with"
    unknown = judge(replace(HEALTHY, machine_code=None), TORCH, H200)[-2]
    assert (unknown.name, unknown.ok, unknown.required) == ("flash.so GPUs", True, False)
    assert unknown.detail == "unknown: cuobjdump (CUDA toolkit, Triton) was not found"


@pytest.mark.parametrize(
    ("changes", "name", "detail", "fix"),
    [
        (
            {"libraries": {"libmine.so": ""}},
            "libmine.so",
            "not found",
            "install libmine.so, or add its folder to LD_LIBRARY_PATH or with -Wl,-rpath",
        ),
        (
            {"undefined": ("c10::f(int)", "a", "b", "c", "d")},
            "symbols",
            "undefined: c10::f(int); a; b and 2 more",
            "link the source or library that defines it; if it is torch's, build against the installed torch",
        ),
        ({"cxx11_abi": (0,)}, "C++ ABI", "0, torch's is 1", "build it with -D_GLIBCXX_USE_CXX11_ABI=1"),
        ({"cxx11_abi": (0, 1)}, "C++ ABI", "0 and 1, torch's is 1", "build it with -D_GLIBCXX_USE_CXX11_ABI=1"),
        (
            {"libraries": {"libcudart.so.12": "/cuda/lib64/libcudart.so.12"}},
            "CUDA",
            "linked with 12, torch with 13.0",
            "build it with the CUDA 13 toolkit",
        ),
        (
            {"machine_code": ("sm_80", "sm_100a"), "ptx": ("sm_100",)},
            "GPUs",
            "sm_80, sm_100a, PTX for sm_100; NVIDIA H200 is sm_90",
            "build it for this GPU: nvcc -arch=sm_90, or TORCH_CUDA_ARCH_LIST=9.0 for torch's extension loader",
        ),
        (
            {"newer_sources": ("/src/flash.cu", "/src/flash.h")},
            "age",
            "older than /src/flash.cu, /src/flash.h",
            "rebuild it: the old code runs",
        ),
    ],
    ids=["library", "symbols", "old abi", "mixed abi", "cuda", "gpu", "age"],
)
def test_what_can_be_wrong(changes: dict[str, object], name: str, detail: str, fix: str) -> None:
    (failure,) = (one for one in judge(replace(HEALTHY, **changes), TORCH, H200) if not one.ok)
    assert (failure.name, failure.detail, failure.fix) == (f"flash.so {name}", detail, fix) and failure.required


def test_a_cpu_torch_lacks_cuda_libraries() -> None:
    cpu = replace(TORCH, cuda=None)
    (failure,) = (one for one in judge(replace(HEALTHY, libraries={"libc10_cuda.so": ""}), cpu, H200) if not one.ok)
    assert failure.fix == "install torch for CUDA: this one is for the CPU"


@pytest.mark.parametrize(
    ("machine_code", "ptx", "runs"),
    [
        ([], [], []),
        (["sm_80"], [], [(8, 0), (8, 6), (8, 9)]),
        (["sm_86"], [], [(8, 6), (8, 9)]),
        (["sm_90a"], [], [(9, 0)]),
        ([], ["sm_80"], [(8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (10, 3)]),
        ([], ["sm_90a"], [(9, 0)]),
        (["sm_100f"], [], [(10, 0), (10, 3)]),
        ([], ["sm_100f"], [(10, 0), (10, 3)]),
        (["sm_80"], ["sm_90"], [(8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (10, 3)]),
    ],
)
def test_which_gpus_run_it(machine_code: list[str], ptx: list[str], runs: list[tuple[int, int]]) -> None:
    it = replace(HEALTHY, machine_code=tuple(machine_code), ptx=tuple(ptx))
    devices = [(7, 5), (8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (10, 3)]
    assert [device for device in devices if runs_on(it, device)] == runs


def test_extensions_of_a_python_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Imported, named, built by torch's loader; modules of Python and packages are none."""
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path / "cache"))
    for name in ("mine.cpython-311-x86_64-linux-gnu.so", "mine.so", "named.so", "cache/py311_cpu/loaded/loaded_v1.so"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    path = tmp_path / "kernel.py"
    path.write_text(
        "import math, os, json, torch\nimport mine\nfrom nowhere_at_all import x\n"
        'torch.ops.load_library("named.so")\nctypes.CDLL("gone.so")\n'
        'def f():\n    m = load(name="loaded", sources=["a.cu"])\n    return np.load(path)\nraise SystemExit("not run")\n'
    )
    found = [str(one.relative_to(tmp_path)) for one in extensions(path)]
    assert sorted(found) == sorted({found[0], "named.so", "cache/py311_cpu/loaded/loaded_v1.so"})
    assert found[0].startswith("mine.")


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        (
            "a.py",
            "import math\n",
            "FILE: no compiled extension that it imports or names was found; give its .so instead",
        ),
        ("a.py", "def\n", "FILE: not Python (invalid syntax (FILE, line 1))"),
        ("a.txt", "", "doctor looks at a FILE.py or a FILE.so; got 'FILE'"),
        ("a.so", None, "FILE: no such file"),
    ],
)
def test_files_without_extensions_are_refused(tmp_path: Path, name: str, text: str | None, message: str) -> None:
    path = tmp_path / name
    if text is not None:
        path.write_text(text)
    with pytest.raises(Refusal) as refusal:
        checks_of(str(path))
    assert str(refusal.value).replace(f"({name},", "(FILE,") == message.replace("FILE:", f"{path}:").replace(
        "'FILE'", f"'{path}'"
    )


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_bytes(b"\xff")
    with pytest.raises(Refusal) as refusal:
        checks_of(str(path))
    assert str(refusal.value) == (
        f"{path}: not Python ('utf-8' codec can't decode byte 0xff in position 0: invalid start byte)"
    )


def test_the_command_line(tmp_path: Path) -> None:
    if shutil.which("g++") is None:
        pytest.skip("g++ is not installed")
    (tmp_path / "broken.cpp").write_text("int missing(float); int go() { return missing(1); }")
    subprocess.run(["g++", "-shared", "-fPIC", "-o", tmp_path / "broken.so", tmp_path / "broken.cpp"], check=True)
    (tmp_path / "uses.py").write_text("import broken\n")
    for target in ("broken.so", "uses.py"):
        result = CliRunner().invoke(commands, ["doctor", str(tmp_path / target)])
        assert result.exit_code == 3
        assert "WRONG  broken.so symbols: undefined: missing(float)\n       fix: link the source" in result.stdout
        document = json.loads(CliRunner().invoke(commands, ["doctor", str(tmp_path / target), "--json"]).stdout)
        assert [one["name"] for one in document["checks"] if not one["ok"] and one["required"]] == ["broken.so symbols"]
