"""Right attention functions of each model in three styles, each computed in another way, and attention in float64.

A style is how a function is told what is hidden: `eager`, a mask of finfo.min that is added; `boolean`, a mask of
bools; `is_causal`, no mask: the function reads causal from the module and the window from its arguments.
A row that sees no key is the mean of all values where the mask is finite and there are no sinks, and 0 elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

LOG2E = 1.4426950408889634
Attention = Callable[..., tuple[torch.Tensor, torch.Tensor | None]]
Compute = Callable[["Call"], tuple[torch.Tensor, torch.Tensor | None]]


@dataclass(frozen=True)
class Call:
    """What a call asks. q, k and v are float32 here, `added` [batch, 1, row, key] is the mask as numbers.

    k and v have their own heads; `keys` and `values` have one for each head of q.
    """

    module: Any
    style: str
    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    added: torch.Tensor
    scale: float
    softcap: float | None
    sinks: torch.Tensor | None
    bias: torch.Tensor | None
    window: int | None

    @property
    def group(self) -> int:
        return self.q.shape[1] // self.k.shape[1]

    @property
    def rows(self) -> int:
        return self.q.shape[2]

    @property
    def keys_count(self) -> int:
        return self.k.shape[2]

    @property
    def keys(self) -> torch.Tensor:
        return self.k.repeat_interleave(self.group, 1)

    @property
    def values(self) -> torch.Tensor:
        return self.v.repeat_interleave(self.group, 1)

    def capped(self, scores: torch.Tensor) -> torch.Tensor:
        return scores if self.softcap is None else torch.tanh(scores / self.softcap) * self.softcap

    def biased(self, scores: torch.Tensor) -> torch.Tensor:
        return scores if self.bias is None else scores + self.bias

    def scores(self) -> torch.Tensor:
        """Scores with all that is done to them: scale, softcap, position bias, mask."""
        return self.biased(self.capped(self.q @ self.keys.mT * self.scale)) + self.added

    def probs(self, scores: torch.Tensor) -> torch.Tensor:
        """Softmax with the sinks, 0 in rows that see nothing."""
        row_max = scores.amax(-1, keepdim=True)
        if self.sinks is not None:
            row_max = torch.maximum(row_max, self.sinks.view(1, -1, 1, 1))
        row_max = row_max.masked_fill(row_max == -torch.inf, 0.0)
        weights = torch.exp(scores - row_max)
        row_sum = weights.sum(-1, keepdim=True)
        if self.sinks is not None:
            row_sum = row_sum + torch.exp(self.sinks.view(1, -1, 1, 1) - row_max)
        return weights / row_sum.masked_fill(row_sum == 0, 1.0)

    def given(self, out: torch.Tensor, probs: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Out [batch, head, row, dim] and probs as a model takes them: [batch, row, head, dim], in the dtype of v."""
        stored = out.to(self.query.dtype).transpose(1, 2).contiguous()
        return stored, None if probs is None else probs.to(self.query.dtype)


def sees(rows: int, keys: int, causal: bool, window: int | None) -> torch.Tensor:
    """Which keys a row sees [row, key], the last row being that of the last key."""
    row = torch.arange(rows)[:, None] + (keys - rows)
    key = torch.arange(keys)[None]
    seen = (key <= row) if causal else torch.ones(rows, keys, dtype=torch.bool)
    return seen if window is None or not causal else seen & (key > row - window)


def mask_of(
    style: str, module: torch.nn.Module, query: torch.Tensor, key: torch.Tensor, mask: Any, window: int | None
) -> torch.Tensor:
    """The mask of a call as float32 numbers to add."""
    rows, keys = query.shape[2], key.shape[2]
    if mask is None:
        causal = style == "is_causal" and bool(getattr(module, "is_causal", False))
        seen = sees(rows, keys, causal, window)[None, None]
    elif mask.dtype == torch.bool:
        seen = mask[..., :keys]
    else:
        return mask[..., :keys].float()
    return torch.zeros(seen.shape).masked_fill(~seen, -torch.inf)


def read(
    style: str,
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None,
    kwargs: dict[str, Any],
) -> Call:
    """What the arguments of a registered function ask."""
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    sinks, bias, window = kwargs.get("s_aux"), kwargs.get("position_bias"), kwargs.get("sliding_window")
    return Call(
        module, style, query, key, value, query.float(), key.float(), value.float(),
        mask_of(style, module, query, key, attention_mask, window), scale, kwargs.get("softcap"),
        None if sinks is None else sinks.float(), None if bias is None else bias.float(), window,
    )  # fmt: skip


