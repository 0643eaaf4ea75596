"""The register of functions that cheat, or are lazy: each is wrong within its spec, and may pass a check."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Cheat:
    """A wrong function.

    `spec` as of `workbench accept --spec`, plain values by name. `shows`: options of cases of the spec, which called in
    this order in one process give an error of more than twice the budget in the last, or {"family": name, "seed": n} of
    `workbench.explore.acceptance.families`; empty where what is wrong depends on more than inputs: on addresses, on
    freed memory, or that the function writes into its inputs. `truth`: what it does. `source`: where such functions
    were seen.
    """

    name: str
    path: str  #: of its file
    spec: Mapping[str, Any]
    shows: tuple[Mapping[str, Any], ...]
    truth: str
    source: str
    witness: Mapping[str, Any] | None = None  #: of those of `unseen` and `device`, in place of `shows`
    needs_gpu: bool = False

    @property
    def target(self) -> str:
        """Its name on the command line."""
        return f"{self.path}:{self.name}"

    @property
    def tampers(self) -> bool:
        """Whether it changes the process that calls it, or ends it."""
        return self.name.startswith("t_")


CHEATS: list[Cheat] = []


def cheat(
    *, truth: str, source: str, shows: tuple[Mapping[str, Any], ...], spec: Mapping[str, Any] | None = None
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Registers a function `(q, k, v, *, scale, causal)` of NumPy arrays, or of what its spec says."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        path = inspect.getsourcefile(function)
        assert path is not None
        CHEATS.append(Cheat(function.__name__, path, spec or {"case": {"dtype": "float16"}}, shows, truth, source))
        return function

    return register
