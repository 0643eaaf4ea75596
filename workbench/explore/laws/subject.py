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
from workbench.case.masks import spread
from workbench.case.stages import MASKS, QUANTISED_INPUTS, before_attention
from workbench.explore.laws.run import Run
from workbench.refusal import Refusal
from workbench.trace.trace import Rerun, Trace

Arrays = Mapping[str, np.ndarray]
#: axes of what a kernel reads: g is the kv head, d the dim of q and k, e that of v
READ_AXES: Mapping[str, str] = {
    **{f"{kind}q": "bhqd" for kind in ("", "codes_")},
    **{f"{kind}k": "bgkd" for kind in ("", "codes_")},
    **{f"{kind}v": "bgke" for kind in ("", "codes_")},
    **{"scale_q": "h", "scale_k": "g", "scale_v": "g"},
    **dict.fromkeys(MASKS, "bhqk"),
}
#: axis -> the field of a case that is its size
_SIZES = {"b": "batch", "h": "heads", "g": "kv_heads", "q": "seqlen_q", "k": "seqlen_k"}


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

    @property
    def case(self) -> Case:
        """The case, whose inputs are given, with the tiles and splits of a kernel of ours."""
        return (self.first.trace.case if self.ours else self.asked).but(distribution=GIVEN)

    @property
    def quantises(self) -> bool:
        """Whether the kernel reads 8-bit codes."""
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
        """What the kernel was given: q, k and v; a mask and a bias with all their axes."""
        arrays = by_name(self.asked, self.given)
        return {name: spread(self.case, x) if name in MASKS else x for name, x in arrays.items()}

    @cached_property
    def read(self) -> dict[str, np.ndarray]:
        """What attention reads, of which any part can be taken: the inputs, or the codes and scales made of them, since
        scales are of all batches and rows.
        """
        if not self.quantises:
            return self.inputs
        stages = self.first.trace.stages
        return {name: stages[name] for name in QUANTISED_INPUTS} if {*QUANTISED_INPUTS} <= {*stages} else {}

    @property
    def masked(self) -> bool:
        """Whether rows see different keys, or keys are not alike to them."""
        return self.case.causal or self.case.window is not None or bool({*MASKS} & {*self.inputs})

    @property
    def rng(self) -> np.random.Generator:
        """What laws draw from: the same for a case."""
        return np.random.default_rng([self.asked.seed, 20])

    def run(self, case: Case | None = None, **changed: np.ndarray) -> Run:
        """The kernel on the inputs with some `changed`; on another `case`, which keeps their shapes."""
        return self.on(case or self.case, self.inputs | changed)

    def on(self, case: Case, inputs: Arrays) -> Run:
        """The kernel on inputs of a case. Failed where it raises on shapes on which it ran, Refusal on others."""
        try:
            return Run(self.attend(case, inputs))
        except Refusal as refusal:
            if self.ours or case != self.case:
                raise
            raise Failed(f"it ran on the case, and not on other values: {refusal}") from None

    def whole(self, **some: Any) -> Run:
        """The kernel on all that it was given, in another order along axes of READ_AXES; it quantises that itself."""
        return self.on(self.case, taken(self.inputs, **some))

    def part(self, case: Case | None = None, **some: Any) -> Run:
        """The kernel on a part of what it read: along each axis of READ_AXES the indices `some`, in that order; `case`
        in place of the case where the part has another mask.
        """
        inputs = taken(self.read, **some)
        sizes = {field: len(some[axis]) for axis, field in _SIZES.items() if axis in some}
        return self.on((case or self.case).but(**sizes), inputs)


def taken(inputs: Arrays, **some: Any) -> dict[str, np.ndarray]:
    """The indices `some` of inputs along axes of READ_AXES, copied."""
    found = {}
    for name, x in inputs.items():
        for axis, indices in some.items():
            if axis in READ_AXES[name]:
                x = x.take(indices, READ_AXES[name].index(axis))
        found[name] = x
    return found


def cast(values: np.ndarray, like: np.ndarray) -> np.ndarray | None:
    """Values in the dtype of an array; None where it does not hold all of them."""
    with np.errstate(over="ignore"):
        found = values.astype(like.dtype)
    return found if np.array_equal(found.astype(np.float64), values) else None


def digits(values: np.ndarray, like: np.ndarray) -> tuple[np.ndarray | None, np.ndarray | None]:
    """The five leading binary digits of float64 values, and the rest, as of `cast`."""
    with np.errstate(over="ignore"):
        spacing = 2.0 ** (np.floor(np.log2(np.where(values == 0, 1, abs(values)))) - 4)
        lead = np.round(values / spacing) * spacing
    return cast(lead, like), cast(values - lead, like)


def wide(x: np.ndarray) -> np.ndarray:
    """An array in float64, which holds it."""
    return x.astype(np.float64)
