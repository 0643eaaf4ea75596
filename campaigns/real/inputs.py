"""Inputs of a case: what layers of the project feed its kernels with, at small sizes.

Keys are normalised where a layer normalises them, gates are log-sigmoids in float32, step sizes sigmoids. All have time
before heads.
"""

from collections.abc import Callable

import torch
from torch.nn import functional as F

Tensors = dict[str, torch.Tensor]
Draw = Callable[..., torch.Tensor]


def drawn(seed: int) -> Draw:
    """Normal numbers in float32, the same on any device."""
    generator = torch.Generator().manual_seed(seed)
    return lambda *shape: torch.randn(*shape, generator=generator)


def qkv(draw: Draw, dtype: torch.dtype, T: int, H: int, D: int, *, B: int = 1, unit: bool = False) -> Tensors:
    """q, k and v of [B, T, H, D]; `unit`: keys of length 1."""
    q, k, v = draw(B, T, H, D), draw(B, T, H, D), draw(B, T, H, D)
    return {"q": q.to(dtype), "k": (F.normalize(k, dim=-1) if unit else k).to(dtype), "v": v.to(dtype)}


def gates(draw: Draw, *shape: int, by: float = 1.0) -> torch.Tensor:
    """Logs of decays in (0, 1), float32; a larger `by` forgets less."""
    return F.logsigmoid(draw(*shape)) / by


def plain(seed: int, dtype: torch.dtype, T: int, H: int = 2, D: int = 32) -> Tensors:
    """Attention without gates."""
    return qkv(drawn(seed), dtype, T, H, D)


def positive(seed: int, dtype: torch.dtype, T: int, H: int = 2, D: int = 32) -> Tensors:
    """Of a normaliser that must not vanish: what a feature map makes of q and k."""
    made = qkv(drawn(seed), dtype, T, H, D)
    return made | {name: (F.elu(made[name].float()) + 1).to(dtype) for name in ("q", "k")}


def scalar_gate(seed: int, dtype: torch.dtype, T: int, H: int = 2, D: int = 32, by: float = 1.0) -> Tensors:
    """One gate g a head and token."""
    draw = drawn(seed)
    return qkv(draw, dtype, T, H, D) | {"g": gates(draw, 1, T, H, by=by)}


def vector_gate(seed: int, dtype: torch.dtype, T: int, H: int = 2, D: int = 32, by: float = 16.0) -> Tensors:
    """A gate g for each dimension of a key. GLA divides its logits by 16."""
    draw = drawn(seed)
    return qkv(draw, dtype, T, H, D) | {"g": gates(draw, 1, T, H, D, by=by)}


def constant_gate(seed: int, dtype: torch.dtype, T: int, H: int = 2, D: int = 32) -> Tensors:
    """Lightning attention's decay of a head, of layer 1 of 12, also as the gate of every token."""
    decay = -(8 / H * (1 - 1 / 12)) * torch.arange(H, dtype=torch.float32)
    return plain(seed, dtype, T, H, D) | {"g": decay.expand(1, T, H).contiguous()}


def delta(seed: int, dtype: torch.dtype, T: int, H: int = 2, D: int = 32) -> Tensors:
    """The delta rule: unit keys, and a step size beta."""
    draw = drawn(seed)
    return qkv(draw, dtype, T, H, D, unit=True) | {"beta": draw(1, T, H).sigmoid().to(dtype)}


def gated_delta(seed: int, dtype: torch.dtype, T: int, H: int = 2, D: int = 32, by: float = 1.0) -> Tensors:
    """The gated delta rule."""
    draw = drawn(seed)
    made = qkv(draw, dtype, T, H, D, unit=True) | {"beta": draw(1, T, H).sigmoid().to(dtype)}
    return made | {"g": gates(draw, 1, T, H, by=by)}


def kda(seed: int, dtype: torch.dtype, T: int, H: int = 2, D: int = 32) -> Tensors:
    """The delta rule with a gate for each dimension of a key."""
    draw = drawn(seed)
    made = qkv(draw, dtype, T, H, D, unit=True) | {"beta": draw(1, T, H).sigmoid().to(dtype)}
    return made | {"g": gates(draw, 1, T, H, D)}


def comba(seed: int, dtype: torch.dtype, T: int, H: int = 2, D: int = 32) -> Tensors:
    """The gated delta rule that reads the state with keys p of its own."""
    draw = drawn(seed)
    made = gated_delta(seed + 1, dtype, T, H, D)
    return made | {"p": (made["k"].float() * draw(1, 1, H, D).sigmoid()).to(dtype)}


def low_rank(seed: int, dtype: torch.dtype, T: int, H: int = 2, D: int = 32, by: float = 4.0) -> Tensors:
    """DPLR and IPLR: the state times (diagonal + a b^T), with b = -a of length 1, as in their tests."""
    draw = drawn(seed)
    made = qkv(draw, dtype, T, H, D)
    a = F.normalize(draw(1, T, H, D), dim=-1).to(dtype)
    return made | {"a": a, "b": -a, "gk": gates(draw, 1, T, H, D, by=by)}


def rwkv7(seed: int, dtype: torch.dtype, T: int, H: int = 2, D: int = 32) -> Tensors:
    """RWKV-7: decays of at least exp(-0.606), removal keys of length 1, and how much of them is replaced."""
    draw = drawn(seed)
    made = qkv(draw, dtype, T, H, D)
    key = F.normalize(draw(1, T, H, D), dim=-1)
    w = -0.6065306597126334 * draw(1, T, H, D).sigmoid()
    return made | {"a": (-key).to(dtype), "b": (key * draw(1, T, H, D).sigmoid()).to(dtype), "gk": w}


