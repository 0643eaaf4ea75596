"""Keys behind the end of a sequence that a kernel reads: rows of k and v, and what they add to stages that were dumped,
which hold nothing there.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from workbench.judge.explain.hypothesis import Change, Edit, altered
from workbench.judge.explain.library.scored import asked, own_mask, with_mask_put_in
from workbench.reference.stage import Step, named
from workbench.reference.steps.altered import Altered, Reading
from workbench.reference.steps.parameters import by_query_head

#: rows [b, kv_h, k, d] that a kernel reads as k or v, of `Context` and which of the two
Rows = Callable[[Any, str], np.ndarray]


def rows_read(rows: Rows, operands: str = "kv") -> tuple[Edit, ...]:
    """Edits of the rows that heads read as k, v or both."""
    return tuple(altered(f"{x}_rows", lambda at, _, x=x: by_query_head(rows(at, x), at.heads)) for x in operands)


def cut(rows: np.ndarray, own: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Rows [b, kv_h, k, d] up to lengths [b], behind which a kernel loads none."""
    return np.where((np.arange(rows.shape[2]) < lengths[:, None])[:, None, :, None], rows, own)


def reaching(
    lengths: Callable[[Any], np.ndarray], rows: Rows, diagonals: Callable[[Any], np.ndarray | None] = lambda at: None
) -> tuple[Edit, ...]:
    """Edits of a kernel that takes wrong sequence lengths for k and v: `lengths` [b], the memory in `rows` that it then
    reads, and the diagonals [b, 1, 1, 1] of its mask where these follow; with what the extra keys add to sums.
    """

    def read(at: Any, x: str) -> np.ndarray:
        return cut(rows(at, x), at.p.inputs[x], lengths(at))

    mask = altered("visible", lambda at, x: with_mask_put_in(at, own_mask(at, diagonals(at), lengths(at))))
    return (*rows_read(read), mask, *_seen_beyond())


def _seen_beyond() -> tuple[Edit, ...]:
    """Edits by which keys behind the end of a sequence count, where `visible` shows them and the stages that they are
    in were dumped: in the tile that holds the end, and in those behind it, of which out and lse alone tell.
    """
    return (
        _with("row_max", {"scores": _scores_but_nan}),
        _with("row_sum", {"summed": _probs}),
        _with("acc", {"probs_cast": _probs}),
        _with("out", {"acc": _behind("acc"), "row_sum": _behind("row_sum")}),
        _with("lse", {"row_max": _behind("row_max"), "row_sum": _behind("row_sum")}),
    )


#: relative error of what such keys add: nobody dumped their scores, and exp of one of some thousands turns one rounding
#: of it into as many
_SLACK = 2.0**-12


def _with(stage: str, changes: Mapping[str, Change]) -> Edit:
    """The step of a stage with `changes` of those of these that it reads."""

    def changed(step: Step) -> Step:
        beyond = step
        for ref, change in changes.items():
            if ref in named(step, near=False).values():
                beyond = Reading(beyond, ref, change)
        return Altered(step, lambda at, x: beyond.value(at), slack=_SLACK)

    return Edit(stage, changed)


def _absent(at: Any) -> np.ndarray:
    """Keys behind the end of their sequence, bool [b, 1, 1, k]."""
    found: np.ndarray = np.arange(at.p.keys) >= asked(at, "lengths_k")[:, None, None, None]
    return found


def _whole_scores(at: Any) -> np.ndarray:
    """The scores of all keys that the kernel sees."""

    def make() -> np.ndarray:
        x = at.whole("q_rows") @ at.whole("k_rows").swapaxes(-1, -2) * at.p.scale
        cap = at.p.numbers.get("softcap")
        x = x if cap is None else cap * np.tanh(x / cap)
        x = x if at.p.score_mod is None else at.p.score_mod(x)
        bias = 0.0 if at.p.attn_bias is None else at.p.attn_bias
        return np.where(at.whole("visible"), x + bias, -np.inf)

    found: np.ndarray = at.once("scores of all keys", make)
    return found


def _scores(at: Any, x: np.ndarray) -> np.ndarray:
    """The scores of a tile, with those of keys behind the end."""
    if not at.given("scores"):
        return x
    keys = at.tiling.keys[at.tile[0]]
    return np.where(_absent(at)[..., keys], _whole_scores(at)[..., keys], x)


def _scores_but_nan(at: Any, x: np.ndarray) -> np.ndarray:
    """The same as a maximum takes them that passes over NaN, as that of CUDA does."""
    keys, found = at.tiling.keys[at.tile[0]], _scores(at, x)
    return np.where(_absent(at)[..., keys] & np.isnan(found), -np.inf, found)


def _probs(at: Any, x: np.ndarray) -> np.ndarray:
    """The weights of a tile, with those of keys behind the end."""
    if not at.given("probs") and not at.given("probs_cast"):
        return x
    keys, s, top = at.tiling.keys[at.tile[0]], _scores(at, at("scores")), at("subtracted")
    weights = np.exp(s - np.where(top == -np.inf, 0.0, top)[..., None])
    return np.where(_absent(at)[..., keys], weights, x)


def _behind(ref: str) -> Change:
    """A row's state, with what tiles add in which its sequence has no key."""

    def change(at: Any, x: np.ndarray) -> np.ndarray:
        if not all(at.given(name) for name in ("row_max", "row_sum", "acc")):
            return x
        s = np.where(_empty(at), _whole_scores(at), -np.inf)
        top = at.whole("row_max")[..., at.tiling.last]
        new = np.maximum(top, s.max(-1))
        safe = np.where(new == -np.inf, 0.0, new)
        weights, c = np.exp(s - safe[..., None]), np.exp(top - safe)
        if ref == "row_max":
            return new
        return x * c + weights.sum(-1) if ref == "row_sum" else x * c[..., None] + weights @ at.whole("v_rows")

    return change


def _empty(at: Any) -> np.ndarray:
    """Keys of tiles in which their sequence has none, bool [b, 1, 1, k]."""
    absent = _absent(at)
    found = np.zeros_like(absent)
    for keys in at.tiling.keys:
        found[..., keys] = absent[..., keys].all(-1, keepdims=True)
    return found
