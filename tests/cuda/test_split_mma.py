"""Split-K on tensor cores: right on both backends, probed from its fragments, with packed rows, splits and stages."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from tests.refusals import refusal
from workbench import Case, check, diff, run
from workbench.cuda import split_mma_build
from workbench.cuda.kernels import KERNELS
from workbench.cuda.plan import resolve
from workbench.cuda.split_mma_build import STAGES, Constants, fills, launches
from workbench.floats import to_float64

KERNEL = KERNELS["split_mma"]
on_both = pytest.mark.parametrize("backend", ["emulator", pytest.param("cuda", marks=pytest.mark.gpu)])

DECODE = dict(heads=8, kv_heads=2, batch=2, seqlen_q=1, seqlen_k=330, head_dim=64, dtype="float16", splits=2)
FEW_DIMS = "lengths of a cache, rows and splits without keys, few dims"
#: one build each; every switch is on in one of them
CASES = {
    FEW_DIMS: dict(
        heads=6, kv_heads=2, seqlen_q=9, seqlens_k=(40, 0, 7), head_dim=40, dtype="bfloat16", causal=True, splits=5,
        causal_alignment="top-left", block_k=16
    ),
    "packed sequences, rows of four fragments, window, softcap": dict(
        heads=8, kv_heads=2, seqlens_q=(5, 0, 20, 1), seqlens_k=(40, 17, 150, 0), head_dim=128, dtype="float16",
        scale=-0.5, softcap=5.0, window=(70, 3), block_q=64, splits=3
    ),
}  # fmt: skip
#: besides in a campaign
MORE = {"decode": DECODE}


def case_of(name):
    return Case(**(CASES | MORE)[name])


@pytest.mark.campaign(but=1)
@on_both
@pytest.mark.parametrize("name", [*CASES, *MORE])
def test_every_stage_is_right(name, backend):
    case = case_of(name)
    judged = diff(run("split_mma", case, backend=backend))
    stages = ["qk", *["capped"] * (case.softcap is not None), "scores", "row_max", "correction", "probs", "probs_cast"]
    merged = ["partial_max", "partial_sum", "partial_O", "merge_max", "merge_weight", "merge_sum", "out", "lse"]
    assert [stage.name for stage in judged] == [*stages, "row_sum", "acc", *merged]
    assert judged.verdict == "rounding" and judged.origins == ()


@pytest.mark.campaign
def test_products_are_those_of_the_other_kernel_on_tensor_cores():
    """Bit for bit, however queries are packed and keys are tiled; sums of a row have another order."""
    case = Case(**DECODE)
    split = run("split_mma", case, backend="emulator").stages
    whole = run("flash_mma", case.but(splits=None, block_q=64, block_k=64), backend="emulator").stages
    for name in ("qk", "scores"):
        assert split[name].tobytes() == whole[name].tobytes()
    np.testing.assert_allclose(to_float64(split["out"]), to_float64(whole["out"]), atol=2e-3)


@pytest.mark.campaign
@on_both
@pytest.mark.parametrize("stages", [STAGES, 1])
def test_neither_probes_nor_stages_of_copies_change_a_bit_of_the_output(stages, backend, monkeypatch):
    case = Case(**DECODE)
    expected = run("split_mma", case, backend=backend).stages
    monkeypatch.setattr(split_mma_build, "STAGES", stages)
    found = run("split_mma", case, probes="output", backend=backend).stages
    assert all(found[name].tobytes() == expected[name].tobytes() for name in ("out", "lse"))


@pytest.mark.campaign
def test_a_watched_run_finds_nothing():
    case = Case(**DECODE | {"seqlen_k": 150, "block_k": 32})
    assert check("split_mma", case, probes="output").findings == ()


def test_partial_results_come_from_outside():
    case = case_of(FEW_DIMS)
    partials = ("partial_O", "partial_max", "partial_sum")
    judged = diff(run("split_mma", case, feed=dict.fromkeys(partials, "reference"), backend="emulator"))
    assert judged.origins == () and {"merge_weight", "out", "lse"} <= {stage.name for stage in judged}


# ---- tiles


def test_what_a_block_holds():
    for block_q, block_k, head_dim, stages in itertools.product((16, 32, 64), (16, 32, 64, 128), (64, 128), (1, 2, 3)):
        made = Constants(block_q, block_k, head_dim, "float16", stages=stages)
        names = made.names()
        assert names["V_AT"] + stages * block_k == made.rows and made.shared_bytes == 2 * made.rows * head_dim
        assert names["WARP_KEYS"] * made.warps == block_k and names["WARP_KEYS"] % 16 == 0
        assert names["WARP_DIMS"] * made.warps == head_dim and names["WARP_DIMS"] % 16 == 0
        assert names["ROWS_AT_ONCE"] * names["CHUNKS"] == made.threads and block_k % names["ROWS_AT_ONCE"] == 0
        assert names["LANE_DIMS"] * 32 == head_dim and names["V_PENDING"] == names["K_PENDING"] + 1 == 2 * stages - 1


@pytest.mark.parametrize(
    ("options", "tiles", "grid"),
    [
        (dict(heads=32, kv_heads=8, batch=16), (16, 64), (2, 8, 16)),
        (dict(heads=32, kv_heads=8, seqlen_q=5), (32, 64), (2, 8, 1)),
        (dict(heads=32, kv_heads=8, seqlen_q=40, splits=3), (64, 64), (3, 24, 1)),
        (dict(heads=4, block_q=16, block_k=128), (16, 128), (2, 4, 1)),
    ],
)
def test_tiles(options, tiles, grid):
    case = resolve(KERNEL, Case(**dict(dtype="float16", seqlen_q=1, seqlen_k=8192) | options))
    assert (case.block_q, case.block_k) == tiles and case.probs_dtype == "float16" and case.pack_gqa
    forward, reduce = launches(case)
    assert forward.grid == grid and reduce.grid == (case.seqlen_q, case.heads, case.batch)
    assert resolve(KERNEL, case) == case


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(dtype="float32"), "kernel split_mma takes float16 or bfloat16; got float32"),
        (dict(block_q=128), "block_q of kernel split_mma must be one of 16, 32, 64; got 128"),
        (dict(block_k=48), "block_k of kernel split_mma must be one of 16, 32, 64, 128; got 48"),
        (
            dict(heads=64, kv_heads=32, seqlen_q=70_000),
            "kernel split_mma is for few queries: at most 65535 tiles of 64 packed rows over all kv heads; got 70016",
        ),
        (dict(page_size=16), "kernel split_mma takes no page_size; got 16"),
        (
            dict(head_dim=136),
            "kernel split_mma copies 8 dims at once and takes head_dim 8 to 128 in steps of as many; got 136",
        ),
    ],
)
def test_what_it_does_not_take_is_refused(options, message):
    assert refusal(resolve, KERNEL, Case(**{"dtype": "float16"} | options)) == message


# ---- splits


#: multiprocessors, and bytes of shared memory of each: an H100's
GPU = 132, 228 * 1024


@pytest.mark.parametrize(
    ("options", "splits"),
    # of those that were timed on an H100, the fastest or within 6 % of it
    [
        (dict(batch=1), 32),
        (dict(batch=16), 2),
        (dict(batch=32, seqlen_k=2048), 1),
        (dict(batch=64, seqlen_k=1024), 2),  # 512 blocks would be a wave and a third
        (dict(batch=128, seqlen_k=512), 1),
        (dict(batch=2, seqlen_k=32768), 16),
        (dict(batch=1, seqlen_k=65536), 32),
        (dict(seqlen_k=64), 1),  # one tile
        (dict(heads=4, kv_heads=1, seqlen_k=131072), 256),
    ],
)
def test_splits_fill_a_gpu(options, splits):
    decode = dict(heads=32, kv_heads=8, seqlen_q=1, seqlen_k=8192, head_dim=128, dtype="float16")
    assert fills(resolve(KERNEL, Case(**decode | options)), *GPU) == splits


def test_no_split_more_than_there_are_tiles():
    for seqlen_k, multiprocessors in itertools.product((1, 64, 65, 1000), (1, 8, 132)):
        case = resolve(KERNEL, Case(seqlen_q=1, seqlen_k=seqlen_k, dtype="float16"))
        found = fills(case, multiprocessors, GPU[1])
        assert 1 <= found <= -(-seqlen_k // 64)


def test_the_contract_is_that_of_flash_mma_with_splits():
    case = resolve(KERNEL, Case(**DECODE))
    other = KERNELS["flash_mma"]
    expected = other.contract(resolve(other, Case(**DECODE).but(splits=None, block_k=64)))
    assert KERNEL.contract(case) == replace(expected, splits=2, row_sum_lanes=1, fast_math=False)
    assert Constants.of(case).stages == STAGES
