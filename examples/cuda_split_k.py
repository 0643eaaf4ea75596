"""Split-K attention in CUDA C++ (split_k.cu), compiled with NVRTC by cuda.core, with probes.

On a machine with a GPU: workbench diff examples/cuda_split_k.py:split_k --causal --dtype float16
`counts_sum_twice` in the place of `split_k` has a fault: the reduce puts into a split's weight the partial_sum that
partial_O holds already.
"""

import functools
from pathlib import Path

import numpy as np

from workbench.foreign.probes import cuda_cpp as probes
from workbench.foreign.probes.memory import GpuArray, current_device
from workbench.trace.trace import blank

BLOCK_Q, BLOCK_K, LANES, SPLITS = 16, 32, 8, 4
CONTRACT = {"block_k": BLOCK_K, "splits": SPLITS, "exp_ulps_per_x": 0.0, "accumulation": "nearest"}
CONTRACT |= dict.fromkeys(("scores_dtype", "probs_dtype", "partials_dtype"), "float32")


def split_k(q, k, v, *, scale, causal, probed=True, defines=()):
    """The stages of q [batch, heads, seqlen_q, head_dim], k and v [batch, kv_heads, seqlen_k, head_dim], NumPy arrays.

    Without `probed` the kernels are those of a source without probes.
    """
    device = current_device()
    code = compiled(device.compute_capability, str(q.dtype), q.shape[3], (*defines, *["WB_PROBES"] * probed))
    dumps = probes.hand_over(code, "split_k", q, k, block_k=BLOCK_K, splits=SPLITS) if probed else None

    stages = {name: GpuArray.of(x) for name, x in buffers(q).items()}
    arrays = {name: GpuArray.of(x) for name, x in zip("qkv", (q, k, v), strict=True)} | stages
    for kernel, grid, names, scalars in launches(q.shape, k.shape, scale, causal):
        start(device, code.get_kernel(kernel), grid, [arrays[name].address for name in names], scalars)
    found = {name: stage.read() for name, stage in stages.items()}
    return found | (dumps.stages() if dumps else {}) | {"contract": CONTRACT}


def counts_sum_twice(q, k, v, *, scale, causal):
    """`split_k` with the fault."""
    return split_k(q, k, v, scale=scale, causal=causal, defines=("COUNTS_SUM_TWICE",))


def buffers(q):
    """What the kernels write, blank."""
    *head, rows, dim = q.shape
    dims = {"partial_O": (SPLITS, rows, dim), "partial_max": (SPLITS, rows), "partial_sum": (SPLITS, rows)}
    dims |= {"out": (rows, dim), "lse": (rows,)}
    return {name: blank((*head, *dims[name]), q.dtype if name == "out" else np.dtype(np.float32)) for name in dims}


def launches(q_shape, k_shape, scale, causal):
    """Name, grid, names of arrays and scalars of the two kernels; a block has BLOCK_Q * LANES threads."""
    (batch, heads, rows, _), (_, kv_heads, keys, _) = q_shape, k_shape
    tiles, partials = -(-rows // BLOCK_Q), ("partial_O", "partial_max", "partial_sum")
    sizes = tuple(map(np.int32, (causal, heads, kv_heads, rows, keys)))
    yield "split_k_partial", (tiles, heads * SPLITS, batch), (*"qkv", *partials), (np.float32(scale), *sizes)
    yield "split_k_reduce", (tiles, heads, batch), (*partials, "out", "lse"), (np.int32(heads), np.int32(rows))


def start(device, kernel, grid, addresses, scalars):
    """Launch a kernel."""
    from cuda.core import LaunchConfig, launch

    launch(device.default_stream, LaunchConfig(grid=grid, block=BLOCK_Q * LANES), kernel, *addresses, *scalars)


@functools.cache
def compiled(compute_capability, dtype, head_dim, defines=()):
    """The kernels as a cubin."""
    from cuda.core import Program, ProgramOptions
    from cuda.pathfinder import find_nvidia_header_directory

    options = ProgramOptions(
        arch="sm_{}{}".format(*compute_capability),
        include_path=[str(probes.include_dir()), *filter(None, map(find_nvidia_header_directory, ("cudart", "cccl")))],
        define_macro=[*constants(dtype, head_dim), *defines],
    )
    return Program(Path(__file__).with_name("split_k.cu").read_text(), "c++", options).compile("cubin")


def constants(dtype, head_dim):
    """Macros of the source and their values."""
    numbers = {"HEAD_DIM": head_dim, "BLOCK_Q": BLOCK_Q, "BLOCK_K": BLOCK_K, "LANES": LANES, "SPLITS": SPLITS}
    types = {"float32": "float", "float16": "__half", "bfloat16": "__nv_bfloat16"}
    return [("ELEMENT", types[dtype]), *((name, str(value)) for name, value in numbers.items())]
