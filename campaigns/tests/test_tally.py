"""What correct runs were called, on verdicts made by hand and on a fault that nobody was told of."""

import json

from campaigns.tally import Called, Tally, limits_row, row, stage_rows
from workbench import Case, diff, run

CASE = Case(seqlen=20, head_dim=8, block_q=16, block_k=16)


def test_a_right_run_and_a_wrong_one():
    right = Called.of(diff(run("flash", CASE, backend="emulator")))
    assert (right.verdict, right.stages, right.fails) == ("rounding", (), ())
    wrong = Called.of(diff(run("flash", CASE, faults=["flash-no-correction"], backend="emulator")))
    assert (wrong.verdict, wrong.stages) == ("bug", (("bug", "acc"),))
    assert wrong.fails == ("assert_close", "atol 1e-2", "FlashAttention 2x")
    assert wrong.run.startswith("flash: Case(seqlen=20, head_dim=8,")


def test_verdicts_are_counted_with_their_stages_and_limits():
    tally = Tally()
    for verdict, stages in [("rounding", ())] * 398 + [
        ("suspicious", (("suspicious", "acc"), ("suspicious", "out"))),
        ("bug", (("suspicious", "acc"), ("bug", "lse"))),
    ]:
        tally.add(Called(verdict, stages, ("atol 1e-2",) if stages else (), "flash: a case"))
    found = tally.document()
    assert json.loads(json.dumps(found)) == found
    assert found == {
        "runs": 400,
        "verdicts": {"rounding": 398, "suspicious": 1, "bug": 1},
        "stages": {"suspicious": {"acc": 2, "out": 1}, "bug": {"lse": 1}},
        "rules": {"assert_close": 0, "atol 1e-2": 2, "FlashAttention 2x": 0},
        "not_right": [
            "suspicious acc, suspicious out of flash: a case",
            "suspicious acc, bug lse of flash: a case",
        ],
    }
    assert stage_rows(found) == [
        {"verdict": "suspicious", "stage": "acc", "runs": 2},
        {"verdict": "suspicious", "stage": "out", "runs": 1},
        {"verdict": "bug", "stage": "lse", "runs": 1},
    ]
    verdicts, limits = row("correct", found), limits_row(found)
    assert list(verdicts) == list(limits)
    assert (verdicts["suspicious"], limits["suspicious"]) == (1, 2)
    assert (verdicts["bug"], limits["bug"], limits["biased"], limits["rounding"]) == (1, 0, 4, None)
