"""What a signature tells of an unknown cause: known faults that break the same laws."""

from dataclasses import replace

import numpy as np
import pytest

from workbench import Case, diff, run
from workbench.cuda.faults.catalogue import CATALOGUE, elsewhere
from workbench.explore.laws.alike import ALIKE, alike, as_dict, of_trace, possible_in, signatures
from workbench.explore.laws.every import LAWS
from workbench.explore.laws.law import Break, Finding
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
    assert {"partial-tail-not-masked", "flash-tail-mask-granular"} <= {one.fault for one in alike(found)}
    assert alike(found)[0].share > 0.8 and all("row_sum" in one.stages for one in alike(found))
    told = as_dict(found)
    assert "v-of-ones" in told["broken"] and "v-negated" in told["held"]
    first, second, *_ = lines(found, "workbench laws mine")
    assert first.startswith(f"laws: {len(told['broken'])} of ") and "v-of-ones" in first
    assert second.endswith(")") and "% the same laws are broken by " in second


def test_a_right_kernel_is_like_none():
    found = of_trace(run(attention, CASE))
    assert alike(found) == [] and as_dict(found)["broken"] == []
    assert lines(found, "workbench laws mine") == [f"laws: all {len(as_dict(found)['held'])} that were asked hold"]


def test_a_trace_at_rest_is_not_asked():
    trace = replace(run(phantom, CASE), rerun=None)
    assert of_trace(trace) is None and diff(trace).verdict == "bug"


def named(*words, among):
    return [id for id, one in among.items() if any(word in f"{id} {one.summary}" for word in words)]


def test_only_faults_are_alike_that_the_case_the_contract_and_what_ran_can_have():
    trace = run(phantom, CASE)
    on_processor = replace(trace, provenance=replace(trace.provenance, driver=""))
    plain = possible_in(on_processor)
    rest = named("sink", "alibi", "page", "fragment", "codes", "scales", "lane", "softcap", "window", among=plain)
    assert (
        len(plain) > 40
        and rest == []
        and named("causal mask", "merge", "every batch", "h % kv_heads", among=plain) == []
    )
    assert not {"tensor_cores", "threads", "codes"} & {need for one in plain.values() for need in one.needs}
    on_gpu = possible_in(replace(trace, provenance=replace(trace.provenance, driver="13.0")))
    assert "flash-row-sum-of-half-the-lanes" in {*on_gpu} - {*plain}
    assert named("fragment", among=on_gpu) == []  # of float32, which no tensor core multiplies as it is
    half = replace(trace.contract, accumulation="any")
    cores = possible_in(replace(trace, contract=half, provenance=replace(trace.provenance, driver="13.0")))
    assert "mma-fragment-rows-swapped" in {*cores} - {*on_gpu}


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"sinks": "normal"}, "flash-sink-raw"),
        ({"alibi_slopes": "geometric"}, "flash-alibi-before-scale"),
        ({"causal": True}, "flash-no-causal-mask"),
        ({"batch": 2}, "flash-k-batch-dropped"),
        ({"heads": 4, "kv_heads": 2}, "flash-kv-head-modulo"),
        ({"softcap": 5.0}, "flash-softcap-times-argument"),
        ({"seqlen_k": None, "seqlens_k": (9, 20), "batch": 2, "page_size": 4}, "flash-page-of-tile"),
    ],
)
def test_a_fault_of_a_field_is_possible_where_the_case_has_it(changes, fault):
    trace = run(phantom, CASE)
    assert fault in possible_in(replace(trace, case=CASE.but(**changes))) and fault not in possible_in(trace)


def test_faults_that_share_no_more_than_unrelated_ones_do_are_not_listed():
    """Twelve laws of the alphabet: a fault shares more than half of these, as one of sixty does by chance."""
    found = of_trace(run(phantom, CASE))
    asked = sorted(law for law, held in found.signature.items() if held is not None)
    broken = asked[:12]
    broke = Break("out", {}, 1.0, 0.0, 0.0)
    random = replace(
        found,
        findings=tuple(Finding(x.law, broke if x.law.name in broken else None, x.lacking) for x in found.findings),
    )
    shares = [
        len({*broken} & laws) / len({*broken} | laws)
        for one in possible_in(found.subject.first.trace).values()
        if (laws := one.laws & {*asked})
    ]
    assert max(shares) >= ALIKE and alike(random) == [] and len(lines(random, "")) == 1
