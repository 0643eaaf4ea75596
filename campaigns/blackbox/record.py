"""The register of wrong functions, and the arithmetic that they share.

Conventions of all functions: query i sees keys j <= i + Sk - Sq if causal, and i + Sk - Sq - left <= j <= i + Sk - Sq
+ right within a window (-1: no limit); scores are c * tanh(q.k * scale / c) with a softcap c; ALiBi adds
-slope * |i + Sk - Sq - j|; a sink adds exp(sink) to the row sum, so that lse holds it; query head h reads the head
h // (heads // kv_heads) of K and V. Rows without keys have out 0 and lse -inf. 16-bit inputs: P is cast before P @ V.
"""

import functools
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray
Pair = tuple[np.ndarray, np.ndarray]
Partial = tuple[np.ndarray, np.ndarray, np.ndarray]

LOG2E = 1.4426950408889634
LN2 = 0.6931471805599453


@dataclass(frozen=True)
class Box:
    """A wrong function, its right twin, the case that shows the fault, and what the fault is."""

    name: str
    function: Callable[..., Pair]
    options: dict[str, Any]
    faults: int
    truth: str
    source: str
    wrong: Callable[..., Pair]
    right: Callable[..., Pair]


BOXES: list[Box] = []


def case(
    seqlen_q: int,
    seqlen_k: int,
    dtype: str,
    *,
    heads: int = 2,
    kv_heads: int | None = None,
    batch: int = 1,
    head_dim: int = 64,
    causal: bool = False,
    **extras: Any,
) -> dict[str, Any]:
    """Options of a case; extras: head_dim_v, window_size, softcap, alibi_slopes, sinks."""
    options = {"seqlen_q": seqlen_q, "seqlen_k": seqlen_k, "dtype": dtype, "heads": heads}
    return options | {"kv_heads": kv_heads or heads, "batch": batch, "head_dim": head_dim, "causal": causal} | extras


