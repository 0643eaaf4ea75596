"""Tensors in one order of axes that are taken for another: [batch, head, row, dim] and [batch, row, head, dim]."""

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import numpy as np

from workbench.judge.explain.hypothesis import Edit, Hypothesis, Unfit, across, altered, of_family
from workbench.judge.explain.library.arithmetic import attended
from workbench.judge.explain.library.indices import by_heads, by_rows
from workbench.reference.steps.parameters import by_query_head

#: operands that go together, the likeliest first -> as words
_OPERANDS = {
    "qkv": "q, k and v", "q": "q", "k": "k", "v": "v", "kv": "k and v", "qk": "q and k", "qv": "q and v",
}  # fmt: skip
#: results that are stored in the same order -> as words
_RESULTS = {"": "", "out": ", out is stored the same way", "out-lse": ", out and lse are stored the same way"}
_of = of_family("layout")

Order = Callable[[np.ndarray], np.ndarray]


def hypotheses() -> Iterator[Hypothesis]:
    """All of them, the plainest first."""
    yield from across(_orders())
    yield from across(_over_heads())
    yield from _dims_first()


def _orders() -> Iterator[Hypothesis]:
    ways = (
        ("as-bshd", "[b, h, s, d] is read with the strides of [b, s, h, d]", by_heads, by_rows),
        ("as-bhsd", "[b, s, h, d] is read with the strides of [b, h, s, d]", by_rows, by_heads),
    )
    for (name, text, read, stored), (results, said), (operands, words) in product(
        ways, _RESULTS.items(), _OPERANDS.items()
    ):
        edits = _rows(operands, read)
        edits += tuple(altered(x, lambda at, made, order=stored: order(made)) for x in results.split("-") if x)
        yield _of(f"{name}-{operands}{'-' * bool(results)}{results}", f"{words}: {text}{said}", *edits)


def _rows(operands: str, order: Order) -> tuple[Edit, ...]:
    def edit(x: str) -> Edit:
        return altered(f"{x}_rows", lambda at, rows: by_query_head(order(at(x)), at.heads), x)

    return tuple(edit(x) for x in operands)


def _over_heads() -> Iterator[Hypothesis]:
    """The axes of heads and rows exchanged by name, not in memory: each row attends to the heads at its own place."""

    def parts(at: Any) -> tuple[np.ndarray, np.ndarray]:
        """Scores [b, row, head, kv head] and v [b, row, kv head, d], where k and v have a row for each of q's."""
        q, k, v = (at(x).swapaxes(1, 2) for x in "qkv")
        if q.shape[1] % k.shape[1]:
            raise Unfit
        k, v = (by_query_head(x, q.shape[1]) for x in (k, v))
        scores = q @ k.swapaxes(-1, -2) * at("scale")
        if not at("visible").all():  # causal, of as many rows as there are heads
            n, m = scores.shape[-2:]
            scores = np.where(np.tri(n, m, m - n, dtype=bool), scores, -np.inf)
        return scores, v

    def out(at: Any, x: np.ndarray) -> np.ndarray:
        return attended(*parts(at)).swapaxes(1, 2)

    def lse(at: Any, x: np.ndarray) -> np.ndarray:
        return np.logaddexp.reduce(parts(at)[0], -1)  # [b, row, head]

    text = "attention runs over heads instead of rows: [b, h, s, d] is taken for [b, s, h, d]"
    of_out = altered("out", out, "q", "k", "v")
    ways = {
        "": ("", lambda at, x: lse(at, x).swapaxes(1, 2)),
        "-lse-rows-first": (", lse is stored as [b, s, h]", lambda at, x: lse(at, x).reshape(x.shape)),
    }
    for name, (said, of_lse) in ways.items():
        yield _of(f"over-heads{name}", f"{text}{said}", of_out, altered("lse", of_lse, "q", "k"))


def _dims_first() -> Iterator[Hypothesis]:
    def order(at: Any, rows: np.ndarray) -> np.ndarray:
        b, h, s, d = rows.shape
        return rows.reshape(b, h, d, s).swapaxes(-1, -2)

    for operands, words in _OPERANDS.items():
        text = f"{words}: [s, d] is read with the strides of [d, s]"
        yield _of(f"as-dims-first-{operands}", text, *(altered(f"{x}_rows", order) for x in operands))
