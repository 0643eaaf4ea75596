"""What a signature tells of an unknown cause: known faults that break the same laws."""

import numpy as np

from workbench import Case, diff, run
from workbench.cuda.faults.catalogue import CATALOGUE, elsewhere
from workbench.explore.laws.alike import alike, as_dict, of_trace, signatures
from workbench.explore.laws.every import LAWS
from workbench.report.broken_laws import lines

CASE = Case(heads=2, seqlen=20, head_dim=16)


def attention(q, k, v, *, scale, causal, leak=0.0):
    scores = q @ np.swapaxes(k, -1, -2) * np.float32(scale)
    top = scores.max(-1)
    probs = np.exp(scores - top[..., None])
    total = probs.sum(-1) + np.float32(leak)
    return probs @ v / total[..., None], top + np.log(total)


def phantom(q, k, v, *, scale, causal):
    """A key that does not exist, as the fault flash-row-sum-phantom-key has it."""
    return attention(q, k, v, scale=scale, causal=causal, leak=1.0)


def test_signatures_are_of_known_faults_and_laws():
    assert len(signatures()) > 100 and {*signatures()} <= {*CATALOGUE, *elsewhere()}
    assert {law for one in signatures().values() for law in one.laws} <= {*LAWS}
    known = [(signatures()[id], fault) for id, fault in CATALOGUE.items() if id in signatures()]
    assert all((one.summary, one.stages) == (fault.summary, fault.stages) for one, fault in known)


def test_an_unknown_fault_is_like_one_that_breaks_the_same_laws():
    found = of_trace(run(phantom, CASE))
    assert "flash-row-sum-phantom-key" in [one.fault for one in alike(found)]
    assert alike(found)[0].share > 0.5 and "row_sum" in alike(found)[0].stages
    told = as_dict(found)
    assert "v-of-ones" in told["broken"] and "v-negated" in told["held"]
    first, second, *_ = lines(found)
    assert first.startswith(f"laws: {len(told['broken'])} of ") and "v-of-ones" in first
    assert second.endswith(")") and "% the same laws are broken by " in second


def test_a_right_kernel_is_like_none():
    found = of_trace(run(attention, CASE))
    assert alike(found) == [] and as_dict(found)["broken"] == []
    assert lines(found) == [f"laws: all {len(as_dict(found)['held'])} that were asked hold (workbench laws)"]


def test_a_trace_at_rest_is_not_asked():
    trace = run(phantom, CASE, inputs=CASE.inputs())
    assert of_trace(trace) is None and diff(trace).verdict == "bug"
