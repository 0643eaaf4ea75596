"""The judgement of one stage: its verdict and role, its worst elements, its errors along an axis."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from workbench.expectation.elements import Comparison, Element, Elements, State, Summary, element, whole
from workbench.floats import to_float64
from workbench.judge.selection import Index, Selection, chosen, select
from workbench.refusal import Refusal
from workbench.shown import shown_by

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: verdicts from best to worst; the worst of a kernel's stages is the kernel's
SEVERITY = ("exact", "rounding", "suspicious", "biased", "untestable", "missing", "bug")
#: verdicts of a stage of which there is nothing to say
RIGHT_VERDICTS = ("exact", "rounding")
#: what makes a stage doubtful: `StageDiff.doubt`
EVIDENCE, ASSUMPTION = "evidence", "assumption"
#: verdicts of a stage that is wrong on its own inputs
ORIGIN_VERDICTS = ("missing", "bug")


def verdict_of(found: Summary) -> tuple[str, str]:
    """The verdict of a stage, and why where it is not the numbers that decide."""
    if unwritten := found.count(State.UNWRITTEN):
        return "missing", f"{unwritten} of {found.size} slots were never written"
    if found.outside:
        return "bug", ""
    if not found.judged:
        poisoned = found.count(State.POISONED)
        return (
            "untestable",
            f"no element could be judged: {poisoned} read NaN, {found.size - poisoned} have no finite budget",
        )
    if suspicious := found.count(State.SUSPICIOUS):
        return "suspicious", f"{suspicious} of {found.size} elements exceed their statistical budget"
    return ("exact" if found.judged == found.count(State.EXACT) else "rounding"), ""


@dataclass(frozen=True)
class Profile:
    """A stage along one axis; arrays have one entry for each index of the axis."""

    axis: str
    outside: np.ndarray  #: elements outside their budget
    share_outside: np.ndarray  #: of the elements judged, those outside; NaN where nothing was judged
    over_budget: np.ndarray  #: largest x of budget; NaN where nothing was judged
    mean_signed: np.ndarray  #: mean signed error; NaN where no element has one
    mean_abs: np.ndarray  #: mean |error|; NaN where no element has one
    sign_disagreements: np.ndarray  #: elements above 0 that should be below, or the other way round
    first: int = 0  #: of the indices, where the axis does not begin at 0

    def _repr_html_(self) -> str:
        return shown_by("values.html_profile", self)


class IfDeclared(NamedTuple):
    """What would make a wrong stage right."""

    words: str
    tells: bool  #: whether the budget of such a kernel rules anything out


@dataclass(frozen=True, repr=False)
class StageDiff:
    """The judgement of one stage."""

    name: str
    axes: str  #: one letter an axis, as in `stages.py`
    verdict: str  #: exact, rounding, suspicious, biased, bug, untestable, missing; "not judged" where it cannot be
    isolated: Comparison | None  #: against the stage's own dumped inputs
    propagated: Comparison | None  #: against q, k, v
    judged_from: tuple[str, ...] = ()  #: nearest dumped ancestors, where a direct input was not dumped
    upstream: tuple[str, ...] = ()  #: stages that nobody saw, where the verdict covers them too
    behind: tuple[str, ...] = ()  #: wrong stages upstream, of a stage that was judged end to end
    #: of a suspicious or biased stage: evidence, which the arithmetic of no known kernel explains, or assumption, which
    #: a choice that nobody declared does
    doubt: str = ""
    #: of a stage that only choices excuse which nobody declared: error / budget of a usual kernel, if above 1
    over_usual: float | None = None
    reason: str = ""  #: why the stage is missing, untestable or not judged
    if_declared: IfDeclared | None = None  #: of a wrong stage that another contract allows
    measured: bool = False  #: whether what its verdict says was read off outputs, by inputs of our choice
    #: as the kernel gave it; None where it did not
    dumped: np.ndarray | None = field(default=None, repr=False, compare=False)
    #: axis letter -> the first of its indices, where this is a part of a run
    first: Mapping[str, int] = field(default_factory=dict)
    of_ranks: bool = False  #: whether splits are the keys of ranks
    #: what was run, in words, for pictures
    run: str = field(default="", repr=False, compare=False)

    @property
    def decisive(self) -> Comparison | None:
        """The comparison that the verdict rests on: the isolated one where it exists."""
        return self.isolated if self.isolated is not None else self.propagated

    @property
    def role(self) -> str:
        """origin: wrong by its own verdict; victim: only its propagated error is outside, or a stage before it is wrong
        and nobody can tell them apart; not judged; or clean, which includes what is outside and excused.
        """
        if self.verdict in ORIGIN_VERDICTS:
            return "victim" if self.behind else "origin"
        excused = self.isolated is not None and self.isolated.summary.outside
        if self.propagated is not None and self.propagated.summary.outside and not excused:
            return "victim"
        return "not judged" if self.decisive is None or self.verdict == "untestable" else "clean"

    @property
    def is_right(self) -> bool:
        """Whether there is nothing to say of it: no victim, not suspicious, and judged."""
        return self.role == "clean" and self.verdict in RIGHT_VERDICTS

    @property
    def right_from_inputs(self) -> bool:
        """Whether each of its elements was judged from q, k and v, and is within its budget."""
        found = None if self.propagated is None else self.propagated.summary
        return found is not None and 0 < found.size == found.judged and not found.outside

    @property
    def maybe_victim(self) -> bool:
        """Whether it is a victim of which nobody knows whether it is right by itself: it was judged end to end alone,
        or nothing of what it read could be judged from.
        """
        return self.role == "victim" and not self.measured and (bool(self.behind) or self.verdict == "untestable")

    @property
    def reported(self) -> Comparison | None:
        """The comparison whose errors reports and pictures show: the one that the verdict rests on; of a victim, which
        adds little to the errors that reach it, the propagated one. None where nothing was compared.
        """
        return self.propagated if self.role == "victim" else self.decisive

    def select(self, **index: Any) -> Selection:
        """Some elements by axis letter, each an index or a slice: `select(q=5, k=slice(0, 3))`; of axes that are not
        named all. Refusal for an index outside its axis and a stage that was not given.
        """
        return self._selection(index)

    def __getitem__(self, index: Any) -> Selection:
        """As `select`, with an index or a slice for each axis in order, as NumPy takes them."""
        return self._selection(index if isinstance(index, tuple) else (index,))

    def _selection(self, index: Index) -> Selection:
        if self.dumped is None:
            raise Refusal(f"stage {self.name} has no values: {self.reason or 'it was not given'}")
        found = select(self.name, self.axes, index, self.dumped, self.reported, self.first)
        return replace(found, of_ranks=self.of_ranks)

    def worst(self, n: int = 1) -> list[Element]:
        """The n elements farthest outside their budget, the farthest first; fewer where fewer were judged."""
        return self.worst_of(self.judged, n)

    def worst_of(self, comparison: Comparison, n: int) -> list[Element]:
        """As `worst`, of one of the stage's two comparisons."""
        if n == 1 or comparison.summary.worst is None:
            return [] if comparison.summary.worst is None else [self._element(comparison.summary.worst)]
        over = comparison.over_budget.ravel()
        candidates = np.flatnonzero(~np.isnan(over))
        without_keys = (comparison.state.ravel() == State.EMPTY) & ~comparison.outside.ravel()
        order = candidates[np.lexsort((-over[candidates], without_keys[candidates]))[:n]]
        places = (tuple(int(i) for i in np.unravel_index(flat, comparison.state.shape)) for flat in order)
        return [self._element(element(comparison, place)) for place in places]

    def at(self, **index: int) -> "StageDiff":
        """The stage narrowed to the given indices, by axis letter (b h q k d t s); the axes named go away.

        >>> d["acc"].at(b=0, q=63).worst(10)  # doctest: +SKIP
        """
        if sliced := [axis for axis, i in index.items() if isinstance(i, slice)]:
            raise Refusal(f"at takes an index for each axis; `select` takes slices; got a slice for {sliced[0]!r}")
        one_each = chosen(self.name, self.axes, self.judged.actual.shape, index, self.first)
        where = tuple(
            one_each[axis][0] - self.first.get(axis, 0) if axis in index else slice(None) for axis in self.axes
        )

        def narrowed(c: Comparison | None) -> Comparison | None:
            if c is None:
                return None
            parts = (c.actual, c.expected, c.budget, c.statistical, c.over_budget, c.state)
            return whole(Elements(*(np.asarray(part[where]) for part in parts)))

        axes = "".join(axis for axis in self.axes if axis not in index)
        dumped = None if self.dumped is None else np.asarray(self.dumped[where])
        comparisons = (narrowed(self.isolated), narrowed(self.propagated))
        return replace(self, axes=axes, isolated=comparisons[0], propagated=comparisons[1], dumped=dumped)

    def profile(self, axis: str) -> Profile:
        """Errors along one axis (a letter): where along it elements are outside, how far, and to which side; of the
        decisive comparison.
        """
        if axis not in self.axes:
            raise Refusal(f"stage {self.name} has the axes {' '.join(self.axes)}; got {axis!r}")
        comparison = self.judged
        others = tuple(i for i, other in enumerate(self.axes) if other != axis)
        over, outside = comparison.over_budget, comparison.outside.sum(axis=others)
        largest_over = np.where(np.isnan(over), -1.0, over).max(axis=others)
        error = comparison.error
        known = np.isfinite(error).sum(axis=others)
        error = np.nan_to_num(error)
        opposite = np.sign(to_float64(comparison.actual)) * np.sign(comparison.expected) < 0
        with np.errstate(invalid="ignore", divide="ignore"):
            return Profile(
                axis,
                outside,
                outside / comparison.judged.sum(axis=others),
                np.where(largest_over < 0, np.nan, largest_over),
                error.sum(axis=others) / known,
                np.abs(error).sum(axis=others) / known,
                opposite.sum(axis=others),
                self.first.get(axis, 0),
            )

    def plot(self) -> "Figure":
        """The histogram of errors in units of budget, a matplotlib Figure."""
        return shown_by("pictures.histogram.histogram", self)

    def plot_errors(self) -> "Figure":
        """The histograms of signed errors, in ulps and in units of budget, a matplotlib Figure."""
        return shown_by("pictures.signed.errors", self)

    @property
    def judged(self) -> Comparison:
        """The decisive comparison; refuses a stage that has none."""
        if self.decisive is None:
            raise Refusal(f"stage {self.name} was not judged: {self.reason}")
        return self.decisive

    def __repr__(self) -> str:
        return f"<StageDiff of {self.name} [{' '.join(self.axes)}]: {self.verdict}, {self.role}>"

    def _repr_html_(self) -> str:
        return shown_by("values.html_stage", self)

    def _element(self, found: Element) -> Element:
        """An element with its index in the run."""
        index = {axis: i + self.first.get(axis, 0) for axis, i in zip(self.axes, found.place, strict=True)}
        return replace(found, index=index)


def in_role(stages: Iterable[StageDiff], role: str) -> tuple[str, ...]:
    """The names of the stages that play a role, such as "origin", in order."""
    return tuple(stage.name for stage in stages if stage.role == role)
