"""A Python in which the packages of the extras are not installed; so are the processes that it starts."""

import sys
from typing import Any

HIDDEN = {
    *("numba", "numba_cuda", "llvmlite", "cuda"),
    *("hypothesis", "pytest", "_pytest"),
    *("matplotlib", "PIL", "packaging", "scipy"),
    *("torch", "triton", "distributed", "dask", "jax"),
}


class Hiding:
    """A finder that does not find them."""

    def __init__(self, finder: Any) -> None:
        self._finder = finder

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """As the finder that it stands before."""
        return None if name.partition(".")[0] in HIDDEN else self._finder.find_spec(name, path, target)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._finder, name)


if __name__ == "sitecustomize":  # pytest imports it, too
    sys.meta_path[:] = [Hiding(finder) for finder in sys.meta_path]
    for loaded in [name for name in sys.modules if name.partition(".")[0] in HIDDEN]:  # by a .pth file
        del sys.modules[loaded]
