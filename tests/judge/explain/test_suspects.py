"""What a right lse rules out for a wrong out, on kernels that are wrong in known places."""

import numpy as np
import pytest

from tests.stored import stored
from workbench import Case, diff, run
from workbench.case.stages import ALGORITHMS
from workbench.judge.explain.suspects import suspects
from workbench.report.words import findings

pytestmark = pytest.mark.usefixtures("without_causes")

CASE = Case(seqlen=24, heads=4, kv_heads=2, head_dim=16)


def kernel(*, v=lambda v: v, scores=lambda s: s, probs=lambda p: p, out=lambda x: x, lse=lambda x: x, **given):
    """A kernel with one thing changed, that gives out and lse, and those stages that `given` names."""

    def attention(q, k, v_, *, scale, causal):
        q, k, v_ = (x.astype(np.float32) for x in (q, k, v_))
        k, v_ = (np.repeat(x, 2, axis=1) for x in (k, v(v_)))
        s = scores(q @ np.swapaxes(k, -1, -2) * np.float32(scale))
        m = s.max(-1)
        p = np.exp(s - m[..., None])
        total = p.sum(-1)
        found = {"out": out(probs(p) @ v_ / total[..., None]), "lse": lse(m + np.log(total)), "scores": s}
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
    lines = findings(judged)
    at = lines.index("  lse is right, which rules out qk, scores, row_max, correction, probs, row_sum")
    assert lines[at + 1].startswith(
        "  left: probs_cast, acc (the rows and heads of v, the rescaling by correction), out"
    )
    assert not any("not given, so that" in line for line in lines)


@pytest.mark.parametrize(
    "wrong",
    [kernel(scores=lambda s: s * np.float32(1.1)), kernel(scores=lambda s: s[:, ::-1])],
    ids=["scale", "heads"],
)
def test_a_wrong_lse_rules_nothing_out(wrong):
    judged = diff(run(wrong, CASE))
    assert judged.origins == ("out", "lse")
    assert of(judged, "out") is None and of(judged, "lse") is None
    seen = "  not given, so that the cause may be there too: qk, scores, row_max, correction, probs, probs_cast, row_sum, acc"
    assert seen in findings(judged)


def test_a_right_out_leaves_lse_itself_and_what_moves_a_row():
    judged = diff(run(kernel(lse=lambda x: x * np.float32(1.4427)), CASE))
    assert judged.origins == ("lse",)
    found = of(judged, "lse")
    assert (found.right, found.left) == ("out", ("lse",))
    assert any("row_max, a constant or a bias of the row" in line for line in findings(judged))


def test_what_was_given_is_neither_cleared_nor_left():
    judged = diff(run(kernel(v=lambda v: v[:, ::-1], scores=lambda s: s), CASE))
    given = diff(run(kernel(**{"v": lambda v: v[:, ::-1]}, **{}), CASE))
    assert of(judged, "out") == of(given, "out")


@pytest.mark.parametrize("kernel_of_ours", ["split_k", "fp8"])
def test_of_other_algorithms_all_that_nobody_saw_is_cleared_or_left(kernel_of_ours):
    """Whatever a dump of out and lse alone leaves open is named once."""
    from dataclasses import replace

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
    from dataclasses import replace

    judged = diff(run(FROM_V["not divided"], CASE))
    alone = replace(judged.trace, stages={"out": judged.trace.stages["out"]})
    found = diff(alone)
    assert of(found, "out") is None
