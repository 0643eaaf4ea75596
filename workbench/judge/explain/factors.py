"""The ledger of normalisation factors: which of them a wrong stage holds once too often, or lacks.

The softmax of attention is put together from factors that every path to the output must meet exactly once. At the
elements outside their budget, what a stage holds is compared with what it should hold, multiplied by a factor or
divided by it. A stage that sums over an axis on which the factor lives (out over splits, say) has no such ratio: it is
recomputed in float64 with the factor in the summed term.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import add
from typing import NamedTuple

import numpy as np

from workbench.case.box import Box
from workbench.case.stages import ALGORITHMS
from workbench.floats import to_float64, ulp
from workbench.judge.blocks import AT_ONCE_ON_CPU
from workbench.judge.codes.decoding import attention_of, scale_of
from workbench.judge.elements import WRONG, Comparison
from workbench.judge.expectation import Expectation
from workbench.judge.judgeable import readable, table
from workbench.judge.stage import ORIGIN_VERDICTS, StageDiff
from workbench.reference.graph import unseen_upstream
from workbench.trace.trace import Trace

Arrays = Mapping[str, np.ndarray]

#: a factor is named where it explains this share of the elements outside the budget, of which there are so many
SHARE, AT_LEAST = 0.99, 8
#: relative error of a factor that the kernel held in float32 and that nobody dumped: some hundred roundings of 2^-24
FACTOR_ERROR = 2.0**-16
#: queries on which all factors are tried; only what explains nearly all there is tried on every query
SCREENED_ROWS, SCREENED_SHARE = 8, 0.9


@dataclass(frozen=True)
class Factor:
    """A factor of normalisation: what it is, and which stages are to be multiplied by it."""

    meaning: str  #: what its stage holds
    applied: Mapping[str, str]  #: stages that apply it, of all algorithms -> to what


#: every factor, by the name of the stage that holds it; scale is held by the case
FACTORS: Mapping[str, Factor] = {
    "scale": Factor("a number of the case", {"scores": "to qk"}),
    "correction": Factor(
        "one for each query and tile", {"row_sum": "to the previous row_sum", "acc": "to the previous acc"}
    ),
    "row_sum": Factor("the running denominator", {"partial_sum": "as the split's last", "out": "as a divisor of acc"}),
    "partial_sum": Factor(
        "a split's denominator, which partial_O holds already", {"merge_sum": "to each split's weight"}
    ),
    "merge_weight": Factor("one for each query and split", {"merge_sum": "to partial_sum", "out": "to partial_O"}),
    "merge_sum": Factor("a row's denominator", {"out": "as a divisor of the sum"}),
    "scale_q": Factor("one for each head", {"dequant_q": "to the code's value"}),
    "scale_k": Factor("one for each kv head", {"lut_k": "to the code's value, without a table by dequant_k"}),
    "scale_v": Factor("one for each kv head", {"lut_v": "to the code's value, without a table by dequant_v"}),
}

#: stage -> the input that carries the factor of each summed term, in kernels that have it
_TERMS: Mapping[str, str] = {
    "row_sum": "correction",
    "acc": "correction",
    "merge_sum": "partial_sum",
    "out": "merge_weight",
}


@dataclass(frozen=True)
class Entry:
    """A factor that explains a stage: at `matched` of its `of` elements outside the budget."""

    factor: str  #: a name of FACTORS
    power: int  #: 1: a factor too many; -1: one too few
    term: str  #: what it was multiplied into: the stage itself, or what the stage sums
    matched: int
    of: int


def ledger(trace: Trace, stage: StageDiff) -> tuple[Entry, ...]:
    """The factors that explain a wrong stage of `trace`, the best first; () where the stage is no origin. Of stages
    before attention only decoded values have one, the scale of their codes.

    An element is explained where the factor brings the expectation within the element's budget times the factor, and
    nearer to what the kernel has by half: so a factor of 1 explains nothing.
    """
    comparison = stage.decisive
    if stage.verdict not in ORIGIN_VERDICTS or comparison is None or comparison.outside.sum() < AT_LEAST:
        return ()
    if stage.name.startswith(("lut", "dequant")):
        found = (_scaled(trace, stage, comparison, power) for power in (1, -1))
        return tuple(entry for entry in found if _share(entry) >= SHARE)
    trace = attention_of(trace)
    if "q" not in stage.axes or stage.name not in ALGORITHMS[trace.algorithm]:
        return ()
    others = tuple(i for i, axis in enumerate(stage.axes) if axis != "q")
    wrong = np.flatnonzero(comparison.outside.any(axis=others))
    few = wrong[np.unique(np.linspace(0, len(wrong) - 1, min(SCREENED_ROWS, len(wrong))).astype(int))]
    trials = [*_trials(trace, stage)]
    screening = _entries(trace, stage, comparison, few, trials)
    likely = [trial for trial, entry in zip(trials, screening, strict=True) if _share(entry) >= SCREENED_SHARE]
    everywhere = _entries(trace, stage, comparison, wrong, likely)
    best: dict[tuple[str, int], Entry] = {}
    for entry in sorted(everywhere, key=_share, reverse=True):  # stable: the plainest first
        if _share(entry) >= SHARE:
            best.setdefault((entry.factor, entry.power), entry)
    return tuple(best.values())


@np.errstate(all="ignore")
def _scaled(trace: Trace, stage: StageDiff, comparison: Comparison, power: int) -> Entry:
    """How many wrong decoded values the scale of their head explains."""
    name = f"scale_{stage.name[-1]}"
    factor = aligned(scale_of(trace, stage.name[-1]) ** power, "h", stage.axes)
    right, bound, actual = (to_float64(x) for x in (comparison.expected, comparison.budget, comparison.actual))
    found = _matched(actual, right, bound, comparison.outside, right * factor, factor, comparison.actual.dtype)
    return Entry(name, power, stage.name, found.counted, int(comparison.outside.sum()))


class _Trial(NamedTuple):
    factor: str
    power: int
    term: str


class _Matched(NamedTuple):
    """Elements that a trial explains, and those of them that it makes other than 0: zeros alone tell nothing."""

    explained: int
    nonzero: int

    @property
    def counted(self) -> int:
        """Elements that speak for the trial: those that it explains, unless all of them are 0."""
        return self.explained if self.nonzero else 0


def _entries(
    trace: Trace, stage: StageDiff, comparison: Comparison, rows: np.ndarray, trials: Sequence[_Trial]
) -> list[Entry]:
    """What the trials explain at the queries `rows`, of which as many are recomputed at once as fit."""
    case, found, of = trace.case, [_Matched(0, 0)] * len(trials), 0
    at_once = max(1, AT_ONCE_ON_CPU // (case.batch * case.heads * case.seqlen_k))
    for first in range(0, len(rows) if trials else 0, at_once):
        queries = _Queries(trace, stage, comparison, rows[first : first + at_once])
        of += int(queries.outside.sum())
        more = map(queries.matched, trials)
        found = [_Matched(*map(add, one, other)) for one, other in zip(found, more, strict=True)]
    return [
        Entry(trial.factor, trial.power, trial.term, one.counted, of) for trial, one in zip(trials, found, strict=True)
    ]


def _trials(trace: Trace, stage: StageDiff) -> Iterator[_Trial]:
    """What is tried, plain products of the stage first."""
    known, term = ALGORITHMS[trace.algorithm], _TERMS.get(stage.name, "")
    factors = {name: "" if name == "scale" else known[name].axes for name in FACTORS if name in ("scale", *known)}
    if "merge_sum" not in known and "t" not in stage.axes:
        factors["row_sum"] = "bhq"  # the last one; rows that are merged are made of several
    for name, axes in factors.items():
        if set(axes) <= set(stage.axes):
            yield from (_Trial(name, power, stage.name) for power in (1, -1))
    for name, axes in factors.items():
        # a factor common to all terms of a sum is one of the stage itself
        if term in known and axes and set(axes) == set(known[term].axes):
            yield from (_Trial(name, power, term) for power in (1, -1))
    if "scores" in unseen_upstream(table(trace), stage.name, readable(trace)):
        yield from (_Trial("scale", power, "scores") for power in (1, -1))


@dataclass(frozen=True, eq=False)
class _Queries:
    """A wrong stage of a trace at some queries, where trials are counted."""

    trace: Trace
    stage: StageDiff
    comparison: Comparison  #: the stage's decisive one
    rows: np.ndarray  #: indices of q

    @cached_property
    def expectation(self) -> Expectation:
        """The queries' stages, from the dumped ones that the wrong one was judged from."""
        return Expectation(self.trace, readable(self.trace), Box(q=self.rows))

    def cut(self, array: np.ndarray, name: str) -> np.ndarray:
        """An array of the stage `name` at the queries alone, float64."""
        return to_float64(np.take(array, self.rows, axis=self.axes(name).index("q")))

    def axes(self, name: str) -> str:
        return ALGORITHMS[self.trace.algorithm][name].axes

    def value(self, name: str) -> np.ndarray:
        """A stage as dumped, else as the reference computes it from what was; the wrong one as it should be."""
        if name == self.stage.name:
            return self.cut(self.comparison.expected, name)
        given = self.expectation.given
        return given[name] if name in given else self.expectation.computed[name]

    def factor(self, name: str, axes: str) -> tuple[np.ndarray, str]:
        """A factor and its axes; the last of a running one where `axes`, those that it is to meet, have no tile."""
        if name == "scale":
            return np.asarray(self.trace.case.scale, np.float64), ""
        value, letters = self.value(name), self.axes(name)
        return (value[..., -1], letters[:-1]) if letters.endswith("t") and "t" not in axes else (value, letters)

    @cached_property
    def outside(self) -> np.ndarray:
        """Which of its elements are outside their budget, bool."""
        state = np.take(self.comparison.state, self.rows, axis=self.stage.axes.index("q"))
        return np.isin(state, WRONG)

    @np.errstate(all="ignore")
    def matched(self, trial: _Trial) -> _Matched:
        """How many of the elements outside their budget the trial explains."""
        name, axes, term = self.stage.name, self.stage.axes, trial.term
        right, bound = self.cut(self.comparison.expected, name), self.cut(self.comparison.budget, name)
        actual = self.cut(self.comparison.actual, name)

        factor, letters = self.factor(trial.factor, self.axes(term))
        power = factor**trial.power
        if term == name:
            tried = right * aligned(power, letters, axes)
        else:
            summed = self.value(term)
            # a split without keys adds nothing, whatever its factor
            product = np.where(summed == 0, 0.0, summed * aligned(power, letters, self.axes(term)))
            if term == trial.factor and trial.power == -1:
                product = np.ones_like(product)  # a factor that is not applied, also where it is 0
            tried = self.expectation.recomputed({term: product})[name]
        # a sum grows by no more than the largest factor of its terms
        gone = tuple(i for i, letter in enumerate(letters) if letter not in axes)
        kept = "".join(letter for letter in letters if letter in axes)
        growth = aligned(np.where(np.isfinite(power), np.abs(power), 0.0).max(axis=gone), kept, axes)
        return _matched(actual, right, bound, self.outside, tried, growth, self.comparison.actual.dtype)


