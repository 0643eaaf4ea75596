"""What codes may be multiplied by in place of their scales: by none, twice, by another's, by one that is rounded."""

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from workbench.case.formats import FORMATS
from workbench.floats import round_to, to_float64
from workbench.readings.codebook import Scale
from workbench.readings.finding import Finding
from workbench.readings.model import Model
from workbench.readings.of_scales import own_index, plain_codes
from workbench.readings.proof import rms
from workbench.readings.target import Target

#: share of the error of an experiment that a rule of scales may leave
LEFT = 1e-2


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
                yield Scale(name, own, other), f"{said} is multiplied by the scale of the tensor {other.upper()}"
    if form.tensor_scale:
        yield Scale(name, own, ""), f"{said} is not multiplied by the scale of its tensor"
    if form.scale_dtype != "float8_e8m0fnu":
        for made, text in _roundings():
            yield Scale(name, own, name, made), f"scales of {said} are {text}"
    heads = own.shape[1]
    if len(target.books[name].shape) == 1:
        for head in range(heads):
            index = np.full(own.shape, head)
            yield Scale(name, index, name), f"all heads of {said} are multiplied by the scale of head {head}"
        for shift in range(1, heads):
            text = f"heads of {said} are multiplied by the scale of the head {shift} behind"
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
    best, scale, text = min(ways, key=lambda one: rms(answer, one[0].predicted(answer)))
    if not rms(answer, best.predicted(answer)) <= LEFT * error:
        return model, []
    return best, [Finding("scale", "dequant_v", text, int(wrong.sum()), wrong.size, {"v": scale})]


def rules_of_scores(target: Target, model: Model) -> Iterator[tuple[Model, list[Finding]]]:
    """What K and Q may be multiplied by in place of their scales; `order` keeps what the user's own run shows."""
    for name in [x for x in "kq" if x in target.books and x not in model.scales]:
        count = target.coded.stages[f"codes_{name}"].size
        for scale, text in rules_of(target, name):
            made = Finding("scale", f"dequant_{name}", text, count, count, {name: scale})
            yield model.but(scales={**model.scales, name: scale}), [made]
