"""The kernel on codes: every stage within a bound of float64 on its own dumped inputs.

Bounds are those of the steps of `reference/attention.py`.
"""

from dataclasses import replace
from functools import partialmethod

import numpy as np
import pytest

from workbench import Case, Refusal, diff, run
from workbench.case.stages import QUANTISED_INPUTS, stages_of
from workbench.cuda import emulator
from workbench.cuda.fp8 import constants, contract
from workbench.cuda.kernels import KERNELS
from workbench.cuda.plan import resolve
from workbench.expectation.observed import Observed
from workbench.judge.codes.loss import loss
from workbench.report.document import diff_document
from workbench.trace.file import load, save
from workbench.trace.trace import unwritten

STAGES = tuple(stages_of("fp8"))

#: every pair of formats, scores, decoding and probs is in one of them, the first of which has the defaults; each of them,
#: but not each pair, is in one of the first three: the others are builds of a campaign
VARIANTS = {
    "simulated mma table float16": dict(codes="simulated"),
    "e4m3 scalar direct float16": dict(codes="e4m3", scores="scalar", decode="direct"),
    "e5m2 mma direct float32": dict(codes="e5m2", decode="direct", probs_dtype="float32"),
    "simulated scalar direct float32": dict(scores="scalar", decode="direct", probs_dtype="float32"),
    "e4m3 mma table float32": dict(codes="e4m3", probs_dtype="float32"),
    "e5m2 scalar table float16": dict(codes="e5m2", scores="scalar"),
}
#: (batch, heads, seqlen, head_dim)
SHAPES = {
    "1x4x128x64": dict(heads=4, seqlen=128, head_dim=64),
    "1x1x32x64": dict(seqlen=32, head_dim=64),
    "1x1x512x64": dict(seqlen=512, head_dim=64),
    "2x4x100x64": dict(batch=2, heads=4, seqlen=100, head_dim=64),
}


def assert_right(trace):
    """No stage is wrong on its own inputs or against the dumped codes and scales, and something was judged in each."""
    judged = diff(trace)
    assert (judged.origins, judged.victims) == ((), ()), judged
    assert judged.verdict in ("exact", "rounding"), {stage.name: stage.verdict for stage in judged}
    assert tuple(stage.name for stage in judged) == trace.requested


# ---- right


def fp8_run(case, **options):
    return run("fp8", case, **({"backend": "emulator"} | options))


@pytest.mark.campaign(but=3)
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("shape", SHAPES)
def test_every_stage_is_within_its_bound(shape, causal):
    trace = fp8_run(Case(**SHAPES[shape], causal=causal))
    assert tuple(trace.stages) == trace.requested == STAGES
    assert not any(unwritten(stage).any() for stage in trace.stages.values())
    assert_right(trace)


@pytest.mark.campaign
@pytest.mark.parametrize(
    "variant",
    [pytest.param(name, marks=pytest.mark.campaign if i >= 3 else ()) for i, name in enumerate(VARIANTS)],
)
def test_every_variant_is_within_its_bounds(variant):
    """Ragged tiles, grouped heads, rows without keys, several batches."""
    for shape in (
        dict(batch=2, heads=4, kv_heads=2, seqlen_q=100, seqlen_k=70, causal=True, head_dim=48),
        dict(heads=2, seqlen_q=33, seqlen_k=130, head_dim=64, quantiser_scale="static"),
        dict(heads=2, seqlen_q=1, seqlen_k=17, head_dim=64, distribution="outlier-channels"),
        dict(heads=2, seqlen=40, head_dim=64, distribution="zero-head"),
        dict(seqlen=70, head_dim=64, distribution="peaked", causal=True, causal_alignment="top-left"),
        dict(seqlen=40, head_dim=64, distribution="tiny"),
        dict(seqlen=40, head_dim=64, distribution="large"),
    ):
        trace = fp8_run(Case(**shape, **VARIANTS[variant]))
        assert_right(trace)
        assert ("lut_k" in trace.stages) == ("table" in variant)


