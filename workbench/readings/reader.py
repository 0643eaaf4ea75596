"""From a function to what it computes: readings, each corrected by those before it, and the proof on inputs that nobody
has seen.
"""

import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from math import inf
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from workbench.readings import of_blocks, of_kernels, of_memory, of_operands, of_scores, of_softmax, of_values
from workbench.readings.finding import Finding
from workbench.readings.model import Model, right
from workbench.readings.of_lse import Lse, lse
from workbench.readings.steps import steps
from workbench.readings.target import Answer, Target, Weights
from workbench.refusal import Refusal, Unavailable
from workbench.shown import shown_by
from workbench.trace.trace import Trace

#: seeds of unseen inputs, beside the case's own
UNSEEN = (1009, 2003)
#: share of the error that what was measured may leave of an unseen run
LEFT = 0.1
#: what a reading must leave of the error of the natural weights, at most, to be believed
BELIEVED = 0.98
#: the same of what an experiment shows by itself, which another fault may hide in the natural weights
SURE = 1.5
#: share of the error of the user's own run that may be left where no more is looked for
EXPLAINED = 0.02
#: how far differences of ln P may be from those of scores, as a share, where the right elements are multiplied, and how
#: many differences tell that of a row
ALIKE, FEW = 0.1, 4
#: ways of one reading that are tried on the whole run
MOST_WAYS = 64
#: share of the rows of out that stand elsewhere, of which the keys that they choose are evidence enough
MANY = 0.1
#: share of what is wrong in weights that is not one factor a row, below which their sums are looked at first
OF_ROWS = 0.05
#: the same of other operands
OTHER = 0.2

Found = tuple[Model, list[Finding]]


@dataclass(frozen=True, eq=False)
class Proof:
    """What was measured, held against a run on inputs that no reading saw."""

    seed: int
    error: float  #: root of the mean square of out - expected, over what is finite in both
    left: float  #: the same of out - what was measured predicts
    held: bool  #: whether that is less than a tenth, or within the budgets of rounding
    lse_held: bool = True  #: the same of lse, where it was returned and something was read of it


@dataclass(frozen=True, eq=False)
class Measured:
    """What a function computes, as far as it was read off its outputs."""

    findings: tuple[Finding, ...]  #: in the order in which they were read; none for a right function
    model: Model
    right: Model
    weights: np.ndarray  #: P of the user's own q and k, [b, h, q, k]
    expected_weights: np.ndarray
    proofs: tuple[Proof, ...]
    calls: int
    seconds: float
    target: Target = field(repr=False)
    lse: Lse | None = None  #: what lse is, where it is neither right nor that of what out was divided by

    @property
    def proved(self) -> bool:
        """Whether what was found predicts all runs on unseen inputs."""
        return bool(self.findings) and bool(self.proofs) and all(one.held and one.lse_held for one in self.proofs)

    def plot(self) -> Any:
        """The map of ln(P / expected) of the head that is farthest off, a matplotlib Figure."""
        return shown_by("pictures.measured.measured", self)

    def __str__(self) -> str:
        return "\n".join(shown_by("measured.lines", self))


@np.errstate(all="ignore")
def measured(trace: Trace, seconds: float = inf) -> Measured:
    """What the function of a trace computes. Refusal where it cannot be called again, or not as often in `seconds`."""
    begun = time.monotonic()
    with threadpool_limits(1, "blas"), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of rows in which nothing can be read, whose medians are NaN
        target = Target(trace, seconds)
        weights = target.identity
        reader = _Reader(target, weights)
        if weights.wrong.any() or target.natural.wrong.any():
            reader.read_all()
        of_lse, more = lse(target, reader.model, right(target))
        reader.found += more
        proofs = tuple(_proved(target, reader.model, of_lse, seed) for seed in UNSEEN) if reader.found else ()
        if not all(one.held for one in proofs) and target.may_be_right:
            # of a kernel in another arithmetic what was read is what that rounds
            reader.found, proofs = [], ()
    return Measured(
        tuple(reader.found), reader.model, right(target), reader.read, weights.expected, proofs, target.calls,
        time.monotonic() - begun, target, of_lse,
    )  # fmt: skip


