"""Merging of splits: partial results, their weights, what is summed."""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import combinations, product
from typing import Any

import numpy as np

from workbench.judge.explain.hypothesis import Change, Edit, Hypothesis, altered, of_family, read_as
from workbench.judge.explain.library import indices
from workbench.judge.explain.library.arithmetic import LN2, LOG2E, MERGED_BY_EXP_LSE, over
from workbench.judge.explain.library.indices import taken
from workbench.reference.context import in_float32_range
from workbench.reference.steps.cast import last_states

#: partial results -> where their splits and rows lie
_PARTIALS = {"partial_max": -2, "partial_sum": -2, "partial_O": -3}
#: one of the family
of = of_family("merge")


def hypotheses() -> Iterator[Hypothesis]:
    """All of the family, the plainest first."""
    yield from _weights()
    yield _exponentials()
    yield from _stored()
    yield from _read()
    yield from _lacking()
    yield from _maxima()


def sum_of(weight: Callable[[Any, np.ndarray], np.ndarray]) -> Edit:
    """merge_sum with other weights in the place of exp(partial_max - merge_max)."""

    def change(at: Any, x: np.ndarray) -> np.ndarray:
        w = np.exp(np.where(at("partial_max") == -np.inf, -np.inf, at("partial_max") - at("merge_max")[:, :, None]))
        total: np.ndarray = (weight(at, w) * at("partial_sum")).sum(-2)
        return total

    return altered("merge_sum", change, "partial_max", "merge_max", "partial_sum")


def _weights() -> Iterator[Hypothesis]:
    forms: dict[str, tuple[str, Change]] = {
        "one": ("1 for each split", lambda at, w: np.where(at("partial_sum") > 0, 1.0, 0.0)),
        "times-sum": (
            "multiplied by partial_sum, but partial_O is unnormalised",
            lambda at, w: w * at("partial_sum"),
        ),
        "over-sum": ("divided by partial_sum", lambda at, w: over(w, at("partial_sum"))),
        "inverted": ("inverted: exp(merge_max - partial_max)", lambda at, w: over(1.0, w)),
        "squared": ("applied twice", lambda at, w: w * w),
        "no-log2e": ("exp2 without log2(e)", lambda at, w: w**LN2),
        "log2e": ("exp although log2(e) is already applied", lambda at, w: w**LOG2E),
        "no-max": ("exp(partial_max), without merge_max", lambda at, w: np.exp(at("partial_max"))),
        "scaled": ("computed from maxima scaled twice", lambda at, w: w ** at("scale")),
        "unscaled": ("computed from unscaled maxima", lambda at, w: w ** (1 / at("scale"))),
        "half": ("halved", lambda at, w: w / 2),
    }
    for name, (text, change) in forms.items():
        also = ("partial_sum",) if "sum" in name or name == "one" else ("partial_max",) if name == "no-max" else ()
        of_out, of_sum = altered("merge_weight", change, *also), sum_of(change)
        yield of(f"weight-{name}", f"weights of partial_O are {text}", of_out)
        yield of(f"weight-{name}-in-sum", f"weights in merge_sum are {text}", of_sum)
        yield of(f"weight-{name}-in-both", f"weights are {text}", of_out, of_sum)
        used = read_as("numerator", "merge_weight", change, *also)
        yield of(f"weight-{name}-in-out", f"weights are {text} in the sum of partial_O", used)
    unguarded = lambda at, w: np.where(at("partial_max") == -np.inf, np.nan, w)  # noqa: E731
    empty = altered("merge_weight", unguarded, "partial_max")
    yield of("unguarded-split", "the weight of an empty split (no visible key) is NaN", empty, sum_of(unguarded))
    yield of("unguarded-split-in-out", "the weight of an empty split (no visible key) is NaN in out", empty)
    no_row = lambda at, w: np.where((at("merge_max") == -np.inf)[:, :, None], np.nan, w)  # noqa: E731
    edits = altered("merge_weight", no_row, "merge_max"), sum_of(no_row)
    yield of("unguarded-row", "weights of empty rows (no visible key) are NaN: -inf - (-inf) is unguarded", *edits)
    yield of(
        "unguarded-row-in-out",
        "weights of out are NaN in empty rows (no visible key): -inf - (-inf) is unguarded",
        edits[0],
    )


