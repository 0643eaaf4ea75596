"""The register of wrong backward passes, and the arithmetic that they share.

Conventions of all: query i sees keys j <= i + keys - queries if causal, and those from i + keys - queries - window_left
to i + keys - queries + window_right (-1: no limit), which the mask does not hide; query head h reads the head
h // (heads // kv_heads) of K and V. P and dS are cast to the dtype of the inputs for products, delta is of out.
"""

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray
Stages = dict[str, Array]
GRADIENTS = ("dq", "dk", "dv")


@dataclass(frozen=True)
class Report:
    """A wrong backward pass, and its right twin."""

    name: str
    source: str  #: tracker and number
    truth: str  #: what is wrong
    stage: str  #: the first stage that is wrong on its own inputs
    shows: str  #: what inputs show it
    case: Mapping[str, Any]  #: of a case of such shapes, as arguments of `diff_operation`; of any distribution
    by_values: bool  #: whether shapes alone do not show it
    function: Callable[..., Stages]

    def kernel(self, *, bug: bool = True, dumps: bool = True) -> Callable[..., Stages | tuple[Array, ...]]:
        """The function of the operation, which returns all its stages, or dq, dk and dv."""

        @functools.wraps(self.function)
        def call(*inputs: Array, **given: Any) -> Stages | tuple[Array, ...]:
            with np.errstate(all="ignore"):
                made = self.function(*inputs, bug=bug, **given)
            return made if dumps else tuple(made[name] for name in GRADIENTS)

        signature = inspect.signature(self.function)
        call.__signature__ = signature.replace(  # type: ignore[attr-defined]
            parameters=[one for name, one in signature.parameters.items() if name != "bug"]
        )
        return call


REPORTS: list[Report] = []


def report(
    source: str, *, truth: str, stage: str, shows: str, case: Mapping[str, Any], by_values: bool = False
) -> Callable[[Callable[..., Stages]], Callable[..., Stages]]:
    """Registers a function whose keyword bug puts what was reported in."""

    def register(function: Callable[..., Stages]) -> Callable[..., Stages]:
        name = function.__name__.replace("_", "-")
        REPORTS.append(Report(name, source, truth, stage, shows, case, by_values, function))
        return function

    return register


class Read(NamedTuple):
    """Inputs in float32, with a head of K and V for each query head, and the dtype that they came in."""

    q: Array
    k: Array
    v: Array
    out: Array
    dout: Array
    dtype: Any
    kv_heads: int


def read(q: Array, k: Array, v: Array, out: Array, dout: Array) -> Read:
    """What a kernel loads."""
    group = q.shape[1] // k.shape[1]
    wide = (x.astype(np.float32) for x in (q, k, v, out, dout))
    q32, k32, v32, out32, dout32 = wide
    return Read(q32, np.repeat(k32, group, 1), np.repeat(v32, group, 1), out32, dout32, q.dtype, k.shape[1])


def visible(
    queries: int, keys: int, causal: bool, window_left: int = -1, window_right: int = -1, mask: Array | None = None
) -> Array:
    """Which keys each query sees, bool [queries, keys], or [batch, heads, queries, keys] with a mask."""
    at, column = np.arange(queries)[:, None] + keys - queries, np.arange(keys)
    seen = np.ones((queries, keys), bool)
    if causal:
        seen &= column <= at
    if window_left >= 0:
        seen &= column >= at - window_left
    if window_right >= 0:
        seen &= column <= at + window_right
    return seen if mask is None else seen & mask


def dot(a: Array, b: Array) -> Array:
    """a @ b^T."""
    return a @ b.swapaxes(-1, -2)


def tiles(n: int, size: int) -> Iterator[slice]:
    """Slices of at most size elements that cover n."""
    return (slice(t, min(t + size, n)) for t in range(0, n, size))


def recomputed(scores: Array, lse: Array, seen: Array) -> Array:
    """P of scores and lse, 0 where a key is hidden."""
    known = np.where(np.isfinite(lse), lse, np.float32(0))[..., None]
    return np.where(seen, np.exp(scores - known), np.float32(0))


def through(of: Read, scale: float, probs: Array, delta: Array | None = None) -> Stages:
    """From P on: dP, delta, dS, and gradients of whole sums."""
    dprobs = dot(of.dout, of.v)
    delta = (of.dout * of.out).sum(-1) if delta is None else delta
    dscores = probs * (dprobs - delta[..., None])
    stored, weights = (x.astype(of.dtype).astype(np.float32) for x in (dscores, probs))
    dq = stored @ of.k * np.float32(scale)
    dk = grouped(of, dot(stored.swapaxes(-1, -2), of.q.swapaxes(-1, -2))) * np.float32(scale)
    dv = grouped(of, dot(weights.swapaxes(-1, -2), of.dout.swapaxes(-1, -2)))
    made = {"probs": probs, "dprobs": dprobs, "delta": delta, "dscores": dscores}
    return made | {name: x.astype(of.dtype) for name, x in zip(GRADIENTS, (dq, dk, dv), strict=True)}


def grouped(of: Read, x: Array) -> Array:
    """The sum over the query heads of a group."""
    return x.reshape(x.shape[0], of.kv_heads, -1, *x.shape[2:]).sum(2)


def whole(of: Read, lse: Array, seen: Array, scale: float, delta: Array | None = None) -> Stages:
    """All stages of a right pass."""
    qk = dot(of.q, of.k)
    scores = qk * np.float32(scale)
    return {"qk": qk, "scores": scores, **through(of, scale, recomputed(scores, lse, seen), delta)}
