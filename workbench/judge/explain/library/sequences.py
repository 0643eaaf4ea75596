"""Sequences of several lengths: where each begins in memory, how long it is, and where its diagonal lies.

A kernel that reads behind the end of a sequence finds what memory holds there: in packed memory the sequence that
follows, in a padded box what was left there.
"""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from workbench.judge.explain.hypothesis import Hypothesis, Unfit, across, altered, of_family
from workbench.judge.explain.library.arithmetic import tile_width
from workbench.judge.explain.library.reach import reaching, rows_read
from workbench.judge.explain.library.scored import asked, own_mask, with_mask_put_in

#: of `Context` and the lengths [b] of keys and of queries: the lengths of keys that a kernel takes
Lengths = Callable[[Any, np.ndarray, np.ndarray], np.ndarray]
#: where sequences begin [b] in packed memory, and the largest length -> where a kernel lets them begin
Starts = Callable[[np.ndarray, int], np.ndarray]

_of = of_family("sequences")


def hypotheses() -> Iterator[Hypothesis]:
    """All of the family, the plainest first. A part of the batch has other neighbours."""
    return across(_hypotheses())


def _hypotheses() -> Iterator[Hypothesis]:
    for name, text, diagonals in _diagonals():
        seen = lambda at, x, d=diagonals: with_mask_put_in(at, own_mask(at, d(at)))  # noqa: E731
        yield _of(name, text, altered("visible", seen))
    for memory, words in _MEMORY.items():
        for name, text, lengths in _lengths():
            for diagonal in _FOLLOWING:
                yield _reaching(name, f"{text}{_FOLLOWING[diagonal]}{words}", lengths, memory, diagonal)
    yield from _begun()
    yield from _uncomputed()


def _diagonals() -> Iterator[tuple[str, str, Callable[[Any], np.ndarray]]]:
    def lengths(at: Any) -> tuple[np.ndarray, np.ndarray]:
        return asked(at, "lengths_q")[:, None, None, None], asked(at, "lengths_k")[:, None, None, None]

    def largest(at: Any) -> np.ndarray:
        return 0 * lengths(at)[0] + _corner(at)

    yield "top-left", "the mask of each sequence is aligned top-left", lambda at: 0 * lengths(at)[0]
    own = lambda at: lengths(at)[1] - lengths(at)[0]  # noqa: E731
    yield "bottom-right", "the mask of each sequence is aligned bottom-right", own
    yield "largest", "the mask is aligned bottom-right of the longest sequence", largest
    for by, words in ((1, "next"), (-1, "previous")):
        other = lambda at, by=by: np.roll(asked(at, "diagonals"), -by, 0)  # noqa: E731
        yield f"diagonal{by:+}", f"the mask uses the alignment of the {words} sequence", other
    first = lambda at: asked(at, "diagonals")[:1] + 0 * asked(at, "diagonals")  # noqa: E731
    yield "diagonal-0", "the mask uses the alignment of the first sequence", first


#: what lies behind the end of a sequence -> in words
_MEMORY = {
    "zeros": "; zeros follow each sequence",
    "packed": "; the next sequence follows",
    "packed-end": "; the next sequence follows, and nothing follows the last",
    "poisoned": "; stale memory follows each sequence",
}


