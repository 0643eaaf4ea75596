"""The kernel that multiplies float8 codes: right on both backends, its V turned, its sums of 13 bits."""

from dataclasses import replace

import numpy as np
import pytest

from tests.refusals import refusal
from workbench import Case, check, diff, run
from workbench.cuda.fp8_wgmma import PROBS_DTYPE, Constants
from workbench.cuda.kernels import KERNELS
from workbench.cuda.plan import resolve

KERNEL = KERNELS["fp8_wgmma"]
on_both = pytest.mark.parametrize("backend", ["emulator", pytest.param("cuda", marks=pytest.mark.gpu)])
TWO_CONSUMERS = dict(heads=2, seqlen_q=150, seqlen_k=140, head_dim=112, causal=True, block_q=128, block_k=128)
TILES = "scales of tiles, which two of the kernel's share, stages that come again"
#: one build each
CASES = {
    "two consumers, 128 dims, causal, rows without keys, scales of tiles": dict(
        TWO_CONSUMERS, codes="e4m3", scale_of="tile"
    ),
    TILES: dict(heads=2, kv_heads=1, seqlen_q=140, seqlen_k=300, codes="e4m3", scale_of="tile", block_q=64, block_k=64),
}
#: besides in a campaign and on a GPU
MORE = {
    "two consumers, 128 dims, causal, rows without keys, scales of heads": TWO_CONSUMERS,
    "grouped": dict(heads=4, kv_heads=2, batch=2, seqlen_q=37, seqlen_k=300, block_q=64, block_k=64),
}
STAGES = ("qk", "scores", "row_max", "correction", "probs", "probs_cast", "row_sum", "acc", "out", "lse")


@pytest.mark.campaign(but=1)
@on_both
@pytest.mark.parametrize("name", [*CASES, *MORE])
def test_every_stage_is_right(name, backend):
    judged = diff(run("fp8_wgmma", Case(**(CASES | MORE)[name]), backend=backend))
    of_codes = [f"{kind}_{x}" for kind in ("scale", "codes") for x in "qkv"]
    assert [stage.name for stage in judged] == [*of_codes, *STAGES]
    assert judged.verdict == "rounding" and judged.origins == ()


@pytest.mark.campaign
def test_sums_keep_13_bits():
    """Without that promise errors of qk, all towards zero, are a bug."""
    trace = run("fp8_wgmma", Case(**CASES[TILES]), backend="emulator")
    tight = replace(trace, contract=replace(trace.contract, tensor_core="none", mma_extra_bits=2), rerun=None)
    assert diff(trace).origins == () and "qk" in diff(tight).origins


@pytest.mark.campaign
def test_probs_are_cast_to_float8():
    trace = run("fp8_wgmma", Case(**CASES[TILES]), backend="emulator")
    probs, cast = trace.stages["probs"], trace.stages["probs_cast"]
    wide = probs > 2.0**-6  # normal numbers, of 3 fraction bits
    assert wide.any() and np.all(np.abs(cast - probs)[wide] <= probs[wide] / 16) and np.any(cast != probs)


@pytest.mark.gpu
def test_backends_agree_bit_for_bit_until_exp():
    case = Case(**TWO_CONSUMERS)
    there, here = (run("fp8_wgmma", case, backend=backend) for backend in ("cuda", "emulator"))
    for stage in ("qk", "scores", "row_max"):
        assert there.stages[stage].size and there.stages[stage].tobytes() == here.stages[stage].tobytes(), stage


@pytest.mark.campaign
def test_a_watched_run_finds_nothing():
    case = Case(**TWO_CONSUMERS)
    assert check("fp8_wgmma", case, probes="output").findings == ()


@pytest.mark.parametrize("block_q", [64, 128])
@pytest.mark.parametrize("block_k", [64, 128])
@pytest.mark.parametrize("head_dim", [64, 128])
def test_what_a_block_holds(block_q, block_k, head_dim):
    made = Constants(block_q, block_k, head_dim, PROBS_DTYPE)
    names = made.names()
    starts = [4 * names[x] for x in ("Q_AT", "K_AT", "RAW_AT", "V_AT")]
    assert starts == sorted(starts) and all(x % 1024 == 0 for x in starts)
    assert made.shared_bytes - starts[-1] == 2 * 128 * head_dim  # V as it is multiplied: a row for each dim
    barriers = {names[x] + i for x in ("K_FULL", "RAW_FULL", "V_FULL", "K_EMPTY", "V_EMPTY") for i in range(2)}
    assert barriers | {names["Q_FULL"]} == {*range(names["BARRIERS"])}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(codes="int8"), "kernel fp8_wgmma takes only codes=e4m3; got int8"),
        (dict(codes="e4m3", scale_of="block"), "kernel fp8_wgmma takes scale_of=head or tile; got block"),
        (dict(codes_of="kv"), "kernel fp8_wgmma takes only codes_of=qkv; got kv"),
        (dict(probs_dtype="float16"), "kernel fp8_wgmma casts probs to float8_e4m3fn; got probs_dtype=float16"),
        (dict(block_q=32), "block_q of kernel fp8_wgmma must be one of 64, 128; got 32"),
        (dict(softcap=5.0), "kernel fp8_wgmma takes no softcap; got 5.0"),
    ],
)
def test_what_it_does_not_take_is_refused(options, message):
    assert refusal(resolve, KERNEL, Case(**options)) == message