def rwkv6(seed: int, dtype: torch.dtype, T: int, H: int = 2, D: int = 32) -> Tensors:
    """RWKV-6: a gate for each dimension, and a bonus u of the current token."""
    draw = drawn(seed)
    made = qkv(draw, dtype, T, H, D) | {"w": gates(draw, 1, T, H, D)}
    return made | {"u": draw(H, D).to(dtype)}


def hgrn(seed: int, dtype: torch.dtype, T: int, D: int = 64) -> Tensors:
    """HGRN: x times one minus its gate."""
    draw = drawn(seed)
    x, g = draw(1, T, D), draw(1, T, D)
    return {"x": ((1 - g.sigmoid()) * x).to(dtype), "g": F.logsigmoid(g)}


def slots(seed: int, dtype: torch.dtype, T: int, H: int = 2, D: int = 32, M: int = 16) -> Tensors:
    """Gated slot attention: M slots."""
    draw = drawn(seed)
    g = gates(draw, 1, T, H, M, by=8.0)
    return qkv(draw, dtype, T, H, D) | {"s": (1 - g.exp()).to(dtype), "g": g}


def deltaformer(seed: int, dtype: torch.dtype, T: int, H: int = 2, D: int = 32) -> Tensors:
    """DeltaFormer: keys that are not normalised, and beta."""
    draw = drawn(seed)
    return qkv(draw, dtype, T, H, D) | {"beta": draw(1, T, H).sigmoid().to(dtype)}


def levels(seed: int, dtype: torch.dtype, T: int, H: int = 2, D: int = 64) -> Tensors:
    """Log-linear attention: one key head, a scale for each level of the sequence."""
    draw = drawn(seed)
    step = F.softplus(draw(1, T, H) - 4)
    made = {"q": draw(1, T, 1, D).to(dtype), "k": draw(1, T, 1, D).to(dtype)}
    made["v"] = (draw(1, T, H, D) * step[..., None]).to(dtype)
    return made | {"g": -step * draw(H).exp(), "level_scales": draw(1, T, H, (T - 1).bit_length() + 1).to(dtype)}


def path(seed: int, dtype: torch.dtype, T: int, H: int = 2, D: int = 32) -> Tensors:
    """Path attention: unit w and beta up to 2 in float32, as the kernel demands, and a gate."""
    draw = drawn(seed)
    made = qkv(draw, dtype, T, H, D) | {"w": F.normalize(draw(1, T, H, D), dim=-1)}
    return made | {"beta": 2 * draw(1, T, H).sigmoid(), "g": gates(draw, 1, T, H, by=16.0)}


def blocks(seed: int, dtype: torch.dtype, T: int, D: int = 32, size: int = 16, S: int = 4) -> Tensors:
    """Sparse attention of 16 query heads to one of keys: some blocks up to the query's own, sorted, -1 before them."""
    draw = drawn(seed)
    q, k, v = draw(1, T, 16, D), draw(1, T, 1, D), draw(1, T, 1, D)
    order = torch.Generator().manual_seed(seed)
    places = torch.full((1, T, 1, S), -1)
    for t in range(T):
        some = torch.randperm(max(t // size, 1), generator=order)[: S - 1]
        chosen = torch.unique(torch.cat([some, torch.tensor([t // size])]))
        places[0, t, 0, S - len(chosen) :] = chosen
    return {"q": q.to(dtype), "k": k.to(dtype), "v": v.to(dtype), "block_indices": places}


def secondary(seed: int, dtype: torch.dtype, T: int, H: int = 2, D: int = 32) -> Tensors:
    """Parallax: second queries r, which are not scaled."""
    draw = drawn(seed)
    return qkv(draw, dtype, T, H, D) | {"r": (0.1 * draw(1, T, H, D)).to(dtype)}


def convolution(seed: int, dtype: torch.dtype, T: int, B: int = 2, D: int = 64, W: int = 4) -> Tensors:
    """A short causal convolution of each channel."""
    draw = drawn(seed)
    return {"x": draw(B, T, D).to(dtype), "weight": draw(D, W).to(dtype), "bias": draw(D).to(dtype)}


def strided(seed: int, dtype: torch.dtype, T: int, B: int = 2, D: int = 64) -> Tensors:
    """A convolution whose result's gradient lies channel by channel, as a transpose behind it leaves it."""
    head = drawn(seed + 1)(B, D, T).transpose(1, 2)
    return convolution(seed, dtype, T, B, D) | {"dresult": head.to(dtype)}


def norm(seed: int, dtype: torch.dtype, T: int, D: int = 64) -> Tensors:
    """A norm, and what gates its result."""
    draw = drawn(seed)
    return {"x": draw(1, T, D).to(dtype), "g": draw(1, T, D).to(dtype), "weight": (1 + draw(D) / 4).to(dtype)}


def norm_linear(seed: int, dtype: torch.dtype, T: int, D: int = 64, N: int = 48) -> Tensors:
    """A gated norm, and the linear layer behind it."""
    made = norm(seed, dtype, T, D)
    draw = drawn(seed + 1)
    return made | {"linear": (draw(N, D) / D**0.5).to(dtype)}


def sequence(seed: int, dtype: torch.dtype, T: int, H: int = 4) -> Tensors:
    """Numbers to be summed: a large one first, as a total is that running sums are taken from."""
    s = drawn(seed)(1, T, H)
    s[:, 0] += 1000.0
    return {"s": s.to(dtype)}
