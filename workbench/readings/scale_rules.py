"""What codes may be multiplied by in place of their scales: by none, twice, by another's, by one that is rounded."""

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from workbench.case.formats import FORMATS
from workbench.floats import round_to, to_float64
from workbench.readings.codebook import Scale
from workbench.readings.finding import Finding, apart_in_words
from workbench.readings.model import Model
from workbench.readings.of_scales import own_index, plain_codes
from workbench.readings.of_scores import logs, room
from workbench.readings.of_values import solved
from workbench.readings.proof import rms
from workbench.readings.target import Target

#: share of the error of an experiment that a rule of scales may leave
LEFT = 1e-2
#: how near a factor of a head must be to 1 to be none, and to another scale to be that
NOTABLE = 5e-3
#: share of the error by which two rules leave as much
SAME = 1e-3


def rules_of(target: Target, name: str) -> Iterator[tuple[Scale, str]]:
    """What an input may be multiplied by in place of its own scales."""
    own, said = own_index(target, name), name.upper()
    form = FORMATS[target.books[name].format]
    yield Scale(name, np.full(own.shape, -1), name), f"{said} is not multiplied by its scale"
    yield Scale(name, own, name, np.square), f"{said} is multiplied by its scale twice"
    for other in target.books:
        if other != name:
            index = own_index(target, name, other)
            yield Scale(other, index, name), f"{said} is multiplied by the scale of {other.upper()}"
            if form.tensor_scale:
                yield Scale(other, index, other), f"{said} is multiplied by both scales of {other.upper()}"
                yield Scale(name, own, other), f"{said} is multiplied by the tensor scale of {other.upper()}"
    if form.tensor_scale:
        yield Scale(name, own, ""), f"{said} is not multiplied by its tensor scale"
    if form.scale_dtype != "float8_e8m0fnu":
        for made, text in _roundings():
            yield Scale(name, own, name, made), f"scales of {said} are {text}"
    heads = own.shape[1]
    if len(target.books[name].shape) == 1:
        for head in range(heads):
            index = np.full(own.shape, head)
            yield Scale(name, index, name), f"all heads of {said} are multiplied by the scale of head {head}"
        for shift in range(1, heads):
            text = f"heads of {said} are multiplied by the scale of {apart_in_words(shift, 'head')}"
            yield Scale(name, (own + shift) % heads, name), text
        text = f"heads of {said} are multiplied by the scales in reverse order"
        yield Scale(name, heads - 1 - own, name), text


def _roundings() -> Iterator[tuple[Callable[[np.ndarray], np.ndarray], str]]:
    """What may become of a scale that is no power of two."""
    for whole, way in ((np.floor, "rounded down to"), (np.ceil, "rounded up to"), (np.round, "rounded to")):
        yield partial(_power, whole), f"{way} powers of two"
    for narrow in ("float8_e4m3fn", "float8_e5m2", "bfloat16", "float16"):
        yield partial(_narrow, narrow), f"rounded to {narrow}"


def _narrow(dtype: str, x: np.ndarray) -> np.ndarray:
    return to_float64(round_to(x, dtype))