class _Reader:
    """The readings of one target, as far as they went."""

    def __init__(self, target: Target, weights: Weights) -> None:
        self.target, self.weights = target, weights
        self.model, self.found = right(target), list[Finding]()
        self.read = of_values.solved(self.model, weights)

    def allowed(self, model: Model) -> np.ndarray:
        """How far each weight of the user's own run may be off."""
        return of_scores.room(self.weights, model.of_run(self.target.natural))

    def _apart(self, model: Model, *, scaled: bool) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """What out of each run that read weights is beyond the model's, and how far it may be; in units of V.

        `scaled`: but for one factor a row, which later readings tell.
        """
        made = model.of_run(self.target.natural)
        allowed = self.allowed(model)
        if scaled:
            known = np.isfinite(self.read)
            dot, size = (np.where(known, x, 0.0).sum(-1) for x in (self.read * made, made * made))
            made = made * np.where(size > 0, dot / np.where(size > 0, size, 1.0), 1.0)[..., None]
        for one, v in zip(self.weights.answers, self.weights.placed, strict=True):
            values = model.read_placed(v) if self.weights.base is None else model.values(one)
            yield (
                (model.result(one.out) - made @ values) / self.weights.unit,
                allowed @ (abs(values) / self.weights.unit),
            )

    def misfit(self, model: Model, *, scaled: bool = True) -> float:
        """The root of the mean square of what out of identities is beyond what the model makes of it."""
        squares = [(off**2)[np.isfinite(off)] for off, _ in self._apart(model, scaled=scaled)]
        whole = np.concatenate(squares)
        return float(np.sqrt(np.mean(whole))) if whole.size else np.inf

    @property
    def off(self) -> bool:
        """Whether weights were read that are not those of the model, which is no kernel."""
        if self.model.kernel is not None:
            return False
        return any(
            bool(((abs(off) > 2 * room + 1e-12) & np.isfinite(off)).any())
            for off, room in self._apart(self.model, scaled=False)
        )

    @property
    def unclosed(self) -> float:
        """How far out of the natural run is, at most, from the weights read times the values of the model."""
        allowed = self.allowed(self.model)
        return float(of_values.unclosed(self.target, self.model, self.read, allowed).max())

    def of_values(self, reading: Callable[[Target, Model], Found], *, believed: bool = False) -> None:
        """A reading of V or out, kept where out of the natural run is then nearer to its weights times its values."""
        model, found = reading(self.target, self.model)
        if not found:
            return
        read = of_values.solved(model, self.weights)
        before = of_values.unclosed(self.target, self.model, self.read, self.allowed(self.model))
        after = of_values.unclosed(self.target, model, read, self.allowed(model))
        if believed or np.sqrt(np.mean(after**2)) < 0.9 * np.sqrt(np.mean(before**2)):
            self.model, self.read = model, read
            self.found += found
            if model.v_dims is not None:
                self.weights = self.target.weights(model.v_dims)
                self.read = of_values.solved(model, self.weights)

    def of_weights(
        self, reading: Callable[..., Found], *more: np.ndarray, scaled: bool = True, believed: float = BELIEVED
    ) -> None:
        """A reading of scores or sums, kept where the natural weights are then nearer to what the model makes."""
        if not self.off:
            return
        model, found = reading(self.target, self.model, *more)
        if found and self.misfit(model, scaled=scaled) < believed * self.misfit(self.model, scaled=scaled):
            self.model = model
            maps = {name for one in found if one.reading == "elements" for name in one.data}
            # of a map that was read again, of all heads, the first is nothing more
            self.found = [one for one in self.found if one.reading != "elements" or not maps & {*one.data} - {"known"}]
            self.found += found

    def read_all(self) -> None:
        """All readings, in the order of what each of them needs to know."""
        self.of_values(of_values.added, believed=True)
        if self.unclosed > 1 or (self.off and not all(x.all() for x in self.multiplied)):
            self.placed()
        for reading in (of_values.columns, of_values.heads, of_values.elements):
            if self.unclosed > 1:
                self.of_values(reading)
        if self.unclosed > 1 and not self.target.spent:
            self.of_all_values()
        self.with_operands()
        self.started()
        self.factored()
        self.responded()
        if self.off and self.misfit(self.model) < OF_ROWS * self.misfit(self.model, scaled=False):
            self.of_weights(of_softmax.denominator, self.read, self.allowed(self.model), scaled=False)
        if self.explained:
            return
        rows, keys = self.multiplied
        if max(rows.mean(), keys.mean()) > 0.5:
            self.of_kernels()
            self.in_blocks()
        if not (rows.all() and keys.all()):
            tried = self.model
            self.maps()
            if self.model is not tried and not self.explained:
                self.of_kernels()
                self.in_blocks()
        if self.explained:
            return
        self.stepped()
        for last, scaled in (
            (of_softmax.flushed, True),
            (of_softmax.denominator, False),
            (of_softmax.mixed, False),
        ):
            self.of_weights(last, self.read, self.allowed(self.model), scaled=scaled)

    def maps(self) -> None:
        """Which elements of Q and K are multiplied."""
        for reading in (of_operands.elements, of_operands.elements_of_all):
            for name in ("k", "q"):
                if not self.target.spent:
                    self.of_weights(partial(reading, name=name))

    @property
    def explained(self) -> bool:
        """Whether what was found leaves next to nothing of the error of the user's own run, but for casts."""
        if not self.found:
            return False
        answer = self.target.natural
        if not np.array_equal(np.isnan(answer.out), np.isnan(self.model.predicted(answer))):
            return False
        left, casts = self.left(self.model), self.model.rounding(answer)
        return bool(left**2 <= (EXPLAINED * rms(answer, answer.expected)) ** 2 + casts**2)

    def of_all_values(self) -> None:
        """A map of V whose heads read others' memory; one of a head alone is then no more than a part of it."""
        sources = {name: x for name, x in self.model.sources.items() if name != "v"}
        plain = self.model.but(sources=sources)
        model, found = of_memory.values_of_all(self.target, plain)
        if not found:
            return
        read = of_values.solved(model, self.weights)
        closed = float(of_values.unclosed(self.target, model, read, self.allowed(model)).max()) <= 1
        # where rows of V are read twice, weights of theirs cannot be told apart
        if closed or self.left(model) < LEFT * self.left(plain):
            self.model, self.read = model, read
            self.found = [one for one in self.found if one.reading != "elements" or "v" not in one.data] + found

    def in_blocks(self) -> None:
        """What is alike in all blocks, where that leaves little of the error."""
        for tried in (of_blocks.moved, of_blocks.factors, of_blocks.polynomials):
            if self.unpredicted:
                ways = list(tried(self.target, self.model, self.read))[:MOST_WAYS]
                model, found = min(ways, key=lambda one: self.left(one[0]), default=(self.model, []))
                if found and self.left(model) < LEFT * self.left(self.model):
                    self.model = model
                    self.found += found

    def left(self, model: Model) -> float:
        """The root of the mean square of what a model leaves of out of the user's own run."""
        return rms(self.target.natural, model.predicted(self.target.natural))

    def responded(self) -> None:
        """A curve that all rows show is so, whatever else is wrong; but where it brings the natural weights no nearer,
        a cast of scores may be what looks like one.
        """
        before = self.model, list(self.found)
        self.of_weights(of_scores.response, believed=SURE)
        if self.model is before[0] or self.misfit(self.model) < BELIEVED * self.misfit(before[0]):
            return
        after = self.model, self.found
        self.model, self.found = before
        self.of_kernels()
        if self.model is before[0]:
            self.model, self.found = after

    @property
    def multiplied(self) -> tuple[np.ndarray, np.ndarray]:
        """Rows [b, h, q] and keys [b, h, k] whose q and k are multiplied as the model has it: ln P of a key and the next
        differ as their scores do, in one of four at least, whatever becomes of maxima and sums.
        """
        scores = self.model.scores(self.target.natural.memory)
        with np.errstate(all="ignore"):
            off = abs(np.diff(of_scores.logs(self.read, self.allowed(self.model)) - scores))
            size = abs(np.diff(scores))
        size = np.where(np.isfinite(size), size, np.nan)

        def told(axis: int) -> np.ndarray:
            near = _quantile(off, 0.25, axis) < ALIKE * _quantile(size, 0.5, axis)
            return np.asarray(near | (np.isfinite(off).sum(axis) < FEW))

        return told(-1), told(-2)

    @property
    def unpredicted(self) -> bool:
        """Whether the model leaves an element of the user's own run beyond its budget, or nothing was found."""
        answer = self.target.natural
        off = ~(abs(answer.out - self.model.predicted(answer)) <= answer.allowed)
        return self.off or not self.found or bool((answer.wrong & off).any())

    def of_kernels(self, *, casts: bool = True) -> None:
        """A loop, a merge, a buffer or a cast that makes the natural run. What a wrong merge or a buffer does shows at
        q = 0 too, as keys that weigh too much there, or are seen: that is then dropped.
        """
        if self.model.kernel is not None or not self.unpredicted:
            return
        begun = next((one for one in self.found if one.reading == "start"), None)
        rest = [one for one in self.found if one.reading not in ("start", "fixed")]
        ways = [(self.model, self.found, False)]
        if begun is not None and not begun.data["masks"]:
            mask, text = begun.data["mask"], begun.data["said of mask"]
            data = {"table": mask, "masks": True, "mask": mask, "said of mask": text}
            more = [Finding("start", "scores", text, begun.wrong, begun.of, data)] if text else []
            ways.insert(0, (self.model.but(start=mask, fixed=None), rest + more, False))
        if begun is not None:
            ways.append((self.model.but(start=right(self.target).start, fixed=None), rest, True))
        for base, before, stale in ways:
            model, found = of_kernels.kernels(self.target, base, stale=stale, casts=casts)
            if found:
                gone = ("steps", "denominator", "flushed")
                self.model, self.found = model, [one for one in before if one.reading not in gone] + found
                return

    def with_operands(self) -> None:
        """Whose products scores are: kept where that leaves a small part of the error."""
        if not self.off:
            return
        begun = self.misfit(self.model)
        model, found = min(of_operands.operands(self.target, self.model), key=lambda one: self.misfit(one[0]))
        if self.misfit(model) < OTHER * begun:
            self.model = model
            self.found += found

    def factored(self) -> None:
        """A factor of scores that responses did not tell, as where rows of V are lost."""
        if self.off and "v" in self.model.sources:
            model, found = of_operands.factor(self.target, self.model, self.misfit)
            self.model = model
            self.found += found

    def started(self) -> None:
        """What keys weigh at q = 0, hidden ones as a number of their own or with their scores; keys that weigh nothing,
        or twice, may be rows of V that stand elsewhere.
        """
        if not self.off:
            return
        model, found = of_scores.start(self.target, self.model)
        if not found:
            return
        begun = self.model
        ways = [(model, found)]
        alone, of_fixed = of_scores.fixed(self.target, model)
        if of_fixed:
            ways.append((alone, [*found, *of_fixed]))
        told = min(ways, key=lambda one: self.misfit(one[0]))
        if self.misfit(told[0]) > LEFT * self.misfit(begun) and all(np.mean(x) > 0.5 for x in self.multiplied):
            before = self.found
            self.model, self.found = told[0], before + told[1]
            self.of_kernels(casts=False)
            if self.model.kernel is not None:
                return
            self.model, self.found = begun, before
        if "v" not in begun.sources and self.misfit(told[0]) > LEFT * self.misfit(begun):
            moved, of_map = of_values.elements(self.target, begun)
            if of_map:
                ways.append((moved, of_map))
        model, found = min(ways, key=lambda one: self.misfit(one[0]))
        # keys that are seen or not are so whatever scores are; another weight may be what a merge makes of it
        if found[0].data.get("masks") or self.misfit(model) < BELIEVED * self.misfit(begun):
            self.model, self.read = model, of_values.solved(model, self.weights)
            self.found += found

    def stepped(self) -> None:
        """Steps along the keys. A wrong merge shows at q = 0 too, as keys that weigh too much there; where steps alone
        leave a fifth as much, that finding is dropped.
        """
        self.of_weights(steps, self.read, self.allowed(self.model))
        begun = next((one for one in self.found if one.reading == "start" and not one.data.get("masks")), None)
        if begun is None or not self.off:
            return
        plain = self.model.but(start=right(self.target).start, fixed=None, step=None)
        model, found = steps(self.target, plain, self.read, self.allowed(plain))
        if found and self.misfit(model) < self.misfit(self.model) / 5:
            gone = [one for one in self.found if one is begun or one.reading in ("fixed", "steps")]
            self.model, self.found = model, [one for one in self.found if one not in gone] + found

    def placed(self) -> None:
        """Where results stand; kept where the weights are then nearer to those that are expected."""
        model, found = of_values.place(self.target, self.model)
        if not found:
            return
        read = of_values.solved(model, self.weights)
        # that many rows choose the very keys of others in six runs is no chance; a few may have lost theirs
        many = found[0].wrong > MANY * found[0].of
        if many or self.misfit(model, scaled=False) < 0.7 * self.misfit(self.model, scaled=False):
            self.model, self.read = model, read
            self.found += found


