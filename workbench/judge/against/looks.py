"""What a difference of inputs looks like, and so where to look."""

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from workbench.floats import round_to, unit_roundoff
from workbench.judge.against.asked import apart_in_rows, scaled_alike
from workbench.judge.against.question import Question

#: standard deviations beyond which a mean of roundings is none
BEYOND = 7.0
#: dtypes in which a cache or weights may be kept, the narrowest first -> unit roundoff
NARROW = {name: unit_roundoff(name) for name in ("float8_e5m2", "float8_e4m3fn", "bfloat16", "float16")}
NONE = np.array([], int)
#: input, place of a row -> the last earlier call of a side that holds the row as it is now; None for none
Kept = Callable[[str, int], int | None]


@np.errstate(all="ignore")
def factor_of(a: Question, b: Question, name: str) -> float:
    """By how much an input of A is larger in the mean of its rows; 1 where roundings may make that by chance."""
    x, y, used = both_of(a, b, name)
    factors = (x * y).sum(-1) / (y * y).sum(-1)
    used = used & np.isfinite(factors)
    if not used.any():
        return 1.0
    rest = x - factors[..., None] * y
    chance = np.sqrt(np.mean((rest**2).sum(-1)[used] / (y * y).sum(-1)[used]) / (len(x) * x.shape[2]))
    mean = float(factors[used].mean())
    return mean if abs(mean - 1) > max(BEYOND * chance, a.roundoff, b.roundoff) else 1.0


