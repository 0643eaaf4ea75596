# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 10. Linear attention, from a verdict to a line
#
# Any operation that has a naive version can be judged. Here it is gated linear attention: a state of keys times values,
# which decays at each token.
#
# ## The naive version
#
# One token at a time, slow and obvious. The workbench runs it in float64 and derives an error budget for every element.

# %%
import torch


def naive(q, k, v, g):
    state = torch.zeros(k.shape[-1], v.shape[-1])
    rows = []
    for t in range(q.shape[0]):
        decay = torch.exp(g[t])
        update = k[t][:, None] * v[t]
        state = decay * state + update
        rows.append(q[t] @ state)
    out = torch.stack(rows)
    return out, state


def inputs(seed, dtype, T=40, K=16, V=16):
    made = torch.Generator().manual_seed(seed)
    q, k, v = (torch.randn(T, n, generator=made).to(getattr(torch, dtype)) for n in (K, K, V))
    return {"q": q, "k": k, "v": v, "g": -torch.rand(T, generator=made) / 4}


# %% [markdown]
# ## The kernel
#
# It works in chunks of 16 tokens: one matrix product within a chunk, and one with the state that the chunk before left.
# One line is wrong.


# %%
def chunked(q, k, v, g, size=16):
    state = torch.zeros(k.shape[-1], v.shape[-1])
    rows = []
    for start in range(0, len(q), size):
        qc, kc, vc, gc = (x[start : start + size] for x in (q, k, v, g))
        total = gc.cumsum(0)
        within = torch.exp(total[:, None] - total).tril() * (qc @ kc.T)
        rows.append(within @ vc + torch.exp(total)[:, None] * (qc @ state))
        left = torch.exp(total[-1] - total)[:, None] * kc
        state = torch.exp(total[-1] - gc[-1]) * state + left.T @ vc  # the bug: the last gate does not decay the state
    return torch.cat(rows), state


# %% [markdown]
# ## The usual test
#
# It compares with the naive version in float32, at a tolerance for bfloat16. With gates this close to 1, it passes.

# %%
made = inputs(0, "float32")
close = torch.allclose(chunked(**made)[0], naive(**made)[0], atol=1.0, rtol=0.1)
close

# %% [markdown]
# ## The verdict

# %%
from workbench import diff

d = diff(chunked, reference=naive, inputs=inputs)
d

# %% [markdown]
# Both results are over budget. A budget is the largest error that a correct float32 kernel can make at an element. Its
# parts come from lines of the reference:

# %%
d.plot_sources("out")

# %% [markdown]
# ## The first wrong line
#
# Return an intermediate under the reference's name, and the search narrows. A chunked kernel has the state after each
# chunk: `state[15]` and `state[31]` of the naive loop.


# %%
def staged(q, k, v, g, size=16):
    out, state = chunked(q, k, v, g, size)
    ends = range(size, len(q) + 1, size)
    return {"out": out, "state": state} | {
        f"state[{t - 1}]": chunked(q[:t], k[:t], v[:t], g[:t], size)[1] for t in ends
    }


d = diff(staged, reference=naive, inputs=inputs)
d

# %% [markdown]
# `state[15]` is right: the first chunk starts from a state of zeros, which a wrong decay leaves as it is. `state[31]` is
# the first wrong stage. So the bug is in how a chunk takes over the state of the one before.
#
# ## The cause

# %%
d.explain()

# %% [markdown]
# ## Fixed


# %%
def fixed(q, k, v, g, size=16):
    state = torch.zeros(k.shape[-1], v.shape[-1])
    rows = []
    for start in range(0, len(q), size):
        qc, kc, vc, gc = (x[start : start + size] for x in (q, k, v, g))
        total = gc.cumsum(0)
        within = torch.exp(total[:, None] - total).tril() * (qc @ kc.T)
        rows.append(within @ vc + torch.exp(total)[:, None] * (qc @ state))
        left = torch.exp(total[-1] - total)[:, None] * kc
        state = torch.exp(total[-1]) * state + left.T @ vc
    return torch.cat(rows), state


d = diff(fixed, reference=naive, inputs=inputs)
d.verdict
