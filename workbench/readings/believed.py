"""What was read so far of a target, and what is believed of a further reading."""

from collections.abc import Callable, Iterator

import numpy as np

from workbench.readings import of_scores, of_values
from workbench.readings.finding import Finding
from workbench.readings.model import Model, right
from workbench.readings.proof import rms
from workbench.readings.target import Target, Weights

#: what a reading must leave of the error of the natural weights, at most, to be believed
BELIEVED = 0.98
#: share of the error of the user's own run that may be left where no more is looked for
EXPLAINED = 0.005
#: how far differences of ln P may be from those of scores, as a share, where the right elements are multiplied, and how
#: many differences tell that of a row
ALIKE, FEW = 0.1, 4

Found = tuple[Model, list[Finding]]


class Believed:
    """A model of one target, and what was found of it."""

    def __init__(self, target: Target, weights: Weights) -> None:
        self.target, self.weights = target, weights
        self.model, self.found = right(target), list[Finding]()
        self.read = of_values.solved(self.model, weights)

    def allowed(self, model: Model) -> np.ndarray:
        """How far each weight of the user's own run may be off."""
        return of_scores.room(self.weights, model.of_run(self.target.natural))

    def closing(self, model: Model, read: np.ndarray) -> np.ndarray:
        """The same of the weights that were `read`, which may be larger than the model's."""
        made = model.of_run(self.target.natural)
        return of_scores.room(self.weights, np.fmax(abs(made), abs(read)))

    def _apart(self, model: Model, *, scaled: bool) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """What out of each run that read weights is beyond the model's, in units of V, and the size of V.

        `scaled`: but for one factor a row, which later readings tell.
        """
        made = model.of_run(self.target.natural)
        if scaled:
            known = np.isfinite(self.read)
            dot, size = (np.where(known, x, 0.0).sum(-1) for x in (self.read * made, made * made))
            made = made * np.where(size > 0, dot / np.where(size > 0, size, 1.0), 1.0)[..., None]
        for one, v in zip(self.weights.answers, self.weights.placed, strict=True):
            values = model.read_placed(v) if self.weights.base is None else model.values(one)
            yield (model.result(one.out) - made @ values) / self.weights.unit, abs(values) / self.weights.unit

    def misfit(self, model: Model, *, scaled: bool = True) -> float:
        """The root of the mean square of what out of identities is beyond what the model makes of it."""
        squares = [(off**2)[np.isfinite(off)] for off, _ in self._apart(model, scaled=scaled)]
        whole = np.concatenate(squares)
        return float(np.sqrt(np.mean(whole))) if whole.size else np.inf

    @property
    def off(self) -> bool:
        """Whether weights were read that are not those of the model, which is no kernel."""
        return not self.fits(self.model)

    def fits(self, model: Model) -> bool:
        """Whether the weights that were read are those of a model; of a kernel that is not asked."""
        if model.kernel is not None:
            return True
        allowed = self.allowed(model)
        return not any(
            bool(((abs(off) > 2 * (allowed @ size) + 1e-12) & np.isfinite(off)).any())
            for off, size in self._apart(model, scaled=False)
        )

    @property
    def unclosed(self) -> float:
        """How far out of the natural run is, at most, from the weights read times the values of the model."""
        allowed = self.closing(self.model, self.read)
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

    @property
    def explained(self) -> bool:
        """Whether what was found leaves next to nothing of the error of the user's own run, but for casts."""
        if not self.found:
            return False
        answer = self.target.natural
        if not np.array_equal(np.isnan(answer.out), np.isnan(self.model.predicted(answer))):
            return False
        left, casts = self.left(self.model), self.model.rounding(answer)
        return bool(left**2 <= (EXPLAINED * rms(answer, answer.expected)) ** 2 + 2 * casts**2)

    def left(self, model: Model) -> float:
        """The root of the mean square of what a model leaves of out of the user's own run."""
        return rms(self.target.natural, model.predicted(self.target.natural))

    @property
    def multiplied(self) -> tuple[np.ndarray, np.ndarray]:
        """Rows [b, h, q] and keys [b, h, k] whose q and k are multiplied as the model has it: ln P of a key and of the
        next differ as their scores do, in one of four at least, whatever becomes of maxima and sums.
        """
        scores = self.model.scores(self.model.memory(self.target.natural))
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


def _quantile(x: np.ndarray, share: float, axis: int) -> np.ndarray:
    """That of the numbers along an axis that are not NaN."""
    if not x.shape[axis]:  # of one key
        return np.asarray(np.full(x.sum(axis).shape, np.nan))
    order = np.sort(x, axis=axis)
    at = (share * np.maximum((~np.isnan(x)).sum(axis, keepdims=True) - 1, 0)).astype(int)
    return np.take_along_axis(order, at, axis).squeeze(axis)
