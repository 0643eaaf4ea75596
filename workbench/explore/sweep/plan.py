"""What a sweep is of: a target, its options and limits, and the cases, which tell whether a file is of the same one."""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from workbench.case.case import Case
from workbench.case.exposing_lost_keys import exposing_lost_keys
from workbench.case.fields import GIVEN
from workbench.case.options import Options, flag_of
from workbench.explore.draw import Among
from workbench.explore.sample import sample
from workbench.explore.sweep.row import case_id
from workbench.files import sha256_of, sources_beside
from workbench.foreign.isolation import Limits
from workbench.foreign.target import Kind, target_of
from workbench.refusal import Refusal

#: options of a run that a sweep takes; of the others some are its own, and others are of one case
TAKEN = (
    "faults", "backend", "probes", "limit_gb", "arrays", "device", "layout", "calibration", "contract", "runs",
)  # fmt: skip
#: seconds of a case where nobody says another limit: the emulator compiles a kernel in up to 60
TIMEOUT_S = 300.0


@dataclass(frozen=True)
class Plan:
    """A sweep before it runs. Refusal for a target that is not run, and where there is no case."""

    target: str
    cases: tuple[Case, ...]  #: each once, in the order in which they run
    given: Mapping[str, Any] = field(default_factory=dict)  #: options of the run
    timeout: float = TIMEOUT_S  #: seconds of a case
    memory_gb: float | None = None  #: 1e9 bytes of the process of a case; None: half of its machine's

    def __post_init__(self) -> None:
        if not isinstance(self.target, str):
            raise Refusal(f"a sweep runs its target in other processes: give {self.target!r} as path.py:function")
        found = target_of(self.target)
        if found.is_trace or found.is_log:
            raise Refusal(f"{self.target} is {found.kind.value}, which cannot be run: a sweep runs its target")
        if others := [name for name in self.given if name not in TAKEN]:
            raise Refusal(f"a sweep takes these options of a run: {', '.join(TAKEN)}; got {others[0]}")
        if not self.cases:
            raise Refusal("a sweep needs at least one case; got none")
        if given := [case for case in self.cases if case.distribution == GIVEN]:
            raise Refusal(f"a sweep draws its inputs, but {given[0]!r} has distribution given")
        for name, value in (("timeout", self.timeout), ("memory_gb", self.memory_gb)):
            if value is not None and not value > 0:
                raise Refusal(f"{name} must be a number above 0; got {value!r}")
        object.__setattr__(self, "cases", tuple(dict.fromkeys(self.cases)))

    @property
    def limits(self) -> Limits:
        """Of the process of a case."""
        return Limits(self.timeout, self.memory_gb)

    @cached_property
    def options(self) -> Options:
        """Of the run, with defaults."""
        return Options(**self.given)

    @property
    def is_ours(self) -> bool:
        """Whether the target is a kernel of ours."""
        return target_of(self.target).kind is Kind.OURS

    def source(self) -> str:
        """The hash of the target's file and of sources beside it; empty of others, whose versions tell."""
        path, colon, _ = self.target.rpartition(":")
        if not colon or not path.endswith(".py"):
            return ""
        files = dict.fromkeys((Path(path), *sources_beside(Path(path).parent)))
        return hashlib.sha256("".join(map(sha256_of, files)).encode()).hexdigest()

    def identity(self) -> dict[str, str]:
        """What must be the same for a sweep to be continued: name -> value in words."""
        options = {flag_of(name): _plain(value) for name, value in self.given.items()}
        ids = hashlib.sha256("".join(map(case_id, self.cases)).encode()).hexdigest()[:12]
        memory = "half of the machine's" if self.memory_gb is None else f"{self.memory_gb:g}"
        return {
            "TARGET": self.target,
            "options": json.dumps(options, sort_keys=True),
            "--timeout": f"{self.timeout:g}",
            "--memory-gb": memory,
            "cases": f"{len(self.cases)} cases, {ids}",
            "source of TARGET": self.source(),
        }


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    return list(value) if isinstance(value, tuple) else value


def with_exposing(target: str, cases: Iterable[Case]) -> list[Case]:
    """The cases, and behind them those of the same shapes in which the absence of any key shows in out; of a kernel of
    ours, whose stages tell, they alone.
    """
    asked = [*cases]
    if target_of(target).kind is Kind.OURS:
        return asked
    return [*dict.fromkeys([*asked, *(other for case in asked for other in exposing_lost_keys(case))])]


def random_cases(target: str | Callable[..., Any], count: int, seed: int = 0, **given: Iterable[Any]) -> list[Case]:
    """So many random cases for a target, from the ranges of the public strategies (`strategies.cases`), the same for a
    seed; each case holds the seed of its own inputs. `given`: name of a field, or of `ranges.RANGES` -> values among
    which are drawn in place of the range.
    """
    kernel = target_of(target).kernel
    limits: dict[str, Any] = {name: Among(tuple(values)) for name, values in given.items()}
    drawn = np.random.default_rng(seed)
    found: dict[Case, None] = {}
    for _ in range(2 * count):  # narrow limits may leave fewer cases than were asked for
        if len(found) == count:
            break
        found[sample(drawn, None if kernel is None else kernel.name, **limits)] = None
    return [*found]
