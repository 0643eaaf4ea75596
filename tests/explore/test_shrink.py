"""Shrinking: the way down, what must stay the same on it, and its boundaries."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from math import inf
from typing import Any

import numpy as np
import pytest

from tests.stored import stored
from workbench.case.case import Case
from workbench.explore.shrink.attempts import Outcome
from workbench.explore.shrink.shrink import Shrunk, shrink
from workbench.explore.shrink.smaller import below, by_hypothesis, descend
from workbench.explore.shrink.space import axes, changed, coordinates, elements
from workbench.explore.shrink.symptom import Symptom, kind
from workbench.foreign.run import run
from workbench.judge.diff import diff
from workbench.judge.explain.by_measure import by_measure
from workbench.judge.explain.trial import holds
from workbench.refusal import Refusal
from workbench.work import Work

Stages = Mapping[str, Any]


def attention(q: Any, k: Any, v: Any, *, scale: float, causal: bool, bug: Callable[..., bool]) -> Stages:
    """Attention in float32; where there is the bug, lse is in base 2."""
    group = q.shape[1] // k.shape[1]
    q, k, v = (x.astype(np.float32) for x in (q, np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)))
    scores = q @ np.swapaxes(k, -1, -2) * np.float32(scale)
    if causal:
        seen = np.tri(*scores.shape[-2:], k=scores.shape[-1] - scores.shape[-2], dtype=bool)
        scores = np.where(seen, scores, np.float32(-np.inf))
    row_max = scores.max(-1)
    probs = np.exp(scores - row_max[..., None])
    row_sum = probs.sum(-1)
    lse = row_max + np.log(row_sum)
    if bug(q=q, k=k, group=group, causal=causal):
        lse = lse * np.float32(np.log2(np.e))
    return {"scores": scores, "out": probs @ v / row_sum[..., None], "lse": lse}


def shrunk(bug: Callable[..., bool], case: Case, effort: float = 1.0) -> Shrunk:
    def kernel(q: Any, k: Any, v: Any, *, scale: float, causal: bool) -> Stages:
        return attention(q, k, v, scale=scale, causal=causal, bug=bug)

    return shrink(diff(run(kernel, case)), effort)


def boundary(found: Shrunk, name: str) -> dict[str, tuple[Any, ...]]:
    (one,) = (one for one in found.boundaries if one.name == name)
    return {outcome.value: one.values(outcome) for outcome in Outcome}


@pytest.mark.campaign
def test_a_failure_that_comes_and_goes_with_the_length_is_shrunk_to_its_first() -> None:
    found = shrunk(lambda k, **_: k.shape[2] % 32 == 16, Case(heads=2, seqlen_q=3, seqlen_k=48, head_dim=2))
    small = found.smallest
    assert found.complete and found.origin == "lse" and found.cause is not None
    # other lengths are right, so that the name by itself is withdrawn, and what was measured at this one stands; an out
    # of one number alone is not measured, so that head_dim stays above 1
    assert found.cause.measured and found.cause.text == "lse is in base 2, not in base e"
    assert (small.batch, small.heads, small.seqlen_q, small.seqlen_k, small.head_dim) == (1, 1, 1, 16, 2)
    at = boundary(found, "seqlen_k")
    assert at["passes"] == (*range(1, 16), 17, 18, 32) and at["fails"] == (16, 48)
    assert not next(one for one in found.boundaries if one.name == "seqlen_k").monotone
    assert "seqlen_k: fails at 16, 48; passes at 1 to 15, 17, 18, 32; not monotone" in str(found)


@pytest.mark.campaign
def test_a_failure_of_seven_query_heads_a_kv_head_keeps_seven() -> None:
    found = shrunk(lambda group, **_: group == 7, Case(heads=14, kv_heads=2, seqlen=9, head_dim=2, causal=True))
    small = found.smallest
    assert (small.heads, small.kv_heads, small.seqlen_q, small.causal) == (7, 1, 1, False)
    at = boundary(found, "group")
    assert at["fails"] == (7,) and at["passes"] == (1, 2, 3, 4, 5, 6, 8, 9)
    assert boundary(found, "causal") == {
        "fails": (False, True),
        "fails differently": (),
        "passes": (),
        "not applicable": (),
    }


@pytest.mark.campaign
def test_what_a_failure_needs_stays() -> None:
    case = Case(batch=2, seqlen=12, head_dim=2, causal=True, scale=0.3, seed=5, distribution="peaked", input_std=2.0)
    found = shrunk(lambda q, k, causal, **_: causal and k.shape[2] == q.shape[2] > 4, case)
    small = found.smallest
    # both lengths had to shrink together
    assert (small.batch, small.seqlen_q, small.seqlen_k, small.causal) == (1, 5, 5, True)
    assert (small.scale, small.seed, small.distribution, small.input_std) == (1.0, 0, "constant-v", 1.0)
    assert boundary(found, "causal")["passes"] == (False,)


@pytest.mark.campaign
def test_another_cause_at_smaller_lengths_is_not_taken_for_it() -> None:
    def kernel(q: Any, k: Any, v: Any, *, scale: float, causal: bool) -> Stages:
        stages = {**attention(q, k, v, scale=scale, causal=causal, bug=lambda **_: k.shape[2] > 7)}
        if k.shape[2] <= 7:
            stages["lse"] = -stages["lse"]
        return stages

    found = shrink(diff(run(kernel, Case(seqlen=12, head_dim=2))))
    assert found.smallest.seqlen_k == 8 and boundary(found, "seqlen_k")["fails differently"] == tuple(range(1, 8))


def test_a_cause_that_was_measured_stays_in_the_smallest_case() -> None:
    def kernel(q: Any, k: Any, v: Any, *, scale: float, causal: bool) -> Any:
        right = attention(q, k, v, scale=scale, causal=causal, bug=lambda **_: False)
        if k.shape[2] <= 24:  # another bug at small sizes, of the same stage and kind
            return right["out"][..., ::-1] + np.float32(1), right["lse"]
        row_max, acc = np.full((*q.shape[:3], 1), -np.inf, np.float32), np.zeros_like(right["out"])
        for first in range(0, k.shape[2], 8):
            scores = right["scores"][..., first : first + 8]
            higher = np.maximum(row_max, scores.max(-1, keepdims=True))
            correction = np.exp(row_max - higher) if first < 24 else np.float32(1)  # the bug
            acc, row_max = acc * correction + np.exp(scores - higher) @ v[:, :, first : first + 8], higher
        return acc / np.exp(right["lse"][..., None] - row_max), right["lse"]

    judged = diff(run(kernel, Case(seqlen=32, head_dim=8)))
    explained = judged.explain()
    (cause,) = explained.causes
    assert cause.measured and not cause.members[0].edits
    symptom = Symptom.of(judged, explained)
    smaller, other = (diff(run(kernel, Case(seqlen_q=4, seqlen_k=n, head_dim=8))) for n in (30, 20))
    assert (smaller.origin, kind(smaller)) == (other.origin, kind(other)) == ("out", symptom.kind)
    assert symptom.shows_in(smaller, Work(inf)) and not symptom.shows_in(other, Work(inf))
    found = shrink(judged, 0.05)
    assert found.cause is not None and found.cause.text == cause.text
    assert 24 < found.smallest.seqlen_k <= 32  # as far as it comes with little effort
    (again,) = by_measure(found.judged.run, ["out"], Work(inf))
    assert again.text == cause.text
    assert f"both cases: first wrong stage out; cause: {cause.text}\n" in str(found)
    # as of a formula, which tells nothing of other runs
    why = f"cause of the initial case only: {cause.text}"
    assert f"both cases: first wrong stage out ({symptom.kind}); {why}\n" in str(replace(found, cause=None))


@pytest.mark.campaign
def test_another_first_wrong_stage_is_not_taken_for_it() -> None:
    def kernel(q: Any, k: Any, v: Any, *, scale: float, causal: bool) -> Stages:
        stages = {**attention(q, k, v, scale=scale, causal=causal, bug=lambda **_: True)}
        if q.shape[2] < 5:
            stages["scores"] = stages["scores"] + np.float32(1)
        return stages

    assert shrink(diff(run(kernel, Case(seqlen=9, head_dim=2)))).smallest.seqlen_q == 5


@pytest.mark.campaign
def test_an_error_that_reaches_no_output_is_not_taken_for_one_that_does() -> None:
    def kernel(q: Any, k: Any, v: Any, *, scale: float, causal: bool) -> Stages:
        stages = {**attention(q, k, v, scale=scale, causal=causal, bug=lambda **_: False)}
        reaches = np.float32(k.shape[2] > 4)
        return stages | {"scores": stages["scores"] + np.float32(1), "lse": stages["lse"] + reaches}

    found = shrink(diff(run(kernel, Case(seqlen=7, head_dim=1))))
    assert found.origin == "scores" and found.smallest.seqlen_k == 5


@pytest.mark.campaign
def test_a_nan_that_nothing_explains_stays_a_nan() -> None:
    def kernel(q: Any, k: Any, v: Any, *, scale: float, causal: bool) -> Stages:
        stages = {**attention(q, k, v, scale=scale, causal=causal, bug=lambda **_: False)}
        wrong = np.array(stages["out"])
        odd = np.rint(1024 * abs(v).sum((-2, -1))) % 2 == 1  # which no reading has
        wrong[..., ::3, -1] = np.where(odd | (k.shape[2] < 5), np.nan, 7.7)[..., None] if k.shape[2] >= 3 else 7.7
        return stages | {"out": wrong}

    found = shrink(diff(run(kernel, Case(seqlen=5, head_dim=1))), 0.5)
    assert found.cause is None and found.kind == "non-finite on one side"
    assert found.smallest.seqlen_k == 3
    assert "both cases: first wrong stage out (non-finite on one side); no cause found\n" in str(found)


@pytest.mark.campaign
def test_a_failure_in_some_runs_is_judged_by_the_majority() -> None:
    calls: Counter[int] = Counter()

    def bug(k: Any, **_: Any) -> bool:
        calls[k.shape[2]] += 1
        turn = calls[k.shape[2]] % 4
        return turn > 0 if k.shape[2] >= 2 else turn == 1  # three times of four, and at short lengths once

    def kernel(q: Any, k: Any, v: Any, *, scale: float, causal: bool) -> Stages:
        return attention(q, k, v, scale=scale, causal=causal, bug=bug)

    found = shrink(diff(run(kernel, Case(seqlen=3, head_dim=1))), 1.0)
    assert found.majority and found.smallest.seqlen_k == 2 and found.judged.origin == "lse"
    assert 3 <= found.failed < found.runs == 5
    assert f"failed in {found.failed} of 5 runs on the same inputs" in str(found)


@pytest.mark.campaign
def test_a_failure_that_seldom_comes_again_is_refused() -> None:
    first = iter([True])

    def kernel(q: Any, k: Any, v: Any, *, scale: float, causal: bool) -> Stages:
        return attention(q, k, v, scale=scale, causal=causal, bug=lambda **_: next(first, False))

    with pytest.raises(Refusal, match="at least half of its runs; .* lse was wrong first in 0 of 5"):
        shrink(diff(run(kernel, Case(seqlen=20, head_dim=8))))


@pytest.mark.campaign
def test_what_cannot_be_shrunk_is_refused_with_the_reason() -> None:
    right = stored("flash", Case(seqlen=20, head_dim=16, block_q=16, block_k=16))
    with pytest.raises(Refusal, match="this run has none .verdict: rounding"):
        shrink(diff(right))
    case = Case(seqlen=20, head_dim=16, block_q=16, block_k=16)
    q, k, v = case.inputs()
    faulty: dict[str, Any] = {"faults": ["flash-lse-base-2"], "backend": "emulator"}
    with pytest.raises(Refusal, match="must run other cases, but the inputs of this run are given"):
        shrink(diff(stored("flash", case, inputs=(q, k, v), **faulty)))
    with pytest.raises(Refusal, match="a part of a run cannot be shrunk"):
        shrink(diff(stored("flash", case, where="q=3", **faulty)))


@pytest.mark.campaign
def test_a_kernel_of_ours_comes_down_to_the_smallest_tiles() -> None:
    case = Case(heads=2, seqlen=100, head_dim=16, block_q=16, block_k=32, seed=3)
    start = diff(run("flash", case, faults=["flash-lse-base-2"], backend="emulator"))
    found = shrink(start)
    small = found.smallest
    assert found.judged.origin == found.origin == start.origin == "lse" and found.cause is not None
    assert (small.heads, small.seqlen_q, small.head_dim, small.block_q, small.block_k) == (1, 1, 1, 16, 16)
    assert elements(small) <= elements(case) // 100
    from workbench.judge.explain.scene import Scene

    assert holds(Scene.of(found.judged.run), found.cause.members[0], elsewhere=True) is True
    # its inputs are plain numbers, and all else is as it was
    assert found.inputs is not None and all(np.all(x == np.rint(x)) for x in found.inputs.values())
    again = run("flash", small, faults=["flash-lse-base-2"], backend="emulator", inputs=found.inputs)
    assert diff(again).origin == "lse"
    assert diff(run("flash", small, backend="emulator", inputs=found.inputs)).origin is None


def test_an_effort_that_is_spent_gives_the_best_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    found = shrunk(lambda k, **_: k.shape[2] % 128 == 64, Case(seqlen=192, head_dim=8), effort=0.01)
    assert not found.complete and found.ended == "effort"
    assert found.judged.origin == "lse" and elements(found.smallest) <= elements(found.start.trace.case)
    assert "more are left: --effort 10 tries ten times as many" in str(found)


@pytest.mark.campaign
def test_ctrl_c_gives_the_best_so_far() -> None:
    runs = iter(range(10**6))

    def kernel(q: Any, k: Any, v: Any, *, scale: float, causal: bool) -> Stages:
        if next(runs) == 40:
            raise KeyboardInterrupt
        return attention(q, k, v, scale=scale, causal=causal, bug=lambda **_: k.shape[2] >= 30)

    found = shrink(diff(run(kernel, Case(heads=3, seqlen=100, head_dim=8))))
    assert found.ended == "interrupt" and found.judged.origin == "lse"
    assert elements(found.smallest) < elements(found.start.trace.case)


SOME = Case(
    heads=4, kv_heads=2, seqlens_q=(3, 5, 2), seqlens_k=(9, 4, 6), head_dim=4, head_dim_v=3, sinks=(1.0, 2.0, 3.0, 4.0),
    alibi_slopes="geometric", alibi_form="column", dropout_p=0.25, page_size=4,
)  # fmt: skip


def by_rule(rule: Callable[[Case], bool], start: Case = SOME) -> Case:
    """The smallest case that was found, of a failure that is a rule on cases."""
    recorded = Recorded(start, rule)
    attempts: Any = recorded
    descend(attempts, tiled=False)
    return recorded.best


def test_what_a_failure_does_not_need_of_a_case_is_dropped() -> None:
    plain = Case(seqlen=1, head_dim=1, distribution="constant-v")
    assert by_rule(lambda case: True) == plain
    assert by_rule(lambda case: case.dropout_p is not None) == plain.but(dropout_p=0.25)
    assert by_rule(lambda case: case.alibi_slopes is not None) == plain.but(alibi_slopes="geometric")
    assert by_rule(lambda case: case.head_dim_v == 3) == plain.but(head_dim_v=3)
    # sinks of the heads that are left
    assert by_rule(lambda case: case.sinks is not None and case.heads > 1) == plain.but(
        heads=2, kv_heads=2, sinks=(1.0, 2.0)
    )
    assert by_rule(lambda case: case.page_size is not None and case.heads > case.kv_heads).sinks is None


def test_sequences_become_fewer_and_shorter() -> None:
    small = by_rule(
        lambda case: case.ragged and any(k > q + 1 for q, k in zip(case.lengths_q, case.lengths_k, strict=True))
    )
    assert (small.seqlens_q, small.seqlens_k, small.batch) == (None, (3,), 1)
    small = by_rule(lambda case: case.ragged and case.lengths_k[-1] > case.lengths_k[-2:][0] and case.batch > 1)
    assert (small.seqlens_k, small.batch, small.seqlen_q, small.page_size) == ((1, 2), 2, 1, None)
    small = by_rule(lambda case: case.ragged and sorted(case.lengths_q)[0] != sorted(case.lengths_q)[-1] == 5)
    assert small.seqlens_q in ((5, 1), (1, 5)) and small.seqlens_k is None and small.seqlen_k == 1


class Recorded:
    """Attempts whose runs are a rule, and are recorded."""

    late = False

    def __init__(self, best: Case, rule: Callable[[Case], bool]) -> None:
        self.best, self.rule, self.tried = best, rule, list[Case]()

    def outcome(self, **changes: Any) -> Outcome:
        try:
            self.tried.append(changed(self.best, **changes))
        except Refusal:
            return Outcome.REFUSED
        return Outcome.FAILS if self.rule(self.tried[-1]) else Outcome.PASSES

    def fails(self, **changes: Any) -> bool:
        if self.outcome(**changes) is not Outcome.FAILS:
            return False
        self.best = self.tried[-1]
        return True


def test_hypothesis_begins_at_the_start_and_writes_no_file(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    start = Case(batch=2, heads=6, kv_heads=2, seqlen_q=150, seqlen_k=200, causal=True)
    recorded: Any = Recorded(start, lambda case: case.seqlen_k >= 65 and case.heads // case.kv_heads >= 2)
    by_hypothesis(recorded, axes(start, tiled=False))
    assert recorded.tried[0] == start and not list(tmp_path.iterdir())
    assert recorded.best == start.but(
        batch=1, heads=2, kv_heads=1, seqlen_q=1, seqlen_k=65, head_dim=1, scale=1.0, causal=False
    )
    # its shrinker goes down by halves, not by ones
    assert len(recorded.tried) < 200


def test_coordinates_make_the_case_again() -> None:
    cases = (
        Case(batch=2, heads=6, kv_heads=3, seqlen_q=5, seqlen_k=9, causal=True, causal_alignment="top-left"),
        Case(head_dim=24, window=(16, 3), softcap=5.0, splits=3, seed=7, distribution="peaked", input_std=2.0),
        Case(window=(4, -1), scale=0.3),
        SOME,
        Case(batch=2, seqlens_k=(3, 4), seqlen=9, shared_kv=True, head_dim=6, head_dim_v=2, scale=0.5, pack_gqa=True),
    )
    for case in cases:
        assert changed(case, **coordinates(case)) == case
        for name, values in axes(case, tiled=True).items():
            assert values[-1] == coordinates(case)[name], name
    assert changed(cases[1], head_dim=16).scale == 0.25 and changed(cases[2], head_dim=16).scale == cases[2].scale
    assert changed(SOME, kv_heads=1).sinks == (1.0, 2.0) and changed(SOME, head_dim_v=None).head_dim_v == 4
    assert changed(SOME, seqlens_q=(2, 1), seqlens_k=(3, 1)) == SOME.but(
        batch=2, seqlens_q=(2, 1), seqlens_k=(3, 1), seqlen_q=2, seqlen_k=3
    )
    # no rows behind the end of a sequence, and v is not counted twice
    assert elements(SOME) == 10 * 4 * 4 + 19 * 2 * (4 + 3) and elements(cases[-1]) == 18 * 6 + 7 * 6
    assert changed(cases[1], window_left=2).window == (2, 3) and changed(cases[1], window=False).window is None


def test_what_is_tried_below_a_count_holds_small_ones_and_equal_remainders() -> None:
    found = list(below(448, range(1, 449)))
    assert found == sorted(found) and {*range(1, 65), 448 % 256, 448 % 256 - 128} <= {*found} and 448 not in found
    assert list(below(1, range(1, 449))) == [] and list(below("b", "abc")) == ["a"]
