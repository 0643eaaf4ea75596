from functools import cache

import numpy as np
import pytest

from campaigns.independent.catalogue import BENIGN, CORRECT, FAULTS
from campaigns.independent.shape import Array, Shape, Stages

ORDER = (
    "qk scores row_max correction probs probs_cast row_sum acc partial_max partial_sum partial_O "
    "merge_max merge_weight merge_sum out lse"
).split()


def options(
    batch: int, heads: int, kv_heads: int, seqlen_q: int, seqlen_k: int, head_dim: int, dtype: str, causal: bool
) -> dict[str, object]:
    sizes = {"batch": batch, "heads": heads, "kv_heads": kv_heads, "seqlen_q": seqlen_q, "seqlen_k": seqlen_k}
    return sizes | {"head_dim": head_dim, "dtype": dtype, "causal": causal, "scale": 0.2, "seed": 0}


CASES = [
    options(2, 4, 2, 70, 75, 40, "float16", True),
    options(1, 3, 1, 101, 70, 16, "float32", True),
    options(1, 6, 2, 40, 51, 16, "float32", True),
    options(2, 2, 2, 5, 170, 64, "float32", False),
    options(1, 1, 1, 182, 182, 16, "float32", True),
]
NAMES = ["grouped-half", "rows-without-keys", "groups-of-three", "few-queries", "long"]


@cache
def arrays(index: int) -> tuple[Array, Array, Array]:
    o = CASES[index]
    rng = np.random.default_rng(o["seed"])
    kv = o["batch"], o["kv_heads"], o["seqlen_k"], o["head_dim"]
    shapes = (o["batch"], o["heads"], o["seqlen_q"], o["head_dim"]), kv, kv
    q, k, v = (rng.standard_normal(shape).astype(o["dtype"]) for shape in shapes)
    return q, k, v


@cache
def run(function, index: int) -> Stages:
    with np.errstate(all="raise", under="ignore"):
        return function(*arrays(index), scale=CASES[index]["scale"], causal=CASES[index]["causal"])


def dense(index: int) -> tuple[Array, Array, Array, Array]:
    """out, lse and bounds on the error of each, in float64."""
    shape = Shape.of(*arrays(index)[:2], CASES[index]["causal"])
    q, k, v = (x.astype(np.float64) for x in arrays(index))
    k, v = (np.repeat(x, shape.group, 1) for x in (k, v))
    scale, visible = CASES[index]["scale"], shape.visible(np.arange(shape.seqlen_q), np.arange(shape.seqlen_k))
    scores = np.where(visible, q @ np.swapaxes(k, 2, 3) * scale, -np.inf)
    lse = np.logaddexp.reduce(scores, -1)
    weights = np.exp(scores - np.where(np.isinf(lse), 0, lse)[..., None])
    out = weights @ v
    unit = 2.0**-24
    magnitude = np.abs(q) @ np.swapaxes(np.abs(k) + np.abs(k).mean(2, keepdims=True), 2, 3) * scale
    highest = np.where(visible, magnitude, 0).max(-1)
    # The product and its scale; differences of scores and their exponentials, once a tile; sums over keys.
    score = (shape.head_dim + 4) * unit * highest
    tiles = -(-shape.seqlen_k // 16)
    weight = 2 * score + (tiles + 3) * unit * (4 * highest + 8) + (shape.seqlen_k + tiles + 4) * unit
    of_lse = weight + 4 * unit * (highest + np.abs(np.where(np.isinf(lse), 0, lse)))
    of_out = 2 * weight[..., None] * (weights @ np.abs(v))
    if CASES[index]["dtype"] == "float16":  # probabilities and out, either of which may be subnormal
        of_out += 2.0**-11 * (weights @ np.abs(v) + np.abs(out)) + 2.0**-25 * (np.abs(v).sum(2, keepdims=True) + 1)
    return out, lse, of_out, of_lse


@pytest.mark.parametrize("index", range(len(CASES)), ids=NAMES)
@pytest.mark.parametrize("name", [*CORRECT, *BENIGN])
def test_correct_kernels_agree_with_a_dense_softmax(name: str, index: int) -> None:
    stages = run((CORRECT | BENIGN)[name], index)
    out, lse, of_out, of_lse = dense(index)
    assert stages["out"].dtype == arrays(index)[0].dtype
    assert (np.abs(stages["out"] - out) <= of_out).all()
    empty = np.isneginf(lse)
    assert np.array_equal(np.isneginf(stages["lse"]), empty)
    assert (np.abs(stages["lse"][~empty] - lse[~empty]) <= of_lse[~empty]).all()


def differs(actual: Array, expected: Array) -> bool:
    assert actual.shape == expected.shape and actual.dtype == expected.dtype
    return not np.array_equal(actual, expected, equal_nan=True)


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_begins_at_its_first_stage(name: str) -> None:
    fault = FAULTS[name]
    index = next(n for n, case in enumerate(CASES) if fault.shows(case))
    faulty, correct = run(fault.function, index), run(fault.correct, index)
    assert faulty["contract"] == correct["contract"] and faulty.keys() == correct.keys()
    stages = [stage for stage in ORDER if stage in faulty]
    assert next(stage for stage in stages if differs(faulty[stage], correct[stage])) == fault.stages[0]
    assert set(fault.stages) <= set(stages) and fault.stages == tuple(sorted(fault.stages, key=ORDER.index))


def test_records_say_what_is_wrong_and_where_it_was_reported() -> None:
    assert len(FAULTS) >= 36 and sum(not fault.known for fault in FAULTS.values()) >= 6
    for fault in FAULTS.values():
        assert fault.why.endswith(".") and "\n" not in fault.why and fault.source
