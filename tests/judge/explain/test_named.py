"""Mistakes of real kernels have names, from out alone, and from out and lse."""

from collections.abc import Callable

import numpy as np
import pytest

from tests.judge.explain.named_kernels import (
    as_bhsd,
    as_bshd,
    by_exp,
    kernel,
    merged,
    of_lanes,
    only,
    over_heads,
    wide,
    zeros_behind,
)
from workbench import Case, diff, run

HEADS = Case(heads=4, kv_heads=2, seqlen=24, head_dim=16)
ROWS = Case(heads=1, seqlen=72, head_dim=32)
WIDE = Case(heads=2, seqlen=40, head_dim=24)
LANES = Case(heads=1, seqlen=40, head_dim=64)
LARGE = Case(heads=1, seqlen=64, head_dim=32, scale=5.0)

BSHD, BHSD = "[b, h, s, d] is read with the strides of [b, s, h, d]", "[b, s, h, d] is read with the strides of [b, h, s, d]"
#: what is wrong -> the kernel, its case, and what its name holds
NAMED = {
    "all as bshd": (kernel(as_bshd, as_bshd, as_bshd), HEADS, f"q, k and v: {BSHD}"),
    "all and out as bshd": (kernel(as_bshd, as_bshd, as_bshd, as_bhsd), HEADS, f"q, k and v: {BSHD}, out is stored so"),
    "all, out and lse as bshd": (kernel(as_bshd, as_bshd, as_bshd, as_bhsd, as_bhsd), HEADS, f"q, k and v: {BSHD}, out"),
    "all and out as bhsd": (kernel(as_bhsd, as_bhsd, as_bhsd, as_bshd), HEADS, f"q, k and v: {BHSD}, out is stored so"),
    "q and out as bshd": (kernel(q=as_bshd, out=as_bhsd), HEADS, f"q: {BSHD}, out is stored so"),
    "k and v as bhsd": (kernel(k=as_bhsd, v=as_bhsd), HEADS, f"k and v: {BHSD}"),
    "q and v as bshd": (kernel(q=as_bshd, v=as_bshd), HEADS, f"q and v: {BSHD}"),
    "over heads": (kernel(of=over_heads), HEADS, "attention is over the heads at each place"),
    "over heads, causal": (kernel(of=over_heads), HEADS.but(causal=True), "attention is over the heads at each place"),
    "zeros in q and v": (kernel(q=zeros_behind(32, 16), v=zeros_behind(32, 16)), ROWS, "tiles of 32 rows of q and v"),
    "zeros in all": (kernel(*(zeros_behind(32, 16),) * 3), ROWS, "tiles of 32 rows of q, k and v"),
    "zeros in v, 8 apart": (kernel(v=zeros_behind(64, 8)), ROWS, "tiles of 64 rows of v, which lie head_dim + 8 apart"),
    "zeros in k and v": (kernel(k=zeros_behind(16, 8), v=zeros_behind(16, 8)), ROWS, "tiles of 16 rows of k and v"),
    "wide 16": (kernel(wide(16), wide(16)), WIDE, "up to a multiple of 16 dims"),
    "wide 80": (kernel(wide(16), wide(16)), WIDE.but(head_dim=72), "up to a multiple of 16 dims"),
    "wide 128": (kernel(wide(128), wide(128)), WIDE, "up to a multiple of 128 dims"),
    "wide 8": (kernel(wide(8), wide(8)), WIDE.but(head_dim=20, kv_heads=1), "up to a multiple of 8 dims"),
    "lane of the row": (kernel(q=only(lambda c, i, d: c // 2 == i % 32)), LANES, "in pairs: they are those of lane i % 32"),
    "lane 0": (kernel(q=only(lambda c, i, d: c % 32 == 0)), LANES, "32 apart: they are those of lane 0"),
    "lane of the key": (kernel(k=only(lambda c, i, d: c // 2 == i % 32)), LANES, "those of lane j % 32, for key j"),
    "own lane of out": (kernel(of=of_lanes(32, lambda c: c // 2)), LANES, "a softmax of its own, for its own dims of out"),
    "4 lanes": (kernel(of=of_lanes(4, lambda c: c % 4)), LANES, "4 lanes that hold the dims of q, 4 apart"),
    "merged by e^lse": (kernel(of=merged(4, by_exp)), LARGE, "weights of e^(their lse)"),
    "merged by e^lse, 2 splits": (kernel(of=merged(2, by_exp)), LARGE.but(heads=2), "weights of e^(their lse)"),
}  # fmt: skip


@pytest.mark.parametrize("lse", [False, True])
@pytest.mark.parametrize("name", NAMED)
def test_it_is_named_with_what_every_report_tries(name: str, lse: bool) -> None:
    made, case, text = NAMED[name]
    found = diff(run(made(lse), case)).explained
    assert found.causes and not found.unexplained
    assert any(text in said for said in found.causes[0].names)
