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
# # 6. Bring your own kernel
#
# Your function passes the usual test. This notebook writes a property test that it fails, finds the smallest failing
# case, and names the bug.
#
# ## A torch function
#
# This function computes attention in tiles of 32 keys, with an online softmax. One line is wrong.

# %%
import torch


def tiled(q, k, v, *, scale, causal):
    group = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(group, dim=1).float() for x in (k, v))
    rows, keys = torch.arange(q.shape[2])[:, None], torch.arange(k.shape[2])
    top = torch.full(q.shape[:3], -torch.inf)
    total, acc = torch.zeros(q.shape[:3]), torch.zeros(*q.shape[:3], v.shape[-1])
    for start in range(0, k.shape[2], 32):
        tile = slice(start, start + 32)
        scores = q.float() @ k[:, :, tile].transpose(-1, -2) * scale
        if causal:
            scores = scores.masked_fill(keys[tile] > rows + k.shape[2] - q.shape[2], -torch.inf)
        new = torch.maximum(top, scores.amax(-1))
        safe = torch.where(new == -torch.inf, 0.0, new)
        probs = torch.exp(scores - safe[..., None])
        correction = torch.exp(top - safe)
        total = total * correction + probs.sum(-1)
        acc = acc + probs @ v[:, :, tile]  # the bug: acc is not corrected
        top = new
    out = torch.where(total[..., None] > 0, acc / total[..., None], 0.0)
    return out.to(q.dtype), top + torch.log(total)


# %% [markdown]
# The usual test has normal numbers, one shape and a tolerance. The function passes it.

# %%
from workbench import Case

q, k, v = (torch.from_numpy(x) for x in Case(heads=2, seqlen=32, head_dim=32).inputs())
out, _ = tiled(q, k, v, scale=32**-0.5, causal=True)
torch.testing.assert_close(out, torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True))

# %% [markdown]
# A property test takes any case, and budgets instead of a tolerance. Hypothesis searches for a failing case, then makes
# it smaller.

# %%
from hypothesis import given, settings

from workbench.testing import AttentionError, assert_attention, cases


@settings(max_examples=30, deadline=None, derandomize=True, database=None, report_multiple_bugs=False)
@given(cases(window=None, softcap=None, causal_alignment="bottom-right"))
def test_tiled(case):
    assert_attention(tiled, case, arrays="torch")


try:
    test_tiled()
except AttentionError as error:
    failed = error.diff
print(failed)

# %% [markdown]
# Hypothesis keeps the first wrong stage while it makes the case smaller. `shrink` also keeps the cause and verifies it at
# each step. Then it tries plain numbers as inputs, and finds where the failure begins:

# %%
from workbench import diff, run, shrink

large = diff(run(tiled, Case(heads=2, seqlen=70, head_dim=16), arrays="torch"))
small = shrink(large, effort=3)
print(small)
assert 32 < small.smallest.seqlen_k < 70 and small.cause is not None and "correction" in small.cause.text

# %% [markdown]
# The function fails if there are more keys than one tile has, because the correction is not applied. In the large case
# most rows are wrong. The right rows are those with their maximum in the first tile:

# %%
large.heatmap("out")

# %% [markdown]
# ## A NumPy function
#
# This function has grouped heads, and a mask that is right only if there are as many queries as keys.

# %%
import numpy as np


def grouped(q, k, v, *, scale, causal):
    batch, heads, rows, dim = q.shape
    q = q.reshape(batch, k.shape[1], heads // k.shape[1], rows, dim).astype(np.float32)
    scores = np.einsum("bgrqd,bgkd->bgrqk", q, k.astype(np.float32)) * np.float32(scale)
    if causal:
        scores = np.where(np.tri(rows, k.shape[2], dtype=bool), scores, -np.inf)
    top = scores.max(-1, keepdims=True)
    probs = np.exp(scores - top)
    out = np.einsum("bgrqk,bgkd->bgrqd", probs / probs.sum(-1, keepdims=True), v.astype(np.float32))
    return out.reshape(batch, heads, rows, dim).astype(k.dtype)


judged = diff(run(grouped, Case(heads=4, kv_heads=2, seqlen_q=50, seqlen_k=80, head_dim=32, causal=True)))
small = shrink(judged, effort=0.5)
print(small)
assert small.smallest.causal and small.smallest.seqlen_k != small.smallest.seqlen_q

# %% [markdown]
# ## Without a reference
#
# Laws need no reference: they compare a kernel with itself. On exact inputs, a right kernel rounds nothing, so not even
# a budget is needed:

# %%
exact = diff(run(grouped, Case(seqlen_q=50, seqlen_k=80, head_dim=32, causal=True, distribution="exact")))
assert exact.verdict == "bug"
exact