def attention_of(compute: Compute) -> Callable[[str], Attention]:
    """A factory, style -> function, of a computation that a call is handed to."""

    def factory(style: str) -> Attention:
        def attention(
            module: torch.nn.Module,
            query: torch.Tensor,
            key: torch.Tensor,
            value: torch.Tensor,
            attention_mask: torch.Tensor | None,
            scaling: float | None = None,
            dropout: float = 0.0,
            **kwargs: Any,
        ) -> tuple[torch.Tensor, torch.Tensor | None]:
            return compute(read(style, module, query, key, value, attention_mask, scaling, kwargs))

        return attention

    return factory


def plain(call: Call) -> tuple[torch.Tensor, torch.Tensor | None]:
    """All scores at once, in float32."""
    probs = call.probs(call.scores())
    return call.given(probs @ call.values, probs)


def grouped(call: Call) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Heads of a group beside each other, k and v as they are."""
    batch, heads, rows, dim = call.q.shape
    q = call.q.view(batch, heads // call.group, call.group, rows, dim)
    scores = torch.einsum("bgnrd,bgkd->bgnrk", q * call.scale, call.k).flatten(1, 2)
    probs = call.probs(call.biased(call.capped(scores)) + call.added)
    out = torch.einsum("bgnrk,bgkd->bgnrd", probs.unflatten(1, (-1, call.group)), call.v)
    return call.given(out.flatten(1, 2), None)


def tiled(call: Call, block: int = 8, base2: bool = False) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Keys in tiles with a running maximum; with base2 by exp2, log2(e) folded into the scores."""
    factor, exp = (LOG2E, torch.exp2) if base2 else (1.0, torch.exp)
    scores = call.scores() * factor if base2 else call.scores()
    scores = scores.clamp(min=torch.finfo(torch.float32).min) if call.style == "eager" else scores
    shape = (*call.q.shape[:3], 1)
    row_max, row_sum = torch.full(shape, -torch.inf), torch.zeros(shape)
    if call.sinks is not None:
        row_max = (call.sinks * factor).view(1, -1, 1, 1).expand(shape).clone()
        row_sum = torch.ones(shape)
    acc = torch.zeros(*call.q.shape[:3], call.v.shape[-1])
    values = call.values
    for start in range(0, call.keys_count, block):
        tile = scores[..., start : start + block]
        raised = torch.maximum(row_max, tile.amax(-1, keepdim=True))
        safe = raised.masked_fill(raised == -torch.inf, 0.0)
        correction, weights = exp(row_max - safe), exp(tile - safe)
        row_sum = row_sum * correction + weights.sum(-1, keepdim=True)
        acc = acc * correction + weights @ values[..., start : start + block, :]
        row_max = raised
    return call.given(acc / row_sum.masked_fill(row_sum == 0, 1.0))


def exp2(call: Call) -> tuple[torch.Tensor, torch.Tensor | None]:
    return tiled(call, 16, base2=True)


def split(call: Call, splits: int = 3) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Keys in splits, each with its own maximum, merged in the end."""
    scores, values = call.scores(), call.values
    size = -(-call.keys_count // splits)
    tops, sums, outs = [], [], []
    for start in range(0, call.keys_count, size):
        part = scores[..., start : start + size]
        top = part.amax(-1, keepdim=True)
        weights = torch.exp(part - top.masked_fill(top == -torch.inf, 0.0))
        tops.append(top)
        sums.append(weights.sum(-1, keepdim=True))
        outs.append(weights @ values[..., start : start + size, :])
    if call.sinks is not None:
        tops.append(call.sinks.view(1, -1, 1, 1).expand_as(tops[0]))
        sums.append(torch.ones_like(sums[0]))
        outs.append(torch.zeros_like(outs[0]))
    top = torch.stack(tops).amax(0)
    top = top.masked_fill(top == -torch.inf, 0.0)
    factors = [torch.exp(t - top) for t in tops]
    total = sum((f * s for f, s in zip(factors, sums, strict=True)), torch.zeros_like(top))
    acc = sum((f * o for f, o in zip(factors, outs, strict=True)), torch.zeros_like(outs[0]))
    return call.given(acc / total.masked_fill(total == 0, 1.0))


def narrow(call: Call) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Scores and probs in the dtype of the model, softmax in float32, as eager functions in 16 bits have them."""
    dtype = call.query.dtype
    heads = (call.query, call.key.repeat_interleave(call.group, 1), call.value.repeat_interleave(call.group, 1))
    scores = heads[0] @ heads[1].mT * call.scale
    scores = call.capped(scores) if call.bias is None else call.capped(scores) + call.bias.to(dtype)
    probs = call.probs((scores + call.added.to(dtype)).float()).to(dtype)
    return call.given(probs @ heads[2], probs)


