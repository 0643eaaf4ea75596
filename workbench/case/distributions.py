"""Distributions of q, k and v, by name: what a case draws its inputs from."""

import math
from collections.abc import Callable, Mapping
from typing import Protocol

import numpy as np


class Drawn(Protocol):
    """What a distribution reads of a case, whose module reads this one."""

    @property
    def batch(self) -> int: ...
    @property
    def heads(self) -> int: ...
    @property
    def kv_heads(self) -> int: ...
    @property
    def seqlen_q(self) -> int: ...
    @property
    def seqlen_k(self) -> int: ...
    @property
    def head_dim(self) -> int: ...
    @property
    def input_std(self) -> float: ...
    def mask(self) -> np.ndarray: ...


def bits(seqlen_k: int) -> int:
    """Binary digits that tell seqlen_k keys apart."""
    return max(1, (seqlen_k - 1).bit_length())


Arrays = tuple[np.ndarray, np.ndarray, np.ndarray]


def _normal(case: Drawn, rng: np.random.Generator) -> Arrays:
    """q, k, v = input_std * N(0, 1)."""
    return tuple(case.input_std * rng.standard_normal(shape) for shape in shapes(case))  # type: ignore[return-value]


def _uniform(case: Drawn, rng: np.random.Generator) -> Arrays:
    """q, k, v = input_std * sqrt(3) * U(-1, 1), of standard deviation input_std."""
    return tuple(case.input_std * math.sqrt(3) * rng.uniform(-1, 1, shape) for shape in shapes(case))  # type: ignore[return-value]


def _large(case: Drawn, rng: np.random.Generator) -> Arrays:
    """q, k, v = 8 * input_std * N(0, 1): scores of standard deviation 64 * sqrt(head_dim) * scale."""
    return tuple(8 * x for x in _normal(case, rng))  # type: ignore[return-value]


def _outlier_channels(case: Drawn, rng: np.random.Generator) -> Arrays:
    """q, k, v = input_std * N(0, 1) * (20 where d % 16 == 0, else 1)."""
    gain = np.where(np.arange(case.head_dim) % 16 == 0, 20.0, 1.0)
    return tuple(gain * x for x in _normal(case, rng))  # type: ignore[return-value]


def _near_cancelling(case: Drawn, rng: np.random.Generator) -> Arrays:
    """Sums that nearly vanish: k[2e + 1] = k[2e], q[2e + 1] = -q[2e] * (1 + 2^-7 n), v[j] = (-1)^j w + 2^-7 n, n = N(0,
    1).

    Over dims in q @ k (a last unpaired dim is 2^-7 n in q), over keys in probs @ v; all times input_std.
    """
    q, k, v = _normal(case, rng)
    pairs = case.head_dim // 2
    k[..., 1 : 2 * pairs : 2] = k[..., 0 : 2 * pairs : 2]
    q[..., 1 : 2 * pairs : 2] = -q[..., 0 : 2 * pairs : 2] * (
        1 + 2**-7 * rng.standard_normal(q[..., : 2 * pairs : 2].shape)
    )
    q[..., 2 * pairs :] *= 2**-7
    signs = np.where(np.arange(case.seqlen_k) % 2 == 0, 1.0, -1.0)[:, None]
    return q, k, signs * v[..., :1, :] + 2**-7 * v


def _peaked(case: Drawn, rng: np.random.Generator) -> Arrays:
    """q[i] = 4 * k[i % seqlen_k] + n, the rest input_std * N(0, 1): one key holds nearly all of a row's weight."""
    q, k, v = _normal(case, rng)
    group = case.heads // case.kv_heads
    rows = np.arange(case.seqlen_q) % case.seqlen_k
    return q + 4 * np.repeat(k, group, axis=1)[:, :, rows], k, v


