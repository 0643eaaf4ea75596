"""Runs of transformers' Llama with random weights, held against each other as its users capture them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from workbench import capture, compare_runs

pytestmark = pytest.mark.campaign
torch = pytest.importorskip("torch", reason="torch is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")

TOKENS = torch.randint(3, 100, (2, 20), generator=torch.Generator().manual_seed(5))
PADDING = torch.ones_like(TOKENS)
PADDING[1, :6] = 0
F32, BF16, F16 = torch.float32, torch.bfloat16, torch.float16


def llama(dtype: Any = F32, seed: int = 0, attention: str = "sdpa", **config: Any) -> Any:
    torch.manual_seed(seed)
    made = transformers.LlamaConfig(
        vocab_size=100, hidden_size=64, intermediate_size=128, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, pad_token_id=0, bos_token_id=1, eos_token_id=None,
        attn_implementation=attention, **config,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(made).to(dtype).eval()


def generate(model: Any, **kwargs: Any) -> None:
    model.generate(
        input_ids=TOKENS, attention_mask=PADDING, max_new_tokens=4, min_new_tokens=4, do_sample=False, **kwargs
    )


def forward(model: Any) -> None:
    model(input_ids=TOKENS, attention_mask=PADDING)


def one_token(model: Any) -> None:
    tokens = TOKENS.clone()
    tokens[0, 7] = 3 + (tokens[0, 7] + 1) % 97
    model(input_ids=tokens, attention_mask=PADDING)


def louder(model: Any, layer: int = 2) -> Any:
    model.model.layers[layer].mlp.down_proj.weight.data *= 1.5
    return model


Run = Callable[[Any], None]


def captured(folder: Path, model: Any, run: Run) -> Path:
    with torch.no_grad(), capture(model, folder, keep="all") as c:
        run(model)
    assert c.report.judged == c.report.calls > 0
    return folder


@pytest.mark.parametrize(
    ("a", "b", "run"),
    [
        (lambda: llama(), lambda: llama(attention="eager"), generate),
        (lambda: llama(BF16), lambda: llama(), generate),
        (lambda: llama(F16), lambda: llama(BF16), forward),
        (lambda: llama(BF16), lambda: llama(BF16, attention="eager"), generate),
    ],
    ids=["eager", "bfloat16", "16 bits", "eager in bfloat16"],
)
def test_right_runs_differ_by_rounding(a: Any, b: Any, run: Run, tmp_path: Path) -> None:
    found = compare_runs(captured(tmp_path / "a", a(), run), captured(tmp_path / "b", b(), run))
    assert found.verdict == "rounding" and found.departed is None, str(found)


def test_a_cache_of_fixed_size_asks_the_same(tmp_path: Path) -> None:
    a = captured(tmp_path / "a", llama(), generate)
    b = captured(tmp_path / "b", llama(), lambda model: generate(model, cache_implementation="static"))
    assert compare_runs(a, b).verdict in ("rounding", "identical")


OTHER_BASE = {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}


@pytest.mark.parametrize(
    ("a", "b", "run", "call", "words"),
    [
        (lambda: llama(), lambda: llama(rms_norm_eps=1e-5), forward, 0, "the preceding norm (its eps)"),
        (lambda: llama(BF16), lambda: llama(BF16, rms_norm_eps=1e-5), forward, 0, "the preceding norm (its eps)"),
        (lambda: llama(BF16), lambda: llama(**OTHER_BASE), forward, 0, "q and k of call 0 (layer 0, step 0) differ"),
        (lambda: llama(), lambda: llama(seed=1), forward, 0, "different weights or tokens"),
        (lambda: llama(), lambda: llama(), one_token, 0, "in row 7 alone of sequence 0 of the batch: look before it"),
        (lambda: llama(), lambda: louder(llama()), forward, 3, "look between call 2 (layer 2, step 0) and this call"),
        (lambda: llama(BF16), lambda: louder(llama(BF16)), forward, 3, "q, k and v of call 3 (layer 3, step 0) differ"),
    ],
    ids=["eps", "eps in bfloat16", "base", "weights", "token", "layer", "layer in bfloat16"],
)
def test_a_fault_before_attention_is_found(a: Any, b: Any, run: Run, call: int, words: str, tmp_path: Path) -> None:
    sides = captured(tmp_path / "a", a(), forward), captured(tmp_path / "b", b(), run)
    found = compare_runs(*sides)
    assert found.verdict == "differs" and found.first.call == call, str(found)
    assert words in str(found), str(found)
