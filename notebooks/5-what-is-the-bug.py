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
# `diff` names the first wrong stage. `explain` names the bug in it, and proves it: injecting a known bug into the
# float64 reference must reproduce all of the kernel's wrong numbers to within budget.
#
# ## From a full dump
#
# This Split-K kernel has a wrong merge:

# %%
from workbench import Case, diff, run
from workbench.report.causes import lines

case = Case(seqlen=96, head_dim=32, heads=2, block_q=32, block_k=32, splits=2, causal=True)
d = diff(run("split_k", case, faults=["reduce-double-counts-sum"]))
d

# %% [markdown]
# `merge_weight` is wrong given its own inputs. What is the bug?

# %%
found = d.explain()
assert found.causes[0].id == "merge.weight-times-sum" and found.causes[0].proved
print("\n".join(lines(d, found)))

# %% [markdown]
# The proof has two parts. The cause reproduces every element of `merge_weight` within its budget. It also predicts what
# the kernel computes on fresh cases.
#
# ## From the output alone
#
# Here only `out` and `lse` were dumped. `explain` computes the whole chain of stages with each known bug:

# %%
flash = case.but(splits=None)
d = diff(run("flash", flash, faults=["flash-stale-max"], probes="output"))
found = d.explain()
assert found.causes[0].id == "softmax.subtracts-stale"
print("\n".join(lines(d, found)))

# %% [markdown]
# ## Two bugs at once

# %%
d = diff(run("flash", flash, faults=["flash-causal-off-by-one", "flash-lse-base-2"]))
found = d.explain()
assert [cause.stage for cause in found.causes] == ["scores", "lse"]
for cause in found.causes:
    print(f"{cause.stage}: {cause.text}")

# %% [markdown]
# ## An unknown bug
#
# This kernel has a bug that is not in the library: it adds half of the next row's sum to each row's sum. `explain` names
# no cause, but finds a formula for the numbers.

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
# The sum is wrong in every row, in proportion to the sum of the next row:

# %%
d.heatmap("row_sum")
