"""What a right lse rules out for a wrong out, on kernels that are wrong in known places."""

from dataclasses import replace

import numpy as np
import pytest
from ml_dtypes import bfloat16

from tests.readings.kernels import kernel as tiled
from tests.stored import stored
from workbench import Case, diff, run
from workbench.case.stages import ALGORITHMS
from workbench.floats import DTYPES
from workbench.judge.explain.by_measure import by_measure
from workbench.judge.explain.cause import Cause
from workbench.judge.explain.fit import Fit
from workbench.judge.explain.hypothesis import Edit, Hypothesis
from workbench.judge.explain.suspects import suspects
from workbench.judge.stage import RIGHT_VERDICTS
from workbench.report.words import findings
from workbench.work import Work

pytestmark = pytest.mark.usefixtures("without_causes")

CASE = Case(seqlen=24, heads=4, kv_heads=2, head_dim=16)


def kernel(
    *, v=lambda v: v, scores=lambda s: s, weights=lambda p: p, probs=lambda p: p, total=lambda x: x, out=lambda x: x,
    lse=lambda x: x, **given,
):  # fmt: skip
    """A kernel with one thing changed, that gives out and lse, and those stages that `given` names."""

    def attention(q, k, v_, *, scale, causal):
        q, k, v_ = (x.astype(np.float32) for x in (q, k, v_))
        k, v_ = (np.repeat(x, 2, axis=1) for x in (k, v(v_)))
        s = scores(q @ np.swapaxes(k, -1, -2) * np.float32(scale))
        m = s.max(-1)
        p = weights(np.exp(s - m[..., None]))
        whole = total(p.sum(-1).astype(np.float32))
        found = {"out": out(probs(p) @ v_ / whole[..., None]), "lse": lse(m + np.log(whole)), "scores": s}
        return {name: found[name] for name in ("out", "lse", *given)}

    return attention


def of(judged, name):
    """What is said of one stage."""
    return suspects(judged.run, judged.stages, judged[name])


FROM_V = {
    "v's keys reversed": kernel(v=lambda v: v[:, :, ::-1]),
    "v's heads swapped": kernel(v=lambda v: v[:, ::-1]),
    "probs cast": kernel(probs=lambda p: np.round(p * 8).astype(np.float32) / 8),
    "not divided": kernel(out=lambda x: x * np.float32(3)),
}


@pytest.mark.parametrize("wrong", FROM_V.values(), ids=FROM_V)
def test_a_right_lse_rules_out_what_it_was_made_of(wrong):
    judged = diff(run(wrong, CASE))
    assert judged.origins == ("out",)
    found = of(judged, "out")
    assert found.right == "lse"
    assert found.cleared == ("qk", "scores", "row_max", "correction", "probs", "row_sum")
    assert found.left == ("probs_cast", "acc", "out")
    lines = findings(judged, full=True)
    at = lines.index("  lse is right, which rules out qk, scores, row_max, correction, probs, row_sum")
    assert lines[at + 1].startswith(
        "  still suspect: probs_cast, acc (rows and heads of v, rescaling by correction), out"
    )
    assert not any("not dumped, so" in line for line in lines)
    # in short where no cause is proved
    proved = any(cause.proved for cause in judged.explained.causes)
    assert [line for line in findings(judged) if line in lines[at : at + 2]] == ([] if proved else lines[at : at + 2])


@pytest.mark.parametrize(
    "wrong",
    [kernel(scores=lambda s: s * np.float32(1.1)), kernel(scores=lambda s: s[:, ::-1])],
    ids=["scale", "heads"],
)
def test_a_wrong_lse_rules_nothing_out(wrong):
    judged = diff(run(wrong, CASE))
    assert judged.origins == ("out", "lse")
    assert of(judged, "out") is None and of(judged, "lse") is None
    seen = "  not dumped, so the bug may be there too: qk, scores, row_max, correction, probs, probs_cast, row_sum, acc"
    assert seen in findings(judged, full=True)


def test_a_right_out_leaves_lse_itself_and_what_moves_a_row():
    judged = diff(run(kernel(lse=lambda x: x * np.float32(1.4427)), CASE))
    assert judged.origins == ("lse",)
    found = of(judged, "lse")
    assert (found.right, found.left) == ("out", ("row_max", "lse"))
    assert found.cleared == ("qk", "scores", "correction", "probs", "row_sum")
    assert any(
        "all scores of a row equally: a constant or a per-row bias" in line for line in findings(judged, full=True)
    )


def test_what_was_given_is_neither_cleared_nor_left():
    judged = diff(run(kernel(v=lambda v: v[:, ::-1], scores=lambda s: s), CASE))
    given = diff(run(kernel(**{"v": lambda v: v[:, ::-1]}, **{}), CASE))
    assert of(judged, "out") == of(given, "out")


@pytest.mark.parametrize("kernel_of_ours", ["split_k", "fp8"])
def test_of_other_algorithms_all_that_nobody_saw_is_cleared_or_left(kernel_of_ours):
    """Whatever a dump of out and lse alone leaves open is named once."""
    trace = stored(kernel_of_ours, Case(seqlen=20, head_dim=64, heads=2), probes="output")
    broken = trace.stages["out"] * np.asarray(2, trace.stages["out"].dtype)
    judged = diff(replace(trace, stages={**trace.stages, "out": broken}))
    found = of(judged, "out")
    named = (*found.cleared, *found.left)
    assert len(set(named)) == len(named) and {*named} == {*judged["out"].upstream, "out"}
    assert {"acc", "out", "probs_cast"} <= {*found.left} and {"qk", "scores", "probs"} <= {*found.cleared}
    assert {*named} <= {*ALGORITHMS[judged.trace.algorithm]}
    assert ("merge_weight" in found.left and "merge_sum" in found.cleared) == (kernel_of_ours == "split_k")
    assert ("dequant_v" in found.left and "dequant_k" in found.cleared) == (kernel_of_ours == "fp8")


