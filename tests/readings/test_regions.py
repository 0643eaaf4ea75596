"""Faults of some rows, dims and heads: which these are is found with what is wrong in them."""

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from workbench import Case, run
from workbench.readings.reader import Measured, measured
from workbench.readings.regions import completed

CASE = Case(heads=2, kv_heads=2, seqlen_q=64, seqlen_k=96, head_dim=32)
TILE = 24

#: what a merge of splits of TILE keys does with weights, sums and values [b, h, q, split(, d)] of its own
Fault = Callable[[np.ndarray, np.ndarray, np.ndarray], None]


def merged(fault: Fault, *, sinks_lost: slice = slice(0, 0)) -> Callable[..., np.ndarray]:
    def attention(q: Any, k: Any, v: Any, *, scale: float, causal: bool, sinks: Any = None) -> np.ndarray:
        scores = (q @ k.swapaxes(-1, -2) * np.float32(scale)).astype(np.float64)
        split = scores.reshape(*scores.shape[:-1], -1, TILE)
        top = split.max(-1)
        last = top.max(-1, keepdims=True)
        p = np.exp(split - top[..., None])
        weight, sums = np.exp(top - last), p.sum(-1)
        values = np.einsum("bhqtk,bhtkd->bhqtd", p, v.reshape(*v.shape[:2], -1, TILE, v.shape[-1]))
        fault(weight, sums, values)
        total = (weight * sums).sum(-1)
        if sinks is not None:
            more = np.exp(sinks[None, :, None] - last[..., 0])
            more[:, :, sinks_lost] = 0
            total = total + more
        return np.asarray(((weight[..., None] * values).sum(-2) / total[..., None]).astype(q.dtype))

    return attention


def right(weight: np.ndarray, sums: np.ndarray, values: np.ndarray) -> None:
    """Changes nothing."""


