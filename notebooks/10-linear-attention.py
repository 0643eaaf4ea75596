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
        within = torch.exp(total[:, None] - total).tril(-1) * (qc @ kc.T)  # the bug: a token does not see itself
        rows.append(within @ vc + torch.exp(total)[:, None] * (qc @ state))
        left = torch.exp(total[-1] - total)[:, None] * kc
        state = torch.exp(total[-1]) * state + left.T @ vc
    return torch.cat(rows), state


# %% [markdown]
# ## The verdict

# %%
from workbench import diff

d = diff(chunked, reference=naive, inputs=inputs)
d

# %% [markdown]
# `state` is right; `out` is wrong given that state. The cause is an edit of the reference that reproduces all 640
# numbers, also on fresh inputs: `out` reads the decayed state before the token's own update. So a token does not see
# itself.
#
# ## Where a budget comes from
#
# A budget is the largest error that a correct float32 kernel can make at an element. Each bar is a line of the
# reference:

# %%
d.plot_sources("state")

# %% [markdown]
# ## Stages
#
# A kernel that returns an intermediate under the reference's name narrows the search. A chunked kernel has the state
# after each chunk: `state[15]` and `state[31]` of the naive loop.


# %%
def staged(q, k, v, g, size=16):
    out, state = chunked(q, k, v, g, size)
    ends = range(size, len(q) + 1, size)
    return {"out": out, "state": state} | {
        f"state[{t - 1}]": chunked(q[:t], k[:t], v[:t], g[:t], size)[1] for t in ends
    }


diff(staged, reference=naive, inputs=inputs)

# %% [markdown]
# All states are right, so the carry from chunk to chunk is, too. `explain` searches for more causes than a report:

# %%
[name.text for cause in d.explain().causes for name in cause.names]

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
