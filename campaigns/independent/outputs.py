"""Faults of the last lines: the division, the logarithm, where and whether results are stored."""

from itertools import product

import numpy as np

from campaigns.independent.benign import smooth, smoothed
from campaigns.independent.eager import eager
from campaigns.independent.fault import (
    Independent,
    Options,
    always,
    causal,
    enough,
    grouped,
    recorded,
    rows_without_keys,
    visible_keys,
)
from campaigns.independent.online import BLOCK_K, BLOCK_Q, flash
from campaigns.independent.packed import packed
from campaigns.independent.shape import LOG2E, NO_KEY, Array, Stages, blocks, float32, log_sum
from campaigns.independent.split import decode, split_k

FAULTS: dict[str, Independent] = {}
COLUMNS = 32


@recorded(FAULTS, packed, "lse", lambda o: o["heads"] > 1 and o["seqlen_q"] > 1, "xformers 41646dbb")
def lse_by_query_and_head(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """lse is written at query * heads + head, the order of packed rows."""
    stages = packed(q, k, v, scale=scale, causal=causal)
    return stages | {"lse": np.swapaxes(stages["lse"], 1, 2).reshape(stages["lse"].shape)}


@recorded(FAULTS, flash, "out", lambda o: o["head_dim"] > COLUMNS, "fla#1028")
def columns_stored_at_the_first(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """The store of each 32 columns lacks their offset: the last ones stand at column 0, the others nowhere."""
    stages = flash(q, k, v, scale=scale, causal=causal)
    out = np.zeros_like(stages["out"])
    for d in blocks(out.shape[-1], COLUMNS):
        out[..., : len(d)] = stages["out"][..., d]
    return stages | {"out": out}


@recorded(FAULTS, eager, "lse", always, "SageAttention b0a347c")
def lse_less_an_offset(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """lse is rid of the logarithm of an 8-bit offset that this kernel did not give to its probabilities."""
    stages = eager(q, k, v, scale=scale, causal=causal)
    return stages | {"lse": stages["lse"] - np.log(np.float32(448))}


@recorded(FAULTS, packed, "lse", always, "pytorch#181645")
def lse_in_base_two(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """lse is left in units of log2."""
    stages = packed(q, k, v, scale=scale, causal=causal)
    return stages | {"lse": stages["lse"] * LOG2E}


@recorded(FAULTS, split_k, "lse", always, "flashinfer#3838")
def lse_not_written(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """lse is never stored, and has the zeros that its buffer was made of."""
    stages = split_k(q, k, v, scale=scale, causal=causal)
    return stages | {"lse": np.zeros_like(stages["lse"])}


def last_tile_has_maxima(options: Options) -> bool:
    return enough(8, BLOCK_K + 1)(options) and (options["seqlen_k"] - 1) % BLOCK_K >= BLOCK_K // 2


@recorded(FAULTS, flash, "lse", last_tile_has_maxima, "flash-attn 2f78d484")
def lse_of_the_maximum_before(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """lse adds the maximum that was stored before the last tile to the logarithm of the sum after it."""
    stages = flash(q, k, v, scale=scale, causal=causal)
    before = stages["row_max"][..., -2:][..., 0]
    return stages | {"lse": log_sum(before, stages["row_sum"][..., -1])}


def next_head_is_hit(options: Options) -> bool:
    several = options["batch"] * options["heads"] > 1
    return bool(several and options["seqlen_q"] > BLOCK_Q and options["seqlen_q"] % BLOCK_Q)


@recorded(FAULTS, flash, "lse", next_head_is_hit, "flash-attn d11341fd")
def lse_of_whole_tiles(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """The last tile stores lse of rows behind the last query, which are rows of the next head."""
    stages = flash(q, k, v, scale=scale, causal=causal)
    rows, padding = stages["lse"].reshape(-1, q.shape[2]), np.log(np.float32(k.shape[2]))
    flat = np.zeros(rows.size + BLOCK_Q, np.float32)
    for i, head in product(blocks(q.shape[2], BLOCK_Q), range(len(rows))):
        start = head * q.shape[2] + i[0]
        flat[start : start + BLOCK_Q] = padding
        flat[start : start + len(i)] = rows[head, i]
    return stages | {"lse": flat[: rows.size].reshape(stages["lse"].shape)}


@recorded(FAULTS, decode, "lse", rows_without_keys, "flash-attn#978")
def lse_of_no_keys_is_large(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """lse of a row without keys is inf, of which a later merge makes a weight."""
    stages = decode(q, k, v, scale=scale, causal=causal)
    return stages | {"lse": np.where(stages["lse"] == NO_KEY, -NO_KEY, stages["lse"])}


@recorded(FAULTS, flash, "out lse", rows_without_keys, "flashinfer#1533")
def rows_without_keys_not_stored(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """Rows without keys are left before the store: out has there what its memory, that of q, had, and lse a 0."""
    stages = flash(q, k, v, scale=scale, causal=causal)
    empty = stages["lse"] == NO_KEY
    out = np.where(empty[..., None], q, stages["out"])
    return stages | {"out": out, "lse": np.where(empty, np.float32(0), stages["lse"])}


@recorded(FAULTS, eager, "out", rows_without_keys, "mlx#2608")
def division_not_guarded(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """out of a row without keys is 0 / 0."""
    stages = eager(q, k, v, scale=scale, causal=causal)
    with np.errstate(invalid="ignore"):
        return stages | {"out": (stages["acc"][..., 0, :] / stages["row_sum"]).astype(q.dtype)}


@recorded(FAULTS, smoothed, "lse", grouped, "SageAttention 9cd0915")
def correction_of_a_kv_head(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """What the mean key takes from lse is computed for as many query heads as there are kv heads, and repeated."""
    q32, k32 = float32(q, k)
    of_kv_heads = (q32[:, : k.shape[1]] @ k32.mean(2)[..., None])[..., 0] * np.float32(scale)
    return smooth(q, k, v, scale, causal, np.repeat(of_kv_heads, q.shape[1] // k.shape[1], 1))


def toggled_rows(options: Options) -> bool:
    return options["seqlen_q"] > 4 and visible_keys(options, 4) > 0 and options["head_dim"] % 16 == 0


@recorded(FAULTS, flash, "out", toggled_rows, "flash-attn eeca63a7", known=False)
def columns_swizzled(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """Four of every eight rows are stored with halves of each 16 columns exchanged, which the reader does not undo."""
    stages = flash(q, k, v, scale=scale, causal=causal)
    toggled = (np.arange(q.shape[2]) >> 2 & 1).astype(bool)
    out, d = stages["out"].copy(), np.arange(q.shape[3])
    exchanged = np.where(d < len(d) // 16 * 16, d ^ 8, d)
    out[:, :, toggled] = out[:, :, toggled][..., exchanged]
    return stages | {"out": out}


def a_row_sees_two_keys(options: Options) -> bool:
    return causal(options) and visible_keys(options, 0) <= 2 <= options["seqlen_k"]


@recorded(FAULTS, eager, "lse", a_row_sees_two_keys, "pytorch#181645", known=False)
def logarithm_of_small_sums(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """The logarithm of a sum below 4 is the fraction 2 (l - 1) / (l + 1)."""
    stages = eager(q, k, v, scale=scale, causal=causal)
    row_max, l = stages["row_max"][..., 0], stages["row_sum"][..., 0]
    small = (l > 0) & (l < 4)
    return stages | {"lse": np.where(small, row_max + 2 * (l - 1) / (l + 1), stages["lse"]).astype(np.float32)}