def _quantile(x: np.ndarray, share: float, axis: int) -> np.ndarray:
    """That of the numbers along an axis that are not NaN."""
    order = np.sort(x, axis=axis)
    at = (share * np.maximum((~np.isnan(x)).sum(axis, keepdims=True) - 1, 0)).astype(int)
    return np.take_along_axis(order, at, axis).squeeze(axis)


def _proved(target: Target, model: Model, of_lse: Lse | None, seed: int) -> Proof:
    """A run on other numbers, against what was measured."""
    try:
        answer = target.drawn(target.case.seed + seed)
    except (Refusal, Unavailable):
        return Proof(seed, np.nan, np.nan, False)
    plain = right(target)
    made = model.predicted(answer)
    error, left = rms(answer, answer.expected), rms(answer, made)
    held = predicted(answer, model, plain)
    return Proof(seed, error, left, held, lse_predicted(answer, model, plain, of_lse))


def predicted(answer: Answer, model: Model, plain: Model) -> bool:
    """Whether out of a run is as the model has it: within budgets, or but for a tenth of the error. What the casts of
    a kernel in 16 bits make of float64 no model has.
    """
    made = model.predicted(answer)
    if not np.array_equal(np.isnan(answer.out), np.isnan(made)):
        return False
    alike = (answer.out == made) | (np.isnan(answer.out) & np.isnan(made))
    # budgets are about what casts make of float64, which a model without them is off by
    of_casts = abs(answer.expected - plain.predicted(answer))
    if np.all((abs(answer.out - made) <= answer.allowed + of_casts) | alike):
        return True
    error, left, casts = rms(answer, answer.expected), rms(answer, made), model.rounding(answer)
    return bool(left**2 <= (LEFT * error) ** 2 + casts**2 and left <= error / 2)


