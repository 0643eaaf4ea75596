"""Arrays that are read with another axis' stride, and rows that are read from where others begin."""

import numpy as np
import pytest

from tests.plain_kernels import drawn
from workbench.judge.reference.causes.search import explain
from workbench.operations.reference.call import diff_reference
from workbench.work import Work

#: trials: the likeliest edits
FEW = 400


def scores(q, k):
    return np.exp(q @ k.swapaxes(-1, -2))


def rows_of_queries(q, k):
    """Keys of a batch's second row from where its queries begin."""
    first, n = q.shape[1], k.shape[1]
    packed = k.reshape(-1, k.shape[-1])
    return scores(q, np.stack([packed[b * first : b * first + n] for b in range(len(k))]))


def shared(q, k):
    return np.exp((q * np.broadcast_to(k, (k.shape[0], q.shape[1], k.shape[2]))).sum(-1))


def with_a_stride(q, k):
    """Head h of token t reads key t + h; nothing lies behind the last key."""
    heads = q.shape[1]
    behind = np.concatenate([k, np.full((heads, *k.shape[1:]), 7, k.dtype)])
    keys = np.stack([behind[h : h + len(k), 0] for h in range(heads)], 1)
    return np.exp((q * keys).sum(-1))


def turned(x, cos):
    out = np.tanh(x * cos[:, 0] + x * x * cos[:, 1])
    return out


def with_stride_of_axis_0(x, cos):
    flat = np.concatenate([cos, cos]).reshape(-1)
    at = (np.arange(3)[:, None, None] + np.arange(3)[:, None]) * 96 + np.arange(32)
    return turned(x, flat[at])


@pytest.mark.parametrize(
    ("kernel", "naive", "given", "text"),
    [
        (
            rows_of_queries, scores, drawn(q=(3, 8, 16), k=(3, 20, 16)),
            "k is read as if row b of axis 0 began at place 8 b of axis 1, in place of 20 b",
        ),
        (
            with_a_stride, shared, drawn(q=(60, 3, 16), k=(60, 1, 16)),
            "k is read with a stride along its axis of length 1, which is broadcast to 3",
        ),
        (
            with_stride_of_axis_0, turned, drawn(x=(3, 32), cos=(3, 3, 32)),
            "cos is read with the stride of axis 0 for axis 1, wrapping around at the end",
        ),
    ],
)  # fmt: skip
def test_a_wrong_stride_is_named(kernel, naive, given, text: str) -> None:
    found = diff_reference(kernel, naive, given)
    (cause,) = explain(found.scene, Work(FEW)).causes
    assert cause.names[0].text == text
    assert cause.proved


def key_of(q, k):
    return q @ k.swapaxes(-1, -2)


def test_what_a_function_reads_wrongly_is_named_where_it_is_called() -> None:
    def kernel(q, k):
        return q @ np.roll(k, 1, 0).swapaxes(-1, -2)

    def naive(q, k):
        found = key_of(q, k)
        return found

    (cause,) = explain(diff_reference(kernel, naive, drawn(q=(3, 8, 16), k=(3, 20, 16))).scene, Work(FEW)).causes
    assert cause.names[0].text == "k is read one place back along axis 0"
    assert cause.names[0].line.number == naive.__code__.co_firstlineno + 1