def row_before(weight: np.ndarray, sums: np.ndarray, values: np.ndarray) -> None:
    rows = np.arange(64)
    some = rows[rows // 8 % 4 == 3]
    weight[:, :, some, 2] = weight.copy()[:, :, some - 8, 2]


def overwritten(weight: np.ndarray, sums: np.ndarray, values: np.ndarray) -> None:
    values[:, :, :, 0] = values[:, :, :, 3]
    values[:, 1, :, 1] = values[:, 0, :, 1]


def lost_sum(weight: np.ndarray, sums: np.ndarray, values: np.ndarray) -> None:
    sums[:, :, 16:32, 0] = 0


def stale_dims(weight: np.ndarray, sums: np.ndarray, values: np.ndarray) -> None:
    values[..., 2, 16:] = values[..., 1, 16:]


def found(function: Callable[..., Any], case: Case = CASE) -> Measured:
    got = measured(run(function, case))
    assert got.proved and got.calls <= 200
    return got


def texts(function: Callable[..., Any], case: Case = CASE) -> list[str]:
    return [one.text for one in found(function, case).findings]


def test_of_a_right_merge_nothing_is_found() -> None:
    got = measured(run(merged(right), CASE))
    assert not got.findings and not got.verdict.weights.summary.outside


def test_a_weight_of_other_rows_in_some_blocks_of_rows() -> None:
    (text,) = texts(merged(row_before))
    assert text == (
        "tile 2 uses the weight e^(maximum - last maximum) of row i - 8 (tiles of 24 keys), in rows 24-31, 56-63"
    )


def test_two_numbers_that_are_taken_at_once() -> None:
    first, second = texts(merged(overwritten))
    assert first == "tile 0 uses the weighted values of the last tile (tiles of 24 keys), in heads 0"
    assert (
        second
        == (
            "tile 0 uses the weighted values of the last tile, and tile 1 uses the weighted values of the previous head "
            "(tiles of 24 keys), in heads 1"
        )
        or "tile 1 uses the weighted values of head 0" in second
    )


def test_two_faults_of_different_rows() -> None:
    both = set(texts(merged(lost_sum, sinks_lost=slice(40, 64)), CASE.but(sinks="normal")))
    assert both == {
        "tile 0 lacks the row sum (tiles of 24 keys), in rows 16-31",
        "sinks are left out of the row sum, in rows 40-63",
    }


def test_dims_are_told() -> None:
    (text,) = texts(merged(stale_dims))
    assert text == "tile 2 uses the weighted values of the previous tile (tiles of 24 keys), in dims 16-31"


def test_a_cast_of_some_rows() -> None:
    def attention(q: np.ndarray, k: np.ndarray, v: np.ndarray, *, scale: float, causal: bool) -> np.ndarray:
        out = merged(right)(q, k, v, scale=scale, causal=causal)
        out[:, :, :32] = out[:, :, :32].astype(ml_dtypes.float8_e4m3fn)
        return out

    assert texts(attention) == ["out is rounded to e4m3, in rows 0-31"]


def test_values_of_other_keys_in_some_rows() -> None:
    def attention(q: np.ndarray, k: np.ndarray, v: np.ndarray, *, scale: float, causal: bool) -> np.ndarray:
        stale = v.copy()
        stale[:, :, 48:64] = v[:, :, 16:32]
        outs = [merged(right)(q, k, x, scale=scale, causal=causal) for x in (v, stale)]
        return np.concatenate([outs[0][:, :, :24], outs[1][:, :, 24:]], 2)

    got = found(attention)
    (finding,) = got.findings
    said = "in rows 24-63 some keys use another key's V: in row 24, keys 48-63 use the V of keys 16-31"
    assert finding.text == said
    index = np.broadcast_to(np.arange(96), (64, 96)).copy()
    index[24:, 48:64] = np.arange(16, 32)
    assert np.array_equal(finding.data["moved"][0, 0], index)


def test_keys_behind_the_last_one() -> None:
    def attention(q: np.ndarray, k: np.ndarray, v: np.ndarray, *, scale: float, causal: bool) -> np.ndarray:
        flat = [x.reshape(-1, x.shape[-1]) for x in (k, v)]
        at = np.arange(2)[:, None] * 88 + np.arange(96)
        longer = [x[at % len(x)][None] for x in flat]
        return merged(right)(q, *longer, scale=scale, causal=causal)

    said = "8 keys past the last one are attended: the first keys of the next head"
    assert texts(attention, CASE.but(seqlen_k=88)) == [said]


def test_a_row_of_q_that_is_not_read_and_rows_that_are_others() -> None:
    def attention(q: np.ndarray, k: np.ndarray, v: np.ndarray, *, scale: float, causal: bool) -> np.ndarray:
        read = q.copy()
        read[:, :, 0] = 0
        read[:, :, 32:, 16:] = q[:, :, :32, 16:]
        return merged(right)(read, k, v, scale=scale, causal=causal)

    (finding,) = found(attention, CASE.but(head_dim=64)).findings
    assert finding.text.startswith("Q is read wrong: ") and finding.wrong == 64 + 32 * 48
    index = np.arange(64 * 64).reshape(64, 64)
    index[32:, 16:] = index[:32, 16:]
    index[0] = -1
    index[32, 16:] = np.arange(16, 64)
    assert np.array_equal(finding.data["q"], index)


@pytest.mark.parametrize(
    ("wrong", "may", "rule"),
    [
        ([3, 7, 11], [15], [3, 7, 11, 15]),  # a pattern that comes again
        ([3, 7, 11], [], [3, 7, 11]),  # of which row 15 is right
        ([4, 5, 7], [6], [4, 5, 6, 7]),
        ([1, 2], [0, *range(3, 16)], [*range(16)]),
    ],
)
def test_rows_are_completed_to_a_rule(wrong: list[int], may: list[int], rule: list[int]) -> None:
    rows, free = np.zeros((1, 2, 16), bool), np.zeros((1, 2, 16), bool)
    rows[:, :, wrong], free[:, :, may] = True, True
    got = completed(rows, free)
    assert np.array_equal(np.flatnonzero(got[0, 0]), rule) and np.array_equal(got[0, 0], got[0, 1])
