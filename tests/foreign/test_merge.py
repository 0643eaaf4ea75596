"""Merges of ranks: right ones are right in every order, base and dtype; each fault is named with its cause."""

import json
import re
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from campaigns.merges.correct import MERGES, Array, by_division, by_lse, by_shares, finite, without_keys
from campaigns.merges.faulty import takes_natural_for_base2
from workbench import Case, Refusal, diff, load, run, save
from workbench.judge.diff import Diff
from workbench.report.document import explained_document
from workbench.report.text import in_full
from workbench.report.values import definition

CASE = Case(heads=2, kv_heads=1, seqlen_q=24, seqlen_k=24, head_dim=16, causal=True)
INF = np.inf


def seen_by(case: Case, **options: Any) -> tuple[Array, Array]:
    """The outs and lses that a merge is given."""
    found: list[Array] = []

    def merge(outs: Array, lses: Array) -> Array:
        found[:] = [outs, lses]
        return outs[0]

    run(merge, case, **options)
    return found[0], found[1]


@pytest.mark.parametrize("merge", MERGES, ids=lambda merge: merge.__name__)
@pytest.mark.parametrize("empty", [-INF, INF])
def test_ranks_whose_keys_are_all_masked_are_right(merge: Any, empty: float) -> None:
    case = CASE.but(seqlen_q=32, splits=4)  # the first 8 queries see no key of any rank, and rank 3 is seen by 6 alone
    with np.errstate(all="ignore"):
        found = diff(run(merge, case, contract={"empty_lse": empty}))
    assert found.verdict == "rounding"
    _, lses = seen_by(case, contract={"empty_lse": empty})
    assert (lses == empty).all(0)[..., :8].all() and (lses[3] == empty).sum() == 2 * 26


def test_what_a_merge_is_given() -> None:
    outs, lses = seen_by(CASE.but(causal=False), contract={"split_bounds": [0, 5, 5, 24]})
    assert (outs.shape, lses.shape, lses.dtype) == ((3, 1, 2, 24, 16), (3, 1, 2, 24), np.float32)
    assert np.all(lses[1] == -INF) and np.all(outs[1] == 0) and np.isfinite(lses[[0, 2]]).all()
    turned = {"split_bounds": [0, 5, 5, 24], "tile_order": [2, 0, 1], "base2": True}
    outs2, lses2 = seen_by(CASE.but(causal=False), contract=turned)
    assert np.array_equal(outs2, outs[[2, 0, 1]])
    kept = [0, 2]
    assert np.all(abs(lses2[[1, 0]] * np.log(2) - lses[kept]) <= 1e-6 * abs(lses[kept]))
    bshd, _ = seen_by(CASE.but(causal=False), contract={"split_bounds": [0, 5, 5, 24]}, layout="bshd")
    assert np.array_equal(bshd, outs.swapaxes(2, 3))
    narrow, _ = seen_by(CASE, contract={"partials_dtype": "float16"})
    assert narrow.dtype == np.float16 and narrow.shape[0] == 4


def test_weights_that_add_up_to_1_are_judged_as_such() -> None:
    for merge in (by_shares, by_lse):
        assert run(merge, CASE).contract.normalisation == "lse"

    def halved(outs: Array, lses: Array) -> Any:
        found = dict(by_shares(outs, lses))
        return found | {"merge_weight": found["merge_weight"] * np.float32(1.0001)}

    found = diff(run(halved, CASE))
    assert found.origin == "merge_weight" and found["merge_weight"].worst()[0].over_budget > 10
    assert run(by_division, CASE).contract.normalisation == "division"


def test_weights_are_those_of_ranks_in_whatever_order_they_come() -> None:
    def swaps(outs: Array, lses: Array) -> Any:
        found = dict(by_division(outs, lses))
        found["merge_weight"] = found["merge_weight"].copy()
        found["merge_weight"][0] *= 2  # of the rank that comes first
        return {"merge_weight": found["merge_weight"]}

    found = diff(run(swaps, CASE.but(causal=False), contract={"tile_order": [2, 0, 3, 1]}))
    assert [*np.flatnonzero(found["merge_weight"].profile("s").outside)] == [2]


def doubles_the_second(outs: Array, lses: Array) -> Any:
    """A fault that no hypothesis has: at some queries and dims of one rank alone."""
    outs = outs.copy()
    outs[1, :, :, ::3, 2:5] *= np.float32(2.5)
    return by_division(outs, lses)


def said(judged: Diff) -> dict[str, str]:
    """All that is said of a run, by what says it."""
    explained = judged.explain()
    (axis,) = (one for one in judged.heatmap("merge_weight", axes=("s", "q")).axes if one.get_ylabel())
    return {
        "text": str(judged),
        "-v": in_full(judged),
        "HTML": judged._repr_html_(),
        "JSON": json.dumps({**judged.as_dict(), "case": None, "contract": None, "provenance": None}),
        "explain": str(explained),
        "explain --json": json.dumps({**explained_document(explained), "case": None}),
        "elements": str(judged["merge_weight"].select(q=slice(0, 24), h=slice(0, 2), s=1)),
        "truth": str(judged.truth("merge_weight", q=slice(0, 24), h=slice(0, 2), s=1)),
        "picture": axis.get_ylabel(),
        "definition": definition(judged.run, "merge_weight"),
    }


