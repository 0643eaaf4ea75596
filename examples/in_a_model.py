"""A Llama whose layer 7 ignores the padding of a prompt, and `workbench.capture`, which finds that call.

python examples/in_a_model.py
"""

import torch
from transformers import AttentionInterface, AttentionMaskInterface, LlamaConfig, LlamaForCausalLM
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

import workbench


def attend(module, q, k, v, mask, **kwargs):
    if module.layer_idx == 7:
        mask = None  # the bug: padding is ignored
    return sdpa_attention_forward(module, q, k, v, mask, **kwargs)


AttentionInterface.register("mine", attend)
AttentionMaskInterface.register("mine", sdpa_mask)
torch.manual_seed(0)
config = LlamaConfig(
    hidden_size=64,
    intermediate_size=64,
    num_hidden_layers=12,
    num_attention_heads=4,
    num_key_value_heads=2,
    vocab_size=100,
    initializer_range=0.15,
    attn_implementation="mine",
)
model = LlamaForCausalLM(config).eval()
tokens, padding = torch.randint(3, 100, (2, 10)), torch.ones(2, 10, dtype=torch.long)
padding[0, :4] = 0  # the first prompt is shorter: padded on the left
inputs = {"input_ids": tokens, "attention_mask": padding, "max_new_tokens": 5, "pad_token_id": 0}

with workbench.capture(model, "seen") as c:
    model.generate(**inputs)
print(c.report)
