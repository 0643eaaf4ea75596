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
# # 4. An investigation
#
# A Split-K kernel passes its tests and returns NaN in production. `diff` would name the stages at once, but you want to
# see for yourself: print a corner of a tile, put good partial results in front of the reduce, hold a kernel that works
# beside it. All of that is a line each. The kernel has two bugs, one of which hides behind the other.
#
# ## Which length fails first
#
# The tests have one tile of keys. A row for each of several lengths:

# %%
from workbench import Case, diff, run
from workbench.judge.table import table

case = Case(head_dim=64, causal=True, block_q=32, block_k=32)
faults = ["partial-no-masked-tile-guard", "reduce-sum-unweighted"]
lengths = table(diff(run("split_k", case.but(seqlen=n), faults=faults)) for n in (8, 16, 31, 32, 33, 64, 100, 128))
assert lengths.first_failing.case.seqlen_k == 33
lengths

# %% [markdown]
# It fails with the second tile of keys, and then always. The smallest failing length is the best one to look at.
#
# ## Look at values
#
# Three rows of `out`, by the names of their axes; what is not named is taken whole. Python's brackets do the same:
# `d["out"][0, 0, 30:33, :3]`.

# %%
small = case.but(seqlen=33)
d = diff(run("split_k", small, faults=faults))
d["out"].select(q=slice(30, 33), d=slice(0, 3))

# %% [markdown]
# Two different things: NaN up to query 31, and numbers in query 32 that are wrong by far more than rounding. Where
# does each come from?

# %%
assert d.origins == ("correction", "probs", "merge_sum")
d

# %% [markdown]
# ## The NaN
#
# `probs` is wrong on its own inputs. Where in it?

# %%
d.heatmap("probs")

# %% [markdown]
# At the only key of the second tile. A row of `probs` where the tiles meet, and the row's maximum after each of them:

# %%
d["probs"].select(q=5, k=slice(30, 33))

# %%
d["row_max"].select(q=5)

# %% [markdown]
# All three keys are masked. Two of them get 0, since their tile has other keys that query 5 sees. The tile of key 32 has
# none, and begins a split: the maximum is still -inf, as it should be, and exp(-inf - (-inf)) is NaN, where it is 0 by
# definition. If that is all, the wrong queries are those that do not see key 32. A profile counts along an axis:

# %%
outside = d["probs"].profile("q").outside
assert ((outside > 0) == ~small.mask()[:, 32]).all()
outside

# %% [markdown]
# They are, all but the last one. The partial kernel lacks a guard for rows that have seen no key yet, and `correction`,
# the other wrong exponential, lacks the same one.
#
# ## Behind the NaN
#
# Will the kernel be right with that guard? Nobody has to write it to find out. Put the partial results in as float64
# has them, and let the reduce alone run on them:

# %%
partials = dict.fromkeys(["partial_max", "partial_sum", "partial_O"], "reference")
fed = diff(run("split_k", small, faults=faults, feed=partials))
assert fed.origins == ("merge_sum",)
fed["merge_sum"]

# %% [markdown]
# No: on good partial results the reduce is wrong too, in the one query that sees both splits. By hand, what it adds up:

# %%
weights, sums = (fed[name].select(q=32).actual.ravel() for name in ("merge_weight", "partial_sum"))
weighted, unweighted = float((weights * sums).sum()), float(sums.sum())
actual = fed["merge_sum"].at(b=0, h=0, q=32).judged.actual.item()
assert abs(actual - unweighted) < 1e-5 < abs(actual - weighted)
{"kernel": actual, "with weights": weighted, "without": unweighted}

# %% [markdown]
# The reduce forgets to weight the sums, and that is the second line to mend.
#
# ## A part of production
#
# Production has 2 batches of 8 heads, and 512 keys in 4 splits. The kernel runs whole, but there is no need to dump and
# judge all of it. The last queries see every tile of keys, so that the first bug cannot touch them:

# %%
production = case.but(batch=2, heads=8, seqlen=512, splits=4)
part = diff(run("split_k", production, faults=faults, where="b=1,h=3,q=500:512"))
assert part.origins == ("merge_sum",)
part["merge_sum"]

# %% [markdown]
# The same line, and the indices are those of the whole run.
#
# ## Beside a kernel that works
#
# `flash` computes the same attention without splits. Hold the kernel with its second bug against it, each judged
# against float64 and both against each other. Stages that mean the same in both are compared:

# %%
from workbench.judge.against.pair import against

larger = case.but(seqlen=128)
flash = diff(run("flash", larger))
parted = against(diff(run("split_k", larger, faults=faults[1:])), flash)
assert parted.parts_at == "out"
parted

# %% [markdown]
# They part at `out`, the first shared stage behind the reduce, and everything before is the same bit for bit. With both
# lines mended `out` still differs. Is that a third bug?

# %%
mended = against(diff(run("split_k", larger)), flash)
assert mended.verdict == "rounding"
mended

# %% [markdown]
# No. They add the same numbers in another order, and every difference is within what that can do. The same works for
# one kernel with two settings, for a trace and a fresh run, for your kernel and PyTorch's.
#
# ## Your own tensors
#
# The next kernel is not ours. It takes a mask and a bias, and fails on tensors from a model, which a case cannot draw.
# Hand them over; `case_of` makes the case that fits, and float64 and the budgets know of mask and bias:

# %%
import numpy as np

from workbench.trace.inputs import case_of


def attention(q, k, v, *, scale, causal, mask, bias):
    scores = np.where(mask, q @ k.swapaxes(-1, -2) * np.float32(scale), -np.inf)
    probs = np.exp(scores - scores.max(-1, keepdims=True))
    return {"scores": scores, "out": probs @ v / probs.sum(-1, keepdims=True)}


q, k, v = np.random.default_rng(0).standard_normal((3, 1, 2, 16, 32), np.float32)
distance = np.abs(np.subtract.outer(np.arange(16), np.arange(16))).astype(np.float32)
tensors = {"q": q, "k": k, "v": v, "mask": distance < 8, "bias": -0.25 * distance}
own = diff(run(attention, case_of(tensors), inputs=tensors))
assert own.origins == ("scores",)
own["scores"].select(h=1, q=5, k=slice(6, 11))

# %% [markdown]
# The errors grow by a quarter with the distance from key 5: the kernel takes the bias and does not add it.
#
# ## All you have is printf
#
# Last, a kernel on a machine that you cannot reach. Its author adds a `printf("WB scores %d %d %d %d %f\n", ...)` here
# and there and sends you the log. These are enough lines, with the case that was run:

# %%
from contextlib import chdir
from pathlib import Path
from tempfile import TemporaryDirectory

from workbench import load

log = """
launching attention_fwd<64, 64>
WB scores 0 0 0 0 -16.106766
WB scores 0 0 0 1 14.662686
WB scores 0 0 0 2 6.492832
WB scores 0 0 17 40 8.375738
WB scores 0 0 47 47 3.834284
WB row_max 0 0 0 0 17.394472
"""
with TemporaryDirectory() as folder, chdir(folder):
    Path("run.log").write_text(log)
    printed = diff(load("run.log", Case(seqlen=48, head_dim=64, seed=3, block_k=64)))
assert printed.origins == ("scores",)
printed

# %% [markdown]
# By which factor is each printed score too large?

# %%
factors = [element.actual / element.expected for element in printed["scores"].worst(5)]
assert all(abs(factor / 64**0.5 - 1) < 1e-5 for factor in factors)
factors

# %% [markdown]
# The square root of head_dim: the kernel leaves out the scale.