def _exponentials() -> Hypothesis:
    """Weights e^lse without the largest lse: in float32 they are infinite beyond an lse of 88.7, and 0 below -103.9."""

    def weight(at: Any) -> np.ndarray:
        found: np.ndarray = in_float32_range(np.exp(np.log(at("partial_sum")) + at("partial_max")))
        return found

    def of_split(at: Any, x: np.ndarray) -> np.ndarray:
        return np.where(at("partial_sum") > 0, weight(at) / at("partial_sum"), 0.0)

    edits = (
        altered("merge_weight", of_split, "partial_max", "partial_sum"),
        altered("merge_sum", lambda at, x: weight(at).sum(-2), "partial_max", "partial_sum"),
        altered("out", lambda at, x: at("numerator") / at("merge_sum")[..., None], "numerator", "merge_sum"),
        altered("lse", lambda at, x: np.log(at("merge_sum")), "merge_sum"),
    )
    return of("weight-exp-lse", MERGED_BY_EXP_LSE, *edits)


def _stored() -> Iterator[Hypothesis]:
    """Partial results at another split, row or dim, and of another tile."""
    for count in (1, 3, 2):
        for names in combinations(_PARTIALS, count):
            words = ", ".join(names) if count < 3 else "partial results"
            for one in indices.others():
                edits = [altered(x, lambda at, v, one=one, axis=_PARTIALS[x]: taken(v, one, axis)) for x in names]
                text = f"splits of {words} are stored wrong: {one.text}"
                yield of(f"split-{one.id}-{'-'.join(names)}", text, *edits)
            edits = [altered(x, lambda at, v, x=x: _unfinished(at, v, x), _STATE[x]) for x in names]
            yield of(
                f"before-last-tile-{'-'.join(names)}",
                f"{words} are stored before the split's last tile is added",
                *edits,
            )
    for one in indices.permutations():
        for x, axis in _PARTIALS.items():
            row = axis + 1
            edit = altered(x, lambda at, v, one=one, row=row: taken(v, one, row))
            yield of(f"row-{one.id}-{x}", f"rows of {x} are stored wrong: {one.text}", edit)
        edit = altered("partial_O", lambda at, v, one=one: taken(v, one, -1))
        yield of(f"dim-{one.id}-partial_O", f"dims of partial_O are stored wrong: {one.text}", edit)
    zero = altered("partial_max", lambda at, m: np.where(m == -np.inf, 0.0, m))
    yield of("empty-max-0", "an empty split (no visible key) stores a max of 0", zero)
    for names in (("partial_sum",), ("partial_max",), ("partial_O",), ("partial_max", "partial_sum"), tuple(_PARTIALS)):
        for back in (False, True):
            ways = ("[split, query]", "[query, split]")
            stored, read = ways[::-1] if back else ways
            edits = [altered(x, lambda at, v, back=back: _query_first(v, back)) for x in names]
            text = f"{', '.join(names)}: stored as {stored}, read as {read}"
            yield of(f"query-first-{'back-' if back else ''}{'-'.join(names)}", text, *edits)
    empty = {
        "partial_max": altered("partial_max", lambda at, m: np.where(m == -np.inf, np.nan, m)),
        "partial_sum": altered("partial_sum", lambda at, l: np.where(l == 0, np.nan, l)),
        "partial_O": altered(
            "partial_O", lambda at, o: np.where((_last(at, "row_sum") == 0)[..., None], np.nan, o), "row_sum"
        ),
    }
    for count in (3, 2, 1):
        for names in combinations(empty, count):
            text = f"an empty split (no visible key) never writes {', '.join(names)}"
            yield of(f"empty-unwritten-{'-'.join(names)}", text, *(empty[x] for x in names))
    guarded = lambda at, x: over(x, at("partial_sum")[..., None])  # noqa: E731
    yield of("normalised", "partial_O is already divided by partial_sum", altered("partial_O", guarded, "partial_sum"))
    bare = lambda at, x: x / at("partial_sum")[..., None]  # noqa: E731
    text = "partial_O is already divided by partial_sum, 0 / 0 in an empty split (no visible key)"
    yield of("normalised-unguarded", text, altered("partial_O", bare, "partial_sum"))
    log = lambda at, x: np.log(x) + at("partial_max")  # noqa: E731
    yield of(
        "lse-for-sum",
        "partial_sum contains the split's lse instead of its sum",
        altered("partial_sum", log, "partial_max"),
    )


