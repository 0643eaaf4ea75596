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
# `measure` needs only a kernel that it can call and that returns `out`: no probes, no source, no list of known bugs. It
# uses that `out` is linear in V and that ln P is linear in the scores. It also gives each element a unique code, to find
# out which element is read where.
#
# ## A merge that forgets its sums
#
# This Split-K kernel has four splits. Its merge uses the maximum of each partial result, but forgets the sum.

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
# `out` is wrong, and `diff` can find out no more from `out` alone. With columns of the identity as V, `out` is the matrix
# of weights P for these q and k. The picture shows ln(P / expected): it is constant within each split, and different in
# each row.

# %%
found = workbench.measure(split_k, case)
found.plot()

# %% [markdown]
# The edges are at the ends of the splits. `measure` tries loops over tiles and merges that have one wrong step, and
# compares each with the run. One of them fits:

# %%
assert found.proved
print(found)

# %% [markdown]
# The last two lines are the proof: float64 attention with this bug predicts `out` on new inputs. The results are also
# available as arrays: `found.weights` is the measured P, `found.findings[0].data` has the merge.

# %%
ratio = np.log(found.weights / found.expected_weights)[0, 0, 5]
assert np.allclose(ratio[:16], ratio[0], atol=1e-3) and abs(ratio[16] - ratio[15]) > 0.01
np.round(ratio[::8], 3), found.findings[0].data["kernel"].words

# %% [markdown]
# ## Both halves of an FP8 bug
#
# An FP8 kernel with decode tables in shared memory and products on tensor cores has many places for an index to go
# wrong. `examples/fp8_attention.cu` is such a kernel. This is its NumPy twin, with two bugs at once: the table of V has
# only 128 entries, so signs are lost; and fragments of K are loaded in transposed order.

# %%
import sys

sys.path.insert(0, "../examples")
import fp8_attention

codes = Case(heads=2, seqlen=64, head_dim=64, codes="e4m3")
found = workbench.measure(fp8_attention.numpy_sign_and_fragment, codes)
assert found.proved and len(found.findings) == 2
print(found)

# %% [markdown]
# `measure` reads the table entry by entry, with columns of V that have one code each. Then it uses only codes that are
# decoded correctly, to give each element of K a unique pair of codes. The layout it finds is one rule for all elements:

# %%
table, layout = (found.findings[0].data["v"], found.findings[1].data["k"])
rows, dims = np.divmod(layout, 64)
print("code 0x90 of V:", table[0x90], "  K at row 3, dim 17 is row", rows[3, 17], "dim", dims[3, 17])
assert table[0x90] > 0 and (rows[3, 17], dims[3, 17]) == (1, 19)

# %% [markdown]
# On a GPU, measuring the CUDA kernel takes five seconds:
# `workbench measure examples/fp8_attention.py:sign_and_fragment --codes e4m3 --heads 4`.
# [black-boxes](../docs/explanation/black-boxes.md#what-is-measured) lists what it measures in which order,
# [trust](../docs/trust/index.md#what-is-measured) how often it is right.
