"""The kernel on codes with a scale for each token or block of dims: right in every format, wrong where it has a fault."""

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from tests.cuda.fp8_cases import CASE as SMALL
from tests.cuda.fp8_cases import SHAPES, fp8_run
from workbench import Case, Refusal, diff
from workbench.case.formats import FORMATS
from workbench.case.stages import stages_of
from workbench.cuda.build import build
from workbench.cuda.faults.catalogue import CATALOGUE
from workbench.cuda.fp8_build import constants
from workbench.cuda.kernels import KERNELS
from workbench.cuda.plan import resolve
from workbench.cuda.quantised import in_memory
from workbench.cuda.quantize import encode, quantized, scale_of
from workbench.trace.file import load, save
from workbench.trace.narrow import narrowed
from workbench.trace.trace import unwritten

CASE = SMALL.but(scores="scalar")


@pytest.mark.campaign(but=1)
@pytest.mark.parametrize("kind", ["mxfp8-e4m3", "nvfp4", "int4"])
def test_every_stage_is_within_its_bound(kind):
    for shape in SHAPES:
        trace = fp8_run(CASE.but(codes=kind, **shape))
        judged = diff(trace)
        assert judged.verdict in ("exact", "rounding") and judged.origins == judged.victims == (), judged
        kinds = FORMATS[kind].kinds
        known = [x for x in stages_of("block_scaled") if x[:-2] in kinds or x[:-2] not in ("scale", "zero", "global")]
        assert list(trace.stages) == [stage.name for stage in judged] == known
        assert not any(unwritten(stage).any() for stage in trace.stages.values())


@pytest.mark.campaign
def test_a_fault_is_named_at_its_stage_with_its_cause():
    """One of a zero point in test_fp8_kv.py."""
    fault = CATALOGUE["block-scales-read-swizzled"]
    judged = diff(fp8_run(CASE.but(**fault.needs), faults=[fault.id]))
    assert judged.verdict == "bug" and judged.origins == fault.stages
    words = "scales in a 128x4 swizzle are read row by row, or the reverse (q, k, v)"
    assert [cause.text for cause in judged.explained.causes][:1] == [words]


@pytest.mark.campaign
@pytest.mark.parametrize("fault", ["quantiser-e8m0-to-nearest", "quantiser-zero-truncated"])
def test_a_fault_of_the_quantiser_is_named_at_what_it_makes(fault):
    """The kernel is the one that is right; the quantiser needs no build."""
    known = CATALOGUE[fault]
    judged = diff(fp8_run(CASE.but(**known.needs), faults=[fault]))
    assert judged.origins == known.stages and judged["dequant_k"].verdict == "exact"


@pytest.mark.campaign
def test_what_is_off_by_one_bit_is_outside():
    trace = fp8_run(CASE.but(codes="int4"))
    for name in ("scale_k", "zero_k", "codes_k", "dequant_k"):
        stage = trace.stages[name].copy()
        if name == "zero_k":
            moved = stage + 1
        else:
            steps = 4 if name == "scale_k" else 1  # a difference and a quotient, each rounded
            moved = (stage.view(f"u{stage.itemsize}") + steps).astype(f"u{stage.itemsize}").view(stage.dtype)
        judged = diff(replace(trace, stages={**trace.stages, name: moved}))[name]
        assert judged.decisive.summary.outside > 0.8 * stage.size, name


def test_scales_of_heads_build_the_same_as_before():
    """What belongs to blocks is no argument of a build with a scale a head."""
    heads, blocks = (resolve(KERNELS["fp8"], Case(codes=kind)) for kind in ("e4m3", "nvfp4"))
    file = KERNELS["fp8"].file
    of_heads, of_blocks = (
        build(file, "fp8_forward", constants(case), ("out",), ()).parameters for case in (heads, blocks)
    )
    assert {*of_blocks} - {*of_heads} == {f"{kind}_{x}" for kind in ("zero", "global") for x in "qkv"}
    assert [name for name in of_blocks if name in of_heads] == list(of_heads)


def test_two_codes_lie_in_a_byte_and_scales_in_their_own_dtype():
    case = resolve(KERNELS["fp8"], CASE.but(codes="nvfp4"))
    made = quantized(case.inputs()[1], "k", case)
    made |= {f"scale_{x}": made["scale_k"] for x in "qv"}
    memory = in_memory(case, made)
    codes = made["codes_k"]
    assert memory["codes_k"].shape == (*codes.shape[:3], 40) and memory["scale_k"].dtype == np.uint8
    np.testing.assert_array_equal(memory["codes_k"] & 15, codes[..., ::2])
    np.testing.assert_array_equal(memory["codes_k"] >> 4, codes[..., 1::2])
    np.testing.assert_array_equal(memory["scale_k"].view(ml_dtypes.float8_e4m3fn).astype(np.float32), made["scale_k"])


