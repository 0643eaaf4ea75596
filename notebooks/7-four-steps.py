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
# Four kernels in numba.cuda compute FlashAttention's forward pass, each faster than the one before. All four have the
# same stages, and all run here on a CPU: the emulator supports tensor cores, asynchronous copies and Hopper's barriers.
# So every number of each step can be checked before it runs on a GPU.

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
# `rounding` means that every element of every stage is within its budget.
#
# Three of the kernels multiply on tensor cores, with different instructions and memory layouts. Their products are
# bit-identical. Those of the scalar kernel differ, because it adds in another order.

# %%
products = {name: d.trace.stages["qk"] for name, d in judged.items()}
same = {name: bool(np.array_equal(qk, products["flash_tensor"])) for name, qk in products.items()}
assert same == {"flash": False, "flash_tensor": True, "flash_mma": True, "flash_wgmma": True}
same

# %% [markdown]
# ## Step 1: online softmax
#
# `flash` visits the keys tile by tile, and never stores a whole row of scores. The correction makes that possible: if a
# tile raises the maximum of a row, it scales down the sums of earlier tiles. Without that line, the accumulator is wrong
# given its own inputs, and `out` is a victim:

# %%
d = diff(run("flash", case, faults=["flash-no-correction"]))
assert d.origins == ("acc",) and "out" in d.victims
d

# %% [markdown]
# ## Step 2: tensor cores
#
# `flash_tensor` is step 1 with `mma.sync` in place of the product loops. The instruction multiplies fragments in the
# registers of a warp's 32 lanes, and defines which lane holds which element. In the scores below, lane 4 g + t holds rows
# g and g + 8, columns 2 t and 2 t + 1. Each cell shows its "lane.register"; the colour shows its error.

# %%
from workbench.report.pictures.fragments import tensor_core_tile

tensor_core_tile(judged["flash_tensor"]["qk"])

# %% [markdown]
# In the product with V, each register of the second factor packs two keys, from two rows of shared memory. Only the
# numbers show whether the right key is in the lower half:

# %%
d = diff(run("flash_tensor", case, faults=["tensor-pair-swapped"]))
assert d.origins == ("acc",)
print("acc:", d.trace.lines["acc"].text)
d.plot()

# %% [markdown]
# ## Step 3: asynchronous copies
#
# In step 2 nothing is multiplied while a tile is loaded. `flash_mma` starts to copy V (`cp.async`) before it multiplies
# K, and the next K before it multiplies V. `ldmatrix` loads fragments in the layout that the instruction needs. Rows are
# swizzled in shared memory, so that no two lanes hit the same bank.
#
# Now there is a bug that numbers may not show: reading a tile before its copy has arrived. A watched run tracks when each
# copy completes, and for which threads. This kernel waits for V too late:


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
# In `flash_wgmma` one warp group only requests tiles, which TMA then copies whole. The other warp groups multiply:
# `wgmma` uses four warps at once and reads straight from shared memory. They synchronise at barriers in shared memory, which
# count arrivals and bytes in phases. If a consumer waits for the wrong phase, its wait returns at once:

# %%
assert "wrong-phase" in findings("flash_wgmma", "wgmma-k-parity")

# %% [markdown]
# A right kernel has no finding:

# %%
assert check("flash_wgmma", case, probes="output").findings == ()

# %% [markdown]
# ## How fast they are
#
# `python -m campaigns steps` judges all four on a GPU at realistic lengths, then times the right ones beside PyTorch's
# attention. These are the results on H100s, from [speed](../docs/trust/speed.md):

# %%
from pathlib import Path

from IPython.display import Markdown

_, _, page = Path("../docs/trust/speed.md").read_text().partition("## How fast\n")
Markdown("\n".join(line for line in page.splitlines() if line.startswith("|")).partition("\n| kernel |")[0])
