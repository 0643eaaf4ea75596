"""The kernel for Hopper: right on both backends, with probes from its fragments, masks, stages and every tile."""

import numpy as np
import pytest

from tests.refusals import refusal
from workbench import Case, check, diff, run
from workbench.cuda.flash_wgmma_build import Constants
from workbench.cuda.kernel import DYNAMIC_SHARED
from workbench.cuda.kernels import KERNELS
from workbench.cuda.plan import resolve

KERNEL = KERNELS["flash_wgmma"]
on_both = pytest.mark.parametrize("backend", ["emulator", pytest.param("cuda", marks=pytest.mark.gpu)])

GROUPED = dict(heads=4, kv_heads=2, batch=2, seqlen_q=37, seqlen_k=150, dtype="float16", block_q=64, block_k=64)
TWO_CONSUMERS = dict(
    heads=2, seqlen_q=150, seqlen_k=140, head_dim=40, dtype="bfloat16", causal=True, block_q=128, block_k=64
)
MASKED = dict(TWO_CONSUMERS, softcap=5.0, scale=-0.3, window=(70, 0))
#: one build each
CASES = {
    "two consumers, causal, rows without keys, softcap, window": MASKED,
    "stages that come again": dict(GROUPED, seqlen_k=300),
}
#: besides in a campaign
WIDE = {"softcap, window, 128 dims": dict(GROUPED, head_dim=128, softcap=5.0, scale=0.3, window=(70, 3))}
#: besides on a GPU
MORE = {
    "two consumers": TWO_CONSUMERS,
    "negative scale": dict(GROUPED, scale=-0.5, causal=True),
    "three consumers": dict(seqlen_q=200, seqlen_k=300, dtype="float16", block_q=192, block_k=128),
    "128 dims, two consumers": dict(seqlen=300, dtype="bfloat16", head_dim=128, block_q=128, block_k=128, causal=True),
    "exp of what is left of max - max": dict(GROUPED, distribution="index-coded", scale=1.0, causal=True),
}


def judged(options, backend):
    case = Case(**options)
    found = diff(run("flash_wgmma", case, backend=backend))
    stages = ["qk", *["capped"] * (case.softcap is not None), "scores", "row_max", "correction", "probs", "probs_cast"]
    assert [stage.name for stage in found] == [*stages, "row_sum", "acc", "out", "lse"]
    return found


@pytest.mark.campaign(but=1)
@on_both
@pytest.mark.parametrize("name", [*CASES, *WIDE])
def test_every_stage_is_right(name, backend):
    found = judged((CASES | WIDE)[name], backend)
    assert found.verdict == "rounding" and found.origins == ()


def test_rows_whose_diagonal_lies_behind_the_last_key_see_no_key_there():
    """On the build of the first case, whose mask of causal rows hides what lies behind the last key, too."""
    found = judged(dict(MASKED, seqlen_q=80, seqlen_k=70, causal_alignment="top-left"), "emulator")
    assert found.verdict == "rounding" and found.origins == ()


@pytest.mark.gpu
@pytest.mark.parametrize("name", MORE)
def test_every_stage_is_right_on_a_gpu(name):
    found = judged(MORE[name], "cuda")
    assert found.verdict == "rounding" and found.origins == ()


@pytest.mark.gpu
@pytest.mark.parametrize("name", CASES)
def test_backends_agree_bit_for_bit_until_exp(name):
    """Sums of tensor cores and maxima; exp is another function on a CPU."""
    case = Case(**CASES[name])
    there, here = (run("flash_wgmma", case, backend=backend) for backend in ("cuda", "emulator"))
    for stage in ("qk",) if case.softcap else ("qk", "scores", "row_max"):  # tanh is another function on a CPU, too
        assert there.stages[stage].size and there.stages[stage].tobytes() == here.stages[stage].tobytes(), stage


@pytest.mark.campaign
@on_both
def test_it_adds_as_mma_does(backend):
    """16 products at once, whichever instruction multiplies: qk has the bits of flash_mma's."""
    case = Case(**GROUPED)
    mma, wgmma = (run(name, case, backend=backend).stages["qk"] for name in ("flash_mma", "flash_wgmma"))
    assert wgmma.size and np.array_equal(mma, wgmma)


@pytest.mark.gpu
def test_probes_do_not_change_a_bit_of_the_output():
    case = Case(**TWO_CONSUMERS)
    plain, probed = (run("flash_wgmma", case, probes=probes, backend="cuda") for probes in ("output", "all"))
    assert all(plain.stages[name].tobytes() == probed.stages[name].tobytes() for name in ("out", "lse"))


@pytest.mark.campaign  # notebook 7 shows one
def test_a_watched_run_finds_nothing():
    case = Case(**TWO_CONSUMERS)
    assert check("flash_wgmma", case, probes="output").findings == ()


@pytest.mark.parametrize("block_q", [64, 128, 192])
@pytest.mark.parametrize("head_dim", [64, 128])
def test_what_a_block_holds(block_q, head_dim):
    made = Constants(block_q, 128, head_dim, "float16")
    names = made.names()
    # K and V have two stages each, behind Q; tiles begin at multiples of 1024 bytes
    assert names["Q_AT"] == 0 and names["K_AT"] == block_q * head_dim
    assert names["V_AT"] - names["K_AT"] == 2 * 128 * head_dim == made.shared_bytes // 2 - names["V_AT"]
    assert all(2 * names[x] % 1024 == 0 for x in ("K_AT", "V_AT")) and made.shared_bytes <= DYNAMIC_SHARED
    # a multiprocessor has 65536 registers
    registers = [names["PRODUCER_REGISTERS"], *[names["CONSUMER_REGISTERS"]] * made.consumers]
    assert 128 * sum(registers) <= 65536 and made.threads == 128 * len(registers)
    assert names["HANDS_ON"] == (made.consumers > 1) == (registers[0] > 0)


@pytest.mark.parametrize(
    ("options", "blocks"),
    [
        (dict(heads=32, batch=2, seqlen=4096), (128, 128)),
        (dict(heads=8, seqlen=512), (64, 128)),
        (dict(heads=32, batch=2, seqlen=4096, block_q=192, block_k=64), (192, 64)),
    ],
)
def test_tiles(options, blocks):
    case = resolve(KERNEL, Case(dtype="float16", **options))
    assert (case.block_q, case.block_k) == blocks == (Constants.of(case).block_q, Constants.of(case).block_k)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(dtype="float32"), "kernel flash_wgmma takes float16 or bfloat16; got float32"),
        (dict(block_q=32), "block_q of kernel flash_wgmma must be one of 64, 128, 192; got 32"),
        (dict(block_k=32), "block_k of kernel flash_wgmma must be one of 64, 128; got 32"),
        (dict(seqlens_k=(3, 4), causal=True), "kernel flash_wgmma takes no seqlens_k; got (3, 4)"),
        (dict(sinks="normal"), "kernel flash_wgmma takes no sinks; got normal"),
    ],
)
def test_what_it_does_not_take_is_refused(options, message):
    assert refusal(resolve, KERNEL, Case(**{"dtype": "float16"} | options)) == message
