"""A kernel in bfloat16 that loses the last of 1024 keys, from out alone: the defaults of what judges kernels find it."""

import json
import shlex
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from tests.refusals import invoked
from workbench import Case, Refusal, diff, run
from workbench.explore.lost_keys import on_telling_cases
from workbench.explore.shrink.shrink import shrink
from workbench.explore.sweep.plan import with_exposing
from workbench.report.words import findings
from workbench.testing import AttentionError, assert_attention

CASE = Case(seqlen_q=8, seqlen_k=1024, head_dim=64, dtype="bfloat16", causal=True)

KERNEL = """
import numpy as np

def attention(q, k, v, *, scale, causal, lost=0):
    dtype = q.dtype
    q, k, v = (x.astype(np.float32) for x in (q, k, v))
    scores = q @ k.swapaxes(-1, -2) * np.float32(scale)
    n, m = scores.shape[-2:]
    if causal:
        scores = np.where(np.tri(n, m, m - n, dtype=bool), scores, -np.inf)
    scores[..., m - (lost if m > 128 else 0) :] = -np.inf  # a tail of tiles
    top = scores.max(-1, keepdims=True)
    probs = np.exp(scores - np.where(np.isinf(top), 0, top))
    total = probs.sum(-1, keepdims=True)
    out = probs.astype(dtype).astype(np.float32) @ v
    return (out / np.where(total == 0, 1, total)).astype(dtype)

def loses_the_last(q, k, v, *, scale, causal):
    return attention(q, k, v, scale=scale, causal=causal, lost=1)
"""
made: dict = {}
exec(KERNEL, made)
attention, loses_the_last = made["attention"], made["loses_the_last"]


pytestmark = pytest.mark.usefixtures("without_searches")


def test_out_alone_does_not_see_it_and_says_so():
    judged = diff(run(loses_the_last, CASE))
    assert judged.verdict == "rounding"
    assert judged.unseen is not None and 2**-11 < judged.unseen <= 2**-5
    (line,) = (x for x in findings(judged) if "would not show in out" in x)
    assert "workbench inputs " in line and "--distribution comb " in line  # of a function that no file has


def test_an_assertion_sees_it():
    with pytest.raises(AttentionError) as raised:
        assert_attention(loses_the_last, CASE)
    assert raised.value.diff.trace.case.distribution == "comb" and "distribution='comb'" in str(raised.value)


@pytest.mark.campaign
def test_a_right_kernel_passes_on_all_of_them():
    assert assert_attention(attention, CASE).trace.case == CASE


@pytest.mark.campaign
def test_a_search_for_the_smallest_case_begins_where_it_shows():
    with pytest.raises(Refusal, match=r"this run has none \(verdict: rounding\)"):
        shrink(diff(run(attention, CASE)), 0.05)
    found = shrink(diff(run(loses_the_last, CASE)), 0.1)
    assert found.start.trace.case.distribution == "comb" and found.smallest.seqlen_k > 128


@pytest.mark.campaign
def test_the_command_that_is_named_sees_it(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(KERNEL)
    monkeypatch.chdir(tmp_path)
    asked = "diff mine.py:loses_the_last --seqlen-q 8 --seqlen-k 1024 --dtype bfloat16 --causal --json".split()
    first = invoked(*asked)
    command = json.loads(first.stdout)["unseen"]["command"]
    assert "--distribution comb,needle " in command and "--seed 0,1,2,3" in command
    assert first.exit_code == 0 and invoked(*shlex.split(command)[1:]).exit_code == 1


def test_a_sweep_runs_them_beside_what_is_asked():
    cases = with_exposing("mine.py:attention", [CASE, CASE.but(seqlen=64)])
    assert Counter(x.distribution for x in cases) == {"normal": 2, "comb": 5, "needle": 5}
    assert [(x.seqlen_k, x.distribution) for x in cases[:4]] == [
        (1024, "normal"), (64, "normal"), (1024, "comb"), (1024, "comb"),
    ]  # fmt: skip
    assert with_exposing("flash", [CASE]) == [CASE]


def test_where_stages_are_judged_or_nothing_runs_again_no_more_is_run():
    def with_scores(q, k, v, *, scale, causal):
        scores = q.astype(np.float32) @ k.astype(np.float32).swapaxes(-1, -2) * np.float32(scale)
        return {"scores": scores, "out": attention(q, k, v, scale=scale, causal=causal)}

    everything = diff(run(with_scores, CASE.but(seqlen=16, causal=False)))
    assert [*on_telling_cases(everything)] == [] and everything.unseen is None
    at_rest = replace(run(attention, CASE.but(seqlen=16)), rerun=None)
    assert [*on_telling_cases(diff(at_rest))] == []
