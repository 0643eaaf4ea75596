"""Thirty pairs of runs of tiny models: twelve that only round, eighteen with a fault in attention or before it.

    pair = PAIRS[0]
    pair.runs("seenA", "seenB", workbench.capture)

`runs` makes both captures, each by `with capture(model, folder, keep="all")` around one run. Run A is always right.
What differs first is told by `first_step`, which counts forward passes from 0, by `first_layer`, the layer_idx, and by
`first_of`: the first of q, k, v and out, in this order, that differs by more than rounding in that call. Steps come
before layers. The last three say 0, 0 and "" where a pair only rounds. `asks` is true where q, k and v of that call are
the same, and each side is right, but the two ask different things: another scale, window, mask or sinks.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import Cache, DynamicCache, PreTrainedModel

from campaigns.in_models import bugs, models, right
from campaigns.in_models.models import Inputs, build, go, go_in_chunks, inputs_for, registered

Folder = str | Path
Capture = Callable[..., AbstractContextManager[Any]]
Change = Callable[[PreTrainedModel], None]
F32, BF16 = torch.float32, torch.bfloat16


@dataclass(frozen=True)
class Pair:
    """Two runs, and what is to be said of them."""

    name: str
    runs: Callable[[Folder, Folder, Capture], None]
    only_rounds: bool
    truth: str
    first_layer: int
    first_step: int
    first_of: str
    asks: bool = False


@dataclass(frozen=True)
class Side:
    """One run: a model, how it attends, what is changed in it, and what it is given."""

    model: str
    run: str = "forward"
    padding: str = "none"
    dtype: torch.dtype = F32
    compute: right.Compute | None = None
    style: str = "eager"
    change: Change | None = None
    inputs: Callable[[Inputs], Inputs] | None = None
    cache: Callable[[], Cache] | None = None
    chunks: tuple[int, ...] | None = None
    fields: tuple[tuple[str, Any], ...] = ()
    seed: int | None = None
    attention: Callable[[str], right.Attention] | None = None

    def captured(self, folder: Folder, capture: Capture) -> None:
        """Runs it while it is captured; without a function of its own, by that of transformers named by the style."""
        factory = self.attention or (None if self.compute is None else right.attention_of(self.compute))
        if factory is None:
            self._captured(self.style, folder, capture)
        else:
            with registered("in_models", factory(self.style), self.style) as name:
                self._captured(name, folder, capture)

    def _captured(self, implementation: str, folder: Folder, capture: Capture) -> None:
        model = build(self.model, self.dtype, implementation, seed=self.seed, **dict(self.fields))
        if self.change is not None:
            self.change(model)
        inputs = inputs_for(self.model, self.run, self.padding)
        if self.inputs is not None:
            inputs = self.inputs(inputs)
        with capture(model, folder, keep="all"):
            if self.chunks is not None:
                go_in_chunks(model, inputs, self.chunks)
            else:
                go(model, inputs, None if self.cache is None else self.cache())


def both(a: Side, b: Side) -> Callable[[Folder, Folder, Capture], None]:
    """Both captures, A first."""

    def runs(folder_a: Folder, folder_b: Folder, capture: Capture) -> None:
        a.captured(folder_a, capture)
        b.captured(folder_b, capture)

    return runs


# --- what is changed in a model


def layer(model: PreTrainedModel, index: int) -> Any:
    """A layer of a model, wherever its family keeps it."""
    inner: Any = getattr(model, "model", None) or getattr(model, "transformer", None)
    return inner.h[index] if hasattr(inner, "h") else inner.layers[index]


def repeat_kv_heads(model: PreTrainedModel) -> None:
    """Copies the weights of each of 2 kv heads into two of this model's 4."""
    grouped = build("llama", F32, "eager")
    for index in range(2):
        here, there = layer(model, index).self_attn, layer(grouped, index).self_attn
        for part in ("k_proj", "v_proj"):
            heads = getattr(there, part).weight.data.unflatten(0, (2, 16))
            getattr(here, part).weight.data = heads.repeat_interleave(2, 0).flatten(0, 1)
    mine, others = dict(model.named_parameters()), dict(grouped.named_parameters())
    for path, weight in mine.items():
        if "k_proj" not in path and "v_proj" not in path:
            weight.data = others[path].data.clone()


def values_of_layer_0(model: PreTrainedModel) -> None:
    layer(model, 1).self_attn.v_proj.weight.data = layer(model, 0).self_attn.v_proj.weight.data.clone()


def no_key_norm(model: PreTrainedModel) -> None:
    layer(model, 1).self_attn.k_norm.weight.data.fill_(1.0)


