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
# A kernel on quantised codes has more places to go wrong than one on floats: scales, codes, tables that decode them, tiles
# of tensor cores. All of them are stages like any other. `fp8` is such a kernel, here without a bug: q, k and v are
# quantised to 256 codes with a scale for each head, K and V are decoded by tables in shared memory, scores come from
# tensor cores.

# %%
from workbench import Case, diff, run

case = Case(heads=4, seqlen=128, head_dim=64)
right = diff(run("fp8", case))
assert right.verdict == "rounding" and not right.victims
right

# %% [markdown]
# ## Decoding
#
# Each kv head has a table of what its 256 codes stand for. With these codes it is a straight line through code 128,
# the zero. Below it stands how far each entry is from the line, and then the same in units of its budget, the three
# roundings that computing an entry in float32 may take.

# %%
from workbench.report.pictures.codes import decode_table, decoded_tile

decode_table(right["lut_k"])

# %% [markdown]
# A tile of V as the kernel holds it, looked up and rounded to float16. Any rounding but the nearest would be outside
# the budget.

# %%
decoded_tile(right["dequant_v"], case=right.trace.case)

# %% [markdown]
# ## Tensor cores
#
# A warp computes 16x16 scores in two products of 16x8, spread over the registers of its 32 lanes. In each cell of the
# worst tile stands who held it, "lane.register", on the colour of its error:

# %%
from workbench.report.pictures.fragments import tensor_core_tile

tensor_core_tile(right["qk"])

# %% [markdown]
# Products of float16 are exact in float32, and a sum of 64 of them loses little. The scores that follow are the sums
# times 1/8, which is exact: they have no error of their own (the bar), and the line is what they inherit from `qk`.

# %%
right["scores"].plot()

# %% [markdown]
# The errors of `out` are those of its last step, the rounding to float16: half an ulp on either side.

# %%
right["out"].plot_errors()

# %% [markdown]
# ## What quantisation costs
#
# None of this counts what q, k and v lost when they were quantised: that is no error of the kernel, which is judged
# from its codes on. It is told apart, as attention on the decoded inputs less attention on the inputs, and here it is
# by far the larger part:

# %%
import numpy as np

of_quantisation, of_kernel = (float(np.abs(part).max()) for part in (right.loss.of_out, right.loss.of_kernel))
assert 0.02 > of_quantisation > 10 * of_kernel > 0
of_quantisation, of_kernel

# %% [markdown]
# ## From out back to its stage
#
# Now with a bug. The rows of K lie in shared memory with padding between them, and this kernel reads the fragments of
# B as if there were none.

# %%
wrong = diff(run("fp8", case, faults=["b-leading-dimension"]))
assert wrong["out"].role == "victim"
wrong["out"].plot()

# %% [markdown]
# Given the sums that the kernel divided, `out` is right (the bars); given the codes, nearly all of it is wrong (the
# line). The overview leads back from there, past every stage that has only inherited the error, to the one that made
# it:

# %%
assert wrong.origins == ("qk",)
wrong.plot()

# %% [markdown]
# All that was decoded is right. `qk` is not what it should be of its own Q and K, and its worst tile of tensor cores
# shows how: the first key is right, whichever lane and register hold it, and all others are wrong.

# %%
block_k = wrong.trace.case.block_k
assert wrong["qk"].worst()[0].index["k"] % block_k < 16, "the tile begins with the first key of a tile of K"
tensor_core_tile(wrong["qk"])

# %% [markdown]
# Along all keys the right ones are those that come first in a tile of K in shared memory, where a wrong distance
# between rows does not count yet:

# %%
outside = wrong["qk"].profile("k").outside
first = np.arange(128) % block_k == 0
assert not outside[first].any() and outside[~first].all()
np.flatnonzero(outside == 0)

# %% [markdown]
# Hence the line to read is the one that computes where a row of K begins.
#
# ## A bug that out hides
#
# The last bug cannot be seen in `out` at all. The table of K takes 127 for the zero, so that every decoded number is
# too large by one step:

# %%
hidden = diff(run("fp8", case, faults=["zero-point-127"]))
assert hidden.origins == ("lut_k",)
decode_table(hidden["lut_k"])

# %% [markdown]
# All scores of a query shift alike, and the softmax takes that back out. The kernel's part of the error of `out` is
# what it was, that of `lse` is not:

# %%
errors = [float(np.abs(d["lse"].propagated.error).max()) for d in (right, hidden)]
assert np.abs(hidden.loss.of_kernel).max() < 2 * of_kernel and errors[1] > 1000 * errors[0]
float(np.abs(hidden.loss.of_kernel).max()), of_kernel, errors
