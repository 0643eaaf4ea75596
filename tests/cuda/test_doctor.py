"""The doctor: each thing that can be wrong with a machine, told by its check, with a fix."""

import os
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from workbench.cuda import doctor
from workbench.cuda.doctor import Facts, can_write, checks, judge
from workbench.cuda.gpu import Gpu, first_gpu
from workbench.extras import EXTRAS

PYPROJECT = Path(__file__).parent.parent.parent / "pyproject.toml"

HEALTHY = Facts(
    python="3.12.1",
    versions={
        "attention-workbench": "0.1.0",
        **{"numpy": "2.4.6", "numba": "0.68.1", "numba-cuda": "0.30.4"},
        **{"matplotlib": "3.11.2", "hypothesis": "6.170.15"},
        **{"torch": "2.13.0+cpu", "triton": "3.7.1", "distributed": "2026.8.0"},
    },
    implementation="NVIDIA",
    gpu=Gpu("NVIDIA H200", (9, 0), "13.0"),
    no_gpu="",
    missing_toolkit=(),
    cache=Path("cache"),
    cache_writable=True,
)


def only_failure(facts):
    """The one check that fails."""
    (failure,) = (check for check in judge(facts) if not check.ok)
    return failure


def with_version(name, version):
    return replace(HEALTHY, versions=HEALTHY.versions | {name: version})


def test_healthy_machine():
    assert [(check.name, check.detail) for check in judge(HEALTHY)] == [
        ("workbench", "0.1.0"),
        ("Python", "3.12.1"),
        ("numpy", "2.4.6"),
        ("numba", "0.68.1 (extra kernels)"),
        ("numba-cuda", "0.30.4 (extra kernels)"),
        ("numba.cuda", "from numba-cuda"),
        ("GPU", "NVIDIA H200, compute capability 9.0, driver for CUDA 13.0"),
        ("CUDA toolkit", "has nvrtc, nvvm, nvJitLink"),
        ("matplotlib", "3.11.2 (extra plot)"),
        ("hypothesis", "6.170.15 (extra test)"),
        ("torch", "2.13.0+cpu (extra torch)"),
        ("triton", "3.7.1 (extra triton)"),
        ("distributed", "2026.8.0 (extra sweep)"),
        ("compile cache", "cache"),
    ]
    assert all(check.ok and not check.fix for check in judge(HEALTHY))


@pytest.mark.parametrize(
    ("facts", "name", "detail", "fix"),
    [
        (
            replace(HEALTHY, python="3.10.13"),
            "Python",
            "3.10.13, needs >=3.11",
            "install Python 3.11 or newer and recreate the environment with it",
        ),
        (
            with_version("numpy", "1.26.4"),
            "numpy",
            "1.26.4, needs >=2.1",
            'pip install "numpy>=2.1"',
        ),
        (
            with_version("numba", "0.67.0"),
            "numba",
            "0.67.0, needs >=0.68.0,<0.69",
            'pip install "numba>=0.68.0,<0.69"',
        ),
        (
            replace(HEALTHY, versions={k: v for k, v in HEALTHY.versions.items() if k != "numba-cuda"}),
            "numba-cuda",
            "not installed, needs >=0.30.4,<0.31",
            'pip install "numba-cuda>=0.30.4,<0.31"',
        ),
        (
            replace(HEALTHY, implementation="Built-in"),
            "numba.cuda",
            "numba's deprecated built-in target, not NVIDIA's",
            "install numba-cuda into the environment itself: folders of PYTHONPATH and `pip install --target` "
            "ignore its .pth file. Restart a running Jupyter kernel",
        ),
        (
            replace(HEALTHY, implementation="ImportError: no numba"),
            "numba.cuda",
            "cannot be imported: ImportError: no numba",
            "fix the versions above first, or recreate the environment with `make clean setup`",
        ),
        (
            replace(HEALTHY, cache_writable=False),
            "compile cache",
            "cache is not writable",
            "set WORKBENCH_CACHE to a writable folder",
        ),
    ],
    ids=["python", "old numpy", "old numba", "no numba-cuda", "built-in", "broken numba", "cache"],
)
def test_what_stops_the_workbench(facts, name, detail, fix):
    failure = only_failure(facts)
    assert (failure.name, failure.detail, failure.fix) == (name, detail, fix)
    assert failure.required