def fused(call: Call) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Calls torch's scaled_dot_product_attention with an additive float mask."""
    added = call.added if call.bias is None else call.added + call.bias
    hidden = (added == -torch.inf).all(-1, keepdim=True)
    out = F.scaled_dot_product_attention(
        call.query, call.key.repeat_interleave(call.group, 1), call.value.repeat_interleave(call.group, 1),
        attn_mask=added.masked_fill(hidden, 0.0).to(call.query.dtype), scale=call.scale,
    )  # fmt: skip
    return call.given(out.float().masked_fill(hidden, 0.0))


COMPUTED: dict[str, Compute] = {
    "llama": plain,
    "gemma2": grouped,
    "gpt_oss": tiled,
    "t5": split,
    "bert": narrow,
    "mistral": tiled,
    "qwen3": exp2,
    "gpt2": fused,
}
EVERY: dict[str, Compute] = {
    "plain": plain, "grouped": grouped, "tiled": tiled, "exp2": exp2, "split": split, "narrow": narrow, "fused": fused,
}  # fmt: skip


def variants(model: str) -> dict[str, Compute]:
    """All computations that are right for a model: sdpa knows neither a softcap nor sinks."""
    return {name: compute for name, compute in EVERY.items() if name != "fused" or model not in ("gemma2", "gpt_oss")}


RIGHT: dict[str, Callable[[str], Attention]] = {name: attention_of(compute) for name, compute in COMPUTED.items()}


def right(model: str, style: str) -> Attention:
    """The right function of a model in a style."""
    return RIGHT[model](style)


def exact(call: Call) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Out [batch, row, head, dim] in float64, the most that a right function can differ by in the call's dtype, probs.

    The bound takes scores, softcap, bias and mask, probs and out stored in the dtype after each operation (a function
    that is eager in 16 bits does that), sums in float32, and their order as it may be.
    """
    q, k, v = call.query.double(), call.key.double(), call.value.double()
    k, v = k.repeat_interleave(call.group, 1), v.repeat_interleave(call.group, 1)
    qk = q @ k.mT * call.scale
    unit, single = torch.finfo(call.query.dtype).eps / 2, torch.finfo(torch.float32).eps / 2
    off = 2 * unit * qk.abs() + (q.shape[-1] + 4) * single * (q.abs() @ k.abs().mT) * abs(call.scale)
    scores = qk
    if call.softcap is not None:
        scores = torch.tanh(scores / call.softcap) * call.softcap
        off = off + 3 * unit * scores.abs()
    if call.bias is not None:
        scores = scores + call.bias.double()
        off = off + unit * (scores.abs() + call.bias.double().abs())
    visible = call.added.double() > -1e30
    off = off + 2 * unit * scores.abs()
    if call.style == "eager" and call.sinks is None:  # as it is written: where all is hidden, all is alike
        nothing = ~visible.any(-1, keepdim=True)
        scores = torch.where(nothing, torch.zeros_like(scores), scores)
        off = torch.where(nothing, torch.zeros_like(off), off)
        visible = visible | nothing
    scores = scores.masked_fill(~visible, -torch.inf)
    top = scores.amax(-1, keepdim=True)
    sinks = None if call.sinks is None else call.sinks.double().view(1, -1, 1, 1)
    top = top if sinks is None else torch.maximum(top, sinks)
    top = top.masked_fill(top == -torch.inf, 0.0)
    weights = torch.exp(scores - top)
    total = weights.sum(-1, keepdim=True) + (0.0 if sinks is None else torch.exp(sinks - top))
    probs = weights / total.masked_fill(total == 0, 1.0)
    out = probs @ v
    off = (torch.exp(off.masked_fill(~visible, 0.0)) - 1) + 2 * unit + (scores.shape[-1] + 8) * single
    reach = ((off * probs)[..., None] * (v[:, :, None] - out[:, :, :, None]).abs()).sum(-2)
    bound = (
        reach
        + 3 * unit * (probs @ v.abs())
        + 2 * unit * out.abs()
        + (scores.shape[-1] + 8) * single * (probs @ v.abs())
    )
    if sinks is not None:
        bound = bound + (off * probs).sum(-1, keepdim=True) * out.abs() + 2 * unit * sinks.abs() * out.abs()
    return out.transpose(1, 2), bound.transpose(1, 2) + 1e-30, probs
