"""Attention of flash-linear-attention, gated and sparse: wrong at the parent of a commit, and right at it."""

import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from campaigns.real import inputs as of
from campaigns.real.call import Call, takes
from campaigns.real.case import FLOAT32, Case
from campaigns.real.plain import attention as plain
from campaigns.real.rows.fla import QKV, RIGHT, named
from campaigns.real.wrong import Truth, Wrong

FLA = "flash-linear-attention"
#: where sequences begin, and the end
PACKED, DECODED = (0, 16, 80), (0, 40, 90)
BLOCK = 16
#: of decoding, which multiplies q by k in their dtype, element by element
ALONE = ("float32",)


def _small(function: Callable[..., Any], **given: Any) -> Any:
    """As on a GPU of little shared memory, where tiles of values are narrower."""
    vars(sys.modules[function.__module__])["check_shared_mem"] = lambda *_, **__: False
    return function(**given)


def _packed(starts: tuple[int, ...]) -> Callable[..., Any]:
    def call(function: Callable[..., Any], **given: Any) -> Any:
        return function(**given, cu_seqlens=torch.tensor(starts, device=given["q"].device))

    return call


def _wide(seed: int, dtype: torch.dtype, T: int) -> of.Tensors:
    return of.plain(seed, dtype, T, H=1, D=128)


def _decoded(seed: int, dtype: torch.dtype, T: int, V: int = 32) -> of.Tensors:
    """A query of each of two sequences, whose lengths are no multiples of a tile; four heads to two of keys."""
    draw = of.drawn(seed)
    made = {"q": draw(1, len(DECODED) - 1, 4, 32), "k": draw(1, T, 2, 32), "v": draw(1, T, 2, V)}
    return {name: x.to(dtype) for name, x in made.items()}


def _decoded_wide(seed: int, dtype: torch.dtype, T: int) -> of.Tensors:
    return _decoded(seed, dtype, T, V=320)


def _decoded_gates(seed: int, dtype: torch.dtype, T: int) -> of.Tensors:
    """Gates that forget little: what lies behind the end keeps a weight."""
    return _decoded(seed, dtype, T) | {"g": of.gates(of.drawn(seed + 1), 1, T, 4, by=50.0)}


