"""Runs on codes judged: every stage before attention by its own rule, the rest on what was decoded."""

import json
from collections.abc import Callable
from dataclasses import replace
from io import StringIO
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from campaigns.known import reduced
from tests.stored import stored
from workbench import Case, Diff, Trace, diff, run
from workbench.case.stages import QUANTISED_INPUTS, before_attention, stages_of
from workbench.expectation.elements import State
from workbench.expectation.observed import Observed
from workbench.floats import to_float64, ulp
from workbench.judge.bias import second_case
from workbench.judge.explain.budget_shares import terms
from workbench.reference import quantize
from workbench.report.document import diff_document
from workbench.report.text import html_table, report
from workbench.report.words import findings
from workbench.trace.trace import blank

CASE = Case(heads=4, kv_heads=2, seqlen=64, head_dim=64)
#: on a build that other tests compile, too
RIGHT = CASE.but(head_dim=32, scale=None, block_q=16, block_k=16)
E4M3 = Case(heads=2, seqlen=24, head_dim=16, block_q=16, block_k=16, codes="e4m3")
PROBES = ("all", "lean", "output")


@pytest.fixture(scope="module", params=["simulated", "e4m3"])
def trace(request: pytest.FixtureRequest) -> Trace:
    return run("fp8", RIGHT, backend="emulator") if request.param == "simulated" else stored("fp8", E4M3)


def changed(trace: Trace, name: str, change: Callable[[np.ndarray], None]) -> Trace:
    stage = trace.stages[name].copy()
    change(stage)
    return replace(trace, stages={**trace.stages, name: stage})


def put(place: tuple[int, ...], value: float) -> Callable[[np.ndarray], None]:
    def change(stage: np.ndarray) -> None:
        stage[place] = value

    return change


def without(trace: Trace, *names: str) -> Trace:
    """The trace without some stages, as of a run that was not to dump them."""
    return replace(trace, stages={name: x for name, x in trace.stages.items() if name not in names}, requested=())


def shown(judged: Diff) -> str:
    """The report as text; the HTML and the document are made as well."""
    screen = Console(file=StringIO(), width=200)
    with screen.capture() as captured:
        screen.print(report(judged, unicode=False, width=200))
    assert html_table(judged) and json.dumps(diff_document(judged), allow_nan=False)
    return captured.get()


def dumping(probes: str, case: Case, **options: Any) -> Trace:
    """A run with those probes, cut from one with all of them, which other tests compile, too."""
    made = stored("fp8", case, **options) if options else run("fp8", case, backend="emulator")
    return reduced(made, probes)


# ---- right


@pytest.mark.campaign(but=1)
def test_a_right_run_has_every_stage_in_data_flow_order(trace: Trace) -> None:
    judged = diff(trace)
    assert (judged.verdict, judged.origins, judged.victims) == ("rounding", (), ())
    assert [stage.name for stage in judged] == list(stages_of("fp8"))
    assert all(stage.isolated is not None and stage.propagated is not None for stage in judged)
    exact = [stage.name for stage in judged if stage.verdict == "exact"]
    # dumped tables leave dequant_k and dequant_v one rounding
    assert {"scale_q", "codes_q", "codes_k", "codes_v", "dequant_k", "dequant_v", "row_max"} <= set(exact)


@pytest.mark.campaign(but=5)
@pytest.mark.parametrize("probes", PROBES)
@pytest.mark.parametrize("distribution", ["outlier-channels", "zero-head", "tiny", "peaked", "near-cancelling"])
def test_a_right_run_is_right_whatever_was_dumped(probes: str, distribution: str) -> None:
    made = dumping(probes, RIGHT.but(distribution=distribution, causal=True))
    judged = diff(made)
    assert judged.verdict in ("exact", "rounding") and (judged.origins, judged.victims) == ((), ())
    assert tuple(stage.name for stage in judged) == made.requested