def _times(factors: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Scales, [heads] or [b, heads, row, block], each times that of its head."""
    return x * (factors if x.ndim == 1 else factors[:, None, None])


def of_heads(target: Target, name: str, factors: np.ndarray) -> Iterator[tuple[Scale, str]]:
    """What heads of an input are multiplied by where that is `factors` [heads] times their scales: scales of other
    heads, else numbers of their own.
    """
    off = np.flatnonzero(~(abs(factors - 1) <= NOTABLE))
    if not off.size or not np.isfinite(factors).all():
        return
    own, said = own_index(target, name), f"of {name.upper()} is multiplied by"
    if len(target.books[name].shape) == 1:
        scales = to_float64(target.coded.stages[f"scale_{name}"]).reshape(-1)
        with np.errstate(all="ignore"):
            apart = abs(scales / scales[off, None] / factors[off, None] - 1)
        if (apart.min(1) <= NOTABLE).all():
            there = np.arange(len(scales))
            there[off] = apart.argmin(1)
            text = "; ".join(f"head {h} {said} the scale of head {there[h]}" for h in off)
            yield Scale(name, there[own], name), text
            return
    text = "; ".join(f"head {h} {said} {factors[h]:.4g} times its scale" for h in off)
    yield Scale(name, own, name, partial(_times, factors)), text


def _factors_of_scores(target: Target, model: Model) -> np.ndarray:
    """By what scores of the user's own run are multiplied in each head, [b, h]; NaN where they are not."""
    weights = target.identity
    y = logs(solved(model, weights), room(weights, model.of_run(target.natural)))
    made = model.scores(model.memory(target.natural))
    known = np.isfinite(y) & np.isfinite(made)
    y, made = (np.where(known, x, 0.0) for x in (y, made))
    count = np.maximum(known.sum(-1, keepdims=True), 1)
    y, made = (np.where(known, x - x.sum(-1, keepdims=True) / count, 0.0) for x in (y, made))
    with np.errstate(all="ignore"):
        slope, size = (y * made).sum((2, 3)) / (made * made).sum((2, 3)), (y * y).sum((2, 3))
        left = ((y - slope[..., None, None] * made) ** 2).sum((2, 3)) / size
    return np.where(left <= LEFT, slope, np.nan)


def _scores_of_heads(target: Target, model: Model, name: str) -> Iterator[tuple[Scale, str]]:
    """The same of K (of Q), where the heads that read one of K have one factor (where they have not)."""
    case = target.case
    if case.softcap or target.trace.case.score_mod is not None:
        return
    factors = _factors_of_scores(target, model)
    one = factors[0]
    if not (abs(factors - one) <= NOTABLE * abs(one)).all():
        return
    by_group = one.reshape(case.kv_heads, -1)
    alike = (abs(by_group - by_group[:, :1]) <= NOTABLE * abs(by_group[:, :1])).all()
    mine = by_group[:, 0] if name == "k" else one
    if name == "k" and not alike:
        return
    for scale, text in of_heads(target, name, mine):
        # of one head of Q for each of K nothing tells whose number it is, but a scale that another head has
        if not isinstance(scale.made, partial) or (name == "k") == (alike and by_group.shape[1] > 1):
            yield scale, text


@np.errstate(divide="ignore")
def _power(whole: Callable[[np.ndarray], np.ndarray], x: np.ndarray) -> np.ndarray:
    return np.where(x > 0, np.exp2(whole(np.log2(x))), x)


def rule_of_v(target: Target, model: Model) -> tuple[Model, list[Finding]]:
    """What V is multiplied by: of a V of one code, with the scales of the user's own run, and scores of 0."""
    run = target.coded
    own = {x: to_float64(run.stages[f"scale_{x}"]) for x in target.books}
    over = {x: run.stages.get(f"global_{x}") for x in target.books}
    given: dict[str, np.ndarray] = {}
    for x, book in target.books.items():
        zero = int(abs(np.where(book.usable, book.values, np.inf)).argmin())
        codes = plain_codes(target, x) if x == "v" else np.full(run.stages[f"codes_{x}"].shape, zero, np.uint8)
        given |= book.given(x, codes, own[x], over[x])
    answer = target(**{x: np.zeros(1) for x in "qk" if x not in target.books}, **given)
    plain = model.but(scales={name: x for name, x in model.scales.items() if name != "v"})
    error = rms(answer, plain.predicted(answer))
    wrong = abs(answer.out - plain.predicted(answer)) > 2 * answer.allowed
    if not wrong.any():
        return model, []
    ways = [(plain.but(scales={**plain.scales, "v": scale}), scale, text) for scale, text in rules_of(target, "v")]
    with np.errstate(all="ignore"):
        of_each = np.nanmedian(answer.out / plain.predicted(answer), (0, 2, 3)).reshape(target.case.kv_heads, -1)[:, 0]
    ways += [
        (plain.but(scales={**plain.scales, "v": scale}), scale, text) for scale, text in of_heads(target, "v", of_each)
    ]
    lefts = [rms(answer, one[0].predicted(answer)) for one in ways]
    # a rule that leaves next to nothing before numbers of heads, of which anything can be made
    best, scale, text = ways[next((i for i, left in enumerate(lefts) if left <= 1.5 * min(lefts) + SAME * error), 0)]
    if not rms(answer, best.predicted(answer)) <= LEFT * error:
        return model, []
    return best, [Finding("scale", "dequant_v", text, int(wrong.sum()), wrong.size, {"v": scale})]


def rules_of_scores(target: Target, model: Model) -> Iterator[tuple[Model, list[Finding]]]:
    """What K and Q may be multiplied by in place of their scales; `order` keeps what the user's own run shows."""
    for name in [x for x in "kq" if x in target.books and x not in model.scales]:
        count = target.coded.stages[f"codes_{name}"].size
        for scale, text in (*rules_of(target, name), *_scores_of_heads(target, model, name)):
            made = Finding("scale", f"dequant_{name}", text, count, count, {name: scale})
            yield model.but(scales={**model.scales, name: scale}), [made]
