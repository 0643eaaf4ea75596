"""What is read of V and of out, whatever the weights are: what is added, heads, and which element stands where."""

import numpy as np

from workbench.readings.finding import Finding
from workbench.readings.maps import completed, in_words
from workbench.readings.model import Model
from workbench.readings.rules import in_words as in_words_of_rows
from workbench.readings.sets import ROW_AXES, of_axes
from workbench.readings.target import Answer, Target, Weights

#: bits of a word that check it
CHECKED = 4
#: scaled score of the one key that a row chooses: of vectors of unit length in 32 dims the next is below 0.75 of it
CHOSEN = 56.0
#: whole numbers that every dtype holds
TOLD = 256
#: share of the largest weight below which what stands behind a sequence is not seen
SEEN = 0.01
#: share of the places of a map that must be read for it to be told, and of heads that must agree
ENOUGH = 0.5
#: heads that read others, of which it is said
LISTED = 6
#: sets of keys that rows choose, at most: of a causal run of 4096 keys, of which 128 rows are read, 36
SETS = 48


def added(target: Target, model: Model) -> tuple[Model, list[Finding]]:
    """What out is where V is 0, which is 0 of a right function; and the rows that are not finite whatever V is."""
    if target.behind:
        return model, []  # what is not 0 may be of what stands behind the end of sequences
    answer = target(v=np.zeros(1))
    found: list[Finding] = []
    lost = ~np.isfinite(answer.out).all(-1)
    odd = np.where(lost[..., None], 0.0, answer.out)
    beyond = answer.wrong
    if (beyond & lost[..., None]).any():
        text = f"{of_axes(lost, ROW_AXES)} of out are {_classes(answer.out[lost])} whatever V is"
        found.append(Finding("lost", "out", text, int(beyond[lost].sum()), beyond.size, {"rows": lost}))
        model = model.but(lost=lost)
    if (beyond & ~lost[..., None]).any():
        wrong = beyond & ~lost[..., None]
        rows, low, high = of_axes(wrong.any(-1), ROW_AXES), odd[wrong].min(), odd[wrong].max()
        text = f"with V = 0, out is {low:.4g} to {high:.4g} in {rows}, not 0"
        found.append(Finding("added", "out", text, int(wrong.sum()), beyond.size, {"added": odd}))
        model = model.but(added=np.where(wrong, odd, 0.0))
    return model, found


def _classes(x: np.ndarray) -> str:
    return " and ".join(name for name, has in (("NaN", np.isnan(x).any()), ("infinite", np.isinf(x).any())) if has)


def unclosed(target: Target, model: Model, read: np.ndarray, allowed: np.ndarray) -> np.ndarray:
    """How far out of the user's own run is from the weights that were read times the values of the model, in units of
    what both may be off; 0 where a row is not finite.
    """
    answer = target.natural
    values = model.values(answer)
    with np.errstate(all="ignore"):
        off = abs(model.result(answer.out) - read @ values)
        found = off / (answer.allowed + np.broadcast_to(allowed, read.shape) @ abs(values))
    return np.where(np.isfinite(found), found, 0.0)


