"""The error of a quantised kernel's out is taken apart into what quantisation did and what the kernel did."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.stored import stored
from workbench import Case, Refusal, diff, run
from workbench.case.stages import QUANTISED_INPUTS, stages_of
from workbench.expectation.observed import Observed
from workbench.floats import to_float64
from workbench.judge import blocks as parts
from workbench.judge.codes.loss import loss
from workbench.reference import dense
from workbench.trace.trace import Trace

ALL = tuple(stages_of("flash"))
CASE = Case(heads=2, kv_heads=1, seqlen_q=40, seqlen_k=70, head_dim=64, causal=True)


@pytest.fixture(scope="module")
def trace() -> Trace:
    return stored("fp8", CASE, probes="output")


def apart() -> float:
    """How far two outs in float64 that add the same terms in other orders may be apart, with 2^-53 of each sum of n
    terms for each addition: a score is off by (head_dim + 4) of these of the |terms| of q k (exp's argument has a
    rounding of a difference of two), a weight by twice that and the 2 of exp, over a sum of weights, which are as far
    off, in a sum over keys.
    """
    q, k, v = (np.abs(to_float64(x)) for x in CASE.inputs())
    score = (CASE.head_dim + 4) * CASE.scale * (q @ k.swapaxes(-1, -2)).max()
    return 2 * 2.0**-53 * (2 * (2 * score + 2) + 2 * CASE.seqlen_k + 1) * v.max()


def test_parts_add_up(trace: Trace) -> None:
    lost = loss(Observed(trace))
    wanted = dense.attention(*CASE.inputs(), scale=CASE.scale, mask=CASE.mask())["out"]
    np.testing.assert_allclose(lost.together, to_float64(trace.stages["out"]) - wanted, rtol=0, atol=apart())
    assert lost.of_out.shape == (1, 2, 40, 64) and np.any(lost.of_out != 0) and np.any(lost.of_kernel != 0)


def test_a_few_queries_are_computed_at_once(trace: Trace, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, sizes = loss(Observed(trace)), []
    attend = dense.attention

    def counted(q: np.ndarray, k: np.ndarray, v: np.ndarray, **options: Any) -> dict[str, np.ndarray]:
        sizes.append(q[..., 0].size * k.shape[2])
        return attend(q, k, v, **options)

    monkeypatch.setattr(dense, "attention", counted)
    monkeypatch.setattr(parts, "AT_ONCE_ON_CPU", 2000)
    cut = loss(Observed(trace))
    assert len(sizes) > 4 and max(sizes) <= 2000 and sum(sizes) == 2 * 2 * 40 * 70
    # of_out is a difference of two
    np.testing.assert_allclose(cut.of_out, whole.of_out, rtol=0, atol=2 * apart())
    np.testing.assert_allclose(cut.of_kernel, whole.of_kernel, rtol=0, atol=apart())


def test_inputs_are_off_by_half_a_step_at_most(trace: Trace) -> None:
    lost = loss(Observed(trace))
    for name in "qkv":
        step = 448 / 127 * to_float64(trace.stages[f"scale_{name}"])[:, None, None]
        error = np.abs(lost.inputs[name])
        assert error.shape == trace.inputs[name].shape
        # 3 roundings on the way to a code of at most 127
        assert np.all(error <= step * (0.5 + 127 * 3 * 2.0**-24)) and error.max() > 0.45 * step.min()


def test_a_wrong_out_is_the_kernels(trace: Trace) -> None:
    out = (trace.stages["out"] * np.float16(1.5)).astype(np.float16)
    faulty = loss(Observed(replace(trace, stages={**trace.stages, "out": out})))
    assert np.array_equal(faulty.of_out, loss(Observed(trace)).of_out)
    assert np.abs(faulty.of_kernel).max() > 100 * np.abs(loss(Observed(trace)).of_kernel).max()


def test_a_loss_needs_out_and_the_inputs(trace: Trace) -> None:
    alone = replace(trace, stages={name: stage for name, stage in trace.stages.items() if name != "out"})
    codes = replace(trace, inputs={"q": trace.inputs["q"]}, put_in=QUANTISED_INPUTS)
    for made, message in [
        (alone, "the loss of quantisation needs out; fp8 gave none"),
        (codes, "the loss of quantisation needs q, k and v; only quantised codes were given for k, v"),
    ]:
        with pytest.raises(Refusal) as refused:
            loss(Observed(made))
        assert str(refused.value) == message


@pytest.mark.campaign
@pytest.mark.parametrize("variant", [{}, {"codes": "e4m3", "scores": "scalar", "decode": "direct"}], ids=str)
def test_attention_on_decoded_inputs_is_judged_as_any_other(variant: dict[str, str]) -> None:
    judged = diff(
        Observed(run("fp8", Case(heads=2, kv_heads=1, seqlen=100, **variant), backend="emulator")).dequantised.trace
    )
    assert judged.verdict == "rounding" and (judged.origins, judged.victims) == ((), ())
    assert [stage.name for stage in judged] == list(ALL)


@pytest.mark.parametrize(
    ("fault", "origins"), [("rescale-per-lane", ("acc",)), ("fragment-rows-swapped", ("qk",)), ("scale-of-head-0", ())]
)
def test_faults_of_the_decoding_are_none_of_attention(fault: str, origins: tuple[str, ...]) -> None:
    trace = stored("fp8", Case(heads=2, seqlen=48, head_dim=32, block_q=16, block_k=16), faults=[fault])
    assert diff(Observed(trace).dequantised.trace).origins == origins


def test_inputs_that_nobody_dumped_are_decoded_within_their_errors(trace: Trace) -> None:
    """e4m3 decodes with one rounding: which float16 that leaves open is what the kernel took, or within the bound."""
    for variant in ({}, {"codes": "e4m3"}):
        dumped = stored("fp8", CASE.but(**variant))
        told = Observed(dumped).dequantised.trace
        guessed = Observed(
            replace(dumped, stages={n: x for n, x in dumped.stages.items() if "dequant" not in n})
        ).dequantised.trace
        assert told.input_errors == {} and all(told.inputs[name].dtype == np.float16 for name in "qkv")
        for name in "qkv":
            error = np.abs(to_float64(guessed.inputs[name]) - to_float64(told.inputs[name]))
            bound = guessed.input_errors.get(name, np.zeros_like(error))
            assert np.all(error <= bound) and np.mean(bound > 0) < 0.01


def test_right_inputs_are_the_nearest_to_those_dumped(trace: Trace) -> None:
    sound, faulty = (stored("fp8", CASE, faults=faults) for faults in ([], ["v-uses-k-scale"]))
    for name in "qkv":
        for one in (sound, faulty):
            right = Observed(one).right_attention.trace.inputs[name]
            np.testing.assert_array_equal(right, sound.stages[f"dequant_{name}"])


@pytest.mark.parametrize("codes", ["simulated", "e4m3"])
def test_codes_and_scales_that_nobody_dumped_are_computed_within_their_errors(codes: str) -> None:
    dumped = stored("fp8", CASE.but(codes=codes))
    told = Observed(dumped).dequantised.trace
    stages = {name: stage for name, stage in dumped.stages.items() if name in ALL}
    guessed = Observed(replace(dumped, stages=stages)).dequantised.trace
    for name in "qkv":
        error = np.abs(to_float64(guessed.inputs[name]) - to_float64(told.inputs[name]))
        bound = np.broadcast_to(guessed.input_errors.get(name, 0.0), error.shape)
        assert np.all(error <= bound) and np.mean(bound > 0) < 0.01


def test_where_nobody_told_a_format_what_was_not_decoded_is_the_input(trace: Trace) -> None:
    stages = {name: stored("fp8", CASE).stages[name] for name in ("dequant_v", "out")}
    made = Observed(replace(trace, case=CASE, stages=stages, requested=())).dequantised.trace
    assert np.array_equal(made.inputs["q"], trace.inputs["q"]) and np.array_equal(made.inputs["v"], stages["dequant_v"])
    assert {x.dtype for x in made.inputs.values()} == {np.dtype(np.float32)} and made.input_errors == {}


@pytest.mark.campaign(but=8)
@pytest.mark.parametrize("codes", ["simulated", "e4m3"])
@pytest.mark.parametrize("moved", [("q",), ("k",), ("q", "k"), ("v",), ("q", "k", "v")], ids="".join)
@pytest.mark.parametrize("stages", [ALL, ("acc", "out", "lse"), ("out", "lse")], ids="-".join)
def test_inputs_known_to_a_bound_widen_budgets_by_what_they_do(
    codes: str, moved: tuple[str, ...], stages: tuple[str, ...]
) -> None:
    """Inputs moved by 16 ulp of float16, all to one side: within the budgets if these are told, wrong if not."""
    known = Observed(stored("fp8", CASE.but(codes=codes, probs_dtype="float32"))).dequantised.trace
    inputs, errors = dict(known.inputs), {}
    for name in moved:
        inputs[name] = (known.inputs[name] * np.float16(1 + 2**-6)).astype(np.float16)
        errors[name] = np.abs(to_float64(inputs[name]) - to_float64(known.inputs[name]))
    told = {name: known.stages[name] for name in stages}
    untold = replace(known, inputs=inputs, stages=told, requested=(), rerun=None)
    assert diff(untold).origin is not None
    judged = diff(replace(untold, input_errors=errors))
    assert (judged.origins, judged.victims) == ((), ()) and judged.verdict in ("exact", "rounding")
    # the bound is no wider than a few times what the inputs can do: with a fifth of it the run is wrong
    fifth = {name: error / 5 for name, error in errors.items()}
    assert diff(replace(untold, input_errors=fifth)).origin is not None


def test_what_sinks_do_is_no_loss_of_the_kernel() -> None:
    """A kernel on decoded codes that is exact, sink and all."""
    case = Case(heads=2, seqlen=24, head_dim=32, codes="int8", scale_of="token", sinks="normal")

    def decoded(codes: np.ndarray, scale: np.ndarray) -> np.ndarray:
        return codes.view(np.int8).astype(np.float64) * scale.reshape(*codes.shape[:3], 1)

    def exact(q: Any, k: Any, v: Any, *, scale: float, causal: bool, sinks: Any, **scales: Any) -> np.ndarray:
        read = (decoded(x, scales[f"scale_{name}"]) for name, x in (("q", q), ("k", k), ("v", v)))
        return dense.attention(*read, scale=scale, mask=case.mask(), sinks=sinks)["out"].astype(np.float32)

    def kernel(
        q: Any, k: Any, v: Any, *, scale: float, causal: bool, sinks: Any, scale_q: Any, scale_k: Any, scale_v: Any
    ) -> np.ndarray:
        return exact(
            q, k, v, scale=scale, causal=causal, sinks=sinks, scale_q=scale_q, scale_k=scale_k, scale_v=scale_v
        )

    lost = loss(Observed(run(kernel, case)))
    assert lost.of_kernel.size > 0 and np.all(abs(lost.of_kernel) < 1e-5)
