"""A transformer of 12 layers on the CPU, whose attention can be replaced."""

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
F = torch.nn.functional

LAYERS, HEADS, WIDTH, TOKENS = 12, 4, 64, 48
DIM = WIDTH // HEADS

Attention = Callable[..., Any]


def weights(seed: int = 0) -> list[dict[str, torch.Tensor]]:
    """Of each layer."""
    made = torch.Generator().manual_seed(seed)
    shapes = {"qkv": (WIDTH, 3 * WIDTH), "proj": (WIDTH, WIDTH), "up": (WIDTH, 2 * WIDTH), "down": (2 * WIDTH, WIDTH)}
    return [
        {name: torch.randn(shape, generator=made) * 1.5 * shape[0] ** -0.5 for name, shape in shapes.items()}
        for _ in range(LAYERS)
    ]


def tokens(seed: int = 0, count: int = TOKENS) -> torch.Tensor:
    """Embedded, [batch, token, width]."""
    return torch.randn(1, count, WIDTH, generator=torch.Generator().manual_seed(1000 + seed))


def forward(x: torch.Tensor, layers: list[dict[str, torch.Tensor]], attend: Attention) -> torch.Tensor:
    """The last hidden states; `attend(q, k, v)` is called once a layer."""
    for layer in layers:
        q, k, v = (F.rms_norm(x, (WIDTH,)) @ layer["qkv"]).unflatten(-1, (3, HEADS, DIM)).permute(2, 0, 3, 1, 4)
        x = x + attend(q, k, v).transpose(1, 2).flatten(2) @ layer["proj"]
        x = x + F.silu(F.rms_norm(x, (WIDTH,)) @ layer["up"]) @ layer["down"]
    return x


def causal(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """PyTorch's attention."""
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def by_hand(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    scale: float = DIM**-0.5,
    probs_dtype: torch.dtype = torch.float32,
    splits: int = 1,
) -> torch.Tensor:
    """Causal attention in operations of torch; probs are cast before they meet v, and keys split."""
    scores = (q.float() @ k.float().mT * scale).masked_fill(
        ~torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).tril(), -torch.inf
    )
    top = scores.amax(-1, keepdim=True)
    total, weighted = 0.0, 0.0
    for keys in torch.arange(k.shape[2]).chunk(splits):
        # of each split its own maximum, as a kernel that merges has it
        own = scores[..., keys].amax(-1, keepdim=True)
        probs = torch.exp(scores[..., keys] - torch.where(own.isinf(), 0.0, own))
        weight = torch.exp(own - top)
        total = total + weight * probs.sum(-1, keepdim=True)
        weighted = weighted + weight * (probs.to(probs_dtype).float() @ v[:, :, keys].float())
    return (weighted / total).to(q.dtype)


def spec(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **_: Any) -> dict[str, Any]:
    """What a call of `by_hand` asks, whatever it does."""
    return {"q": q, "k": k, "v": v, "causal": True}
