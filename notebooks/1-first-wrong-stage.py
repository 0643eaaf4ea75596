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
# # 1. The first wrong stage
#
# A Split-K attention kernel returns a wrong `out`. The error arises somewhere between `q @ k^T` and the last division,
# but `out` alone does not show where. This notebook finds the place. No GPU is needed: without one, the kernel runs on
# the CPU, compiled from the same source.
#
# A **case** sets shapes, mask, tiles, splits, and a seed for q, k and v. `run` runs the kernel on it, here with one
# line of its reduce broken, as it once was in a real kernel. It returns a **trace** with every intermediate result
# (**stage**) that the kernel computed.

# %%
from workbench import Case, diff, run

case = Case(seqlen=128, head_dim=64, causal=True, splits=4, block_k=32)
trace = run("split_k", case, faults=["reduce-double-counts-sum"])
list(trace.stages)

# %% [markdown]
# ## What the output says
#
# `diff` compares the trace with float64. Each element has its own **budget**, the largest rounding error that a
# correct kernel can make there, so there is no tolerance to choose. This is the fraction of `out` that rounding
# cannot explain:

# %%
d = diff(trace)
wrong = d["out"].propagated.outside.mean()
assert wrong > 0.99
wrong

# %% [markdown]
# More than 99 % of `out` is wrong. That is clearly a bug, but no hint where. A wrong intermediate result is no proof
# either: it may only inherit the error of an earlier stage.
#
# ## Each stage on its own inputs
#
# So `diff` judges every stage twice. The **isolated** error compares the stage with float64 computed from *the inputs
# that the kernel used for it*. The **propagated** error compares it with float64 computed from q, k and v. A stage
# whose isolated error is over budget is an **origin**: it is wrong given its own inputs. A stage whose propagated error
# alone is over budget is a **victim**.

# %%
assert d.origin == "merge_weight"
assert d.origins == ("merge_weight",)
assert d.victims == ("out",)
d

# %% [markdown]
# There is one origin, `merge_weight`, and one victim, `out`. The partial results of the splits are right. So is
# `merge_sum`: this kernel computes it from other weights than `merge_weight`. The picture shows the errors in units of
# the budget: isolated errors as bars, propagated errors as diamonds.

# %%
d.plot()

# %% [markdown]
# ## Where in the stage
#
# The histogram separates rounding from a bug: rounding alone stays to the left of 1.

# %%
d["merge_weight"].plot()

# %% [markdown]
# The map shows which queries and splits are affected.

# %%
d.heatmap("merge_weight")

# %% [markdown]
# The first array counts, for each split, the queries that are over budget. The second counts the queries that see the
# split at all; the splits begin at keys 0, 32, 64 and 96.

# %%
outside = d["merge_weight"].profile("s").outside
seen = case.mask()[:, [0, 32, 64, 96]].sum(axis=0)
assert (seen - outside).tolist() == [1, 1, 1, 1]
outside, seen

# %% [markdown]
# In each split, all queries that see it are wrong *except one*: the query on the diagonal, which sees a single key of
# the split. What is special about a single key? Its sum of exponentials, `partial_sum`, is exp(0) = 1.
#
# ## What went wrong
#
# The worst elements confirm that hint. A weight is exp(partial_max - merge_max), so it should never exceed 1:

# %%
worst = d["merge_weight"].worst(3)
assert worst[0].actual > 1
worst

# %% [markdown]
# By which factor is the worst weight too large, and what is the `partial_sum` of its split?

# %%
factor = worst[0].actual / worst[0].expected
partial_sum = d["partial_sum"].at(**worst[0].index).decisive.actual.item()
assert abs(factor / partial_sum - 1) < 1e-6
factor, partial_sum

# %% [markdown]
# The numbers agree: the weight was multiplied by the `partial_sum` of its split. That would be right if `partial_O`
# were normalised. It is not, so the sum is counted twice.
#
# ## The fix
#
# Without the injected fault, the kernel has the correct line:

# %%
fixed = diff(run("split_k", case))
assert fixed.origin is None
assert fixed.verdict == "rounding"
fixed

# %% [markdown]
# Every element of every stage is within its budget: what is left is rounding.
#
# The same works for your kernel. `run(your_function, case)` takes a function of q, k and v. The more stages the function
# returns, the closer `diff` gets to the faulty line.
