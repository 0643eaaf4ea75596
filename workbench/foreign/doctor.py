"""Whether a compiled extension can work here: its libraries and symbols, its C++ ABI, its GPUs, its age."""

import ast
import importlib.machinery
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from workbench.cuda.doctor import Check
from workbench.cuda.gpu import Gpu, gpu
from workbench.foreign.extension import SharedObject, read
from workbench.refusal import Refusal

SHOWN = 3  #: undefined symbols that are shown in full


@dataclass(frozen=True)
class Torch:
    """The torch that is installed."""

    version: str
    cuda: str | None  #: the CUDA release that it was built with
    cxx11_abi: int  #: its _GLIBCXX_USE_CXX11_ABI
    libraries: Path


def checks_of(target: str) -> list[Check]:
    """The checks of the extension FILE.so, or of all that FILE.py imports or names; nothing of them is executed, but
    torch is imported. Refusal for another file, and for a FILE.py without extensions.
    """
    path = Path(target)
    if not path.is_file():
        raise Refusal(f"{target}: no such file")
    if path.suffix == ".py":
        paths = list(dict.fromkeys(extensions(path)))
        if not paths:
            raise Refusal(f"{target}: no compiled extension that it imports or names was found; give its .so instead")
    elif ".so" in path.suffixes:
        paths = [path]
    else:
        raise Refusal(f"doctor looks at a FILE.py or a FILE.so; got {target!r}")
    torch, device = installed_torch(), gpu()
    libraries = None if torch is None else torch.libraries
    found = [judge(read(one, libraries), torch, device) for one in paths]
    return [_torch(torch), *(check for one in found for check in one)]


def installed_torch() -> Torch | None:
    """The torch that is installed, or None."""
    try:
        import torch
    except ImportError:
        return None
    abi = int(torch.compiled_with_cxx11_abi())
    return Torch(torch.__version__, torch.version.cuda, abi, Path(torch.__file__).parent / "lib")


def extensions(path: Path) -> Iterator[Path]:
    """The shared objects that a Python file imports, names in a string, or has torch's extension loader build."""
    try:
        tree = ast.parse(path.read_text(), str(path))
    except (SyntaxError, ValueError) as error:  # ValueError: no UTF-8
        raise Refusal(f"{path}: not Python ({error})") from None
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            modules = [node.module] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
            for module in filter(None, modules):
                spec = importlib.machinery.PathFinder.find_spec(module, [str(path.parent), *sys.path])
                if spec is not None and spec.origin is not None and ".so" in Path(spec.origin).suffixes:
                    if "lib-dynload" not in spec.origin:  # Python's own
                        yield Path(spec.origin)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.endswith(".so"):
            if (named := path.parent / node.value).is_file():
                yield named
        elif isinstance(node, ast.Call) and re.search(r"(^|\.)load(_inline)?$", ast.unparse(node.func)):
            yield from _built(node)


def _built(call: ast.Call) -> Iterator[Path]:
    """What torch.utils.cpp_extension.load(name=...) has built, where it usually does."""
    values = [*call.args[:1], *(keyword.value for keyword in call.keywords if keyword.arg == "name")]
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "torch_extensions"
    root = Path(os.environ.get("TORCH_EXTENSIONS_DIR", cache))
    for value in values:
        if isinstance(value, ast.Constant) and isinstance(value.value, str) and value.value.isidentifier():
            yield from sorted(root.rglob(f"{value.value}/{value.value}*.so"))


def judge(it: SharedObject, torch: Torch | None, device: Gpu | None) -> list[Check]:
    """What a shared object means here, one check for each line of the report."""
    name = it.path.name
    lines = [*_libraries(it, torch), _symbols(it), *_abi(it, torch), *_cuda_release(it, torch)]
    lines += _device(it, device)
    age = f"older than {', '.join(it.newer_sources)}" if it.newer_sources else "not older than its sources"
    lines.append(_line("age", not it.newer_sources, age, "rebuild it: the old code runs"))
    return [Check(f"{name} {one.name}", one.ok, one.detail, one.fix, one.required) for one in lines]