def heads(target: Target, model: Model) -> tuple[Model, list[Finding]]:
    """The kv head of V that each query head reads."""
    case, shape = target.case, target.trace.inputs["v"].shape
    count = case.batch * case.kv_heads
    if count == 1:
        return model, []
    of_ones, base = model.result(target(v=np.ones(1)).out), target.base
    digits = []
    for power in range(max(1, int(np.ceil(np.log(count) / np.log(base))))):
        v = (np.arange(count) // base**power % base + 1.0).reshape(*shape[:2], 1, 1)
        answer = target(v=v)
        with np.errstate(all="ignore"):
            level = model.result(answer.out) / of_ones - 1
        digits.append(
            (np.nanmedian(level, (2, 3)), np.nanmax(abs(level - np.nanmedian(level, (2, 3), keepdims=True)), (2, 3)))
        )
    got = sum(np.round(level) * base**power for power, (level, _) in enumerate(digits))
    told = all(np.all(abs(level - np.round(level)) < 0.2) and np.all(spread < 0.3) for level, spread in digits)
    if not told or not np.all((got >= 0) & (got < count)):
        return model, []
    got = got.astype(int)
    if np.array_equal(got, model.heads["v"]):
        return model, []
    text = "the wrong heads of V are read: " + heads_in_words(got, model.heads["v"], case.kv_heads)
    wrong = got != model.heads["v"]
    made = Finding("heads", "out", text, int(wrong.sum()), wrong.size, {"v": got})
    return model.but(heads={**model.heads, "v": got}), [made]


def heads_in_words(got: np.ndarray, right: np.ndarray, kv_heads: int) -> str:
    """Which query heads read which kv head in place of their own."""

    def said(x: int) -> str:
        return f"kv head {x % kv_heads}" + (f" of batch {x // kv_heads}" if x >= kv_heads or got.shape[0] > 1 else "")

    b, h = np.nonzero(got != right)
    some = [
        f"head {j}"
        + (f" of batch {i}" if got.shape[0] > 1 else "")
        + f" reads {said(int(got[i, j]))}, not {said(int(right[i, j]))}"
        for i, j in list(zip(b, h, strict=True))[:LISTED]
    ]
    return "; ".join(some) + (f"; and {len(b) - LISTED} more" if len(b) > LISTED else "")


def columns(target: Target, model: Model) -> tuple[Model, list[Finding]]:
    """Which dim of a row's result stands at each dim of out, where rows differ in it: of values that are alike in all
    keys, by their dim.
    """
    rows, dims = target.trace.inputs["q"].shape[2], target.trace.inputs["v"].shape[3]
    base = target.base
    powers = max(1, int(np.ceil(np.log(dims) / np.log(base))))
    of_ones = target(v=np.ones(1)).out - model.added
    with np.errstate(all="ignore"):
        whole = np.nanmedian(of_ones, -1, keepdims=True)
        digits = [target(v=1.0 + np.arange(dims) // base**p % base).out - model.added for p in range(powers)]
        levels = [x / whole - 1 for x in digits]
        sure = np.all([abs(x - np.round(x)) < 0.2 for x in levels], axis=0)
        gone = abs(digits[0]) < 0.2 * abs(whole)
        found = np.where(gone, -1, np.where(sure, sum(np.round(x) * base**p for p, x in enumerate(levels)), -2))
    flat = found.reshape(-1, rows, dims)
    index = np.where(np.mean(flat == flat[0], axis=0) > 0.9, flat[0], -2).astype(int)
    index = np.where(index < dims, index, -2)
    moved = (index > -2) & (index != np.arange(dims))
    if (index > -2).mean() < 0.9 or not moved.any() or np.all(index == index[0]):
        return model, []
    index = np.where(index > -2, index, np.arange(dims))
    row, dim = np.nonzero(moved)
    some = ", ".join(f"dim {c} of row {i} holds dim {index[i, c]}" for i, c in list(zip(row, dim, strict=True))[:3])
    text = f"dims of out are stored in the wrong place, {moved.sum()} of {moved.size}: {some}, ..."
    return model.but(columns=index), [Finding("columns", "out", text, int(moved.sum()), index.size, {"columns": index})]


def choosing(target: Target, model: Model, aim: np.ndarray, *, anchored: bool) -> dict[str, np.ndarray]:
    """q and k with which nearly all the weight of query i is on key aim[.., i].

    `anchored`: they weigh key 0 as much, so that the maximum of a row is in its first tile already, whatever a kernel
    does where a maximum grows; V of key 0 is to be 0.
    """
    keys, dims = target.trace.inputs["k"].shape[2:]
    size = np.sqrt(CHOSEN / abs(model.scale or 1.0))
    u = np.random.default_rng(5).standard_normal((keys, dims))
    if {"q", "k"} & {*target.books}:
        u = np.sign(u)  # of codes two suffice, however they are decoded
    if anchored:
        u[:, -1] = 0.0
    u *= size / np.linalg.norm(u, axis=1, keepdims=True)
    q = u[aim].copy()
    if anchored:
        q[..., -1] = size
        u[0], u[0, -1] = 0.0, size
    return {"q": q * np.sign(model.scale or 1.0), "k": u}


def aims(model: Model, *, anchored: bool) -> list[np.ndarray]:
    """Keys [q] that queries choose, one set a run, until every key that some row sees was chosen; but for an anchor."""
    seen = np.isfinite(model.start).all((0, 1))
    left, found = seen.any(0).copy(), list[np.ndarray]()
    left[0] &= not anchored
    seen = seen & (np.arange(seen.shape[1]) >= anchored)
    while left.any() and len(found) < SETS:
        aim = np.full(len(seen), -1)
        # the rows that see the fewest of those that are left choose first
        free = left.copy()
        for i in np.argsort((seen & left).sum(1), kind="stable"):
            mine = np.flatnonzero(seen[i] & free)
            if mine.size:
                aim[i] = mine[-1]
                free[aim[i]] = False
        if (aim < 0).all():
            break
        left[aim[aim >= 0]] = False
        fill = np.where(seen.any(1), seen.argmax(1), 0)
        found.append(np.where(aim < 0, fill, aim))
    return found


def elements(target: Target, model: Model) -> tuple[Model, list[Finding]]:
    """Which element of V stands at each (key, dim), by rows that choose one key and digits of indices as values."""
    keys, dims = target.trace.inputs["v"].shape[2:]
    index = np.arange(keys * dims).reshape(keys, dims)
    source = _sources(target, model, anchored=False)
    if np.mean(source > -2) < ENOUGH:
        source = _sources(target, model, anchored=True)
    known = source > -2
    moved = known & (source != index)
    if known.mean() < ENOUGH or not moved.any():
        return model, []
    whole = completed(source.copy(), dims)
    whole = np.where(whole > -2, whole, index)
    text = "V is read wrong: " + in_words(whole, dims)
    made = Finding("elements", "out", text, int(moved.sum()), int(known.sum()), {"v": whole})
    return model.but(sources={**model.sources, "v": whole}), [made]


def _sources(target: Target, model: Model, *, anchored: bool) -> np.ndarray:
    """[k, d]: index of the element of V at each place, -1 for none, -2 where it cannot be told; row 0 is no place of an
    anchored reading, and what stands elsewhere of it is not told.
    """
    keys, dims = target.trace.inputs["v"].shape[2:]
    size, base = keys * dims, base_of(target)
    powers = max(1, int(np.ceil(np.log(size + 1) / np.log(base))))
    # 0 is what is not read at all
    index = 1 + np.arange(size).reshape(keys, dims)
    checks = int(np.ceil(CHECKED / np.log2(base)))
    check = np.random.default_rng(3).integers(base > 2, base, (checks, size))
    source = np.full((keys, dims), -2)
    first = np.arange(keys)[:, None] >= anchored
    for aim in aims(model, anchored=anchored):
        if target.spent:
            break
        chosen = choosing(target, model, aim, anchored=anchored)
        share: np.ndarray | float = 1.0
        if anchored:
            found = model.result(target(**chosen, v=first).out)
            share = np.nanmax(np.where(found < 1.5, found, np.nan), -1, keepdims=True)
        words = [index // base**p % base for p in range(powers)] + [one.reshape(keys, dims) for one in check]
        read = [model.result(target(**chosen, v=first * one).out) / share for one in words]
        levels = [np.round(x) for x in read]
        with np.errstate(invalid="ignore"):
            sure = np.all([abs(x - n) < 0.2 for x, n in zip(read, levels, strict=True)], axis=0)
            got = sum(n * base**p for p, n in enumerate(levels[:powers]))
            sure &= (got >= 0) & (got <= size)
        got = np.where(sure, got, 0).astype(int)
        zero = sure & (got == 0) & np.all([one == 0 for one in levels[powers:]], axis=0)
        for one, n in zip(check, levels[powers:], strict=True):
            sure &= one[np.maximum(got - 1, 0)] == n
        found = np.where(zero, -1, np.where(sure, got - 1, -2))
        for i, key in enumerate(aim):
            told = found[:, :, i].reshape(-1, dims)
            mine = told[0]
            agree = np.mean(told == mine, axis=0) >= ENOUGH
            source[key] = np.where(agree & (mine > -2), mine, source[key])
    if anchored:
        dead = (source[1:] == -1).all(0)
        source[1:] = np.where((source[1:] == -1) & ~dead, -2, source[1:])
        source[0] = np.where(dead, -1, _column(source, dims))
    return source


def base_of(target: Target) -> int:
    """Of the digits of words in V: fewer where the function rounds V by its largest number, as to codes of its own."""
    keys = target.trace.inputs["v"].shape[2]
    none, v = np.zeros(1), np.full((keys, 1), 11.0)  # which e4m3 has not, where 15 has its largest value
    whole = target(q=none, k=none, v=np.full(1, 15.0)).out
    v[0] = 15.0
    answer = target(q=none, k=none, v=v)
    with np.errstate(all="ignore"):
        off = abs(15 * answer.out / whole - answer.expected)[:, :, -1]
    return target.base if np.median(off) <= 0.1 else 2


def place(target: Target, model: Model) -> tuple[Model, list[Finding]]:
    """Which row's result stands at each row of out, [b, h, q]: rows are told by the keys that they choose."""
    shape, of_v = target.trace.inputs["q"].shape[:3], target.trace.inputs["v"].shape
    keys = of_v[2]
    if keys >= TOLD or target.books:  # codes have too few whole numbers
        return model, []
    for anchored in (False, True):
        chosen, read = _rows(target, model, keys, anchored)
        if np.mean(np.all([x >= 0 for x in read], axis=0)) > 0.5:
            break
    heads_ = np.arange(of_v[0] * of_v[1]).reshape(*of_v[:2], 1, 1) % TOLD
    head = np.round(
        _largest(target(v=heads_).out - model.added)
        / np.maximum(_largest(target(v=np.ones(1)).out - model.added), 1e-9)
    )
    book: dict[tuple[int, ...], list[int]] = {}
    for index, code in enumerate(zip(*(x.reshape(-1).tolist() for x in chosen), strict=True)):
        book.setdefault(code, []).append(index)
    codes = [tuple(code) for code in zip(*(x.reshape(-1).tolist() for x in read), strict=True)]
    of_index = np.repeat(model.heads["v"].reshape(-1) % TOLD, shape[2])

    def standing(i: int, code: tuple[int, ...]) -> int:
        if max(code) == min(code) == -1:
            return -1
        may = book.get(code, [])
        if i in may or len(may) == 1:
            return i if i in may else may[0]
        of_head = [x for x in may if of_index[x] == head.reshape(-1)[i]]
        return of_head[0] if len(of_head) == 1 else -2

    found = np.array([standing(i, code) for i, code in enumerate(codes)])
    several = [i for i, code in enumerate(codes) if found[i] == i and len(book.get(code, [])) > 1]
    # of rows that may stand in several places those go on that stand next to them
    for i in several[::-1]:
        after = found[i + 1] - 1 if i + 1 < len(found) and found[i + 1] > 0 else i
        before = found[i - 1] + 1 if i and found[i - 1] >= 0 else i
        found[i] = next((x for x in (after, before, i) if x in book[codes[i]]), i)
    right = np.arange(len(found))
    told = found > -2
    moved = told & (found != right)
    if told.mean() < 0.8 or not moved.any():
        return model, []
    found = np.where(told, found, right)
    for rule in orders(shape):
        if np.array_equal(rule[told], found[told]):
            found = rule  # a row or two that chose no key of their own are no others
    moved = found != right
    text = "rows of out are stored in the wrong place: " + _places(found, shape)
    made = Finding("place", "out", text, int(moved.sum()), len(found), {"place": found.reshape(shape)})
    return model.but(place=found.reshape(shape)), [made]


def orders(shape: tuple[int, ...]) -> list[np.ndarray]:
    """Rows of heads that are stored in one order and stand in another: flat index of what stands at each [b, h, q]."""
    index = np.arange(int(np.prod(shape))).reshape(shape)
    batches, heads, rows = shape
    return [index.swapaxes(1, 2).reshape(-1), index.reshape(batches, rows, heads).swapaxes(1, 2).reshape(-1)]


def _rows(target: Target, model: Model, keys: int, anchored: bool) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Keys that every row chooses at random in six runs, [b, h, q], and those that stand in out; -1 where nothing was
    stored, -2 where it is no key.
    """
    rng = np.random.default_rng(17)
    seen = np.isfinite(model.start) & (np.arange(keys) >= anchored)
    chosen, read = [], []
    first = np.arange(keys)[:, None] >= anchored
    for _ in range(6):
        aim = np.where(seen, rng.random(seen.shape), -1.0).argmax(-1)
        aimed = choosing(target, model, aim, anchored=anchored)
        share = _largest(target(**aimed, v=first).out - model.added) if anchored else np.ones(aim.shape)
        out = _largest(target(**aimed, v=first * (1 + np.arange(keys)[:, None])).out - model.added)
        with np.errstate(all="ignore"):
            out = out / share
            sure = abs(out - np.round(out)) < 0.2
        chosen.append(np.where(seen.any(-1), aim, 0))
        read.append(np.where(sure, np.nan_to_num(np.round(out)) - 1, -2).astype(int))
    return chosen, read


def _largest(out: np.ndarray) -> np.ndarray:
    """The largest dim of each row, 0 for NaN: of dims that were not stored nothing is told."""
    return np.nan_to_num(np.nanmax(np.nan_to_num(out), -1))


def _places(found: np.ndarray, shape: tuple[int, ...]) -> str:
    at = np.flatnonzero(found != np.arange(len(found)))
    here, there = np.unravel_index(at, shape), np.unravel_index(np.maximum(found[at], 0), shape)
    if (found[at] < 0).all():
        return f"nothing is stored in {of_axes((found != np.arange(len(found))).reshape(shape), ROW_AXES)}"
    axes = ("batch", "head", "row")
    rows = np.unique(np.stack([here[2], there[2]]), axis=1)
    every = len(at) == rows.shape[1] * shape[0] * shape[1]
    if every and len(np.unique(rows[0])) == rows.shape[1] and all(np.array_equal(here[a], there[a]) for a in (0, 1)):
        return in_words_of_rows(rows[0], rows[1], shape[2], "row")

    def said(x: tuple[np.ndarray, ...], i: int) -> str:
        return " ".join(f"{name} {int(x[a][i])}" for a, name in enumerate(axes) if shape[a] > 1)

    some = [i for i in range(len(at)) if found[at[i]] >= 0][:3]
    return f"{len(at) / len(found):.0%} of them, such as " + ", ".join(
        f"{said(there, i)} in {said(here, i)}" for i in some
    )


def _column(source: np.ndarray, dims: int) -> np.ndarray:
    """The dim that stands at each dim of row 0, which is not read: that of most other rows."""
    found = np.arange(dims)
    for c in range(dims):
        seen = source[1:, c][source[1:, c] >= 0] % dims
        if seen.size:
            values, counts = np.unique(seen, return_counts=True)
            if counts.max() > 0.9 * seen.size:
                found[c] = values[counts.argmax()]
    return found


def solved(model: Model, weights: Weights) -> np.ndarray:
    """The weights that each row's result has, where V is read as the model says; NaN where a result stands nowhere."""
    base = 0.0 if weights.base is None else weights.base.out
    out = [model.result(one.out - base) for one in weights.answers]
    if "v" not in model.sources:
        found = weights.joined(out)
        return found if weights.base is None else _with_behind(model, found, weights.base)
    whole = np.concatenate(out, -1)
    matrix = np.concatenate([*(model.read_placed(v) for v in weights.placed)], -1)
    lost = ~np.isfinite(whole).all(-1, keepdims=True)
    if matrix.ndim == 2 and np.all(np.count_nonzero(matrix, axis=0) <= 1):
        # its rows are orthogonal: that of 4096 keys would take a minute to invert
        size = (matrix**2).sum(-1)
        inverse = matrix.T / np.where(size > 0, size, 1.0)
    else:
        inverse = np.linalg.pinv(matrix)
    inverted: np.ndarray = np.where(lost, 0.0, whole) @ inverse
    untold = lost if len(weights.keys) == matrix.shape[-2] else lost | np.all(matrix == 0, axis=-1)[..., None, :]
    return np.where(untold, np.nan, inverted)


def _with_behind(model: Model, found: np.ndarray, base: Answer) -> np.ndarray:
    """The same with weights of what stands behind the end of sequences, by least squares: its values are known."""
    lengths, values = base.trace.case.lengths_k, model.read("v", model.memory(base)["v"])
    found = found.copy()
    for b, n in enumerate(lengths):
        found[b, :, :, n:] = 0.0
        for h in range(found.shape[1]):
            rows = values[b, h, n:][: values.shape[3] // 2]
            if not len(rows) or not base.out[b, h].any():
                continue
            # those that weigh something in some row, then these alone
            first = np.linalg.lstsq(rows.T, base.out[b, h].T, rcond=None)[0]
            used = np.flatnonzero(abs(first).max(1) > SEEN * np.nanmax(found[b, h], initial=SEEN))
            if used.size:
                found[b, h][:, n + used] = np.linalg.lstsq(rows[used].T, base.out[b, h].T, rcond=None)[0].T
    return found
