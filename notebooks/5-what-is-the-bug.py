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
# # 5. What is the bug
#
# `diff` names the first wrong stage. `explain` says what is wrong in it, and proves it: a named fault, put into the
# float64 reference, must give the kernel's wrong numbers, within the error budget, all of them.
#
# ## From a full dump
#
# A Split-K kernel whose merge is wrong:

# %%
from workbench import Case, diff, run
from workbench.report.causes import lines

case = Case(seqlen=96, head_dim=32, heads=2, block_q=32, block_k=32, splits=2, causal=True)
d = diff(run("split_k", case, faults=["reduce-double-counts-sum"]))
d

# %% [markdown]
# `merge_weight` is wrong on its own inputs. What is wrong in it?

# %%
found = d.explain()
assert found.causes[0].id == "merge.weight-times-sum" and found.causes[0].proved
print("\n".join(lines(d, found)))

# %% [markdown]
# The proof has two halves. Every element of `merge_weight` is reproduced within its budget; and the same cause predicted
# what the kernel does on a case that nobody had run, and was right.
#
# ## From the output alone
#
# Nobody dumped anything but `out` and `lse`. The whole chain is computed with each fault:

# %%
flash = case.but(splits=None)
d = diff(run("flash", flash, faults=["flash-stale-max"], probes="output"))
found = d.explain()
assert found.causes[0].id == "softmax.subtracts-stale"
print("\n".join(lines(d, found)))

# %% [markdown]
# ## Two at once

# %%
d = diff(run("flash", flash, faults=["flash-causal-off-by-one", "flash-lse-base-2"]))
found = d.explain()
assert [cause.stage for cause in found.causes] == ["scores", "lse"]
for cause in found.causes:
    print(f"{cause.stage}: {cause.text}")

# %% [markdown]
# ## Unknown
#
# A kernel with a mistake that is in no list: a row's sum also takes half of what the next row has. No cause is named,
# and the formula says what the numbers are.

# %%
import numpy as np


def leaking(q, k, v, *, scale, causal):
    scores = q @ np.swapaxes(k, -1, -2) * np.float32(scale)
    top = scores.max(-1)
    probs = np.exp(scores - top[..., None])
    total = probs.sum(-1)
    total = total + np.float32(0.5) * np.roll(total, -1, axis=-1)
    stages = {"scores": scores, "row_max": top[..., None], "probs": probs, "row_sum": total[..., None]}
    contract = {"block_k": k.shape[2], "probs_dtype": "float32"}
    return stages | {"out": probs @ v / total[..., None], "lse": top + np.log(total), "contract": contract}


d = diff(run(leaking, Case(seqlen=96, head_dim=32, heads=2)))
found = d.explain()
assert found.causes == () and found.formulas["row_sum"]
print("\n".join(lines(d, found)))

# %% [markdown]
# Every row of the sum is off, and by as much as its neighbour is large:

# %%
d.heatmap("row_sum")