_STATE = {"partial_max": "row_max", "partial_sum": "row_sum", "partial_O": "acc"}


def _unfinished(at: Any, x: np.ndarray, name: str) -> np.ndarray:
    """A split's state before its last tile; as it is in a split of one tile."""
    state = at.whole(_STATE[name])
    y = x.copy()
    for s, tiles in enumerate(at.tiling.splits):
        if len(tiles) > 1:
            y[:, :, s] = state[:, :, :, tiles[-2]]
    return y


def _query_first(x: np.ndarray, back: bool) -> np.ndarray:
    """[b, h, s, q, ...] with the memory of [b, h, q, s, ...], or the other way round."""
    if not back:
        return x.swapaxes(2, 3).reshape(x.shape)
    b, h, s, q, *d = x.shape
    return x.reshape(b, h, q, s, *d).swapaxes(2, 3)


def _last(at: Any, state: str) -> np.ndarray:
    return last_states(at.whole(state), at.tiling.splits, 0.0)


#: what the merge reads, with the axis of splits
_READ = (
    ("merge_max", "partial_max", -2), ("merge_weight", "partial_max", -2), ("merge_sum", "partial_max", -2),
    ("merge_sum", "partial_sum", -2), ("numerator", "merge_weight", -2), ("numerator", "partial_O", -3),
)  # fmt: skip


def _read() -> Iterator[Hypothesis]:
    """Partial results that the merge reads at another split or row."""
    for stage, ref, axis in _READ:
        for what, off, maps in (("split", 0, indices.others()), ("row", 1, indices.permutations())):
            for one in maps:
                edit = read_as(stage, ref, lambda at, v, one=one, n=axis + off: taken(v, one, n))
                yield of(
                    f"{what}-{one.id}-of-{ref}-in-{stage}", f"{stage} reads {ref} of the wrong {what}: {one.text}", edit
                )


