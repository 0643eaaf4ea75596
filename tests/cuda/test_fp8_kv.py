"""The kernel on a KV cache of codes, whose q has none: right in every dtype of q, wrong where it has a fault."""

import numpy as np
import pytest

from tests.cuda.fp8_cases import CASE as SMALL
from tests.cuda.fp8_cases import SHAPES, fp8_run
from workbench import Case, Refusal, diff
from workbench.case.formats import FORMATS
from workbench.case.stages import stages_of
from workbench.cuda.build import build
from workbench.cuda.fp8_build import constants
from workbench.cuda.kernels import KERNELS
from workbench.cuda.plan import requested, resolve
from workbench.foreign.arguments import drawn

CASE = SMALL.but(codes_of="kv")
INT8 = CASE.but(codes="int8", scale_of="token", dtype="float16")


@pytest.mark.campaign(but=1)
@pytest.mark.parametrize("case", [INT8, CASE.but(codes="int4", dtype="bfloat16")], ids=lambda x: x.codes)
def test_every_stage_is_within_its_bound(case):
    for shape in SHAPES:
        trace = fp8_run(case.but(**shape))
        judged = diff(trace)
        assert judged.verdict in ("exact", "rounding") and judged.origins == judged.victims == (), judged
        kinds = FORMATS[case.codes].kinds
        known = stages_of("block_scaled", coded="kv")
        known = [x for x in known if x[:-2] in kinds or x[:-2] not in ("scale", "zero", "global")]
        assert list(trace.stages) == known and not any(x.endswith("_q") for x in known)
        assert trace.inputs["q"].dtype == case.inputs()[0].dtype


def test_q_is_read_as_it_is():
    """One q at a time one ulp of its dtype larger: qk of its row moves, and is right."""
    inputs = dict(zip("qkv", INT8.inputs(), strict=True))
    trace, other = fp8_run(INT8), inputs["q"].copy()
    other[0, 1, 3, 5] = np.nextafter(other[0, 1, 3, 5], np.float16(np.inf))
    moved = fp8_run(INT8, inputs=inputs | {"q": other})
    assert diff(moved).origins == ()
    rows = np.any(moved.stages["qk"] != trace.stages["qk"], axis=-1)
    assert np.argwhere(rows).tolist() == [[0, 1, 3]]


def test_inputs_of_a_cache_that_was_never_floats():
    made = drawn(INT8)
    judged = diff(fp8_run(INT8, inputs={name: x for name, x in made.items() if name not in "kv"}))
    assert judged.verdict in ("exact", "rounding") and {"codes_k", "scale_v"} <= {*judged.trace.put_in}
    assert judged.trace.case.dtype == "float16" and judged.loss is None


@pytest.mark.campaign
def test_a_fault_is_named_at_its_stage_with_its_cause():
    judged = diff(fp8_run(CASE.but(codes="int4", dtype="float16"), faults=["zero-point-forgotten"]))
    assert judged.verdict == "bug" and judged.origins == ("dequant_k", "dequant_v")
    assert [cause.text for cause in judged.explained.causes] == ["the zero point is not subtracted (k, v)"]


def test_what_is_of_codes_of_q_is_no_argument():
    file = KERNELS["fp8"].file
    of_all, of_cache = (resolve(KERNELS["fp8"], CASE.but(codes="int4", codes_of=of)) for of in ("qkv", "kv"))
    of_all, of_cache = ({*build(file, "fp8_forward", constants(x), (), ()).parameters} for x in (of_all, of_cache))
    assert of_all - of_cache == {f"{what}_q" for what in ("codes", "scale", "zero", "global")}
    assert of_cache - of_all == {"q"}


def test_a_tile_of_q_in_float32_takes_its_room():
    case = resolve(KERNELS["fp8"], Case(codes="int8", codes_of="kv"))
    assert (case.scores, case.decode, case.codes_of) == ("scalar", "direct", "kv")
    rows, keys, ld = case.block_q, case.block_k, 72
    floats = rows * ld + rows * keys + rows * 64 + 2 * rows
    assert constants(case).shared_bytes == 4 * floats + 2 * keys * ld


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            dict(scores="mma"),
            "kernel fp8 needs scores=scalar if q is not quantised; got scores=mma",
        ),
        (
            dict(decode="table", scale_of="token"),
            "kernel fp8 supports decode=table only with a scale per head; got scale_of=token",
        ),
        (
            dict(codes_of="qkv", dtype="float16"),
            "kernel fp8 quantises float32 inputs; another dtype needs codes_of=kv; got dtype=float16",
        ),
    ],
)
def test_a_case_that_does_not_fit_is_refused(options, message):
    with pytest.raises(Refusal) as refused:
        resolve(KERNELS["fp8"], Case(**{"codes": "int8", "codes_of": "kv"} | options))
    assert str(refused.value) == message


def test_a_stage_of_q_cannot_be_asked_for():
    with pytest.raises(Refusal) as refused:
        requested(KERNELS["fp8"], resolve(KERNELS["fp8"], INT8), "dequant_q,out")
    assert str(refused.value) == (
        "fp8 with decode=direct, codes_of=kv has no stage dequant_q; got probes=dequant_q,out"
    )
    with pytest.raises(Refusal) as refused:
        resolve(KERNELS["flash"], Case(codes_of="kv"))
    assert str(refused.value) == "kernel flash reads no quantised codes and takes no codes_of; got kv"


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("kind", "by"), [(kind, by) for kind, form in FORMATS.items() for by in form.scales if kind != "simulated"]
)
def test_gpu_is_within_the_same_bounds(kind, by):
    for i, shape in enumerate(SHAPES):
        dtype = ("float16", "bfloat16", "float32")[i % 3]
        judged = diff(fp8_run(CASE.but(codes=kind, scale_of=by, dtype=dtype, **shape), backend="cuda"))
        assert judged.verdict in ("exact", "rounding") and judged.origins == ()
