"""Online softmax whose maximum goes 4 above the largest score seen, so that it seldom has to move again."""

from campaigns.styles import CORRECT

STYLE = next(style for style in CORRECT if style.name == "headroom")


def attention(q, k, v, *, scale, causal):
    return STYLE.function(q, k, v, scale=scale, causal=causal)["out"]
