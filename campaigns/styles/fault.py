"""What a faulty kernel is."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from campaigns.styles.style import SIXTEEN, Array, Case, Kernel, Stages, drawn


@dataclass(frozen=True)
class Faulty:
    """A kernel that departs from `correct` in one thing, and gives out and lse alone.

    `why` says what the fault is; `hits(case options)` whether a case can show it. `dtypes` are those of q, k and v.
    """

    function: Kernel
    correct: Kernel
    why: str
    hits: Callable[[Mapping[str, Any]], bool]
    dtypes: tuple[str, ...] = SIXTEEN

    @property
    def name(self) -> str:
        return self.function.__name__


def faulty_cases(fault: Faulty, count: int = 20, seed: int = 0) -> list[Case]:
    """`count` case options that can show the fault, drawn from `seed`."""
    return drawn(fault.dtypes, fault.hits, count, seed)


def ends(stages: Mapping[str, Array]) -> Stages:
    """out and lse alone."""
    return {name: stages[name] for name in ("out", "lse")}
