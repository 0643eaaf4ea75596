"""Attention on FP8 codes in CUDA C++ (fp8_attention.cu, WMMA), its NumPy twin, and five wrong versions of both.

Each wrong version has two faults at once: one in a decode table, one in the layout of a tile for tensor cores. On a
machine with a GPU: workbench measure examples/fp8_attention.py:sign_and_fragment --codes e4m3 --heads 4
Anywhere: workbench measure examples/fp8_attention.py:numpy_sign_and_fragment --codes e4m3 --heads 4
"""

import functools
from pathlib import Path

import ml_dtypes
import numpy as np

ROWS, KEYS, TILE, CHUNK = 32, 64, 16, 8
VALUES = np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float32)
#: which code's number stands at entry c of a table, in C and Python alike
SIGN, OCTAVE, FIRST, BIT = "((c) & 0x7f)", "((c) + 8 * (((c) & 0xf8) == 0x40))", "((c) * ((c) < 0xc0))", "((c) & ~1)"
#: by what chunks of row r are swizzled
SWIZZLE, PAIRS = "((r) & 7)", "((r) >> 1 & 3)"


def attention(q, k, v, *, scale_q, scale_k, scale_v, scale, causal, defines=()):
    """Out, float32, of codes [batch, heads, rows, 64], NumPy arrays of uint8, and scales [heads]."""
    from cuda.core import LaunchConfig, launch

    from workbench.foreign.probes.memory import GpuArray, current_device

    device = current_device()
    kernel = compiled(device.compute_capability, tuple(defines)).get_kernel("fp8_attention")
    out = GpuArray.of(np.empty(q.shape, np.float32))
    arrays = [GpuArray.of(np.ascontiguousarray(x)) for x in (q, k, v, scale_q, scale_k, scale_v)]
    (batch, heads, rows, _), (_, kv_heads, keys, _) = q.shape, k.shape
    sizes = map(np.int32, (causal, heads, kv_heads, rows, keys))
    grid = LaunchConfig(grid=(-(-rows // ROWS), heads, batch), block=2 * ROWS)
    launch(device.default_stream, grid, kernel, *[x.address for x in (*arrays, out)], np.float32(scale), *sizes)
    return out.read()


@functools.cache
def compiled(compute_capability, defines):
    """The kernel as a cubin."""
    import os

    from cuda.core import Program, ProgramOptions
    from cuda.pathfinder import find_nvidia_header_directory

    found = [*filter(None, map(find_nvidia_header_directory, ("cudart", "cccl")))]
    toolkit = os.path.join(os.environ.get("CUDA_HOME", "/usr/local/cuda"), "include")
    options = ProgramOptions(
        arch="sm_{}{}".format(*compute_capability), include_path=[*found, toolkit], define_macro=[*defines, "FP8"]
    )
    return Program(Path(__file__).with_name("fp8_attention.cu").read_text(), "c++", options).compile("cubin")


def numpy_attention(q, k, v, *, scale_q, scale_k, scale_v, scale, causal, tables=None, tiles=None):
    """The twin: `tables`, codes at the entries of each table; `tiles`, what a tile's layout makes of decoded rows."""
    x = {}
    for name, codes, of_head in (("q", q, scale_q), ("k", k, scale_k), ("v", v, scale_v)):
        decoded = VALUES[(tables or {}).get(name, np.arange(256))][codes]
        laid = (tiles or {}).get(name, lambda rows: rows)(decoded)
        x[name] = np.repeat(laid * of_head[:, None, None], q.shape[1] // codes.shape[1], axis=1)
    scores = x["q"] @ np.swapaxes(x["k"], -1, -2) * np.float32(scale)
    if causal:
        rows, keys = scores.shape[-2:]
        scores = np.where(np.tri(rows, keys, keys - rows, dtype=bool), scores, np.float32(-np.inf))
    probs = np.exp(scores - scores.max(-1, keepdims=True))
    return probs @ x["v"] / probs.sum(-1, keepdims=True)


def transposed(x):
    """Fragments that are loaded in the other order: rows and dims swapped within blocks of 16 x 16."""
    *outer, rows, dims = x.shape
    blocks = x.reshape(*outer, rows // TILE, TILE, dims // TILE, TILE)
    return np.swapaxes(blocks, -3, -1).reshape(x.shape)


def swizzled(by):
    """Chunks of 8 elements that stand where the swizzle `by` put them."""

    def laid(x):
        chunk = eval(by, {"r": np.arange(x.shape[-2])[:, None]})
        return np.take_along_axis(x, np.broadcast_to(np.arange(x.shape[-1]) ^ chunk * CHUNK, x.shape), -1)

    return laid


def entries(of):
    """Which code's number stands at each entry of a table."""
    return eval(of, {"c": np.arange(256)})


#: name -> macros of the kernel; tables and tiles of the twin
WRONG = {
    # the table has 128 entries, the fragments of K are loaded row by row
    "sign_and_fragment": (
        (("TABLE_V(c)", SIGN), ("K_FRAGMENT", "row_major")),
        {"v": entries(SIGN)}, {"k": transposed},
    ),
    # one exponent is off by one, V is stored swizzled and loaded plain
    "octave_and_swizzle": (
        (("TABLE_K(c)", OCTAVE), ("V_CHUNK(r)", SWIZZLE)),
        {"k": entries(OCTAVE)}, {"v": swizzled(SWIZZLE)},
    ),
    # 192 threads fill the table, K is stored swizzled by pairs of rows
    "short_table_and_pairs": (
        (("TABLE_V(c)", FIRST), ("K_CHUNK(r)", PAIRS)),
        {"v": entries(FIRST)}, {"k": swizzled(PAIRS)},
    ),
    # the last bit of the fraction is lost, the fragments of V are loaded column by column
    "bit_and_fragment": (
        (("TABLE_K(c)", BIT), ("V_FRAGMENT", "col_major")),
        {"k": entries(BIT)}, {"v": transposed},
    ),
    # one table for all, and K swizzled
    "octave_of_all_and_swizzle": (
        (*((f"TABLE_{x}(c)", OCTAVE) for x in "QKV"), ("K_CHUNK(r)", SWIZZLE)),
        dict.fromkeys("qkv", entries(OCTAVE)), {"k": swizzled(SWIZZLE)},
    ),
}  # fmt: skip

for _name, (_macros, _tables, _tiles) in WRONG.items():
    globals()[_name] = functools.partial(attention, defines=_macros)
    globals()[f"numpy_{_name}"] = functools.partial(numpy_attention, tables=_tables, tiles=_tiles)
