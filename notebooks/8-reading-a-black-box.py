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
# # 8. Reading a black box
#
# A compiled kernel that returns `out` and nothing else. No probe, no source, and no list of faults: a kernel that can be
# called can be measured, since `out` is linear in V, ln P is linear in the scores, and a word of levels for each element
# tells which element stands where.
#
# ## A merge that forgets its sums
#
# Split-K over four splits. Of each partial result the maximum is used, and its sum is not.

# %%
import numpy as np

import workbench
from workbench import Case, diff, run


def split_k(q, k, v, *, scale, causal):
    scores = np.split(q @ np.swapaxes(k, -1, -2) * np.float32(scale), 4, axis=-1)
    tops = [s.max(-1, keepdims=True) for s in scores]
    probs = [np.exp(s - top) for s, top in zip(scores, tops, strict=True)]
    partial_O = [p @ x / p.sum(-1, keepdims=True) for p, x in zip(probs, np.split(v, 4, axis=2), strict=True)]
    weights = [np.exp(top - np.max(tops, axis=0)) for top in tops]
    return sum(w * o for w, o in zip(weights, partial_O, strict=True)) / sum(weights)


case = Case(heads=2, seqlen=64, head_dim=32)
d = diff(run(split_k, case))
assert d.verdict == "bug"
d

# %% [markdown]
# `out` is wrong, and that is all that `diff` can say of it. With columns of the identity in place of V, `out` is the
# matrix of weights P itself, for these very q and k. Here is ln(P / expected), the picture to look at first: constant
# within a split, another number in each row.

# %%
found = workbench.measure(split_k, case)
found.plot()

# %% [markdown]
# The edges are those of the splits. What could make such steps, loops over tiles and merges with one wrong step each, is
# held against the run. One of them is it:

# %%
assert found.proved
print(found)

# %% [markdown]
# The last two lines are the proof. The finding is put into float64 attention, which then predicts `out` on inputs that no
# reading saw. Everything is data: `found.weights` is P as it was read, `found.findings[0].data` has the merge that was
# found.

# %%
ratio = np.log(found.weights / found.expected_weights)[0, 0, 5]
assert np.allclose(ratio[:16], ratio[0], atol=1e-3) and abs(ratio[16] - ratio[15]) > 0.01
np.round(ratio[::8], 3), found.findings[0].data["kernel"].words

# %% [markdown]
# ## Both halves of an FP8 bug
#
# Attention on e4m3 codes, with decode tables in shared memory and products on tensor cores, has many places for an index
# to go wrong. `examples/fp8_attention.cu` is such a kernel; this is its NumPy twin, with two faults at once: the table of
# V has 128 entries, so that signs are lost, and fragments of K are loaded in the other order.

# %%
import sys

sys.path.insert(0, "../examples")
import fp8_attention

codes = Case(heads=2, seqlen=64, head_dim=64, codes="e4m3")
found = workbench.measure(fp8_attention.numpy_sign_and_fragment, codes)
assert found.proved and len(found.findings) == 2
print(found)

# %% [markdown]
# The table was read entry by entry, of columns of one code each. Then numbers were made of codes that are decoded right,
# and K in words of two of them. What stands where is one rule that holds for all of its elements:

# %%
table, layout = (found.findings[0].data["v"], found.findings[1].data["k"])
rows, dims = np.divmod(layout, 64)
print("code 0x90 of V:", table[0x90], "  K at row 3, dim 17 is row", rows[3, 17], "dim", dims[3, 17])
assert table[0x90] > 0 and (rows[3, 17], dims[3, 17]) == (1, 19)

# %% [markdown]
# On a GPU the CUDA kernel is read in the same way, in five seconds:
# `workbench measure examples/fp8_attention.py:sign_and_fragment --codes e4m3 --heads 4`. What is read in which order, and
# how far it can be trusted, is in [docs/trust.md](../docs/trust.md#what-is-measured).
