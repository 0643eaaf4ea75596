"""What is read of the scales of codes: which one multiplies which elements of V, K and Q."""

from collections.abc import Iterator

import numpy as np

from workbench.case.formats import FORMATS
from workbench.readings.codebook import Codebook, Scale
from workbench.readings.finding import Finding
from workbench.readings.maps import completed, in_words
from workbench.readings.model import Model
from workbench.readings.of_operands import indices_of, words
from workbench.readings.of_scores import logs, room
from workbench.readings.of_values import CHECKED, ENOUGH, aims, choosing, elements, solved
from workbench.readings.rules import SHARE
from workbench.readings.rules import in_words as of_axis
from workbench.readings.target import Target

#: levels of a digit in scales, powers of two: what every format of scales has, and a softmax of two keys keeps apart
LEVELS = 4
#: ln of the weight of a key with a score of 1 level, as one key in ANCHORS is 0, others in each of so many turns
STEP, ANCHORS, TURNS = 1.0, 8, 2


def own_index(target: Target, name: str, of: str | None = None) -> np.ndarray:
    """Flat index of the scale that each element of an input [b, h, row, dim] has; with `of` in the scales of that input
    in place of its own. Rows of a tile share the first one's.
    """
    b, h, rows, dims = target.coded.stages[f"codes_{name}"].shape
    book = target.books[of or name]
    batch, head, row, dim = np.ogrid[:b, :h, :rows, :dims]
    if len(book.shape) == 1:
        return np.broadcast_to(head * book.shape[0] // h, (b, h, rows, dims))
    _, heads, lines, blocks = book.shape
    size = dims if blocks == 1 else FORMATS[book.format].block
    line = np.minimum(row // book.tile * book.tile, lines - 1)
    found = ((batch * heads + head * heads // h) * lines + line) * blocks + np.minimum(dim // size, blocks - 1)
    return np.broadcast_to(found, (b, h, rows, dims))


def _entries(book: Codebook, digits: np.ndarray) -> np.ndarray:
    """One digit of each scale [flat] in the shape of the scales; rows of a tile have the first one's."""
    whole = digits.reshape(book.shape)
    if book.tile == 1 or len(book.shape) == 1:
        return whole
    rows = np.arange(book.shape[2])
    return whole[:, :, rows // book.tile * book.tile]


def plain_codes(target: Target, name: str) -> np.ndarray:
    """Codes of one value that is not 0, in the shape of an input."""
    book = target.books[name]
    code = int(abs(np.where(book.usable, book.values, np.inf) - book.one).argmin())
    return np.full(target.coded.stages[f"codes_{name}"].shape, code, np.uint8)


def map_of_v(target: Target, model: Model) -> tuple[Model, list[Finding]]:
    """Which scale each element of V is multiplied by: of a V of one code, whose scales hold digits of their places, by
    rows that choose one key each.
    """
    book = target.books["v"]
    codes, own, size = plain_codes(target, "v"), own_index(target, "v"), int(np.prod(book.shape))
    if len(book.shape) == 1:
        return model, []
    powers = int(np.ceil(np.log(size + 1) / np.log(LEVELS)))
    index = 1 + np.arange(size)  # 0 is what is not multiplied at all
    checks = np.random.default_rng(43).integers(0, LEVELS, (CHECKED // 2, size))
    digits = [*(index // LEVELS**p % LEVELS for p in range(powers)), *checks]
    heads = model.heads["v"]
    source = np.full((*heads.shape, *own.shape[2:]), -2)
    for aim in aims(model, anchored=False):
        if target.spent:
            break
        chosen = choosing(target, model, aim, anchored=False)
        over = np.ones(()) if FORMATS[book.format].tensor_scale else None
        of_ones = model.result(target(**chosen, **book.given("v", codes, 1.0, over)).out)
        given = [_entries(book, np.exp2(one)) for one in digits]
        read = [model.result(target(**chosen, **book.given("v", codes, one, over)).out) for one in given]
        with np.errstate(all="ignore"):
            levels = np.log2(np.stack(read) / of_ones)
            sure = np.all((abs(levels - np.round(levels)) < 0.2) & (levels > -0.5) & (levels < LEVELS - 0.5), axis=0)
        got_digits = np.where(sure, np.round(levels), 0).astype(int)
        got = np.tensordot(LEVELS ** np.arange(powers), got_digits[:powers], 1)
        sure &= got <= size
        zero = sure & (got == 0) & np.all(got_digits == 0, axis=0)
        got = np.where(sure, got, 0)
        sure &= (got > 0) & np.all(checks[:, np.maximum(got - 1, 0)] == got_digits[powers:], axis=0)
        found = np.where(zero, -1, np.where(sure, got - 1, -2))
        source[:, :, aim] = np.where(found > -2, found, source[:, :, aim])
    source = _of_inputs(source, heads, own.shape)
    if (source[source > -2] == own[source > -2]).all():
        return model, []
    # of elements that stand elsewhere, too, scales are those of their places
    model, moved = elements(target, model)
    model, of_scales = _told(target, model, "v", source)
    return model, [*moved, *of_scales]


def map_of_scores(target: Target, model: Model, name: str) -> tuple[Model, list[Finding]]:
    """The same of K (of Q), by queries (keys) that are one dim each: with a digit of 1 a score is twice as large."""
    book = target.books[name]
    if len(book.shape) == 1:
        return model, []
    own, size = own_index(target, name), int(np.prod(book.shape))
    heads = model.heads["k"] if name == "k" else np.arange(own.shape[0] * own.shape[1]).reshape(own.shape[:2])
    source = np.full((*model.heads["k"].shape, *own.shape[2:]), -2)
    codes = words(size, 47, 2)
    for turn in range(TURNS):
        for dim, told in _doubled(target, model, name, codes, turn):
            got = indices_of(codes, told.astype(int), 2)
            got = np.where((told >= 0).all(-1), got, -2)  # [b, h, row, other row]
            for c in np.unique(dim):
                some = np.where(dim == c)[0]
                best = got[..., some].max(-1)
                source[..., c] = np.where(source[..., c] > -2, source[..., c], best)
        inputs = _of_inputs(source, heads, own.shape)
        if name == "q" or _covered(target, name, inputs) < ENOUGH or (_completed(target, name, inputs)[0] > -2).all():
            break  # what anchors hide a rule makes
    return _told(target, model, name, _of_inputs(source, heads, own.shape))


def _doubled(
    target: Target, model: Model, name: str, codes: np.ndarray, turn: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Dims of rows of the other operand, and digits that were read, [b, h, row, row of the other, digit], -1 where none
    is sure. Keys that are an anchor, others in each `turn`, have a score of 0.
    """
    book, other = target.books[name], "q" if name == "k" else "k"
    shape, keys = target.trace.inputs[other].shape, target.trace.inputs["k"].shape[2]
    anchor = np.arange(keys) % ANCHORS == turn * ANCHORS // TURNS
    zero = int(abs(np.where(book.usable, book.values, np.inf)).argmin())
    plain = plain_codes(target, name)
    if name == "k":
        plain = model.placed(name, np.where(anchor[:, None], zero, plain).astype(np.uint8))
    rows = np.arange(shape[2]) if name == "k" else np.flatnonzero(~anchor)
    scale = model.scale or 1.0
    size = np.sqrt(STEP / abs(scale))
    unit = size / book.one
    unit = float(np.exp2(np.round(np.log2(unit)))) if book.powers else unit
    over = FORMATS[book.format].tensor_scale
    for first in range(0, shape[3], len(rows)):
        if target.spent:
            return
        dim = np.full(shape[2], -1)
        dim[rows] = (np.arange(len(rows)) + first) % shape[3]
        aimed = np.zeros(shape[2:])
        aimed[rows, dim[rows]] = size * np.sign(scale)
        read = []
        for digit in (np.zeros(codes.shape[1]), *codes):
            levels = _entries(book, 1.0 + digit)
            given = book.given(name, plain, levels, unit) if over else book.given(name, plain, levels * unit)
            weights = target.weights(model.v_dims, **given, **{other: model.placed(other, aimed)})
            y = logs(solved(model, weights), room(target.identity, np.zeros(1)))
            y = y - np.where(np.isfinite(model.start), model.start, np.nan)
            y = y - np.nanmedian(np.where(anchor, y, np.nan), -1, keepdims=True)
            read.append(np.swapaxes(y, -1, -2) if name == "k" else y)
        with np.errstate(all="ignore"):
            ratio = np.stack(read[1:], -1) / read[0][..., None] - 1
            sure = (abs(ratio - np.round(ratio)) < 0.25) & (np.round(ratio) >= 0) & (np.round(ratio) <= 1)
            sure &= abs(read[0][..., None]) > STEP / 4
        yield dim, np.where(sure, np.round(np.where(sure, ratio, 0)), -1)


def _of_inputs(source: np.ndarray, heads: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Of each head of an input what the first query head that reads it showed, of [b, query head, row, dim]."""
    flat = source.reshape(-1, *shape[2:])
    first = [np.flatnonzero(heads.reshape(-1) == g) for g in range(shape[0] * shape[1])]
    return np.stack([flat[at[0]] if at.size else np.full(shape[2:], -2) for at in first]).reshape(shape)


def _told(target: Target, model: Model, name: str, source: np.ndarray) -> tuple[Model, list[Finding]]:
    """A map of scales, [b, h, row, dim], and what is said of it."""
    own = own_index(target, name)
    if name in model.sources and model.sources[name].ndim == 2:  # as it is at places of elements that are elsewhere
        there = model.sources[name].reshape(-1)
        flat, moved_to = source.reshape(*source.shape[:2], -1), np.full((*source.shape[:2], there.size), -2)
        moved_to[..., there[there >= 0]] = flat[..., there >= 0]
        source = moved_to.reshape(source.shape)
    known = source > -2
    # of what is not multiplied by its scale at all `rules_of` tells by what else it is
    if _covered(target, name, source) < ENOUGH or not (known & (source != own)).any() or (source[known] == -1).all():
        return model, []
    filled, text = _completed(target, name, source)
    filled, moved = np.where(filled > -2, filled, own), known & (source != own)
    text = f"{name.upper()} is multiplied by the wrong scales: {text}"
    made = Finding("scale", f"dequant_{name}", text, int(moved.sum()), int(known.sum()), {name: filled})
    scale = Scale(name, filled, name)
    return model.but(scales={**model.scales, name: scale}), [made]


def _covered(target: Target, name: str, source: np.ndarray) -> float:
    """The share of the scales of which some element was read."""
    blocks, dims = target.books[name].shape[3], source.shape[3]
    block = dims if blocks == 1 else FORMATS[target.books[name].format].block
    return float(np.maximum.reduceat(source > -2, np.arange(0, dims, block), axis=3).mean())


def _completed(target: Target, name: str, source: np.ndarray) -> tuple[np.ndarray, str]:
    """A map with what was not read filled in where one rule makes the rest (else -2), and its words. Where heads have
    one map, it is that of rows and blocks of one of them.
    """
    book, own = target.books[name], own_index(target, name)
    (_, _, rows, blocks), dims = book.shape, own.shape[3]
    lines, known = rows * blocks, source > -2
    head = own[:, :, 0, 0].reshape(-1) // lines
    of_heads = np.array(
        [_most(x[x > -2] // lines, h) for x, h in zip(source.reshape(len(head), -1), head, strict=True)]
    )
    local = np.where(known, source - of_heads.reshape(*source.shape[:2], 1, 1) * lines, -2)
    one = local.reshape(-1, rows, dims).max(0)
    if not np.array_equal(np.where(known, one, -2), local) or one.max() >= lines:
        b, h, i, c = (int(x[0]) for x in np.nonzero(known & (source != own)))
        share = f"{np.mean(source != own):.1%} of its elements use wrong ones"
        return source, f"{share}: batch {b}, head {h}, row {i}, dim {c} uses scale {source[b, h, i, c]} of the tensor"
    filled, text = _of_head(one, blocks, dims if blocks == 1 else FORMATS[book.format].block)
    moved = np.flatnonzero(of_heads != head)
    said = [text] * bool(text) + [of_axis(moved, of_heads[moved], len(head), "head")] * bool(moved.size)
    whole = filled + of_heads.reshape(*source.shape[:2], 1, 1) * lines
    return np.where(known, source, np.where(filled > -2, whole, -2)), " and ".join(said)


def _most(x: np.ndarray, none: int) -> int:
    """The value that most have; `none` of nothing."""
    values, counts = np.unique(x, return_counts=True)
    return int(values[counts.argmax()]) if x.size else none


def _of_head(source: np.ndarray, blocks: int, block: int) -> tuple[np.ndarray, str]:
    """The same of one head [row, dim], whose scales are [row, block]."""
    rows, dims = source.shape
    known, row, dim = source > -2, np.arange(rows)[:, None], np.arange(dims)
    for size in [x for x in (8, 16, 32, 64, 128, 256) if x != block and blocks > 1]:
        made = row * blocks + np.minimum(dim // size, blocks - 1)
        if np.mean(made[known] == source[known]) >= SHARE:
            return np.where(known, source, made), f"those of blocks of {size} dims, not {block}"
    of_blocks = np.stack([source[:, begin : begin + block].max(1) for begin in range(0, dims, block)], 1)
    spread = of_blocks.repeat(block, 1)[:, :dims]
    if not np.array_equal(spread[known], source[known]):
        i, c = (int(x[0]) for x in np.nonzero(known & (source != row * blocks + dim // block)))
        there = divmod(int(source[i, c]), blocks)
        share = f"{np.mean(spread != source):.1%} of its elements use another scale than the rest of their block"
        return source, f"{share}: row {i}, dim {c} uses that of row {there[0]}, block {there[1]}"
    filled, own = completed(of_blocks.copy(), blocks), np.arange(rows * blocks).reshape(rows, blocks)
    told = np.where(filled > -2, filled, own)
    text = in_words(told, blocks).replace("dim", "block") if (told != own).any() else ""
    return filled.repeat(block, 1)[:, :dims], text
