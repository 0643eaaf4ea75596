"""Two faults of which one makes NaN, and what NaN alone proves."""

from typing import Any

import numpy as np
import pytest

from workbench import Case, diff, run
from workbench.judge.explain.explain import Explained

CASE = Case(heads=2, seqlen=64, head_dim=16, causal=True)
TILE = 16


def explained(factor: float, nan_of: str) -> Explained:
    """Of a kernel that says its tiles, and makes NaN in rows that have a tile without a visible key, or in chance rows."""

    def attention(q: np.ndarray, k: np.ndarray, v: np.ndarray, *, scale: float, causal: bool) -> dict[str, Any]:
        scores = (q @ k.swapaxes(-1, -2)) * np.float32(scale * factor)
        rows, keys = scores.shape[-2:]
        seen = np.tri(rows, keys, keys - rows, dtype=bool) if causal else np.ones((rows, keys), bool)
        scores = np.where(seen, scores, np.float32(-np.inf))
        probs = np.exp(scores - scores.max(-1, keepdims=True))
        out, lse = probs @ v / probs.sum(-1, keepdims=True), scores.max(-1) + np.log(probs.sum(-1))
        starts = np.arange(0, keys, TILE)
        broken = ~np.stack([seen[:, i : i + TILE].any(-1) for i in starts]).all(0)
        if nan_of == "chance":
            broken = np.random.default_rng(rows + keys).random(rows) < 0.5
        nan = np.where(broken, np.float32(np.nan), np.float32(0))
        return {"out": out + nan[:, None], "lse": (lse + nan).astype(np.float32), "contract": {"block_k": TILE}}

    return diff(run(attention, CASE)).explain(0.2)


def test_rows_of_nan_and_wrong_numbers_are_two_symptoms() -> None:
    (cause,) = explained(2.0, "empty tiles").causes
    scale, nan = cause.id.split(" + ")
    assert scale == "scale.double" and nan == "softmax.unguarded-tile"
    assert (cause.fit.nan, cause.fit.values) == (2 * 48 * 17, 2 * 16 * 17) and cause.fit.off == 0


@pytest.mark.campaign
def test_nan_alone_is_told_by_where_it_is_in_two_more_runs() -> None:
    (cause,) = explained(1.0, "empty tiles").causes
    assert cause.id == "measured.lost" and cause.text == "rows 0-47 of out are NaN whatever V is"
    assert cause.fit.of_nan_alone and not cause.perhaps


@pytest.mark.campaign
def test_of_nan_in_other_rows_only_which_rows_is_told() -> None:
    found = explained(1.0, "chance")
    (cause,) = found.causes
    broken = np.flatnonzero(np.random.default_rng(2 * CASE.seqlen_q).random(CASE.seqlen_q) < 0.5)
    assert cause.id == "measured.lost" and cause.text.startswith(f"rows {broken[0]}-")
    assert cause.fit.nan == 2 * len(broken) * 16 and "lse" in found.unexplained
