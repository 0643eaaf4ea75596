"""The faults of the kernel on codes and of its quantiser: each is found at its origin, and nowhere before it."""

import json
from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner

from tests.cuda.test_fp8 import VARIANTS
from workbench import Case, diff, run
from workbench.case import formats
from workbench.case.stages import stages_of
from workbench.cli.main import commands
from workbench.cuda.faults.catalogue import CATALOGUE
from workbench.cuda.faults.fault import Fault
from workbench.floats import to_float64
from workbench.reference import quantize
from workbench.report.words import findings

STAGES = tuple(stages_of("fp8"))
#: in one build: faults of a table, of fragments, of the accumulator; and one that is in no build
FAULTS = (("scale-not-applied", "fragment-rows-swapped", "rescale-per-lane"), ("quantiser-amax-without-abs",))
#: a seed of which q, k and v each have a head whose amax is negative
CASE = Case(heads=4, seqlen=64, head_dim=32, block_q=16, block_k=16, seed=2)


def fp8_run(case, **options):
    return run("fp8", case, **({"backend": "emulator"} | options))


def origins(trace):
    return diff(trace).origins


def first_difference(faulty, sound):
    return next(name for name in STAGES if faulty.stages[name].tobytes() != sound.stages[name].tobytes())


@pytest.mark.campaign(but=1)
@pytest.mark.parametrize("faults", FAULTS, ids=lambda faults: faults[0])
def test_faults_begin_at_their_own_stages(faults):
    """A stage is judged from those that were dumped before it: what comes after a fault is a victim."""
    known = [CATALOGUE[fault] for fault in faults]
    case = CASE.but(**{name: value for fault in known for name, value in fault.needs.items()})
    faulty, sound = fp8_run(case, faults=faults), fp8_run(case)
    assert diff(sound).verdict in ("exact", "rounding")
    found = diff(faulty).origins
    assert found[:1] == (first_difference(faulty, sound),) and found == tuple(
        x for fault in known for x in fault.stages
    )


@pytest.mark.campaign
def test_without_tables_a_wrong_scale_begins_at_the_decoded_tile():
    judged = diff(fp8_run(CASE.but(decode="direct"), faults=["v-uses-k-scale"]))
    assert judged.origins == ("dequant_v",) and not judged["dequant_v"].upstream and not judged.not_judged
    said = findings(judged)
    assert (
        said[0]
        == "verdict: bug; first wrong stage: dequant_v, should be value of the code * scale_v, rounded to the operand dtype"
    )
    assert not [line for line in said if "judged" in line or "nobody saw" in line]


@pytest.mark.campaign
def test_zero_point_127_of_k_is_a_bug_that_no_check_of_out_can_see():
    """The scores of a row shift alike, which cancels in out; what is left is the rounding of another K to float16."""
    faulty, sound = fp8_run(CASE, faults=["zero-point-127"]), fp8_run(CASE)
    assert [name for name in STAGES[:8] if faulty.stages[name].tobytes() != sound.stages[name].tobytes()] == ["lut_k"]
    step = quantize.table(to_float64(sound.stages["scale_k"]), "simulated")[:, 129]
    shift = to_float64(faulty.stages["lut_k"]) - to_float64(sound.stages["lut_k"])
    assert np.all(np.abs(shift - step[:, None]) < 1e-6)
    moved = {name: to_float64(faulty.stages[name]) - to_float64(sound.stages[name]) for name in ("out", "lse")}
    out, lse = (np.abs(moved[name]).max() for name in ("out", "lse"))
    assert 0 < out < 1e-3 and lse > 50 * out
    judged = diff(faulty)
    assert (judged.verdict, judged.origins) == ("bug", ("lut_k",))
    passing = {rule.name: rule.passes for rule in judged.rules}
    assert passing == {rule.name: rule.passes for rule in diff(sound).rules}, "the usual rules cannot tell them apart"
    assert passing["atol 1e-2"] and passing["FlashAttention 2x"]


@pytest.mark.campaign
def test_zero_point_127_is_named_by_the_command():
    done = CliRunner().invoke(commands, ["diff", "fp8", "--fault", "zero-point-127", "--backend", "emulator", "--json"])
    found = json.loads(done.stdout)
    assert (done.exit_code, found["verdict"], found["origins"]) == (1, "bug", ["lut_k"])


