"""Steps that are done otherwise: running sums, weights, factors of a loop, operations in 16 bits, steps left out."""

import ml_dtypes
import numpy as np
import pytest

from tests.plain_kernels import drawn
from workbench.judge.reference.causes.search import explain
from workbench.operations.reference.call import diff_reference
from workbench.work import Work

#: trials: the likeliest edits
FEW = 400
f32 = np.float32


def running(x):
    total = np.cumsum(x, 1)
    return np.exp(total)


def anew(x):
    return np.exp(np.concatenate([np.cumsum(x[:, i : i + 16], 1) for i in range(0, x.shape[1], 16)], 1))


def in_chunks(x):
    total = np.cumsum(x.reshape(4, -1, 8), 1)
    return np.exp(total)


def over_all(x):
    return np.exp(np.cumsum(x.reshape(-1, 8), 0)).reshape(4, -1, 8)


def mixed(x, y):
    both = np.log(0.3 * np.exp(x) + 0.7 * np.exp(y))
    return both + np.exp(x + np.log(0.3)) * y


def halves(x, y):
    half = f32(0.5)
    return np.log(half * np.exp(x) + half * np.exp(y)) + np.exp(x + np.log(half)) * y


def exchanged(x, y):
    a, b = f32(0.7), f32(0.3)
    return np.log(a * np.exp(x) + b * np.exp(y)) + np.exp(x + np.log(a)) * y


def attended(q, k):
    scores = q @ k.T * 0.25
    return np.exp(scores - scores.max(-1, keepdims=True))


def with_a_growing_scale(q, k):
    """A loop over tiles of 16 keys keeps the scale that it multiplied by log2(e)."""
    grown = f32(np.log2(np.e)) ** (np.arange(len(k)) // 16).astype(np.float32)
    scores = q @ k.T * f32(0.25) * grown
    return np.exp(scores - scores.max(-1, keepdims=True))


def rotated(x, frequency):
    angle = np.arange(len(x))[:, None] * frequency
    return x * np.cos(angle)


def in_16_bits(x, frequency):
    few = np.arange(len(x)).astype(ml_dtypes.bfloat16)[:, None] * frequency.astype(ml_dtypes.bfloat16)
    return x * np.cos(few.astype(np.float32))


def decayed(x, w):
    return np.tanh(-(w.sum(0) * np.exp(x)))


def without_a_rate(x, w):
    return np.tanh(w.sum(0) + 0 * x)


def two_losses(x, y, labels):
    hard, soft = x * x, np.exp(y)
    counted = labels != 3
    loss = np.where(counted, (hard + soft) / 2, 0).sum(0) / counted.sum()
    return loss


def with_one_for_all(x, y, labels):
    """Tokens without a label count in the second loss, and in what both are divided by."""
    return ((np.where(labels != 3, x * x, f32(0)) + np.exp(y)) / 2).sum(0) / f32(len(x))


def softmax(x):
    top = x.max(-1, keepdims=True)
    weights = np.exp(x - top)
    return weights / weights.sum(-1, keepdims=True)


def from_one(x):
    """The running sum starts at exp(0)."""
    top = x.max(-1, keepdims=True)
    weights = np.exp(x - top)
    return weights / (weights.sum(-1, keepdims=True) + np.exp(-top))


def tokens(seed, dtype):
    made = drawn(x=(40, 16), y=(40, 16))(seed, dtype)
    return made | {"labels": np.random.default_rng(seed).integers(0, 6, (40, 1))}


@pytest.mark.parametrize(
    ("kernel", "naive", "given", "text"),
    [
        (anew, running, drawn(x=(2, 40)), "total starts anew with each tile of 16"),
        (
            over_all, in_chunks, drawn(x=(32, 8)),
            "total goes on from one place of axis 0 to the next, where it should start anew",
        ),
        (halves, mixed, drawn(x=(4, 40), y=(4, 40)), "0.3 and 0.7 are 1/2 each, in logarithms too"),
        (
            exchanged, mixed, drawn(x=(4, 40), y=(4, 40)),
            "0.3 and 0.7 stand in each other's place, in logarithms too",
        ),
        (
            with_a_growing_scale, attended, drawn(q=(8, 16), k=(40, 16)),
            "scores is multiplied by log2(e) once more with each tile of 16 of axis 1",
        ),
        (
            in_16_bits, rotated, drawn(x=(40, 16), frequency=(16,)),
            "angle is computed in bfloat16, from operands in bfloat16",
        ),
        (
            with_one_for_all, two_losses, tokens,
            "((hard + soft) / 2) where counted, else 0 keeps soft where counted is False, and the sum is divided by 40",
        ),
        (from_one, softmax, drawn(x=(8, 40)), "sum of weights starts with the term that a 0 of x gives, in place of 0"),
        (without_a_rate, decayed, drawn(x=(120,), w=(4, 120)), "-((sum of w) * exp(x)) lacks the negative and the multiply"),
    ],
)  # fmt: skip
def test_a_step_that_is_done_otherwise_is_named(kernel, naive, given, text: str) -> None:
    found = diff_reference(kernel, naive, given)
    (cause,) = explain(found.scene, Work(FEW)).causes
    assert cause.names[0].text == text
    assert cause.proved