def sinks_of_layer_0(model: PreTrainedModel) -> None:
    layer(model, 1).self_attn.sinks.data = layer(model, 0).self_attn.sinks.data.clone()


def scaling_of_layer_1(model: PreTrainedModel) -> None:
    layer(model, 1).self_attn.scaling = 0.3


def another_activation(model: PreTrainedModel) -> None:
    layer(model, 0).mlp.act_fn = torch.nn.GELU()


# --- what is changed in what a run is given


def without_mask(inputs: Inputs) -> Inputs:
    return Inputs(inputs.run, {k: x for k, x in inputs.arguments.items() if k != "attention_mask"}, inputs.forced)


def positions_of_tokens(inputs: Inputs) -> Inputs:
    """Positions that count from the first token that is no padding."""
    positions = (inputs.arguments["attention_mask"].cumsum(-1) - 1).clamp(min=0)
    return Inputs(inputs.run, inputs.arguments | {"position_ids": positions}, inputs.forced)


def positions_of_slots(inputs: Inputs) -> Inputs:
    """Positions that count the padding on the left as well."""
    tokens = inputs.arguments["input_ids"]
    positions = torch.arange(tokens.shape[1]).expand_as(tokens)
    return Inputs(inputs.run, inputs.arguments | {"position_ids": positions}, inputs.forced)


def one_other_token(inputs: Inputs) -> Inputs:
    """The fourth new token of sequence 1, which the model reads in step 4."""
    assert inputs.forced is not None
    forced = inputs.forced.clone()
    forced[1, 3] = 2 + (forced[1, 3] - 1) % (models.VOCABULARY - 2)
    return Inputs(inputs.run, inputs.arguments, forced)


# --- wrong caches


class SlotOneEarly(DynamicCache):
    """In layer 1 the row of step 3 goes to the slot before its own, which stays empty."""

    def update(self, key_states: Any, value_states: Any, layer_idx: int, *args: Any, **kwargs: Any) -> Any:
        keys, values = super().update(key_states, value_states, layer_idx, *args, **kwargs)
        if layer_idx == 1 and keys.shape[2] == models.LENGTH["generate"] + 3:
            for rows in (keys, values):
                rows[:, :, -2] = rows[:, :, -1]
                rows[:, :, -1] = 0
        return keys, values


class RowOverwritten(DynamicCache):
    """In layer 0, before step 4, slot 5 of sequence 0 is given to the newest row as well."""

    def update(self, key_states: Any, value_states: Any, layer_idx: int, *args: Any, **kwargs: Any) -> Any:
        keys, values = super().update(key_states, value_states, layer_idx, *args, **kwargs)
        if layer_idx == 0 and keys.shape[2] == models.LENGTH["generate"] + 4:
            keys[0, :, 5], values[0, :, 5] = keys[0, :, -1], values[0, :, -1]
        return keys, values


class StoredInFp8(DynamicCache):
    """Rows are stored as float8 e4m3; the newest are handed on as they are."""

    def update(self, key_states: Any, value_states: Any, layer_idx: int, *args: Any, **kwargs: Any) -> Any:
        keys, values = super().update(key_states, value_states, layer_idx, *args, **kwargs)
        stored = self.layers[layer_idx]
        stored.keys = keys.to(torch.float8_e4m3fn).to(keys.dtype)
        stored.values = values.to(torch.float8_e4m3fn).to(values.dtype)
        return keys, values


def rope(theta: float) -> tuple[tuple[str, Any], ...]:
    return (("rope_parameters", {"rope_type": "default", "rope_theta": theta}),)


def split_of_four(call: right.Call) -> tuple[torch.Tensor, torch.Tensor | None]:
    return right.split(call, 4)