@pytest.mark.campaign
def test_the_stages_of_attention_are_judged_as_those_of_a_flash_kernel_on_decoded_inputs(trace: Trace) -> None:
    judged, flash = diff(trace), diff(Observed(trace).dequantised.trace)
    for stage in flash:
        for one, other in ((judged[stage.name].isolated, stage.isolated or stage.propagated),):
            assert one is not None and other is not None
            np.testing.assert_array_equal(one.state, other.state)
    assert set(judged.bits_lost) == set(flash.bits_lost)
    assert terms(Observed(trace), judged["qk"]) == terms(Observed(trace).dequantised, flash["qk"])


# ---- wrong


@pytest.mark.campaign
@pytest.mark.parametrize(
    ("probes", "fault", "origins"),
    [
        ("lean", "scale-of-head-0", ("scores",)),
        ("output", "scale-of-head-0", ("out", "lse")),
        ("lean", "v-uses-k-scale", ("acc",)),
        ("output", "v-uses-k-scale", ("out",)),
    ],
)
def test_a_decoding_that_nobody_saw_shows_at_the_first_stage_that_was_dumped(
    probes: str, fault: str, origins: tuple[str, ...]
) -> None:
    judged = diff(dumping(probes, CASE, faults=[fault]))
    assert judged.origins == origins
    known = judged[origins[0]]
    read = {"scores": "qk", "acc": "v"}.get(known.name, "qkv")
    assert {name for name in QUANTISED_INPUTS if name[-1] in read} <= set(known.judged_from)
    assert f"dequant_{read[-1]}" in known.upstream


@pytest.mark.campaign(but=1)
def test_what_a_wrong_decoding_does_to_later_stages_makes_them_victims(trace: Trace) -> None:
    judged = diff(stored("fp8", CASE, faults=["scale-not-applied"]))
    assert judged.origins == ("lut_k",)
    assert judged.victims == (
        "dequant_k",
        *(name for name in stages_of("fp8") if name not in before_attention("fp8")),
    )
    assert judged["lut_v"].role == judged["dequant_q"].role == "clean"
    text = shown(judged)
    inherits = "(right given its inputs; the row shows the inherited error)"
    assert f"victim: {', '.join(judged.victims)} {inherits}" in " ".join(text.split())
    assert "first wrong stage: lut_k, should be value of the code * scale_k, float32" in text
    effects = [line.partition(" elements ")[2] for line in findings(judged, full=True) if line.startswith("effect on ")]
    assert len(effects) == 2 and all(line.startswith("over budget from codes and scales, ") for line in effects)


def test_scales_and_codes_are_the_beginning_and_have_no_victims(trace: Trace) -> None:
    """What is decoded from a wrong scale is right."""
    scale = float(trace.stages["scale_k"][1])
    judged = diff(changed(trace, "scale_k", put((1,), np.nextafter(np.float32(scale), np.float32(1)))))
    assert judged.origin == "scale_k" and judged["scale_k"].worst(1)[0].index == {"h": 1}
    assert judged["scale_q"].verdict == "exact"


@pytest.mark.campaign
def test_one_code_off_is_a_bug_and_either_code_at_a_tie_is_right() -> None:
    case = Case(seqlen=32)
    q, k, v = (x.copy() for x in case.inputs())
    q[0, 0, 0, 0] = np.float32(448)  # the scale is 1, and 1 / 448 * 127 of a step
    q[0, 0, 0, 1] = np.float32(448 / 127 * 2.5)
    made = stored("fp8", case, inputs=(q, k, v), probes="output")
    assert made.stages["scale_q"][0] == 1
    low, high = quantize.codes_interval(to_float64(q), to_float64(made.stages["scale_q"]), "simulated")
    assert (low[0, 0, 0, 1], high[0, 0, 0, 1]) == (130, 131) and low[0, 0, 0, 2] == high[0, 0, 0, 2]
    for code in (130, 131):
        assert diff(changed(made, "codes_q", put((0, 0, 0, 1), code)))["codes_q"].verdict == "exact"
    for place, code in ((1, 129), (1, 132), (2, high[0, 0, 0, 2] + 1)):
        wrong = diff(changed(made, "codes_q", put((0, 0, 0, place), code)))["codes_q"]
        assert wrong.verdict == "bug" and wrong.decisive is not None and wrong.decisive.summary.outside == 1
        worst = wrong.worst(1)[0]
        assert abs(worst.actual - worst.expected) == 1 and (worst.budget, worst.over_budget) == (0.5, 2.0)


