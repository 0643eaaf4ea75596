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
# Two attention kernels in bfloat16 differ in one line. The right one rounds `out` to the nearest value when it stores
# it. The wrong one rounds toward zero, as a cast does that drops the lower bits of a float32. Their outputs look the
# same. Is the difference from float64 a bug, or rounding?

# %%
from workbench import Case, diff, run

case = Case(seqlen=128, head_dim=64, dtype="bfloat16", probs_dtype="bfloat16", seed=1)
right = diff(run("flash", case))
wrong = diff(run("flash", case, faults=["flash-out-truncated"]))

# %% [markdown]
# ## Common tolerances
#
# Each of these three rules is common in tests. The numbers are the error in the right kernel, the error in the wrong
# kernel, and the largest error that the rule allows:

# %%
both = list(zip(right.rules, wrong.rules, strict=True))
assert all(good.passes and bad.passes for good, bad in both)
{good.name: (good.value, bad.value, bad.limit) for good, bad in both}

# %% [markdown]
# Both kernels pass every rule. A tolerance is one number for all elements. It must be wide enough for the worst element,
# so it hides a wrong rounding of the others.
#
# ## A budget for each element
#
# The **budget** of an element is the largest error that a kernel can make there if it keeps its **contract**: the dtypes
# and casts that are declared for it.

# %%
assert right.verdict == "rounding"
right

# %%
assert wrong.origins == ("out",)
wrong

# %% [markdown]
# The wrong kernel has a bug in `out`, and only there. Given its inputs, `out` may be off by half an ulp of bfloat16 and
# no more. The histograms show the errors in units of that budget, first for the right kernel, then for the wrong one:

# %%
right["out"].plot()

# %%
wrong["out"].plot()

# %%
largest = [d["out"].worst()[0].over_budget for d in (right, wrong)]
assert largest[0] <= 1 < 1.9 < largest[1] < 2
largest

# %% [markdown]
# With rounding to nearest, errors reach the budget but do not exceed it. Dropped bits make errors up to twice as large.
#
# ## How far rounding goes
#
# Sums are different: their budgets add up the worst case of every operation, but independent roundings mostly cancel.
# The dashed tick in the picture of `acc` is the **statistical** budget. In only one run of a million, some element of
# the stage exceeds it. Here the worst element is well below it:

# %%
right["acc"].plot()

# %%
import numpy as np

statistical = float(np.median(right["acc"].isolated.statistical))
assert right["acc"].worst()[0].over_budget < statistical < 1
right["acc"].worst()[0].over_budget, statistical

# %% [markdown]
# ## Signed errors
#
# Signed errors show the kind of rounding. The upper picture has ulps of bfloat16: no error of the right kernel exceeds
# half an ulp. The lower picture has units of the budget: errors lie on both sides, whatever the sign of the element.

# %%
right["out"].plot_errors()

# %% [markdown]
# In the wrong kernel, positive elements are too small and negative ones too large. That is rounding toward zero, not
# noise in the sums. (The mean stays near 0, because about half of the elements are positive.)

# %%
wrong["out"].plot_errors()

# %% [markdown]
# These are the shares of elements that are correctly rounded to the last bit, in the right and in the wrong kernel:

# %%
from workbench.expectation.elements import State

matches = [d["out"].isolated.summary.count(State.EXACT) / d["out"].isolated.summary.size for d in (right, wrong)]
assert matches[0] == 1 and 0.4 < matches[1] < 0.6
matches

# %% [markdown]
# ## What the budget is made of
#
# Now suppose that only `out` was dumped, and that the contract does not declare how probs are rounded. Then the budget
# has to allow any rounding of probs. These are the sources of error in the right kernel's worst element, with their
# shares of the budget:

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
# Most of the budget is for the cast of probs, and the wrong kernel's truncation hides in it. If the contract declares
# that probs are rounded to nearest, the same `out` reveals the bug:

# %%
declared = diff(outputs[1])
assert (black_boxes[1].verdict, declared.verdict) == ("rounding", "bug")
[(d.verdict, d["out"].worst()[0].over_budget) for d in (black_boxes[1], declared)]

# %% [markdown]
# Declaring your kernel's arithmetic makes budgets tighter and finds more bugs.
#
# ## Cancellation
#
# Cancellation is often blamed, too: a sum whose terms cancel has few good bits left, however well it is computed. The
# picture shows how many of float32's 24 bits each sum of the wrong kernel loses:

# %%
wrong.plot_cancellation()

# %% [markdown]
# The first number counts elements of `out` with fewer than 4 good bits; the second counts elements over budget:

# %%
from workbench.judge.cancellation import ill_conditioned

few, outside = int(ill_conditioned(wrong.bits_lost["out"]).sum()), wrong["out"].isolated.summary.outside
assert outside > 100 * few
few, outside

# %% [markdown]
# Cancellation does not explain the errors. The bug is in the line that stores `out`.
