"""Where the inputs of two runs first differ by more than rounding makes of what came before.

Before the first call an input is some roundings of one number: a chain of CHAIN roundings moves a row by CHAIN units of
its size at most, and a sum of n terms in float32 by sqrt(n) of float32's. Later inputs have what earlier calls differed
by, too, times what the layers between make of a difference. That is measured: the growth from what differed before to
the inputs of a call, of which a run has one for each call, and the usual one is their median.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from workbench.case.stages import INPUTS
from workbench.floats import unit_roundoff
from workbench.judge.against.asked import apart, apart_in_rows, scaled_alike
from workbench.judge.against.question import Question
from workbench.readings.finding import spans

#: roundings one after the other from a token to q, k and v: embedding, norm, its weight, projection, and of the rotation
#: both factors, products and sum
CHAIN = 8
#: of the usual growth, what one layer may have: layers of right models are within a factor of 2
LAYERS = 4.0
#: standard deviations beyond which a mean of roundings is none
BEYOND = 7.0

#: input, place of a row -> the last earlier call of a side that holds the row as it is now; None for none
Kept = Callable[[str, int], int | None]


@dataclass(frozen=True)
class Distance:
    """How far the inputs of a call are apart, of their size."""

    inputs: Mapping[str, float]  #: q, k, v -> of the farthest row
    out: float  #: of the farthest row
    rounding: float  #: what a layer's roundings may make
    factor: float  #: by which an input of A is larger in the mean of all rows; 1 where that may be chance
    tokens: tuple[int, int]  #: queries of a head, and keys that are read

    @property
    def largest(self) -> float:
        """Of q, k and v."""
        return max(self.inputs.values())


@dataclass(frozen=True)
class Departure:
    """The first call whose inputs differ by more than rounding makes of what came before."""

    call: int
    behind: int | None  #: the call before it that both have; None where it is the model's first
    inputs: Mapping[str, float]  #: those that differ by more -> by how much of their size, of the farthest row
    allowed: float  #: what rounding may make, of their size
    factor: float | None  #: by which A is larger in the mean of all rows, where that alone is more than rounding
    rows: Mapping[str, str]  #: in which rows alone, as keys are counted; "" for all
    where: str  #: what the difference looks like, and where to look


def distance(a: Question, b: Question, outs: Sequence[np.ndarray]) -> Distance:
    """Of two calls in one form with their outs [unit, row, dim]."""
    found = {name: float(apart(a, b, name).max(initial=0.0)) for name in INPUTS}
    out = float(apart_in_rows(*outs, a.asked & b.asked).max(initial=0.0))
    rounding = CHAIN * max(a.roundoff, b.roundoff) + a.width**0.5 * unit_roundoff(np.float32)
    factors = [_factor(a, b, name) for name in INPUTS]
    tokens = (a.queries, int(a.read.sum(1).max(initial=0)))
    return Distance(found, out, rounding, max(factors, key=lambda x: abs(x - 1)), tokens)


@np.errstate(all="ignore")
def _factor(a: Question, b: Question, name: str) -> float:
    """By how much an input of A is larger in the mean of its rows; 1 where roundings may make that by chance."""
    x, y, used = _both(a, b, name)
    factors = (x * y).sum(-1) / (y * y).sum(-1)
    used = used & np.isfinite(factors)
    if not used.any():
        return 1.0
    rest = x - factors[..., None] * y
    chance = np.sqrt(np.mean((rest**2).sum(-1)[used] / (y * y).sum(-1)[used]) / (len(x) * x.shape[2]))
    mean = float(factors[used].mean())
    return mean if abs(mean - 1) > max(BEYOND * chance, a.roundoff, b.roundoff) else 1.0


def _both(a: Question, b: Question, name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """An input of both, the scale in q where it is in that of one, and which rows or keys are used."""
    factors = (a.scale, b.scale) if name == "q" and scaled_alike(a, b) else (1.0, 1.0)
    used = a.asked & b.asked if name == "q" else a.read & b.read
    return getattr(a, name) * factors[0], getattr(b, name) * factors[1], used


def first_departure(calls: Sequence[int], found: Sequence[Distance], until: int) -> tuple[int, float] | None:
    """The place of the first call, of those before `until`, whose inputs differ by more than rounding makes, and what
    that is; None for none.
    """
    before = [max((max(one.largest, one.out) for one in found[:n]), default=0.0) for n in range(len(found))]
    growth = [one.largest / max(x, one.rounding / 4) for one, x in zip(found, before, strict=True)]
    for n, one in enumerate(found[:until]):
        others = [*growth[1:n], *growth[n + 1 :]] if n else []
        usual = max(1.0, float(np.median(others)) if others else 1.0)
        missed = calls[n] - (calls[n - 1] if n else -1)  # calls until here, of which this alone is known
        allowed = max(one.rounding, LAYERS * usual * before[n]) * missed
        if one.largest > allowed or (calls[n] == 0 and one.factor != 1):
            return n, allowed
    return None


def departure(
    calls: tuple[int, int | None], new: bool, a: Question, b: Question, allowed: float, kept: Sequence[Kept]
) -> Departure:
    """What is known of a call whose inputs differ by more than `allowed`, or by a factor. `calls`: the call and the one
    before it. `new`: whether its tokens are new to the model. `kept`, of both sides.
    """
    every = {name: apart(a, b, name) for name in INPUTS}
    over = {name: found > allowed for name, found in every.items() if (found > allowed).any()}
    factor = None
    if not over:
        factors = {name: x for name in INPUTS if (x := _factor(a, b, name)) != 1}
        over = {name: every[name] > 0 for name in factors}
        factor = max(factors.values(), key=lambda x: abs(x - 1))
    inputs = {name: float(every[name].max()) for name in over}
    where = _where(a, b, over, allowed, new, kept)
    return Departure(*calls, inputs, allowed, factor, _rows(a, every, over), where)


def _rows(question: Question, every: Mapping[str, np.ndarray], over: Mapping[str, np.ndarray]) -> dict[str, str]:
    """The rows in which inputs differ, where they are far closer in others."""
    found, partial = {}, False
    for name, of in over.items():
        used = question.asked if name == "q" else question.read
        at, all_of = _at(question, name, of), _at(question, name, used)
        rest = every[name][:, ~of.any(0)].max(initial=0.0)
        some = len(at) < len(all_of) and rest < every[name].max() / 10
        partial |= some
        found[name] = (_tokens(question)[at] if name == "q" else at, some)
    return {
        name: spans(question.places[0][at]) if some or (name == "q" and partial) else ""
        for name, (at, some) in found.items()
    }


def _tokens(question: Question) -> np.ndarray:
    """Where the tokens of the queries stand among the keys: at the last key that each sees, where these ascend."""
    keys = question.seen.shape[2]
    of_head = question.seen[0, : question.queries]
    last = keys - 1 - of_head[:, ::-1].argmax(-1)
    if question.queries > 1 and not (np.diff(last) > 0).all():
        last = np.arange(question.queries) + keys - question.queries
    return last


def _at(question: Question, name: str, over: np.ndarray) -> np.ndarray:
    """The rows of q, or keys, of which a unit has one that is over."""
    return np.unique(np.nonzero(over)[1] % question.queries) if name == "q" else np.flatnonzero(over.any(0))


def _where(
    a: Question, b: Question, over: Mapping[str, np.ndarray], allowed: float, new: bool, kept: Sequence[Kept]
) -> str:
    """What a difference looks like; "" for nothing known."""
    at = {name: _at(a, name, of) for name, of in over.items()}
    tokens = _tokens(a)
    if "q" not in over:
        if said := _moved(a, b, at, allowed):
            return f"the cache: {said}"
        if said := _changed(a, at, kept):
            return f"the cache: {said}"
        return f"what makes {' and '.join(over)}"
    of_tokens = set(over) == set(INPUTS) and all(np.array_equal(tokens[at["q"]], at[x]) for x in "kv")
    if of_tokens and len(at["k"]) < a.read.any(0).sum():
        one = len(at["q"]) == 1
        if new:
            return "another token there, or its embedding" if one else "other tokens there, or their embeddings"
        return "what is made of that token" if one else "what is made of these tokens"
    if "v" not in over and all(_as_long(a, b, name, allowed) for name in over):
        both = "the rotation (RoPE): its base, or positions"
        return both if len(over) == 2 else f"the rotation (RoPE) of {next(iter(over))}"
    if all(_factor(a, b, name) != 1 and _parallel(a, b, name, allowed) for name in over):
        norm = "the norm before (its eps), or " if len(over) == 3 else ""
        return f"{norm}a scale: each row is a factor larger"
    if all(_unlike(a, b, name) for name in over) and len(over) == 3:
        return "the two have nothing in common: other weights, or other tokens"
    return ""


@np.errstate(all="ignore")
def _moved(a: Question, b: Question, at: Mapping[str, np.ndarray], allowed: float) -> str:
    """Which row of one side another row of the other side holds, of the first that differ; "" for none."""
    name = "k" if "k" in at else "v"
    x, y, used = _both(a, b, name)
    for one, other, names in ((x, y, "AB"), (y, x, "BA")):
        for j in at[name][:16]:
            row = other[:, j : j + 1]
            if not row.any():
                return f"row {a.places[0][j]} of {name} is 0 in {names[1]}"
            alike = apart_in_rows(one, np.broadcast_to(row, one.shape), used).max(0) <= allowed
            alike &= used.all(0) & (np.arange(len(alike)) != j)
            if alike.any():
                i = int(np.flatnonzero(alike)[0])
                return (
                    f"row {a.places[0][j]} of {name} in {names[1]} holds what row {a.places[0][i]} holds in {names[0]}"
                )
    return ""


def _changed(a: Question, at: Mapping[str, np.ndarray], kept: Sequence[Kept]) -> str:
    """Which side no longer holds what it held in an earlier call, by the first row that differs; "" for neither."""
    for name, rows in at.items():
        place = int(a.places[0][rows[0]])
        calls = [of(name, place) for of in kept]
        for has, lacks in ((0, 1), (1, 0)):
            if calls[has] is not None and calls[lacks] is None:
                return f"row {place} of {name} is in {'AB'[has]} as it was in call {calls[has]}, in {'AB'[lacks]} it is not"
    return ""


def _as_long(a: Question, b: Question, name: str, allowed: float) -> bool:
    x, y, used = _both(a, b, name)
    lengths = [np.sqrt((z * z).sum(-1, keepdims=True)) for z in (x, y)]
    return bool((apart_in_rows(*lengths, used) <= allowed).all())


@np.errstate(all="ignore")
def _parallel(a: Question, b: Question, name: str, allowed: float) -> bool:
    """Whether a factor for each row leaves a tenth of the difference at most, or rounding."""
    x, y, used = _both(a, b, name)
    factors = (x * y).sum(-1, keepdims=True) / (y * y).sum(-1, keepdims=True)
    left = apart_in_rows(x, factors * y, used)
    return bool((left <= np.maximum(apart_in_rows(x, y, used) / 10, allowed)).all())


def _unlike(a: Question, b: Question, name: str) -> bool:
    x, y, used = _both(a, b, name)
    return abs(float((x[used] * y[used]).sum())) < 0.3 * float(np.sqrt((x[used] ** 2).sum() * (y[used] ** 2).sum()))