def _bound(function: Callable[..., Pair], bug: bool) -> Callable[..., Pair]:
    """The function with bug bound, and without it in the signature."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Pair:
        with np.errstate(all="ignore"):
            return function(*args, bug=bug, **kwargs)

    signature = inspect.signature(function)
    call.__signature__ = signature.replace(parameters=[p for n, p in signature.parameters.items() if n != "bug"])
    return call


def wrong(options: dict[str, Any], *, truth: str, source: str, faults: int = 1) -> Callable:
    """Registers a function whose keyword bug puts its faults in."""

    def register(function: Callable[..., Pair]) -> Callable[..., Pair]:
        pair = _bound(function, True), _bound(function, False)
        BOXES.append(Box(function.__name__, function, options, faults, truth, source, *pair))
        return function

    return register


def cdiv(a: int, b: int) -> int:
    """a / b, rounded up."""
    return -(-a // b)


def tiles(n: int, size: int) -> Iterator[slice]:
    """Slices of at most size elements that cover n."""
    return (slice(t, min(t + size, n)) for t in range(0, n, size))


def rounded(x: Array, dtype: Any) -> Array:
    """x rounded to a dtype, in float32."""
    return x.astype(dtype).astype(np.float32)


def spread(q: Array, k: Array, v: Array) -> tuple[Array, Array, Array]:
    """q, k and v in float32, with a head of k and v for each query head."""
    group = q.shape[1] // k.shape[1]
    return q.astype(np.float32), *(np.repeat(x.astype(np.float32), group, axis=1) for x in (k, v))


def dot(q: Array, k: Array) -> Array:
    """q @ k^T."""
    return q @ np.swapaxes(k, -1, -2)


def grid(q: Array, k: Array) -> tuple[Array, Array]:
    """Positions of queries (a column, aligned to the bottom right) and of keys (a row)."""
    sq, sk = q.shape[2], k.shape[2]
    return np.arange(sk - sq, sk)[:, None], np.arange(sk)[None]


def visible(i: Array, j: Array, causal: bool, window: tuple[int, int] = (-1, -1)) -> Array:
    """Which keys at positions j the queries at positions i see."""
    seen = np.ones(np.broadcast_shapes(i.shape, j.shape), bool)
    if causal:
        seen &= j <= i
    if window[0] >= 0:
        seen &= j >= i - window[0]
    if window[1] >= 0:
        seen &= j <= i + window[1]
    return seen


def masked(s: Array, seen: Array) -> Array:
    """s, and -inf where a key is not seen."""
    return np.where(seen, s, np.float32(-np.inf))


def scores(q: Array, k: Array, scale: float, causal: bool) -> Array:
    """Scaled scores with the causal mask, of spread q and k."""
    return masked(dot(q, k) * scale, visible(*grid(q, k), causal))


def top(s: Array) -> Array:
    """The maximum of each row, -inf of an empty one."""
    return s.max(-1, keepdims=True, initial=-np.inf)


def safe(m: Array) -> Array:
    """m, and 0 where it is -inf."""
    return np.where(m == -np.inf, np.float32(0), m)


def start(q: Array, v: Array) -> Partial:
    """Maximum, sum and accumulator before the first tile."""
    den = np.zeros((*q.shape[:3], 1), np.float32)
    return den - np.float32(np.inf), den, np.zeros((*q.shape[:3], v.shape[3]), np.float32)


def finish(m: Array, den: Array, acc: Array, dtype: Any) -> Pair:
    """out and lse of a maximum, a sum and an accumulator."""
    empty = den == 0
    out = np.where(empty, 0, acc / np.where(empty, 1, den))
    lse = np.where(empty, -np.inf, m + np.log(np.where(empty, 1, den)))
    return out.astype(dtype), lse[..., 0].astype(np.float32)


def chunk(s: Array, v: Array, dtype: Any) -> Partial:
    """Maximum, sum and accumulator of one chunk of keys."""
    m = top(s)
    p = np.exp(s - safe(m))
    return m, p.sum(-1, keepdims=True), rounded(p, dtype) @ v


def step(state: Partial, s: Array, v: Array, dtype: Any) -> Partial:
    """One step of an online softmax."""
    m, den, acc = state
    new = np.maximum(m, top(s))
    p, alpha = np.exp(s - safe(new)), np.exp(m - safe(new))
    return new, den * alpha + p.sum(-1, keepdims=True), acc * alpha + rounded(p, dtype) @ v


def eager(s: Array, v: Array, dtype: Any) -> Pair:
    """Softmax of whole rows, and P @ V."""
    return finish(*chunk(s, v, dtype), dtype)


def online(s: Array, v: Array, dtype: Any, tile: int) -> Pair:
    """Softmax and P @ V over tiles of keys."""
    state = start(s, v)
    for t in tiles(s.shape[-1], tile):
        state = step(state, s[..., t], v[:, :, t], dtype)
    return finish(*state, dtype)


def merge(parts: list[Partial], dtype: Any) -> Pair:
    """out and lse of partial maxima, sums and accumulators."""
    ms, dens, accs = (np.stack(x) for x in zip(*parts, strict=True))
    m = ms.max(0)
    w = np.exp(ms - safe(m))
    return finish(m, (w * dens).sum(0), (w * accs).sum(0), dtype)


def states(parts: list[Partial]) -> tuple[Array, Array]:
    """Normalised partial outputs and their lse, of a stack of chunks."""
    pairs = [finish(*part, np.float32) for part in parts]
    return np.stack([o for o, _ in pairs]), np.stack([e for _, e in pairs])[..., None]


def join(pairs: list[Pair]) -> Pair:
    """out and lse of tiles of queries, one after the other."""
    outs, lses = zip(*pairs, strict=True)
    return np.concatenate(outs, 2), np.concatenate(lses, 2)


def pad(x: Array, axis: int, multiple: int, value: float = 0.0) -> Array:
    """x, filled up along an axis to a multiple."""
    widths = [(0, 0)] * x.ndim
    widths[axis] = (0, -x.shape[axis] % multiple)
    return np.pad(x, widths, constant_values=value)


def pack(q: Array, kv_heads: int) -> Array:
    """Query heads of a group as rows of their head of K: row i * group + g."""
    b, h, sq, d = q.shape
    return q.reshape(b, kv_heads, h // kv_heads, sq, d).swapaxes(2, 3).reshape(b, kv_heads, -1, d)


def unpack(pair: Pair, heads: int) -> Pair:
    """out and lse of packed rows, by query heads."""
    b, kv_heads, rows = pair[1].shape
    group = heads // kv_heads
    shape = (b, kv_heads, rows // group, group)
    out = pair[0].reshape(*shape, -1).swapaxes(2, 3).reshape(b, heads, rows // group, -1)
    return out, pair[1].reshape(shape).swapaxes(2, 3).reshape(b, heads, -1)


def read(x: Array, index: Array) -> Array:
    """Elements of x at flat offsets, in float32; offsets past the end wrap round."""
    return x.reshape(-1)[index % x.size].astype(np.float32)