@pytest.mark.parametrize(
    ("facts", "name", "detail", "fix"),
    [
        (
            replace(HEALTHY, gpu=None, no_gpu="no NVIDIA driver"),
            "GPU",
            "none (no NVIDIA driver); runs use the emulator",
            "for GPU runs, install NVIDIA's driver for CUDA 13 (580 or newer)",
        ),
        (
            replace(HEALTHY, missing_toolkit=("nvrtc", "nvvm")),
            "CUDA toolkit",
            "lacks nvrtc, nvvm: no GPU runs, no PTX",
            "pip install 'attention-workbench[cu13]'",
        ),
        *(
            (
                replace(HEALTHY, versions={k: v for k, v in HEALTHY.versions.items() if k != name}),
                name,
                f"not installed: {without}",
                f"pip install 'attention-workbench[{extra}]'",
            )
            for name, (extra, without) in doctor.OTHERS.items()
        ),
        (
            replace(HEALTHY, versions={k: v for k, v in HEALTHY.versions.items() if not k.startswith("numba")}),
            "numba",
            "not installed: built-in kernels and kernels of numba.cuda cannot run",
            "pip install 'attention-workbench[kernels]'",
        ),
    ],
    ids=["gpu", "toolkit", *doctor.OTHERS, "kernels"],
)
def test_what_the_workbench_can_do_without(facts, name, detail, fix):
    failure = only_failure(facts)
    assert (failure.name, failure.detail, failure.fix) == (name, detail, fix)
    assert not failure.required


def test_this_machine_passes_what_is_required():
    assert [check for check in checks() if check.required and not check.ok] == []


def test_bounds_are_those_of_the_project_file():
    project = tomllib.loads(PYPROJECT.read_text())["project"]
    assert project["requires-python"] == doctor.PYTHON
    for bound in (f"numba{doctor.NUMBA}", f"numba-cuda{doctor.NUMBA_CUDA}", f"numpy{doctor.NUMPY}"):
        assert bound in [*project["dependencies"], *project["optional-dependencies"]["kernels"]]


def test_every_extra_of_a_sentence_is_one_of_the_project_file():
    extras = tomllib.loads(PYPROJECT.read_text())["project"]["optional-dependencies"]
    assert {*EXTRAS.values(), *(extra for extra, _ in doctor.OTHERS.values()), "cu13"} <= {*extras}


@pytest.mark.parametrize(
    ("version", "fits"),
    [("0.68.0", True), ("0.68", True), ("0.68.2.post1", True), ("0.69.0rc1", False), ("0.67.9", False), ("", False)],
)
def test_versions_are_compared_by_their_numbers(version, fits):
    checked = {check.name: check.ok for check in judge(with_version("numba", version))}
    assert checked["numba"] is fits


def test_can_write_creates_nothing(tmp_path):
    assert can_write(tmp_path / "a" / "b")
    assert list(tmp_path.iterdir()) == []


def test_cannot_write_below_a_file(tmp_path):
    (tmp_path / "file").touch()
    assert not can_write(tmp_path / "file")
    assert not can_write(tmp_path / "file" / "cache")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_cannot_write_into_a_locked_folder(tmp_path):
    (tmp_path / "locked").mkdir(mode=0o500)
    assert not can_write(tmp_path / "locked" / "cache")


class Driver:
    """Answers as cuda.bindings.driver does on a machine with `count` H200."""

    class CUresult:
        CUDA_SUCCESS = "success"

    class CUdevice_attribute:
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR = 9
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR = 0

    def __init__(self, count):
        self.count = count

    def cuInit(self, flags):
        return ("success",)

    def cuDeviceGetCount(self):
        return "success", self.count

    def cuDeviceGet(self, ordinal):
        return "success", ordinal

    def cuDeviceGetAttribute(self, attribute, device):
        return "success", attribute

    def cuDeviceGetName(self, length, device):
        return "success", b"NVIDIA H200\0\0\0".ljust(length)  # NULs, then blanks: seen with cuda-bindings 13.3.1

    def cuDriverGetVersion(self):
        return "success", 13010


def test_first_gpu():
    assert first_gpu(Driver(count=1)) == Gpu("NVIDIA H200", (9, 0), "13.1")
    assert first_gpu(Driver(count=0)) == "the NVIDIA driver reports no device"


def test_driver_errors_are_named():
    class Failure:
        name = "CUDA_ERROR_UNKNOWN"

    class Broken(Driver):
        def cuInit(self, flags):
            return (Failure,)

    with pytest.raises(RuntimeError, match="^the NVIDIA driver returned CUDA_ERROR_UNKNOWN from cuInit$"):
        first_gpu(Broken(count=1))


@pytest.mark.gpu
def test_the_gpu_of_this_machine():
    from workbench.cuda.gpu import gpu

    found = gpu()
    assert found is not None
    assert found.name.isprintable()
    assert found.name == found.name.strip()
    assert found.compute_capability >= (7, 5)  # the oldest that CUDA 13 serves