@pytest.mark.campaign(but=1)
@pytest.mark.parametrize(
    ("variant", "probes"),
    [
        ("simulated mma table float16", "all"),
        ("simulated mma table float16", "output"),
        ("e4m3 scalar direct float16", "all"),
        pytest.param("e4m3 scalar direct float16", "output", marks=pytest.mark.campaign),
    ],
)
def test_a_kernel_without_tables_has_none_that_nobody_saw(variant, probes):
    case = Case(seqlen=40, **VARIANTS[variant])
    judged = diff(replace(fp8_run(case, probes=probes), requested=()))
    unseen = {name for stage in judged for name in stage.upstream}
    absent = {stage.name for stage in judged.not_judged}
    document = diff_document(judged)
    assert {name for stage in document["stages"] for name in stage["upstream"]} == unseen
    assert {stage["name"] for stage in document["not_judged"]} == absent
    assert ("dequant_v" in unseen & absent) == (probes == "output")
    tables = {"lut_k", "lut_v"} if ("table" in variant, probes) == (True, "output") else set()
    assert unseen & {"lut_k", "lut_v"} == absent & {"lut_k", "lut_v"} == tables


@pytest.mark.campaign
@pytest.mark.parametrize("head_dim", [16, 32, 80, 128])
def test_head_dims(head_dim):
    case = Case(heads=2, kv_heads=1, seqlen_q=40, seqlen_k=37, head_dim=head_dim, causal=True)
    assert_right(fp8_run(case))


@pytest.mark.campaign
def test_tiles():
    case = Case(seqlen_q=50, seqlen_k=70, head_dim=32, block_q=16, block_k=48)
    assert_right(fp8_run(case))


def test_variants_hold_every_pair():
    resolved = [resolve(KERNELS["fp8"], Case(**options)) for options in VARIANTS.values()]
    fields = ("codes", "scores", "decode", "probs_dtype")
    for i, one in enumerate(fields):
        for other in fields[i + 1 :]:
            pairs = {(getattr(case, one), getattr(case, other)) for case in resolved}
            assert len(pairs) == len({one for one, _ in pairs}) * len({other for _, other in pairs})


def test_rows_without_keys_are_zero():
    trace = fp8_run(Case(seqlen_q=100, seqlen_k=70, causal=True, head_dim=48))
    empty = ~trace.case.mask().any(axis=1)
    assert empty.sum() == 30
    assert np.all(trace.stages["out"][:, :, empty].view(np.uint16) == 0)
    assert np.all(np.isneginf(trace.stages["lse"][:, :, empty]))


@pytest.mark.campaign
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_error_against_attention_on_the_inputs_is_that_of_quantisation(causal):
    """Below 0.02 where a row sees 64 keys or more; what the kernel adds is float16's last bit of out."""
    case = Case(heads=8, seqlen=512, head_dim=64, causal=causal)
    lost = loss(Observed(fp8_run(case, probes="output")))
    rows = case.mask().sum(axis=1) >= 64
    assert 0.001 < np.abs(lost.of_out[:, :, rows]).max() < 0.02
    assert np.abs(lost.together[:, :, rows]).max() < 0.02
    # decoded inputs, probs and out are each rounded to float16, 2^-11: of scores up to about 10 and values up to 5
    assert 0 < np.abs(lost.of_kernel).max() < np.abs(lost.of_out).max()


# ---- unchanged by probes, order, library and a file


def same_bits(one, other, names):
    assert [name for name in names if one.stages[name].tobytes() != other.stages[name].tobytes()] == []


@pytest.mark.campaign
def test_probes_leave_the_outputs_alone():
    case = Case(heads=2, seqlen=70, head_dim=64, causal=True)
    plain, probed = (fp8_run(case, probes=probes) for probes in ("output", "all"))
    assert tuple(plain.stages) == (*QUANTISED_INPUTS, "out", "lse")
    same_bits(plain, probed, plain.stages)


@pytest.mark.parametrize(
    "schedule",
    [dict(order="descending"), dict(order="ascending", skew=True), dict(order="shuffle", seed=2, skew=True)],
    ids=str,
)
def test_order_of_threads_and_blocks_does_not_matter(monkeypatch, schedule):
    case = Case(batch=2, heads=4, seqlen=100, head_dim=64)
    usual = fp8_run(case)
    monkeypatch.setattr(emulator.Emulated, "__call__", partialmethod(emulator.Emulated.__call__, **schedule))
    same_bits(fp8_run(case), usual, STAGES)


def test_torch_inputs_give_the_same_trace():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    case = Case(heads=2, seqlen=40, head_dim=64)
    tensors = tuple(torch.from_numpy(x) for x in case.inputs())
    same_bits(fp8_run(case, inputs=tensors), fp8_run(case), STAGES)


