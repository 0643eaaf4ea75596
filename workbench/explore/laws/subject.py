"""A kernel on a case, and the runs that laws ask of it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from workbench.case.case import Case
from workbench.case.contract import Contract
from workbench.case.fields import GIVEN
from workbench.case.inputs import by_name
from workbench.case.masks import spread, visible
from workbench.case.stages import INPUTS, MASKS, OF_HEADS, OF_QUANTISER, before_attention, quantised_inputs
from workbench.explore.laws.part import part_of, taken
from workbench.explore.laws.run import Run
from workbench.refusal import Refusal
from workbench.trace.trace import Rerun, Trace

Arrays = Mapping[str, np.ndarray]
#: fields that are numbers of a run, not its shape
_NUMBERS = ("alibi_slopes", "sinks", "score_mod", "mask_mod", "seed")


class Failed(Refusal):
    """A kernel that ran raised on other values of the same shapes."""


@dataclass(frozen=True, eq=False)
class Subject:
    """A kernel on a case."""

    attend: Rerun
    asked: Case
    given: Arrays | None = None  #: inputs by name, in place of the case's own
    claimed: bool = False  #: whether the kernel claims that a row's bits depend on nothing beside it
    #: the kernel on stages that are put in; None where none can be
    feed: Callable[[Case, Mapping[str, np.ndarray]], Trace] | None = None
    #: the kernel behind a function that is called in its place, with it as first argument; None where it is no function
    behind: Callable[[Callable[..., Any]], Rerun] | None = None

    @cached_property
    def first(self) -> Run:
        """The run of the case itself, on which all laws hold others."""
        return Run(self.attend(self.asked, self.given))

    @property
    def ours(self) -> bool:
        """Whether it is a kernel of ours, whose loops are known."""
        return self.first.trace.backend != "foreign"

    @cached_property
    def case(self) -> Case:
        """The case, whose inputs, sinks and slopes are given, with the tiles and splits of a kernel of ours."""
        case = self.first.trace.case if self.ours else self.asked
        settled = {name: tuple(x.tolist()) for name, x in case.of_heads.items()}
        return case.but(distribution=GIVEN, **settled)

    @property
    def quantises(self) -> bool:
        """Whether the kernel reads quantised codes."""
        return bool(before_attention(self.first.trace.algorithm))

    def under(self, contract: Contract) -> "Subject":
        """The same of a kernel with another contract."""

        def promising(attend: Callable[..., Trace]) -> Callable[..., Trace]:
            return lambda case, inputs=None: replace(attend(case, inputs), contract=contract)

        behind = self.behind
        return replace(
            self,
            attend=promising(self.attend),
            feed=None if self.feed is None else promising(self.feed),
            behind=None if behind is None else lambda before: promising(behind(before)),
        )

    @cached_property
    def inputs(self) -> dict[str, np.ndarray]:
        """What the kernel was given: q, k and v; a mask, a bias and what dropout keeps with all their axes. What the
        case's mask_mod hides is not in it.
        """
        found = by_name(self.asked.but(mask_mod=None), self.given)
        found = {name: x for name, x in found.items() if name not in OF_HEADS}
        return found | {name: spread(self.case, found[name]) for name in MASKS if name in found}

    @cached_property
    def read(self) -> dict[str, np.ndarray]:
        """What attention reads, of which any part can be taken: the inputs, or the codes and scales made of them, since
        scales are of all batches and rows. Nothing where scales are of tiles, which parts would begin in the middle of.
        """
        if not self.quantises:
            return self.inputs
        if self.first.trace.case.scale_of == "tile":
            return {}
        stages = self.first.trace.stages
        if not {*quantised_inputs(coded := self.first.trace.case.coded)} <= {*stages}:
            return {}
        floats = {x: self.inputs[x] for x in INPUTS if x not in coded}
        return floats | {name: stages[name] for name in OF_QUANTISER if name in stages}

    @property
    def rng(self) -> np.random.Generator:
        """What laws draw from: the same for a case."""
        return np.random.default_rng([self.asked.seed, 20])

    def run(self, case: Case | None = None, **changed: np.ndarray) -> Run:
        """The kernel on the inputs with some `changed`; on another `case`, which keeps their shapes. Refusal where v
        is to change alone and is a part of k.
        """
        if self.case.shared_kv and "v" in changed and "k" not in changed:
            raise Refusal("v is a part of k and cannot change alone")
        return self.on(case or self.case, self.inputs | changed)

    def on(self, case: Case, inputs: Arrays) -> Run:
        """The kernel on inputs of a case, v as a part of k where it is one. Failed where it raises on shapes on which
        it ran, Refusal on others.
        """
        if case.shared_kv and "k" in inputs:
            inputs = {**inputs, "v": inputs["k"][..., : case.head_dim_v]}
        try:
            return Run(self.attend(case, inputs))
        except Refusal as refusal:
            if self.ours or _shape(case) != _shape(self.case):
                raise
            raise Failed(f"it ran on the case, but fails on other values: {refusal}") from None

    def part(self, case: Case | None = None, **some: Any) -> Run:
        """The kernel on a part of what it read (`part.taken`); `case` in place of the case where the part has another
        mask.
        """
        return self.on(part_of(case or self.case, **some), taken(self.read, **some))


def _shape(case: Case) -> tuple[Any, ...]:
    """All of a case but the numbers of a run."""
    return tuple(x for name, x in vars(case).items() if name not in _NUMBERS)


def seen(case: Case, inputs: Arrays) -> np.ndarray:
    """Which keys the rows of a case see, by all that hides some, bool [b, h, q, k]."""
    return spread(case, visible(case, by_name(case, inputs)))


def cast(values: np.ndarray, like: np.ndarray) -> np.ndarray | None:
    """Values in the dtype of an array; None where it does not hold all of them."""
    with np.errstate(over="ignore"):
        found = values.astype(like.dtype)
    return found if np.array_equal(found.astype(np.float64), values) else None


def wide(x: np.ndarray) -> np.ndarray:
    """An array in float64, which holds it."""
    return x.astype(np.float64)
