"""What is read of Q and K: which element of them is multiplied where, and whose products scores are."""

from collections.abc import Callable, Iterator

import numpy as np

from workbench.readings.finding import Finding, spans
from workbench.readings.maps import completed, in_words, most_of, rows_completed
from workbench.readings.model import Model
from workbench.readings.of_scores import logs, nearest, room
from workbench.readings.of_values import ENOUGH, solved
from workbench.readings.target import Target

#: ln of a weight between neighbouring levels of a word, several times what a cast of probs to 8 bits moves it
LEVEL, LEVELS = 0.7, 8
#: the same of words of codes, of which two suffice, however they are decoded
LEVEL_OF_CODES = 1.5
#: rows that see fewer keys than this may lack the lowest level
FEWEST = 24
#: rows that see fewer keys than this tell nothing
FEW = 6


def words(count: int, seed: int, levels: int = LEVELS) -> np.ndarray:
    """Words of levels, all different, none of zeros alone: [digit, element]; six bits more than are needed."""
    digits = max(2, int(np.ceil(np.log(count + 1) / np.log(levels)))) + int(np.ceil(6 / np.log2(levels)))
    rng = np.random.default_rng(seed)
    while True:
        found = np.unique(rng.integers(1, levels**digits, 2 * count + 16))
        if len(found) >= count:
            return rng.permutation(found)[:count] // levels ** np.arange(digits)[:, None] % levels


def elements(target: Target, model: Model, name: str) -> tuple[Model, list[Finding]]:
    """Which element of K (of Q) is multiplied at each place of a head, by queries (keys) that are one dim each."""
    rows, dims = target.trace.inputs[name].shape[2:]
    codes = words(rows * dims, 11 if name == "k" else 13, 2 if name in target.books else LEVELS)
    source = np.full((rows, dims), -2)
    for dim, read, sure in _read(target, model, name, codes.reshape(-1, rows, dims)):
        for c, indices, ok in _places(name, dim, read, sure):
            told, share = most_of(indices.reshape(len(indices), -1), ok.reshape(len(ok), -1))
            source[:, c] = np.where(ok.reshape(len(ok), -1).any(1), np.where(share >= ENOUGH, told, -2), source[:, c])
    index = np.arange(rows * dims).reshape(rows, dims)
    known = source > -2
    moved = known & (source != index)
    asked = known if target.some is None or name == "q" else known[target.some]
    if asked.mean() < ENOUGH / 2 or not moved.any():
        return model, []
    # FEW dims or more of the row go into no score, and none is seen in one: the kernel does not read the row
    unread = ((source == -1).sum(1) >= FEW) & ~(source >= 0).any(1)
    source = np.where(unread[:, None], -1, source)
    filled = completed(source, dims)
    filled = np.where(filled > -2, filled, index)
    text = f"{name.upper()} is read wrong: " + in_words(filled, dims)
    if not known.all():
        text += f" (measured on {known.mean():.0%} of its elements)"
    made = Finding("elements", "scores", text, int(moved.sum()), int(known.sum()), {name: filled, "known": known})
    return model.but(sources={**model.sources, name: filled}), [made]


def elements_of_all(target: Target, model: Model, name: str) -> tuple[Model, list[Finding]]:
    """The same of heads that read other heads' memory, or other sequences': for each query head."""
    shape = target.trace.inputs[name].shape
    heads, (rows, dims) = target.trace.inputs["q"].shape[:2], shape[2:]
    codes = words(int(np.prod(shape)), 19, 2 if name in target.books else LEVELS)
    source = np.full((*heads, rows, dims), -2)
    for dim, read, sure in _read(target, model, name, codes.reshape(-1, *shape)):
        for c, indices, ok in _places(name, dim, read, sure):
            first = ok.argmax(-1)[..., None]
            told = np.moveaxis(np.take_along_axis(indices, first, -1)[..., 0], 0, 2)
            any_ok = np.asarray(ok.any(-1))
            source[..., c] = np.where(np.moveaxis(any_ok, 0, 2), told, source[..., c])
    own = np.arange(heads[0] * heads[1]).reshape(heads) if name == "q" else model.heads["k"]
    index = own[..., None, None] * rows * dims + np.arange(rows * dims).reshape(rows, dims)
    return told_of_all(model, name, "scores", source, index, int(np.prod(shape)), int((source > -2).sum()))


