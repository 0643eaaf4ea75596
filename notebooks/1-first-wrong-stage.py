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
# A Split-K attention kernel returns a wrong `out`. Somewhere between `q @ k^T` and the last division it went astray,
# and `out` alone will not tell you where. Let us find the place. No GPU is needed: without one, the kernel runs on
# the CPU, compiled from the same source.
#
# First a **case**: shapes, mask, tiles, splits, and a seed for q, k and v. Then the kernel, with one line of its
# reduce broken in a way that a real kernel once was. `run` returns a **trace**, with every intermediate that the
# kernel computed.

# %%
from workbench import Case, diff, run

case = Case(seqlen=128, head_dim=64, causal=True, splits=4, block_k=32)
trace = run("split_k", case, faults=["reduce-double-counts-sum"])
list(trace.stages)

# %% [markdown]
# ## What the output says
#
# `diff` holds the trace against float64. Each element has its own **budget**, the largest rounding error that a
# correct kernel can make there, so there is no tolerance to choose. This is the fraction of `out` that rounding
# cannot explain:

# %%
d = diff(trace)
wrong = d["out"].propagated.outside.mean()
assert wrong > 0.99
wrong

# %% [markdown]
# More than 99 % of `out` is wrong: clearly a bug, and no hint at all. Looking at intermediates is not enough either,
# for each inherits what earlier ones got wrong, and need not be at fault itself.
#
# ## What each stage says for itself
#
# So every stage is judged twice. Its **isolated** error compares it with float64 arithmetic on *the very inputs that
# the kernel used for it*, its **propagated** error with what q, k and v should have led to. A stage outside its
# budget by its isolated error is an **origin**: it went wrong on its own. One outside only by its propagated error is
# a **victim**.

# %%
assert d.origin == "merge_weight"
assert d.origins == ("merge_weight",)
assert d.victims == ("out",)
d

# %% [markdown]
# One origin, `merge_weight`, and one victim, `out`. The partial results of the splits are right. So is `merge_sum`,
# which this kernel computes from weights of its own. The same at a glance, in units of the budget: bars are isolated
# errors, diamonds propagated ones.

# %%
d.plot()

# %% [markdown]
# ## Where in the stage
#
# The histogram tells rounding from a bug: rounding alone stays to the left of 1.

# %%
d["merge_weight"].plot()

# %% [markdown]
# The map shows which queries and splits are affected.

# %%
d.heatmap("merge_weight")

# %% [markdown]
# In numbers, along the axis of the splits: how many queries are outside their budget, and how many see the split at
# all, which begins with key 0, 32, 64 or 96.

# %%
outside = d["merge_weight"].profile("s").outside
seen = case.mask()[:, [0, 32, 64, 96]].sum(axis=0)
assert (seen - outside).tolist() == [1, 1, 1, 1]
outside, seen

# %% [markdown]
# In each split every query that sees it is wrong *but one*. The exception is the query on the diagonal, which sees a
# single key of the split. What is special about a single key? Its sum of exponentials, `partial_sum`, is exp(0) = 1.
#
# ## What went wrong
#
# The worst elements follow that hint up. By its definition, exp(partial_max - merge_max), a weight is never above 1:

# %%
worst = d["merge_weight"].worst(3)
assert worst[0].actual > 1
worst

# %% [markdown]
# How much too large is the worst one, and what is the `partial_sum` of its split?

# %%
factor = worst[0].actual / worst[0].expected
partial_sum = d["partial_sum"].at(**worst[0].index).decisive.actual.item()
assert abs(factor / partial_sum - 1) < 1e-6
factor, partial_sum

# %% [markdown]
# The same number: the weight was multiplied by the `partial_sum` of its split. That would be right for a `partial_O`
# that is already normalised. This one is not, so the sum is counted twice.
#
# ## The fix
#
# Without the fault, the kernel has the line as it should be:

# %%
fixed = diff(run("split_k", case))
assert fixed.origin is None
assert fixed.verdict == "rounding"
fixed

# %% [markdown]
# Every element of every stage is within its budget: what is left is rounding.
#
# The same works for a kernel of yours. `run(your_function, case)` takes a function of q, k and v, and the more of its
# intermediates the function returns, the closer `diff` gets to the line at fault.