def _selected(seed: int, dtype: torch.dtype, T: int) -> of.Tensors:
    """Values of 256 dimensions; every query selects its own block and the first of its sequence."""
    draw = of.drawn(seed)
    places = torch.full((1, T, 1, 2), -1)
    for start, end in zip(PACKED, PACKED[1:], strict=False):
        for t in range(end - start):
            own = sorted({0, t // BLOCK})
            places[0, start + t, 0, 2 - len(own) :] = torch.tensor(own)
    made = {"q": draw(1, T, 16, 32), "k": draw(1, T, 1, 32), "v": draw(1, T, 1, 256)}
    made = {name: x.to(dtype) for name, x in made.items()} | {"block_indices": places}
    return made | {"dout": _across(draw, plain.selected(**made, block=BLOCK, starts=PACKED))}


def _across(draw: of.Draw, out: torch.Tensor) -> torch.Tensor:
    """A gradient of the result at right angles to it: what the kernel subtracts once for each tile of values, where it
    should subtract it once, is 0 then, before and after the fix.
    """
    grad, own = draw(*out.shape), out.float()
    return (grad - own * (grad * own).sum(-1, keepdim=True) / own.square().sum(-1, keepdim=True).clamp(1e-6)).to(out)


def _compressed(seed: int, dtype: torch.dtype, T: int) -> of.Tensors:
    """Keys and values of blocks, the last of which is partial where a sequence is."""
    draw = of.drawn(seed)
    blocks = sum(-(-(end - start) // BLOCK) for start, end in zip(PACKED, PACKED[1:], strict=False))
    made = {"q": draw(1, T, 16, 32), "k": draw(1, blocks, 1, 32), "v": draw(1, blocks, 1, 256)}
    made = {name: x.to(dtype) for name, x in made.items()}
    return made | {"dout": _across(draw, plain.compressed(**made, block=BLOCK, starts=PACKED))}


def _compressed_alone(seed: int, dtype: torch.dtype, T: int) -> of.Tensors:
    """With any gradient of the result."""
    made = _compressed(seed, dtype, T)
    return {name: x for name, x in made.items() if name != "dout"}


def _open(seed: int, dtype: torch.dtype, T: int) -> of.Tensors:
    """Gates that forget little: a second tile of another chunk still counts."""
    return of.scalar_gate(seed, dtype, T, by=50.0)


def _decoding(module: str, inputs: Callable[..., of.Tensors], *gates: str) -> Case:
    return Case(
        f"decoding, {module}",
        Call(f"fla.ops.{module}.decoding:attn_decoding_one_step", takes(*QKV, *gates), {} if gates else {"g": None},
             adapter=_packed(DECODED)),
        (Call("fla/ops/attn/naive.py:naive_attn_decoding", takes(*QKV, *gates), {"cu_seqlens": list(DECODED)}),),
        inputs, FLOAT32, T=DECODED[-1], dtypes=ALONE,
    )  # fmt: skip


#: Truths that were changed after a first run: of the sparse kernel, the project's reference, a loop over tokens, did
#: not end in 120 s, and the same line of the dense form stands for its line; of small tiles, the tile that is left out
#: is one of doutput @ v, the gradient through the line of `output`, and not of the line of `scores`.
WRONG = (
    Wrong(FLA, "5f3801fb", "ccb0ff94", "every tile of values is stored at the first one's place",
          _decoding("attn", _decoded_wide), ("result",), Truth("torch.einsum", "no edit"),
          "values behind the first 64 or 256 dimensions are unwritten, those before are of another tile", dtypes=ALONE),
    Wrong(FLA, "68817188", "d7150bf9", "keys behind the end of a sequence are not masked",
          _decoding("forgetting_attn", _decoded_gates, "g"), ("result",), Truth("softmax", "mask"), "all",
          dtypes=ALONE),
    Wrong(FLA, "f30deec7", "cf3aff73",
          "of packed sequences, the second half of the values adds to gradients at another token",
          Case("sparse attention, packed",
               Call("fla.ops.nsa.parallel:parallel_nsa", takes(*QKV, "block_indices"),
                    {"block_counts": 2, "block_size": BLOCK}, adapter=_packed(PACKED)),
               (Call("plain/attention:selected", takes(*QKV, "block_indices"), {"block": BLOCK, "starts": PACKED}),),
               _selected, gradients=True, rounds="saved", back=PACKED[-1]),
          ("dq", "dk"), Truth("scores = pairs(q[:, start:end]", "index", changed=True), wrong_in=("gradients",)),
    Wrong(FLA, "30c9dac5", "e4c7f880", "on a small GPU, each half of the values overwrites the other's dq and dk",
          Case("attention, small tiles",
               Call("fla.ops.attn.parallel:parallel_attn", takes(*QKV), adapter=_small),
               (Call("fla/ops/attn/naive.py:naive_parallel_attn", takes(*QKV), results=(0,)),), _wide,
               gradients=True, rounds="saved", back=40),
          ("dq", "dk"), Truth("output = torch.einsum", "omitted part", changed=True), wrong_in=("gradients",)),
    Wrong(FLA, "d1097c60", "585bb3c1",
          "of packed sequences, the second half of the values adds to dk of another block",
          Case("compressed attention, packed",
               Call("fla.ops.nsa.compression:parallel_nsa_compression", takes(*QKV), {"block_size": BLOCK},
                    results=(0,), adapter=_packed(PACKED)),
               (Call("plain/attention:compressed", takes(*QKV), {"block": BLOCK, "starts": PACKED}),),
               _compressed, gradients=True, rounds="saved", back=PACKED[-1]),
          ("dk",), Truth("scores = pairs(q[:, start:end]", "index"), wrong_in=("gradients",)),
    Wrong(FLA, RIGHT, "", "out times dout is subtracted once for each tile of 128 values; no commit fixes it",
          Case("compressed attention, packed, newest",
               Call("fla.ops.nsa.compression:parallel_nsa_compression", takes(*QKV),
                    {"block_size": BLOCK, "TK": PACKED[-1]}, results=(0,), adapter=_packed(PACKED)),
               (Call("plain/attention:compressed", takes(*QKV), {"block": BLOCK, "starts": PACKED}),),
               _compressed_alone, gradients=True, rounds="saved", back=PACKED[-1]),
          ("dq", "dk"), Truth("probs = weights / ", "factor"), "found by a first run of the row before",
          wrong_in=("gradients",)),
    Wrong(FLA, "1e5cc8a1", "7362d874", "in a chunk behind a key's, the gates before a tile enter with the other sign",
          replace(named("forgetting attention"), inputs=_open, back=200), ("dk", "dv", "dg"),
          Truth("ref = ref + ", "factor"),
          "tokens whose gradient comes through a second tile of another chunk", wrong_in=("gradients",)),
)  # fmt: skip