def test_a_table_entry_that_must_be_nan_is_judged_and_not_poisoned() -> None:
    made = stored("fp8", E4M3)
    of_table = diff(made)["lut_k"].decisive
    assert of_table is not None and of_table.summary.judged == of_table.summary.size == 512
    assert np.isnan(of_table.expected[:, [127, 255]]).all()
    for entry, value in ((127, 3.0), (127, np.inf), (5, np.nan)):
        wrong = diff(changed(made, "lut_k", put((0, entry), value)))["lut_k"]
        assert wrong.verdict == "bug" and wrong.decisive is not None
        assert wrong.decisive.state[0, entry] == State.NAN and wrong.decisive.summary.outside == 1


def test_a_slot_that_nobody_wrote_is_missing(trace: Trace) -> None:
    unwritten = blank((), np.dtype(np.float16))

    def forget(stage: np.ndarray) -> None:
        stage[0, 1, 2, 3] = unwritten

    judged = diff(changed(trace, "dequant_v", forget))
    assert judged.origin == "dequant_v" and judged["dequant_v"].verdict == "missing"


@pytest.mark.campaign
def test_one_bit_more_in_a_decoded_input_is_a_bug_without_a_table_too() -> None:
    made = stored("fp8", CASE.but(decode="direct", codes="e4m3", scores="scalar"))
    for name in ("dequant_q", "dequant_v"):
        value = float(made.stages[name][0, 0, 5, 5])
        moved = changed(made, name, put((0, 0, 5, 5), value + 1.01 * float(ulp(value, "float16"))))
        assert diff(moved)[name].verdict == "bug"


@pytest.mark.campaign
@pytest.mark.parametrize("codes", ["e4m3", "e5m2"])
@pytest.mark.parametrize("probes", PROBES)
def test_codes_that_are_nan_or_infinite_poison_what_reads_them(codes: str, probes: str) -> None:
    case = CASE.but(codes=codes, quantiser_scale="static")
    judged = diff(dumping(probes, case, faults=["no-saturation"]))
    assert judged.origins == ("codes_q", "codes_k", "codes_v")
    # e4m3 has no infinity: out is NaN where decoded rows are, and nowhere else
    assert judged["out"].verdict == ("exact" if codes == "e4m3" else "untestable")
    assert shown(judged)


# ---- what is missing


@pytest.mark.campaign(but=1)
@pytest.mark.parametrize("gone", [("scale_k",), ("codes_k",), ("scale_k", "codes_k"), QUANTISED_INPUTS], ids="-".join)
def test_codes_and_scales_that_were_not_given_are_computed_from_the_inputs(trace: Trace, gone: tuple[str, ...]) -> None:
    judged = diff(without(trace, *gone))
    assert judged.verdict in ("exact", "rounding") and judged.victims == () and shown(judged)
    table = judged["lut_k"]
    assert (table.isolated is None) == ("scale_k" in gone) and table.upstream == (
        ("scale_k",) if table.isolated is None else ()
    )
    assert judged["qk"].isolated is not None  # from what was decoded
    for name, factor in (("lut_k", 1.01), ("dequant_k", 1.01), ("dequant_v", 0.99)):
        wrong = changed(trace, name, lambda stage, by=factor: np.multiply(stage, by, out=stage, casting="unsafe"))
        assert diff(without(wrong, *gone)).origin == name