@pytest.mark.campaign
def test_a_trace_survives_a_file(tmp_path):
    trace = fp8_run(Case(heads=2, seqlen=40, head_dim=64, **VARIANTS["e5m2 mma direct float32"]))
    save(trace, tmp_path / "trace.safetensors")
    loaded = load(tmp_path / "trace.safetensors")
    assert loaded.case == trace.case and loaded.case.codes == "e5m2" and loaded.contract == trace.contract
    assert (loaded.contract.accumulation, loaded.contract.accumulation_of_acc) == ("tensor-core", "nearest")
    same_bits(loaded, trace, trace.stages)
    assert loaded.stages["codes_k"].dtype == np.uint8 and loaded.stages["dequant_k"].dtype == np.float16


# ---- what a case must fit


@pytest.mark.parametrize(
    ("kernel", "options", "message"),
    [
        (
            "fp8",
            {"dtype": "float16"},
            "kernel fp8 quantises float32 inputs; another dtype needs codes_of=kv; got dtype=float16",
        ),
        ("fp8", {"head_dim": 40}, "kernel fp8 takes head_dim 16 to 128 in multiples of 16; got 40"),
        ("fp8", {"head_dim": 144}, "kernel fp8 takes head_dim 16 to 128 in multiples of 16; got 144"),
        ("fp8", {"splits": 2}, "kernel fp8 takes no splits; got splits=2"),
        ("fp8", {"block_k": 40}, "block_k of kernel fp8 must be a multiple of 16 from 16 to 128; got 40"),
        (
            "fp8",
            {"probs_dtype": "bfloat16"},
            "kernel fp8 casts probs to float16 or keeps them in float32; got probs_dtype=bfloat16",
        ),
        (
            "fp8",
            {"block_q": 64, "block_k": 64},
            "tiles must fit in 49152 bytes of shared memory; block_q=64, block_k=64 at head_dim=64 (padded to 64) need "
            "53760: choose smaller blocks",
        ),
        ("flash", {"codes": "e4m3"}, "kernel flash reads no quantised codes and takes no codes; got e4m3"),
        ("split_k", {"scores": "mma"}, "kernel split_k reads no quantised codes and takes no scores; got mma"),
    ],
)
def test_a_case_that_does_not_fit_is_refused(kernel, options, message):
    with pytest.raises(Refusal) as refused:
        resolve(KERNELS[kernel], Case(**options))
    assert str(refused.value) == message


def test_inputs_beyond_float16_are_refused():
    with pytest.raises(Refusal) as refused:
        fp8_run(Case(seqlen=32, distribution="constant-v", input_std=70000.0))
    assert str(refused.value).startswith("codes are decoded to float16, whose largest value is 65504; q reaches ")


def test_defaults():
    case = resolve(KERNELS["fp8"], Case())
    assert (case.codes, case.scores, case.decode, case.quantiser_scale) == ("simulated", "mma", "table", "dynamic")
    assert (case.probs_dtype, case.block_q, case.block_k) == ("float16", 64, 32)
    assert (constants(case).threads, constants(case).shared_bytes) == (256, 40960)
    trace = fp8_run(case.but(seqlen=32))
    assert (trace.contract.out_dtype, trace.contract.probs_dtype) == ("float16", "float16")


@pytest.mark.parametrize(("scores", "of_qk"), [("mma", "tensor-core"), ("scalar", "nearest")])
def test_the_contract_says_how_both_sums_are_accumulated(scores, of_qk):
    promise = contract(resolve(KERNELS["fp8"], Case(scores=scores)))
    assert (promise.accumulation, promise.accumulation_of_acc) == (of_qk, "nearest")


# ---- on a GPU


@pytest.mark.gpu
@pytest.mark.parametrize("variant", VARIANTS)
def test_gpu_is_within_the_same_bounds(variant):
    for shape in (*SHAPES.values(), dict(heads=2, kv_heads=1, seqlen_q=70, seqlen_k=45, head_dim=128)):
        for causal in (False, True):
            assert_right(fp8_run(Case(**shape, causal=causal, **VARIANTS[variant]), backend="cuda"))


@pytest.mark.gpu
def test_gpu_probes_do_not_change_a_bit_of_the_output():
    case = Case(heads=4, seqlen=128, head_dim=64)
    plain, probed = (fp8_run(case, probes=probes, backend="cuda") for probes in ("output", "all"))
    same_bits(plain, probed, plain.stages)
