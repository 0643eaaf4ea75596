"""Faults of the kernels on tensor cores: named at their stages, or by a watched run where order hides them.

One of a stage and kernel at most, and those of a kernel in as few builds as can be, since each is seconds of compiling:
a stage is judged from those that were dumped before it. campaigns/tests/ and `bench faults` have the others.
"""

import pytest

from workbench import Case, check, diff, run
from workbench.cuda.faults.catalogue import CATALOGUE

HALF = dict(heads=2, head_dim=64, dtype="float16")
#: in data-flow order
TOGETHER = {
    "flash_tensor": (
        Case(**HALF, seqlen_q=37, seqlen_k=150, block_q=64, block_k=64),
        ("tensor-k-words-neighbours", "tensor-pair-swapped"),
    ),
    "flash_mma": (
        Case(**HALF, seqlen_q=37, seqlen_k=50, block_k=32, causal=True),
        ("mma-k-not-unswizzled", "mma-mask-of-pair", "mma-v-not-transposed", "mma-out-lanes-swapped"),
    ),
    "flash_wgmma": (
        Case(**HALF, seqlen_q=40, seqlen_k=300, block_q=64, block_k=64),
        ("wgmma-swizzle-off-by-a-phase", "wgmma-no-rescale"),
    ),
    # a build of two warps; three tiles in two splits, so that one has two and the other a ragged one
    "split_mma": (
        Case(**HALF | {"heads": 4}, kv_heads=2, seqlen_q=5, seqlen_k=90, block_k=32, splits=2),
        ("split-mma-rows-swapped", "split-mma-row-max-of-own-warp", "split-mma-merge-in-base-2"),
    ),
    "fp8_mma": (
        Case(codes="e4m3", scale_of="head", heads=2, seqlen_q=40, seqlen_k=100, head_dim=64, block_q=32, block_k=32),
        (
            "fp8-mma-order-of-bytes",
            "fp8-mma-scale-of-q-twice",
            "fp8-mma-v-not-transposed",
            "fp8-mma-v-scale-not-in-out",
        ),
    ),
}
#: kernel -> a case, and fault -> a line that the watched run names
WATCHED = {
    "flash_tensor": (TOGETHER["flash_tensor"][0], {"tensor-no-barrier-before-load": "ptx.st_v4_u32(tile, "}),
    "flash_mma": (
        Case(**HALF, seqlen_q=37, seqlen_k=150, block_q=64, block_k=64),
        {"mma-v-not-waited-for": "ptx.ldmatrix_x4_trans(tiles, "},
    ),
    "flash_wgmma": (
        TOGETHER["flash_wgmma"][0],
        {
            "wgmma-k-parity": "hopper.mbarrier_wait(bars, K_FULL + stage, (turn & 1) ^ 1)",
            "wgmma-v-emptied-too-early": "hopper.cp_async_bulk_tensor(tiles, place, v,",
        },
    ),
    "split_mma": (
        TOGETHER["split_mma"][0],
        {"split-mma-one-group-too-few": "b0, b1, b2, b3 = ptx.ldmatrix_x4(tiles, "},
    ),
    "fp8_mma": (
        TOGETHER["fp8_mma"][0],
        {"fp8-mma-wait-of-two-groups": "codes = ptx.ld_v4_u32(tiles, (codes_at + i * THREADS"},
    ),
}


def often(kernels, one):
    """These kernels, of which `one` is tried with every change and the others in campaigns: a build takes 10 s."""
    return [kernel if kernel == one else pytest.param(kernel, marks=pytest.mark.campaign) for kernel in kernels]


@pytest.mark.campaign
@pytest.mark.parametrize("kernel", often(TOGETHER, "flash_mma"))
def test_faults_begin_at_their_own_stages(kernel):
    case, faults = TOGETHER[kernel]
    known = [CATALOGUE[fault] for fault in faults]
    assert all(fault.needs.items() <= case.as_dict().items() for fault in known)
    judged = diff(run(kernel, case, faults=faults, backend="emulator"))
    assert judged.verdict == "bug" and judged.origins == tuple(stage for fault in known for stage in fault.stages)


@pytest.mark.campaign
@pytest.mark.parametrize("kernel", often(WATCHED, "flash_wgmma"))
def test_what_comes_too_early_or_too_late_is_named_with_its_line(kernel):
    case, lines = WATCHED[kernel]
    found = check(kernel, case, faults=[*lines], probes="output")
    named = {(one.kind, found.line(one.file, one.line)) for one in found.findings}
    for fault, text in lines.items():
        assert any(kind == CATALOGUE[fault].finding and text in line for kind, line in named), fault


@pytest.mark.campaign
def test_an_empty_split_that_leaves_nothing_is_seen():
    """Four splits of three tiles: what the merge reads of the last nobody wrote."""
    fault = "split-mma-empty-split-not-written"
    judged = diff(run("split_mma", TOGETHER["split_mma"][0].but(splits=4), faults=[fault], backend="emulator"))
    assert judged.verdict == "missing" and judged.origins == CATALOGUE[fault].stages
