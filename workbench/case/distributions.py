"""Distributions of q, k and v, by name: what a case draws its inputs from."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

#: a case, whose module reads this one
Drawn = Any
Arrays = tuple[np.ndarray, np.ndarray, np.ndarray]


def bits(seqlen_k: int) -> int:
    """Binary digits that tell seqlen_k keys apart."""
    return max(1, (seqlen_k - 1).bit_length())


def _normal(case: Drawn, rng: np.random.Generator) -> Arrays:
    """q, k, v = input_std * N(0, 1)."""
    return tuple(case.input_std * rng.standard_normal(shape) for shape in shapes(case))


def _uniform(case: Drawn, rng: np.random.Generator) -> Arrays:
    """q, k, v = input_std * sqrt(3) * U(-1, 1), of standard deviation input_std."""
    return tuple(case.input_std * math.sqrt(3) * rng.uniform(-1, 1, shape) for shape in shapes(case))


def _large(case: Drawn, rng: np.random.Generator) -> Arrays:
    """q, k, v = 8 * input_std * N(0, 1): scores of standard deviation 64 * sqrt(head_dim) * scale."""
    return tuple(8 * x for x in _normal(case, rng))  # type: ignore[return-value]


def _outlier_channels(case: Drawn, rng: np.random.Generator) -> Arrays:
    """q, k, v = input_std * N(0, 1) * (20 where d % 16 == 0, else 1)."""
    return tuple(np.where(np.arange(x.shape[-1]) % 16 == 0, 20.0, 1.0) * x for x in _normal(case, rng))  # type: ignore[return-value]


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
        x[:, :, rows, rows % x.shape[-1]] = height * case.input_std
    return q, k, v


#: how far below the maximum, 0, a score of `exact` is that is not a maximum: exp of -200 is 0 in float32, and so is
#: 2^-200
_BELOW = 208.0
#: a case's softcap and scale for that; with 2^-9 q holds 2^9 and k 2^9, and 16 digits make sums of 2^22
SMALLEST_CAP, SMALLEST_SCALE = 256.0, 2.0**-9
#: digits that a row of `exact-ties` leaves open, at most: 8 keys, whose sum of v has 7 bits, which bfloat16 holds
_OPEN = 3


def _exact(case: Drawn, rng: np.random.Generator) -> Arrays:
    """No right kernel rounds: a row's score is 0 at one random visible key, below -200 at others; v = 0, ±1, ... ±8.

    So row_max is 0, probs and row_sum are 1, lse is 0, out is v of that key: whatever scales, sums, exp and casts are
    like. k[j] has each digit of j in either of two random dims; q[i] has a large negative number where its key does not
    have it, so that all products of the two are 0. In other dims k is 0, and q = ±1, ±2. All are powers of two, of
    which codes in float8 lose nothing.
    """
    return _exact_at(case, rng, 0)


def _exact_ties(case: Drawn, rng: np.random.Generator) -> Arrays:
    """As exact, but the score is 0 at 1, 2, 4 or 8 keys of a row, whose mean of v is out; lse is log of that number.

    They are those that differ in some random digits of their index, and so lie in several tiles and splits.
    """
    return _exact_at(case, rng, _OPEN)


def _exact_at(case: Drawn, rng: np.random.Generator, most: int) -> Arrays:
    """`_exact` with up to 2^most maxima in a row."""
    shape_q, shape_k, shape_v = shapes(case)
    q, k, v = np.zeros(shape_q), np.zeros(shape_k), rng.choice(np.array([0, 1, -1, 2, -2, 4, -4, 8, -8.0]), shape_v)
    digits, keys = bits(case.seqlen_k), np.arange(case.seqlen_k)
    mask = case.mask()  # of which a row is one run of keys
    first, visible = mask.argmax(axis=-1), mask.sum(axis=-1)
    at = np.minimum(first + rng.integers(0, np.maximum(visible, 1), shape_q[:3]), case.seqlen_k - 1)
    open_digits = rng.permuted(np.broadcast_to(np.arange(digits), (*at.shape, digits)), axis=-1)[..., :most]
    wanted = rng.integers(0, open_digits.shape[-1] + 1, at.shape)
    left_open = np.zeros(at.shape, int)  # a bit for each digit that any key may have
    for n in range(1, open_digits.shape[-1] + 1):
        chosen = (1 << open_digits[..., :n]).sum(axis=-1)
        subsets = np.arange(2**n)[:, None] >> np.arange(n) & 1  # of the digits, which flip in other keys
        ties = at[..., None] ^ np.where(subsets, 1 << open_digits[..., None, :n], 0).sum(axis=-1)
        seen = ((ties >= first[..., None]) & (ties < (first + visible)[..., None])).sum(axis=-1)
        left_open = np.where((wanted >= n) & np.isin(seen, 2 ** np.arange(n + 1)), chosen, left_open)

    cap = case.softcap
    reach = _BELOW if cap is None else cap * math.atanh(_BELOW / cap)
    height = max(0, math.ceil(math.log2(reach / abs(case.scale))))
    here, there = -math.copysign(2.0 ** (height - height // 2), case.scale), 2.0 ** (height // 2)
    dims = rng.permutation(case.head_dim)
    # keys of the same index have other names in another head, so that one of the wrong head is seen
    names = np.resize(rng.permutation(2**digits), shape_k[:2])
    of_query = np.repeat(names, case.heads // case.kv_heads, axis=1)[..., None]
    for digit in range(digits):
        pair = dims[2 * digit : 2 * digit + 2]
        held, asked = ((x >> digit) & 1 for x in (keys ^ names[..., None], at ^ of_query))
        for value, dim in enumerate(pair):
            k[..., dim] = np.where(held == value, there, 0.0)
            q[..., dim] = np.where((asked != value) & (left_open >> digit & 1 == 0), here, 0.0)
    others = dims[2 * digits :]
    q[..., others] = rng.choice(np.array([1.0, -1.0, 2.0, -2.0]), (*at.shape, len(others)))
    return q, k, v


def _index_coded(case: Drawn, rng: np.random.Generator) -> Arrays:
    """k[j] = 32 * (bits of j as -1, 1), q[i] = k[(5 i + 3) % visible keys of i], v[j, d] = 16 * (j % 16) + d % 16.

    Visible keys are counted from the first one.

    Query i attends to one key only: any other key is at least 2 * 32^2 * scale below it. In hexadecimal, out reads
    "key, dim".
    """
    q, k, v = (np.zeros(shape) for shape in shapes(case))
    keys, dims = np.arange(case.seqlen_k), np.arange(case.head_dim_v)
    digits = bits(case.seqlen_k)
    code = 32.0 * (2 * (keys[:, None] >> np.arange(digits) & 1) - 1)
    k[..., :digits] = code
    mask = case.mask()
    first, visible = mask.argmax(axis=-1), np.maximum(mask.sum(axis=-1), 1)
    q[..., :digits] = code[first + (5 * np.arange(case.seqlen_q) + 3) % visible]
    v[:] = 16 * (keys[:, None] % 16) + dims % 16
    return q, k, v


#: keys of a column of `comb`: so few that a lost one moves it by more than out may be off of a kernel in bfloat16 that
#: tells nothing of its arithmetic (1/5 at 1000 keys), as far as so many cases go; and never more than where it is seen
#: among roundings, half an ulp of probs and half a one of out (2^-9 each)
FEW_KEYS, FEW_COMBS, MANY_KEYS = 4, 4, 64


def combs(case: Drawn) -> int:
    """How many cases of `comb`, of seeds one after the other, have all keys."""
    few, many = (-(-case.seqlen_k // (n * case.head_dim_v)) for n in (FEW_KEYS, MANY_KEYS))
    return max(min(few, FEW_COMBS), many)


def _comb(case: Drawn, rng: np.random.Generator) -> Arrays:
    """q = 0, v[j] = k[j] = e(j % head_dim) of some keys, 0 of others; e(n) is the n-th unit vector.

    All visible keys have the same weight, so that a lost or doubled one moves one column of out in all rows. One case
    has all keys where there are 4 head_dim_v or fewer; of more seed 0 has the last ones, the next seed those before.
    """
    q, k, v = (np.zeros(shape) for shape in shapes(case))
    keys = np.arange(case.seqlen_k)
    group = (case.seqlen_k - 1 - keys) // -(-case.seqlen_k // combs(case))
    keys = keys[group == case.seed % combs(case)]
    # where v is a part of k, it has them all
    k[:, :, keys, keys % min(case.head_dim, case.head_dim_v)] = 1.0
    v[:, :, keys, keys % case.head_dim_v] = 1.0
    return q, k, v


#: what all other keys of a row together weigh of `needle`, over the needle
_HAY = 1 / 3


def needles(case: Drawn) -> int:
    """How many cases of `needle`, of seeds one after the other, have all keys."""
    return -(-case.seqlen_k // case.seqlen_q)


def _needle(case: Drawn, rng: np.random.Generator) -> Arrays:
    """v = N(0, 1), k[j] = a * (bits of j as -1, 1) * (1 + n / 16), q[i] = such a k of one key, with most of i's weight.

    n = N(0, 1), without which scores had few values, and all roundings were alike. The next row has the next key. The
    last row of seed 0 has the last key, and where there are fewer queries than keys the next seed has those before.
    Without n a digit that differs makes a weight x times as large, (1 + x)^digits = 4/3, which is a's rule: a key has
    3/4 of the weight, more where others are hidden, less with a softcap.
    """
    q, k, v = (np.zeros(shape) for shape in shapes(case))
    v[:] = rng.standard_normal(v.shape)
    digits, keys, rows = bits(case.seqlen_k), np.arange(case.seqlen_k), np.arange(case.seqlen_q)
    gap = -math.log((1 + _HAY) ** (1 / digits) - 1)
    height = math.sqrt(gap / 2 / (abs(case.scale) or 1.0))
    code = height * (2 * (keys[:, None] >> np.arange(digits) & 1) - 1)
    mask = case.mask()
    first, visible = mask.argmax(axis=-1), mask.sum(axis=-1)
    # the line of keys that ends at the last one of the last row that sees any
    row = (case.seqlen_q - 1 - (visible > 0)[..., ::-1].argmax(axis=-1))[..., None]
    ends = np.take_along_axis(first + visible, row, axis=-1) - 1 - row
    line = rows + ends - case.seqlen_q * (case.seed % needles(case))
    at = np.clip(line, first, np.maximum(first + visible - 1, first))
    k[..., :digits] = code
    q[..., :digits] = math.copysign(1.0, case.scale) * code[at]
    q, k = (x * (1 + rng.standard_normal(x.shape) / 16) for x in (q, k))
    return q, k, v


def shapes(case: Drawn) -> tuple[tuple[int, ...], ...]:
    query = (case.batch, case.heads, case.seqlen_q, case.head_dim)
    key = (case.batch, case.kv_heads, case.seqlen_k)
    return query, (*key, case.head_dim), (*key, case.head_dim_v)


#: those on which a right kernel rounds nothing, so that any difference is a bug
EXACT = ("exact", "exact-ties")
#: those of fixed values, which take no standard deviation -> dims that they need for the keys
FIXED: Mapping[str, Callable[[int], int]] = {
    **dict.fromkeys(EXACT, lambda seqlen_k: 2 * bits(seqlen_k)),
    "index-coded": bits,
    "needle": bits,
    "comb": lambda seqlen_k: 1,
}
#: those in which the absence of any one key shows in out, of their cases together
TELLING = ("comb", "needle")
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
    "exact": _exact,
    "exact-ties": _exact_ties,
    "index-coded": _index_coded,
    "comb": _comb,
    "needle": _needle,
}
