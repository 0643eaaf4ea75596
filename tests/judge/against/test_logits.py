"""The share of each call in the final difference of logits, of models whose shares are known, and of the toy."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.refusals import invoked
from tests.report.page.test_page import text_of
from workbench import Refusal, capture, compare_runs
from workbench.judge.against.logits import shares_in_logits
from workbench.report.runs import percent

UNITS = np.eye(4)


def linear(calls: str, rest: str) -> np.ndarray:
    """Call i moves the logits by i + 1 along an axis of its own, what is around the calls by 2 along another."""
    made = sum(((i + 1) * UNITS[i] for i, side in enumerate(calls) if side == "B"), np.zeros(4))
    return made + (2 * UNITS[3] if rest == "B" else 0)


def test_of_a_linear_model_all_ways_of_replacing_agree() -> None:
    found = shares_in_logits(linear, 3)
    square = 1 + 4 + 9 + 4
    assert (found.largest, found.difference, found.repeats) == (3, (square / 4) ** 0.5, 0)
    for i, one in enumerate(found.calls):
        assert np.allclose((one.alone, one.front, one.back), (i + 1) ** 2 / square, rtol=1e-14)
    assert np.allclose((found.rest, found.interaction, found.orders), (4 / square, 0, 0), atol=1e-14)
    assert np.isclose(found.attention + found.rest, 1, rtol=1e-14)


def test_what_calls_make_together_is_interaction_and_goes_to_the_later_one() -> None:
    # call 0 alone moves by 1, 1 and 2 together by 3 along the same axis, and neither of these alone
    found = shares_in_logits(lambda calls, rest: np.array([(calls[0] == "B") + 3.0 * (calls[1:] == "BB")]), 3)
    assert [one.alone for one in found.calls] == [0.25, 0, 0]
    assert [one.front for one in found.calls] == [0.25, 0, 0.75] and [one.back for one in found.calls] == [
        0.25,
        0.75,
        0,
    ]
    assert (found.interaction, found.orders, found.rest) == (0.75, 0.75, 0)


def test_each_way_is_asked_once_and_what_does_not_repeat_is_told() -> None:
    asked: list[str] = []

    def model(calls: str, rest: str) -> np.ndarray:
        asked.append(calls + rest)
        return linear(calls, rest) + 1e-3 * (len(asked) == 2)

    found = shares_in_logits(model, 4)
    assert len(asked) == 3 * 4 and len({*asked}) == len(asked) - 1 and asked.count("AAAAA") == 2
    assert np.isclose(found.repeats, 1e-3)
    assert [one for one in asked if one.endswith("B")] == ["BBBBB"], "what is around the calls only with all of B"


def test_logits_that_are_the_same_have_no_shares() -> None:
    found = shares_in_logits(lambda calls, rest: np.ones(3), 2)
    assert (found.difference, found.attention, found.rest, found.interaction) == (0, 0, 0, 0)


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (lambda calls, rest: np.array([np.nan, 1.0]), r'model\("AA", "A"\) returned 1 finite logits of 2'),
        (lambda calls, rest: np.ones(1 + (calls == "AB")), r'model\("AB", "A"\) returned logits of shape \[2\]'),
        (lambda calls, rest: np.ones(0), "returned 0 finite logits of 0"),
    ],
)
def test_logits_of_which_nothing_can_be_said_are_refused(model: Any, said: str) -> None:
    with pytest.raises(Refusal, match=said):
        shares_in_logits(model, 2)


torch = pytest.importorskip("torch", reason="torch is not installed")
from tests.explore.capturing import toy  # noqa: E402 - needs torch

SCALE = toy.DIM**-0.5


def attention(side: str, layer: int, how: str) -> Any:
    """What a side calls in a layer: B has another scale in layer 7, or probs in bfloat16."""
    if how == "wrong":
        return lambda q, k, v: toy.by_hand(q, k, v, scale=0.3 if (side, layer) == ("B", 7) else SCALE)
    return lambda q, k, v: toy.by_hand(q, k, v, probs_dtype=torch.bfloat16 if side == "B" else torch.float32)


def run(sides: str, how: str, watched: Any = None) -> Any:
    """The last hidden states of the toy."""
    layers = iter(range(toy.LAYERS))

    def attend(q: Any, k: Any, v: Any) -> Any:
        layer = next(layers)
        call = attention(sides[layer], layer, how)
        return call(q, k, v) if watched is None else watched(call, q, k, v)

    return toy.forward(toy.tokens(), toy.weights(), attend)


def captured(folder: Path, side: str, how: str) -> Path:
    contract = {"probs_dtype": "bfloat16"} if (side, how) == ("B", "narrow") else None
    told = lambda call, q, k, v: toy.spec(q, k, v)  # noqa: E731
    with capture(lambda call, q, k, v: call(q, k, v), folder, spec=told, keep="all", contract=contract) as c:
        run(side * toy.LAYERS, how, c.function)
    return folder


def both(folder: Path, how: str) -> Any:
    sides = [captured(folder / side, side, how) for side in "AB"]
    return compare_runs(*sides, model=lambda calls, rest: run(calls, how))


def test_a_wrong_scale_in_layer_7_is_all_of_the_difference_of_the_logits(tmp_path: Path) -> None:
    found = both(tmp_path, "wrong")
    assert found.verdict == "bug" and found.first.call == 7 and found.causes["B"].stage == "scores"
    logits = found.logits
    for i, one in enumerate(logits.calls):
        assert np.allclose((one.alone, one.front, one.back), float(i == 7), atol=1e-12)
    assert abs(logits.interaction) < 1e-12 and logits.rest == 0 and logits.repeats == 0
    page = tmp_path / "two.html"
    found.save_html(page)
    said = text_of(page.read_text())
    assert "B leaves its budget at call 7: out" in said and "cause, in scores: scores are multiplied by 1.2" in said
    assert "100 % calls, each replaced alone; call 7 most, 100 %" in said


@pytest.mark.campaign
def test_narrow_probs_are_rounding_whose_share_and_interaction_are_named(tmp_path: Path) -> None:
    found = both(tmp_path, "narrow")
    logits = found.logits
    assert found.verdict == "rounding" and found.first is None
    assert np.isclose(sum(one.front for one in logits.calls), 1) and np.isclose(
        sum(one.back for one in logits.calls), 1
    )
    # 0.38 and 0.40: what bfloat16 rounds off call 0 makes later calls round otherwise
    assert logits.rest == 0 and 0.05 < logits.interaction < 0.9 and 0.05 < logits.orders < 0.9
    assert all(abs(one.alone) < 0.9 for one in logits.calls), "it comes from several layers"
    text = str(found)
    assert " 100 %  bfloat16 probs of B" in text and "interaction: goes to another, left out in the other order" in text
    assert f" {percent(logits.interaction)}  interaction: what calls make together, which none makes alone" in text
    assert "what is around the calls, and no attention" in text


def test_calls_that_were_not_all_captured_are_refused(tmp_path: Path) -> None:
    side = captured(tmp_path / "A", "A", "wrong")
    (side / "calls/000003.safetensors").unlink()
    with pytest.raises(
        Refusal, match="the model makes every call by A or B, and both have calls 0, 1, 2, 4, 5 and 6 more alone"
    ):
        compare_runs(side, side, model=lambda calls, rest: run(calls, "wrong"))


def test_the_command_line_takes_the_model_and_writes_a_page(tmp_path: Path) -> None:
    side = captured(tmp_path / "A", "A", "wrong")
    model = tmp_path / "mine.py"
    model.write_text("def model(calls, rest):\n    import numpy\n    return numpy.array([float(calls.count('B'))])\n")
    page = tmp_path / "two.html"
    given = ["compare-runs", side, side, "--model", f"{model}:model"]
    result = invoked(*given, "--html", page)
    assert result.exit_code == 0 and result.stdout.splitlines()[-1] == f"page: {page}"
    assert "Call 11" in text_of(page.read_text())
    told = json.loads(invoked(*given, "--json").stdout)
    assert len(told["logits"]["calls"]) == toy.LAYERS and np.isclose(told["logits"]["calls"][3]["alone"], 1 / 12)
