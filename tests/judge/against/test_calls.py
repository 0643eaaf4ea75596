"""Two runs of a transformer of 12 layers, held against each other call by call."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from tests.report.page.test_page import text_of
from workbench import Refusal, capture, compare_runs, load
from workbench.cli.main import commands
from workbench.judge.against.calls import _calls
from workbench.judge.against.runs import Runs

torch = pytest.importorskip("torch", reason="torch is not installed")
from tests.explore.capturing import toy  # noqa: E402 - needs torch

BF16 = {"probs_dtype": "bfloat16"}


def captured(folder: Path, attend: Any, contract: Any = None, spec: Any = toy.spec, dtype: Any = torch.float32) -> Path:
    """The folder of one run of the toy, all of whose calls are kept."""
    layers = [{name: x.to(dtype) for name, x in layer.items()} for layer in toy.weights()]
    with capture(attend, folder, spec=spec, keep="all", contract=contract) as c:
        toy.forward(toy.tokens().to(dtype), layers, c.function)
    assert c.report.judged == toy.LAYERS
    return folder


def at_layer(layer: int, **wrong: Any) -> Any:
    """Attention by hand, which is wrong in one layer."""
    calls = iter(range(10**6))
    return lambda q, k, v: toy.by_hand(q, k, v, **(wrong if next(calls) == layer else {}))


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return captured(tmp_path_factory.mktemp("plain"), partial_of())


def partial_of(**how: Any) -> Any:
    """Attention by hand, as a function with a name."""
    return lambda q, k, v: toy.by_hand(q, k, v, **how)


@pytest.fixture(scope="module")
def wrong(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return captured(tmp_path_factory.mktemp("wrong"), at_layer(7, scale=0.3))


def test_a_wrong_scale_in_layer_7_of_one_side_is_layer_7_and_scores(plain: Path, wrong: Path, tmp_path: Path) -> None:
    found = compare_runs(plain, wrong)
    assert found.verdict == "bug" and found.first.call == 7
    assert [pair.wrong for pair in found.pairs] == [("B",) if pair.call == 7 else () for pair in found.pairs]
    assert [pair.call for pair in found.pairs if pair.own > 1e-5] == [7], "what comes later is carried"
    assert all(pair.carried > 1e-3 for pair in found.pairs[8:])
    assert found.pairs[7].b.stage == "out" and found.causes["B"].stage == "scores"
    assert found.causes["B"].text == "scores are multiplied by 1.2"
    text = str(found)
    assert "A is within its budget in all 12 calls" in text and "B is over budget first at call 7: out" in text
    assert "cause, in scores: scores are multiplied by 1.2" in text
    found.save_html(tmp_path / "two.html")
    page = text_of((tmp_path / "two.html").read_text())
    assert "B is over budget first at call 7: out" in page and "cause, in scores: scores are multiplied by 1.2" in page


@pytest.mark.campaign(but=1)
@pytest.mark.parametrize("declared", [True, False])
def test_probs_in_bfloat16_on_one_side_are_no_bug_and_named(declared: bool, tmp_path: Path) -> None:
    sides = []
    for name in ("float32", "bfloat16"):
        attend = partial_of(probs_dtype=getattr(torch, name))
        contract = {"probs_dtype": name} if declared else None
        sides.append(captured(tmp_path / name, attend, contract, dtype=torch.bfloat16))
    found = compare_runs(*sides)
    assert found.verdict == "rounding" and not found.causes and found.first is None
    shares = {one.words: one.share for one in found.shares}
    # out in bfloat16 has as large errors as probs in it, on both sides
    assert 0.05 < shares["bfloat16 probs of B"] < 0.9
    assert sum(shares.values()) > 0.9
    assert "bfloat16 probs of A" not in shares


def test_of_float32_the_probs_of_one_side_are_all_of_the_difference(plain: Path, tmp_path: Path) -> None:
    narrow = captured(tmp_path / "b", partial_of(probs_dtype=torch.bfloat16), BF16)
    found = compare_runs(plain, narrow)
    assert found.verdict == "rounding"
    ((share),) = found.shares
    assert share.words == "bfloat16 probs of B" and 0.99 < share.share < 1.01 and share.interaction < 0.01
    text = str(found)
    assert "both are within budget in all 12 calls" in text and " 100 %  bfloat16 probs of B" in text
    assert "interaction: depends on the order in which the sources are removed" in text


def test_a_rounding_that_did_not_happen_has_no_share(plain: Path, tmp_path: Path) -> None:
    split = captured(tmp_path / "b", partial_of(splits=3), {"splits": 3, "block_k": 16, **BF16})
    found = {one.words: one.share for one in compare_runs(plain, split).shares}
    # a cast of probs would be a thousand times the difference, and nothing like it
    assert {*found} <= {"the split of keys into 3 of B"} and all(abs(share) < 1 for share in found.values())


def test_two_that_ask_different_things_part_there(plain: Path, tmp_path: Path) -> None:
    calls = iter(range(100))

    def told(q: Any, k: Any, v: Any) -> dict[str, Any]:
        return toy.spec(q, k, v) | ({"scale": 0.3} if next(calls) == 7 else {})

    found = compare_runs(plain, captured(tmp_path / "b", at_layer(7, scale=0.3), spec=told))
    assert found.verdict == "diverges" and found.first.call == 7
    assert found.first.asked == {"scale": ("0.25", "0.3")} and not found.first.wrong
    assert "the calls differ in what they compute, first at call 7: scale is 0.25 in A, 0.3 in B" in str(found)


def test_the_same_run_twice_is_identical(plain: Path) -> None:
    found = compare_runs(plain, plain)
    assert found.verdict == "identical" and "bit-identical in all 12 calls" in str(found)


@pytest.mark.campaign
def test_the_command_line_finds_a_wrong_call(plain: Path, wrong: Path) -> None:
    shown = CliRunner().invoke(commands, ["compare-runs", str(wrong), str(plain), "--json"])
    told = json.loads(shown.stdout)
    assert (shown.exit_code, told["schema"]) == (1, "workbench.compare-runs/1")
    assert (told["verdict"], told["first"], told["causes"]["A"]["stage"]) == ("bug", 7, "scores")
    assert len(told["calls"]) == 12 and told["calls"][7]["wrong"] == ["A"]


def test_the_command_line(plain: Path, tmp_path: Path) -> None:
    page = tmp_path / "two.html"
    shown = CliRunner().invoke(commands, ["compare-runs", str(plain), str(plain), "--html", str(page)])
    assert shown.exit_code == 0 and "bit-identical in all 12 calls" in shown.stdout
    assert shown.stdout.splitlines()[-1] == f"page: {page}" and "Call 11" in text_of(page.read_text())
    told = json.loads(CliRunner().invoke(commands, ["compare-runs", str(plain), str(plain), "--json"]).stdout)
    assert told["schema"] == "workbench.compare-runs/1" and len(told["calls"]) == 12


def test_what_is_no_pair_is_refused_or_told(plain: Path, tmp_path: Path) -> None:
    traces = {call: load(plain / f"calls/00000{call}.safetensors") for call in (3, 4)}
    assert [pair.call for pair in compare_runs(traces, plain).pairs] == [3, 4]
    assert "B" not in "".join(compare_runs(traces, traces).alone)
    with pytest.raises(Refusal, match="no call in common"):
        compare_runs({3: traces[3]}, {4: traces[4]})
    with pytest.raises(Refusal, match='keep="all"'):
        compare_runs(tmp_path, plain)
    short = captured_short(tmp_path / "short")
    with pytest.raises(Refusal, match="call 0 has different shapes"):
        compare_runs(plain, short)


def captured_short(folder: Path) -> Path:
    with capture(partial_of(), folder, spec=toy.spec, keep="all") as c:
        toy.forward(toy.tokens(count=8), toy.weights(), c.function)
    return folder


def test_nothing_that_could_not_be_judged_is_called_right(plain: Path) -> None:
    calls = {call: load_one() for call, load_one in _calls(plain).items()}
    # a budget that says nothing: probs in a dtype of no digits
    from dataclasses import replace

    vacuous = {call: replace(one, contract=replace(one.contract, exp_ulps=1e9)) for call, one in calls.items()}
    found = compare_runs(vacuous, plain)
    assert found.verdict == "untestable" and "untestable: some calls could not be judged on both sides" in str(found)
    assert isinstance(found, Runs) and np.isfinite(found.pairs[0].largest)
