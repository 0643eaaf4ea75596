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
# # 3. Inside a quantised kernel
#
# A quantised kernel has more places for bugs than a float kernel: scales, codes, decode tables, tensor-core tiles. Each
# of them is a stage. `fp8` is such a kernel, first run here without a bug. It quantises q, k and v to 256 codes with one
# scale per head, decodes K and V with tables in shared memory, and computes scores on tensor cores.

# %%
from workbench import Case, diff, run

case = Case(heads=4, seqlen=128, head_dim=64)
right = diff(run("fp8", case))
assert right.verdict == "rounding" and not right.victims
right

# %% [markdown]
# ## Decoding
#
# Each kv head has a table with the values of its 256 codes. For these codes the values are a straight line, which is 0
# at code 128. The second panel shows the distance of each entry from that line. The third shows it in units of the
# budget, which allows three roundings in float32 for each entry.

# %%
from workbench.report.pictures.codes import decode_table, decoded_tile

decode_table(right["lut_k"])

# %% [markdown]
# The picture shows a tile of V after the kernel has decoded it and rounded it to float16. Any rounding except to
# nearest would be over budget.

# %%
decoded_tile(right["dequant_v"], case=right.trace.case)

# %% [markdown]
# ## Tensor cores
#
# A warp computes 16x16 scores in two products of 16x8, spread over the registers of its 32 lanes. Each cell of the worst
# tile shows the "lane.register" that held the element; the colour shows its error:

# %%
from workbench.report.pictures.fragments import tensor_core_tile

tensor_core_tile(right["qk"])

# %% [markdown]
# Products of float16 numbers are exact in float32, and a sum of 64 of them loses little. The next stage, `scores`,
# multiplies the sums by 1/8, which is exact. So `scores` has no isolated error (the bar). Its propagated error (the
# line) comes from `qk`.

# %%
right["scores"].plot()

# %% [markdown]
# The errors of `out` come from its last step, the rounding to float16: half an ulp on either side.

# %%
right["out"].plot_errors()

# %% [markdown]
# ## What quantisation costs
#
# None of these errors includes what q, k and v lost when they were quantised: the kernel is judged from its codes on.
# The quantisation error is measured separately, as attention on the decoded inputs minus attention on the original
# inputs. Here it is by far the larger part:

# %%
import numpy as np

of_quantisation, of_kernel = (float(np.abs(part).max()) for part in (right.loss.of_out, right.loss.of_kernel))
assert 0.02 > of_quantisation > 10 * of_kernel > 0
of_quantisation, of_kernel

# %% [markdown]
# ## From a wrong `out` to the wrong stage
#
# Next, run the kernel with a bug. The rows of K have padding between them in shared memory, but this kernel loads the
# fragments of B as if there were none.

# %%
wrong = diff(run("fp8", case, faults=["b-leading-dimension"]))
assert wrong["out"].role == "victim"
wrong["out"].plot()

# %% [markdown]
# Judged from the sums that the kernel divided, `out` is right (the bars). Judged from the codes, nearly all of it is
# wrong (the line). The overview shows the origin, and the stages after it that only inherit the error:

# %%
assert wrong.origins == ("qk",)
wrong.plot()

# %% [markdown]
# All decoded values are right. `qk` is wrong given its own Q and K. Its worst tensor-core tile shows the pattern: the
# first key is right, in whichever lane and register, and all other keys are wrong.

# %%
block_k = wrong.trace.case.block_k
assert wrong["qk"].worst()[0].index["k"] % block_k < 16, "the tile begins with the first key of a tile of K"
tensor_core_tile(wrong["qk"])

# %% [markdown]
# Among all keys, only the first key of each tile of K is right. It begins the tile in shared memory, so a wrong distance
# between rows does not matter for it:

# %%
outside = wrong["qk"].profile("k").outside
first = np.arange(128) % block_k == 0
assert not outside[first].any() and outside[~first].all()
np.flatnonzero(outside == 0)

# %% [markdown]
# So look at the line that computes where a row of K begins.
#
# ## A bug that `out` hides
#
# The last bug is invisible in `out`. The table of K uses 127 as the zero point, so every decoded number is too large by
# one step:

# %%
hidden = diff(run("fp8", case, faults=["zero-point-127"]))
assert hidden.origins == ("lut_k",)
decode_table(hidden["lut_k"])

# %% [markdown]
# All scores of a query shift by the same amount, and the softmax removes that shift. The kernel's error in `out` stays
# the same, but the error in `lse` grows:

# %%
errors = [float(np.abs(d["lse"].propagated.error).max()) for d in (right, hidden)]
assert np.abs(hidden.loss.of_kernel).max() < 2 * of_kernel and errors[1] > 1000 * errors[0]
float(np.abs(hidden.loss.of_kernel).max()), of_kernel, errors