def test_an_lse_that_was_not_judged_whole_rules_nothing_out():
    """Rows whose lse is not given, or overflows, prove nothing."""
    judged = diff(run(FROM_V["not divided"], CASE))
    alone = replace(judged.trace, stages={"out": judged.trace.stages["out"]})
    found = diff(alone)
    assert of(found, "out") is None


def _noisy(share):
    noise = abs(np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32))
    return lambda p: p * (1 + np.float32(share) * noise)


ALIKE = {"distribution": "constant-v"}
BF16, F16, F32 = ({"dtype": dtype} for dtype in ("bfloat16", "float16", "float32"))
#: kernels wrong in a stage that out and lse are made of, and whose out does not show it: the stage and the case
COARSE = {
    "a sum 0.2 % too large, out in bfloat16": ("row_sum", {"total": lambda x: x * np.float32(1.002)}, BF16),
    "a sum 0.1 % too large, V alike in all keys": ("row_sum", {"total": lambda x: x * np.float32(1.001)}, BF16 | ALIKE),
    "weights 0.3 % too large, out in bfloat16": ("probs", {"weights": _noisy(0.003)}, BF16),
    "weights 1 % too large, V alike in all keys": ("probs", {"weights": _noisy(0.01)}, F16 | ALIKE),
    "a key lost, V alike in all keys": ("probs", {"weights": lambda p: p * (np.arange(64) != 5)}, F16 | ALIKE),
    "scores 1 % too large, V alike in all keys": ("scores", {"scores": lambda s: s * np.float32(1.01)}, F32 | ALIKE),
}


@pytest.mark.parametrize(("stage", "fault", "options"), COARSE.values(), ids=COARSE)
def test_an_out_that_is_too_coarse_to_show_an_error_rules_its_stage_not_out(stage, fault, options):
    stored_as = DTYPES[options["dtype"]]
    judged = diff(run(kernel(**fault, out=lambda x: x.astype(stored_as)), CASE.but(seqlen=64, **options)))
    assert judged.origins == ("lse",) and judged["out"].verdict in RIGHT_VERDICTS
    found = of(judged, "lse")
    assert found is None or (stage in found.left and stage not in found.cleared)


def test_an_lse_that_is_too_coarse_to_show_an_error_rules_its_stage_not_out():
    """The sum is off by less than lse may be, and out by more."""
    wrong = kernel(total=lambda x: x * np.float32(1.0001), lse=lambda x: x.astype(bfloat16))
    judged = diff(run(wrong, CASE.but(seqlen=64, distribution="constant-v")))
    assert judged.origins == ("out",) and judged["lse"].verdict in RIGHT_VERDICTS
    assert "row_sum" in of(judged, "out").left


def test_a_running_sum_in_16_bits_is_not_ruled_out():
    """lse is within the widest budgets, and wrong of any library: how large its error is says nothing then."""

    def attention(q, k, v, *, scale, causal):
        q, k, v = (x.astype(np.float32) for x in (q, k, v))
        s = q @ np.swapaxes(k, -1, -2) * np.float32(scale)
        m = s.max(-1)
        p = np.exp(s - m[..., None])
        total = np.zeros(m.shape, np.float32)
        for first in range(0, 128, 32):
            total = (total + p[..., first : first + 32].sum(-1)).astype(bfloat16).astype(np.float32)
        return (p @ v / total[..., None]).astype(bfloat16), m + np.log(total)

    judged = diff(run(attention, Case(seqlen=128, dtype="bfloat16")))
    assert judged.origins == ("lse",)
    assert of(judged, "lse") is None
    lines = findings(judged, full=True)
    assert not any("rules out" in line for line in lines)
    assert "row_sum" in next(line for line in lines if "the bug may be there too" in line)


EDITED = {
    "row_sum": ("row_sum",),  # a stage that is ruled out
    "a stage and another": ("lse", "correction"),
    "summed": ("summed",),  # a parameter that row_sum reads
    "subtracted": ("subtracted",),  # and one that probs do
}


@pytest.mark.parametrize("edited", [*EDITED.values(), ("lse",), ("out_rows",)], ids=str)
def test_nothing_is_ruled_out_beside_a_cause_that_lies_there(edited):
    judged = diff(run(kernel(lse=lambda x: x * np.float32(1.4427)), CASE))
    wrong = Hypothesis("of.us", "a cause", tuple(Edit(name, lambda step: step) for name in edited))
    cause = Cause((wrong,), Fit(wrong, ("lse",), 0.1, 0.1, 0.0, 0, 96, 96, 0))
    said = findings(judged.explained_by(replace(judged.explained, causes=(cause,))))
    assert any("cause: " in line for line in said)
    ruled_out = [line for line in said if "rules out" in line]
    assert bool(ruled_out) == (edited not in EDITED.values())


@pytest.mark.parametrize("bug", ["no correction", "v swizzled"])
def test_nothing_is_ruled_out_beside_a_cause_that_was_measured_there(bug):
    """A correction that is left out of the accumulator alone: lse is right, and the finding one of corrections."""
    judged = diff(run(tiled(bug, lse=True), Case(seqlen=48, head_dim=16)))
    assert judged.origins == ("out",) and of(judged, "out") is not None
    (cause,) = by_measure(judged.run, ["out"], Work(1e6))
    assert cause.measured and cause.places == (("correction",) if bug == "no correction" else ("out",))
    said = findings(judged.explained_by(replace(judged.explained, causes=(cause,))), full=True)
    assert any("cause: " in line for line in said)
    assert any("rules out" in line for line in said) == (bug != "no correction")
