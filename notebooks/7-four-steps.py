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
# # 7. From a scalar kernel to Hopper's speed
#
# FlashAttention's forward pass in numba.cuda, four times, each faster than the one before. All four have the same stages
# and the same contract of shapes, and all of them run here, on a CPU: the emulator knows tensor cores, asynchronous
# copies, and Hopper's barriers. So each step can be taken with every number looked at, before any GPU has seen it.

# %%
import numpy as np

from workbench import Case, check, diff, run
from workbench.cuda.kernels import KERNELS

steps = ("flash", "flash_tensor", "flash_mma", "flash_wgmma")
case = Case(heads=4, kv_heads=2, seqlen_q=48, seqlen_k=150, head_dim=64, dtype="float16", block_q=64, block_k=64)
judged = {name: diff(run(name, case)) for name in steps}

for name, d in judged.items():
    lines = len(KERNELS[name].file.read_text().splitlines())
    print(f"{name:12}  {lines} lines  {d.verdict}")
assert {d.verdict for d in judged.values()} == {"rounding"}

# %% [markdown]
# `rounding`: every element of every stage is within the error that its own step of arithmetic allows a correct kernel.
#
# Three of them multiply on tensor cores, with other instructions on other layouts of memory. Their products have the
# same bits; those of the scalar kernel, which adds in another order, have not.

# %%
products = {name: d.trace.stages["qk"] for name, d in judged.items()}
same = {name: bool(np.array_equal(qk, products["flash_tensor"])) for name, qk in products.items()}
assert same == {"flash": False, "flash_tensor": True, "flash_mma": True, "flash_wgmma": True}
same

# %% [markdown]
# ## Step 1: online softmax
#
# `flash` visits the keys tile by tile, and never holds a row of scores. What makes that possible is the correction: where
# a tile raises the maximum of a row, what was summed before is scaled down. This is the one line that may not be
# forgotten. Without it the accumulator is wrong on its own inputs, and `out` is a victim:

# %%
d = diff(run("flash", case, faults=["flash-no-correction"]))
assert d.origins == ("acc",) and "out" in d.victims
d

# %% [markdown]
# ## Step 2: tensor cores
#
# `flash_tensor` is step 1 with `mma.sync` in the place of the loops of products. The instruction multiplies what lies in
# the registers of a warp's 32 lanes, and says which lane has which element: in the scores below, lane 4 g + t has rows g
# and g + 8, columns 2 t and 2 t + 1. ("lane.register" in each cell, on the colour of its error.)

# %%
from workbench.report.pictures.fragments import tensor_core_tile

tensor_core_tile(judged["flash_tensor"]["qk"])

# %% [markdown]
# The other factor of a product with V is two keys in one register, from two rows of shared memory. Nothing but the
# numbers tells which of them is in the lower half:

# %%
d = diff(run("flash_tensor", case, faults=["tensor-pair-swapped"]))
assert d.origins == ("acc",)
print("acc:", d.trace.lines["acc"].text)
d.plot()

# %% [markdown]
# ## Step 3: copies under way
#
# In step 2 nothing is multiplied while a tile is loaded. `flash_mma` asks for V (`cp.async`) before it multiplies K, and
# for the next K before it multiplies V; `ldmatrix` reads fragments as the instruction wants them, of rows whose chunks
# change places so that no two lanes meet in a bank.
#
# Now there is something that numbers may not show: a tile is read that may not have come yet. A watched run knows when a
# copy is done for whom. This one waits for V too late:


# %%
def findings(name, fault):
    found = check(name, case, faults=[fault], probes="output")
    for one in found.findings:
        print(f"{one.kind}: {found.line(one.file, one.line)}")
    return {one.kind for one in found.findings}


assert "uninitialised-read" in findings("flash_mma", "mma-v-not-waited-for")

# %% [markdown]
# ## Step 4: Hopper
#
# `flash_wgmma` has a warp group that only asks for tiles, which the memory system then copies whole (TMA), and others
# that multiply, four warps at once and straight from shared memory (`wgmma`). They meet at barriers in shared memory that
# count arrivals and bytes, in phases. A consumer that waits for the wrong phase does not wait:

# %%
assert "wrong-phase" in findings("flash_wgmma", "wgmma-k-parity")

# %% [markdown]
# A right kernel has no finding:

# %%
assert check("flash_wgmma", case, probes="output").findings == ()

# %% [markdown]
# ## What it is worth
#
# `python -m campaigns steps` judges all four again on a GPU, at lengths that count, times what is right, and puts PyTorch's
# attention beside it. What it gave on an H100, from [docs/gpu.md](../docs/gpu.md#from-a-scalar-kernel-to-hoppers-speed):

# %%
from pathlib import Path

from IPython.display import Markdown

_, _, page = Path("../docs/gpu.md").read_text().partition("## How fast\n")
Markdown("\n".join(line for line in page.splitlines() if line.startswith("|")).partition("\n| kernel |")[0])