def told_of_all(
    model: Model, name: str, stage: str, source: np.ndarray, own: np.ndarray, size: int, of: int
) -> tuple[Model, list[Finding]]:
    """A map [b, h, row, dim] of an input whose heads read others' memory, of `size` elements, and what is said of it;
    `own`: where it should lead, `of`: elements that it is said to be of.
    """
    known = source > -2
    source = rows_completed(source, size)
    moved = (source > -2) & (source != own)
    if np.mean(source > -2) < ENOUGH or not moved.any():
        return model, []
    filled = np.where(source > -2, source, own)
    b, h, i, c = (int(x[0]) for x in np.nonzero(moved))
    there = filled[b, h, i, c]
    said = "nothing" if there < 0 else f"element {there} of its memory"
    text = (
        f"{name.upper()} is read wrong in heads {spans(np.nonzero(moved)[1])} ({moved.mean():.1%} of its elements): "
        f"batch {b}, head {h}, row {i}, dim {c} reads {said}, not {own[b, h, i, c]}"
    )
    made = Finding("elements", stage, text, int(moved.sum()), of, {name: filled, "known": known})
    return model.but(sources={**model.sources, name: filled}), [made]


def _read(
    target: Target, model: Model, name: str, codes: np.ndarray
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Dims of rows of the other operand, indices of elements that were read [b, h, q, k], and whether they are sure;
    for as many dims as the other operand has rows, until all were read.
    """
    other_name = "q" if name == "k" else "k"
    other = target.trace.inputs[other_name].shape
    dims = other[3]
    factor = float(np.median(np.asarray(model.factor))) or 1.0
    coded = name in target.books
    step, levels = (LEVEL_OF_CODES, 2) if coded else (LEVEL, LEVELS)
    size = np.sqrt(step / abs((model.scale or 1.0) * factor))
    least = room(target.identity, np.zeros(1))
    for first in range(0, dims, other[2]):
        if target.spent:
            return
        dim = (np.arange(other[2]) + first) % dims
        aimed = np.zeros(other[2:])
        aimed[np.arange(other[2]), dim] = size * np.sign((model.scale or 1.0) * factor)
        whole = (*target.trace.inputs["q"].shape[:3], target.trace.inputs["k"].shape[2])
        got, sure, blank = [], np.ones(whole, bool), np.ones(whole, bool)
        for code in codes:
            given = {name: code * size, other_name: model.placed(other_name, aimed)}
            weights = target.weights(model.v_dims, target.some, **given)
            read = solved(model, weights)
            y = logs(read, least) - np.where(np.isfinite(model.start), model.start, np.nan)
            if model.fixed is not None:
                y = np.where(model.fixed, np.nan, y)
            # levels are told from the lowest of a row
            level = (y - np.nanmin(y, -1, keepdims=True)) / step
            with np.errstate(invalid="ignore"):
                if coded:  # how far the two are apart is what the row shows
                    apart = np.nanmax(level, -1, keepdims=True)
                    level = level / np.where(apart > 0.2, apart, 1.0)
                sure &= abs(level - np.round(level)) < 0.3
                seen = np.isfinite(level).sum(-1, keepdims=True)
                top = np.nanmax(np.round(level), -1, keepdims=True)
            blank &= (seen >= FEW) & (top == 0)
            sure &= (top == 0) | ((seen >= FEWEST) & (top == levels - 1))
            got.append(np.where(np.isfinite(level), np.round(level), 0).astype(int))
        found = np.stack(got, -1)
        # a row that sees few keys, with the same digit in each word, does not tell which element it reads
        sure &= blank | ((found.max(-1) > 0).any(-1, keepdims=True) & (seen >= FEWEST))
        yield dim, indices_of(codes.reshape(len(codes), -1), found, levels), sure


def _places(
    name: str, dim: np.ndarray, read: np.ndarray, sure: np.ndarray
) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """A dim of an operand, the indices that rows of the other read there [row of it, b, h, row of the other], and which
    are sure.
    """
    for c in np.unique(dim):
        at = np.flatnonzero(dim == c)
        if name == "k":
            yield int(c), np.moveaxis(read[:, :, at], 3, 0), np.moveaxis(sure[:, :, at], 3, 0)
        else:
            yield int(c), np.moveaxis(read[..., at], 2, 0), np.moveaxis(sure[..., at], 2, 0)


def indices_of(codes: np.ndarray, words_: np.ndarray, levels: int) -> np.ndarray:
    """The index of each word [.., digit] among `codes` [digit, element]; -1 of one of zeros, -2 of what is none."""
    place = levels ** np.arange(len(codes))
    known, found = place @ codes, words_ @ place
    order = np.argsort(known)
    at = np.minimum(np.searchsorted(known[order], found), len(order) - 1)
    return np.where(known[order][at] == found, order[at], np.where(found == 0, -1, -2))


def operands(target: Target, model: Model) -> Iterator[tuple[Model, list[Finding]]]:
    """Other products than q_i . k_j that scores may be, and sums over queries; `reader` keeps what the run shows."""
    q, k = (target.trace.inputs[name].shape for name in ("q", "k"))
    if q[2] == k[2]:
        size = q[2] * k[2]
        for told, text in (
            ("kq", "scores are transposed: s[i, j] is q_j . k_i"),
            ("kk", "k is read in place of q"),
            ("qq", "q is read in place of k"),
        ):
            yield model.but(operands=told), [Finding("operands", "scores", text, size, size, {"operands": told})]
    for wide in dict.fromkeys((1 << (q[3] - 1).bit_length(), *(-(-q[3] // n) * n for n in (16, 32, 64)))):
        if wide > q[3]:
            text = f"rows of q and k are read {wide} dims wide, not {q[3]}: they run into the next row"
            more = Finding("operands", "scores", text, q[2] * k[2], q[2] * k[2], {"over": wide - q[3]})
            yield model.but(over=wide - q[3]), [more]
    yield from _layouts(target, model)
    text = "the softmax is over the queries, not over the keys"
    yield model.but(by_query=True), [Finding("operands", "probs", text, q[2] * k[2], q[2] * k[2], {"by_query": True})]


def _layouts(target: Target, model: Model) -> Iterator[tuple[Model, list[Finding]]]:
    """q or k in one order of heads and rows that is read in the other."""
    for name in ("q", "k"):
        b, h, rows, dims = target.trace.inputs[name].shape
        batch, head, row, dim = np.ogrid[:b, :h, :rows, :dims]
        as_rows = ((batch * rows + row) * h + head) * dims + dim
        at = head * rows + row
        as_heads = ((batch * h + at % h) * rows + at // h) * dims + dim
        for index, said in (
            (as_rows, "[head, row] is read as [row, head]"),
            (as_heads, "[row, head] is read as [head, row]"),
        ):
            whole = np.broadcast_to(index, (b, h, rows, dims))
            if name == "k":
                whole = whole.reshape(-1, rows, dims)[model.heads["k"]]
            text = f"{name.upper()} is read wrong: memory laid out as {said}"
            made = Finding("elements", "scores", text, whole.size, whole.size, {name: whole})
            yield model.but(sources={**model.sources, name: whole}), [made]


def factor(target: Target, model: Model, misfit: Callable[[Model], float]) -> tuple[Model, list[Finding]]:
    """The factor of scores with which the model is nearest to the natural run, where nothing else could be read."""
    best = nearest(lambda a: misfit(model.but(factor=float(a))), np.geomspace(0.05, 40, 60))
    if abs(best - 1) < 1e-4 or misfit(model.but(factor=best)) > misfit(model) / 5:
        return model, []
    text = f"the scale is {model.scale * best:.6g}, not {model.scale:.6g}: scores are multiplied by {best:.6g}"
    return model.but(factor=best), [Finding("response", "scores", text, 0, 0, {"factor": best})]
