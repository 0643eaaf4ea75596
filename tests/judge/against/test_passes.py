"""Two runs that read the same tokens in other passes: the calls of a layer are joined, and held side by side as ever."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest

from workbench import Refusal, Trace, compare_runs
from workbench.trace.load import load

HEADS, ROWS, DIM = 2, 9, 8


def attention(q: np.ndarray, k: np.ndarray, v: np.ndarray, scale: float = DIM**-0.5) -> np.ndarray:
    """Causal, the last query being the last key; rows of sequence 1 do not see its first two keys."""
    s = q @ k.swapaxes(-1, -2) * np.float32(scale)
    s[..., ~seen(q.shape[2], k.shape[2])[0, 0]] = -np.inf
    s[1, ..., :2] = np.where(np.arange(k.shape[2] - q.shape[2], k.shape[2])[:, None] < 2, s[1, ..., :2], -np.inf)
    p = np.exp(s - s.max(-1, keepdims=True))
    made: np.ndarray = (p @ v / p.sum(-1, keepdims=True)).astype(np.float32)
    return made


def seen(rows: int, keys: int) -> np.ndarray:
    causal = np.tri(rows, keys, keys - rows, dtype=bool)[None, None].repeat(2, 0)
    late = np.arange(keys - rows, keys)[:, None] >= 2
    causal[1, 0] &= ~(late & (np.arange(keys) < 2))
    return causal


def layer(number: int, changed: Mapping[str, float] | None = None) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(number)
    made = {x: rng.standard_normal((2, HEADS, ROWS, DIM)).astype(np.float32) for x in "qkv"}
    for name, factor in (changed or {}).items():
        made[name] = made[name] * np.float32(factor)
    return made


def run(
    passes: Sequence[int], scale: float = DIM**-0.5, changed: Mapping[str, float] | None = None
) -> dict[int, Trace]:
    """Two layers read in passes of so many rows; `scale` and `changed` are of layer 1."""
    calls: dict[int, Trace] = {}
    for step, rows in enumerate(passes):
        end = sum(passes[: step + 1])
        for number in range(2):
            x = layer(number, changed if number else None)
            q, k, v = x["q"][:, :, end - rows : end], x["k"][:, :, :end], x["v"][:, :, :end]
            out = attention(q, k, v, scale if number else DIM**-0.5)
            given = load({"q": q, "k": k, "v": v, "mask": seen(rows, end), "out": out})
            call = len(calls)
            calls[call] = replace(given, notes=(f"call {call}, layer {number}, step {step}: all rows",))
    return calls


@pytest.mark.parametrize(("one", "other"), [((9,), (5, 1, 1, 1, 1)), ((3, 3, 3), (9,)), ((4, 5), (6, 3))])
def test_the_same_tokens_in_other_passes_only_round(one: Sequence[int], other: Sequence[int]) -> None:
    found = compare_runs(run(one), run(other))
    assert found.verdict in ("rounding", "identical") and len(found.pairs) == 2
    assert "passes over the tokens: " in str(found) and "are joined" in str(found)


def test_what_one_of_them_does_wrong_is_found_in_its_layer() -> None:
    found = compare_runs(run((9,)), run((5, 4), scale=0.5))
    assert found.verdict == "bug" and found.first is not None and found.first.wrong == ("B",)
    assert found.first.call == 1 and "layer 1, all steps" in str(found)


def test_inputs_that_differ_are_found_in_theirs() -> None:
    found = compare_runs(run((9,)), run((5, 4), changed={"k": 1.1}))
    assert found.verdict == "differs" and found.first is not None and found.first.call == 1
    assert "k of call 1" in str(found)


def test_a_cache_that_changes_is_refused_with_its_row() -> None:
    other = run((5, 4))
    k = other[2].inputs["k"].copy()
    k[:, :, 3] += 1
    other[2] = replace(other[2], inputs={**other[2].inputs, "k": k})
    with pytest.raises(Refusal, match="B: in layer 0, row 3 of k differs between step 0 and the last step. The cache"):
        compare_runs(run((9,)), other)


def test_other_tokens_are_no_other_passes() -> None:
    with pytest.raises(Refusal, match="different shapes in A and B"):
        compare_runs(run((9,)), run((5,)))
