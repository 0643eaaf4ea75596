"""Rows whose maxima and sums are put together over too few of their four lanes, in a tiled kernel in NumPy."""

from collections.abc import Callable

import numpy as np
import pytest

from tests.judge.explain.fields import fitting
from workbench import Case, diff
from workbench.foreign.run import run

BLOCK = 16
CASE = Case(heads=2, seqlen_q=21, seqlen_k=45, head_dim=24, dtype="float16", seed=5, scale=0.9)
TOLD = {"block_k": BLOCK, "scores_dtype": "float32", "probs_dtype": "float16", "row_sum_of_cast": False}
#: lanes that share what they have of a row
GROUPS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "lane": lambda lane: lane,
    "pair": lambda lane: lane // 2,
    "other-pair": lambda lane: lane % 2,
}


def kernel(group: Callable[[np.ndarray], np.ndarray], of_max: bool, of_sum: bool) -> Callable:
    """FlashAttention-2 with a state for each group; `of_max`, `of_sum`: where they are not put together."""

    def attention(q, k, v, *, scale, causal):  # noqa: ANN001, ANN202
        q, k, v = (x.astype(np.float32) for x in (q, k, v))
        lane_of_dim = group(np.arange(v.shape[-1]) % 8 // 2)
        count = int(lane_of_dim.max()) + 1
        scores = q @ k.swapaxes(-1, -2) * np.float32(scale)
        top = np.full((*q.shape[:3], count), -np.inf, np.float32)
        sums, acc = np.zeros_like(top), np.zeros((*q.shape[:3], v.shape[-1]), np.float32)
        made: dict[str, list[np.ndarray]] = {x: [] for x in ("row_max", "correction", "probs", "row_sum", "acc")}
        for first in range(0, k.shape[2], BLOCK):
            tile = scores[..., first : first + BLOCK]
            of = group(np.arange(tile.shape[-1]) % 8 // 2)
            largest = np.stack([tile[..., of == g].max(-1) for g in range(count)], axis=-1)
            largest = np.maximum(top, largest if of_max else largest.max(-1, keepdims=True))
            correction = np.exp(top - largest)
            probs, top = np.exp(tile - largest[..., of]), largest
            sums = sums * correction + np.stack([probs[..., of == g].sum(-1) for g in range(count)], axis=-1)
            cast = probs.astype(np.float16).astype(np.float32)
            acc = acc * correction[..., lane_of_dim] + cast @ v[:, :, first : first + BLOCK]
            for name, x in zip(made, (top[..., 0], correction[..., 0], probs, sums.sum(-1), acc), strict=True):
                made[name].append(x)
        stages = {name: np.stack(x, axis=3) for name, x in made.items() if name != "probs"}
        probs, total = np.concatenate(made["probs"], axis=-1), sums.sum(-1)
        return {
            **stages,
            **{"scores": scores, "probs": probs, "probs_cast": probs.astype(np.float16)},
            "out": (acc / (sums[..., lane_of_dim] if of_sum else total[..., None])).astype(np.float16),
            "lse": top[..., 0] + np.log(sums[..., 0] if of_sum else total),
        }

    return attention


@pytest.mark.campaign(but=2)
@pytest.mark.parametrize("name", GROUPS)
@pytest.mark.parametrize(("of_max", "of_sum"), [(True, False), (False, True)], ids=["max", "sum"])
def test_lanes_that_are_not_put_together_are_named(name: str, of_max: bool, of_sum: bool) -> None:
    d = diff(run(kernel(GROUPS[name], of_max, of_sum), CASE, contract=TOLD))
    assert d.origins == (("row_max", "probs", "row_sum", "acc") if of_max else ("out", "lse"))
    assert fitting(d, ["layout"]) == {f"layout.{'max' if of_max else 'sum'}-of-{name}"}


def test_put_together_it_is_right() -> None:
    assert diff(run(kernel(GROUPS["lane"], False, False), CASE, contract=TOLD)).verdict == "rounding"
