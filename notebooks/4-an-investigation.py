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
# A Split-K kernel passes its tests but returns NaN in production. `diff` would name the wrong stages at once. This
# notebook looks closer: it prints part of a tile, feeds correct partial results to the reduce, and compares with a
# working kernel. Each takes one line. The kernel has two bugs, and one hides the other.
#
# ## Which length fails first
#
# The tests have only one tile of keys. This table has one row per length:

# %%
from workbench import Case, diff, run
from workbench.judge.table import table

case = Case(head_dim=64, causal=True, block_q=32, block_k=32)
faults = ["partial-no-masked-tile-guard", "reduce-sum-unweighted"]
lengths = table(diff(run("split_k", case.but(seqlen=n), faults=faults)) for n in (8, 16, 31, 32, 33, 64, 100, 128))
assert lengths.first_failing.case.seqlen_k == 33
lengths

# %% [markdown]
# The kernel fails as soon as there is a second tile of keys. The smallest failing length is the best one to look at.
#
# ## Look at values
#
# This selects three rows of `out` by the names of axes; axes that are not named are taken whole. Python's brackets do
# the same: `d["out"][0, 0, 30:33, :3]`.

# %%
small = case.but(seqlen=33)
d = diff(run("split_k", small, faults=faults))
d["out"].select(q=slice(30, 33), d=slice(0, 3))

# %% [markdown]
# There are two different errors: NaN up to query 31, and in query 32 numbers that are wrong by far more than rounding.
# Where does each come from?

# %%
assert d.origins == ("correction", "probs", "merge_sum")
d

# %% [markdown]
# ## The NaN
#
# `probs` is wrong given its own inputs. Which elements?

# %%
d.heatmap("probs")

# %% [markdown]
# It is wrong at the only key of the second tile. These are a row of `probs` where the tiles meet, and the row's maximum
# after each tile:

# %%
d["probs"].select(q=5, k=slice(30, 33))

# %%
d["row_max"].select(q=5)

# %% [markdown]
# All three keys are masked. Two of them get 0, because their tile has other keys that query 5 sees. The tile of key 32
# has none, and begins a split. So the maximum is correctly still -inf, but exp(-inf - (-inf)) is NaN instead of 0, which
# the definition requires. If this is the whole bug, exactly the queries that do not see key 32 are wrong. A profile
# counts wrong elements along an axis:

# %%
outside = d["probs"].profile("q").outside
assert ((outside > 0) == ~small.mask()[:, 32]).all()
outside

# %% [markdown]
# All queries except the last are wrong, as predicted. The partial kernel lacks a guard for rows that have seen no key
# yet. `correction`, the other wrong exponential, lacks the same guard.
#
# ## Behind the NaN
#
# Will the kernel be right with that guard? You can find out before you write it: feed the correct partial results from
# float64, and run only the reduce on them:

# %%
partials = dict.fromkeys(["partial_max", "partial_sum", "partial_O"], "reference")
fed = diff(run("split_k", small, faults=faults, feed=partials))
assert fed.origins == ("merge_sum",)
fed["merge_sum"]

# %% [markdown]
# No: the reduce is also wrong on correct partial results, in the one query that sees both splits. Compute by hand what
# it adds up:

# %%
weights, sums = (fed[name].select(q=32).actual.ravel() for name in ("merge_weight", "partial_sum"))
weighted, unweighted = float((weights * sums).sum()), float(sums.sum())
actual = fed["merge_sum"].at(b=0, h=0, q=32).judged.actual.item()
assert abs(actual - unweighted) < 1e-5 < abs(actual - weighted)
{"kernel": actual, "with weights": weighted, "without": unweighted}

# %% [markdown]
# The reduce forgets to weight the sums: that is the second line to fix.
#
# ## A part of production
#
# Production has 2 batches of 8 heads, and 512 keys in 4 splits. The whole kernel runs, but only a part is dumped and
# judged. The last queries see every tile of keys, so the first bug does not affect them:

# %%
production = case.but(batch=2, heads=8, seqlen=512, splits=4)
part = diff(run("split_k", production, faults=faults, where="b=1,h=3,q=500:512"))
assert part.origins == ("merge_sum",)
part["merge_sum"]

# %% [markdown]
# The same stage is wrong. The indices are those of the whole run.
#
# ## Compare with a working kernel
#
# `flash` computes the same attention without splits. `against` compares it with the kernel that has only the second bug.
# It judges each against float64, then compares the stages that both define in the same way:

# %%
from workbench.judge.against.pair import against

larger = case.but(seqlen=128)
flash = diff(run("flash", larger))
parted = against(diff(run("split_k", larger, faults=faults[1:])), flash)
assert parted.parts_at == "out"
parted

# %% [markdown]
# The kernels diverge at `out`, the first shared stage after the reduce. All stages before are bit-identical. With both
# lines fixed, `out` still differs. Is that a third bug?

# %%
mended = against(diff(run("split_k", larger)), flash)
assert mended.verdict == "rounding"
mended

# %% [markdown]
# No. The kernels add the same numbers in a different order, and that explains every difference. `against` also compares
# one kernel under two settings, a trace with a fresh run, or your kernel with PyTorch's.
#
# ## Your own tensors
#
# The next kernel is not built in. It takes a mask and a bias, and fails on tensors from a model, which a case cannot
# draw. Pass them as inputs: `case_of` returns the case that fits. Expected values and budgets include mask and bias:

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
# The errors grow by 0.25 per key of distance from key 5: the kernel takes the bias but does not add it.
#
# ## All you have is printf
#
# The last kernel runs on a machine that you cannot reach. Its author adds a few lines
# `printf("WB scores %d %d %d %d %f\n", ...)` and sends you the log. These lines and the case are enough:

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
# The factor is the square root of head_dim: the kernel leaves out the scale.