def test_codes_are_those_of_ml_dtypes():
    """Every value of E2M1 and every midpoint of two, and the float32 numbers beside each."""
    values = np.unique(FORMATS["nvfp4"].values)
    exact = np.concatenate([values, (values[1:] + values[:-1]) / 2, [7.0, -7.0]]).astype(np.float32)
    x = np.concatenate([np.nextafter(exact, np.float32(way)) for way in (np.inf, -np.inf)] + [exact])
    found = encode(x, 1.0, "nvfp4")
    np.testing.assert_array_equal(found, np.clip(x, -6, 6).astype(ml_dtypes.float4_e2m1fn).view(np.uint8))
    assert encode(np.float32([-128.0, -1.0, 0.5, 1.5, 127.0, 200.0]), 1.0, "int8").tolist() == [
        129, 255, 0, 2, 127, 127,
    ]  # fmt: skip


def test_scales_by_hand():
    x = np.float32([[[[0.0, 3.0, -7.0, 1.0], [0.0, 0.0, 0.0, 0.0]]]])
    # floor(log2 7) - 8, and the least that there is
    mx = scale_of(x, "mxfp8-e4m3", dims=32)
    np.testing.assert_array_equal(mx, np.float32([[[[2.0**-6], [2.0**-127]]]]))
    case = Case(batch=1, heads=1, seqlen=2, head_dim=4, codes="int4")
    made = quantized(x, "k", case)
    np.testing.assert_array_equal(made["scale_k"], np.float32([[[[10 / 15], [1.0]]]]))
    np.testing.assert_array_equal(made["zero_k"], np.float32([[[[10.0], [0.0]]]]))  # 7 / (10 / 15) = 10.5, to even
    assert made["codes_k"].tolist() == [[[[10, 14, 0, 12], [0, 0, 0, 0]]]]
    made = quantized(x, "k", case.but(codes="nvfp4", scale_of="block"))
    np.testing.assert_array_equal(made["global_k"], np.float32([7 / (6 * 448)]))
    np.testing.assert_array_equal(made["scale_k"], np.float32([[[[448.0], [0.0]]]]))
    assert made["codes_k"].tolist() == [[[[0, 5, 15, 2], [0, 0, 0, 0]]]]


def test_libraries_give_the_same_bits():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    for kind, form in FORMATS.items():
        for by in form.scales:
            case = CASE.but(codes=kind, scale_of=by)
            x = case.inputs()[1]
            mine, theirs = quantized(x, "k", case), quantized(torch.from_numpy(x), "k", case)
            assert {*mine} == {*theirs} == {"codes_k", *(f"{one}_k" for one in form.kinds)}
            for name in mine:
                np.testing.assert_array_equal(mine[name], theirs[name].numpy(), strict=True)


@pytest.mark.campaign
def test_a_trace_survives_a_file_and_a_part_of_it_is_judged_alike(tmp_path):
    trace = fp8_run(CASE.but(codes="nvfp4"))
    save(trace, tmp_path / "trace.safetensors")
    loaded = load(tmp_path / "trace.safetensors")
    assert loaded.case == trace.case and loaded.algorithm == "block_scaled" and loaded.case.scale_of == "block"
    assert [name for name in trace.stages if trace.stages[name].tobytes() != loaded.stages[name].tobytes()] == []
    judged = diff(narrowed(loaded, "b=1,q=3:9"))
    assert judged.verdict in ("exact", "rounding") and judged["scale_q"].decisive is not None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            dict(codes="nvfp4", decode="table"),
            "kernel fp8 supports decode=table only with a scale per head; got scale_of=block",
        ),
        (
            dict(scale_of="token"),
            "simulated codes take scale_of=head; got scale_of=token, which is for codes=e4m3, e5m2, int8, int4",
        ),
        (
            dict(codes="int8", scale_of="block"),
            "int8 codes take scale_of=head or token; got scale_of=block, which is for codes=e4m3, e5m2, "
            "mxfp8-e4m3, mxfp8-e5m2, nvfp4, int4",
        ),
    ],
)
def test_a_case_that_does_not_fit_is_refused(options, message):
    with pytest.raises(Refusal) as refused:
        resolve(KERNELS["fp8"], Case(**options))
    assert str(refused.value) == message


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("kind", "by"), [(kind, by) for kind, form in FORMATS.items() for by in form.scales if kind != "simulated"]
)
def test_gpu_is_within_the_same_bounds(kind, by):
    for shape in SHAPES:
        for scores in ("mma", "scalar"):
            judged = diff(fp8_run(CASE.but(codes=kind, scale_of=by, scores=scores, **shape), backend="cuda"))
            assert judged.verdict in ("exact", "rounding") and judged.origins == ()


@pytest.mark.campaign
def test_scales_of_tokens_can_be_put_in():
    """What float64 makes of them has the axes of this case's scales, not of a head's."""
    case = CASE.but(codes="e4m3", scale_of="token")
    assert diff(fp8_run(case, feed={"scale_k": "reference", "codes_k": "reference"})).verdict in ("exact", "rounding")
