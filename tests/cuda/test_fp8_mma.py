"""The kernel that decodes codes for tensor cores: right on both backends, in every format, wherever scales are."""

import numpy as np
import pytest

from tests.refusals import refusal
from workbench import Case, check, diff, run
from workbench.case.formats import FORMATS
from workbench.cuda.flash_mma_build import BLOCKS_Q
from workbench.cuda.fp8_mma import BLOCKS_K, UNITS, Constants, default_tiles
from workbench.cuda.kernel import DYNAMIC_SHARED
from workbench.cuda.kernels import KERNELS
from workbench.cuda.plan import resolve

KERNEL = KERNELS["fp8_mma"]
on_both = pytest.mark.parametrize("backend", ["emulator", pytest.param("cuda", marks=pytest.mark.gpu)])
TILES = dict(block_q=32, block_k=32)
GROUPED = dict(codes="simulated", heads=4, kv_heads=2, batch=2, seqlen_q=37, seqlen_k=100, **TILES)
#: rows without keys at the beginning, in top-left masks keys that no row sees; dims and keys that there are not
MASKED = dict(codes="int8", scale_of="token", heads=2, head_dim=80, causal=True, **TILES)
#: one build each, and several cases of it
CASES = {
    "a scale a head, codes that come again": (GROUPED,),
    "a scale a row, masked": (
        MASKED | dict(seqlen_q=70, seqlen_k=37),
        MASKED | dict(seqlen_q=20, seqlen_k=99, causal_alignment="top-left"),
    ),
}
STAGES = ("qk", "scores", "row_max", "correction", "probs", "probs_cast", "row_sum", "acc", "out", "lse")
EVERY = [f"{kind}_{x}" for kind in ("scale", "codes", "dequant") for x in "qkv"] + [*STAGES]


@pytest.mark.campaign(but=1)
@on_both
@pytest.mark.parametrize("name", CASES)
def test_every_stage_is_right(name, backend):
    for fields in CASES[name]:
        judged = diff(run("fp8_mma", Case(**fields), backend=backend))
        assert [stage.name for stage in judged] == EVERY
        assert judged.verdict == "rounding" and (judged.origins, judged.victims) == ((), ())


@pytest.mark.campaign
@on_both
@pytest.mark.parametrize(
    "fields",
    [
        *(GROUPED, MASKED),
        pytest.param(dict(codes="e4m3", scale_of="tile"), marks=pytest.mark.campaign),
        pytest.param(dict(codes="e5m2", scale_of="block"), marks=pytest.mark.campaign),
    ],
    ids=str,
)
def test_every_code_is_decoded(fields, backend):
    """All 256 of them, NaN and infinities too; those of K and V in other places of a row."""
    case = Case(**TILES | fields | dict(batch=1, heads=2, kv_heads=2, seqlen_q=16, seqlen_k=100))
    order = np.arange(2 * 100 * case.head_dim).reshape(1, 2, 100, case.head_dim)
    codes = {"q": np.full((1, 2, 16, case.head_dim), 0x41), "k": order * 167 % 256, "v": order * 77 % 256}
    # exact in float16, beside a code
    scales = {name: np.float32([0.75, 1.0]) for name in "qkv"}
    if case.scale_of == "tile":
        scales = {name: np.full((*x.shape[:3], 1), np.float32(0.75)) for name, x in codes.items()}
    if case.scale_of in ("token", "block"):
        scales = {
            name: np.float32((2 + np.arange(2 * x.shape[2]) % 3) / 4).reshape(1, 2, -1, 1) for name, x in codes.items()
        }
    given = {f"codes_{name}": x.astype(np.uint8) for name, x in codes.items()}
    given |= {f"scale_{name}": x for name, x in scales.items()}
    whole = case.codes != "e5m2"  # a build that other tests have, too
    trace = run("fp8_mma", case, inputs=given, backend=backend, probes="all" if whole else "dequant_k,dequant_v")
    for name in "kv":
        by = scales[name].reshape(2, 1, 1) if scales[name].ndim == 1 else scales[name]
        wanted = FORMATS[case.codes].values[codes[name]] * by
        dumped = trace.stages[f"dequant_{name}"]
        assert dumped.dtype == ("float32" if scales[name].ndim == 1 else "float16")
        np.testing.assert_allclose(dumped, wanted, rtol=2.0**-22, atol=0)
    # what NaN and infinities among the keys make of later stages is not asked here
    assert {*diff(trace).origins}.isdisjoint(("dequant_k", "dequant_v"))