def _constant_v(case: Drawn, rng: np.random.Generator) -> Arrays:
    """q, k = input_std * N(0, 1), v = input_std everywhere: out is input_std in every row that sees a key."""
    q, k, v = _normal(case, rng)
    return q, k, np.full_like(v, case.input_std)


def _tiny(case: Drawn, rng: np.random.Generator) -> Arrays:
    """q, k, v = 2^-14 * input_std * N(0, 1): around float16's smallest normal number."""
    return tuple(2**-14 * x for x in _normal(case, rng))  # type: ignore[return-value]


def _zero_head(case: Drawn, rng: np.random.Generator) -> Arrays:
    """q, k, v = input_std * N(0, 1), and 0 throughout kv head 0 and the query heads that share it."""
    q, k, v = _normal(case, rng)
    q[:, : case.heads // case.kv_heads] = 0
    k[:, 0] = v[:, 0] = 0
    return q, k, v


def _one_hot(case: Drawn, rng: np.random.Generator) -> Arrays:
    """q[i] = 8 e(i % head_dim), k[j] = 8 e(j % head_dim), v[j] = e(j % head_dim), times input_std; e(n) is the n-th
    unit vector.
    """
    q, k, v = (np.zeros(shape) for shape in shapes(case))
    for x, height in ((q, 8.0), (k, 8.0), (v, 1.0)):
        rows = np.arange(x.shape[2])
        x[:, :, rows, rows % case.head_dim] = height * case.input_std
    return q, k, v


def _exact_integers(case: Drawn, rng: np.random.Generator) -> Arrays:
    """q, k = 64 * {-1, 0, 1}, v = {-8..8}: scores of a row differ by 0 or at least 4096 * scale.

    At scale >= 0.03 probs are then exactly 0 or 1 in float32 (exp(-104) < 2^-150), so that qk, row_sum and acc are sums
    of integers below 2^24: exact in any order. scores is exact when scale is a power of two.
    """
    q, k, v = shapes(case)
    return 64.0 * rng.integers(-1, 2, q), 64.0 * rng.integers(-1, 2, k), 1.0 * rng.integers(-8, 9, v)


def _index_coded(case: Drawn, rng: np.random.Generator) -> Arrays:
    """k[j] = 32 * (bits of j as -1, 1), q[i] = k[(5 i + 3) % visible keys of i], v[j, d] = 16 * (j % 16) + d % 16.

    Query i attends to one key only: any other key is at least 2 * 32^2 * scale below it. In hexadecimal, out reads
    "key, dim".
    """
    q, k, v = (np.zeros(shape) for shape in shapes(case))
    keys, dims = np.arange(case.seqlen_k), np.arange(case.head_dim)
    digits = bits(case.seqlen_k)
    code = 32.0 * (2 * (keys[:, None] >> np.arange(digits) & 1) - 1)
    k[..., :digits] = code
    visible = np.maximum(case.mask().sum(axis=1), 1)
    q[..., :digits] = code[(5 * np.arange(case.seqlen_q) + 3) % visible]
    v[:] = 16 * (keys[:, None] % 16) + dims % 16
    return q, k, v


def shapes(case: Drawn) -> tuple[tuple[int, ...], ...]:
    query = (case.batch, case.heads, case.seqlen_q, case.head_dim)
    key = (case.batch, case.kv_heads, case.seqlen_k, case.head_dim)
    return query, key, key


#: name -> draw(case, rng) -> q, k, v in float64; the docstring of each is its formula
DISTRIBUTIONS: Mapping[str, Callable[[Drawn, np.random.Generator], Arrays]] = {
    "normal": _normal,
    "uniform": _uniform,
    "large": _large,
    "outlier-channels": _outlier_channels,
    "near-cancelling": _near_cancelling,
    "peaked": _peaked,
    "constant-v": _constant_v,
    "tiny": _tiny,
    "zero-head": _zero_head,
    "one-hot": _one_hot,
    "exact-integers": _exact_integers,
    "index-coded": _index_coded,
}
