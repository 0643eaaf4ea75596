"""Cases are drawn from one table: by a seeded generator, and by hypothesis."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import find, given, settings
from hypothesis import strategies as st

from tests.refusals import refusal
from workbench.case.case import Case
from workbench.case.fields import ALIGNMENTS
from workbench.cuda.kernels import KERNELS
from workbench.cuda.plan import resolve
from workbench.explore.draw import Among, Between
from workbench.explore.ranges import BUILDS, RANGES
from workbench.explore.sample import sample
from workbench.explore.strategies import cases


def drawn(kernel: str | None, count: int = 400, **given: object) -> list[Case]:
    random = np.random.default_rng(0)
    return [sample(random, kernel, **given) for _ in range(count)]


@pytest.mark.parametrize("kernel", [*KERNELS, None])
def test_a_sample_is_repeatable_and_fits_its_kernel(kernel):
    found = drawn(kernel, 100)
    assert found == drawn(kernel, 100) and len(set(found)) > 90
    if kernel is not None:
        assert all(resolve(KERNELS[kernel], case) for case in found)
        assert {(case.block_q, case.block_k, case.dtype) for case in found} <= {
            (build.block_q, build.block_k, build.dtype) for build in BUILDS
        }


def test_a_sample_has_what_breaks_kernels():
    found = drawn("split_k", 1000)
    masks = [case.mask() for case in found]
    seen = Counter(
        grouped=sum(case.heads > case.kv_heads > 1 for case in found),
        window=sum(case.window is not None for case in found),
        softcap=sum(case.softcap is not None for case in found),
        ragged=sum(case.seqlen_k % case.block_k != 0 for case in found if case.block_k),
        empty_rows=sum(not mask.any(axis=1).all() for mask in masks),
        several_tiles=sum(case.seqlen_k > case.block_k for case in found if case.block_k),
        scale=sum(case.scale < 0 for case in found),
    )
    assert min(seen.values()) >= 50, seen
    assert {case.distribution for case in found} == {*RANGES["distribution"].values}  # type: ignore[union-attr]


def test_a_function_is_told_causal_and_no_more_unless_more_is_asked_for():
    found = drawn(None)
    assert {(case.window, case.softcap, case.causal_alignment) for case in found} == {(None, None, "bottom-right")}
    asked = drawn(None, windowed=True, softcap=Among((None, 5.0)), causal_alignment=Among(ALIGNMENTS))
    assert len({case.window for case in asked}) > 20 and {case.softcap for case in asked} == {None, 5.0}
    assert {case.causal_alignment for case in asked} == {*ALIGNMENTS}


def test_what_is_given_is_not_drawn():
    found = drawn(None, 50, seqlen=7, heads=6, dtype="float16", window=None, seed=Between(1, 3), softcap=Among((2.0,)))
    assert {(case.seqlen_q, case.seqlen_k, case.heads, case.dtype, case.window, case.softcap) for case in found} == {
        (7, 7, 6, "float16", None, 2.0)
    }
    assert {case.seed for case in found} == {1, 2, 3} and {case.kv_heads for case in found} == {1, 2, 3, 6}


def test_a_build_that_is_given_is_kept():
    found = drawn("flash", 20, block_q=32, block_k=32, head_dim=32, dtype="float32")
    assert {(case.block_q, case.block_k, case.head_dim, case.dtype) for case in found} == {(32, 32, 32, "float32")}


def test_refusals():
    random = np.random.default_rng(0)
    assert refusal(sample, random, "flush") == (
        "cases are drawn for a built-in kernel (flash, flash_tensor, flash_mma, flash_wgmma, split_k, split_mma, fp8, fp8_mma, fp8_wgmma) or for none; got 'flush'"
    )
    assert refusal(sample, random, None, seqlens=3).startswith(
        "a random case has no 'seqlens'; did you mean seqlens_q? Use one of batch, heads, "
    )
    assert refusal(sample, random, None, distribution="exact", head_dim=2, seqlen=64) == (
        "distribution exact writes the key's index in binary over head_dim: seqlen_k=64 needs head_dim >= 12; got 2"
    )


@pytest.mark.campaign
def test_strategies_draw_the_same_and_shrink_to_the_plainest_case():
    plain = find(cases("flash"), lambda case: True)
    assert plain == Case(seqlen=1, head_dim=1, block_q=16, block_k=16, distribution=plain.distribution)
    causal = find(cases(), lambda case: case.causal and case.seqlen_k > 17 and case.heads >= 4)
    assert (causal.causal, causal.seqlen_q, causal.seqlen_k, causal.batch) == (True, 1, 18, 1)
    assert causal.heads in (4, 5, 6) and causal.window is None and causal.softcap is None and causal.head_dim == 1

    @settings(max_examples=50, deadline=None)
    @given(cases("flash", dtype="float16", causal=True, seqlen=st.integers(3, 5)))
    def holds(case):
        assert case.dtype == "float16" and case.causal and case.seqlen_q == case.seqlen_k in (3, 4, 5)

    holds()
