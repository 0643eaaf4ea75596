"""What is read of lse, once it is known what out was divided by."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from workbench.readings.denominator import Denominator
from workbench.readings.finding import Finding
from workbench.readings.merges import Merge
from workbench.readings.model import Model
from workbench.readings.of_softmax import denominators
from workbench.readings.sets import ROW_AXES, of_axes
from workbench.readings.target import Answer, Target

#: share of the error that a formula may leave
LEFT = 0.02
#: factors that mean something, in words
BASES = {1 / np.log(2): "in base 2", np.log(2): "multiplied by an extra ln 2", 1 / np.log(10): "in base 10"}


@dataclass(frozen=True, eq=False)
class Lse:
    """What lse is, of scores and e^(s - maximum)."""

    #: what is added up: factors of the right lse, of that of out, of the row's maximum ("top"), of scale * q . the mean
    #: of K over the keys ("mean"), and of 1
    terms: Mapping[str, float] = field(default_factory=dict)
    kind: str = ""  #: in place of a sum: of weights, of scores, of out, place or denominator
    filled: float = 0.0  #: lse in rows that see nothing
    place: np.ndarray | None = None  #: [b, h, q]: flat index of the row whose lse stands there
    denominator: Denominator | None = None

    def __call__(self, model: Model, right: Model, answer: Answer) -> np.ndarray:
        """[b, h, q] of a run."""
        if self.kind == "of weights":
            assert isinstance(model.kernel, Merge)
            return model.kernel.lse_of_weights(model.parts(answer))
        if self.kind == "of out":
            found = model.lse(answer)
            return np.where(np.isfinite(found), found, self.filled)
        if self.kind == "of scores":  # of what scores add to, whatever out was divided by
            return model.but(denominator=None, step=None).lse(answer)
        scores, top, plain = right.exponentials(answer)
        with np.errstate(all="ignore"):
            of_right = top + np.log(right.total(scores, plain, answer.sinks))
            if self.kind == "place":
                assert self.place is not None
                return np.where(self.place >= 0, of_right.reshape(-1)[np.maximum(self.place, 0)], -np.inf)
            if self.denominator is not None:
                return top + np.log(self.denominator(scores, plain, answer.sinks))
            known = {"right": lambda: of_right, "top": lambda: top, "1": lambda: 1.0}
            known |= {"out": lambda: model.lse(answer), "mean": lambda: of_mean(right, answer)}
            found = sum((x * known[name]() for name, x in self.terms.items()), np.zeros(of_right.shape))
            blank = of_right if "right" in self.terms else self.terms.get("1", 0.0)
            return found if "out" in self.terms else np.where(np.isfinite(of_right), found, blank)


def _times(x: np.ndarray, y: np.ndarray) -> float:
    """How many times x is in y, by least squares; a whole number where it is as near as that."""
    times = float(np.sum(x * y) / max(float(np.sum(x**2)), 1e-300))
    return float(round(times)) if abs(times - round(times)) < 1e-3 else times


def of_mean(right: Model, answer: Answer) -> np.ndarray:
    """scale * q . the mean of K over the keys, [b, h, q]."""
    memory = right.memory(answer)
    q, k = (right.read(name, memory[name]) for name in "qk")
    return np.asarray((q @ k.mean(2)[..., None])[..., 0] * right.scale)


def lse(target: Target, model: Model, right: Model) -> tuple[Lse | None, list[Finding]]:
    """What lse of the user's own run is, where it is neither right nor that of what out was divided by."""
    answer = target.natural
    actual, expected = answer.lse, answer.expected_lse
    if actual is None or not answer.wrong_lse.any():
        return None, []
    wrong = answer.wrong_lse
    scores, top, plain = right.exponentials(answer)
    known = np.isfinite(expected) & np.isfinite(actual)
    whole = float(np.sum((actual - expected)[known] ** 2))
    of_out = model.lse(answer)
    if np.nansum((of_out - actual)[known] ** 2) <= LEFT * whole:
        return None, []  # it is the logarithm of what out was divided by
    if isinstance(model.kernel, Merge):
        mixed = Lse(kind="of weights")
        if np.nansum((mixed(model, right, answer) - actual)[known] ** 2) <= LEFT * whole:
            return mixed, []
    blank = np.isfinite(expected) & ~np.isfinite(of_out)
    if blank.any() and np.ptp(np.nan_to_num(actual[blank], posinf=1e300, neginf=-1e300)) == 0:
        filled = Lse(kind="of out", filled=float(actual[blank][0]))
        if np.nansum((of_out - actual)[known & ~blank] ** 2) <= LEFT * max(whole, 1e-12):
            text = f"lse is {actual[blank][0]:g} in rows where the kernel sees no key"
            return filled, [Finding("lse", "lse", text, int(wrong.sum()), wrong.size, {"lse": filled})]
    if (
        model.kernel is None
        and np.nansum((Lse(kind="of scores")(model, right, answer) - actual)[known] ** 2) <= LEFT * whole
    ):
        return Lse(kind="of scores"), []
    found: list[tuple[float, Lse, str]] = []

    def tried(one: Lse, text: str) -> None:
        off = (one(model, right, answer) - actual)[known]
        found.append((float(np.nan_to_num(np.sum(off**2), nan=np.inf)), one, text))

    for a, said in BASES.items():
        tried(Lse({"right": a}), f"lse is {said}{', not in base e' * said.startswith('in base')}")
    tried(Lse({"right": 1.0, "top": -1.0}), "lse lacks the row maximum")
    tried(Lse({"top": 1.0}), "lse is the row maximum, without the log of the sum")
    tried(Lse({"right": -1.0}), "lse is negated")
    for a, said in BASES.items():
        tried(Lse({"out": a}), f"lse is the log of the denominator of out, {said}")
    with np.errstate(all="ignore"):
        both = known & np.isfinite(of_out)
        b = float(np.nanmedian(((actual - of_out) / top)[both])) if both.any() else 0.0
    tried(Lse({"out": 1.0, "top": b}), f"lse is the log of the denominator of out plus {b:.6g} times the row maximum")
    some = np.stack([np.ones(known.sum()), expected[known], top[known]], 1)
    (c, a, b), *_ = np.linalg.lstsq(some, actual[known], rcond=None)
    more = float(np.median((actual - expected)[known])) if known.any() else 0.0
    tried(Lse({"right": 1.0, "1": more}), f"lse is {abs(more):.6g} too {'large' if more > 0 else 'small'}")
    text = f"lse is {a:.6g} * the right lse {b:+.6g} * the row maximum {c:+.6g}"
    tried(Lse({"right": a, "top": b, "1": c}), text)
    x, beside = of_mean(right, answer), "* scale * (q . mean key)"
    times = _times(x[known], (actual - expected)[known])
    tried(Lse({"right": 1.0, "mean": times}), f"lse is the right lse plus {times:.6g} {beside}")
    if np.isfinite(of_out[known]).all():
        times = _times(x[known], (actual - of_out)[known])
        tried(Lse({"out": 1.0, "mean": times}), f"lse is the log of the denominator of out plus {times:.6g} {beside}")
    same = float(np.median(actual[known])) if known.any() else 0.0
    tried(Lse({"1": same}), f"lse is {same:.6g} everywhere")
    empty = np.isneginf(actual) & np.isfinite(expected)
    if actual.size <= 4096 and np.all(known | empty):
        with np.errstate(invalid="ignore"):
            apart = abs(actual.reshape(-1)[:, None] - expected.reshape(-1)[None])
        nearest = np.where(empty.reshape(-1), -1, apart.argmin(1))
        place = nearest.reshape(actual.shape)
        text = (
            f"lse of other rows is stored in {of_axes(place != np.arange(place.size).reshape(place.shape), ROW_AXES)}"
        )
        # among many numbers one is always near: it must be that number
        same_number = empty | (abs(actual - expected.reshape(-1)[place]) <= answer.allowed_lse)
        if same_number.mean() > 0.99 and len(np.unique(nearest)) > 0.1 * nearest.size:
            tried(Lse(kind="place", place=place), text)
    with np.errstate(all="ignore"):
        used = np.exp(actual - top)
    for one, text in denominators(target, scores, plain, used, known & np.isfinite(used), answer.sinks):
        tried(Lse(kind="denominator", denominator=one), "in lse, " + text)
    best = min(one[0] for one in found)
    if not best <= LEFT * whole:
        return None, []
    # the first that is as near, but for roundings of float32
    left, chosen, text = next(one for one in found if one[0] <= 4 * best + 1e-9 * whole)
    return chosen, [Finding("lse", "lse", text, int(wrong.sum()), wrong.size, {"lse": chosen})]