PAIRS: tuple[Pair, ...] = (
    Pair(
        "eager_and_sdpa_left_padded",
        both(Side("llama", "generate", "left"), Side("llama", "generate", "left", style="sdpa")), True,
        "Only rounding in all rows that are read: eager and sdpa; rows 0 to 5 of sequence 0 in step 0 are padding that "
        "sees no key, where the two may answer anything, and what layer 1 makes of these rows is hidden again.",
        0, 0, "",
    ),
    Pair(
        "probs_in_bfloat16",
        both(Side("mistral", dtype=BF16, compute=right.tiled), Side("mistral", dtype=BF16, compute=right.narrow)), True,
        "Only rounding: the model is bfloat16, and B has scores and probs in bfloat16 where A has float32.", 0, 0, "",
    ),
    Pair(
        "another_order_of_sums",
        both(Side("gpt2", "generate", compute=right.plain), Side("gpt2", "generate", compute=split_of_four)), True,
        "Only rounding: B sums in four splits of the keys.", 0, 0, "",
    ),
    Pair(
        "kv_heads_repeated",
        both(Side("llama", "generate"),
             Side("llama", "generate", fields=(("num_key_value_heads", 4),), change=repeat_kv_heads)), True,
        "Only rounding: 2 kv heads in A are 4 in B, each twice, in the weights of k and v already.", 0, 0, "",
    ),
    Pair(
        "finite_and_boolean_mask",
        both(Side("qwen3", padding="right", compute=right.tiled),
             Side("qwen3", padding="right", compute=right.tiled, style="boolean")), True,
        "Nothing differs: one function is given finfo.min in A and a mask of bools in B.", 0, 0, "",
    ),
    Pair(
        "mask_and_is_causal",
        both(Side("mistral", "generate", compute=right.plain, style="boolean"),
             Side("mistral", "generate", compute=right.tiled, style="is_causal")), True,
        "Only rounding: A is given a mask, B none and applies causal and the window of 9 itself, in tiles.", 0, 0, "",
    ),
    Pair(
        "float32_and_bfloat16",
        both(Side("qwen3"), Side("qwen3", dtype=BF16)), True,
        "Only rounding: the same weights in float32 and rounded to bfloat16, with all that is computed.", 0, 0, "",
    ),
    Pair(
        "compiled_order",
        both(Side("gemma2", "generate", compute=right.plain), Side("gemma2", "generate", compute=right.exp2)), True,
        "Only rounding: B works in tiles of 16 by exp2, log2(e) multiplied into the scores.", 0, 0, "",
    ),
    Pair(
        "chunked_prefill",
        both(Side("llama", "generate", chunks=(20, *[1] * 7)), Side("llama", "generate", chunks=(8, 8, 4, *[1] * 7))),
        True,
        "Only rounding: the 20 tokens of the prompt are one pass in A and passes of 8, 8 and 4 in B.", 0, 0, "",
    ),
    Pair(
        "one_pass_and_decode",
        both(Side("qwen3", "generate", chunks=(27,)), Side("qwen3", "generate", chunks=(20, *[1] * 7), style="sdpa")),
        True,
        "Only rounding: the same 27 tokens in one pass in A, as in training, by prefill and 7 steps of decode in B.",
        0, 0, "",
    ),
    Pair(
        "sinks_in_another_place",
        both(Side("gpt_oss", "generate", dtype=BF16, compute=right.plain),
             Side("gpt_oss", "generate", dtype=BF16, compute=right.tiled)), True,
        "Only rounding: the sinks join the softmax in the end in A and start the running sum in B, in bfloat16.",
        0, 0, "",
    ),
    Pair(
        "position_bias_and_mask",
        both(Side("t5", padding="right"), Side("t5", padding="right", style="sdpa")), True,
        "Only rounding: eager adds position bias and mask to scores, sdpa is given their sum.", 0, 0, "",
    ),
    Pair(
        "rope_of_another_base",
        both(Side("llama", "generate"), Side("llama", "generate", fields=rope(500000.0))), False,
        "RoPE has base 500000 in B and 10000 in A: q and k differ from layer 0, step 0 on, in rows 1 and later; v of "
        "layer 0 is the same.", 0, 0, "q",
    ),
    Pair(
        "eps_of_rms_norm",
        both(Side("mistral"), Side("mistral", fields=(("rms_norm_eps", 1e-3),))), False,
        "The eps of RMSNorm is 1e-3 in B and 1e-6 in A: q, k and v are smaller by 5e-4 from layer 0, step 0 on, in "
        "all rows.", 0, 0, "q",
    ),
    Pair(
        "one_other_token",
        both(Side("gpt2", "generate"), Side("gpt2", "generate", inputs=one_other_token)), False,
        "Sequence 1 reads another token in step 4: its q, and the last row of its k and v, differ from layer 0 on; "
        "sequence 0 is the same throughout.", 0, 4, "q",
    ),
    Pair(
        "another_model",
        both(Side("qwen3"), Side("qwen3", seed=99)), False,
        "B is another model of the same shape: q, k and v differ from layer 0, step 0 on, in all rows.", 0, 0, "q",
    ),
    Pair(
        "values_of_another_layer",
        both(Side("llama"), Side("llama", change=values_of_layer_0)), False,
        "Layer 1 of B has v_proj of layer 0: its v differs in all rows, its q and k do not.", 1, 0, "v",
    ),
    Pair(
        "slot_one_early",
        both(Side("llama", "generate", cache=DynamicCache), Side("llama", "generate", cache=SlotOneEarly)), False,
        "In layer 1 of B the row of step 3 is written one slot early: k and v differ in rows 21 and 22, the last, "
        "which is 0; q is the same in that call.", 1, 3, "k",
    ),
    Pair(
        "row_overwritten",
        both(Side("llama", "generate", cache=DynamicCache), Side("llama", "generate", cache=RowOverwritten)), False,
        "In layer 0 of B row 5 of k and v of sequence 0 holds that of step 4 from step 4 on; sequence 1 is the same.",
        0, 4, "k",
    ),
    Pair(
        "positions_count_padding",
        both(Side("gpt2", padding="left", inputs=positions_of_tokens),
             Side("gpt2", padding="left", inputs=positions_of_slots)), False,
        "B counts the 6 padded slots of sequence 0 as positions: its q, k and v differ from layer 0, step 0 on, in "
        "rows 1 and later; sequence 1 is the same.", 0, 0, "q",
    ),
    Pair(
        "rotations_count_padding",
        both(Side("qwen3", padding="left", inputs=positions_of_tokens),
             Side("qwen3", padding="left", inputs=positions_of_slots)), False,
        "B rotates q and k of sequence 0 by 6 positions more in layer 0, step 0: both differ in rows 1 and later; v "
        "and out do not, as scores depend on distances alone; sequence 1 is the same.", 0, 0, "q",
    ),
    Pair(
        "scale_wrong_in_one_layer",
        both(Side("llama", "generate", compute=right.plain),
             Side("llama", "generate", attention=bugs.in_layer("llama", 1, bugs.hidden_size_scale))), False,
        "The function of B scales by 0.125 in layer 1, where it is told 0.25: out of layer 1 is wrong in all rows but "
        "row 0, from the same q, k and v.", 1, 0, "out",
    ),
    Pair(
        "another_scale_asked",
        both(Side("llama"), Side("llama", change=scaling_of_layer_1)), False,
        "Layer 1 of B asks for a scale of 0.3, that of A for 0.25: out differs from the same q, k and v, and each is "
        "right for what it was asked.", 1, 0, "out", asks=True,
    ),
    Pair(
        "another_window",
        both(Side("mistral"), Side("mistral", fields=(("sliding_window", 10),))), False,
        "The sliding window is 10 keys in B and 9 in A: out differs from layer 0, step 0 on, in rows 9 and later, from "
        "the same q, k and v; each is right for what it was asked.", 0, 0, "out", asks=True,
    ),
    Pair(
        "heads_of_another_group",
        both(Side("mistral", "generate", compute=right.plain, style="boolean"),
             Side("mistral", "generate", style="boolean", attention=bugs.in_layer("mistral", 1, bugs.gqa_modulo))),
        False,
        "The function of B reads kv head h % 2 in layer 1: out of heads 1 and 2 is wrong in all rows, from the same q, "
        "k and v.", 1, 0, "out",
    ),
    Pair(
        "key_norm_not_loaded",
        both(Side("qwen3", "generate"), Side("qwen3", "generate", change=no_key_norm)), False,
        "The weight of k_norm is 1 in layer 1 of B, as it was before it was loaded: k differs in all rows, q and v do "
        "not.", 1, 0, "k",
    ),
    Pair(
        "mask_not_given",
        both(Side("bert", padding="right"), Side("bert", padding="right", inputs=without_mask)), False,
        "B was given no mask: sequence 1 sees its 6 padded keys, so that its out differs in all rows from layer 0 on, "
        "from the same q, k and v; each is right for what it was asked.", 0, 0, "out", asks=True,
    ),
    Pair(
        "sinks_of_another_layer",
        both(Side("gpt_oss"), Side("gpt_oss", change=sinks_of_layer_0)), False,
        "Layer 1 of B has the sinks of layer 0: out differs in all rows, from the same q, k and v; each is right for "
        "what it was asked.", 1, 0, "out", asks=True,
    ),
    Pair(
        "another_activation",
        both(Side("llama", style="sdpa"), Side("llama", style="sdpa", change=another_activation)), False,
        "The MLP of layer 0 of B has GELU in the place of SiLU: all of layer 0 is the same, q, k and v of layer 1 "
        "differ in all rows.", 1, 0, "q",
    ),
    Pair(
        "cache_in_fp8",
        both(Side("llama", "generate", cache=DynamicCache), Side("llama", "generate", cache=StoredInFp8)), False,
        "B stores k and v as float8 e4m3: step 0 is the same, from step 1 on k and v differ from layer 0 on in all "
        "rows but the newest, by up to 6 %.", 0, 1, "k",
    ),
)  # fmt: skip