def both_of(a: Question, b: Question, name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """An input of both, the scale in q where it is in that of one, and which rows or keys are used."""
    factors = (a.scale, b.scale) if name == "q" and scaled_alike(a, b) else (1.0, 1.0)
    used = a.asked & b.asked if name == "q" else a.read & b.read
    return getattr(a, name) * factors[0], getattr(b, name) * factors[1], used


def tokens(question: Question) -> np.ndarray:
    """Where the tokens of the queries stand among the keys: at the last key that each sees, where these ascend."""
    keys = question.seen.shape[2]
    of_head = question.seen[0, : question.queries]
    last = keys - 1 - of_head[:, ::-1].argmax(-1)
    if question.queries > 1 and not (np.diff(last) > 0).all():
        last = np.arange(question.queries) + keys - question.queries
    return last


def rows_of(question: Question, name: str, over: np.ndarray) -> np.ndarray:
    """The rows of q, or keys, of which a unit has one that is over."""
    return np.unique(np.nonzero(over)[1] % question.queries) if name == "q" else np.flatnonzero(over.any(0))


def where_to_look(
    a: Question, b: Question, over: Mapping[str, np.ndarray], allowed: float, new: bool | None, kept: Sequence[Kept]
) -> str:
    """What a difference looks like; "" for nothing known."""
    if said := _narrower(a, b, over):
        return said
    at = {name: rows_of(a, name, of) for name, of in over.items()}
    of_queries = tokens(a)
    # the row of a token in q, k and v, where its query was captured
    of_tokens = {"k", "v"} <= set(over) and all(
        np.array_equal(at[x], at["k"])
        and np.array_equal(at[x][np.isin(at[x], of_queries)], of_queries[at.get("q", NONE)])
        for x in "kv"
    )
    if "q" not in over:
        kept_by, moved = _changed(a, at, kept), _moved(a, b, at, allowed)
        if said := "; ".join(filter(None, (kept_by, moved))):
            cached = bool(kept_by) or of_queries.size < a.seen.shape[2]
            return f"the cache: {said}" if cached else said
        if not of_tokens:
            return f"the code that computes {' and '.join(over)}"
    if of_tokens and len(at["k"]) < a.read.any(0).sum():
        one = len(at["k"]) == 1
        others = "a different token or embedding there" if one else "different tokens or embeddings there"
        made = f"the computation on {'that token' if one else 'those tokens'}"
        if new is None:
            return f"{others}, or {made}"
        return others if new else f"{made}; an expert router may have broken a tie differently there"
    if "v" not in over and all(_as_long(a, b, name, allowed) for name in over):
        both = "the rotation (RoPE): its base, positions or pairs"
        return both if len(over) == 2 else f"the rotation (RoPE) of {next(iter(over))}"
    if all(factor_of(a, b, name) != 1 and _parallel(a, b, name, allowed) for name in over):
        norm = "the preceding norm (its eps), or " if len(over) == 3 else ""
        return f"{norm}a scale: each row differs by a factor"
    if all(_unlike(a, b, name) for name in over) and len(over) == 3:
        return "the two have nothing in common" + (": different weights or tokens" if new else "")
    return ""


def unread_nan(a: Question, b: Question) -> str:
    """Which side holds NaN or infinities in keys that no query sees, of which 0 times is NaN; "" for none or both."""
    said = []
    for side, x in (("A", a), ("B", b)):
        if names := [name for name in "kv" if not np.isfinite(getattr(x, name)[~x.read]).all()]:
            said.append(
                f"{side}'s {' and '.join(names)} {'has' if len(names) == 1 else 'have'} NaN or inf in keys that no "
                "query sees"
            )
    return said[0] if len(said) == 1 else ""


def _narrower(a: Question, b: Question, over: Iterable[str]) -> str:
    """Which input holds numbers of a narrower dtype than it is stored in, on one side alone; "" for none."""
    for dtype, limit in NARROW.items():
        held = {
            name: [bool((round_to(getattr(x, name), dtype) == getattr(x, name)).all()) for x in (a, b)] for name in over
        }
        for side, name in ((i, "AB"[i]) for i in (0, 1)):
            if limit > (a, b)[side].roundoff and all(one[side] and not one[1 - side] for one in held.values()):
                return f"{' and '.join(over)} of {name} contain{'s' * (len(held) == 1)} only {dtype} values"
    return ""


def _holds(x: np.ndarray, dtype: str) -> bool:
    return bool((round_to(x, dtype) == x).all())


@np.errstate(all="ignore")
def _moved(a: Question, b: Question, at: Mapping[str, np.ndarray], allowed: float) -> str:
    """Which row of one side another row of the other side holds, of the first that differ; "" for none."""
    name = "k" if "k" in at else "v"
    x, y, used = both_of(a, b, name)
    for one, other, names in ((x, y, "AB"), (y, x, "BA")):
        for j in at[name][:16]:
            row = other[:, j : j + 1]
            if not row.any():
                return f"row {a.places[0][j]} of {name} is 0 in {names[1]}"
            alike = apart_in_rows(one, np.broadcast_to(row, one.shape), used).max(0) <= allowed
            alike &= used.all(0) & (np.arange(len(alike)) != j)
            if alike.any():
                i = int(np.flatnonzero(alike)[0])
                return f"row {a.places[0][j]} of {name} in {names[1]} equals row {a.places[0][i]} in {names[0]}"
    return ""


def _changed(a: Question, at: Mapping[str, np.ndarray], kept: Sequence[Kept]) -> str:
    """Which side no longer holds what it held in an earlier call, by the first row that differs; "" for neither."""
    for name, rows in at.items():
        place = int(a.places[0][rows[0]])
        calls = [of(name, place) for of in kept]
        for has, lacks in ((0, 1), (1, 0)):
            if calls[has] is not None and calls[lacks] is None:
                row = f"row {place} of {name}"
                return f"in {'AB'[has]}, {row} still has its value from call {calls[has]}; in {'AB'[lacks]} it does not"
    return ""


def _as_long(a: Question, b: Question, name: str, allowed: float) -> bool:
    x, y, used = both_of(a, b, name)
    lengths = [np.sqrt((z * z).sum(-1, keepdims=True)) for z in (x, y)]
    return bool((apart_in_rows(lengths[0], lengths[1], used) <= allowed).all())


@np.errstate(all="ignore")
def _parallel(a: Question, b: Question, name: str, allowed: float) -> bool:
    """Whether a factor for each row leaves a tenth of the difference at most, or rounding."""
    x, y, used = both_of(a, b, name)
    factors = (x * y).sum(-1, keepdims=True) / (y * y).sum(-1, keepdims=True)
    left = apart_in_rows(x, factors * y, used)
    return bool((left <= np.maximum(apart_in_rows(x, y, used) / 10, allowed)).all())


def _unlike(a: Question, b: Question, name: str) -> bool:
    x, y, used = both_of(a, b, name)
    return abs(float((x[used] * y[used]).sum())) < 0.3 * float(np.sqrt((x[used] ** 2).sum() * (y[used] ** 2).sum()))
