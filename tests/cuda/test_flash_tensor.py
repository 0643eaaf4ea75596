"""The kernel on tensor cores with plain loads: right on both backends, with masks, padded dims and every probe."""

import itertools

import numpy as np
import pytest

from tests.refusals import refusal
from workbench import Case, diff, run
from workbench.cuda.flash_tensor_build import Constants
from workbench.cuda.kernel import STATIC_SHARED
from workbench.cuda.kernels import KERNELS
from workbench.cuda.plan import resolve

KERNEL = KERNELS["flash_tensor"]
on_both = pytest.mark.parametrize("backend", ["emulator", pytest.param("cuda", marks=pytest.mark.gpu)])

PLAIN = dict(
    heads=4, kv_heads=2, batch=2, seqlen_q=37, seqlen_k=150, head_dim=64, dtype="float16", block_q=64, block_k=64
)
#: one build each
CASES = {
    "plain": PLAIN,
    "masks, rows without keys, padded dims": dict(
        heads=2, seqlen_q=90, seqlen_k=70, head_dim=104, dtype="bfloat16", softcap=5.0, window=(20, 3), causal=True
    ),
}
#: besides on a GPU
MORE = {
    "causal": dict(PLAIN, causal=True, causal_alignment="top-left"),
    "negative scale": dict(PLAIN, scale=-0.5, block_q=128, block_k=32),
    "exp of what is left of max - max": dict(PLAIN, distribution="index-coded", scale=1.0, causal=True),
    "128 dims": dict(PLAIN, head_dim=128, dtype="bfloat16", block_k=32),
}


def judged(options, backend):
    case = Case(**options)
    found = diff(run("flash_tensor", case, backend=backend))
    stages = ["qk", *["capped"] * (case.softcap is not None), "scores", "row_max", "correction", "probs", "probs_cast"]
    assert [stage.name for stage in found] == [*stages, "row_sum", "acc", "out", "lse"]
    return found


@on_both
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.campaign if name == "plain" else ()) for name in CASES]
)
def test_every_stage_is_right(name, backend):
    found = judged(CASES[name], backend)
    assert found.verdict == "rounding" and found.origins == ()


@pytest.mark.gpu
@pytest.mark.parametrize("name", MORE)
def test_every_stage_is_right_on_a_gpu(name):
    found = judged(MORE[name], "cuda")
    assert found.verdict == "rounding" and found.origins == ()


@pytest.mark.campaign
@on_both
def test_it_multiplies_as_the_next_step_does(backend):
    """How fragments come to registers changes no bit of their products."""
    case = Case(**PLAIN)
    plain, mma = (run(name, case, backend=backend).stages["qk"] for name in ("flash_tensor", "flash_mma"))
    assert plain.size and np.array_equal(plain, mma)


@pytest.mark.gpu
def test_probes_do_not_change_a_bit_of_the_output():
    case = Case(**PLAIN)
    plain, probed = (run("flash_tensor", case, probes=probes, backend="cuda") for probes in ("output", "all"))
    assert all(plain.stages[name].tobytes() == probed.stages[name].tobytes() for name in ("out", "lse"))


@pytest.mark.parametrize(("block_q", "block_k", "head_dim"), [*itertools.product((16, 64), (16, 64), (64, 128))])
def test_rows_of_a_block(block_q, block_k, head_dim):
    """A row is a copy of 8 dims longer than what it holds, whichever elements count it: none of the 32 words that a
    warp reads at once is in the bank of another.
    """
    made = Constants(block_q, block_k, head_dim, "float16")
    names = made.names()
    assert 4 * names["WORDS"] == 2 * names["HALVES"] == 16 * (names["CHUNKS"] + 1)
    assert made.shared_bytes == (block_q + 2 * block_k) * 4 * names["WORDS"]
    assert len({(g * names["WORDS"] + t) % 32 for g in range(8) for t in range(4)}) == 32
    words_of_v = {(2 * t * names["HALVES"] + g) // 2 % 32 for g in range(8) for t in range(4)}
    assert len(words_of_v) == 16  # two lanes each


@pytest.mark.parametrize(
    ("options", "blocks"),
    [(dict(head_dim=64), (64, 64)), (dict(head_dim=72), (64, 32)), (dict(block_q=128, block_k=16), (128, 16))],
)
def test_tiles(options, blocks):
    case = resolve(KERNEL, Case(dtype="float16", seqlen=512, **options))
    assert (case.block_q, case.block_k) == blocks == (Constants.of(case).block_q, Constants.of(case).block_k)
    assert Constants.of(case).shared_bytes <= STATIC_SHARED


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(dtype="float32"), "kernel flash_tensor takes float16 or bfloat16; got float32"),
        (dict(block_q=48), "block_q of kernel flash_tensor must be one of 16, 32, 64, 128; got 48"),
        (dict(block_k=128), "block_k of kernel flash_tensor must be one of 16, 32, 64; got 128"),
        (dict(seqlens_k=(3, 4), causal=True), "kernel flash_tensor takes no seqlens_k; got (3, 4)"),
        (dict(sinks="normal"), "kernel flash_tensor takes no sinks; got normal"),
        (
            dict(head_dim=128, block_k=64),
            "tiles must fit in 49152 bytes of shared memory; block_q=64, block_k=64 at head_dim=128 (padded to 128) need "
            "52224: choose smaller blocks",
        ),
    ],
)
def test_what_it_does_not_take_is_refused(options, message):
    assert refusal(resolve, KERNEL, Case(**{"dtype": "float16"} | options)) == message
