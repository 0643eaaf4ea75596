"""ALiBi: which slopes, which distances, and where it is added (Press et al. 2022, arXiv 2108.12409)."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from workbench.floats import round_to
from workbench.judge.explain.hypothesis import Change, Edit, Hypothesis, of_family
from workbench.judge.explain.library import indices
from workbench.judge.explain.library.arithmetic import LN2, LOG2E
from workbench.judge.explain.library.indices import taken
from workbench.judge.explain.library.scored import asked, before_cap, instead

_of = of_family("alibi")


def hypotheses() -> Iterator[Hypothesis]:
    """All of the family, the plainest first."""
    for name, text, bias in _added():
        yield _of(name, text, _instead(bias))
    for name, text, slopes, mixes in _slopes():
        edit = _instead(lambda at, x, slopes=slopes: slopes(at, asked(at, "slopes")) * _distances(at))
        yield _of(name, text, edit, across=mixes)
    for name, text, distances in _other_distances():
        edit = _instead(lambda at, x, distances=distances: asked(at, "slopes") * distances(at))
        yield _of(name, text, edit)
    yield _of("before-cap", "ALiBi is added before the softcap", before_cap(_own))


def _own(at: Any) -> np.ndarray:
    return asked(at, "slopes") * _distances(at)


def _instead(bias: Change) -> Edit:
    """Scores with another bias in place of ALiBi's, of `Context` and that."""
    return instead(_own, bias)


def _keys(at: Any) -> np.ndarray:
    return np.arange(at.p.keys)


def _off(at: Any, diagonals: np.ndarray | int | None = None) -> np.ndarray:
    """How far keys lie behind the diagonal of a query, [b, 1, q, k]."""
    where = asked(at, "diagonals") if diagonals is None else diagonals
    found: np.ndarray = _keys(at) - asked(at, "queries")[:, None] - where
    return found


def _is_column(at: Any) -> bool:
    return bool(asked(at, "of_column"))


def _distances(at: Any) -> np.ndarray:
    return _keys(at) * np.ones((1, 1, 1, 1)) if _is_column(at) else -abs(_off(at))


def _added() -> Iterator[tuple[str, str, Change]]:
    yield "none", "ALiBi is not applied", lambda at, x: 0 * x
    yield "negative", "ALiBi has the wrong sign", lambda at, x: -x
    yield "scaled", "ALiBi is multiplied by the scale", lambda at, x: x * at("scale")
    yield "unscaled", "ALiBi is divided by the scale", lambda at, x: x / at("scale")
    yield "twice", "ALiBi is added twice", lambda at, x: 2 * x
    yield "half", "ALiBi is halved", lambda at, x: x / 2
    yield "no-log2e", "ALiBi is missing a factor of log2(e)", lambda at, x: x * LN2
    yield "log2e", "ALiBi has an extra factor of log2(e)", lambda at, x: x * LOG2E
    for dtype in ("bfloat16", "float16"):
        yield dtype, f"ALiBi is rounded to {dtype}", lambda at, x, d=dtype: round_to(x, d)