@pytest.mark.campaign
def test_acc_truncated_beside_scores_from_tensor_cores_is_a_bug(monkeypatch):
    """By the lean of its errors; by their size alone under a contract that says of both sums alike that either may
    truncate.
    """
    fault = Fault(
        "acc-truncated",
        "fp8",
        "probs @ v accumulates with rounding toward zero",
        "acc += s_p[r * BLOCK_K + c] * libdevice.half2float(s_kv[c * LD + d])",
        "acc = libdevice.fmaf_rz(s_p[r * BLOCK_K + c], libdevice.half2float(s_kv[c * LD + d]), acc)",
    )
    monkeypatch.setitem(CATALOGUE, fault.id, fault)

    def either(trace):
        contract = replace(trace.contract, accumulation="any", acc_accumulation=None)
        return replace(trace, contract=contract, rerun=lambda case: either(trace.rerun(case)))

    faulty = fp8_run(Case(heads=4, seqlen=128, head_dim=64, seed=2), faults=[fault.id])  # fewer rows show no size
    judged, loose = diff(faulty), diff(either(faulty))
    assert (judged.verdict, judged["acc"].verdict, judged.origins) == ("bug", "bug", ("acc",))
    assert judged["acc"].reason.startswith("errors lean toward zero")
    # of either no lean is told; but blocks of 16 truncate less often, and rounding to nearest not at all
    assert (loose.verdict, loose.origins) == ("bug", ("acc",))
    assert loose["acc"].reason.startswith("errors are ") and "lean" not in loose["acc"].reason
    assert diff(fp8_run(CASE)).verdict == "rounding"
    # the worst of either is here that of rounding; what is likely is not
    tight, wide = (found["acc"].isolated for found in (judged, loose))
    assert np.all(tight.budget <= wide.budget)
    likely = [np.median((one.statistical * one.budget)[one.budget > 0]) for one in (tight, wide)]
    assert 2 * likely[0] < likely[1]
    tight, wide = (found["qk"].isolated for found in (judged, loose))
    assert np.all(tight.budget <= wide.budget) and np.median(wide.budget / tight.budget) > 1.4


@pytest.mark.campaign
def test_partial_tile_shows_without_unwritten_memory():
    """Stale codes are those of an earlier tile: numbers, and the same ones on every run."""
    case = CASE.but(block_k=48)
    faulty = fp8_run(case, faults=["partial-tile-codes-not-zeroed"])
    assert np.all(np.isfinite(to_float64(faulty.stages["acc"])))
    assert origins(fp8_run(case.but(seqlen=96), faults=["partial-tile-codes-not-zeroed"])) == ()


@pytest.mark.campaign
def test_faults_of_quantiser_and_kernel_combine():
    faults = ["no-saturation", "scale-of-head-0"]
    faulty = fp8_run(CASE.but(quantiser_scale="static"), faults=faults)
    assert origins(faulty) == ("codes_q", "codes_k", "codes_v", "lut_k")


@pytest.mark.campaign
@pytest.mark.parametrize(
    "variant", ["e4m3 mma table float32", pytest.param("e5m2 mma direct float32", marks=pytest.mark.campaign)]
)
def test_without_saturation_float8_overflows(variant):
    case = Case(seqlen=64, head_dim=64, quantiser_scale="static", **VARIANTS[variant])
    faulty = fp8_run(case, faults=["no-saturation"])
    values = formats.FORMATS[case.codes].values[faulty.stages["codes_v"]]
    assert np.any(~np.isfinite(values)) and np.any(np.isnan(values)) == (case.codes == "e4m3")
    assert first_difference(faulty, fp8_run(case)) == "codes_q"


@pytest.mark.campaign
def test_a_stage_moved_by_one_bit_is_outside_somewhere():
    """The bounds of exact stages are exact, and no bound is so wide that a moved stage fits."""
    trace = fp8_run(CASE)
    for name in STAGES:
        stage = trace.stages[name].copy()
        finite = np.isfinite(stage) & (stage != 0)
        if name in ("lut_k", "lut_v", "qk", "scores", "probs", "row_sum", "acc", "lse", "correction"):
            stage[finite] *= np.float32(1.001)
        else:
            stage[finite] = (stage.view(f"u{stage.itemsize}") + 1).view(stage.dtype)[finite]
        moved = diff(replace(trace, stages={**trace.stages, name: stage}))[name].decisive.summary.outside
        share = 0.9 if name.startswith("codes") else 0.2
        assert moved > share * finite.sum(), name