@pytest.mark.campaign
def test_probes_leave_the_outputs_alone():
    for fields in CASES["a scale a row, masked"]:
        plain, probed = (run("fp8_mma", Case(**fields), probes=x, backend="emulator") for x in ("output", "all"))
        for stage in ("out", "lse"):
            assert plain.stages[stage].size and plain.stages[stage].tobytes() == probed.stages[stage].tobytes()


@pytest.mark.gpu
@pytest.mark.parametrize("name", CASES)
def test_backends_agree_bit_for_bit_until_exp(name):
    there, here = (run("fp8_mma", Case(**CASES[name][0]), backend=backend) for backend in ("cuda", "emulator"))
    for stage in ("dequant_q", "dequant_k", "dequant_v", "qk", "scores", "row_max"):
        assert there.stages[stage].size and there.stages[stage].tobytes() == here.stages[stage].tobytes(), stage


@pytest.mark.campaign
def test_a_watched_run_finds_nothing():
    for fields in CASES["a scale a row, masked"]:
        assert check("fp8_mma", Case(**fields), probes="output").findings == ()


@pytest.mark.parametrize("codes", UNITS)
@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("block_k", BLOCKS_K)
@pytest.mark.parametrize("block_q", BLOCKS_Q)
def test_what_a_block_holds(block_q, block_k, head_dim, codes):
    made = Constants(block_q, block_k, head_dim, "float16", codes=codes)
    names = made.names()
    copied = 16 * names["CODE_CHUNKS"] * made.threads
    assert copied == block_k * head_dim == 16 * (names["CODES_V"] - names["CODES_K"])
    assert 16 * names["CODES_K"] == 2 * head_dim * (block_q + 2 * block_k)  # behind what is multiplied, in float16
    assert made.shared_bytes == 16 * names["CODES_V"] + copied <= DYNAMIC_SHARED
    assert names["CODE_CHUNKS"] * names["ROWS_AT_ONCE"] == block_k * names["PANELS"] == block_k * head_dim // 64
    assert names["ROWS_AT_ONCE"] % 8 == 0 == block_q % names["ROWS_AT_ONCE"]


@pytest.mark.parametrize(
    ("fields", "tiles"),
    [
        (dict(heads=8, seqlen=512, head_dim=64), (64, 128)),
        (dict(batch=2, heads=16, seqlen=4096, head_dim=128), (64, 64)),
        (dict(batch=2, heads=16, seqlen=4096, head_dim=64), (128, 64)),
        (dict(heads=32, kv_heads=8, seqlen_q=1, seqlen_k=8192, head_dim=128), (16, 64)),
    ],
)
def test_default_tiles(fields, tiles):
    """They fit where a block has 99 KiB at most, as on GPUs of compute capability 8.6 and 8.9."""
    case = Case(codes="e4m3", **fields)
    assert default_tiles(case) == tiles
    assert KERNEL.constants(resolve(KERNEL, case)).shared_bytes <= 99 * 1024


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(codes="nvfp4"), "kernel fp8_mma decodes codes of simulated, e4m3, e5m2, int8; got codes=nvfp4"),
        (dict(codes="int8", codes_of="kv"), "kernel fp8_mma takes only codes_of=qkv; got kv"),
        (dict(decode="table"), "kernel fp8_mma takes only decode=direct; got table"),
        (dict(probs_dtype="float32"), "kernel fp8_mma casts probs to float16; got probs_dtype=float32"),
        (dict(block_k=48), "block_k of kernel fp8_mma must be one of 32, 64, 128; got 48"),
        (dict(softcap=5.0), "kernel fp8_mma takes no softcap; got 5.0"),
    ],
)
def test_what_it_does_not_take_is_refused(options, message):
    assert refusal(resolve, KERNEL, Case(**options)) == message
