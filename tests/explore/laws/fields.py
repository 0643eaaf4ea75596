"""A right kernel in NumPy that takes all that a case may have, and what goes wrong in one.

One sequence after the other, from boxes with lengths, packed, or from pages.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

F32 = np.float32
Array = np.ndarray
#: what goes wrong -> the laws that it must break, among others
WRONG: Mapping[str, tuple[str, ...]] = {
    "sink of the next head": ("heads-alone",),
    "ALiBi from the first key on": ("rows-alone",),
    "slope of the next head": ("heads-alone",),
    "mask_mod of head 0": ("heads-alone",),
    "score_mod of head 0": ("heads-alone",),
    "keys of the next sequence": ("batches-alone", "other-sequences-beside-it"),
    "diagonal of the longest": ("batches-alone", "other-sequences-beside-it"),
    "pages in order": ("pages-in-another-order",),
    "last page read whole": ("memory-of-no-sequence",),
    "v as wide as k": ("heads-alone", "exact-inputs"),
}


def boxes(wrong: str = "") -> Callable[..., Any]:
    """A kernel on boxes, of which rows and keys behind the lengths are not there."""

    def kernel(
        q: Array, k: Array, v: Array, *, scale: float, causal: bool, seqlens_q: Array | None = None,
        seqlens_k: Array | None = None, softcap: float | None = None, window_size: Any = None,
        alibi_slopes: Array | None = None, sinks: Array | None = None, dropout_p: float | None = None,
        dropout_mask: Array | None = None, score_mod: Any = None, mask_mod: Any = None, mask: Array | None = None,
        bias: Array | None = None,
    ) -> Any:  # fmt: skip
        batch = len(q)
        of_q = [q.shape[2]] * batch if seqlens_q is None else seqlens_q
        of_k = [k.shape[2]] * batch if seqlens_k is None else seqlens_k
        longest = max(of_k) - max(of_q)
        out = np.zeros((*q.shape[:3], v.shape[3]), q.dtype)
        lse = np.zeros(q.shape[:3], F32)
        for b, (n, m) in enumerate(zip(of_q, of_k, strict=True)):
            masks = {"dropout_mask": dropout_mask, "mask": mask, "bias": bias}
            cut = {name: _whole(x, q, k)[b, :, :n, :m] for name, x in masks.items() if x is not None}
            out[b, :, :n], lse[b, :, :n] = attended(
                q[b, :, :n], k[b, :, :m], v[b, :, :m], b, scale, causal, softcap, window_size, alibi_slopes, sinks,
                dropout_p, score_mod, mask_mod, cut, wrong, longest,
            )  # fmt: skip
        return out, lse

    return kernel


def packed(wrong: str = "") -> Callable[..., Any]:
    """The same on sequences behind each other."""

    def kernel(
        q: Array, k: Array, v: Array, *, scale: float, causal: bool, cu_seqlens_q: Array, cu_seqlens_k: Array,
        max_seqlen_q: int, max_seqlen_k: int, sinks: Array | None = None,
    ) -> Any:  # fmt: skip
        shift = int(wrong == "keys of the next sequence")
        out, lse = np.zeros((*q.shape[:2], v.shape[2]), q.dtype), np.zeros((q.shape[1], len(q)), F32)
        for b, (at, end) in enumerate(zip(cu_seqlens_q, cu_seqlens_q[1:], strict=False)):
            keys = slice(cu_seqlens_k[b] + shift, cu_seqlens_k[b + 1] + shift)
            some = (np.moveaxis(x, 0, 1) for x in (q[at:end], k[keys], v[keys]))
            made, of_sum = attended(
                *some, b, scale, causal, sinks=sinks, wrong=wrong, longest=max_seqlen_k - max_seqlen_q
            )
            out[at:end], lse[:, at:end] = np.moveaxis(made, 0, 1), of_sum
        return out, lse

    return kernel


def pages(wrong: str = "") -> Callable[..., Any]:
    """The same on caches in pages, of which the last of a sequence is filled in part."""

    def kernel(
        q: Array, k: Array, v: Array, *, scale: float, causal: bool, block_table: Array, page_size: int,
        seqlens_k: Array,
    ) -> Any:  # fmt: skip
        out, lse = np.zeros((*q.shape[:3], v.shape[3]), q.dtype), np.zeros(q.shape[:3], F32)
        for b, n in enumerate(seqlens_k):
            own = block_table[b, : -(-n // page_size)]
            own = np.sort(own) if wrong == "pages in order" else own
            n = len(own) * page_size if wrong == "last page read whole" else n
            x, y = (np.moveaxis(one[own].reshape(-1, *one.shape[2:])[:n], 0, 1) for one in (k, v))
            out[b], lse[b] = attended(q[b], x, y, b, scale, causal)
        return out, lse

    return kernel


def attended(
    q: Array, k: Array, v: Array, b: int, scale: float, causal: bool, softcap: float | None = None, window: Any = None,
    slopes: Array | None = None, sinks: Array | None = None, dropout_p: float | None = None, score_mod: Any = None,
    mask_mod: Any = None, masks: Mapping[str, Array] | None = None, wrong: str = "", longest: int = 0,
) -> tuple[Array, Array]:  # fmt: skip
    """out and lse of a sequence: q [h, n, d], k and v [kv heads, m, d]; all around the diagonal that ends at the last
    key.
    """
    masks = masks or {}
    group, (heads, n, _), m = len(q) // len(k), q.shape, k.shape[1]
    q, k, v = (x.astype(F32) for x in (q, np.repeat(k, group, 0), np.repeat(v, group, 0)))
    h, i, j = np.ix_(np.arange(heads), np.arange(n), np.arange(m))
    beyond = j - i - (longest if wrong == "diagonal of the longest" else m - n)
    if wrong == "v as wide as k":
        v = np.resize(v, (heads, m, k.shape[2]))[..., : v.shape[2]]
    scores = q @ np.swapaxes(k, -1, -2) * F32(scale)
    if softcap is not None:
        scores = F32(softcap) * np.tanh(scores / F32(softcap))
    if score_mod is not None:
        of = 0 * h if wrong == "score_mod of head 0" else h
        scores = np.asarray(score_mod(scores, np.full((1, 1, 1), b), of, i, j), F32)
    scores = scores + masks["bias"] if "bias" in masks else scores
    if slopes is not None:
        slopes = np.roll(slopes, -1) if wrong == "slope of the next head" else slopes
        distance = j - i if wrong == "ALiBi from the first key on" else beyond
        scores = scores - slopes[:, None, None] * abs(distance).astype(F32)
    seen = np.ones(scores.shape, bool) if "mask" not in masks else masks["mask"]
    left, right = window or (-1, -1)
    seen = (
        seen
        & ((beyond <= (0 if causal else right)) | (not causal and right == -1))
        & ((beyond >= -left) | (left == -1))
    )
    if mask_mod is not None:
        seen = seen & np.asarray(mask_mod(np.full((1, 1, 1), b), 0 * h if wrong == "mask_mod of head 0" else h, i, j))
    scores = np.where(seen, scores, F32(-np.inf))
    top = scores.max(-1, keepdims=True, initial=-np.inf)
    logits = np.full((heads, 1, 1), -np.inf, F32) if sinks is None else sinks[:, None, None]
    logits = np.roll(logits, -1, 0) if wrong == "sink of the next head" else logits
    top = np.maximum(top, logits)
    safe = np.where(top == -np.inf, F32(0), top)
    probs = np.exp(scores - safe)
    rows = probs.sum(-1, keepdims=True)
    if "dropout_mask" in masks:
        probs = np.where(masks["dropout_mask"], probs / F32(1 - F32(dropout_p)), F32(0))
    total = rows + np.exp(logits - safe)
    with np.errstate(all="ignore"):
        out = np.where(total == 0, 0, probs @ v / total)
        lse = (top + np.log(total))[..., 0]
    return out, np.where(top[..., 0] == -np.inf, -np.inf, lse)


def _whole(x: Array, q: Array, k: Array) -> Array:
    """A mask with all its axes."""
    return np.broadcast_to(x, (*q.shape[:3], k.shape[2]))