def _matched(
    actual: np.ndarray, right: np.ndarray, bound: np.ndarray, outside: np.ndarray,
    tried: np.ndarray, growth: np.ndarray, dtype: np.dtype,
) -> _Matched:  # fmt: skip
    """How many elements outside their budget are what was `tried`, which makes their budget larger by `growth`."""
    tolerance = bound * np.maximum(growth, 1.0) + FACTOR_ERROR * np.abs(tried) + ulp(tried, dtype) / 2
    error = np.abs(actual - tried)  # an infinite product has no ulp, no tolerance, and explains nothing
    explained = outside & (error <= tolerance) & (error <= np.abs(actual - right) / 2)
    # a factor of 0 makes every wrong zero right
    return _Matched(int(explained.sum()), int((explained & (tried != 0)).sum()))


def aligned(array: np.ndarray, letters: str, axes: str) -> np.ndarray:
    """`array` with the axes `letters` as one that broadcasts against a stage with the axes `axes`."""
    order = sorted(range(len(letters)), key=lambda i: axes.index(letters[i]))
    sizes = dict(zip(letters, array.shape, strict=True))
    return array.transpose(order).reshape([sizes.get(axis, 1) for axis in axes])


def _share(entry: Entry) -> float:
    return entry.matched / entry.of if entry.of else 0.0
