"""A small decoder like Llama, with what runs of one model do otherwise: RMSNorm, rotation, grouped heads, a cache."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from workbench import Case, Trace
from workbench.explore.capturing.verdict import array
from workbench.trace.assembled import assembled

torch = pytest.importorskip("torch", reason="torch is not installed")
F = torch.nn.functional

WIDTH, HEADS, KV_HEADS, DIM, VOCABULARY = 64, 4, 2, 16, 50
Attention = Callable[..., Any]


@dataclass(frozen=True)
class Decoder:
    """Its weights, and how it computes with them."""

    layers: int = 4
    seed: int = 0
    dtype: Any = torch.float32
    base: float = 1e4  #: of the rotation
    eps: float = 1e-6
    std: float = 0.02  #: of the embedding
    first: int = 0  #: position of the first token
    #: layer -> what is done to the hidden states behind it
    behind: Callable[[int, Any], Any] = lambda layer, x: x
    #: layer, step, keys or values of all tokens until now -> as they are attended to, and kept
    cached: Callable[[int, int, Any, Any], tuple[Any, Any]] = lambda layer, step, k, v: (k, v)
    activation: Callable[[Any], Any] = F.silu
    norm: Callable[..., Any] | None = None
    weights_of: Callable[[Any], Any] = lambda w: w

    def weights(self) -> tuple[Any, list[dict[str, Any]]]:
        """The embedding, and of each layer."""
        made = torch.Generator().manual_seed(self.seed)
        shapes = {
            "q": (WIDTH, HEADS * DIM), "k": (WIDTH, KV_HEADS * DIM), "v": (WIDTH, KV_HEADS * DIM),
            "o": (HEADS * DIM, WIDTH), "gate": (WIDTH, 2 * WIDTH), "up": (WIDTH, 2 * WIDTH), "down": (2 * WIDTH, WIDTH),
        }  # fmt: skip

        def drawn(*shape: int) -> Any:
            return self.weights_of(torch.randn(shape, generator=made) * shape[0] ** -0.5).to(self.dtype)

        embedding = (torch.randn(VOCABULARY, WIDTH, generator=made) * self.std).to(self.dtype)
        return embedding, [{name: drawn(*shape) for name, shape in shapes.items()} for _ in range(self.layers)]

    def run(self, steps: list[Any], attend: Attention) -> None:
        """Call `attend(q, k, v)` once a layer of each step; a step is the tokens [batch, n] that come then."""
        embedding, layers = self.weights()
        kept: dict[int, tuple[Any, Any]] = {}
        place = self.first
        for step, tokens in enumerate(steps):
            x = embedding[tokens]
            at = torch.arange(place, place + tokens.shape[1])
            place += tokens.shape[1]
            for layer, w in enumerate(layers):
                h = self._normed(x)
                q, k, v = (_heads(h @ w[name]) for name in "qkv")
                q, k = self._rotated(q, at), self._rotated(k, at)
                if layer in kept:
                    k, v = torch.cat([kept[layer][0], k], 2), torch.cat([kept[layer][1], v], 2)
                k, v = kept[layer] = self.cached(layer, step, k, v)
                x = x + attend(q, k, v).transpose(1, 2).flatten(2) @ w["o"]
                h = self._normed(x)
                x = self.behind(layer, x + (self.activation(h @ w["gate"]) * (h @ w["up"])) @ w["down"])

    def _normed(self, x: Any) -> Any:
        if self.norm is not None:
            return self.norm(x, self.eps)
        wide = x.float()
        return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)).to(x.dtype)

    def _rotated(self, x: Any, at: Any) -> Any:
        angles = at[:, None] * self.base ** (-torch.arange(0, DIM, 2) / DIM)
        cos, sin = (f(angles).repeat(1, 2).to(x.dtype) for f in (torch.cos, torch.sin))
        left, right = x.chunk(2, -1)
        return x * cos + torch.cat([-right, left], -1) * sin


def _heads(x: Any) -> Any:
    return x.unflatten(-1, (-1, DIM)).transpose(1, 2)


def prompt(length: int = 24, batch: int = 1, seed: int = 0) -> Any:
    """Tokens [batch, length]."""
    return torch.randint(VOCABULARY, (batch, length), generator=torch.Generator().manual_seed(100 + seed))


def plain(q: Any, k: Any, v: Any) -> Any:
    """Causal attention in operations of torch, of the last queries of all keys."""
    scores = (q @ repeated(k).mT * DIM**-0.5).masked_fill(~seen(q, k), -torch.inf)
    return scores.softmax(-1) @ repeated(v)


def fused(q: Any, k: Any, v: Any) -> Any:
    """The same by PyTorch's own."""
    return F.scaled_dot_product_attention(q, k, v, attn_mask=seen(q, k), enable_gqa=True)


def seen(q: Any, k: Any) -> Any:
    """Which keys each query sees, bool [query, key]."""
    return torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).tril(k.shape[2] - q.shape[2])


def repeated(x: Any) -> Any:
    """k or v with a head for each head of queries."""
    return x.repeat_interleave(HEADS // KV_HEADS, 1)


def asked(q: Any, k: Any, v: Any, out: Any) -> dict[str, Any]:
    """A call as most say it."""
    return {"q": q, "k": k, "v": v, "out": out, "mask": seen(q, k)}


def traces(model: Decoder, steps: list[Any], attend: Attention = fused, told: Any = asked) -> dict[int, Trace]:
    """The calls of a run of the model, as `told(q, k, v, out)` spells what they ask."""
    made: dict[int, Trace] = {}

    def watched(q: Any, k: Any, v: Any) -> Any:
        out = attend(q, k, v)
        made[len(made)] = trace_of(**told(q, k, v, out))
        return out

    with torch.no_grad():
        model.run(steps, watched)
    return made


def trace_of(q: Any, k: Any, v: Any, out: Any, mask: Any = None, bias: Any = None, **fields: Any) -> Trace:
    """One call, tensors [batch, head, row, dim]."""
    given = {"q": q, "k": k, "v": v, "mask": mask, "bias": bias}
    inputs = {name: array(x) for name, x in given.items() if x is not None}
    case = Case(
        batch=q.shape[0], heads=q.shape[1], kv_heads=k.shape[1], seqlen_q=q.shape[2], seqlen_k=k.shape[2],
        head_dim=q.shape[3], dtype=str(q.dtype).removeprefix("torch."), distribution="given",
        **({"scale": DIM**-0.5} | fields),
    )  # fmt: skip
    return assembled("attend", case, inputs, {"out": array(out)}, {})
