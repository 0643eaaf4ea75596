"""Functions of a checkout of flash-linear-attention: kernels as they are imported, references by their file.

Its packages import models and layers that need more than torch and Triton. Empty packages of the same names stand in
for them, so that a kernel's own module is loaded and nothing else. Autotuning takes the first configuration that
compiles: which one it is changes no digit that a budget does not allow, and timing all of them takes minutes a kernel.
"""

import importlib
import importlib.util
import sys
from collections.abc import Callable
from operator import attrgetter
from pathlib import Path
from types import ModuleType
from typing import Any

#: packages whose own `__init__` is not run
PACKAGES = ("fla", "fla.ops", "fla.modules", "fla.layers", "fla.models")
#: what they say their version is: the project compares it with that of deprecated arguments
VERSION = "0.5.0"


def use(root: Path) -> None:
    """Makes `fla` the project at `root`, for the whole process."""
    for name in PACKAGES:
        package = ModuleType(name)
        package.__path__ = [str(root / name.replace(".", "/"))]
        package.__dict__["__version__"] = VERSION
        sys.modules[name] = package
    _first_that_compiles()


def kernel(path: str) -> Callable[..., Any]:
    """`module:function` of the project in use."""
    module, _, name = path.partition(":")
    found: Callable[..., Any] = attrgetter(name)(importlib.import_module(module))
    return found


def reference(root: Path, path: str) -> Callable[..., Any]:
    """`file.py:function` below `root`, whichever checkout is in use; `plain:function` of the file beside this one."""
    file, _, name = path.partition(":")
    root, file = (Path(__file__).parent, "plain.py") if file == "plain" else (root, file)
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
