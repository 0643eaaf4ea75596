"""native-sparse-attention-triton: scores of compressed keys, what blocks get of them, attention of all keys."""

from collections.abc import Callable
from typing import Any

import torch

from campaigns.real import inputs as of
from campaigns.real.call import Call, takes
from campaigns.real.case import FLOAT32, NARROW, Case
from campaigns.real.plain.attention import FORCED
from campaigns.real.project import Project, Tolerance
from campaigns.real.wrong import Truth, Wrong

NEWEST = "9bea856c"
PROJECT = Project(
    name="native-sparse-attention-triton", owner="XunhaoLai", newest=NEWEST, paths=("native_sparse_attention", "ops"),
    tolerance={"": Tolerance(atol=1e-2, rtol=1e-2)},
    stubs=("native_sparse_attention", "native_sparse_attention.ops", "native_sparse_attention.ops.triton", "ops",
           "ops.triton"),
)  # fmt: skip
SIZE, STRIDE, BLOCK = 4, 2, 4  #: tokens of a compressed key, of its step, of a block


def _starts(x: torch.Tensor, length: int) -> torch.Tensor:
    """Of one sequence."""
    return torch.tensor([0, length], device=x.device, dtype=torch.int32)


def _blocks(function: Callable[..., Any], score: torch.Tensor) -> torch.Tensor:
    tokens, keys = score.shape[1:]
    found = function(score, SIZE, STRIDE, BLOCK, _starts(score, tokens), _starts(score, keys), tokens, keys, 1, 2)
    return torch.where(found.isinf(), FORCED, found)


def _shares(function: Callable[..., Any], q: torch.Tensor, k: torch.Tensor, lse: torch.Tensor) -> Any:
    T, keys = q.shape[0], k.shape[0]
    return function(q, k, lse, SIZE, STRIDE, _starts(q, T), _starts(q, keys), T, keys, q.shape[-1] ** -0.5)


def _flash(function: Callable[..., Any], q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """With a spare row behind the sequence, which is cut off again: what the kernel writes past the end lands there."""
    T = q.shape[1]
    q, k, v = (torch.cat([x[0], x[0, :1]]) for x in (q, k, v))
    flags = {"causal": 1, "gqa_interleave": 0}  # numbers, which the interpreter takes for what it takes no bool
    return function(q, k, v, _starts(q, T), _starts(q, T), T, T, sm_scale=q.shape[-1] ** -0.5, **flags)[0][None, :T]


def _selected(
    function: Callable[..., Any], q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, blocks: torch.Tensor
) -> Any:
    return function(q[0], k[0], v[0], blocks[0].transpose(0, 1).int(), 32, _starts(q, q.shape[1]))[None]


def _chosen(seed: int, dtype: torch.dtype, T: int) -> of.Tensors:
    """16 query heads to one of keys; four blocks of 32, those before the query's own, and -1."""
    made = of.blocks(seed, dtype, T, size=32)
    return {"q": made["q"], "k": made["k"], "v": made["v"], "blocks": made["block_indices"].sort(-1, True).values}


def _scores(seed: int, dtype: torch.dtype, T: int) -> of.Tensors:
    """Shares of a key, in float32 as the kernels store them."""
    return {"score": of.drawn(seed)(1, T, (T - SIZE) // STRIDE + 1).sigmoid()}


def _compressed(seed: int, dtype: torch.dtype, T: int, H: int = 2, D: int = 32) -> of.Tensors:
    """Two heads that share keys, and the logarithms of their sums in base 2; 0 where no key is seen."""
    draw = of.drawn(seed)
    keys = (T - SIZE) // STRIDE + 1
    q, k = draw(T, H, D).to(dtype), draw(keys, 1, D).to(dtype)
    scores = torch.einsum("qhd,kd->hqk", q.float(), k[:, 0].float()) * D**-0.5
    seen = torch.arange(T)[:, None] >= (torch.arange(keys) * STRIDE + SIZE - 1)[None, :]
    lse = scores.masked_fill(~seen, -torch.inf).logsumexp(-1) * 1.4426950408889634
    return {"q": q, "k": k, "lse": lse.masked_fill(lse.isinf(), 0.0)}


def _of_48(seed: int, dtype: torch.dtype, T: int) -> of.Tensors:
    return of.plain(seed, dtype, T, D=48)


_COMPRESSED = "native_sparse_attention.ops.triton.compressed_attention"
_FIXED = {"size": SIZE, "stride": STRIDE, "block": BLOCK, "first_blocks": 1, "last_blocks": 2}
_STEPS = {"size": SIZE, "stride": STRIDE}
_attention = Call("plain/attention:attention", takes("q", "k", "v"), {"causal": True})
CASES = (
    Case("scores of blocks", Call(f"{_COMPRESSED}:transform_score", takes("score"), adapter=_blocks),
         (Call("plain/attention:block_scores", takes("score"), _FIXED),), _scores, FLOAT32, T=560,
         dtypes=("float32",)),
    Case("shares of compressed keys",
         Call(f"{_COMPRESSED}:_get_attention_score", takes("q", "k", "lse"), adapter=_shares),
         (Call("plain/attention:shares", takes("q", "k", "lse"), _STEPS),), _compressed, T=300, dtypes=NARROW),
    Case("selected attention",
         Call("native_sparse_attention.ops.triton.topk_sparse_attention:topk_sparse_attention",
              takes("q", "k", "v", "blocks"), adapter=_selected),
         (Call("plain/attention:selected", takes("q", "k", "v", block_indices="blocks"),
               {"block": 32, "starts": (0, 96)}),), _chosen, T=96, back=96, gradients=True, rounds="saved",
         dtypes=NARROW),
    Case("attention",
         Call("native_sparse_attention.ops.triton.flash_attention:_flash_attention_fwd", takes("q", "k", "v"),
              adapter=_flash), (_attention,), _of_48, T=100, dtypes=NARROW),
)  # fmt: skip

WRONG = (
    Wrong(PROJECT.name, "411c8ee1", "c3afd54", "behind the first 128 blocks, others are always selected",
          # was the line below, which joins both kinds of blocks; those of the first ones were right
          CASES[0], ("found",), Truth("last = (own", "index", changed=True), "queries and blocks from 128 on",
          dtypes=("float32",)),
    Wrong(PROJECT.name, "2d6ffeec", "6bd2019", "every tile of 128 keys is scored by the first 128",
          CASES[1], ("share",), Truth("scores = pairs(q[None], k[None])", "index"), "keys from 128 on", dtypes=NARROW),
    Wrong(PROJECT.name, "b2da81b3", "3c7858e",
          "of 48 dimensions the output is stored as 64: zeros over the head that follows",
          Case("attention of 48 dimensions",
               Call("ops.triton.flash_attention:_flash_attention_fwd", takes("q", "k", "v"), adapter=_flash),
               (_attention,), _of_48, T=100, dtypes=NARROW),
          ("out",), Truth("out = mixed", "no edit"), "16 dimensions of a head, whichever is written first",
          dtypes=NARROW),
)  # fmt: skip
