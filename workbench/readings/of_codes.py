"""What is read of codes: to which number each code of V, K and Q is decoded."""

from collections.abc import Iterator

import numpy as np

from workbench.case.formats import FORMATS
from workbench.readings.codebook import MIDDLE, Codebook, right
from workbench.readings.finding import Finding
from workbench.readings.model import Model
from workbench.readings.of_scores import logs, room
from workbench.readings.of_values import solved
from workbench.readings.tables import NEAR, completed, in_words
from workbench.readings.target import Target, Weights

#: scaled scores of the codes of one group, so that their weights are far from each other and from 0
LOW, HIGH = 0.5, 2.0
#: of the other side, in turn until two of them read MOST codes alike: it may have wrong codes of its own
FACTORS = (1.0, -0.75, -1.0, 0.75)
MOST = 0.9
#: times what most numbers differ by between two readings
SURELY = 4
#: one key in so many holds the code of 0, against which the others are read
ANCHORS = 8
#: share of the codes that two arrangements must read alike
ALIKE = 0.95
#: runs that read V's table a code at a time, at most
WHOLE = 128
#: share of the codes of a head that have one factor, which is then its scale's
MOST_OF_HEAD = 0.8
#: share of the codes of K or Q that a table may have wrong: one that loses a bit of its codes has half of them wrong,
#: and the code of 0, which is right, is not read
CONTRADICTED = 0.6
#: how far what a code stands for may be from what it should, as a share, for numbers to be made of it
SURE = NEAR / 8


def table_of_v(target: Target, model: Model) -> tuple[Model, list[Finding]]:
    """What each code of V is decoded to: of columns of one code, in two orders; where these differ, as where elements
    stand elsewhere, of a V of one code.
    """
    book = target.books["v"]
    first, second = (_columns(target, model, book, seed) for seed in (31, 37))
    (got, allowed), (again, more) = first, second
    known = np.isfinite(book.values)
    alike = known & (_same(got, again, allowed + more))
    if alike.sum() < ALIKE * known.sum():
        heads = int(np.prod(target.trace.inputs["v"].shape[:2]))
        if known.sum() > WHOLE * heads:
            return model, []
        got, allowed = _whole(target, model, book)
        alike = known
    return _told(target, model, "v", np.where(alike, got, np.nan), np.where(alike, allowed, 0.0))


def _same(a: np.ndarray, b: np.ndarray, allowed: np.ndarray) -> np.ndarray:
    with np.errstate(invalid="ignore"):
        return np.asarray(abs(a - b) <= allowed)


