"""Functions of a project at a commit: kernels as they are imported, references by their file.

Packages of a project import models and layers that need more than torch and Triton. Empty packages of the same names
stand in for them, so that a kernel's own module is loaded and nothing else. Autotuning takes the first configuration
that compiles: which one it is changes no digit that a budget does not allow, and timing all of them takes minutes a
kernel.
"""

import importlib
import importlib.util
import io
import os
import subprocess
import sys
import tarfile
from collections.abc import Callable
from operator import attrgetter
from pathlib import Path
from types import ModuleType
from typing import Any

from campaigns.real.interpreted import complete, is_interpreted, pretend
from campaigns.real.project import Project
from workbench.refusal import Refusal

#: where references in plain torch are, `plain/FILE:function`
HERE = Path(__file__).parent


def tree(checkouts: Path, project: Project, commit: str, into: Path) -> Path:
    """The folder of a commit: `checkouts/<project>/<commit>`, or what `git archive` makes, below `into`, of the clone
    `checkouts/<project>`, also a bare one. Refusal where there is neither, or the clone lacks the commit.
    """
    given = checkouts / project.name
    if (given / commit).is_dir():
        return given / commit
    made = into / project.name / commit
    if not made.is_dir():
        if not ((given / ".git").exists() or (given / "HEAD").is_file()):
            raise Refusal(f"{given} is no clone of {project.owner}/{project.name}, and has no folder {commit}")
        held = _git(given, "ls-tree", "-z", "--name-only", commit, "--", *project.paths).decode().split("\0")
        archive = _git(given, "archive", "--format=tar", commit, "--", *filter(None, held))
        with tarfile.open(fileobj=io.BytesIO(archive)) as files:
            files.extractall(made, filter="data")
    return made


def _git(clone: Path, *words: str) -> bytes:
    made = subprocess.run(["git", "-C", str(clone), *words], capture_output=True)
    if made.returncode:
        raise Refusal(f"git {words[0]} in {clone}: {made.stderr.decode(errors='replace').strip()[:300]}")
    return made.stdout


def use(project: Project, root: Path) -> None:
    """Makes the project at `root` the one that is imported, for the whole process."""
    os.environ.update(project.environment)
    sys.path.insert(0, str(root / project.root))
    if is_interpreted():
        pretend()
    for name in project.stubs:
        package = ModuleType(name)
        package.__path__ = [str(root / project.root / name.replace(".", "/"))]
        package.__dict__.update(project.says)
        _put(name, package)
    for name in project.absent:
        _put(name, _Absent(name))
    if importlib.util.find_spec("triton") is not None:
        _first_that_compiles()


def _put(name: str, module: ModuleType) -> None:
    sys.modules[name] = module
    package, _, own = name.rpartition(".")
    if package in sys.modules:
        setattr(sys.modules[package], own, module)


class _Absent(ModuleType):
    """A module that is not installed: any name can be imported from it, and none does anything."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (_Nothing,), {"__module__": self.__name__})


class _Nothing:
    """A class to inherit from, and a decorator that leaves a function as it is."""

    def __new__(cls, *given: Any, **named: Any) -> Any:
        return given[0] if len(given) == 1 and callable(given[0]) and not named else super().__new__(cls)

    def __init__(self, *given: Any, **named: Any) -> None:
        pass

    def __call__(self, function: Any) -> Any:
        return function


def kernel(root: Path, path: str) -> Callable[..., Any]:
    """`module:function` of the project in use, which is at `root`."""
    module, _, name = path.partition(":")
    found: Callable[..., Any] = attrgetter(name)(importlib.import_module(module))
    if is_interpreted():
        complete(root)
    return found


def reference(root: Path, path: str) -> Callable[..., Any]:
    """`file.py:function` below `root`, whichever checkout is in use; `plain/FILE:function` of the folder beside this
    file.
    """
    file, _, name = path.partition(":")
    root, file = (HERE, f"{file}.py") if file.startswith("plain/") else (root, file)
    module = f"reference_{file.removesuffix('.py').replace('/', '_')}"
    spec = importlib.util.spec_from_file_location(module, root / file)
    assert spec is not None and spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    found: Callable[..., Any] = getattr(loaded, name)
    return found


def _first_that_compiles() -> None:
    from triton.runtime.autotuner import Autotuner

    def run(tuner: Any, *args: Any, **kwargs: Any) -> Any:
        tuner.nargs = dict(zip(tuner.arg_names, args, strict=False))
        named = {**tuner.nargs, **kwargs}
        key = (*(named.get(name) for name in tuner.keys), *(str(getattr(x, "dtype", "")) for x in named.values()))
        known = tuner.cache.get(key)
        error: Exception | None = None
        for config in [known] if known else tuner.prune_configs(kwargs):
            if config.pre_hook is not None:
                config.pre_hook({**named, **config.all_kwargs()})
            try:
                made = tuner.fn.run(*args, **kwargs, **config.all_kwargs())
            except Exception as raised:  # too little shared memory, mostly
                error = raised
                continue
            tuner.cache[key], tuner.best_config = config, config
            return made
        raise error or RuntimeError(f"{tuner.base_fn.__name__} has no configuration")

    Autotuner.run = run