def lse_predicted(answer: Answer, model: Model, plain: Model, of_lse: Lse | None) -> bool:
    """Whether lse of a run, where it is returned and wrong, is as the model or a reading of its own has it."""
    if answer.lse is None or not answer.wrong_lse.any():
        return True
    made = model.lse(answer) if of_lse is None else of_lse(model, plain, answer)
    if model.lost is not None:
        made = np.where(model.lost & np.isnan(answer.lse), np.nan, made)
    alike = (answer.lse == made) | (np.isnan(answer.lse) & np.isnan(made)) | np.isinf(answer.expected_lse)
    with np.errstate(invalid="ignore"):
        if np.all(alike | (abs(answer.lse - made) <= answer.allowed_lse)):
            return True
    return explained(answer.lse, made, answer.expected_lse)


def explained(actual: np.ndarray, made: np.ndarray, expected: np.ndarray) -> bool:
    """Whether a prediction, `made`, leaves at most a tenth of the error; of elements that are finite in all three."""
    finite = np.isfinite(actual) & np.isfinite(made) & np.isfinite(expected)
    if not finite.any():
        return False
    off, error = (np.sqrt(np.mean((x - actual)[finite] ** 2)) for x in (made, expected))
    return bool(off <= LEFT * error)


def rms(answer: Answer, made: np.ndarray) -> float:
    """The root of the mean square of out - `made`, over what is finite in both."""
    finite = np.isfinite(answer.out) & np.isfinite(made)
    return float(np.sqrt(np.mean((answer.out - made)[finite] ** 2))) if finite.any() else 0.0