def _line(name: str, ok: bool, detail: str, fix: str) -> Check:
    return Check(name, ok, detail, "" if ok else fix, required=True)


def _torch(torch: Torch | None) -> Check:
    if torch is None:
        return Check("torch", False, "not installed", "pip install torch, if the extension needs it", required=False)
    detail = f"{torch.version}, CUDA {torch.cuda or 'none'}, C++ ABI {torch.cxx11_abi}"
    return Check("torch", True, detail, "", required=False)


def _libraries(it: SharedObject, torch: Torch | None) -> Iterator[Check]:
    for name, path in it.libraries.items():
        if path and torch is not None and Path(path).parent == torch.libraries:
            yield _line(name, True, f"{path}, once torch is imported", "")
        else:
            fix = f"install {name}, or add its folder to LD_LIBRARY_PATH or with -Wl,-rpath"
            if torch is not None and torch.cuda is None and re.match(r"lib(c10|torch)_cuda", name):
                fix = "install torch for CUDA: this one is for the CPU"
            yield _line(name, bool(path), path or "not found", fix)


def _symbols(it: SharedObject) -> Check:
    if not it.undefined:
        return _line("symbols", True, "all defined", "")
    more = f" and {len(it.undefined) - SHOWN} more" if len(it.undefined) > SHOWN else ""
    fix = "link the source or library that defines it; if it is torch's, build against the installed torch"
    return _line("symbols", False, f"undefined: {'; '.join(it.undefined[:SHOWN])}{more}", fix)


def _abi(it: SharedObject, torch: Torch | None) -> Iterator[Check]:
    if not it.cxx11_abi or torch is None or not any(re.match(r"lib(c10|torch)", name) for name in it.libraries):
        return
    detail = f"{' and '.join(map(str, it.cxx11_abi))}, torch's is {torch.cxx11_abi}"
    fix = f"build it with -D_GLIBCXX_USE_CXX11_ABI={torch.cxx11_abi}"
    yield _line("C++ ABI", it.cxx11_abi == (torch.cxx11_abi,), detail, fix)


def _cuda_release(it: SharedObject, torch: Torch | None) -> Iterator[Check]:
    linked = [release for name in it.libraries for release in re.findall(r"libcudart\.so\.(\d+)", name)]
    if linked and torch is not None and torch.cuda is not None:
        own = torch.cuda.partition(".")[0]
        fix = f"build it with the CUDA {own} toolkit"
        yield _line("CUDA", set(linked) == {own}, f"linked with {', '.join(linked)}, torch with {torch.cuda}", fix)


def _device(it: SharedObject, device: Gpu | None) -> Iterator[Check]:
    if it.machine_code is None:
        unknown = "unknown: cuobjdump (CUDA toolkit, Triton) was not found"
        yield Check("GPUs", True, unknown, "", required=False)
        return
    if not it.machine_code and not it.ptx:
        return
    held = ", ".join([*it.machine_code, *(f"PTX for {arch}" for arch in it.ptx)])
    if device is None:
        yield _line("GPUs", True, f"{held}; no GPU here to compare with", "")
        return
    major, minor = device.compute_capability
    own = f"sm_{major}{minor}"
    fix = (
        f"build it for this GPU: nvcc -arch={own}, or TORCH_CUDA_ARCH_LIST={major}.{minor} for torch's extension loader"
    )
    yield _line("GPUs", runs_on(it, (major, minor)), f"{held}; {device.name} is {own}", fix)


def runs_on(it: SharedObject, capability: tuple[int, int]) -> bool:
    """Whether a GPU can run what the file holds: machine code of its own generation and no newer, sm_90a and the like
    on that GPU alone; PTX of an older one (CUDA C++ Programming Guide, application compatibility).
    """
    major, minor = capability

    def fits(code: str, *, ptx: bool) -> bool:
        number, kind = re.findall(r"sm_(\d+)(\w*)", code)[0]
        own = divmod(int(number), 10)
        if kind == "a":
            return own == (major, minor)
        return own <= (major, minor) and (own[0] == major or (ptx and not kind))

    return any(fits(code, ptx=False) for code in it.machine_code or ()) or any(fits(code, ptx=True) for code in it.ptx)
