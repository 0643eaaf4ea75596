"""Tiny random models of eight families, whose scores have a standard deviation of 1 to 3, and inputs for a run of each.

    with registered("mine", function, style="boolean"):
        model, inputs = make("llama", torch.float32, "mine", run="generate", padding="left")
        go(model, inputs)

Tokens of generate are forced: `Inputs.forced` says which, so that two runs see the same tokens, whatever is answered.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import (
    AttentionInterface,
    AttentionMaskInterface,
    BertConfig,
    BertModel,
    Cache,
    DynamicCache,
    Gemma2Config,
    Gemma2ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    GptOssConfig,
    GptOssForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen3Config,
    Qwen3ForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
)
from transformers.masking_utils import eager_mask, sdpa_mask

STYLES = ("eager", "boolean", "is_causal")
VOCABULARY = 96
SEEDS = {"llama": 11, "gemma2": 12, "gpt_oss": 13, "t5": 14, "bert": 15, "mistral": 16, "qwen3": 17, "gpt2": 18}
NAMES = tuple(SEEDS)
LENGTH = {"forward": 30, "generate": 20}
NEW_TOKENS = 8
PADDED = 6  # tokens of padding, in the first sequence of the batch on the left, in the second on the right

_COMMON: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": None,
}


@dataclass(frozen=True)
class Inputs:
    """What a run takes: the arguments of forward, and the tokens that generate is made to say [batch, new]."""

    run: str
    arguments: dict[str, torch.Tensor]
    forced: torch.Tensor | None = field(default=None)


def _config(name: str, **changes: Any) -> Any:
    rows = dict(_COMMON)
    if name == "llama":
        rows |= {"num_hidden_layers": 2, "num_key_value_heads": 2}
        return LlamaConfig(**rows | changes)
    if name == "mistral":
        rows |= {"num_hidden_layers": 2, "num_key_value_heads": 2, "sliding_window": 9}
        return MistralConfig(**rows | changes)
    if name == "qwen3":
        rows |= {"num_hidden_layers": 2, "num_key_value_heads": 1, "head_dim": 16}
        return Qwen3Config(**rows | changes)
    if name == "gemma2":
        # Layers 0 and 2 see a window, layer 1 all; the scale is not that of head_dim.
        rows |= {"num_hidden_layers": 3, "num_key_value_heads": 2, "head_dim": 16, "query_pre_attn_scalar": 24}
        rows |= {"sliding_window": 7, "attn_logit_softcapping": 4.0, "final_logit_softcapping": None}
        return Gemma2Config(**rows | changes)
    if name == "gpt_oss":
        # Layer 0 sees a window, layer 1 all; a head_dim of 20 is no multiple of 8.
        rows |= {"num_hidden_layers": 2, "num_key_value_heads": 2, "head_dim": 20, "sliding_window": 8}
        rows |= {"num_local_experts": 2, "num_experts_per_tok": 1, "max_position_embeddings": 4096}
        return GptOssConfig(**rows | changes)
    if name == "bert":
        rows |= {"num_hidden_layers": 2}
        return BertConfig(**rows | changes)
    if name == "gpt2":
        rows = {"vocab_size": VOCABULARY, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 128}
        rows |= {"bos_token_id": 1, "eos_token_id": None, "pad_token_id": 0}
        return GPT2Config(**rows | changes)
    if name == "t5":
        rows = {"vocab_size": VOCABULARY, "d_model": 64, "d_kv": 16, "d_ff": 96, "num_layers": 2, "num_heads": 4}
        rows |= {"relative_attention_num_buckets": 16, "relative_attention_max_distance": 32}
        rows |= {"decoder_start_token_id": 0, "pad_token_id": 0, "eos_token_id": None}
        return T5Config(**rows | changes)
    raise ValueError(f"no model {name!r}")


_CLASSES: dict[str, Any] = {
    "llama": LlamaForCausalLM,
    "gemma2": Gemma2ForCausalLM,
    "gpt_oss": GptOssForCausalLM,
    "t5": T5ForConditionalGeneration,
    "bert": BertModel,
    "mistral": MistralForCausalLM,
    "qwen3": Qwen3ForCausalLM,
    "gpt2": GPT2LMHeadModel,
}


def _gain(model: str, name: str) -> float:
    """How much wider than 1 what a matrix gives is: queries and keys make the scores."""
    last = name.split(".")[-2]
    if model == "t5":
        return 0.75 if last in ("q", "k") else 1.0
    if model == "gpt_oss":  # its rotation makes scores 1.8 times wider
        return 1.0
    return 1.4 if last in ("q_proj", "k_proj", "query", "key") else 1.0


def _fill(model: PreTrainedModel, name: str, seed: int) -> None:
    """Weights drawn anew, so that each branch and each score is of order 1."""
    generator = torch.Generator().manual_seed(seed)
    for path, weight in model.named_parameters():
        drawn = torch.randn(weight.shape, generator=generator)
        if path.endswith("sinks"):
            filled = 1.0 + drawn
        elif weight.ndim == 3:  # the matrices of experts, [expert, in, out]
            filled = drawn / weight.shape[1] ** 0.5
        elif "q_norm" in path or "k_norm" in path:
            filled = 1.4 + 0.1 * drawn
        elif weight.ndim == 1 or "bias" in path.split(".")[-1]:
            about = 0.0 if path.endswith("bias") or name == "gemma2" else 1.0
            filled = about + 0.1 * drawn
        elif "embed" in path or "shared" in path or ".wte" in path or ".wpe" in path or "relative_attention" in path:
            filled = drawn
        elif name == "gpt2" and "lm_head" not in path:  # Conv1D, [in, out]
            filled = drawn / weight.shape[0] ** 0.5
            if "c_attn" in path:
                filled[:, :128] *= 1.4
        else:
            filled = drawn * _gain(name, path) / weight.shape[1] ** 0.5
        weight.data = filled


def build(
    name: str, dtype: torch.dtype, implementation: str, *, seed: int | None = None, **changes: Any
) -> PreTrainedModel:
    """A model alone; `changes` are fields of its config. Weights depend on the seed and on shapes only."""
    model = _CLASSES[name](_config(name, **changes))
    _fill(model, name, SEEDS[name] if seed is None else seed)
    for weight in model.parameters():  # buffers, the frequencies of RoPE among them, stay float32
        weight.data = weight.data.to(dtype)
    model.set_attn_implementation(implementation)
    return model.eval().requires_grad_(False)


def inputs_for(name: str, run: str = "forward", padding: str = "none") -> Inputs:
    """The same tokens for each model of a name: two sequences, one padded by 6 tokens where padding is asked for."""
    if run == "generate" and name == "bert":
        raise ValueError("bert does not generate")
    generator = torch.Generator().manual_seed(SEEDS[name] + 100)
    length = LENGTH[run]
    tokens = torch.randint(2, VOCABULARY, (2, length), generator=generator)
    told = torch.randint(2, VOCABULARY, (2, NEW_TOKENS), generator=generator)
    seen = torch.ones(2, length, dtype=torch.long)
    if padding == "left":
        tokens[0, :PADDED], seen[0, :PADDED] = 0, 0
    elif padding == "right":
        tokens[1, -PADDED:], seen[1, -PADDED:] = 0, 0
    arguments = {"input_ids": tokens, "attention_mask": seen}
    if name == "t5" and run == "forward":
        arguments["decoder_input_ids"] = torch.randint(2, VOCABULARY, (2, 18), generator=generator)
    return Inputs(run, arguments, told if run == "generate" else None)


def make(
    name: str, dtype: torch.dtype, implementation: str, run: str = "forward", padding: str = "none"
) -> tuple[PreTrainedModel, Inputs]:
    """A tiny random model of a family, and what a run of it takes."""
    return build(name, dtype, implementation), inputs_for(name, run, padding)


def go(model: PreTrainedModel, inputs: Inputs, cache: Cache | None = None) -> Any:
    """The run: one forward pass, or generate with the tokens that are forced, into a cache where one is given."""
    kept = {} if cache is None else {"cache": cache}
    with torch.no_grad():
        if inputs.run == "forward":
            return model(**inputs.arguments)
        forced = inputs.forced
        assert forced is not None
        before = 1 if model.config.is_encoder_decoder else inputs.arguments["input_ids"].shape[1]

        def allowed(batch: int, said: torch.Tensor) -> list[int]:
            return [int(forced[batch, len(said) - before])]

        return model.generate(
            **inputs.arguments,
            **kept,
            max_new_tokens=forced.shape[1],
            do_sample=False,
            prefix_allowed_tokens_fn=allowed,
        )


def go_in_chunks(model: PreTrainedModel, inputs: Inputs, sizes: tuple[int, ...]) -> None:
    """The same tokens as generate sees, without padding, in passes of these sizes, into one cache."""
    assert inputs.forced is not None
    tokens = torch.cat((inputs.arguments["input_ids"], inputs.forced[:, :-1]), 1)
    cache, start = DynamicCache(config=model.config), 0
    with torch.no_grad():
        for size in sizes:
            model(input_ids=tokens[:, start : start + size], cache=cache, use_cache=True)
            start += size
    assert start == tokens.shape[1]


def _eager_mask(*arguments: Any, **named: Any) -> torch.Tensor | None:
    return eager_mask(*arguments, **named)


def _boolean_mask(*arguments: Any, **named: Any) -> torch.Tensor | None:
    return sdpa_mask(*arguments, **named | {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False})


@contextlib.contextmanager
def registered(name: str, function: Callable[..., Any], style: str) -> Iterator[str]:
    """An attention function under a name, with the mask of its style, for as long as the context lasts."""
    AttentionInterface.register(name, function)
    if style != "is_causal":  # a name without a mask function is given no mask
        AttentionMaskInterface.register(name, {"eager": _eager_mask, "boolean": _boolean_mask}[style])
    try:
        yield name
    finally:
        AttentionInterface._global_mapping.pop(name, None)
        AttentionMaskInterface._global_mapping.pop(name, None)
