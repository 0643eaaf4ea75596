"""The kernel on tensor cores: right on both backends, with probes from its fragments, masks, lengths and every tile."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from tests.refusals import refusal
from workbench import Case, check, diff, run
from workbench.cuda.flash_mma_build import BLOCKS_K, BLOCKS_Q, NOT_TAKEN, Constants
from workbench.cuda.kernels import KERNELS
from workbench.cuda.plan import resolve
from workbench.floats import to_float64

KERNEL = KERNELS["flash_mma"]
#: dynamic shared memory of a block on every GPU that has cp.async: that of sm_86 and sm_89
LEAST_DYNAMIC = 99 * 1024
on_both = pytest.mark.parametrize("backend", ["emulator", pytest.param("cuda", marks=pytest.mark.gpu)])

PLAIN = dict(
    heads=4, kv_heads=2, batch=2, seqlen_q=37, seqlen_k=50, head_dim=64, dtype="float16", block_q=64, block_k=64
)
TWO_ROWS = dict(PLAIN, block_q=128, block_k=32, causal=True)
#: a build each, which is seconds of compiling; every switch is on in one of them, and rows of both numbers of fragments
CASES = {
    "plain": PLAIN,
    "packed, two rows of fragments, few dims, negative scale, softcap, window": dict(
        heads=2, seqlens_q=(5, 0, 150, 1), seqlens_k=(40, 17, 110, 0), head_dim=40, dtype="bfloat16",
        block_q=128, block_k=32, causal=True, softcap=5.0, scale=-0.3, window=(60, 0)
    ),
    "padded, q in shared memory, rows without keys": dict(
        PLAIN, seqlen_q=50, seqlens_k=(33, 0), seqlen_k=60, head_dim=128, block_q=128, block_k=32, causal=True
    ),
}  # fmt: skip
#: besides in a campaign and on a GPU
MORE = {
    "two rows of fragments": dict(TWO_ROWS, seqlen_q=150, seqlen_k=100),  # and rows without keys
    "exp of what is left of max - max": dict(TWO_ROWS, distribution="index-coded", scale=1.0),
    "q in shared memory": dict(seqlen_q=130, seqlen_k=70, head_dim=128, dtype="float16", block_q=128, block_k=32),
    "negative scale, softcap, window": dict(PLAIN, softcap=5.0, scale=-0.3, window=(20, 3), seqlen_k=150),
    "packed": dict(
        heads=2, seqlens_q=(5, 0, 90, 1), seqlens_k=(40, 17, 70, 0), head_dim=40, dtype="bfloat16", causal=True
    ),
    "padded": dict(PLAIN, seqlens_k=(33, 0), seqlen_k=60, causal=True, causal_alignment="top-left"),
}


def case_of(name):
    return Case(**(CASES | MORE)[name])


@pytest.mark.campaign(but=1)
@on_both
@pytest.mark.parametrize("name", [*CASES, *MORE])
def test_every_stage_is_right(name, backend):
    case = case_of(name)
    judged = diff(run("flash_mma", case, backend=backend))
    stages = ["qk", *["capped"] * (case.softcap is not None), "scores", "row_max", "correction", "probs", "probs_cast"]
    assert [stage.name for stage in judged] == [*stages, "row_sum", "acc", "out", "lse"]
    assert judged.verdict == "rounding" and judged.origins == ()


def test_row_sum_is_rounded_by_each_dump_of_what_lanes_keep():
    """A key in the last tile adds two roundings; those of both dumps are more."""
    case = Case(**PLAIN).but(seqlen_k=129)
    trace = run("flash_mma", case, backend="emulator")
    whole = replace(trace, contract=replace(trace.contract, row_sum_lanes=1), rerun=None)
    assert diff(trace).origins == () and diff(whole).origins == ("row_sum",)


def test_it_is_another_kernel_than_flash():
    """Same numbers within rounding, from tensor cores: the bits of scores differ."""
    case = Case(**PLAIN)
    mma = run("flash_mma", case, backend="emulator").stages
    scalar = run("flash", case.but(block_q=16, block_k=16), backend="emulator").stages
    assert np.any(mma["qk"] != scalar["qk"])
    np.testing.assert_allclose(to_float64(mma["out"]), to_float64(scalar["out"]), atol=2e-3)


@pytest.mark.parametrize(
    ("name", "backend"),
    [
        pytest.param("plain", "emulator", marks=pytest.mark.campaign),
        *(pytest.param(name, "cuda", marks=pytest.mark.gpu) for name in (*CASES, *MORE)),
    ],
)
def test_probes_do_not_change_a_bit_of_the_output(name, backend):
    case = case_of(name)
    plain, probed = (run("flash_mma", case, probes=probes, backend=backend) for probes in ("output", "all"))
    assert all(plain.stages[name].tobytes() == probed.stages[name].tobytes() for name in ("out", "lse"))


@pytest.mark.campaign
def test_a_watched_run_finds_nothing():
    """Of other tiles in `test_check.py`."""
    case = case_of("packed").but(block_q=128, block_k=32)  # two rows of fragments
    assert check("flash_mma", case, probes="output").findings == ()


def test_what_a_block_holds():
    for block_q, block_k, head_dim in itertools.product(BLOCKS_Q, BLOCKS_K, (64, 128)):
        made = Constants(block_q, block_k, head_dim, "float16")
        names = made.names()
        assert names["V_AT"] + block_k == made.rows and made.shared_bytes == 2 * made.rows * head_dim
        assert KERNEL.dynamic_bytes(made, "flash_mma_forward") == made.shared_bytes <= LEAST_DYNAMIC
        assert made.threads // 32 * made.warp_rows == block_q
        assert names["ROWS_AT_ONCE"] * names["CHUNKS"] == made.threads


LONG, MIDDLE = dict(heads=16, batch=2, seqlen=4096), dict(heads=16, batch=4, seqlen=1024)


@pytest.mark.parametrize(
    ("options", "of_64", "of_128"),
    [
        (LONG, (128, 128), (128, 64)),
        (LONG | {"causal": True}, (64, 128), (128, 64)),
        (LONG | {"causal": True, "window": (500, 0)}, (64, 128), (64, 64)),
        (LONG | {"causal": True, "window": (2047, 0)}, (64, 128), (128, 64)),
        (MIDDLE, (128, 128), (128, 64)),
        (MIDDLE | {"causal": True}, (64, 128), (64, 64)),
        (dict(heads=8, seqlen=2048), (64, 128), (64, 128)),
        (dict(heads=8, seqlen=512), (32, 128), (32, 128)),
        (dict(heads=8, seqlen=512, causal=True), (32, 128), (32, 128)),
        (dict(heads=8, seqlen=128), (16, 128), (32, 128)),
        (dict(seqlen=512, block_q=32, block_k=64), (32, 64), (32, 64)),
    ],
)
def test_tiles(options, of_64, of_128):
    """Tall ones where there are many blocks, and few of their tiles are cut by a mask."""
    for head_dim, blocks in ((40, of_64), (128, of_128)):
        case = resolve(KERNEL, Case(dtype="float16", **options, head_dim=head_dim))
        assert (case.block_q, case.block_k) == blocks and case.probs_dtype == "float16"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(dtype="float32"), "kernel flash_mma takes float16 or bfloat16; got float32"),
        (
            dict(head_dim=60),
            "kernel flash_mma copies 8 dims at once and takes head_dim 8 to 128 in steps of as many; got 60",
        ),
        (
            dict(head_dim=136),
            "kernel flash_mma copies 8 dims at once and takes head_dim 8 to 128 in steps of as many; got 136",
        ),
        (dict(block_k=48), "block_k of kernel flash_mma must be one of 16, 32, 64, 128; got 48"),
        (
            dict(probs_dtype="float32"),
            "kernel flash_mma casts probs to its input dtype, float16; got probs_dtype=float32",
        ),
        (dict(sinks="normal"), "kernel flash_mma takes no sinks; got normal"),
        (dict(page_size=16), "kernel flash_mma takes no page_size; got 16"),
        (dict(head_dim_v=32), "kernel flash_mma takes no head_dim_v; got 32"),
        (dict(codes="e4m3", dtype="float32"), "kernel flash_mma takes no codes; got e4m3"),
        (
            dict(splits=2),
            "kernel flash_mma takes no splits; got splits=2",
        ),
    ],
)
def test_what_it_does_not_take_is_refused(options, message):
    assert refusal(resolve, KERNEL, Case(**{"dtype": "float16"} | options)) == message
    assert {"sinks", "page_size", "head_dim_v"} <= {*NOT_TAKEN}


def test_inputs_beside_are_refused():
    case = Case(**PLAIN)
    given = dict(zip("qkv", case.inputs(), strict=True)) | {"mask": np.ones((37, 50), bool)}
    assert refusal(run, "flash_mma", case, inputs=given, backend="emulator") == (
        "kernel flash_mma takes no mask and no bias; got mask"
    )
