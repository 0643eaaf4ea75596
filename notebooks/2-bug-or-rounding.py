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
# # 2. Bug or rounding
#
# Two attention kernels in bfloat16, alike but for one line: one stores `out` rounded to the nearest value, as it
# should, the other rounded toward zero, which is what dropping the lower bits of a float32 does. Their outputs look
# the same. Is the difference from float64 a bug, or rounding?

# %%
from workbench import Case, diff, run

case = Case(seqlen=128, head_dim=64, dtype="bfloat16", probs_dtype="bfloat16", seed=1)
right = diff(run("flash", case))
wrong = diff(run("flash", case, faults=["flash-out-truncated"]))

# %% [markdown]
# ## What the usual rules say
#
# Three tolerances that are common in tests, each with the error that it looks at in the right kernel, in the wrong
# one, and the largest that it allows:

# %%
both = list(zip(right.rules, wrong.rules, strict=True))
assert all(good.passes and bad.passes for good, bad in both)
{good.name: (good.value, bad.value, bad.limit) for good, bad in both}

# %% [markdown]
# Both kernels pass every rule. A tolerance is one number for all elements, so it has to be as wide as the worst of
# them needs, and a wrong rounding of the others is lost in it.
#
# ## What a budget says
#
# A **budget** is derived for each element: the largest error that a kernel can make there which keeps its
# **contract**, the dtypes and casts that it promises.

# %%
assert right.verdict == "rounding"
right

# %%
assert wrong.origins == ("out",)
wrong

# %% [markdown]
# The wrong kernel has a bug in `out`, and only there. Given what it read, `out` may be off by half an ulp of
# bfloat16, and by nothing else. The histograms count the errors in units of that budget, the right kernel's first:

# %%
right["out"].plot()

# %%
wrong["out"].plot()

# %%
largest = [d["out"].worst()[0].over_budget for d in (right, wrong)]
assert largest[0] <= 1 < 1.9 < largest[1] < 2
largest

# %% [markdown]
# Rounding to nearest takes an error up to the budget and no further; dropping bits takes it up to twice as far.
#
# ## How far rounding goes
#
# Sums are another matter: their budgets add up the worst case of every operation, and independent roundings cancel.
# The dashed tick in the picture of `acc` is the **statistical** budget, which they exceed anywhere in the stage in
# one run of a million. The worst element is well below that:

# %%
right["acc"].plot()

# %%
import numpy as np

statistical = float(np.median(right["acc"].isolated.statistical))
assert right["acc"].worst()[0].over_budget < statistical < 1
right["acc"].worst()[0].over_budget, statistical

# %% [markdown]
# ## To which side
#
# Signed errors show what kind of rounding it is. Above in ulps of bfloat16: nothing of the right kernel's is beyond
# half an ulp. Below in units of budget: errors on both sides, whatever the sign of the element.

# %%
right["out"].plot_errors()

# %% [markdown]
# In the wrong kernel positive elements are too small and negative ones too large: that is rounding toward zero, and
# no noise in the sums. (The mean stays near 0, since there are as many elements of either sign.)

# %%
wrong["out"].plot_errors()

# %% [markdown]
# The share of elements that are the correct rounding of what they should be, to the last bit, in both kernels:

# %%
from workbench.expectation.elements import State

matches = [d["out"].isolated.summary.count(State.EXACT) / d["out"].isolated.summary.size for d in (right, wrong)]
assert matches[0] == 1 and 0.4 < matches[1] < 0.6
matches

# %% [markdown]
# ## What the budget is made of
#
# Now suppose that nobody saw anything but `out`, and that nobody knows how the kernels round their probabilities.
# Then a budget has to allow any rounding of them. For the right kernel's worst element these are the sources of
# error, with their shares of the budget:

# %%
from dataclasses import replace

from workbench.judge.explain.budget_shares import terms

outputs = [run("flash", case, probes="output", faults=faults) for faults in ([], ["flash-out-truncated"])]
unknown = replace(outputs[0].contract, probs_rounding="any")
black_boxes = [diff(replace(trace, contract=unknown)) for trace in outputs]
shares = terms(black_boxes[0].run, black_boxes[0]["out"])
assert next(iter(shares)) == "the cast of probs to bfloat16"
shares

# %% [markdown]
# Most of it is the cast of probs, and the wrong kernel's truncation hides in it. Judged by what the kernel really
# promises, the rounding of probs to nearest, the same `out` shows it:

# %%
declared = diff(outputs[1])
assert (black_boxes[1].verdict, declared.verdict) == ("rounding", "bug")
[(d.verdict, d["out"].worst()[0].over_budget) for d in (black_boxes[1], declared)]

# %% [markdown]
# What you say of your kernel makes its budget tighter, and finds more.
#
# ## What cancels
#
# A third cause is often blamed, and is neither bug nor rounding: a sum whose terms cancel has few good bits left,
# however well it is computed. This is how many of float32's bits each sum of the wrong kernel loses:

# %%
wrong.plot_cancellation()

# %% [markdown]
# How many elements of `out` have fewer than 4 good bits left, and how many are outside their budget:

# %%
from workbench.judge.cancellation import ill_conditioned

few, outside = int(ill_conditioned(wrong.bits_lost["out"]).sum()), wrong["out"].isolated.summary.outside
assert outside > 100 * few
few, outside

# %% [markdown]
# Cancellation does not explain it. The bug is a bug, in the line that stores `out`.
