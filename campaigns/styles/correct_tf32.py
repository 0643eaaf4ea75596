"""Correct kernels of group arithmetic that multiply float32 on tensor cores: operands have 10 explicit bits."""

from collections.abc import Callable

import numpy as np

from campaigns.styles import pieces
from campaigns.styles.pieces import F32, LOG2E, Weigh
from campaigns.styles.style import IEEE, Array, Stages, Style

Matmul = Callable[[Array, Array], Array]


def rounded_to_tf32(x: Array) -> Array:
    """x to nearest of 10 explicit bits, ties away from zero, as cvt.rna.tf32 rounds."""
    return ((np.ascontiguousarray(x).view(np.uint32) + np.uint32(0x1000)) & np.uint32(0xFFFFE000)).view(F32)


def cut_to_tf32(x: Array) -> Array:
    """x with its lowest 13 bits ignored, as tensor cores read a float32 that nobody rounded."""
    return (np.ascontiguousarray(x).view(np.uint32) & np.uint32(0xFFFFE000)).view(F32)


def _once(a: Array, b: Array) -> Array:
    return np.matmul(rounded_to_tf32(a), rounded_to_tf32(b))


def _cut(a: Array, b: Array) -> Array:
    return np.matmul(cut_to_tf32(a), cut_to_tf32(b))


def _thrice(a: Array, b: Array) -> Array:
    """The three largest of the four products of heads and tails, the small ones first."""
    a_head, b_head = rounded_to_tf32(a), rounded_to_tf32(b)
    a_tail, b_tail = rounded_to_tf32(a - a_head), rounded_to_tf32(b - b_head)
    return np.matmul(a_tail, b_head) + np.matmul(a_head, b_tail) + np.matmul(a_head, b_head)


def _flash(
    q: Array, k: Array, v: Array, scale: np.floating, causal: bool, block: int, matmul: Matmul, weigh: Weigh
) -> tuple[Stages, Array, Array]:
    """Stages of an online softmax whose two products are `matmul`; its last maximum and sum."""
    q32, k32, v32 = pieces.widened(q, k, v)
    qk = matmul(q32, np.swapaxes(k32, -1, -2))
    x = pieces.masked(qk * scale, pieces.visible(q, k, causal))
    m = np.full(q.shape[:3], -np.inf, F32)
    l, o = np.zeros_like(m), np.zeros(q.shape[:3] + v.shape[3:], F32)
    maxima, sums, accs, probs = [], [], [], np.zeros_like(x)
    for _, lo, hi in pieces.tiles(k.shape[2], block):
        above = np.maximum(m, x[..., lo:hi].max(-1))
        scaled = weigh(m, above)
        probs[..., lo:hi] = weigh(x[..., lo:hi], above[..., None])
        l = l * scaled + probs[..., lo:hi].sum(-1)
        o = o * scaled[..., None] + matmul(probs[..., lo:hi], v32[:, :, lo:hi])
        m = above
        maxima.append(m)
        sums.append(l)
        accs.append(o)
    running = {"row_max": np.stack(maxima, -1), "row_sum": np.stack(sums, -1), "acc": np.stack(accs, -2)}
    out = o / np.where(l == 0, F32(1), l)[..., None]
    return {"qk": qk, "scores": x, "probs": probs, **running, "out": out}, m, l


def tf32(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """Operands of both products rounded to TF32; tiles of 64."""
    stages, m, l = _flash(q, k, v, F32(scale), causal, 64, _once, pieces.by_exp)
    return {**stages, "lse": pieces.lse_of(m, l)}


def tf32_cut(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """Operands of both products cut off to TF32, twice the error; tiles of 32, base 2."""
    stages, m, l = _flash(q, k, v, F32(scale) * LOG2E, causal, 32, _cut, pieces.by_exp2)
    return {**stages, "lse": pieces.lse_of_base2(m, l)}


def tf32_lean(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """TF32 in tiles of 128; dumps the scores alone."""
    stages, m, l = _flash(q, k, v, F32(scale), causal, 128, _once, pieces.by_exp)
    return {"scores": stages["scores"], "out": stages["out"], "lse": pieces.lse_of(m, l)}


def tf32x3(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """Each product as three of TF32, which is as good as float32; tiles of 64."""
    stages, m, l = _flash(q, k, v, F32(scale), causal, 64, _thrice, pieces.by_exp)
    return {**stages, "lse": pieces.lse_of(m, l)}


def tf32x3_base2(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """The same in tiles of 16 and base 2."""
    stages, m, l = _flash(q, k, v, F32(scale) * LOG2E, causal, 16, _thrice, pieces.by_exp2)
    return {**stages, "lse": pieces.lse_of_base2(m, l)}


def _style(function: Callable[..., Stages], units: dict, precision: str, why: str) -> Style:
    fields = {**IEEE, "input_precision": precision}
    return Style(function, "arithmetic", ("float32",), units, fields, why, explained_by=("input_precision",))


STYLES = (
    _style(tf32, {"block_k": 64}, "tf32", "Triton's tl.dot of float32 by default, operands rounded with cvt.rna."),
    _style(
        tf32_cut,
        {"block_k": 32, "base2": True},
        "tf32",
        "Tensor cores that are fed float32 as it lies in shared memory (wgmma on Hopper) cut operands off.",
    ),
    _style(tf32_lean, {"block_k": 128}, "tf32", "torch.backends.cuda.matmul.allow_tf32 in an eager float32 attention."),
    _style(tf32x3, {"block_k": 64}, "tf32x3", "Triton's input_precision='tf32x3' and CUTLASS's 3xTF32."),
    _style(
        tf32x3_base2, {"block_k": 16, "base2": True}, "tf32x3", "xformers' CUTLASS attention in OpMultiplyAddFastF32."
    ),
)
