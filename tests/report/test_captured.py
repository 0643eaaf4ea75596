"""What a capture says of its calls."""

from dataclasses import replace

import pytest

from workbench.explore.capturing.report import Report
from workbench.explore.capturing.verdict import Judged

RIGHT = Judged(4, "rounding", False, None, 0.3, 1e-6, {})
FOUND = Report("mine", "seen", 15, 15, 15, {}, {}, 0, 0, RIGHT, None, (), 0.1, 0.1)
INPUTS = "every call is right given its inputs; wrong inputs (cache, rotation, an earlier layer) would not show"


def said(found: Report, begins: str) -> list[str]:
    return [line for line in str(found).splitlines() if line.startswith(begins)]


@pytest.mark.parametrize(
    ("judged", "doubted", "words"),
    [
        (100, 2, "suspicious: 2 of 100 judged calls are over their statistical budget; a few such calls are normal"),
        (
            15,
            15,
            "suspicious: 15 of 15 judged calls are over their statistical budget: chance does not explain so many",
        ),
        (
            100,
            3,
            "suspicious: 3 of 100 judged calls are over their statistical budget: chance does not explain so many",
        ),
        (3, 1, "suspicious: 1 of 3 judged calls are over their statistical budget: chance does not explain so many"),
    ],
)
def test_of_suspicious_calls_few_are_by_chance(judged: int, doubted: int, words: str) -> None:
    (line,) = said(replace(FOUND, judged=judged, doubted=doubted), "suspicious")
    assert line.startswith(words)


def test_causes_stand_below_the_wrong_call() -> None:
    wrong = Judged(3, "bug", True, "out", 17.0, 1.0, {})
    lines = str(replace(FOUND, wrong=1, kept=wrong, causes=("no key is masked", "out is doubled"))).splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("first wrong: call 3, bug at out"))
    assert lines[at + 1 : at + 3] == ["  cause: no key is masked", "  cause: out is doubled"]
    assert lines[at + 3].startswith("  repeat: ")


def test_a_call_without_an_element_beyond_its_budget_says_why() -> None:
    wrong = Judged(
        3, "bug", True, "out", 0.598, 1.0, {"stage": "out", "index": {}}, reason="errors are too large together"
    )
    (line,) = said(replace(FOUND, wrong=1, kept=wrong), "first wrong")
    assert line == "first wrong: call 3, bug at out, errors are too large together"


def test_right_calls_say_what_no_call_shows() -> None:
    assert INPUTS in str(FOUND).splitlines()
    wrong = Judged(3, "bug", True, "out", 17.0, 1.0, {})
    assert not said(replace(FOUND, wrong=1, kept=wrong), "each is right")
    assert not said(replace(FOUND, judged=0), "each is right")
