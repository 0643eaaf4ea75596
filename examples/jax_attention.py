"""Attention in JAX.

workbench diff examples/jax_attention.py:attention --arrays jax --dtype bfloat16 --causal
"""

from functools import partial

import jax
import jax.numpy as jnp

CONTRACT = {"scores_dtype": "float32", "probs_dtype": "float32"}


@partial(jax.jit, static_argnames="causal")
def stages(q, k, v, scale, causal):
    """Scores, out and lse of q [batch, heads, seqlen_q, head_dim], k and v [batch, kv_heads, seqlen_k, head_dim]."""
    group = q.shape[1] // k.shape[1]
    wide = partial(jnp.einsum, precision="highest", preferred_element_type=jnp.float32)  # no TF32 on a GPU
    k, v = jnp.repeat(k, group, axis=1), jnp.repeat(v, group, axis=1)
    scores = wide("bhqd,bhkd->bhqk", q, k) * scale
    if causal:  # bottom-right: the last query sees every key
        visible = jnp.tri(q.shape[2], k.shape[2], k.shape[2] - q.shape[2], dtype=bool)
        scores = jnp.where(visible, scores, -jnp.inf)
    lse = jax.nn.logsumexp(scores, axis=-1)
    probs = jnp.where(scores == -jnp.inf, 0.0, jnp.exp(scores - lse[..., None]))
    out = wide("bhqk,bhkd->bhqd", probs, v.astype(jnp.float32)).astype(q.dtype)
    return {"scores": scores, "out": out, "lse": lse}


def attention(q, k, v, *, scale, causal):
    """What `stages` returns, and the contract."""
    return stages(q, k, v, scale, causal) | {"contract": CONTRACT}
