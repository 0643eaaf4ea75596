"""A right kernel in NumPy, and one for each law that breaks it."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

F32 = np.float32
Array = np.ndarray


def attention(
    q: Array,
    k: Array,
    v: Array,
    *,
    scale: float,
    causal: bool,
    hidden: float = -np.inf,
    floor: float = 0.0,
) -> dict[str, Array]:
    """out and lse in float32, the mask from the first key on; `hidden` and `floor` are what goes wrong."""
    group = q.shape[1] // k.shape[1]
    k, v = np.repeat(k, group, 1), np.repeat(v, group, 1)
    scores = q @ np.swapaxes(k, -1, -2) * F32(scale)
    if causal:
        scores = np.where(np.tri(*scores.shape[-2:], dtype=bool), scores, F32(hidden))
    row_max = scores.max(-1, keepdims=True)
    probs = np.exp(scores - row_max) + F32(floor)
    row_sum = probs.sum(-1, keepdims=True)
    return {"out": probs @ v / row_sum, "lse": (row_max + np.log(row_sum))[..., 0]}


def changed(change: Callable[[Array, Array, Array], tuple[Array, Array, Array]]) -> Callable[..., Any]:
    """The kernel on inputs that it changes first."""

    def kernel(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Any:
        return attention(*change(q, k, v), scale=scale, causal=causal)

    return kernel


def ends(change: Callable[[Array, Array], tuple[Array, Array]]) -> Callable[..., Any]:
    """The kernel whose out and lse are changed at the end."""

    def kernel(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Any:
        found = attention(q, k, v, scale=scale, causal=causal)
        return change(found["out"], found["lse"])

    return kernel


def with_(**wrong: Any) -> Callable[..., Any]:
    """The kernel with one of the keywords that go wrong."""

    def kernel(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Any:
        return attention(q, k, v, scale=scale, causal=causal, **wrong)

    return kernel


def _state() -> Callable[..., Any]:
    """A kernel that keeps what it made of inputs of a shape, by the shape."""
    kept: dict[Any, Any] = {}

    def kernel(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Any:
        found = attention(q, k, v, scale=scale, causal=causal)
        lse = found["lse"] if q.shape not in kept else kept[q.shape]
        kept[q.shape] = found["lse"]
        return found["out"], lse

    return kernel


def _in_place(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Any:
    q *= F32(scale)
    return attention(q, k, v, scale=1.0, causal=causal)


def _reads_behind(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Any:
    """Multiplies what lies behind V, where something does, by a weight of 0."""
    room: Any = v
    while room.base is not None:
        room = room.base
    found = attention(q, k, v, scale=scale, causal=causal)
    return found["out"] + F32(0) * (room.ravel()[-1] if room.size > v.size else F32(0)), found["lse"]


def _crowded(q: Array, k: Array, v: Array) -> tuple[Array, Array, Array]:
    """Sequences from the fourth on read the keys of the one two before."""
    return q, np.concatenate([k[:3], k[1:-2]]) if len(k) > 3 else k, v


def _grid(x: Array, digits: int) -> Array:
    return np.floor(x * F32(2**digits)) / F32(2**digits)


#: law -> a kernel that breaks it
BREAKERS: Mapping[str, Callable[..., Any]] = {
    "v-times-power-of-two": ends(lambda out, lse: (_grid(out, 16), lse)),
    "v-negated": ends(lambda out, lse: (_grid(out, 16), lse)),
    "columns-of-v-permuted": ends(lambda out, lse: (out + F32(1e-3) * (np.arange(out.shape[-1]) == 1), lse)),
    "q-and-k-times-power-of-two": changed(lambda q, k, v: (np.round(q * 1024) / F32(1024), k, v)),
    "scale-times-power-of-two": lambda q, k, v, *, scale, causal: attention(q, k, v, scale=0.25, causal=causal),
    "runs-repeat": _state(),
    "inputs-are-kept": _in_place,
    "heads-alone": changed(lambda q, k, v: (q, np.repeat(k[:, :1], k.shape[1], 1), v)),
    "batches-alone": changed(lambda q, k, v: (q, k, np.repeat(v[:1], len(v), 0))),
    "place-in-batch": changed(_crowded),
    "rows-alone": changed(lambda q, k, v: (np.roll(q, 1, 2), k, v)),
    "hidden-keys-changed": with_(hidden=-20.0),
    "keys-appended": with_(hidden=-8.0),
    "nan-behind-the-inputs": _reads_behind,
    "exact-inputs": with_(floor=1e-5),
}


def partials(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> dict[str, Any]:
    """Two splits of 16 keys, merged."""
    scores = q @ np.swapaxes(k, -1, -2) * F32(scale)
    m, l, o = [], [], []
    for keys in (slice(0, 16), slice(16, None)):
        some = scores[..., keys]
        m.append(some.max(-1))
        p = np.exp(some - m[-1][..., None])
        l.append(p.sum(-1))
        o.append(p @ v[:, :, keys])
    stages = {"partial_O": np.stack(o, 2), "partial_max": np.stack(m, 2), "partial_sum": np.stack(l, 2)}
    merged = merge(**stages, scale=scale, causal=causal)
    return {**stages, **merged, "contract": {"block_k": 16, "splits": 2, "partials_dtype": "float32"}}


def merge(
    partial_O: Array, partial_max: Array, partial_sum: Array, *, scale: float, causal: bool, wrong: str = ""
) -> dict[str, Array]:
    """out and lse of partial results; `wrong` is a law that it breaks."""
    m = partial_max.max(2, keepdims=True)
    w = np.exp(partial_max - (m if wrong != "partial-maxima-moved" else F32(0)))
    w = w * partial_sum if wrong == "partials-doubled" else w
    l = (w * partial_sum).sum(2)
    return {"out": (w[..., None] * partial_O).sum(2) / l[..., None], "lse": m[:, :, 0] + np.log(l)}
