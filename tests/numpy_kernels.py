"""A flash kernel in NumPy float32 with the choices that kernels in the wild make, each of them right if it is declared."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from workbench.case.stages import ALGORITHMS
from workbench.case.tiling import tiling
from workbench.floats import round_to

LOG2E = np.float32(np.log2(np.e))
F32 = np.float32
Array = Any


def exp2(x: Array) -> Array:
    """2^x of float32, rounded once."""
    return np.exp2(x.astype(np.float64)).astype(F32)


def product(a: Array, b: Array) -> Array:
    """a @ b in float32."""
    return (a.astype(F32) @ b.astype(F32)).astype(F32)


def accumulated(dtype: str, *, fused: bool, block: int = 1) -> Callable[[Array, Array], Array]:
    """a @ b whose sums are rounded to `dtype` after each block of products, which are rounded too unless `fused`."""

    def multiply(a: Array, b: Array) -> Array:
        a, b = a.astype(np.float64), b.astype(np.float64)
        total = np.zeros((*a.shape[:-1], b.shape[-1]))
        for first in range(0, a.shape[-1], block):
            part = slice(first, first + block)
            added = a[..., part] @ b[..., part, :]
            total = round_to(total + (added if fused else round_to(added, dtype)), dtype)
        return total.astype(F32)

    return multiply


def tf32(x: Array, *, truncated: bool = False) -> Array:
    """x in the 11 significant bits of TF32."""
    x = x.astype(np.float64)
    spacing = 2.0 ** (np.floor(np.log2(np.where(x == 0, 1, abs(x)))) - 10)
    return (np.trunc if truncated else np.round)(x / spacing) * spacing


def on_tf32(terms: int, *, truncated: bool = False) -> Callable[[Array, Array], Array]:
    """a @ b of operands in TF32, or of three products of their high and low parts."""

    def multiply(a: Array, b: Array) -> Array:
        high = [tf32(x, truncated=truncated) for x in (a, b)]
        if terms == 1:
            return (high[0] @ high[1]).astype(F32)
        low = [tf32(x - y, truncated=truncated) for x, y in zip((a, b), high, strict=True)]
        small = (low[0] @ high[1]).astype(F32) + (high[0] @ low[1]).astype(F32)
        return (small + (high[0] @ high[1]).astype(F32)).astype(F32)

    return multiply


def cubic_exp2(x: Array) -> Array:
    """2^x by a polynomial of degree 3 on [0, 1), as FlashAttention-4 has it: off by 8.8e-5."""
    x = np.maximum(x, F32(-127))
    whole = np.floor(x)
    part = (x - whole).astype(F32)
    y = F32(0.07711909)
    for factor in (0.22756439, 0.69514614, 1.0):
        y = (y * part + F32(factor)).astype(F32)
    return np.ldexp(y, whole.astype(int)).astype(F32)


@dataclass(frozen=True)
class Style:
    """The choices; the fields of a contract, and what a contract does not say."""

    block_k: int = 16
    splits: int = 1
    split_bounds: tuple[int, ...] | None = None
    tile_order: Any = "ascending"
    units: str = "natural"  #: of the dumped scores and maxima: natural, log2, raw
    exp_argument: str = "difference"
    row_sum_of_cast: bool = False
    probs_dtype: str = "float32"
    sentinel: float = -np.inf  #: added to hidden scores
    skips: bool = False  #: tiles of which a block of 16 queries sees nothing
    floor: float = -np.inf  #: least argument of exp2
    maximum: Callable[[Array, Array], Array] | None = None  #: of the running maximum and the new one
    normalisation: str = "division"
    exp2: Callable[[Array], Array] = exp2
    qk: Callable[[Array, Array], Array] = product
    pv: Callable[[Array, Array], Array] = product
    acc_dtype: str = "float32"  #: of the running acc
    scale_q: str | None = None  #: the dtype to which q times scale is rounded
    scale_in: str = "scores"  #: or q, k or both, in float32


@np.errstate(all="ignore")
def stages(style: Style, q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> dict[str, Array]:
    """Every stage of the kernel, as it would dump them."""
    group = q.shape[1] // k.shape[1]
    k, v = (np.repeat(x, group, 1) for x in (k, v))
    seqlen_q, seqlen_k = q.shape[2], k.shape[2]
    tiles = tiling(seqlen_k, style.block_k, style.splits, split_bounds=style.split_bounds, tile_order=style.tile_order)
    visible = (
        np.tril(np.ones((seqlen_q, seqlen_k), bool), seqlen_k - seqlen_q)
        if causal
        else np.ones((seqlen_q, seqlen_k), bool)
    )
    scale32 = F32(scale)
    c = F32(scale32 * LOG2E)
    if style.scale_q is not None:
        scaled = round_to(q.astype(np.float64) * np.float64(scale32), style.scale_q).astype(F32)
        raw, c, scale32 = style.qk(scaled, k.swapaxes(-1, -2)), LOG2E, F32(1)
    elif style.scale_in != "scores":
        one, root = F32(1), np.sqrt(scale32)
        of_q, of_k = {"q": (scale32, one), "k": (one, scale32), "both": (root, root)}[style.scale_in]
        raw, c, scale32 = style.qk(q.astype(F32) * of_q, (k.astype(F32) * of_k).swapaxes(-1, -2)), LOG2E, F32(1)
    else:
        raw = style.qk(q, k.swapaxes(-1, -2))
    unit = {"natural": scale32, "log2": c, "raw": F32(1)}[style.units]
    read = raw if style.units == "raw" else raw * unit
    hidden = F32(style.sentinel) + (0 * read if style.sentinel == -np.inf else read)
    scores = np.where(visible, read, hidden).astype(F32)
    fed = np.where(visible, raw, np.where(np.isinf(style.sentinel), F32(-np.inf), hidden / unit)).astype(F32)
    shape = (*q.shape[:3], len(tiles.keys))
    found = {name: np.full(shape, np.nan, F32) for name in ("row_max", "correction", "row_sum")}
    found["acc"] = np.full((*shape, q.shape[3]), np.nan, F32)
    probs, cast = np.full(scores.shape, np.nan, F32), np.full(scores.shape, np.nan, F32)
    states = []
    for split in tiles.splits:
        m, l = np.full(shape[:3], -np.inf, F32), np.zeros(shape[:3], F32)
        acc = np.zeros(q.shape, F32)
        top = np.full(shape[:3], -np.inf, F32)
        for t in split:
            keys = tiles.keys[t]
            top = np.maximum(top, scores[..., keys].max(-1))
            new = top if style.maximum is None else style.maximum(m, top).astype(F32)
            safe = np.where(new == -np.inf, F32(0), new)
            to_log2 = {"natural": LOG2E, "log2": F32(1), "raw": c}[style.units]
            if style.exp_argument == "difference":
                argument = (scores[..., keys] - safe[..., None]) * to_log2
            else:
                max_scaled = (safe * to_log2).astype(F32)
                exact = fed[..., keys].astype(np.float64) * np.float64(c)
                argument = (exact - max_scaled[..., None]).astype(F32)
            argument = np.maximum(argument.astype(F32), F32(style.floor))
            p = style.exp2(argument)
            alpha = np.where(m == -np.inf, F32(0), style.exp2(((m - safe) * to_log2).astype(F32)))
            pc = round_to(p.astype(np.float64), style.probs_dtype).astype(F32)
            new_l = alpha * l + (pc if style.row_sum_of_cast else p).sum(-1, dtype=F32)
            kept = round_to((alpha[..., None] * acc).astype(np.float64), style.acc_dtype)
            added = style.pv(pc, v[:, :, keys])
            new_acc = round_to((kept + added.astype(np.float64)), style.acc_dtype).astype(F32)
            visited = np.ones(seqlen_q, bool)
            if style.skips:
                blocks = np.arange(seqlen_q) // 16
                seen = np.array([visible[blocks == b][:, keys].any() for b in range(blocks[-1] + 1)])
                visited = seen[blocks]
            m, l = np.where(visited, new, m), np.where(visited, new_l, l)
            acc = np.where(visited[:, None], new_acc, acc)
            for name, x in (("row_max", m), ("correction", alpha), ("row_sum", l)):
                found[name][..., t] = np.where(visited, x, np.nan)
            found["acc"][..., t, :] = np.where(visited[:, None], acc, np.nan)
            probs[..., keys], cast[..., keys] = (np.where(visited[:, None], x, np.nan) for x in (p, pc))
            if style.skips:
                scores[..., keys] = np.where(visited[:, None], scores[..., keys], np.nan)
        states.append((m, l, acc))
    to_natural = {"natural": F32(1), "log2": F32(np.log(2)), "raw": scale32}[style.units]
    return found | {"qk": raw, "scores": scores, "probs": probs, "probs_cast": cast} | _ends(style, states, to_natural)


def _ends(style: Style, states: list[tuple[Array, Array, Array]], to_natural: Any) -> dict[str, Array]:
    """out and lse, and partial results and what merges them where there are splits."""
    m, l, acc = (np.stack(x, 2) for x in zip(*states, strict=True))
    if style.normalisation == "lse":
        # every split normalised on its own, merged by weights exp(lse of the split - lse)
        partial = (m * to_natural + np.log(l)).astype(F32)
        largest = partial.max(2)
        lse = (largest + np.log(np.exp(partial - largest[:, :, None]).sum(2, dtype=F32))).astype(F32)
        weight = np.exp(partial - lse[:, :, None]).astype(F32)
        return {"out": (weight[..., None] * (acc / l[..., None])).sum(2, dtype=F32), "lse": lse}
    if len(states) == 1:
        (m, l, acc), more = states[0], {}
    else:
        top = m.max(2)
        safe = np.where(top == -np.inf, F32(0), top)
        difference = (m - safe[:, :, None]) * to_natural
        weight = np.where(m == -np.inf, F32(0), np.exp(difference)).astype(F32)
        more = {"partial_max": m, "partial_sum": l, "partial_O": acc, "merge_max": top, "merge_weight": weight}
        l = more["merge_sum"] = (weight * l).sum(2, dtype=F32)
        m, acc = top, (weight[..., None] * acc).sum(2, dtype=F32)
    out = np.where(l[..., None] == 0, F32(0), acc / l[..., None])
    lse = np.where(l == 0, F32(-np.inf), m * to_natural + np.log(l))
    return more | {"out": out.astype(F32), "lse": lse.astype(F32)}


def kernel(
    style: Style, contract: Mapping[str, Any], names: tuple[str, ...] | None = None
) -> Callable[..., dict[str, Any]]:
    """A foreign kernel of this style that declares `contract`, and dumps the stages `names`, all of them where None."""
    algorithm = "flash" if style.splits == 1 and style.split_bounds is None else "split_k"

    def attention(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> dict[str, Any]:
        made = stages(style, q, k, v, scale=scale, causal=causal)
        kept = {name: x for name, x in made.items() if (name in names if names else name in ALGORITHMS[algorithm])}
        if q.dtype != np.float32 and "out" in kept:
            kept["out"] = kept["out"].astype(q.dtype)
        return kept | {"contract": dict(contract)}

    return attention
