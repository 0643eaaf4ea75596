"""A model as those of transformers are: its attention modules ask an interface for a function by name."""

import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
nn = torch.nn

WIDTH, HEADS, KV_HEADS, DIM = 32, 4, 2, 8


class AttentionInterface(dict):
    """As transformers.modeling_utils has it."""

    def get_interface(self, implementation: str, default: Callable[..., Any]) -> Callable[..., Any]:
        return self.get(implementation, default)


class PreTrainedModel(nn.Module):
    pass


ALL_ATTENTION_FUNCTIONS = AttentionInterface()


def repeated(x: Any, module: Any) -> Any:
    return x.repeat_interleave(module.num_key_value_groups, 1)


def eager(module: Any, query: Any, key: Any, value: Any, attention_mask: Any, scaling: float, **_: Any) -> Any:
    """Attention in operations of torch, whose mask is added."""
    scores = query @ repeated(key, module).mT * scaling
    weights = torch.softmax(scores if attention_mask is None else scores + attention_mask, -1)
    return (weights @ repeated(value, module)).transpose(1, 2), weights


def sdpa(module: Any, query: Any, key: Any, value: Any, attention_mask: Any, scaling: float, **_: Any) -> Any:
    """Torch's attention; causal where it has no mask and more than one query."""
    causal = attention_mask is None and query.shape[2] > 1
    of = torch.nn.functional.scaled_dot_product_attention
    out = of(
        query, key, value, attention_mask, is_causal=causal, scale=scaling, enable_gqa=module.num_key_value_groups > 1
    )
    return out.transpose(1, 2), None


class Attention(nn.Module):
    def __init__(self, config: Any, layer_idx: int) -> None:
        super().__init__()
        self.config, self.layer_idx, self.is_causal = config, layer_idx, True
        self.num_key_value_groups, self.scaling = HEADS // KV_HEADS, DIM**-0.5
        self.qkv = nn.Linear(WIDTH, (HEADS + 2 * KV_HEADS) * DIM)
        self.proj = nn.Linear(HEADS * DIM, WIDTH)

    def forward(self, x: Any, mask: Any, **kwargs: Any) -> Any:
        heads = self.qkv(x).unflatten(-1, (-1, DIM)).transpose(1, 2)
        q, k, v = heads.split((HEADS, KV_HEADS, KV_HEADS), 1)
        attend = ALL_ATTENTION_FUNCTIONS.get_interface(self.config._attn_implementation, eager)
        out, _ = attend(self, q, k, v, mask, dropout=0.0, scaling=self.scaling, **kwargs)
        return self.proj(out.flatten(2))


class Llama(PreTrainedModel):
    """`layers` layers, run once a forward pass; a mask hides keys as the implementation has it."""

    def __init__(self, implementation: str = "eager", layers: int = 2) -> None:
        super().__init__()
        self.config = SimpleNamespace(_attn_implementation=implementation)
        self.layers = nn.ModuleList(Attention(self.config, i) for i in range(layers))

    def forward(self, x: Any, mask: Any = None, **kwargs: Any) -> Any:
        for layer in self.layers:
            x = x + layer(nn.functional.layer_norm(x, (WIDTH,)), mask, **kwargs)
        return x


@pytest.fixture
def transformers(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The package, as far as a capture knows it: an interface with eager, sdpa and what a test registers."""
    names = {"modeling_utils": ("AttentionInterface", "PreTrainedModel"), "masking_utils": ()}
    for name, held in names.items():
        module = ModuleType(f"transformers.{name}")
        vars(module).update({x: globals()[x] for x in held})
        monkeypatch.setitem(sys.modules, module.__name__, module)
    masks = {"eager": SimpleNamespace(__name__="eager_mask"), "sdpa": SimpleNamespace(__name__="sdpa_mask")}
    monkeypatch.setattr(sys.modules["transformers.masking_utils"], "ALL_MASK_ATTENTION_FUNCTIONS", masks, raising=False)
    monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS, "sdpa", sdpa)
    return SimpleNamespace(functions=ALL_ATTENTION_FUNCTIONS, masks=masks)