def _slopes() -> Iterator[tuple[str, str, Callable[[Any, np.ndarray], np.ndarray], bool]]:
    """Name, words, slopes [1, h, 1, 1] in place of those that were given, and whether heads are mixed."""
    for one in indices.others():
        words = f"the slope of the wrong head is used: {one.text}"
        yield f"head-{one.id}", words, lambda at, s, one=one: taken(s, one, 1), True
    yield "kv-head", "slopes are indexed by kv head (h // group)", _of_kv_head, True
    modulo = lambda at, s: s[:, np.arange(at.heads) % at.p.inputs["k"].shape[1]]  # noqa: E731
    yield "modulo", "slopes are indexed by h % kv_heads", modulo, True
    counts: dict[str, tuple[str, Callable[[int], int]]] = {
        "": ("", lambda n: n),
        "-up": (" for the next power of two of heads", lambda n: 1 << (n - 1).bit_length()),
        "-down": (" for the previous power of two of heads", lambda n: 1 << (n.bit_length() - 1)),
    }
    for name, (words, count) in counts.items():
        for first, start in ((1, ""), (0, " with exponents from 0")):
            # geometric slopes of all heads are those of a part only where this is all
            geometric = lambda at, s, n=count, first=first: _geometric(at, n(at.heads), first)  # noqa: E731
            text = f"the given slopes are ignored: geometric slopes{words}{start} are used"
            yield f"geometric{name}{'' if first else '-from-0'}", text, geometric, True
    interleaved = lambda at, s: _interleaved(at.heads)[None, :, None, None]  # noqa: E731
    text = "the given slopes are ignored: the interleaved slopes of the ALiBi paper are used"
    yield "geometric-interleaved", text, interleaved, True
    yield "slope-squared", "slopes are squared", lambda at, s: s * s, False
    yield "slope-root", "the square roots of the slopes are used", lambda at, s: np.sqrt(abs(s)), False
    for dtype in ("bfloat16", "float16"):
        yield f"slope-{dtype}", f"slopes are rounded to {dtype}", lambda at, s, d=dtype: round_to(s, d), False


def _of_kv_head(at: Any, slopes: np.ndarray) -> np.ndarray:
    return slopes[:, np.arange(at.heads) // (at.heads // at.p.inputs["k"].shape[1])]


def _geometric(at: Any, n: int, first: int) -> np.ndarray:
    """2^(-8 i / n) of each head."""
    found: np.ndarray = 2.0 ** (-8.0 * (np.arange(at.heads) + first) / n)
    return found[None, :, None, None]


def _interleaved(heads: int) -> np.ndarray:
    """Slopes of any number of heads, as in the appendix of Press et al. 2022."""
    n = 1 << (heads.bit_length() - 1)
    of_n, of_2n = (2.0 ** (-8.0 * np.arange(1, m + 1) / m) for m in (n, 2 * n))
    found: np.ndarray = np.concatenate([of_n, of_2n[::2]])[:heads]
    return found


def _other_distances() -> Iterator[tuple[str, str, Callable[[Any], np.ndarray]]]:
    yield "column", "ALiBi uses the key index instead of the distance", lambda at: _keys(at) * np.ones((1, 1, 1, 1))
    yield "distance", "ALiBi uses the distance instead of the key index", lambda at: -abs(_off(at))
    yield "top-left", "ALiBi distances are measured from the top-left diagonal", lambda at: -abs(_off(at, 0))
    corner = lambda at: -abs(_off(at, asked(at, "lengths_k")[:, None, None, None] - _rows(at)))  # noqa: E731
    yield "bottom-right", "ALiBi distances are measured from the bottom-right diagonal", corner
    largest = lambda at: -abs(_off(at, int(asked(at, "lengths_k").max()) - int(asked(at, "lengths_q").max())))  # noqa: E731
    yield "largest", "ALiBi distances are measured from the diagonal of the longest sequence", largest
    yield "squared", "ALiBi uses the squared distance", lambda at: -((_off(at) * 1.0) ** 2)
    yield "signed", "ALiBi uses the signed distance: keys past the diagonal are favoured", _off
    yield "off-by-one", "ALiBi distances are one too large", lambda at: -abs(_off(at)) - 1
    yield "next-diagonal", "ALiBi distances are measured from the next key", lambda at: -abs(_off(at) - 1)
    yield "previous-diagonal", "ALiBi distances are measured from the previous key", lambda at: -abs(_off(at) + 1)
    from_end = lambda at: (_keys(at) - asked(at, "lengths_k")[:, None, None, None] + 1) * 1.0  # noqa: E731
    yield "from-end", "ALiBi takes the distance from the last key, the same for all queries", from_end


def _rows(at: Any) -> np.ndarray:
    return asked(at, "lengths_q")[:, None, None, None]