def _lengths() -> Iterator[tuple[str, str, Lengths]]:
    yield "length-largest", "every sequence gets the key count of the longest", lambda at, k, q: 0 * k + _largest(at)[0]
    yield "length+1", "each sequence gets one key too many", lambda at, k, q: k + 1
    yield "length-1", "each sequence gets one key too few", lambda at, k, q: k - 1
    yield "length-next", "each sequence gets the key count of the next one", lambda at, k, q: np.roll(k, -1)
    yield "length-previous", "each sequence gets the key count of the previous one", lambda at, k, q: np.roll(k, 1)
    yield "length-first", "every sequence gets the key count of the first", lambda at, k, q: 0 * k + k[0]
    yield "length-of-queries", "each sequence gets its query count as its key count", lambda at, k, q: q
    largest = lambda at, k, q: 0 * k + _largest(at)[1]  # noqa: E731
    yield "length-largest-of-queries", "every sequence gets the query count of the longest as its key count", largest
    tiles = lambda at, k, q: -(-k // tile_width(at)) * tile_width(at)  # noqa: E731
    yield "length-of-tiles", "the key count of each sequence is rounded up to whole tiles", tiles


#: which diagonal goes with other lengths -> in words
_FOLLOWING = {"": "", "-followed": ", and its diagonal moves with it", "-corner": ", and the diagonal of the longest"}


def _reaching(name: str, text: str, lengths: Lengths, memory: str, diagonal: str) -> Hypothesis:
    """`text`, in which keys behind the end of a sequence come from `memory`."""

    def taken(at: Any) -> np.ndarray:
        made = np.clip(lengths(at, asked(at, "lengths_k"), asked(at, "lengths_q")), 0, at.p.keys)
        left = len(asked(at, "packed_k")) - asked(at, "starts_k")
        return np.minimum(made, left) if memory == "packed-end" else made

    def diagonals(at: Any) -> np.ndarray:
        if diagonal and not asked(at, "diagonals").any():
            raise Unfit  # nothing is aligned to the right
        if not diagonal:
            return asked(at, "diagonals")
        of_lengths = taken(at) - asked(at, "lengths_q") if diagonal == "-followed" else 0 * taken(at) + _corner(at)
        return of_lengths[:, None, None, None]

    edits = reaching(taken, lambda at, x: _behind(at, x, memory), diagonals)
    return _of(f"{name}-{memory}{diagonal}", text, *edits)


def _largest(at: Any) -> tuple[int, int]:
    """The largest lengths of keys and of queries."""
    found: list[int] = asked(at, "largest").tolist()
    return found[0], found[1]


def _corner(at: Any) -> int:
    """The diagonal of the longest sequences."""
    keys, queries = _largest(at)
    return keys - queries


def _behind(at: Any, x: str, memory: str) -> np.ndarray:
    """Rows of k or v [b, kv_h, k, d] with what lies behind their ends in memory."""
    own = at.p.inputs[x]
    if memory == "zeros":
        return own
    if memory == "poisoned":
        return asked(at, f"poisoned_{x}")
    return _from(asked(at, f"packed_{x}"), asked(at, "starts_k"), own.shape[2])


def _from(memory: np.ndarray, starts: np.ndarray, rows: int) -> np.ndarray:
    """[b, h, rows, d] of packed memory [rows, h, d], from `starts` on; before and behind it lie zeros."""
    places = starts[:, None] + np.arange(rows)
    inside = (places >= 0) & (places < len(memory))
    found = np.moveaxis(memory[np.where(inside, places, 0)], 2, 1)
    return np.where(inside[:, None, :, None], found, 0.0)


_OPERANDS = {"kv": "keys and values", "k": "keys", "v": "values", "q": "queries"}


def _begun() -> Iterator[Hypothesis]:
    """Sequences that begin elsewhere in packed memory."""
    starts: dict[str, tuple[str, Starts]] = {
        "start-1": ("one row too early", lambda s, n: s - 1),
        "start+1": ("one row too late", lambda s, n: s + 1),
        "start-next": ("the start of the next sequence", lambda s, n: np.roll(s, -1)),
        "start-previous": ("the start of the previous sequence", lambda s, n: np.roll(s, 1)),
        "start-0": ("the start of the first sequence", lambda s, n: 0 * s),
        "start-padded": ("where a padded batch would have them", lambda s, n: np.arange(len(s)) * n),
    }
    for (name, (text, begins)), (operands, words), around in product(starts.items(), _OPERANDS.items(), (False, True)):
        id_ = f"{name}-{operands}{'-around' if around else ''}"
        end = ", wrapping around in memory" if around else ""
        edits = rows_read(partial(_from_elsewhere, begins, around), operands)
        yield _of(id_, f"{words} of each sequence are read from {text}{end}", *edits)
    for operands, name, words in (("kv", "queries", "keys and values"), ("q", "keys", "queries")):
        text = f"{words} of each sequence are read from the start of its {name}"
        yield _of(f"start-of-{name}", text, *rows_read(_from_others, operands))


def _from_elsewhere(begins: Starts, around: bool, at: Any, x: str) -> np.ndarray:
    """Rows of q, k or v read from packed memory at wrong offsets; `around`: offsets wrap at both ends of memory."""
    memory, places = asked(at, f"packed_{x}"), begins(asked(at, f"starts_{'qk'[x != 'q']}"), _largest(at)[x == "q"])
    if around:
        memory, places = np.concatenate([memory, memory, memory]), places + len(memory)
    return _from(memory, places, at.p.inputs[x].shape[2])


def _from_others(at: Any, x: str) -> np.ndarray:
    """Rows of q read at the offsets of k, rows of k and v at those of q (cu_seqlens confused)."""
    return _from(asked(at, f"packed_{x}"), asked(at, f"starts_{'qk'[x == 'q']}"), at.p.inputs[x].shape[2])


def _uncomputed() -> Iterator[Hypothesis]:
    """Queries that nobody computes, since a kernel takes the number of keys for theirs."""

    def never(at: Any, x: np.ndarray, axis: int) -> np.ndarray:
        lacking = asked(at, "queries") >= asked(at, "lengths_k")[:, None]
        shape = [1] * x.ndim
        shape[0], shape[axis] = lacking.shape
        return np.where(lacking.reshape(shape), np.nan, x)

    for name, stages in (("", _OF_QUERIES), ("-in-splits", {**_OF_QUERIES, **_OF_SPLITS})):
        edits = tuple(altered(x, lambda at, y, axis=axis: never(at, y, axis)) for x, axis in stages.items())
        text = "each sequence computes only as many queries as it has keys"
        yield _of(f"queries-of-keys{name}", text, *edits)


#: stages -> their axis of queries, where each is the row of a tile
_OF_QUERIES = dict.fromkeys(
    ("qk", "scores", "row_max", "correction", "probs", "probs_cast", "row_sum", "acc", "out", "lse"), 2
)
_OF_SPLITS = {**dict.fromkeys(("partial_max", "partial_sum", "partial_O", "merge_weight"), 3), "merge_max": 2}