def test_an_out_alone_is_judged_from_the_inputs(trace: Trace) -> None:
    alone = replace(trace, stages={"out": trace.stages["out"]}, requested=())
    judged = diff(alone)
    assert judged.verdict in ("exact", "rounding") and judged["out"].isolated is None and shown(judged)
    assert {"scale_q", "codes_v", "dequant_k", "acc"} <= set(judged["out"].upstream)
    assert diff(changed(alone, "out", lambda out: np.multiply(out, 1.1, out=out, casting="unsafe"))).origin == "out"


@pytest.mark.parametrize("names", [("dequant_q",), ("dequant_k", "lut_k"), ("dequant_v",), ("qk", "dequant_k")])
def test_any_stage_may_be_missing_in_between(trace: Trace, names: tuple[str, ...]) -> None:
    judged = diff(without(trace, *names))
    assert (judged.verdict, judged.origins, judged.victims) == ("rounding", (), ())


# ---- said


@pytest.mark.campaign(but=1)
@pytest.mark.parametrize("probes", PROBES)
def test_reports_tell_quantisation_from_the_kernel(probes: str) -> None:
    judged = diff(dumping(probes, RIGHT))
    lost = judged.loss
    assert lost is not None
    text = shown(judged)
    largest = [np.abs(part).max() for part in (lost.of_out, lost.of_kernel)]
    assert f"largest error of out: {largest[0]:.3g} from quantisation, {largest[1]:.3g} from the kernel" in text
    document = diff_document(judged)["quantisation"]
    assert document["quantisation"]["max_abs"] == largest[0] > 3 * document["kernel"]["max_abs"]
    assert {"quantisation", "kernel", "together"} == set(document)
    assert "codes simulated dynamic, scores mma, decode table" in text
    assert diff(stored("flash", Case(seqlen=32))).loss is None


@pytest.mark.campaign
def test_the_command_names_what_is_not_a_default() -> None:
    text = shown(diff(dumping("output", CASE.but(codes="e5m2", scores="scalar"))))
    assert "--codes e5m2,scores=scalar" in text and "decode=" not in text


def test_a_decoding_that_nobody_saw_is_a_term_of_the_budget() -> None:
    """Where roundings before the cast may reach a tie: 1 + 2^-11 times 1, say."""
    made = reduced(
        stored("fp8", Case(heads=2, kv_heads=1, seqlen_q=40, seqlen_k=70, causal=True, codes="e4m3")), "lean"
    )
    tied = np.full_like(made.stages["scale_k"], 1 + 2.0**-11)
    made = replace(made, stages={**made.stages, "scale_k": tied})
    shares = terms(Observed(made), diff(made)["scores"])
    assert sum(shares.values()) == pytest.approx(1) and shares["the decoding, which was not dumped"] > 0
    judged = diff(run("fp8", RIGHT, backend="emulator"))
    assert all("which was not dumped" not in words for stage in judged for words in terms(judged.run, stage))


def test_causes_are_named_before_attention_and_in_it() -> None:
    judged = diff(stored("fp8", CASE, faults=["scale-not-applied"]))
    (cause,) = judged.explained.causes
    assert cause.id == "codes.unscaled-k-table" and cause.stage == "lut_k"
    assert "cause: codes are decoded without their scale (k); reproduces" in shown(judged)
    sound = run("fp8", RIGHT, backend="emulator")
    wrong = diff(replace(sound, stages={**sound.stages, "scores": sound.stages["scores"] * np.float32(RIGHT.scale)}))
    cause = wrong.explained.causes[0]
    assert "scale.twice" in {one.id for one in cause.members} and cause.stage == "scores"


def test_attention_is_run_again_with_another_seed() -> None:
    read = Observed(run("fp8", RIGHT, backend="emulator")).dequantised.trace
    assert read.rerun is not None
    again = read.rerun(second_case(read.case))
    assert again.algorithm == "flash" and again.case == read.case.but(seed=1) and again.inputs["q"].dtype == np.float16
    assert not np.array_equal(again.inputs["q"], read.inputs["q"])
