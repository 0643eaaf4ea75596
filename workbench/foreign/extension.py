"""What a shared object is made of, without loading it: its libraries, its open symbols, the GPUs it has code for."""

import os
import re
import shutil
import struct
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from workbench.files import sources_beside
from workbench.refusal import Refusal, Unavailable


@dataclass(frozen=True)
class SharedObject:
    """A shared object and its surroundings."""

    path: Path
    libraries: Mapping[str, str]  #: name -> the file that the loader takes for it; empty where it finds none
    undefined: tuple[str, ...]  #: symbols that none of its libraries and not Python define, demangled
    cxx11_abi: tuple[
        int, ...
    ]  #: values of _GLIBCXX_USE_CXX11_ABI that its calls of torch show: (), (0,), (1,) or (0, 1)
    machine_code: tuple[str, ...] | None  #: "sm_90a", ...; None: it has code for GPUs, and nothing here tells for which
    ptx: tuple[str, ...]  #: "sm_90", ..., which a driver compiles for that GPU and newer ones
    newer_sources: tuple[str, ...]  #: sources that were written after it


def read(path: Path, torch_libraries: Path | None) -> SharedObject:
    """The shared object `path`, whose libraries are also looked for in torch's folder, as `import torch` has them.

    Refusal for a file that is none or not a whole one; Unavailable without `ldd` and `nm`.
    """
    content = path.read_bytes()
    if content[:4] != b"\x7fELF" or content[4:6] != b"\x02\x01":
        raise Refusal(f"{path}: not a shared object of 64-bit Linux; it begins with {content[:6]!r}")
    if len(content) < 64 or len(content) < _end_of_sections(content):
        raise Refusal(f"{path}: not a whole shared object; it is cut off at {len(content)} bytes")
    found = _ran("ldd", "-r", str(path), search=torch_libraries)
    mangled = re.findall(r"^undefined symbol: ([^\s,]+)", found, re.M)
    undefined = [name for name in mangled if not re.match(r"_?Py", name)]  # the process that loads it has Python's
    needed = [name.partition("@")[0] for name in _ran("nm", "-D", "-u", "-P", str(path)).split()[::2]]
    elf, ptx = _architectures(path, content)
    return SharedObject(
        path=path,
        libraries={**dict(re.findall(r"^\s*(\S+) => (/\S+)", found, re.M)),
                   **{name: "" for name in re.findall(r"^\s*(\S+) => not found", found, re.M)}},
        undefined=tuple(_demangled(undefined)),
        cxx11_abi=_cxx11_abi(_demangled(needed)),
        machine_code=elf,
        ptx=ptx,
        newer_sources=newer_sources(path),
    )  # fmt: skip


def newer_sources(path: Path) -> tuple[str, ...]:
    """Sources written after `path` was built: those that ninja's build file beside it names, as torch's extension
    loader writes it, else those beside it.
    """
    ninja = path.parent / "build.ninja"
    if ninja.is_file():
        named = re.findall(r"^build \S+: \S*compile (\S+)", ninja.read_text(), re.M)
        sources = [path.parent / name for name in named]
    else:
        sources = [*sources_beside(path.parent)]
    built = path.stat().st_mtime
    return tuple(sorted(str(one) for one in sources if one.is_file() and one.stat().st_mtime > built))


def _cxx11_abi(demangled: Sequence[str]) -> tuple[int, ...]:
    """Which of libstdc++'s two layouts of std::string the names of torch's functions speak of."""
    demangled = [name for name in demangled if re.search(r"\b(c10|at|torch|caffe2)::", name)]
    new = any("std::__cxx11::" in name for name in demangled)
    old = any(re.search(r"\bstd::(string\b|basic_string<)", name) for name in demangled)
    return (*((0,) if old else ()), *((1,) if new else ()))


def _demangled(names: Sequence[str]) -> list[str]:
    """C++ names in words; as they are where there is no c++filt."""
    if not names or shutil.which("c++filt") is None:
        return list(names)
    done = subprocess.run(["c++filt"], input="\n".join(names), capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def _end_of_sections(content: bytes) -> int:
    """Where an ELF file's table of sections ends, which is behind all else (ELF-64: e_shoff, e_shentsize, e_shnum)."""
    (table,), (size, count) = struct.unpack_from("<Q", content, 40), struct.unpack_from("<HH", content, 58)
    return int(table + size * count)


def _architectures(path: Path, content: bytes) -> tuple[tuple[str, ...] | None, tuple[str, ...]]:
    """GPUs with machine code in the file, and those with PTX, as cuobjdump tells them."""
    if b".nv_fatbin" not in content:
        return (), ()
    if (tool := _cuobjdump()) is None:
        return None, ()
    listed = (_ran(tool, option, str(path)) for option in ("--list-elf", "--list-ptx"))
    elf, ptx = (tuple(sorted(set(re.findall(r"\.(sm_\w+)\.(?:cubin|ptx)$", one, re.M)))) for one in listed)
    return elf, ptx


@cache
def _cuobjdump() -> str | None:
    """The program, of the toolkit or of Triton, which brings its own."""
    import importlib.util

    if tool := shutil.which("cuobjdump"):
        return tool
    homes = [Path(os.environ.get(name, "/nowhere")) / "bin" for name in ("CUDA_HOME", "CUDA_PATH")]
    if (triton := importlib.util.find_spec("triton")) is not None and triton.origin is not None:
        homes.append(Path(triton.origin).parent / "backends/nvidia/bin")
    return next((str(home / "cuobjdump") for home in homes if (home / "cuobjdump").is_file()), None)


def _ran(program: str, *arguments: str, search: Path | None = None) -> str:
    """What a program prints; `search`: where the loader looks too."""
    if shutil.which(program) is None:
        raise Unavailable(
            f"doctor reads shared objects with {program}, which was not found: apt install binutils libc-bin"
        )
    paths = [path for path in (os.environ.get("LD_LIBRARY_PATH"), search and str(search)) if path]
    environment = {**os.environ, "LC_ALL": "C", "LD_LIBRARY_PATH": ":".join(paths)}
    done = subprocess.run([program, *arguments], capture_output=True, text=True, env=environment)
    return done.stdout + done.stderr
