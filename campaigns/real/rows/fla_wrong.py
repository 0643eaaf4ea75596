"""Kernels of flash-linear-attention that are wrong at the parent of a commit, and right at it.

Each is judged by the naive reference of the commit RIGHT, so that a row says of two commits what they do on one input.
"""

from dataclasses import replace
from typing import Any

import torch

from campaigns.real import inputs as of
from campaigns.real.call import Call, takes
from campaigns.real.case import Case
from campaigns.real.rows.fla import QKV, RIGHT, STATE, named
from campaigns.real.wrong import Truth, Wrong

FLA = "flash-linear-attention"


def _with(case: Case, **fixed: Any) -> Case:
    return replace(case, kernel=replace(case.kernel, fixed={**case.kernel.fixed, **fixed}))


def _steep(seed: int, dtype: Any, T: int) -> of.Tensors:
    return of.gated_delta(seed, dtype, T, by=0.02)


def _uneven(seed: int, dtype: Any, T: int) -> of.Tensors:
    """One of three heads forgets all at once: 16 gates of -9 are 2^-208, and 8 of them 2^-104, which float32 holds."""
    made = of.low_rank(seed, dtype, T, H=3)
    gates = -0.1 * (1 + torch.arange(3.0)).expand(1, T, 3).clone()
    gates[..., 0] = -9.0
    return made | {"gk": gates[..., None].expand(made["gk"].shape).contiguous()}


def _behind_large(seed: int, dtype: Any, T: int) -> of.Tensors:
    """Sums behind 2^24 are whole numbers where they are taken from the total; behind the 1,000 of the case they are off
    by 6e-5, a hundredth of half an ulp of bfloat16.
    """
    made = of.sequence(seed, dtype, T)
    made["s"][:, 0] = 2.0**24
    return made


WRONG = (
    Wrong(FLA, "2e90142c", "91d870f8", "rows behind a partial last chunk are not masked in off-diagonal blocks: 0 inf",
          replace(named("gated delta rule, chunks"), inputs=_steep, T=100), ("h", "S", "o"),
          Truth("", "no edit"), "NaN in the last chunk"),
    Wrong(FLA, "3adcb3c5", "674f0852", "the weight's gradient is taken of the output without its gate",
          named("RMS norm, gated, linear"), ("dlinear",), Truth("F.linear(gated, linear)", "operand"),
          wrong_in=("gradients",)),
    Wrong(FLA, "58effcf1", "71ebc498", "a strided gradient of the result is read as if it were contiguous",
          replace(named("causal convolution"), inputs=of.strided), ("dx", "dweight", "dbias"),
          Truth("out[..., :seqlen]", "index"), wrong_in=("gradients",)),
    Wrong(FLA, "794f183c", "4b02d15d", "dk lacks the part through the normaliser",
          named("linear attention, normalised"), ("dk",), Truth("q * scale * k_cum", "omitted part"),
          wrong_in=("gradients",)),
    # what is subtracted from a chunk's sums of gates drops out again, but for overflow. With gates of -5 at least,
    # which `safe_gate` asks for, there is none: 16 of them are 2^-115, and on an H100 both commits were right
    Wrong(FLA, "674f0852", "40334f1c", "the gate in the middle of a chunk is another head's: with several heads",
          replace(_with(named("DPLR, chunks"), safe_gate=True, chunk_size=16), inputs=_uneven, T=64),
          ("result[0]", "S"), Truth("gk[:, :, i].exp()", "index"), dtypes=("float16", "bfloat16")),
    Wrong(FLA, "7843b328", "51a8c0a8", "a tile of keys that straddles a chunk's end is not masked",
          _with(named("DeltaFormer, first stage"), C=48), ("naive_deltaformer_attn_head_first.u",),
          Truth("j < i", "mask")),
    Wrong(FLA, "5337b5ad", "de09abdf", "a partial last chunk: scales of levels behind the end; dg of the last token",
          replace(named("log-linear attention"), T=100), ("dk", "dv", "dg"), Truth("L[..., level, :]", "index"),
          wrong_in=("gradients",),
          dtypes=("float32",)),
    # nothing shows it: before the commit `chunk_kda` takes no other chunks than of 64. Said after its first run
    Wrong(FLA, "23da0a15", "769035e9", "the backward pass of the states takes chunks of 64 where they are of 32",
          _with(named("KDA, chunks"), chunk_size=32), (), Truth("", "no edit", changed=True), wrong_in=("gradients",)),
    Wrong(FLA, "4e1dd3be", "3e432dec",
          "a reversed sum is the total less the sum before: what is small behind large is lost",
          replace(named("cumulative sum, reversed"), inputs=_behind_large), ("result",), Truth("", "no edit"),
          "all but the first token"),
    Wrong(FLA, RIGHT, "", "the square of a normaliser overflows in float16; no commit fixes it",
          named("linear attention, normalised"), ("dq", "dk"), Truth("", "no edit"),
          wrong_in=("gradients",), dtypes=("float16",)),
    Wrong(FLA, RIGHT, "", "a constant decay behind a partial last chunk: 0 inf; no commit fixes it",
          replace(named("lightning attention, chunks"), T=200), ("S",),
          Truth("", "no edit"), "all of the state"),
    Wrong(FLA, RIGHT, "", "the naive reference itself reads the state behind a token's decay; no commit fixes it",
          replace(named("Comba, chunks"), T=64, references=(
              Call("fla/ops/comba/naive.py:naive_recurrent_comba", takes(*QKV, "p", "beta", "g"), STATE),)),
          ("o",), Truth("h.clone() * b_p", "operand"), of_reference=True),
    Wrong(FLA, "0b7fb85c", "12e2a700", "the naive reference itself sums keys within chunks alone",
          replace(named("linear attention, normalised"), T=192, gradients=False, references=(
              Call("fla/ops/linear_attn/naive.py:naive_chunk_linear_attn", takes(*QKV), {"normalize": True}),)),
          ("o",), Truth("k.cumsum(", "index"), "behind the first chunk", of_reference=True),
)  # fmt: skip