@pytest.mark.campaign(but=1)
@pytest.mark.parametrize("merge", [takes_natural_for_base2, doubles_the_second])
def test_all_outputs_say_rank(merge: Any) -> None:
    judged = diff(run(merge, CASE))
    assert judged.verdict == "bug"
    found = said(judged)
    found["HTML"] = re.sub(r"<script>.*?</script>|&lt;script&gt;.*?&lt;/script&gt;", "", found["HTML"], flags=re.DOTALL)
    named = {name: re.sub(r'"splits":|splits=', "", text) for name, text in found.items()}  # fields and options
    assert {name: re.findall(r"[^ ]* *split[^ ]*", text) for name, text in named.items() if "split" in text} == {}
    assert "4 ranks" in found["text"] and "rank s=1" in found["elements"] and found["picture"] == "rank"
    if merge is takes_natural_for_base2:
        words = "lse of each rank is read as base 2"
        assert all(words in found[name] for name in ("text", "-v", "HTML", "JSON", "explain", "explain --json"))


@pytest.mark.campaign
def test_what_no_ranks_have_are_splits(tmp_path: Path) -> None:
    """Nor is what somebody else wrote changed: a line of a file stands as it is there."""
    path = tmp_path / "mine.py"
    path.write_text(
        "import numpy as np\n"
        "def merge(outs, lses):\n"
        '    made = {"out": outs.sum(0)}  # of every split\n'
        "    return made\n"
    )
    assert "# of every split" in str(diff(run(f"{path}:merge", CASE)))
    ours = diff(run("split_k", Case(seqlen=20, head_dim=8, splits=2), backend="emulator"))
    assert "2 splits" in str(ours) and "split 0" not in str(ours) and "rank" not in in_full(ours)


def test_inputs_are_drawn_once(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = Case.inputs
    calls: list[Case] = []
    monkeypatch.setattr(Case, "inputs", lambda case: [calls.append(case), drawn(case)][1])
    trace = run(by_division, CASE)
    assert len(calls) == 1 and trace.case.distribution == "normal"
    assert trace.rerun is not None and trace.rerun(trace.case.but(seed=1)).inputs["q"].shape == trace.inputs["q"].shape


def test_a_saved_trace_knows_its_ranks(tmp_path: Path) -> None:
    trace = run(by_division, CASE, contract={"tile_order": "descending"})
    save(trace, tmp_path / "trace.safetensors")
    assert load(tmp_path / "trace.safetensors").ranks == trace.ranks != ()


def test_part_of_a_run_and_torch() -> None:
    found = diff(run(by_division, CASE, where="h=1,q=4:9"))
    assert found.verdict == "rounding" and found["out"].judged.actual.shape == (1, 1, 5, 16)
    torch = pytest.importorskip("torch")

    def merge(outs: Any, lses: Any) -> Any:
        weight = torch.softmax(lses, 0)
        return (weight[..., None] * outs).sum(0), lses.logsumexp(0)

    case = CASE.but(causal=False, dtype="bfloat16")
    assert diff(run(merge, case, arrays="torch", contract={"partials_dtype": "float32"})).verdict == "rounding"


def test_a_mask_among_the_inputs_is_the_partials_own() -> None:
    mask = np.random.default_rng(3).random((24, 24)) < 0.5
    inputs = dict(zip("qkv", CASE.inputs(), strict=True)) | {"mask": mask}
    with np.errstate(divide="ignore"):
        assert diff(run(by_division, CASE, inputs=inputs)).verdict == "rounding"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"feed": {"partial_O": "reference"}}, "is a merge, whose outs and lses are computed: partial_O cannot be fed"),
        ({"contract": "row_max=running"}, "in place of each maximum: declare row_max=\"upper_bound\"; got 'running'"),
        ({"contract": "tile_order=[0,1]"}, r"tile_order must list the 4 ranks of this case; got \[0, 1\]"),
        ({"contract": "split_bounds=[0,5]"}, "split_bounds must end with 24"),
    ],
)
def test_what_does_not_fit_a_merge_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(Refusal, match=message):
        run(by_division, CASE, **options)


def test_what_is_no_result_of_a_merge_is_refused() -> None:
    with pytest.raises(Refusal, match="a merge returns merge_max, merge_weight, merge_sum, out, lse; got partial_max"):
        run(lambda outs, lses: {"partial_max": lses}, CASE)
    with pytest.raises(
        Refusal, match=r"merge_weight must have the shape of lses, \[4, 1, 2, 24\]; got \[1, 2, 4, 24\]"
    ):
        run(lambda outs, lses: {"merge_weight": np.moveaxis(lses, 0, 2)}, CASE)
    with pytest.raises(Refusal, match="reads no quantised codes"):
        run(by_division, CASE.but(codes="e4m3"))


def test_the_one_of_several_callables_is_known_by_its_parameters() -> None:
    class Merge:
        def __call__(self, outs: Array, lses: Array) -> Array:
            top = without_keys(lses).max(0)
            weight = np.exp(lses - finite(top))
            return (weight[..., None] * outs).sum(0) / weight.sum(0)[..., None]

    case = CASE.but(causal=False)
    assert diff(run(Merge(), case)).verdict == "rounding"
    assert diff(run(partial(by_division), case)).verdict == "rounding"