def _lacking() -> Iterator[Hypothesis]:
    """Splits that the merge leaves out, or counts twice."""
    places: dict[str, tuple[str, Callable[[int], list[int]]]] = {
        "last": ("the last split", lambda n: [n - 1]),
        "first": ("the first split", lambda n: [0]),
        "odd": ("every second split", lambda n: list(range(1, n, 2))),
        "but-first": ("all splits but the first", lambda n: list(range(1, n))),
        "last-of-4": ("splits past the last full group of 4", lambda n: list(range(n // 4 * 4, n))),
        "last-of-2": ("splits past the last full pair", lambda n: list(range(n // 2 * 2, n))),
    }
    for (name, (words, which)), (factor, form, end) in product(
        places.items(), ((0, "leaves out {}", "lost"), (2, "counts {} twice", "twice"))
    ):
        if factor and name not in ("last", "first"):
            continue
        id_, of_splits, does = f"{name}-{end}", partial(_at_splits, which), form.format(words)
        weighed: Change = lambda at, w, f=factor, at_=of_splits: at_(w, lambda x: f * x)  # noqa: E731
        nan: Change = lambda at, w, at_=of_splits: at_(w, lambda x: np.nan)  # noqa: E731
        lowest: Change = lambda at, m, at_=of_splits: at_(m, lambda x: -np.inf)  # noqa: E731
        of_out, of_sum = read_as("numerator", "merge_weight", weighed), sum_of(weighed)
        of_max, weight = read_as("merge_max", "partial_max", lowest), altered("merge_weight", weighed)
        yield of(f"{id_}-in-out", f"the sum of partial_O {does}", of_out)
        yield of(f"{id_}-in-sum", f"merge_sum {does}", of_sum)
        if not factor:
            whole = read_as("numerator", "merge_weight", lambda at, w: np.nan_to_num(w, posinf=np.inf))
            never = altered("merge_weight", nan), whole
            yield of(f"{id_}-unwritten", f"the loop over splits {does}", *never)
            yield of(f"{id_}-unwritten-in-both", f"every loop over splits {does}", *never, of_sum)
        yield of(f"{id_}-in-both", f"the merge {does}", of_out, of_sum)
        yield of(f"{id_}-weight", f"the weights of {words} are {'doubled' if factor else '0'}", weight)
        if not factor:
            yield of(f"{id_}-in-max", f"merge_max {does}", of_max)
            yield of(f"{id_}-everywhere", f"the whole merge {does}", of_max, of_out, of_sum)
            yield of(f"{id_}-weights-too", f"the whole merge {does}", of_max, weight, of_sum)


def _at_splits(
    which: Callable[[int], list[int]], x: np.ndarray, change: Callable[[np.ndarray], np.ndarray | float]
) -> np.ndarray:
    """x [b, h, s, ...] with `change` of the splits that `which` names; x where there is one split."""
    y, n = x.copy(), x.shape[2]
    if n > 1:
        y[:, :, which(n)] = change(y[:, :, which(n)])
    return y


def _maxima() -> Iterator[Hypothesis]:
    forms: dict[str, tuple[str, Change]] = {
        "first": ("is that of the first split", lambda at, m: at("partial_max")[:, :, 0]),
        "last": ("is that of the last split", lambda at, m: at("partial_max")[:, :, -1]),
        "zero": ("is 0", lambda at, m: np.zeros_like(m)),
        "min": ("is the minimum", lambda at, m: at("partial_max").min(2)),
        "sum": ("is the sum", lambda at, m: at("partial_max").sum(2)),
        "mean": ("is the mean", lambda at, m: at("partial_max").mean(2)),
        "never-below-0": ("starts at 0", lambda at, m: np.maximum(m, 0.0)),
        "scaled": ("is scaled twice", lambda at, m: m * at("scale")),
        "unscaled": ("is unscaled", lambda at, m: m / at("scale")),
        "no-log2e": ("is missing a factor of log2(e)", lambda at, m: m * LN2),
        "log2e": ("has an extra factor of log2(e)", lambda at, m: m * LOG2E),
    }
    forms["times-usual"] = ("is multiplied by 1/sqrt(head_dim)", lambda at, m: m * at.p.inputs["q"].shape[-1] ** -0.5)
    for name, (text, change) in forms.items():
        yield of(f"max-{name}", f"merge_max {text}", altered("merge_max", change, "partial_max"))
        read = [read_as(x, "merge_max", change, "partial_max") for x in ("merge_weight", "merge_sum")]
        yield of(f"max-{name}-in-weights", f"the merge_max that weights subtract {text}", *read)
    sums: dict[str, tuple[str, Change]] = {
        "max": ("is the largest partial_sum", lambda at, x: at("partial_sum").max(2)),
        "first": ("is that of the first split", lambda at, x: at("partial_sum")[:, :, 0]),
        "mean": ("is the mean over the splits", lambda at, x: x / at.splits),
        "plus-1": ("starts at 1", lambda at, x: x + 1),
    }
    for name, (text, change) in sums.items():
        yield of(f"sum-{name}", f"merge_sum {text}", altered("merge_sum", change, "partial_sum"))