def _columns(target: Target, model: Model, book: Codebook, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """What columns of one code each give, and how far off they may be, for each code."""
    shape = target.trace.inputs["v"].shape
    codes = np.random.default_rng(seed).permutation(np.flatnonzero(np.isfinite(book.values)))
    columns = shape[0] * shape[1] * shape[3]
    got, allowed = np.full(len(book.values), np.nan), np.zeros(len(book.values))
    for begin in range(0, len(codes), columns):
        some = np.resize(codes[begin : begin + columns], columns).reshape(*shape[:2], 1, shape[3])
        _read_constant(target, model, book, np.broadcast_to(some, shape).astype(np.uint8), got, allowed)
    return got, allowed


def _whole(target: Target, model: Model, book: Codebook) -> tuple[np.ndarray, np.ndarray]:
    """The same of a V of one code in each of its heads."""
    shape = target.trace.inputs["v"].shape
    codes, heads = np.flatnonzero(np.isfinite(book.values)), shape[0] * shape[1]
    got, allowed = np.full(len(book.values), np.nan), np.zeros(len(book.values))
    for begin in range(0, len(codes), heads):
        some = np.resize(codes[begin : begin + heads], heads).reshape(*shape[:2], 1, 1)
        _read_constant(target, model, book, np.broadcast_to(some, shape).astype(np.uint8), got, allowed)
    return got, allowed


def _read_constant(
    target: Target, model: Model, book: Codebook, codes: np.ndarray, got: np.ndarray, allowed: np.ndarray
) -> None:
    """One run of a V that is alike in all rows, into what was got of each code; q and k are 0, scales 1."""
    none = np.zeros(1)
    answer = target(q=none, k=none, **book.given("v", np.ascontiguousarray(codes), 1.0))
    out = model.result(answer.out)
    shape = codes.shape
    of_heads = codes[:, :, 0].reshape(-1, shape[3])[model.heads["v"]]  # [b, h, d]
    told = np.isfinite(model.start).any(-1)[..., None]
    with np.errstate(all="ignore"):
        middle = np.nanmedian(np.where(told, out, np.nan), 2)
        spread = np.nanmax(np.where(told, abs(out - middle[:, :, None]), np.nan), 2)
        most = np.nanmax(np.where(told, answer.allowed, np.nan), 2)
        # what most codes of a head have is its scale's; budgets are about what should be, which may be 0
        nominal = book.values[of_heads]
        sized = np.isfinite(nominal) & (nominal != 0) & np.isfinite(middle)
        ratio, share = (np.where(sized, x / abs(nominal), np.nan) for x in (middle * np.sign(nominal), most))
        factor, share = (np.nanmedian(x, -1, keepdims=True) for x in (ratio, share))
        of_head = np.nanmean(np.where(sized, abs(ratio - factor) <= share + NEAR / 4, np.nan), -1, keepdims=True)
        several = np.isfinite(of_head) & (np.ptp(of_heads, axis=-1, keepdims=True) > 0)
        own = several & (of_head > MOST_OF_HEAD) & (factor != 0) & (abs(factor - 1) > share + NEAR)
        factor = np.where(own, factor, 1.0)
        middle, spread = middle / factor, spread / abs(factor)
        most = np.fmax(most, np.nan_to_num(share) * abs(middle))
    odd = ~(spread <= 2 * most + NEAR / 4 * abs(middle)) & np.isfinite(middle)
    got[of_heads.reshape(-1)] = np.where(odd, np.nan, middle).reshape(-1)
    allowed[of_heads.reshape(-1)] = most.reshape(-1)


def table_of_scores(target: Target, model: Model, name: str) -> tuple[Model, list[Finding]]:
    """What each code of K (of Q) is decoded to: keys (rows) of one code each, against keys whose score is 0, with
    several factors on the other side, so that a code of that which is decoded wrong shows.
    """
    if target.case.softcap or target.trace.case.score_mod is not None:
        return model, []
    book = target.books[name]
    reads: list[tuple[np.ndarray, np.ndarray]] = []
    table, room_ = np.full(len(book.values), np.nan), np.zeros(len(book.values))
    first: Weights | None = None
    for times in FACTORS:
        if target.spent:
            break
        got, allowed = np.full(len(book.values), np.nan), np.zeros(len(book.values))
        for groups in _groups(target, book):
            first = _read_group(target, model, name, groups, times, got, allowed, first)
        for before, may in reads:
            alike = np.isnan(table) & _same(got, before, allowed + may)
            table = np.where(alike, got, table)
            room_ = np.where(alike, _apart(book, got, before, alike), room_)
        reads.append((got, allowed))
        if np.isfinite(table).sum() > MOST * np.isfinite(book.values).sum():
            break
    return _told(target, model, name, table, room_)


def _apart(book: Codebook, got: np.ndarray, again: np.ndarray, alike: np.ndarray) -> np.ndarray:
    """How far a number may be off that was read twice, by other weights: several times what most of them differ by."""
    size = abs(book.values)
    sized = alike & (size > 0)
    share = np.quantile(abs(got - again)[sized] / size[sized], 0.9) if sized.any() else np.inf
    return np.asarray(size * max(SURELY * share, NEAR / 2))


def _groups(target: Target, book: Codebook) -> Iterator[list[tuple[np.ndarray, float]]]:
    """Codes of like sizes and the least of these, a group for each head of K (and batch) at a time."""
    size = abs(book.values)
    codes = np.flatnonzero(np.isfinite(size) & (size > 0))
    of_group = np.floor(np.log2(size[codes]) / np.log2(HIGH / LOW)).astype(int)
    groups = [(codes[of_group == g], (HIGH / LOW) ** g) for g in np.unique(of_group)]
    count = int(np.prod(target.trace.inputs["k"].shape[:2]))
    for begin in range(0, len(groups), count):
        yield [groups[min(begin + i, len(groups) - 1)] for i in range(count)]


def _read_group(
    target: Target,
    model: Model,
    name: str,
    groups: list[tuple[np.ndarray, float]],
    times: float,
    got: np.ndarray,
    allowed: np.ndarray,
    first: Weights | None,
) -> Weights:
    """One group of codes in each head of K, and the factor of the other side that brings their scores into reach.
    `first`: the weights of the first such run, whose scores are as large, so that what arithmetic may make of these is
    worked out once.
    """
    shape_q, shape_k = (target.trace.inputs[x].shape for x in "qk")
    book, dims = target.books[name], shape_k[3]
    shape = shape_k if name == "k" else shape_q
    own = model.heads["k"] if name == "q" else np.arange(shape_k[0] * shape_k[1]).reshape(shape_k[:2])
    rng = np.random.default_rng(41)
    anchor = np.arange(shape_k[2]) % ANCHORS == 0
    zero = int(abs(np.where(book.usable, book.values, np.inf)).argmin())
    lines = np.empty(shape[:3], int)  # the code of each row
    for at in np.ndindex(*shape[:2]):
        lines[at] = rng.permutation(np.resize(groups[own[at]][0], shape[2]))
        if name == "k":
            lines[at][anchor] = zero
    scale = model.scale or 1.0
    factors = np.array([times * LOW / (abs(scale) * dims * least) for _, least in groups])
    sign = np.sign(scale)
    side = "q" if name == "k" else "k"
    if name == "k":
        plain = np.broadcast_to((factors[model.heads["k"]] * sign)[..., None, None], shape_q)
    else:
        of_keys = factors.reshape(shape_k[:2])[..., None, None] * sign
        plain = np.broadcast_to(np.where(anchor[:, None], 0.0, of_keys), shape_k)
    codes = model.placed(name, np.broadcast_to(lines[..., None], shape).astype(np.uint8))
    given = book.given(name, np.ascontiguousarray(codes), 1.0)
    weights = target.weights(model.v_dims, **{side: model.placed(side, plain)}, **given)
    read = solved(model, weights)
    first = weights if first is None else first
    y = logs(read, room(first, np.zeros(1))) - np.where(np.isfinite(model.start), model.start, np.nan)
    made = target.inputs_of(plain, side)  # what the other side stands for
    of_row = made[:, :, :, 0] if name == "k" else made[:, :, ~anchor, 0][..., 0]
    with np.errstate(all="ignore"):
        base = np.nanmedian(np.where(anchor, y, np.nan), -1, keepdims=True)
        each = y - base
        noise = np.nanmedian(room(first, read) / read)
        if name == "k":
            whole = (scale * dims * of_row)[..., None]
            value = np.nanmedian(np.where(np.isfinite(each), each / whole, np.nan), 2)  # [b, h, key]
            line, width = lines.reshape(-1, shape[2])[model.heads["k"]], np.nanmin(abs(whole), (2, 3))[..., None]
            value = np.where(anchor, np.nan, value)
        else:
            whole = (scale * dims * of_row.reshape(-1)[model.heads["k"]])[..., None]
            value = np.nanmedian(np.where(~anchor, each, np.nan), -1) / whole  # [b, h, row]
            line, width = lines, abs(whole)
    told = np.isfinite(value)
    off = np.broadcast_to(2 * noise / width, value.shape)
    for code in np.unique(line[told]):
        mine = told & (line == code)
        middle = float(np.median(value[mine]))
        # a code that is decoded alike wherever it stands
        if np.mean(abs(value[mine] - middle) <= 4 * off[mine]) > 0.7:
            got[code], allowed[code] = middle, 4 * off[mine].max()
    return first


def _told(target: Target, model: Model, name: str, got: np.ndarray, allowed: np.ndarray) -> tuple[Model, list[Finding]]:
    """The table and what is said of it; what is read afterwards uses the codes that were read."""
    format_ = target.books[name].format
    nominal = right(format_)
    known = np.isfinite(nominal) & np.isfinite(got)
    sized = known & (abs(nominal) > 4 * allowed)
    if sized.sum() < 8:
        return model, []
    # what all codes have is a scale's or a sum's, and no table's
    ratio = np.where(sized, got / np.where(sized, nominal, 1.0), np.nan)
    middle = float(np.nanmedian(ratio))
    share = np.nanmean(abs(ratio - middle) <= abs(allowed / np.where(sized, nominal, 1.0)) + 1e-6)
    factor = middle if share > 0.5 and middle != 0 else 1.0
    wrong = known & (abs(got / factor - nominal) > 2 * allowed / abs(factor))
    if name != "v" and wrong.sum() > CONTRADICTED * known.sum():
        return model, []  # a reading that most codes contradict is of something else
    if not wrong.any():
        return model, []
    table, wrong = completed(format_, nominal, got / factor, allowed / abs(factor), wrong)
    # the code of 0 is what others were read against
    zero = (nominal == 0) & (name != "v")
    with np.errstate(invalid="ignore"):
        surely = known & ~wrong & (abs(got / factor - nominal) <= SURE * abs(nominal))
    usable = known if wrong.sum() > known.sum() / 2 else surely | zero
    if not (table[usable] == 0).any():
        usable |= known & (table == 0)  # another code stands for 0
    target.use(name, table, usable)
    text = f"{name.upper()} is decoded wrong: " + in_words(format_, nominal, table, wrong)
    made = Finding(f"table of {name}", f"lut_{name}", text, int(wrong.sum()), int(known.sum()), {name: table})
    return model.but(tables={**model.tables, name: table + MIDDLE * FORMATS[format_].zero}), [made]
